"""Counts over the rows of a run, one batch in memory at a time: 88,000 rows of long thoughts are gigabytes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from ray_jobs.core.files import read_json_lines
from ray_jobs.evaluation.examples import Candidate, Candidates
from ray_jobs.store.sample_set import SampleSet

# its functions are made at import, so that type checkers do not know them
pc: Any = pyarrow.compute

BATCH_ROWS = 1024
COLUMNS = [
    "row_id",
    "source",
    "segments",
    "reasoning",
    "tool_calls",
    "closed",
    "flags",
    "finish_reason",
    "n_prompt_tokens",
    "n_output_tokens",
    "n_reasoning_tokens",
    "replica",
    "server_version",
    "started_at",
    "latency_s",
]


@dataclass
class Rows:
    """Figures of one source, or of all.

    `thoughts`: rows whose thought was opened. `reasoned`: those whose column `reasoning` holds more than white space.
    `called`: rows with tool calls. `calls`: the calls. `unparsed`: calls whose arguments are not JSON.
    """

    asked: int = 0
    ok: int = 0
    failed: int = 0
    thoughts: int = 0
    reasoned: int = 0
    called: int = 0
    calls: int = 0
    unparsed: int = 0

    @property
    def open(self) -> int:
        """Prompts that have neither a row nor a failure yet."""
        return self.asked - self.ok - self.failed

    def add(self, other: Rows) -> None:
        """Add another's figures to these."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class ErrorClass:
    """Failures of one class, with the first of them by row_id."""

    name: str
    rows: int
    row_id: str
    source: str
    attempts: int
    error: str


@dataclass
class Tally:
    """All that the report says of a data set.

    `lengths` in ids, one int64 array a name: `prompt`, `output`, `content` of every row, `reasoning` of rows with a
    thought, `tool_call` of rows with such a segment. `first_s`, `last_s`: Unix times of the first request and the
    last answer.
    """

    sources: dict[str, Rows] = field(default_factory=dict)
    closed: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    flagged: int = 0
    finish: Counter[str] = field(default_factory=Counter)
    servers: Counter[tuple[str, str]] = field(default_factory=Counter)
    lengths: dict[str, np.ndarray] = field(default_factory=dict)
    first_s: float | None = None
    last_s: float | None = None
    candidates: Candidates = field(default_factory=Candidates)

    @property
    def total(self) -> Rows:
        """All sources together."""
        total = Rows()
        for rows in self.sources.values():
            total.add(rows)
        return total

    def of(self, source: str) -> Rows:
        """The figures of one source."""
        return self.sources.setdefault(source, Rows())


def count(store: SampleSet) -> Tally:
    """Read the whole data set once; only committed rows count."""
    tally = Tally()
    parts: dict[str, list[np.ndarray]] = {name: [] for name in LENGTHS}
    for source, n in Counter(store.prompt_table(["source"])["source"].to_pylist()).items():
        tally.of(source).asked = n
    for source, n in Counter(store.failure_table(["source"])["source"].to_pylist()).items():
        tally.of(source).failed = n
    for file, batch in _batches(store):
        _add_batch(tally, file, batch)
        for name, lengths in _lengths(batch).items():
            parts[name].append(lengths)
    tally.lengths = {name: np.concatenate([np.zeros(0, np.int64), *found]) for name, found in parts.items()}
    tally.sources = dict(sorted(tally.sources.items()))
    return tally


def error_classes(store: SampleSet) -> list[ErrorClass]:
    """Failures by class, the most frequent first."""
    table = store.failure_table(["row_id", "source", "error_class", "error", "attempts"]).sort_by("row_id")
    found: dict[str, ErrorClass] = {}
    for row in table.to_pylist():
        name = row["error_class"]
        if name not in found:
            found[name] = ErrorClass(name, 0, row["row_id"], row["source"], row["attempts"], row["error"])
        found[name].rows += 1
    return sorted(found.values(), key=lambda c: (-c.rows, c.name))


def dropped_reasons(store: SampleSet) -> list[tuple[str, int, str]]:
    """Rows of the prompt files that were no prompts: (reason, rows, place of the first), the most frequent first."""
    path = store.prompts / "dropped.jsonl"
    reasons: Counter[str] = Counter()
    places: dict[str, str] = {}
    for record in read_json_lines(path) if path.exists() else ():
        reasons[record["reason"]] += 1
        places.setdefault(record["reason"], f"{record['file']}:{record['line']}")
    return [(reason, n, places[reason]) for reason, n in reasons.most_common()]


def _batches(store: SampleSet) -> Iterator[tuple[Path, pa.RecordBatch]]:
    """Committed rows with the file that they are in."""
    committed = pa.array(sorted(set(store.committed())), pa.string())
    for file in sorted(store.samples.glob("*.parquet")):
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(BATCH_ROWS, columns=COLUMNS):
                kept = batch.filter(pc.is_in(batch["row_id"], value_set=committed))
                if kept.num_rows:
                    yield file, kept


def _add_batch(tally: Tally, file: Path, batch: pa.RecordBatch) -> None:
    small = batch.select(["row_id", "source", "closed", "flags", "tool_calls"]).to_pylist()
    reasoned = pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(batch["reasoning"])), 0).to_pylist()
    for row, has_reasoning in zip(small, reasoned, strict=True):
        calls = json.loads(row["tool_calls"] or "[]")
        thought = row["closed"] != "absent"
        tally.of(row["source"]).add(
            Rows(
                ok=1,
                thoughts=thought,
                reasoned=thought and bool(has_reasoning),
                called=bool(calls),
                calls=len(calls),
                unparsed=sum(call["parsed"] is None for call in calls),
            )
        )
        tally.closed[row["closed"]] += 1
        tally.flags.update(row["flags"])
        tally.flagged += bool(row["flags"])
        tally.candidates.add(Candidate(row["row_id"], file, bool(calls), bool(row["flags"])), row["source"])
    tally.finish.update(batch["finish_reason"].to_pylist())
    tally.servers.update(zip(batch["replica"].to_pylist(), batch["server_version"].to_pylist(), strict=True))
    _add_times(tally, batch)


def _add_times(tally: Tally, batch: pa.RecordBatch) -> None:
    started_s = batch["started_at"].cast(pa.int64()).to_numpy() / 1e6
    ended_s = started_s + batch["latency_s"].to_numpy()
    first, last = float(started_s.min()), float(ended_s.max())
    tally.first_s = first if tally.first_s is None else min(first, tally.first_s)
    tally.last_s = last if tally.last_s is None else max(last, tally.last_s)


LENGTHS = ("prompt", "output", "reasoning", "content", "tool_call")


def _lengths(batch: pa.RecordBatch) -> dict[str, np.ndarray]:
    """Ids of each part of each row of the batch that has the part."""
    content, _ = _ids_of_kind(batch, "content")
    tools, has_tools = _ids_of_kind(batch, "tool_call")
    thought = pc.not_equal(batch["closed"], "absent").to_numpy(zero_copy_only=False)
    return {
        "prompt": _column(batch, "n_prompt_tokens"),
        "output": _column(batch, "n_output_tokens"),
        "reasoning": _column(batch, "n_reasoning_tokens")[thought],
        "content": content,
        "tool_call": tools[has_tools],
    }


def _column(batch: pa.RecordBatch, name: str) -> np.ndarray:
    return batch[name].to_numpy().astype(np.int64)


def _ids_of_kind(batch: pa.RecordBatch, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Of each row: ids in segments of `kind`, and whether there is such a segment."""
    column = batch["segments"]
    rows, flat = pc.list_parent_indices(column).to_numpy(), column.flatten()
    sizes = pc.subtract(flat.field("stop"), flat.field("start")).to_numpy()
    mask = pc.equal(flat.field("kind"), kind).to_numpy(zero_copy_only=False)
    ids = np.bincount(rows[mask], weights=sizes[mask], minlength=batch.num_rows).astype(np.int64)
    return ids, np.bincount(rows[mask], minlength=batch.num_rows) > 0
