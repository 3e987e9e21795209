"""The training loss of the unrolled drafter, and its counts.

Shape letters: T packed tokens, R kept chains, L steps.

    loss = sum_i decay^i * ce_sum_i / N

ce_sum_i sums the soft cross entropy over the rows of step i whose first choice of the target can be drafted.
N counts the rows of step 0, such rows included, over all micro-batches and ranks of an optimiser step, and is the
same for every step: dropping a row never makes the others weigh more.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ray_jobs.drafter.batch import Batch, count_rows, step_masks
from ray_jobs.drafter.head import head_sums
from ray_jobs.drafter.model import Eagle3Drafter
from ray_jobs.drafter.teacher import Teacher

__all__ = ["Batch", "StepSums", "TrainableDrafter", "count_rows", "step_masks", "total_loss", "unroll"]


class StepSums(NamedTuple):
    """Sums a step, all [L]; a named tuple, so that data-parallel wrappers find the tensors in it.

    ce_sum float64, differentiable: soft cross entropy over the rows that count.
    n_rows int64: rows that train. n_in_vocab: those of them in ce_sum.
    n_correct: drafted token == first choice of the target in its whole vocabulary; other rows are misses.
    n_prefix_correct: rows that train and are correct at every step 0..i, where a step at which the row does not
    train (its kind is not wanted) is a miss; divided by n_rows it estimates how often i + 1 drafts are accepted.
    """

    ce_sum: Tensor
    n_rows: Tensor
    n_in_vocab: Tensor
    n_correct: Tensor
    n_prefix_correct: Tensor

    def as_tensor(self) -> Tensor:
        """[5, L] float64, detached: sum these over micro-batches and ranks."""
        return torch.stack([x.detach().double() for x in self])

    @classmethod
    def from_tensor(cls, sums: Tensor) -> StepSums:
        """The inverse of `as_tensor`."""
        return cls(sums[0].double(), *(row.round().long() for row in sums[1:]))


def unroll(model: Eagle3Drafter, teacher: Teacher, batch: Batch, n_steps: int, decay: float | None = None) -> StepSums:
    """Run L steps over the batch and sum what `total_loss` and the metrics need.

    With `decay`, which must be the one of `total_loss`, the head's gradient takes one buffer [W, D] instead of L.
    A batch without a training row gives zeros that still lead to every parameter.
    """
    masks_LT = step_masks(batch, n_steps)
    chains_T = masks_LT.any(0)
    if not bool(chains_T.any()):
        return _empty(model, n_steps)
    chains_R = chains_T.nonzero()[:, 0]
    masks_LR = masks_LT[:, chains_R]
    hidden = model(batch.input_ids, batch.aux, batch.offsets(), chains_T, n_steps)
    weights = None if decay is None else [decay**i for i in range(n_steps)]
    sums = head_sums(model.lm_head.weight, hidden, teacher, batch.last, chains_R, masks_LR, weights)
    return StepSums(
        ce_sum=sums.ce_sum,
        n_rows=masks_LR.sum(1),
        n_in_vocab=sums.kept.sum(1),
        n_correct=sums.hits.sum(1),
        n_prefix_correct=sums.hits.long().cumprod(0).sum(1),
    )


def _empty(model: Eagle3Drafter, n_steps: int) -> StepSums:
    """Zeros with a path to every parameter: a rank without rows must still take part in the gradient exchange."""
    device = model.fc.weight.device
    ce_sum = torch.zeros(n_steps, dtype=torch.float64, device=device)
    for parameter in model.parameters():
        ce_sum = ce_sum + (parameter * 0).sum(dtype=torch.float64)
    count = torch.zeros(n_steps, dtype=torch.int64, device=device)
    return StepSums(ce_sum, count, count, count, count)


def total_loss(ce_sum: Tensor, n: int | Tensor, decay: float = 0.8) -> Tensor:
    """sum_i decay^i * ce_sum[i] / N for ce_sum [L]; zero if N is.

    `n` is N of the whole optimiser step. Where gradients are averaged over ranks (data-parallel wrappers do),
    multiply the result by the number of ranks.
    """
    weights = torch.tensor([decay**i for i in range(len(ce_sum))], dtype=ce_sum.dtype, device=ce_sum.device)
    n_rows = torch.as_tensor(n, dtype=ce_sum.dtype, device=ce_sum.device).clamp(min=1)
    return (weights * ce_sum).sum() / n_rows


class TrainableDrafter(nn.Module):
    """Drafter and teacher behind one `forward`, for wrappers that act on it (data parallel, sharding).

    Shard it as one unit: the unroll reads the layer's weights directly, not through the layer's `forward`.
    The teacher is no module: it is not saved, not averaged, and stays on the device where it was made.
    """

    def __init__(self, drafter: Eagle3Drafter, teacher: Teacher) -> None:
        super().__init__()
        self.drafter = drafter
        self.teacher = teacher

    def forward(self, batch: Batch, n_steps: int, decay: float | None = None) -> StepSums:
        """`unroll` with this drafter and teacher."""
        return unroll(self.drafter, self.teacher, batch, n_steps, decay)
