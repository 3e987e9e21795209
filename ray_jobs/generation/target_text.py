"""The target as text: its tokenizer, template and markers, its sizes, and what they mean for a run's fingerprint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ray_jobs.config.schema import Config, SamplingConfig
from ray_jobs.core.errors import ConfigError
from ray_jobs.target.model_folder import ModelFacts, locate, read_facts
from ray_jobs.target.wire import Limits
from ray_jobs.text.chat import Chat


@dataclass(frozen=True)
class TargetText:
    """Loaded once by the driver; checked against the configuration."""

    location: str
    facts: ModelFacts
    chat: Chat
    limits: Limits

    def sampling(self, cfg: SamplingConfig) -> dict[str, Any]:
        """The server's sampling_params: the family's turn ends are stop ids, whatever the model's own config says."""
        stops = sorted({*self.chat.markers.turn_end, *self.chat.eos_ids})
        return {**asdict(cfg), "stop_token_ids": stops}


def load_target_text(cfg: Config) -> TargetText:
    """Read tokenizer and config.json.

    Raises:
        ConfigError: the model is not there, or differs from what the configuration says of it.
    """
    target = cfg.target
    location = locate(target.model)
    facts = read_facts(location, target.revision)
    for name in ("hidden_size", "n_layers", "vocab_size"):
        said, found = getattr(target, name), getattr(facts, name)
        if said is not None and said != found:
            raise ConfigError(f"target.{name}", said, f"the model's config.json says {found}", "Correct or drop it.")
    length = target.context_length or facts.context_length
    if length > facts.context_length:
        rule = f"the model's config.json says {facts.context_length}"
        raise ConfigError("target.context_length", length, rule, "Lower it.")
    chat = Chat.load(
        location,
        revision=target.revision,
        trust_remote_code=target.trust_remote_code,
        thinking=target.thinking,
        markers_family=target.markers,
    )
    return TargetText(location, facts, chat, Limits(facts.vocab_size, length))


def fingerprint(cfg: Config, text: TargetText) -> dict[str, Any]:
    """What changes the meaning of a row (design 4.1); never how many rows there are."""
    return {
        "model": cfg.target.model,
        "revision": cfg.target.revision,
        "model_config": text.facts.digest,
        "tokenizer": text.chat.tokenizer_hash,
        "template": text.chat.template_hash,
        "markers": cfg.target.markers,
        "thinking": cfg.target.thinking,
        "context_length": text.limits.context_length,
        "sampling": asdict(cfg.generate.sampling),
        "aux_layers": cfg.drafter.aux_layers,
        "held_out_share": cfg.data.held_out_share,
    }
