"""The draft vocabulary: the tokens that the drafter can propose.

Shape letters: V target vocabulary, W draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ray_jobs.core.errors import ConfigError, StageError

_CHUNK_IDS = 1 << 20  # ids counted at once: a count costs V, whatever its number of ids


@dataclass(frozen=True)
class DraftVocab:
    """ids [W] int64, rising; d2t [W] int64 offsets; t2d [V] bool; coverage, the share of counted tokens in it.

    Target id of draft id j: j + d2t[j], the convention of released EAGLE-3 checkpoints.
    """

    ids: Tensor
    d2t: Tensor
    t2d: Tensor
    coverage: float

    @property
    def is_full(self) -> bool:
        """Every target token can be drafted; draft ids are target ids."""
        return len(self.ids) == len(self.t2d)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids, any shape."""
        return draft_ids + self.d2t.to(draft_ids.device)[draft_ids]


def count_ids(sequences: Iterable[Sequence[int] | np.ndarray | Tensor], vocab_size: int) -> Tensor:
    """How often each id occurs, int64 [V].

    Raises StageError for an id outside the vocabulary.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    held: list[np.ndarray] = []
    n_held = 0

    def flush() -> None:
        ids = np.concatenate(held) if held else np.zeros(0, dtype=np.int64)
        wrong = ids[(ids < 0) | (ids >= vocab_size)]
        if len(wrong):
            raise StageError(f"token id {wrong[0]} is outside the vocabulary of {vocab_size}; check the model's name")
        counts[:] += np.bincount(ids, minlength=vocab_size)
        held.clear()

    for sequence in sequences:
        held.append(np.asarray(sequence, dtype=np.int64))
        n_held += len(held[-1])
        if n_held >= _CHUNK_IDS:
            flush()
            n_held = 0
    flush()
    return torch.from_numpy(counts)


def vocab_from_ids(ids: Tensor, vocab_size: int, coverage: float = 1.0) -> DraftVocab:
    """The draft vocabulary of these target ids [W].

    Raises StageError unless they rise strictly inside 0..V-1.
    """
    ids = ids.to(device="cpu", dtype=torch.int64)
    if not len(ids) or ids[0] < 0 or ids[-1] >= vocab_size or bool((ids.diff() <= 0).any()):
        raise StageError(f"draft ids must rise strictly inside 0..{vocab_size - 1}")
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[ids] = True
    return DraftVocab(ids, ids - torch.arange(len(ids)), t2d, coverage)


def choose(counts: Tensor, size: int) -> DraftVocab:
    """The `size` most frequent tokens of counts [V]; among equals, seen or not, the lower id.

    Raises ConfigError if size is not in 1..V.
    """
    vocab_size = len(counts)
    if not 0 < size <= vocab_size:
        raise ConfigError(
            "drafter.vocab_size", size, f"must lie in 1..{vocab_size}", "The target's size drafts every token."
        )
    order = torch.sort(counts, descending=True, stable=True).indices
    ids = order[:size].sort().values
    total = int(counts.sum())
    return vocab_from_ids(ids, vocab_size, int(counts[ids].sum()) / total if total else 0.0)
