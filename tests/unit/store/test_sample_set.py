"""What counts as committed, what a crash leaves behind, and failures, journals and pending rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from ray_jobs.core.files import JsonLines, read_json_lines
from ray_jobs.core.schemas import FAILURES, SAMPLES
from ray_jobs.store.sample_set import SampleSet


def prompt(row_id: str, ids: list[int] | None = None, error: str | None = None) -> dict[str, Any]:
    return {
        "row_id": row_id,
        "prompt_id": row_id,
        "turn": 0,
        "sample": 0,
        "source": "s",
        "messages": "[]",
        "tools": None,
        "prompt_ids": [1, 2] if ids is None and error is None else ids,
        "error": error,
    }


def commit(store: SampleSet, name: str, ids: list[str], *, pending: bool = False, data: bool = True) -> None:
    """What one write task of Ray leaves: ids under checkpoint/, a data file whose name begins alike."""
    store.checkpoint.mkdir(parents=True, exist_ok=True)
    store.samples.mkdir(parents=True, exist_ok=True)
    mark = f"{name}.pending.parquet" if pending else f"{name}.parquet"
    pq.write_table(pa.table({"row_id": ids}), store.checkpoint / mark)
    if data:
        row = {f.name: None for f in SAMPLES}
        table = pa.Table.from_pylist(
            [{**row, "row_id": i} for i in ids], pa.schema([f.with_nullable(True) for f in SAMPLES])
        )
        pq.write_table(table, store.samples / f"{name}-0.parquet")


def outcome(store: SampleSet, file: str, row_id: str, error: str) -> None:
    lines = JsonLines(store.outcomes / file)
    lines.append({"row_id": row_id, "error_class": "Retryable", "error": error, "attempts": 5, "last_reply": None})
    lines.close()


def test_recover_undoes_only_what_was_cut_short(tmp_path: Path) -> None:
    store = SampleSet(tmp_path)
    commit(store, "a_000000", ["1", "2"])
    commit(store, "a_000001", ["3"], pending=True)
    commit(store, "a_000002", ["4"], pending=True, data=False)
    (store.samples / ".a_000003-0.parquet.1234.tmp").write_bytes(b"half")
    assert sorted(store.committed()) == ["1", "2"]
    assert store.recover() == 2
    assert [f.name for f in store.samples.iterdir()] == ["a_000000-0.parquet"]
    assert [f.name for f in store.checkpoint.iterdir()] == ["a_000000.parquet"]
    assert store.recover() == 0
    assert store.sample_table(["row_id"])["row_id"].to_pylist() == ["1", "2"]


def test_prompts_are_only_added(tmp_path: Path) -> None:
    store = SampleSet(tmp_path)
    assert store.add_prompts([prompt("1"), prompt("2")]) == 2
    assert store.add_prompts([prompt("2"), prompt("3")]) == 1
    assert store.add_prompts([prompt("1")]) == 0
    assert store.prompt_ids_of_rows() == ["1", "2", "3"]


def test_failures_are_the_last_outcome_of_what_is_not_committed(tmp_path: Path) -> None:
    store = SampleSet(tmp_path)
    store.add_prompts([prompt(i) for i in "12345"] + [prompt("6", error="no such role")])
    outcome(store, "1-x.jsonl", "1", "first")
    outcome(store, "10-x.jsonl", "1", "last")
    outcome(store, "9-y.jsonl", "1", "between")
    outcome(store, "1-x.jsonl", "2", "but it came after all")
    assert store.write_failures({"2", "3"}) == 2
    rows = {row["row_id"]: row for row in store.failure_table().to_pylist()}
    assert {k: (v["error_class"], v["error"], v["attempts"]) for k, v in rows.items()} == {
        "1": ("Retryable", "last", 5),
        "6": ("Prompt", "no such role", 0),
    }
    assert rows["6"]["prompt_ids"] is None
    assert pads.dataset(store.failures).schema.equals(FAILURES)
    assert store.write_failures({"2", "3"}, forget=True) == 1
    assert store.failed() == ["6"]


def test_journal_entries_survive_until_their_rows_are_committed(tmp_path: Path) -> None:
    store = SampleSet(tmp_path)
    for name, ids in (("1-a.jsonl", "12"), ("2-a.jsonl", "34")):
        lines = JsonLines(store.journal / name)
        for i in ids:
            lines.append({"row_id": i})
        lines.close()
    assert [r["row_id"] for r in store.journaled({"2", "3"})] == ["2", "3"]
    store.prune_journal({"1", "2", "3"})
    assert [f.name for f in store.journal.iterdir()] == ["2-a.jsonl"]


def test_pending_of_older_attempts_goes(tmp_path: Path) -> None:
    store = SampleSet(tmp_path)
    store.write_pending(1, pa.table({"row_id": ["1"]}))
    folder = store.write_pending(2, pa.table({"row_id": ["2"]}))
    assert [p.name for p in store.work.glob("pending-*")] == ["pending-2"]
    assert pq.read_table(folder)["row_id"].to_pylist() == ["2"]


def test_a_torn_line_hides_no_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(json.dumps({"row_id": "1"}).encode() + b"\n" + b"\0\0\0\n" + b'{"row_id": "2"}\n{"row_id": "3"')
    assert [r["row_id"] for r in read_json_lines(path)] == ["1", "2"]


@pytest.mark.parametrize("columns", [None, ["row_id"]])
def test_an_empty_set_has_the_schema(tmp_path: Path, columns: list[str] | None) -> None:
    table = SampleSet(tmp_path).sample_table(columns)
    assert table.num_rows == 0
    assert table.schema.names == (columns or SAMPLES.names)
