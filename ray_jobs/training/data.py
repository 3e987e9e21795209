"""Training rows, the one order in which they are seen, and packing.

The order is global: step k takes the same rows whatever the number of workers, and its position is one number,
so a restart neither repeats nor skips a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ray_jobs.core.errors import ConfigError
from ray_jobs.store.sample_set import SampleSet
from ray_jobs.text.loss_mask import masks
from ray_jobs.text.prompts import is_held_out

COLUMNS = ["row_id", "prompt_id", "source", "prompt_ids", "output_ids", "segments"]


@dataclass(frozen=True)
class Excluded:
    """Rows left out for their flags; a row with two of the flags is one row and counts for both."""

    rows: int = 0
    by_flag: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(f"{flag} {count}" for flag, count in self.by_flag.items())


@dataclass(frozen=True)
class TrainingRow:
    """One document: ids and masks, all [T]."""

    row_id: str
    input_ids: np.ndarray
    sampled: np.ndarray
    wanted: np.ndarray

    def __len__(self) -> int:
        return len(self.input_ids)


class TrainingSet:
    """Rows of samples/ on one side of the held-out split; rows are built when asked for."""

    def __init__(
        self, table: pa.Table, kinds: Collection[str], max_length: int, excluded: Excluded | None = None
    ) -> None:
        self.excluded = excluded or Excluded()
        self._table = table.combine_chunks()
        self._kinds = frozenset(kinds)
        self._max_length = max_length
        sizes = [_list_lengths(self._table[name]) for name in ("prompt_ids", "output_ids")]
        self.lengths = np.minimum(sum(sizes), max_length)

    @classmethod
    def load(
        cls,
        store: SampleSet,
        *,
        held_out: bool,
        share: float,
        kinds: Collection[str],
        max_length: int,
        exclude: Collection[str] = (),
    ) -> TrainingSet:
        """Committed rows, sorted by row_id, whose prompts are (or are not) held out, without the flags in `exclude`.

        Raises:
            ConfigError: every row has one of the flags.
        """
        table = store.sample_table([*COLUMNS, "flags"])
        side = [is_held_out(prompt_id, share) == held_out for prompt_id in table["prompt_id"].to_pylist()]
        kept, excluded = without_flags(table.filter(pa.array(side, pa.bool_())), exclude)
        return cls(kept.select(COLUMNS), kinds, max_length, excluded)

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, index: int) -> TrainingRow:
        row = self._table.slice(index, 1).to_pylist()[0]
        n_prompt = len(row["prompt_ids"])
        sampled, wanted = masks(n_prompt, len(row["output_ids"]), row["segments"], self._kinds)
        ids = np.asarray(row["prompt_ids"] + row["output_ids"], dtype=np.int64)
        cut = slice(0, self._max_length)
        return TrainingRow(row["row_id"], ids[cut], np.asarray(sampled)[cut], np.asarray(wanted)[cut])

    def row_ids(self) -> list[str]:
        """All row_ids, in the set's order."""
        return self._table["row_id"].to_pylist()

    def trained_ids(self) -> Iterator[np.ndarray]:
        """The ids that are trained on, a row at a time: what the draft vocabulary is counted from."""
        for index in range(len(self)):
            row = self[index]
            yield row.input_ids[row.sampled & row.wanted]


@dataclass(frozen=True)
class Order:
    """Which rows each optimiser step trains: every row once an epoch, a new seeded order each."""

    n_rows: int
    rows_per_step: int
    epochs: int
    seed: int

    def __post_init__(self) -> None:
        if self.n_rows < 1:
            raise ConfigError("data.held_out_share", "?", "no row is left to train", "Generate more, or lower it.")

    @property
    def steps_per_epoch(self) -> int:
        """Steps that see each row once; the last may have fewer rows."""
        return -(-self.n_rows // self.rows_per_step)

    @property
    def n_steps(self) -> int:
        """Optimiser steps of the whole training."""
        return self.steps_per_epoch * self.epochs

    def rows(self, step: int) -> list[int]:
        """Indices of the rows of a step, counted from 0 over all epochs."""
        epoch, within = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.n_rows)
        first = within * self.rows_per_step
        return order[first : first + self.rows_per_step].tolist()


def without_flags(table: pa.Table, exclude: Collection[str]) -> tuple[pa.Table, Excluded]:
    """The rows that have none of the flags, and what was left out.

    Raises:
        ConfigError: there were rows, and none is left.
    """
    found = [sorted({*flags} & {*exclude}) for flags in table["flags"].to_pylist()]
    by_flag = Counter(flag for flags in found for flag in flags)
    excluded = Excluded(sum(map(bool, found)), dict(sorted(by_flag.items())))
    kept = table.filter(pa.array([not flags for flags in found], pa.bool_()))
    if table.num_rows and not kept.num_rows:
        rule = f"each of the {table.num_rows} rows to train has one of these flags ({excluded})"
        raise ConfigError("train.rows.exclude", ",".join(exclude), rule, "Take one of them out.")
    return kept, excluded


def _list_lengths(column: pa.ChunkedArray) -> np.ndarray:
    """Lengths of the lists of a column, int64."""
    lengths = [np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks]
    return np.concatenate([np.zeros(0, np.int64), *lengths]).astype(np.int64)


def share(rows: Sequence[int], lengths: np.ndarray, rank: int, world: int) -> list[int]:
    """This rank's part of a step's rows: longest first to the rank with the fewest tokens, the same on every rank."""
    parts: list[list[int]] = [[] for _ in range(world)]
    tokens = [0] * world
    for row in sorted(rows, key=lambda r: (-int(lengths[r]), r)):
        least = tokens.index(min(tokens))
        parts[least].append(row)
        tokens[least] += int(lengths[row])
    return parts[rank]


def pack(rows: Sequence[int], lengths: np.ndarray, most_tokens: int) -> list[list[int]]:
    """Rows in groups of at most `most_tokens` tokens: first fit, longest first, which is never far from the best."""
    packs: list[list[int]] = []
    room: list[int] = []
    for row in sorted(rows, key=lambda r: (-int(lengths[r]), r)):
        length = int(lengths[row])
        for i, free in enumerate(room):
            if length <= free:
                packs[i].append(row)
                room[i] -= length
                break
        else:
            packs.append([row])
            room.append(most_tokens - length)
    return packs


def facts(training: TrainingSet, held_out: TrainingSet) -> dict[str, Any]:
    """What a COMPLETE file says of the data that was trained on."""
    return {
        "rows": len(training),
        "held_out_rows": len(held_out),
        "tokens": int(training.lengths.sum()),
        "excluded": asdict(training.excluded),
    }
