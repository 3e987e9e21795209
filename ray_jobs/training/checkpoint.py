"""What a training checkpoint holds, and its way to and from disk.

drafter/       the drafter's float32 weights, shape and vocabulary (`drafter.weights`)
optimizer.pt   AdamW's state and the schedule's position
progress.json  the next optimiser step
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ray_jobs.core.files import read_json, write_json
from ray_jobs.drafter.model import DrafterShape, Eagle3Drafter
from ray_jobs.drafter.vocab import DraftVocab
from ray_jobs.drafter.weights import SavedDrafter, load_weights, save_weights


@dataclass
class TrainState:
    """The live objects that a checkpoint copies."""

    drafter: Eagle3Drafter
    shape: DrafterShape
    vocab: DraftVocab
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler


def save(folder: Path, state: TrainState, next_step: int) -> None:
    """Write everything that is needed to go on with `next_step`."""
    save_weights(folder / "drafter", state.drafter, state.shape, state.vocab)
    torch.save(
        {"optimizer": state.optimizer.state_dict(), "schedule": state.schedule.state_dict()}, folder / "optimizer.pt"
    )
    write_json(folder / "progress.json", {"next_step": next_step})


def restore(folder: Path, state: TrainState) -> int:
    """Load a checkpoint into the live objects; returns the next step."""
    saved = load_weights(folder / "drafter")
    state.drafter.load_state_dict(saved.state)
    stored = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
    state.optimizer.load_state_dict(stored["optimizer"])
    state.schedule.load_state_dict(stored["schedule"])
    return int(read_json(folder / "progress.json")["next_step"])


def read_drafter(folder: Path) -> SavedDrafter:
    """The drafter of a checkpoint."""
    return load_weights(folder / "drafter")
