"""What lies in a data set, read a column at a time; nothing is written and no lock is taken.

First the small columns of all rows, and what a filter names, in a stream; then the wide columns (ids, texts, messages)
of the row groups that hold the rows to show, one row at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from ray_jobs.config.schema_inspect import InspectOrder
from ray_jobs.core.errors import StageError
from ray_jobs.core.schemas import SAMPLES
from ray_jobs.store.sample_set import PENDING, SampleSet

_FILE = "__filename"
"""Arrow's name for the file of a row."""
_SORTS = {
    InspectOrder.longest: ("n_output_tokens", "descending"),
    InspectOrder.shortest: ("n_output_tokens", "ascending"),
    InspectOrder.latest: ("started_at", "descending"),
}


@dataclass(frozen=True)
class Place:
    """Where a row is."""

    file: str
    row_id: str


@dataclass(frozen=True)
class Found:
    """How many rows match, and the places of the first of them."""

    matches: int
    places: list[Place]


@dataclass(frozen=True)
class Failure:
    """A prompt that has no answer and will not be asked again by itself."""

    row_id: str
    source: str
    error_class: str
    error: str
    attempts: int
    last_reply: str | None


def committed_files(store: SampleSet) -> list[str]:
    """The files of samples/ that are no part of an unfinished write, in a fixed order.

    The mark of a write is there before its file, so the files are listed first: what has no mark then was committed.
    """
    files = sorted(store.samples.glob("*.parquet"))
    cut = tuple(mark.name.removesuffix(PENDING) for mark in store.checkpoint.glob(f"*{PENDING}"))
    return [str(file) for file in files if not (cut and file.name.startswith(cut))]


def scan(store: SampleSet, columns: Sequence[str] | dict[str, pc.Expression], where: pc.Expression | None) -> pa.Table:
    """These columns of the committed rows that match, in the order of the files."""
    wanted = columns if isinstance(columns, dict) else list(columns)
    with unchanged(store):
        files = committed_files(store)
        # a folder without files has no dataset
        made = pads.dataset(files, schema=SAMPLES, format="parquet") if files else pads.dataset(SAMPLES.empty_table())
        return made.to_table(columns=wanted, filter=where)


def find(store: SampleSet, where: pc.Expression | None, order: InspectOrder, limit: int) -> Found:
    """The places of the first `limit` matching rows; reads no wide column but those that `where` names."""
    table = scan(store, ["row_id", "n_output_tokens", "started_at", _FILE], where)
    if order in _SORTS:
        table = table.sort_by([_SORTS[order], ("row_id", "ascending")])
    first = table.slice(0, limit)
    pairs = zip(first[_FILE].to_pylist(), first["row_id"].to_pylist(), strict=True)
    return Found(table.num_rows, [Place(file, row_id) for file, row_id in pairs])


def read_rows(store: SampleSet, places: Sequence[Place], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows at these places, one at a time."""
    for place in places:
        with unchanged(store):
            file = pads.dataset(place.file, schema=SAMPLES, format="parquet")
            found = file.to_table(columns=list(columns), filter=pc.field("row_id") == place.row_id)
        yield from found.slice(0, 1).to_pylist()


def failures(store: SampleSet, committed: set[str]) -> list[Failure]:
    """All final failures: the table's, and those that a stage at work has noted and not yet written there."""
    names = list(Failure.__dataclass_fields__)
    rows = {row["row_id"]: row for row in store.failure_table(names).to_pylist()}
    noted = {row_id: record for row_id, record in store.last_outcomes().items() if row_id not in rows}
    prompts = store.prompt_table(["row_id", "source"]) if noted else None
    if prompts is not None:
        sources = dict(zip(prompts["row_id"].to_pylist(), prompts["source"].to_pylist(), strict=True))
        rows |= {
            row_id: {**record, "row_id": row_id, "source": sources[row_id]}
            for row_id, record in noted.items()
            if row_id in sources
        }
    return [Failure(**{name: row[name] for name in names}) for row_id, row in rows.items() if row_id not in committed]


@contextmanager
def unchanged(store: SampleSet) -> Iterator[None]:
    """Greedy answers are removed when they are asked with other sampling, also under a reader.

    Raises:
        StageError: a file that was listed is not there.
    """
    try:
        yield
    except FileNotFoundError as error:
        missing = Path(error.filename or store.samples).name
        raise StageError(f"{missing} was removed while it was read. Run the same command again.") from None
