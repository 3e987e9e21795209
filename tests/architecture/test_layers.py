"""The layers of ray_jobs hold, and the checker sees it when they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from layer_rules import MAY_IMPORT, MOST_LINES, PROJECT, faults

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / PROJECT).rglob("*.py"))


def test_every_file_keeps_the_rules() -> None:
    assert len(SOURCES) > 50
    found = [
        fault
        for file in SOURCES
        for fault in faults(file.relative_to(ROOT / PROJECT).as_posix(), file.read_text(encoding="utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


def test_every_folder_has_a_place() -> None:
    folders = {file.relative_to(ROOT / PROJECT).parts[0] for file in SOURCES if file.parent != ROOT / PROJECT}
    assert folders <= MAY_IMPORT.keys()


BAD = {
    "core reads config": ("core/a.py", "from ray_jobs.config.schema import Config"),
    "text reads config": ("text/a.py", "from ray_jobs.config import schema"),
    "config reads text": ("config/a.py", "import ray_jobs.text.markers"),
    "target reads store": ("target/a.py", "from ray_jobs.store.run_dir import RunDir"),
    "store reads drafter": ("store/a.py", "from ray_jobs import drafter"),
    "drafter reads target": ("drafter/a.py", "def f():\n    from ray_jobs.target import wire"),
    "relative": ("target/embedded/a.py", "from ...store import run_dir"),
    "relative package": ("store/a.py", "from ..drafter.model import X"),
    "drafter reads upward": ("drafter/a.py", "from ray_jobs.training.data import Order"),
    "generation reads training": ("generation/a.py", "from ray_jobs.training import run"),
    "a layer reads a command": ("evaluation/a.py", "from ray_jobs import stages"),
    "unknown part": ("magic/a.py", "from ray_jobs.core import errors"),
    "ray in store": ("store/a.py", "import ray.data"),
    "ray by name": ("target/a.py", "import importlib\nimportlib.import_module('ray')"),
    "torch in text": ("text/a.py", "import torch"),
    "torch in a command": ("train.py", "from torch import nn"),
    "torch in wire": ("target/wire.py", "import torch"),
    "torch for types alone": ("store/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
    "requests elsewhere": ("target/process.py", "import requests"),
    "transformers in generation": ("generation/a.py", "from transformers import AutoTokenizer"),
    "hydra in generation": ("generation/a.py", "import hydra"),
    "omegaconf in store": ("store/a.py", "from omegaconf import DictConfig"),
    "sglang elsewhere": ("target/process.py", "def f():\n    import sglang"),
    "sglang at the head": ("target/capture_plugin.py", "import sglang.srt"),
    "vague file": ("store/utils.py", "x = 1"),
    "vague folder": ("common/a.py", "x = 1"),
    "not ASCII": ("store/a.py", "x = '\N{MULTIPLICATION SIGN}'"),
    "too long": ("store/a.py", "x = 1\n" * MOST_LINES),
}


@pytest.mark.parametrize(("path", "source"), BAD.values(), ids=BAD)
def test_a_bad_file_is_caught(path: str, source: str) -> None:
    found = faults(path, f'"""What it is."""\n{source}\n')
    assert len(found) == 1, found
    assert found[0].startswith(f"ray_jobs/{path}:")


def test_a_missing_docstring_is_caught() -> None:
    assert faults("store/a.py", "x = 1\n") == ["ray_jobs/store/a.py:1: has no docstring at its head"]


GOOD = {
    "down a layer": ("store/a.py", "from ray_jobs.core import errors"),
    "the same part": ("target/a.py", "from ray_jobs.target import wire\nfrom . import client"),
    "ray by its own name": ("cluster/a.py", "import ray\nimport ray_jobs"),
    "a command": ("train.py", "import ray\nimport hydra\nfrom ray_jobs import stages\nfrom ray_jobs.text import chat"),
    "sglang at call time": ("target/capture_plugin.py", "def f():\n    import sglang.srt"),
    "torch in the server": ("target/embedded/engine.py", "import torch"),
}


@pytest.mark.parametrize(("path", "source"), GOOD.values(), ids=GOOD)
def test_a_good_file_passes(path: str, source: str) -> None:
    assert faults(path, f'"""What it is."""\n{source}\n') == []
