"""Rows of samples/ and whole run folders made by hand, without a model: what readers of a run are tested with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ray_jobs.core.schemas import SAMPLES
from ray_jobs.store.sample_set import SampleSet, write_table

CONTROLS = ("<|im_user|>", "<|im_assistant|>", "<|im_end|>", "<think>", "</think>", "<|call|>", "<|end_call|>")
Pieces = Sequence[tuple[str, str]]
"""(kind of segment, its text)."""

THOUGHT: Pieces = (
    ("reasoning", "two and two"),
    ("marker", "</think>"),
    ("content", "Four."),
    ("stop", "<|im_end|>"),
)


def byte_tokenizer() -> Tokenizer:
    """256 bytes, then the control texts; loads neither transformers nor torch."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.ByteLevel()  # type: ignore[reportAttributeAccessIssue]
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROLS])
    return made


TOKENIZER = byte_tokenizer()


def encode(text: str) -> list[int]:
    """Ids of a text, controls included."""
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def sample(number: int, pieces: Pieces = THOUGHT, *, question: str = "What is 2+2?", **changed: Any) -> dict[str, Any]:
    """A whole row of samples/ whose columns agree with each other; `changed` replaces any of them."""
    output_ids, segments = [], []
    for kind, text in pieces:
        ids = encode(text)
        segments.append({"kind": kind, "start": len(output_ids), "stop": len(output_ids) + len(ids)})
        output_ids += ids
    texts = {kind: "".join(text for k, text in pieces if k == kind) for kind in ("reasoning", "content")}
    thinks = any(kind == "reasoning" for kind, _ in pieces)
    prompt_ids = encode(f"<|im_user|>{question}<|im_end|><|im_assistant|>")
    prompt_id = f"{number:032x}"
    row = {
        "row_id": f"{prompt_id}-0-0",
        "prompt_id": prompt_id,
        "turn": 0,
        "sample": 0,
        "source": "sums",
        "messages": json.dumps([{"role": "user", "content": question}]),
        "tools": None,
        "prompt_ids": prompt_ids,
        "output_ids": output_ids,
        "segments": segments,
        "reasoning": texts["reasoning"] if thinks else None,
        "content": texts["content"],
        "tool_calls": None,
        "closed": "explicit" if thinks else "absent",
        "flags": [],
        "finish_reason": "stop",
        "matched_stop": str(encode("<|im_end|>")[0]),
        "n_prompt_tokens": len(prompt_ids),
        "n_output_tokens": len(output_ids),
        "n_reasoning_tokens": len(encode(texts["reasoning"])),
        "sampling": "{}",
        "model": "bytes",
        "template_hash": "0",
        "replica": "http://127.0.0.1:30000",
        "server_version": "0",
        "weight_version": "default",
        "attempt": 1,
        "request_id": f"r{number}",
        "started_at": datetime(2025, 1, 1, tzinfo=UTC) + timedelta(minutes=number),
        "latency_s": 1.5,
    }
    assert changed.keys() <= row.keys()
    return {**row, **changed}


def commit(store: SampleSet, rows: list[dict[str, Any]], name: str = "a", *, pending: bool = False) -> Path:
    """Write the rows as one file of samples/, as Ray does; with `pending` as a write that is not finished."""
    for row in rows:
        kept = ("row_id", "prompt_id", "turn", "sample", "source", "messages", "tools", "prompt_ids")
        store.add_prompts([{**{key: row[key] for key in kept}, "error": None}])
    ids = pa.table({"row_id": [row["row_id"] for row in rows]})
    write_table(store.checkpoint / f"{name}{'.pending' if pending else ''}.parquet", ids)
    path = store.samples / f"{name}-0.parquet"
    write_table(path, pa.Table.from_pylist(rows, SAMPLES))
    return path


def ask_only(store: SampleSet, number: int, *, source: str = "sums", prompt_ids: bool = True) -> str:
    """Add a prompt that has no answer; without `prompt_ids` one that the template refused. Its row_id."""
    row = sample(number, source=source)
    kept = ("row_id", "prompt_id", "turn", "sample", "source", "messages", "tools")
    ids, error = (row["prompt_ids"], None) if prompt_ids else (None, "roles must alternate")
    store.add_prompts([{**{key: row[key] for key in kept}, "prompt_ids": ids, "error": error}])
    return row["row_id"]
