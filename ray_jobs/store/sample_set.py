"""A data set in the making: prompts/, samples/, failures/, work/ below one folder (design 4.1).

Committed is what Ray's checkpoint lists, never what happens to stand in samples/. Ray writes, for each write
task, the ids to `X.pending.parquet`, then the data file `X-0.parquet`, then renames the ids to `X.parquet`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from ray_jobs.core.files import read_json_lines, write_atomic
from ray_jobs.core.schemas import FAILURES, PROMPTS, SAMPLES

PENDING = ".pending.parquet"


class SampleSet:
    """The folder's contents; every method reads the disk anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.prompts = path / "prompts"
        self.samples = path / "samples"
        self.failures = path / "failures"
        self.work = path / "work"
        self.checkpoint = self.work / "checkpoint"
        self.outcomes = self.work / "outcomes"
        self.journal = self.work / "journal"

    def pending_folder(self, attempt: int) -> Path:
        """What this attempt is to ask, in order."""
        return self.work / f"pending-{attempt}"

    def add_prompts(self, rows: list[dict[str, Any]]) -> int:
        """Append the rows whose row_id is not there yet; returns how many were new. Nothing is ever taken out."""
        known = set(self.prompt_ids_of_rows())
        new = [row for row in rows if row["row_id"] not in known]
        if new:
            number = len(list(self.prompts.glob("prompts-*.parquet")))
            write_table(self.prompts / f"prompts-{number:05d}.parquet", pa.Table.from_pylist(new, PROMPTS))
        return len(new)

    def prompt_ids_of_rows(self) -> list[str]:
        """row_id of every prompt, in the order to ask."""
        return self.prompt_table(["row_id"])["row_id"].to_pylist()

    def prompt_table(self, columns: list[str] | None = None) -> pa.Table:
        """All prompts, in the order they were added."""
        files = sorted(self.prompts.glob("prompts-*.parquet"))
        schema = PROMPTS if columns is None else pa.schema([PROMPTS.field(c) for c in columns])
        tables = [pq.read_table(file, columns=columns).cast(schema) for file in files]
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def recover(self) -> int:
        """Undo write tasks that a crash cut short; returns how many. Only with the run's lock held."""
        for leftover in (*self.samples.glob(".*.tmp"), *self.prompts.glob(".*.tmp"), *self.failures.glob(".*.tmp")):
            leftover.unlink()
        cut = sorted(self.checkpoint.glob(f"*{PENDING}"))
        for mark in cut:
            for file in self.samples.glob(f"{mark.name.removesuffix(PENDING)}*.parquet"):
                file.unlink()
            # last, so that a crash in here finds the mark again
            mark.unlink()
        return len(cut)

    def committed(self) -> list[str]:
        """row_ids whose rows are safely in samples/, in no order; a repeated id appears twice."""
        files = [f for f in sorted(self.checkpoint.glob("*.parquet")) if not f.name.endswith(PENDING)]
        ids: list[str] = []
        for file in files:
            ids.extend(pq.read_table(file, columns=["row_id"])["row_id"].to_pylist())
        return ids

    def failed(self) -> list[str]:
        """row_ids of the rows in failures/."""
        return self.failure_table(["row_id"])["row_id"].to_pylist()

    def failure_table(self, columns: list[str] | None = None) -> pa.Table:
        """All final failures."""
        files = sorted(self.failures.glob("*.parquet"))
        schema = FAILURES if columns is None else pa.schema([FAILURES.field(c) for c in columns])
        tables = [pq.read_table(file, columns=columns).cast(schema) for file in files]
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def sample_table(self, columns: list[str] | None = None, row_ids: Iterable[str] | None = None) -> pa.Table:
        """Committed samples, sorted by row_id; only these rows if `row_ids` is given."""
        if not any(self.samples.glob("*.parquet")):
            return SAMPLES.empty_table().select(columns or SAMPLES.names)
        wanted = list({*(columns or []), "row_id"}) if columns else None
        keep = sorted(set(self.committed()) if row_ids is None else set(row_ids))
        chosen = pads.field("row_id").isin(keep)
        table = pads.dataset(self.samples, format="parquet").to_table(columns=wanted, filter=chosen).sort_by("row_id")
        return table.select(columns) if columns else table

    def last_outcomes(self) -> dict[str, dict[str, Any]]:
        """The last final failure that any client noted for a row_id, over all attempts."""
        files = sorted(self.outcomes.glob("*.jsonl"), key=_attempt_of)
        return {record["row_id"]: record for file in files for record in read_json_lines(file)}

    def write_failures(self, committed: set[str], *, forget: bool = False) -> int:
        """Bring failures/ up to date with the outcomes: one file, replaced as a whole; returns its rows.

        With `forget` the failures so far are dropped first, so that their rows are asked again.
        """
        if forget:
            for file in self.outcomes.glob("*.jsonl"):
                file.unlink()
        outcomes = {} if forget else self.last_outcomes()
        rows = []
        for prompt in self.prompt_table().to_pylist():
            error = prompt.pop("error")
            row_id = prompt["row_id"]
            if row_id in committed:
                continue
            if prompt["prompt_ids"] is None:
                made = {"error_class": "Prompt", "error": error, "attempts": 0, "last_reply": None}
            elif row_id in outcomes:
                made = {k: outcomes[row_id][k] for k in ("error_class", "error", "attempts", "last_reply")}
            else:
                continue
            rows.append({**prompt, **made})
        write_table(self.failures / "failures.parquet", pa.Table.from_pylist(rows, FAILURES))
        return len(rows)

    def journaled(self, row_ids: set[str]) -> Iterator[dict[str, Any]]:
        """Finished answers of `row_ids` that were written down before their block was committed."""
        for file in sorted(self.journal.glob("*.jsonl"), key=_attempt_of):
            for record in read_json_lines(file):
                if record.get("row_id") in row_ids:
                    yield record

    def prune_journal(self, committed: set[str]) -> None:
        """Delete the journals whose rows are all committed. Only while no client writes."""
        for file in self.journal.glob("*.jsonl"):
            if all(record.get("row_id") in committed for record in read_json_lines(file)):
                file.unlink()

    def write_pending(self, attempt: int, table: pa.Table) -> Path:
        """The rows to ask now, as the file that Ray reads; older attempts' files go."""
        for old in self.work.glob("pending-*/*.parquet"):
            old.unlink()
            old.parent.rmdir()
        folder = self.pending_folder(attempt)
        write_table(folder / "pending.parquet", table)
        return folder


def write_table(path: Path, table: pa.Table) -> None:
    """Write a small Parquet file atomically."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_atomic(path, sink.getvalue().to_pybytes())


def _attempt_of(path: Path) -> tuple[int, str]:
    """Sort key of `<attempt>-<actor>.jsonl`: as a number, so that attempt 10 follows 9."""
    head = path.name.split("-", 1)[0]
    return (int(head) if head.isdigit() else 0, path.name)


def write_dropped(folder: Path, dropped: list[dict[str, Any]]) -> None:
    """prompts/dropped.jsonl: rows that are no prompts, with file, line and reason."""
    lines = "".join(json.dumps(record, sort_keys=True) + "\n" for record in dropped)
    write_atomic(folder / "dropped.jsonl", lines)
