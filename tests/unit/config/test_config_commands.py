"""The commands as a user starts them: exit codes, the one line, and dry runs that leave no trace."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(tmp_path: Path, module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`python -m ray_jobs.MODULE WORDS` at the root of the repository, with folders of its own."""
    own = {"EAGLE_RAY_RUNS": str(tmp_path / "runs"), "EAGLE_RAY_MODELS": str(tmp_path / "models"), "COLUMNS": "200"}
    env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | own
    command = [sys.executable, "-m", f"ray_jobs.{module}", *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=150, check=False)


def test_a_wrong_key_is_exit_2_and_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "generate", "generate.foo=1")
    assert done.returncode == 2
    assert done.stderr == "error: generate.foo=1: there is no such key. docs/configuration.md lists the keys.\n"
    assert done.stdout == ""
    assert not any(tmp_path.iterdir())


def test_a_flag_that_would_do_nothing_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "generate", "--multirun", "run.seed=1,2")
    assert done.returncode == 2
    assert done.stderr.startswith("error: flag=--multirun: ")
    assert done.stderr.count("\n") == 1


def test_the_composed_tree_can_be_printed(tmp_path: Path) -> None:
    done = run(tmp_path, "export", "--cfg", "job", "experiment=kimi_k25")
    assert done.returncode == 0
    assert "markers: kimi_k25" in done.stdout
    assert not any(tmp_path.iterdir())


EXPERIMENTS = {
    "tiny": ["0 to generate, 0 to train"],
    "smollm2": ["0 to generate, 0 to train"],
    "qwen3_8b": ["88,000", "8 (8 to generate, 8 to train)", r"[\d.]+ to generate, [\d.]+ to train"],
    "kimi_k25": [
        "88,000",
        "57,344 B a token",
        "24 (16 to generate, 8 to train)",
        r"[\d.]+ to generate, [\d.]+ to train",
    ],
}


@pytest.mark.parametrize(("name", "figures"), EXPERIMENTS.items(), ids=EXPERIMENTS)
def test_a_dry_run_prints_the_bill_and_leaves_no_trace(tmp_path: Path, name: str, figures: list[str]) -> None:
    done = run(tmp_path, "pipeline", f"experiment={name}", "dry_run=true")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for figure in figures:
        pattern = figure if "\\" in figure else re.escape(figure)
        assert re.search(pattern, done.stdout), f"{figure} not in\n{done.stdout}"
    for stage in ("generate", "train", "export", "evaluate", "rows", "GPUs", "hours"):
        assert re.search(rf"\b{stage}\b", done.stdout)
    assert not any(tmp_path.iterdir())
