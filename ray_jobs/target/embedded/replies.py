"""The JSON of replies: an answer of /generate, and what the server says of itself."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from ray_jobs.target.embedded.engine import Engine
from ray_jobs.target.embedded.jobs import Entry, Job, Logprobs, Outcome
from ray_jobs.target.embedded.protocol import Call
from ray_jobs.target.embedded.vocabulary import Vocabulary

VERSION = "0.5.23-embedded"
WEIGHT_VERSION = "default"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the server was started with."""

    model_path: str
    host: str = "127.0.0.1"
    port: int = 30000
    dtype: str = "bfloat16"
    threads: int | None = None
    max_running_requests: int = 48
    max_total_tokens: int | None = None
    """Tokens that the cache may come to hold; None: a quarter of this machine's memory."""
    enable_return_hidden_states: bool = False
    enable_return_aux_hidden_states: bool = False
    """Hidden states are then those of the aux layers, beside each other; implies the flag above."""
    aux_layers: tuple[int, ...] | None = None
    """Layers whose outputs are returned; None: the three that EAGLE-3 reads."""

    @property
    def hidden_states(self) -> bool:
        """Whether hidden states are returned when a request asks for them."""
        return self.enable_return_hidden_states or self.enable_return_aux_hidden_states


def answer(call: Call, outcomes: list[Outcome], vocabulary: Vocabulary, started: float) -> list[dict[str, Any]]:
    """One object for each job of a call, in their order; `started` is the call's monotonic start."""
    latency = time.monotonic() - started
    return [
        _answer(job, prompt_tokens, outcome, call, vocabulary, latency)
        for job, prompt_tokens, outcome in zip(call.jobs, call.prompt_tokens, outcomes, strict=True)
    ]


def _answer(
    job: Job, prompt_tokens: int, outcome: Outcome, call: Call, vocabulary: Vocabulary, latency: float
) -> dict[str, Any]:
    count = len(outcome.output_ids)
    meta: dict[str, Any] = {
        "id": job.rid,
        "finish_reason": outcome.finish_reason,
        "prompt_tokens": prompt_tokens,
        "weight_version": WEIGHT_VERSION,
        "num_retractions": 0,
    }
    if job.logprobs:
        meta |= _logprobs(job, outcome, vocabulary if call.logprob_text else None)
    meta |= {
        "reasoning_tokens": 0,
        "completion_tokens": count,
        "cached_tokens": 0,
        "weight_versions": [{"version": WEIGHT_VERSION, "start": 0, "end": count}],
        "cached_tokens_details": None,
    }
    if job.hidden:
        meta["hidden_states"] = [states.tolist() for states in outcome.hidden]
    meta |= {"dp_rank": None, "e2e_latency": latency, "response_sent_to_client_ts": time.time()}
    reply = {
        "text": vocabulary.text(outcome.output_ids, outcome.finish_reason, job.params),
        "output_ids": outcome.output_ids,
        "meta_info": meta,
    }
    if call.prompt_ids:
        reply["prompt_token_ids"] = job.prompt[:prompt_tokens]
    return reply


def _logprobs(job: Job, outcome: Outcome, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """The log-probability fields, with the texts of their ids if a vocabulary is given."""

    def one(entry: Entry) -> list[Any]:
        return [entry[0], entry[1], vocabulary.token_text(entry[1]) if vocabulary else None]

    def many(lines: list[list[Entry] | None]) -> list[Any]:
        return [None if line is None else [one(entry) for entry in line] for line in lines]

    parts: tuple[tuple[str, Logprobs], ...] = (
        ("input", outcome.input_logprobs),
        ("output", outcome.output_logprobs),
    )
    made: dict[str, Any] = {f"{side}_token_logprobs": [one(entry) for entry in notes.tokens] for side, notes in parts}
    made["output_token_logprobs_length"] = len(outcome.output_logprobs.tokens)
    if job.top_logprobs > 0:
        made |= {f"{side}_top_logprobs": many(notes.top) for side, notes in parts}
    if job.token_ids_logprob:
        made |= {f"{side}_token_ids_logprobs": many(notes.chosen) for side, notes in parts}
    return made


def model_info(settings: Settings, engine: Engine) -> dict[str, Any]:
    """The reply of /model_info."""
    config = engine.model.model.config
    return {
        "model_path": settings.model_path,
        "served_model_name": settings.model_path,
        "tokenizer_path": settings.model_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": WEIGHT_VERSION,
        "load_format": "auto",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": config.model_type,
        "architectures": config.architectures,
    }


def server_info(settings: Settings, engine: Engine) -> dict[str, Any]:
    """The reply of /server_info: the arguments, in the real server's names, and the state."""
    model, load = engine.model, engine.load()
    arguments = {name: value for name, value in asdict(settings).items() if name not in ("threads", "aux_layers")}
    aux = settings.enable_return_aux_hidden_states
    shared = {
        **arguments,
        "tokenizer_path": settings.model_path,
        "served_model_name": settings.model_path,
        "context_length": model.context_length,
        "enable_return_hidden_states": settings.hidden_states,
        "return_hidden_states_mode": "full",
        "aux_hidden_state_capture": "eagle3" if aux else None,
        "return_aux_hidden_state_layer_ids": list(model.aux_layers) if aux else None,
        "disable_radix_cache": True,
        "chunked_prefill_size": -1,
        "device": "cpu",
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "speculative_algorithm": None,
        "skip_tokenizer_init": False,
        "grammar_backend": "none",
        "reasoning_parser": None,
        "weight_version": WEIGHT_VERSION,
        "compute_dtype": str(model.model.dtype).removeprefix("torch."),
    }
    state = {
        "effective_max_running_requests_per_dp": settings.max_running_requests,
        "last_gen_throughput": load["rate"],
        "memory_usage": _memory(engine),
    }
    return {
        **shared,
        "status": "ready" if engine.alive else "dead",
        "max_total_num_tokens": model.max_tokens,
        "max_req_input_len": max_input_length(engine),
        "internal_states": [{**shared, **state}],
        "version": VERSION,
        "frontend": "python",
    }


def max_input_length(engine: Engine) -> int:
    """The longest prompt that is taken."""
    return engine.max_request_tokens - 5


def loads(settings: Settings, engine: Engine) -> dict[str, Any]:
    """The reply of /v1/loads."""
    load, total = engine.load(), engine.model.max_tokens
    now = time.time()
    rank = {
        "timestamp": now,
        "dp_rank": 0,
        "num_running_reqs": load["running"],
        "num_waiting_reqs": load["waiting"],
        "num_used_tokens": load["tokens"],
        "num_total_tokens": load["tokens"],
        "num_active_tokens": load["tokens"],
        "max_total_num_tokens": total,
        "max_running_requests": settings.max_running_requests,
        "token_usage": round(load["tokens"] / total, 4),
        "gen_throughput": round(load["rate"], 2),
        "cache_hit_rate": 0.0,
        "utilization": 0.0,
        "memory": _memory(engine),
        "queues": {"waiting": load["waiting"], "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0},
    }
    stamp = datetime.fromtimestamp(now, UTC).isoformat()
    return {"timestamp": stamp, "version": VERSION, "accelerator": None, "num_accelerators": 1, "loads": [rank]}


def _memory(engine: Engine) -> dict[str, Any]:
    model = engine.model
    weights = sum(parameter.nbytes for parameter in model.model.parameters())
    held = model.cache.rows * model.cache.capacity * model.bytes_a_token
    return {
        "weight_gb": round(weights / 2**30, 3),
        "kv_cache_gb": round(held / 2**30, 3),
        "graph_gb": 0.0,
        "token_capacity": model.max_tokens,
    }
