"""The folder that SGLang and vLLM load as an EAGLE-3 drafter, and its check.

Shape letters: V target vocabulary, W draft vocabulary, D draft hidden size.

A server skips names that it does not know and leaves a missing tensor at random values, both without an error.
So every folder is read back and compared with what its own configuration makes the server expect.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ray_jobs.core.errors import ConfigError, StageError
from ray_jobs.drafter.folders import new_folder, write_json
from ray_jobs.drafter.shape import DrafterShape
from ray_jobs.drafter.vocab import DraftVocab, vocab_from_ids
from ray_jobs.drafter.weights import SavedDrafter, check_state, state_of, tensor_faults

ARCHITECTURE = "LlamaForCausalLMEagle3"
# Switches of a server's Llama drafter that change its arithmetic; the trained one has none of them.
_SWITCHES = ("norm_output", "fc_norm", "use_aux_norm", "bias")
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def serving_config(shape: DrafterShape, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """The content of config.json.

    Positions are written twice: older readers take rope_theta and rope_scaling, transformers 5 rope_parameters, and
    each falls back to defaults in silence where its own keys are absent. Layer ids are written twice as well:
    SGLang reads `eagle_config` and takes layer outputs, vLLM reads the top level first and takes layer inputs.
    """
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "target_hidden_size": shape.target_hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": 1,
        "num_aux_hidden_states": len(shape.aux_layers),
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "max_position_embeddings": shape.max_position_embeddings,
        "rope_theta": shape.rope_theta,
        "rope_scaling": shape.rope_scaling,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta, **(shape.rope_scaling or {})},
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": shape.vocab_size,
        "draft_vocab_size": shape.draft_vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": _dtype_name(dtype),
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(shape.aux_layers),
            "use_aux_hidden_state": True,
            "norm_before_fc": False,
        },
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in shape.aux_layers],
    }


def _dtype_name(dtype: torch.dtype) -> str:
    for name, known in _DTYPES.items():
        if known == dtype:
            return name
    raise ConfigError("export.dtype", dtype, f"must be one of {', '.join(_DTYPES)}", "Use bfloat16.")


def write_export(
    folder: Path | str,
    model: nn.Module | Mapping[str, Tensor],
    shape: DrafterShape,
    vocab: DraftVocab,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write model.safetensors and config.json, whole or not at all, and only if `verify_export` accepts them.

    The embedding is left out: servers use the target's. So are d2t and t2d where the vocabulary is the target's.
    Raises StageError if the tensors do not belong to the shape or are not finite.
    """
    state = state_of(model)
    check_state(state, shape, "the drafter to export")
    if (len(vocab.ids), len(vocab.t2d)) != (shape.draft_vocab_size, shape.vocab_size):
        raise StageError(
            f"the vocabulary maps {len(vocab.ids)} draft ids to {len(vocab.t2d)} target ids, "
            f"the drafter has {shape.draft_vocab_size} and {shape.vocab_size}"
        )
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in state.items()}
    if not vocab.is_full:
        tensors |= {"d2t": vocab.d2t.cpu().contiguous(), "t2d": vocab.t2d.cpu().contiguous()}
    with new_folder(Path(folder)) as fresh:
        save_file(tensors, fresh / "model.safetensors", metadata={"format": "pt"})
        write_json(fresh / "config.json", serving_config(shape, dtype))
        verify_export(fresh)


def verify_export(folder: Path | str) -> None:
    """Re-read a drafter folder and compare it with what a server loads.

    Raises StageError, one line that names every key or tensor which is missing, unknown, of another shape or dtype,
    not finite, or (the vocabulary map) inconsistent.
    """
    folder = Path(folder)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        _refuse_null(folder, config)
        shape = _shape_of(config)
        faults = _config_faults(config, shape)
        with safe_open(folder / "model.safetensors", framework="pt") as stored:
            faults += _stored_faults(stored, shape, _DTYPES[config["torch_dtype"]])
    except (OSError, KeyError, TypeError, ValueError, ConfigError, SafetensorError) as error:
        raise StageError(f"export {folder}: cannot be read as a drafter ({type(error).__name__}: {error})") from error
    if faults:
        raise StageError(f"export {folder}: {'; '.join(faults)}")


def _refuse_null(folder: Path, config: Mapping[str, Any]) -> None:
    """Keys without which a server would fill in something: a null draft_vocab_size takes the target's own head."""
    needed = ("hidden_size", "target_hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    needed += ("head_dim", "vocab_size", "draft_vocab_size", "rms_norm_eps", "rope_theta", "max_position_embeddings")
    needed += ("torch_dtype", "eagle_config")
    absent = [f"config.json has no {key}" for key in needed if config.get(key) is None]
    if absent:
        raise StageError(f"export {folder}: {'; '.join(absent)}")


def _shape_of(config: Mapping[str, Any]) -> DrafterShape:
    """The shape that a config.json describes."""
    return DrafterShape(
        hidden_size=config["hidden_size"],
        target_hidden_size=config["target_hidden_size"],
        intermediate_size=config["intermediate_size"],
        n_heads=config["num_attention_heads"],
        n_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        vocab_size=config["vocab_size"],
        draft_vocab_size=config["draft_vocab_size"],
        rms_norm_eps=config["rms_norm_eps"],
        rope_theta=config["rope_theta"],
        rope_scaling=config.get("rope_scaling"),
        max_position_embeddings=config["max_position_embeddings"],
        aux_layers=tuple(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]),
    )


def _config_faults(config: Mapping[str, Any], shape: DrafterShape) -> list[str]:
    """Keys of config.json whose value would make a server load something else."""
    expected = serving_config(shape, _DTYPES[config["torch_dtype"]])
    switched = [f"config.json {key} is {config[key]!r}, it must be absent" for key in _SWITCHES if config.get(key)]
    return switched + [
        f"config.json {key} is {config.get(key)!r}, expected {value!r}"
        for key, value in expected.items()
        if config.get(key) != value
    ]


def _stored_faults(stored: Any, shape: DrafterShape, dtype: torch.dtype) -> list[str]:
    """Faults of an open safetensors file."""
    expected = shape.parameter_shapes()
    dtypes = dict.fromkeys(expected, dtype)
    if shape.draft_vocab_size != shape.vocab_size:
        expected |= {"d2t": (shape.draft_vocab_size,), "t2d": (shape.vocab_size,)}
        dtypes |= {"d2t": torch.int64, "t2d": torch.bool}
    names = list(stored.keys())
    faults = tensor_faults({name: tuple(stored.get_slice(name).get_shape()) for name in names}, expected)
    for name in (name for name in names if name in expected):
        tensor = stored.get_tensor(name)
        if tensor.dtype != dtypes[name]:
            faults.append(f"{name} is {tensor.dtype}, expected {dtypes[name]}")
        elif tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            faults.append(f"{name} has values that are not finite")
    if not faults and "d2t" in expected:
        faults += _map_faults(stored.get_tensor("d2t"), stored.get_tensor("t2d"))
    return faults


def _map_faults(d2t: Tensor, t2d: Tensor) -> list[str]:
    """d2t [W] holds offsets: the ids j + d2t[j] must rise inside the vocabulary and be the members of t2d [V]."""
    ids = d2t + torch.arange(len(d2t))
    if bool((ids < 0).any()) or bool((ids >= len(t2d)).any()) or bool((ids.diff() <= 0).any()):
        return ["d2t does not map to rising target ids; it must hold offsets (target id minus draft id)"]
    return [] if torch.equal(t2d.nonzero()[:, 0], ids) else ["t2d does not mark the ids of d2t"]


def speculation_args(folder: Path | str, draft_tokens: int = 3) -> dict[str, Any]:
    """SGLang's arguments that make it draft with this folder, `draft_tokens` a step in one chain."""
    if draft_tokens < 1:
        raise ConfigError("draft_tokens", draft_tokens, "must be at least 1", "Use 3.")
    return {
        "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": str(folder),
        "speculative-num-steps": draft_tokens,
        "speculative-eagle-topk": 1,
        # the token that the target itself adds counts among those of a step
        "speculative-num-draft-tokens": draft_tokens + 1,
    }


def serve_command(target_model: str, folder: Path | str, draft_tokens: int = 3) -> str:
    """The line that serves the target with this drafter."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", target_model]
    for key, value in speculation_args(folder, draft_tokens).items():
        words += [f"--{key}", str(value)]
    return shlex.join(words)


def load_export(folder: Path | str) -> SavedDrafter:
    """The drafter that a server would load from a verified export, in float32.

    Raises StageError as `verify_export` does.
    """
    folder = Path(folder)
    verify_export(folder)
    shape = _shape_of(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    state = load_file(folder / "model.safetensors")
    d2t = state.pop("d2t", torch.zeros(shape.draft_vocab_size, dtype=torch.int64))
    state.pop("t2d", None)
    vocab = vocab_from_ids(d2t + torch.arange(shape.draft_vocab_size), shape.vocab_size)
    return SavedDrafter({name: tensor.float() for name, tensor in state.items()}, shape, vocab)
