"""The promises of samples/: schema, partition, texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset as pads

from ray_jobs.core.schemas import SAMPLES
from ray_jobs.text.chat import Chat


def check_samples(folder: Path, model: Path) -> list[dict[str, Any]]:
    """Assert them for every row; returns the rows."""
    dataset = pads.dataset(folder / "samples")
    assert dataset.schema.equals(SAMPLES, check_metadata=False)
    assert (dataset.schema.metadata or {}).get(b"schema_version") == b"1"
    rows = dataset.to_table().to_pylist()
    decode = Chat.load(model, markers_family="tiny").decode
    for row in rows:
        edges = [(s["start"], s["stop"]) for s in row["segments"]]
        assert [a for a, _ in edges] == [0, *[b for _, b in edges[:-1]]]
        assert edges[-1][1] == len(row["output_ids"]) == row["n_output_tokens"]
        assert all(a < b for a, b in edges)
        for column, kind in (("content", "content"), ("reasoning", "reasoning")):
            ids = [row["output_ids"][s["start"] : s["stop"]] for s in row["segments"] if s["kind"] == kind]
            text = "".join(decode(part) for part in ids)
            assert (row[column] or "") == text
        assert len(row["prompt_ids"]) == row["n_prompt_tokens"]
        assert row["finish_reason"] in ("stop", "length")
    return rows


def prompt_rows(folder: Path) -> set[str]:
    """row_ids of all that was asked: what an unbroken run has in samples/ when nothing fails."""
    files = sorted((folder / "prompts").glob("*.parquet"))
    return set(pads.dataset(files).to_table(columns=["row_id"])["row_id"].to_pylist())
