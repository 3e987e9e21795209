"""The training loop: a plain function over an iterator of steps; knows nothing of Ray, files or features.

Shape letters: L unrolled steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ray_jobs.drafter.batch import Batch, count_rows
from ray_jobs.drafter.loss import StepSums, total_loss


@dataclass(frozen=True)
class Step:
    """One optimiser step on this rank: its number and its micro-batches, at least one."""

    number: int
    batches: list[Batch]


@dataclass(frozen=True)
class LoopSettings:
    """What the loop needs to know."""

    unroll_steps: int
    step_decay: float
    n_steps: int
    learning_rate: float
    warmup_share: float
    clip: float
    bfloat16: bool
    device: str


def make_optimizer(
    model: nn.Module, settings: LoopSettings, betas: list[float], weight_decay: float
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW on float32 weights; linear warm-up, then cosine to zero."""
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=settings.learning_rate,
        betas=(betas[0], betas[1]),
        weight_decay=weight_decay,
        fused=True,
    )
    warmup = max(1, round(settings.warmup_share * settings.n_steps))

    def rate(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, settings.n_steps - warmup)))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    steps: Iterable[Step],
    settings: LoopSettings,
) -> Iterator[dict[str, Any]]:
    """Do the steps; yields each one's metrics once its weights are in place.

    `model` maps (batch, L, decay) to StepSums, wrapped in DistributedDataParallel when there are several ranks.
    """
    clock = time.monotonic()
    for step in steps:
        totals, n_tokens = _forward_backward(model, step.batches, settings)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        rate = schedule.get_last_lr()[0]
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        now = time.monotonic()
        yield {
            "step": step.number,
            **metrics(totals, settings.step_decay),
            "learning_rate": rate,
            "grad_norm": float(norm),
            "tokens": n_tokens,
            "tokens_per_s": n_tokens / max(now - clock, 1e-9),
        }
        clock = time.monotonic()


def evaluate(model: nn.Module, batches: Iterable[Batch], settings: LoopSettings) -> dict[str, Any]:
    """Metrics of held-out rows; every rank brings its own part, and may bring none."""
    totals = torch.zeros(5, settings.unroll_steps, dtype=torch.float64)
    with torch.no_grad():
        for batch in batches:
            with _autocast(settings):
                totals += model(batch.to(settings.device), settings.unroll_steps, settings.step_decay).as_tensor().cpu()
    return metrics(StepSums.from_tensor(_sum_over_ranks(totals)), settings.step_decay)


def metrics(totals: StepSums, decay: float) -> dict[str, Any]:
    """Loss, and per step: accuracy, prefix accuracy; accepted length expected from these, 1.0 for nothing accepted."""
    n_rows = totals.n_rows.clamp(min=1).double()
    prefix = (totals.n_prefix_correct / n_rows).tolist()
    n = int(totals.n_rows[0])
    return {
        "loss": float(total_loss(totals.ce_sum, n, decay)),
        "step_loss": (totals.ce_sum / max(n, 1)).tolist(),
        "accuracy": (totals.n_correct / n_rows).tolist(),
        "prefix_accuracy": prefix,
        "expected_accepted_length": 1.0 + sum(prefix),
        "in_vocabulary": float(totals.n_in_vocab[0] / n_rows[0]),
        "rows": n,
    }


def _forward_backward(model: nn.Module, batches: list[Batch], settings: LoopSettings) -> tuple[StepSums, int]:
    """Gradients of the whole step's loss on every rank, and the step's sums over ranks."""
    counts = torch.tensor(
        [sum(count_rows(batch) for batch in batches), sum(len(batch.input_ids) for batch in batches)],
        dtype=torch.float64,
    )
    n_rows, n_tokens = _sum_over_ranks(counts).tolist()
    totals = torch.zeros(5, settings.unroll_steps, dtype=torch.float64)
    for i, batch in enumerate(batches):
        with _exchange(model, last=i == len(batches) - 1):
            with _autocast(settings):
                sums: StepSums = model(batch.to(settings.device), settings.unroll_steps, settings.step_decay)
            # data parallel averages gradients over ranks, the loss is a sum over them
            (total_loss(sums.ce_sum, n_rows, settings.step_decay) * _world()).backward()
        totals += sums.as_tensor().cpu()
    return StepSums.from_tensor(_sum_over_ranks(totals)), int(n_tokens)


def _exchange(model: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
    """Gradients cross between ranks with the last micro-batch only."""
    no_sync: Callable[[], AbstractContextManager[Any]] | None = getattr(model, "no_sync", None)
    return nullcontext() if last or no_sync is None else no_sync()


def _autocast(settings: LoopSettings) -> AbstractContextManager[Any]:
    kind = torch.device(settings.device).type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=settings.bfloat16)


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _sum_over_ranks(values: Tensor) -> Tensor:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return values
    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    moved = values.to(device)
    dist.all_reduce(moved)
    return moved.cpu()
