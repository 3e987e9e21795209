"""From rows to the trainer's batches: the target's features, pulled for exactly the rows that come next.

Shape letters: T packed tokens, H target hidden size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from ray_jobs.drafter.batch import Batch
from ray_jobs.target.in_process import Features, InProcessTarget
from ray_jobs.training.data import TrainingRow


class FeatureSource(Protocol):
    """Gives aux [T, 3H] and last [T, H] of each row."""

    def features(self, rows: Sequence[TrainingRow]) -> list[Features]:
        """One entry a row, in order."""
        ...


class InProcessFeatures:
    """A forward of the target in this process, with the newest features kept in memory.

    Rows are forwarded in groups of like length, because a batch is padded to its longest.
    """

    def __init__(self, target: InProcessTarget, *, cache_bytes: int, most_tokens: int) -> None:
        self._target = target
        self._left = cache_bytes
        self._most_tokens = most_tokens
        self._kept: OrderedDict[str, Features] = OrderedDict()

    def features(self, rows: Sequence[TrainingRow]) -> list[Features]:
        """From memory, or from a forward."""
        found = {row.row_id: self._kept[row.row_id] for row in rows if row.row_id in self._kept}
        missing = sorted((row for row in rows if row.row_id not in found), key=len)
        while missing:
            n = max(1, min(len(missing), self._most_tokens // len(missing[-1])))
            group, missing = missing[-n:], missing[:-n]
            for row, made in zip(group, self._target.features([r.input_ids.tolist() for r in group]), strict=True):
                found[row.row_id] = made
                self._keep(row.row_id, made)
        return [found[row.row_id] for row in rows]

    def _keep(self, row_id: str, made: Features) -> None:
        """Keep what fits; nothing is dropped for it, because an epoch meets every row equally often."""
        size = made.aux.nbytes + made.last.nbytes
        if size <= self._left and row_id not in self._kept:
            self._left -= size
            self._kept[row_id] = made


def to_batch(rows: Sequence[TrainingRow], features: Sequence[Features]) -> Batch:
    """Pack rows, one document each."""
    starts = np.cumsum([0, *(len(row) for row in rows)]).tolist()
    return Batch(
        input_ids=torch.from_numpy(np.concatenate([row.input_ids for row in rows])),
        aux=torch.cat([f.aux for f in features]),
        last=torch.cat([f.last for f in features]),
        sampled=torch.from_numpy(np.concatenate([row.sampled for row in rows])),
        wanted=torch.from_numpy(np.concatenate([row.wanted for row in rows])),
        starts=starts,
    )


def empty_batch(hidden_size: int, n_aux: int, dtype: torch.dtype) -> Batch:
    """A batch that trains nothing, for a rank that has no row in a step but must join the gradient exchange."""
    none = torch.zeros(2, dtype=torch.bool)
    return Batch(
        input_ids=torch.zeros(2, dtype=torch.int64),
        aux=torch.zeros(2, n_aux * hidden_size, dtype=dtype),
        last=torch.zeros(2, hidden_size, dtype=dtype),
        sampled=none,
        wanted=none,
        starts=[0, 2],
    )
