"""Runs at the start of every Python of the CPU environment (its .pth file imports this), before SGLang is imported.

Two things stand between a stock SGLang and a machine without CUDA; neither changes a file of SGLang's:

    it takes the CPU engine only where SGLANG_USE_CPU_ENGINE is set;
    it imports torchvision, whose wheel is linked to CUDA, so that its operators do not load beside a CPU torch, and
    two of them are needed while it is imported.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class TorchvisionOperators(importlib.abc.MetaPathFinder):
    """Declares the operators at the first import of torchvision; finds no module itself."""

    def __init__(self) -> None:
        self.library: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Always None: the finders behind this one find the module."""
        del path, target
        if fullname == "torchvision" and self.library is None:
            import torch

            # kept, because the operators go with the object that declares them
            self.library = torch.library.Library("torchvision", "DEF")
            for operator in OPERATORS:
                self.library.define(operator)
        return None


os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
sys.meta_path.insert(0, TorchvisionOperators())
