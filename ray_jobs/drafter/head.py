"""Head, teacher and loss in one pass over blocks of rows; no logits survive their block.

Shape letters: T packed tokens, R kept chains, L steps, D draft hidden size, W draft vocabulary, B rows of a block.

Row (s, i) has teacher position t = s + 1 + i, so up to L rows share one target distribution. The pass runs over
blocks of teacher positions: the distribution of a block is made once, used by every step, and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ray_jobs.drafter.teacher import Teacher


class HeadSums(NamedTuple):
    """ce_sum [L] float64, differentiable; hits [L, R] bool, the drafted token is the target's first choice;
    kept [L, R] bool, rows in the loss: they train, and the first choice can be drafted."""

    ce_sum: Tensor
    hits: Tensor
    kept: Tensor


@dataclass(frozen=True)
class _Work:
    """The rows of one pass: rows[i] [n_i] indices into R, slots[i] [n_i] indices into positions, both rising."""

    teacher: Teacher
    last: Tensor  # [T, H]
    positions: Tensor  # teacher positions that any row needs, rising
    rows: Sequence[Tensor]
    slots: Sequence[Tensor]
    n_chains: int
    step_weights: Sequence[float] | None  # of the one shared gradient buffer; None: a buffer a step
    wants_grad: bool


def _plan(last: Tensor, chains_R: Tensor, masks_LR: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Teacher positions, and per step the rows with their slots among these."""
    rows = [mask.nonzero()[:, 0] for mask in masks_LR]
    needed = torch.zeros(len(last), dtype=torch.bool, device=last.device)
    for step, row in enumerate(rows):
        needed[chains_R[row] + 1 + step] = True
    slot_T = needed.cumsum(0) - 1
    return needed.nonzero()[:, 0], rows, [slot_T[chains_R[row] + 1 + step] for step, row in enumerate(rows)]


def _block_loss(logits: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Soft cross entropy of each row [B], drafted id [B], gradient with respect to the logits [B, W].

    -sum_v p(v) log q(v) = logsumexp(z) - sum_v p(v) z(v) as p sums to 1; its gradient is q - p.
    """
    top, drafted = logits.max(-1)
    q = torch.softmax(logits, dim=-1)
    # logsumexp from the largest entry: one pass less, and log never sees less than 1/W
    lse = top - q.gather(1, drafted[:, None])[:, 0].log()
    return lse - torch.linalg.vecdot(p, logits), drafted, q.sub_(p)


class _HeadLoss(torch.autograd.Function):
    """Inputs: the work, weight [W, D], then L tensors [R, D]. Gradients are made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, work: _Work, weight: Tensor, *hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        run = _Pass(work, weight, hidden)
        for first in range(0, len(work.positions), work.teacher.block_rows):
            run.block(first, min(first + work.teacher.block_rows, len(work.positions)))
        ctx.mark_non_differentiable(run.hits, run.kept)
        # only the gradients: an output kept here would be a reference cycle, and hold the step's memory
        ctx.gradients = run.gradients
        return run.ce_sum, run.hits, run.kept

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradients: _Gradients = ctx.gradients
        return None, gradients.of_weight(grads[0]), *gradients.of_hidden(grads[0])


class _Gradients:
    """Gradients for upstream gradients of 1: of each hidden [R, D], and of the weight [W, D]."""

    def __init__(self, weight: Tensor, hidden: Sequence[Tensor], step_weights: Sequence[float] | None) -> None:
        wide = torch.promote_types(hidden[0].dtype, torch.float32)
        n_buffers = len(hidden) if step_weights is None else 1
        self.dtype, self.step_weights = weight.dtype, step_weights
        self.hidden = [torch.zeros_like(h) for h in hidden]
        self.weight = [torch.zeros(weight.shape, dtype=wide, device=weight.device) for _ in range(n_buffers)]

    def add(self, step: int, row: Tensor, grad: Tensor, h_BD: Tensor, weight: Tensor) -> None:
        """Rows [B] of one step, with grad [B, W] of their logits."""
        grad = grad.to(h_BD.dtype)
        self.hidden[step].index_copy_(0, row, grad @ weight)
        buffer, factor = (
            (self.weight[step], 1.0) if self.step_weights is None else (self.weight[0], self.step_weights[step])
        )
        if buffer.dtype == grad.dtype:
            buffer.addmm_(grad.t(), h_BD, alpha=factor)
        else:
            buffer.add_(grad.t() @ h_BD, alpha=factor)

    def of_hidden(self, scale_L: Tensor) -> list[Tensor]:
        """For upstream gradients scale [L]: L tensors [R, D]."""
        return [grad * scale.to(grad.dtype) for grad, scale in zip(self.hidden, scale_L, strict=True)]

    def of_weight(self, scale_L: Tensor) -> Tensor:
        """For upstream gradients scale [L]: [W, D] in the weight's dtype.

        Raises ValueError if there is one buffer and scale is no multiple of the weights that it was made with.
        """
        scales = scale_L.to(self.weight[0].dtype)
        if self.step_weights is not None:
            scales = scale_L / torch.tensor(self.step_weights, dtype=scale_L.dtype, device=scale_L.device)
            if not torch.allclose(scales, scales[:1].expand_as(scales), rtol=1e-5, atol=0.0, equal_nan=True):
                raise ValueError("the steps' losses were weighted otherwise than by the decay given to unroll")
            scales = scales[:1].to(self.weight[0].dtype)
        total = self.weight[0] * scales[0]
        for grad, scale in zip(self.weight[1:], scales[1:], strict=True):
            total.addcmul_(grad, scale)
        return total.to(self.dtype)


class _Pass:
    """The state of one forward pass: sums, flags, and gradients where wanted."""

    def __init__(self, work: _Work, weight: Tensor, hidden: Sequence[Tensor]) -> None:
        n_steps, device = len(hidden), weight.device
        self.work, self.hidden = work, hidden
        self.weight = weight.to(hidden[0].dtype)
        self.ce_sum = torch.zeros(n_steps, dtype=torch.float64, device=device)
        self.hits = torch.zeros(n_steps, work.n_chains, dtype=torch.bool, device=device)
        self.kept = torch.zeros_like(self.hits)
        self.gradients = _Gradients(weight, hidden, work.step_weights) if work.wants_grad else None

    def block(self, first: int, stop: int) -> None:
        """All rows whose teacher position has a slot in [first, stop)."""
        work = self.work
        targets = work.teacher.targets(work.last[work.positions[first:stop]])
        edges = torch.tensor([first, stop], device=work.positions.device)
        for step, (rows, slots) in enumerate(zip(work.rows, work.slots, strict=True)):
            low, high = torch.searchsorted(slots, edges).tolist()
            slot = slots[low:high] - first
            keep = targets.in_vocab[slot]
            row, slot = rows[low:high][keep], slot[keep]
            if len(row):
                self._step(step, row, targets.p[slot], targets.top[slot])

    def _step(self, step: int, row: Tensor, p: Tensor, top: Tensor) -> None:
        """Loss, hits and gradients of rows [B] of one step; p [B, W], top [B]."""
        h_BD = self.hidden[step][row]
        wide = torch.promote_types(h_BD.dtype, torch.float32)
        loss, drafted, grad = _block_loss(F.linear(h_BD, self.weight).to(wide), p.to(wide))
        self.ce_sum[step] += loss.sum(dtype=torch.float64)
        self.kept[step, row] = True
        self.hits[step, row] = self.work.teacher.ids[drafted] == top
        if self.gradients is not None:
            self.gradients.add(step, row, grad, h_BD, self.weight)


def head_sums(
    weight: Tensor,
    hidden: Sequence[Tensor],
    teacher: Teacher,
    last: Tensor,
    chains_R: Tensor,
    masks_LR: Tensor,
    step_weights: Sequence[float] | None = None,
) -> HeadSums:
    """Sums over the rows in masks [L, R] of the chains that start at chains [R], against last [T, H].

    weight [W, D], hidden: L tensors [R, D]. With `step_weights` one gradient buffer [W, D] serves all steps, and
    the sums may then be weighted by multiples of exactly these; without, each step has its own.
    """
    positions, rows, slots = _plan(last, chains_R, masks_LR)
    wants_grad = torch.is_grad_enabled() and (weight.requires_grad or any(h.requires_grad for h in hidden))
    work = _Work(teacher, last, positions, rows, slots, len(chains_R), step_weights, wants_grad)
    with torch.autocast(weight.device.type, enabled=False):
        return HeadSums(*_HeadLoss.apply(work, weight, *hidden))  # type: ignore[misc]
