"""A small target, its prompts, and the words that make every command use them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models import tiny_model

ROOT = Path(__file__).resolve().parents[2]
N_PROMPTS = 60


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("prompts") / "questions.jsonl", N_PROMPTS)


def write_prompts(path: Path, n: int, first: int = 0) -> Path:
    rows = [{"messages": [{"role": "user", "content": f"What is {i} and {i * 7}?"}]} for i in range(first, first + n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


HEAD = """
import ray, sys
context = ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


# a local Ray makes a token of its own, which those who join would not know
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A Ray that several commands join, which saves each of them its start; it ends with its own process."""
    with (
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen(
            [sys.executable, "-c", HEAD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **TOKEN},
        ) as head,
    ):
        for key, value in TOKEN.items():
            patch.setenv(key, value)
        assert head.stdin is not None
        assert head.stdout is not None
        try:
            yield head.stdout.readline().strip()
        finally:
            head.stdin.close()
            head.wait(30)


Words = Callable[..., list[str]]


@pytest.fixture
def words(model: Path, prompts: Path, tmp_path: Path) -> Words:
    """The overrides of a run named `name` in this test's own root."""

    def make(name: str, *more: str, faults: dict[str, Any] | None = None) -> list[str]:
        sick = [f"+replicas.engine_args.faults='{json.dumps(faults)}'"] if faults else []
        return [
            f"run.root={tmp_path}",
            f"run.name={name}",
            f"data.files=[{prompts}]",
            f"target.model={model}",
            "target.markers=tiny",
            *[f"target.{key}=null" for key in ("context_length", "hidden_size", "n_layers", "vocab_size")],
            "generate.sampling.max_new_tokens=24",
            "generate.rows_per_block=8",
            "generate.rows_per_file=16",
            "generate.status_every_s=0.2",
            "replicas.slots=16",
            "replicas.engine_args.dtype=float32",
            "replicas.engine_args.max-running-requests=16",
            "replicas.engine_args.threads=1",
            "features.dtype=float32",
            "drafter.vocab_size=128",
            "train.rows_per_step=8",
            "train.epochs=2",
            "train.checkpoint_every=5",
            "train.cpus_per_worker=0.5",
            *sick,
            *more,
        ]

    return make


def start(command: str, overrides: list[str], log: Path) -> subprocess.Popen[bytes]:
    """A command in a process group of its own, as a shell would start it."""
    with open(log, "ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", f"ray_jobs.{command}", *overrides],
            cwd=ROOT,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., tuple[int, str]]]:
    """Run a command to its end: exit code and what it printed."""
    started: list[subprocess.Popen[bytes]] = []

    def finish(command: str, overrides: list[str], timeout_s: float = 150) -> tuple[int, str]:
        log = tmp_path / f"{command}-{len(started)}.log"
        child = start(command, overrides, log)
        started.append(child)
        code = child.wait(timeout_s)
        return code, log.read_text(errors="replace")

    yield finish
    for child in started:
        kill_group(child)


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the whole process group."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(10)


def status(folder: Path) -> dict[str, Any]:
    """status.json, or nothing yet."""
    try:
        return json.loads((folder / "status.json").read_text())
    except FileNotFoundError:
        return {}


def wait_for(what: Callable[[], Any], timeout_s: float, why: str) -> Any:
    """Poll until `what()` is true."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = what()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout_s:.0f} s: {why}")
