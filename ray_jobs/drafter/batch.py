"""A packed batch, and which chains of it train at which step.

Shape letters: T packed tokens, H target hidden size, L unrolled steps, R chains that are kept.

A chain is named by its start s: it reads the target's features of position s and the token x[s+1], and drafts
x[s+2], x[s+3], ... Row (s, i) is step i of chain s: input token x[s+1+i], teacher position s+1+i, predicted
token x[s+2+i].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor


@dataclass
class Batch:
    """Packed documents, one after the other.

    input_ids [T] int64; aux [T, 3H] (three layer outputs, low to high); last [T, H] after the final norm;
    sampled [T] bool, the target produced this token; wanted [T] bool, its kind is trained;
    starts: offsets of the documents and T at the end, as `[0, 120, 300]` for two documents.
    """

    input_ids: Tensor
    aux: Tensor
    last: Tensor
    sampled: Tensor
    wanted: Tensor
    starts: Sequence[int] | Tensor

    def __post_init__(self) -> None:
        n_tokens = len(self.input_ids)
        for name in ("aux", "last", "sampled", "wanted"):
            if len(getattr(self, name)) != n_tokens:
                raise ValueError(f"{name} has {len(getattr(self, name))} rows, input_ids {n_tokens}")
        edges = self.offsets()
        if edges[0] != 0 or edges[-1] != n_tokens or any(a >= b for a, b in pairwise(edges)):
            raise ValueError(f"starts must rise from 0 to {n_tokens}, not {edges}")

    def offsets(self) -> list[int]:
        """`starts` as plain integers."""
        return self.starts.tolist() if isinstance(self.starts, Tensor) else list(self.starts)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on `device`."""
        names = ("input_ids", "aux", "last", "sampled", "wanted")
        return replace(self, **{name: getattr(self, name).to(device, non_blocking=True) for name in names})


def document_bounds(batch: Batch) -> tuple[Tensor, Tensor]:
    """First position and end (exclusive) of the document of each token: two int64 [T]."""
    edges = torch.tensor(batch.offsets(), device=batch.input_ids.device)
    lengths = edges.diff()
    return edges[:-1].repeat_interleave(lengths), edges[1:].repeat_interleave(lengths)


def rows_inside(batch: Batch, n_steps: int) -> Tensor:
    """[L, T] bool: the predicted token s+2+i lies in the document of s."""
    _, stop_T = document_bounds(batch)
    position_T = torch.arange(len(stop_T), device=stop_T.device)
    return torch.stack([position_T + 2 + i < stop_T for i in range(n_steps)])


def step_masks(batch: Batch, n_steps: int) -> Tensor:
    """[L, T] bool: row (s, i) trains.

    It does iff x[s+1 .. s+2+i] were all sampled, the kind of x[s+2+i] is wanted, and s .. s+2+i is one document.
    Every input token is then one that the target chose, so the rows are exactly those which drafting meets.
    """
    inside_LT = rows_inside(batch, n_steps)
    n_tokens = len(batch.input_ids)
    sampled_so_far = batch.sampled.long().cumsum(0)
    position_T = torch.arange(n_tokens, device=sampled_so_far.device)
    masks = []
    for i in range(n_steps):
        target_T = (position_T + 2 + i).clamp(max=n_tokens - 1)
        unbroken = sampled_so_far[target_T] - sampled_so_far == i + 2
        masks.append(inside_LT[i] & unbroken & batch.wanted[target_T].bool())
    return torch.stack(masks)


def count_rows(batch: Batch) -> int:
    """Rows of step 0: what this batch adds to N, the normaliser of every step's loss."""
    return int(step_masks(batch, 1).sum())


@dataclass(frozen=True, slots=True)
class Span:
    """A run of neighbouring chains of one document: chains [start, stop), whose document begins at `document`.

    `row` is the index of chain `start` among the kept chains.
    """

    document: int
    start: int
    stop: int
    row: int

    @property
    def rows(self) -> slice:
        """Its rows among the kept chains."""
        return slice(self.row, self.row + self.stop - self.start)


def chain_spans(chains_T: Tensor, offsets: Sequence[int]) -> list[Span]:
    """Runs of True in chains_T [T] bool, cut at document borders, in order."""
    flags = chains_T.to(device="cpu", dtype=torch.int8)
    change = torch.diff(flags, prepend=flags.new_zeros(1), append=flags.new_zeros(1))
    firsts, stops = (change == 1).nonzero()[:, 0].tolist(), (change == -1).nonzero()[:, 0].tolist()
    spans: list[Span] = []
    row, document = 0, 0
    for first, stop in zip(firsts, stops, strict=True):
        while first < stop:
            while offsets[document + 1] <= first:
                document += 1
            end = min(stop, offsets[document + 1])
            spans.append(Span(offsets[document], first, end, row))
            row, first = row + end - first, end
    return spans
