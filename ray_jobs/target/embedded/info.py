"""What the server says of itself: model, arguments, load."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ray_jobs.target.embedded.engine import Engine
from ray_jobs.target.embedded.replies import WEIGHT_VERSION, Settings

VERSION = "0.5.23-embedded"


_EMBEDDING = {
    "family": "none",
    "task": "none",
    "execution": "none",
    "attention": "none",
    "pooling": "model_defined",
    "normalize": False,
    "postprocessor": "none",
    "tokenizer_special_tokens": "model_default",
    "supports_dimensions": False,
    "supports_token_embeddings": False,
    "supports_multimodal": False,
    "requires_embedding_flag": False,
    "auto_enable_embedding": False,
    "bcg_eligibility": "disabled",
    "safe_disable_kv_cache": False,
    "safe_disable_radix_cache": False,
    "safe_disable_chunked_prefill": False,
    "enabled": False,
    "matryoshka_dimensions": [],
    "bcg": {"prefill_backend": "disabled", "enabled": False, "capture_token_budget": 0, "capture_batch_sizes": []},
    "cache": {"kv_cache_disabled": False, "radix_cache_disabled": True, "chunked_prefill_disabled": True},
}
"""What a model that embeds nothing says of embedding."""


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
        "embedding": _EMBEDDING,
    }


def models(settings: Settings, engine: Engine) -> dict[str, Any]:
    """The reply of /v1/models."""
    return {"object": "list", "data": [model_card(settings, engine)]}


def model_card(settings: Settings, engine: Engine) -> dict[str, Any]:
    """The reply of /v1/models/NAME for the model that there is."""
    return {
        "id": settings.model_path,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": settings.model_path,
        "parent": None,
        "max_model_len": engine.model.context_length,
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
        "stream_interval": 1,
        "incremental_streaming_output": False,
        "enable_deterministic_inference": model.deterministic,
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
        "num_waiting_uncached_tokens": load["waiting_tokens"],
        "num_used_tokens": load["tokens"],
        "num_total_tokens": load["tokens"],
        "num_active_tokens": load["tokens"],
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": total,
        "max_running_requests": settings.max_running_requests,
        "token_usage": round(load["tokens"] / total, 4),
        "gen_throughput": round(load["rate"], 2),
        "cache_hit_rate": 0.0,
        "utilization": 0.0,
        "total_prefill_uncached_tokens": load["prefilled"],
        "total_prefill_busy_us": 0,
        "decode_moments": None,
        "memory": _memory(engine),
        "disaggregation": _DISAGGREGATION,
        "queues": {"waiting": load["waiting"], "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0},
    }
    stamp = datetime.fromtimestamp(now, UTC).isoformat()
    return {"timestamp": stamp, "version": VERSION, "accelerator": None, "num_accelerators": 1, "loads": [rank]}


_DISAGGREGATION = {
    "mode": "null",
    "prefill_bootstrap_queue_reqs": 0,
    "prefill_inflight_queue_reqs": 0,
    "decode_prealloc_queue_reqs": 0,
    "decode_transfer_queue_reqs": 0,
    "decode_retracted_queue_reqs": 0,
    "kv_transfer_speed_gb_s": 0.0,
    "kv_transfer_latency_ms": 0.0,
}


def load_of_old(_settings: Settings, engine: Engine) -> list[dict[str, Any]]:
    """The reply of /get_load, which later servers keep for old clients (its shape is from their source)."""
    load = engine.load()
    counts = {"num_reqs": load["running"] + load["waiting"], "num_waiting_reqs": load["waiting"]}
    tokens = {"num_tokens": load["tokens"] + load["waiting_tokens"], "num_pending_tokens": load["waiting_tokens"]}
    return [{"dp_rank": 0, **counts, **tokens, "ts_tic": time.perf_counter()}]


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
