"""The server as a process: how it starts, how it ends, and how it dies."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from embedded_cases import PROMPT

from ray_jobs.target.embedded import __main__ as command

START_TIMEOUT_S = 90


def _arguments(model_folder: Path, *more: str) -> list[str]:
    base = [sys.executable, "-m", "ray_jobs.target.embedded", "--model-path", str(model_folder), "--port", "0"]
    return [*base, "--dtype", "float32", "--threads", "1", *more]


def _ready(log: Path) -> str:
    """The address in the line that says ready."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        found = re.search(r"^ready: (http://\S+)", log.read_text(), re.MULTILINE)
        if found:
            return found.group(1)
        time.sleep(0.05)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def processes(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two servers and a parent with a third, started together because each start takes seconds of imports."""
    folder = tmp_path_factory.mktemp("processes")
    logs = {name: folder / f"{name}.log" for name in ("dies", "ends", "child")}
    children: dict[str, subprocess.Popen[bytes]] = {}
    for name in ("dies", "ends"):
        with open(logs[name], "wb") as log:
            children[name] = subprocess.Popen(_arguments(model_folder), stdout=log, stderr=subprocess.STDOUT)
    arguments = _arguments(model_folder, "--exit-with-parent")
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen({arguments!r}, stdin=subprocess.PIPE, stdout=open({str(logs['child'])!r}, 'wb'))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    children["parent"] = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE)
    yield children, logs
    for child in children.values():
        child.kill()
        child.wait()


def test_bad_ids_end_the_process(processes: Any) -> None:
    children, logs = processes
    url = _ready(logs["dies"])
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}}
    assert requests.post(url + "/generate", json=body, timeout=30).status_code == 200
    with pytest.raises(requests.ConnectionError):
        requests.post(url + "/generate", json={"input_ids": [1, 512]}, timeout=30)
    assert children["dies"].wait(10) == 1
    assert "the server dies: id 512" in logs["dies"].read_text()


def test_sigterm_ends_the_process_while_it_generates(processes: Any) -> None:
    children, logs = processes
    url = _ready(logs["ends"])
    body = {"input_ids": [PROMPT] * 8, "sampling_params": {"max_new_tokens": 1900, "ignore_eos": True}}
    with pytest.raises(requests.Timeout):
        requests.post(url + "/generate", json=body, timeout=(5, 0.2))
    started = time.monotonic()
    children["ends"].send_signal(signal.SIGTERM)
    assert children["ends"].wait(10) == 0
    # two seconds on a quiet machine
    assert time.monotonic() - started < 5


def test_child_goes_with_its_parent(processes: Any) -> None:
    children, logs = processes
    parent = children["parent"]
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    _ready(logs["child"])
    os.kill(child, 0)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 5
    while _alive(child):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    """Whether a process still runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_port_in_use_is_one_line_and_code_2(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert command.main(["--model-path", str(model_folder), "--port", str(port)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"--port={port}: ")


@pytest.mark.parametrize(
    ("more", "start"), [(["--faults", '{"nope":1}'], "--faults="), (["--host", "203.0.113.7"], "--host=")]
)
def test_wrong_arguments_are_one_line_and_code_2(
    model_folder: Path, capsys: pytest.CaptureFixture[str], more: list[str], start: str
) -> None:
    assert command.main(["--model-path", str(model_folder), "--port", "0", *more]) == 2
    assert capsys.readouterr().err.startswith(start)


def test_missing_model_is_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--model-path", str(tmp_path), "--port", "0"]) == 2
    assert "no config.json" in capsys.readouterr().err
