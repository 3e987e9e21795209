"""Ten samples to read: which rows they are, by a rule that the page states, and their segments as text."""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ray_jobs.evaluation.printable import Excerpt, excerpt

N_EXAMPLES = 10
HEAD_CHARS, TAIL_CHARS = 500, 250
"""Of each text, so many characters from its start and its end are shown."""
MOST_SEGMENTS = 20
COLUMNS = ["row_id", "source", "messages", "output_ids", "segments", "closed", "flags", "finish_reason"]
RULE = (
    f"{N_EXAMPLES} rows: the sources take turns in the order of their names, each gives its rows in the order of "
    "row_id, which is that of a hash. If none of them has a tool call, or none a flag, the first row in the run that "
    "has one takes the place of the last."
)


@dataclass(frozen=True, order=True)
class Candidate:
    """A row that may be shown, and the file that it is in."""

    row_id: str
    file: Path
    called: bool
    flagged: bool


@dataclass
class Candidates:
    """The first rows of each source by row_id, and the first with a tool call and with a flag; bounded in size."""

    by_source: dict[str, list[Candidate]] = field(default_factory=dict)
    called: Candidate | None = None
    flagged: Candidate | None = None

    def add(self, row: Candidate, source: str) -> None:
        """Consider one row."""
        first = self.by_source.setdefault(source, [])
        if len(first) < N_EXAMPLES or row < first[-1]:
            insort(first, row)
            del first[N_EXAMPLES:]
        if row.called and (self.called is None or row < self.called):
            self.called = row
        if row.flagged and (self.flagged is None or row < self.flagged):
            self.flagged = row

    def choose(self) -> list[Candidate]:
        """The rows to show, by RULE."""
        in_turn = zip_longest(*(self.by_source[name] for name in sorted(self.by_source)))
        chosen = [row for turn in in_turn for row in turn if row is not None][:N_EXAMPLES]
        if self.called is not None and not any(row.called for row in chosen):
            chosen[-1] = self.called
        if self.flagged is not None and not any(row.flagged for row in chosen):
            # not over what may be the only row with a call
            kept = next((row for row in chosen if row.called), None)
            place = max(at for at, row in enumerate(chosen) if row is not kept)
            chosen[place] = self.flagged
        return chosen


@dataclass(frozen=True)
class Piece:
    """One segment: its kind, its ids and the text that they are."""

    kind: str
    n_ids: int
    text: Excerpt


@dataclass(frozen=True)
class Example:
    """A row as the page shows it; `asked` is the last message of `role`, `left_out` the segments beyond the limit."""

    row_id: str
    source: str
    role: str
    asked: Excerpt
    pieces: list[Piece]
    left_out: int
    closed: str
    flags: list[str]
    finish_reason: str


def read(chosen: Sequence[Candidate], decode: Callable[[list[int]], str]) -> list[Example]:
    """The chosen rows, in their order; each segment's ids decoded alone, as the columns are."""
    rows: dict[str, dict[str, Any]] = {}
    for file in sorted({row.file for row in chosen}):
        ids = [row.row_id for row in chosen if row.file == file]
        table = pq.read_table(file, columns=COLUMNS, filters=[("row_id", "in", ids)])
        rows |= {row["row_id"]: row for row in table.to_pylist()}
    return [_example(rows[row.row_id], decode) for row in chosen]


def _example(row: dict[str, Any], decode: Callable[[list[int]], str]) -> Example:
    role, asked = last_turn(row["messages"])
    shown, ids = row["segments"][:MOST_SEGMENTS], row["output_ids"]
    return Example(
        row_id=row["row_id"],
        source=row["source"],
        role=role,
        asked=excerpt(asked, HEAD_CHARS, TAIL_CHARS),
        pieces=[Piece(s["kind"], s["stop"] - s["start"], _cut(decode(ids[s["start"] : s["stop"]]))) for s in shown],
        left_out=len(row["segments"]) - len(shown),
        closed=row["closed"],
        flags=row["flags"],
        finish_reason=row["finish_reason"],
    )


def _cut(text: str) -> Excerpt:
    return excerpt(text, HEAD_CHARS, TAIL_CHARS)


def last_turn(messages: str) -> tuple[str, str]:
    """Role and text of the last user message in the JSON; of the last message where no user speaks."""
    all_messages: list[dict[str, Any]] = json.loads(messages)
    if not all_messages:
        return "user", ""
    users = [m for m in all_messages if m.get("role") == "user"]
    last = (users or all_messages)[-1]
    content = last.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text") or f"[{part.get('type')}]") for part in content)
    return str(last.get("role")), str(content or "")
