"""The trainer's own copy of a drafter: weights at full precision, shape and draft vocabulary (W draft tokens).

drafter.json           format, shape, coverage
weights.safetensors    the trained tensors, under the names of DrafterShape.parameter_shapes
vocab.safetensors      ids [W] int64
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ray_jobs.core.errors import StageError
from ray_jobs.drafter.folders import new_folder, write_json
from ray_jobs.drafter.model import Eagle3Drafter
from ray_jobs.drafter.shape import DrafterShape
from ray_jobs.drafter.vocab import DraftVocab, vocab_from_ids

_FORMAT = 1


@dataclass(frozen=True)
class SavedDrafter:
    """What `load_weights` finds: state maps names to tensors on the CPU."""

    state: dict[str, Tensor]
    shape: DrafterShape
    vocab: DraftVocab

    def build(self, embedding: Tensor) -> Eagle3Drafter:
        """The drafter, on the embedding's device, in the dtype of the saved weights."""
        model = Eagle3Drafter(self.shape, embedding)
        model.to(device=embedding.device, dtype=next(iter(self.state.values())).dtype)
        model.load_state_dict(self.state)
        return model


def state_of(model: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a drafter or of its state dict, contiguous, on the CPU."""
    state = model.state_dict() if isinstance(model, nn.Module) else model
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def tensor_faults(found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    """What is wrong with names and shapes, each fault named; empty if nothing is."""
    faults = [f"{name} is missing" for name in expected if name not in found]
    faults += [f"{name} is not expected" for name in found if name not in expected]
    faults += [
        f"{name} has shape {list(shape)}, expected {list(expected[name])}"
        for name, shape in found.items()
        if name in expected and tuple(shape) != tuple(expected[name])
    ]
    return faults


def check_state(state: Mapping[str, Tensor], shape: DrafterShape, where: str) -> None:
    """Refuse with StageError a state whose names or shapes are not those of `shape`."""
    faults = tensor_faults({name: tuple(t.shape) for name, t in state.items()}, shape.parameter_shapes())
    if faults:
        raise StageError(f"{where}: {'; '.join(faults)}")


def save_weights(
    folder: Path | str, model: nn.Module | Mapping[str, Tensor], shape: DrafterShape, vocab: DraftVocab
) -> None:
    """Write the three files; the folder appears whole or not at all.

    Raises StageError if the tensors do not belong to the shape.
    """
    state = state_of(model)
    check_state(state, shape, "the drafter to save")
    with new_folder(Path(folder)) as fresh:
        save_file(state, fresh / "weights.safetensors")
        save_file({"ids": vocab.ids.cpu().contiguous()}, fresh / "vocab.safetensors")
        write_json(
            fresh / "drafter.json", {"format": _FORMAT, "shape": shape.to_dict(), "coverage": float(vocab.coverage)}
        )


def load_weights(folder: Path | str) -> SavedDrafter:
    """Read what `save_weights` wrote.

    Raises StageError for another format, and for tensors that are missing, unknown or of another shape.
    """
    folder = Path(folder)
    try:
        head = json.loads((folder / "drafter.json").read_text(encoding="ascii"))
        if head["format"] != _FORMAT:
            raise StageError(f"{folder}: format {head['format']}, this version reads {_FORMAT}")
        shape = DrafterShape.from_dict(head["shape"])
        state, ids = load_file(folder / "weights.safetensors"), load_file(folder / "vocab.safetensors")["ids"]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise StageError(f"{folder}: not a saved drafter ({error})") from error
    check_state(state, shape, str(folder))
    if ids.dtype != torch.int64 or len(ids) != shape.draft_vocab_size:
        raise StageError(f"{folder}: {len(ids)} draft ids of {ids.dtype}, the shape says {shape.draft_vocab_size}")
    return SavedDrafter(state, shape, vocab_from_ids(ids, shape.vocab_size, head["coverage"]))
