"""A small target in this process: its layer outputs and its frozen weights, straight from transformers.

The reference that features captured in a server are compared with, and the source of features where the target fits
beside the trainer.

    T tokens of one row   H hidden size   V vocabulary   3 aux layers
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ray_jobs.core.errors import ConfigError, GuardError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_NORM_NAMES = ("norm", "final_layernorm", "final_layer_norm", "ln_f")


@dataclass(frozen=True, slots=True)
class Features:
    """What the target computed for one row."""

    aux: torch.Tensor
    """[T, 3H]: the outputs of the aux layers beside each other, without the final norm."""
    last: torch.Tensor
    """[T, H]: the last layer's output after the final norm, what the output matrix is multiplied with."""


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """The numbers of a target that a drafter is built from."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any]
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]


def default_aux_layers(n_layers: int) -> tuple[int, int, int]:
    """The three layers whose *outputs* EAGLE-3 reads: an early, a middle and a late one.

    A target of fewer than seven layers does not have three such layers: there first, middle and last.

    Raises:
        ConfigError: the target has fewer than three layers.
    """
    if n_layers < 3:
        raise ConfigError(
            "features.aux_layers", "null", f"the target has {n_layers} layers, three are needed", "Use another target."
        )
    if n_layers < 7:
        return 0, (n_layers - 1) // 2, n_layers - 1
    return 1, n_layers // 2 - 1, n_layers - 4


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type to multiply in on this CPU.

    bfloat16 without instructions for it is emulated at a fifth of the speed of float32; then float32 is used on the
    same (bfloat16) weights, which only rounds less.
    """
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.float32
    return dtype


def load_model(
    model_path: str | Path,
    *,
    dtype: str,
    trust_remote_code: bool = False,
    attention: str | None = None,
    device: str = "cpu",
) -> Any:
    """Load a causal language model for inference: weights of `dtype`, on a CPU held in `compute_dtype(dtype)`.

    Raises:
        ConfigError: there is no such folder, or an unknown dtype.
    """
    from transformers import AutoModelForCausalLM

    if dtype not in DTYPES:
        raise ConfigError("dtype", dtype, f"must be one of {', '.join(DTYPES)}", "Choose one of them.")
    if not (Path(model_path) / "config.json").is_file():
        raise ConfigError("target.model", model_path, "this folder has no config.json", "Name a model folder.")
    extra = {"attn_implementation": attention} if attention else {}
    model: Any = AutoModelForCausalLM.from_pretrained(
        str(model_path), dtype=DTYPES[dtype], trust_remote_code=trust_remote_code, **extra
    )
    model.eval().requires_grad_(False)
    if device != "cpu":
        return model.to(device)
    computed = compute_dtype(DTYPES[dtype])
    # not `to` of the same dtype: it would round the rotary frequencies, which transformers keeps in float32
    return model if computed is DTYPES[dtype] else model.to(dtype=computed)


def decoder_layers(model: Any) -> nn.ModuleList:
    """The list of decoder layers of a causal language model.

    Raises:
        ConfigError: the model keeps them in a way that is not known.
    """
    n_layers = model.config.get_text_config().num_hidden_layers
    for module in model.get_decoder().modules():
        if isinstance(module, nn.ModuleList) and len(module) == n_layers:
            return module
    raise ConfigError("target.model", model.config.model_type, "its decoder layers were not found", "Use another.")


def cache_argument(model: Any) -> str:
    """The name of the cache parameter of `model.forward`: transformers renamed it within version 5."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@contextmanager
def layer_outputs(model: Any, layers: Sequence[int]) -> Iterator[list[torch.Tensor | None]]:
    """Within the block, the list holds the outputs of `layers` in the latest forward."""
    kept: list[torch.Tensor | None] = [None] * len(layers)

    def keep(place: int) -> Any:
        def hook(_module: nn.Module, _arguments: Any, output: Any) -> None:
            kept[place] = output[0] if isinstance(output, tuple) else output

        return hook

    modules = decoder_layers(model)
    handles = [modules[layer].register_forward_hook(keep(place)) for place, layer in enumerate(layers)]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


class InProcessTarget:
    """A loaded target that answers for whole rows; not for generating."""

    def __init__(self, model: Any, *, dtype: torch.dtype, aux_layers: Sequence[int] | None = None) -> None:
        self.model, self.dtype = model, dtype
        self.config = _facts(model.config, model.generation_config)
        self.aux_layers = tuple(aux_layers) if aux_layers else default_aux_layers(self.config.n_layers)
        _check_layers(self.aux_layers, self.config.n_layers)

    @classmethod
    def load(
        cls,
        model_path: str | Path,
        *,
        dtype: str,
        aux_layers: Sequence[int] | None = None,
        threads: int | None = None,
        trust_remote_code: bool = False,
        device: str = "cpu",
    ) -> InProcessTarget:
        """Load a model folder; `threads` bounds torch's threads in this whole process.

        Raises:
            ConfigError: no model in that folder, or layers that it does not have.
        """
        if threads:
            torch.set_num_threads(threads)
        model = load_model(model_path, dtype=dtype, trust_remote_code=trust_remote_code, device=device)
        return cls(model, dtype=DTYPES[dtype], aux_layers=aux_layers)

    def features(self, batch: Sequence[Sequence[int]]) -> list[Features]:
        """The features of rows of any lengths, computed together, in the dtype of the target; no row may be empty."""
        lengths = [len(ids) for ids in batch]
        if not lengths or min(lengths) < 1:
            raise ValueError("every row needs at least one id")
        aux, last = self._forward(batch, max(lengths))
        return [
            # clone, so that a kept row does not keep the whole padded batch
            Features(aux[row, :length].to(self.dtype, copy=True), last[row, :length].to(self.dtype, copy=True))
            for row, length in enumerate(lengths)
        ]

    @torch.inference_mode()
    def _forward(self, batch: Sequence[Sequence[int]], width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """aux [B, width, 3H] and last [B, width, H] of right-padded rows, without the output matrix."""
        ids = torch.zeros(len(batch), width, dtype=torch.long, device=self.model.device)
        for row, row_ids in enumerate(batch):
            ids[row, : len(row_ids)] = torch.as_tensor(row_ids)
        with layer_outputs(self.model, self.aux_layers) as kept:
            # no padding mask: with the padding on the right no real token can see it under the causal mask
            last = self.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        return torch.cat([output for output in kept if output is not None], dim=-1), last

    @property
    def lm_head(self) -> torch.Tensor:
        """[V, H]: the output matrix."""
        return self.model.get_output_embeddings().weight

    @property
    def embedding(self) -> torch.Tensor:
        """[V, H]: the input embedding."""
        return self.model.get_input_embeddings().weight

    @property
    def final_norm(self) -> torch.Tensor:
        """[H]: the weight of the norm behind the last layer."""
        decoder = self.model.get_decoder()
        for name in _NORM_NAMES:
            if hasattr(decoder, name):
                return getattr(decoder, name).weight
        raise ConfigError("target.model", self.config.model_type, "its final norm was not found", "Use another.")

    @torch.inference_mode()
    def check(self, input_ids: Sequence[int], *, tolerance: float | None = None) -> float:
        """Largest difference between `log_softmax(W_lm last_t)[x_(t+1)]` and the model's own, over one row.

        It shows that `last` and `lm_head` are what the model itself multiplies (no scale, no soft cap between them).

        Raises:
            GuardError: it is above `tolerance` (default 1e-3 in float32, 0.1 in bfloat16).
        """
        limit = tolerance if tolerance is not None else (1e-3 if self.dtype is torch.float32 else 0.1)
        last = self.features([input_ids])[0].last.to(self.lm_head.dtype)
        ours = _next_logprobs(last @ self.lm_head.T, input_ids)
        own = _next_logprobs(self.model(input_ids=torch.tensor([list(input_ids)])).logits[0], input_ids)
        worst = float((ours - own).abs().max()) if len(input_ids) > 1 else 0.0
        if worst > limit:
            raise GuardError(
                f"features: log-probabilities from the last hidden state differ from the target's own by {worst:.3g} "
                f"(limit {limit:.3g}). This target scales or caps its logits; it cannot be distilled this way."
            )
        return worst


def _next_logprobs(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """[T - 1]: the log-probability of each next id; logits is [T, V]."""
    following = torch.as_tensor(list(ids)[1:], dtype=torch.long)
    return logits[:-1].float().log_softmax(-1).gather(1, following[:, None])[:, 0]


def _check_layers(layers: Sequence[int], n_layers: int) -> None:
    if len(set(layers)) != len(layers) or not all(0 <= layer < n_layers for layer in layers):
        raise ConfigError(
            "features.aux_layers",
            list(layers),
            f"must be different layers from 0 to {n_layers - 1}",
            "Name layers of this target.",
        )


def read_target_facts(model_path: str | Path, *, trust_remote_code: bool = False) -> TargetFacts:
    """The facts of a model folder, without its weights."""
    from transformers import AutoConfig

    return _facts(AutoConfig.from_pretrained(str(model_path), trust_remote_code=trust_remote_code), None)


def _facts(any_config: Any, generation_config: Any) -> TargetFacts:
    """Read the numbers from the (text) config of a model; eos ids as the generation config has them."""
    config = any_config.get_text_config()
    eos = generation_config.eos_token_id if generation_config is not None else None
    eos = config.eos_token_id if eos is None else eos
    heads = config.num_attention_heads
    return TargetFacts(
        model_type=config.model_type,
        hidden_size=config.hidden_size,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        n_layers=config.num_hidden_layers,
        n_heads=heads,
        n_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab_size=config.vocab_size,
        context_length=config.max_position_embeddings,
        rms_norm_eps=getattr(config, "rms_norm_eps", None) or getattr(config, "layer_norm_epsilon", 1e-5),
        rope_parameters=dict(getattr(config, "rope_parameters", None) or {}),
        tie_word_embeddings=bool(config.tie_word_embeddings),
        eos_token_ids=tuple(eos) if isinstance(eos, (list, tuple)) else (() if eos is None else (eos,)),
    )
