"""LOCK: a second driver is refused, a dead one is taken over, of this host and of another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ray_jobs.core.errors import ConfigError
from ray_jobs.core.files import read_json, write_json
from ray_jobs.store.lock import RunLock

HOLD = """
import sys, time
from pathlib import Path
from ray_jobs.store.lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def _holder(path: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_second_driver_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    child = _holder(tmp_path / "run" / "LOCK")
    try:
        with (
            pytest.raises(ConfigError, match=rf"^run\.name=run: process {child.pid} on .* works on this run\. Wait"),
            RunLock(tmp_path / "run" / "LOCK"),
        ):
            pass
    finally:
        child.kill()
        child.wait()


def test_killed_driver_of_this_host_is_taken_over_at_once(tmp_path: Path) -> None:
    child = _holder(tmp_path / "LOCK")
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert (tmp_path / "LOCK").exists()
    started = time.monotonic()
    with RunLock(tmp_path / "LOCK"):
        assert time.monotonic() - started < 2
        assert read_json(tmp_path / "LOCK")["pid"] == os.getpid()
    assert not (tmp_path / "LOCK").exists()
    assert [p.name for p in tmp_path.iterdir()] == [".LOCK.deciding"]


def test_a_reused_pid_does_not_keep_a_dead_lock(tmp_path: Path) -> None:
    with RunLock(tmp_path / "LOCK"):
        held = read_json(tmp_path / "LOCK")
    write_json(tmp_path / "LOCK", {**held, "started": "1", "token": "another process of the same number"})
    with RunLock(tmp_path / "LOCK"):
        assert read_json(tmp_path / "LOCK")["token"] != "another process of the same number"


def test_silent_driver_of_another_host_is_taken_over_after_three_heartbeats(tmp_path: Path) -> None:
    write_json(tmp_path / "LOCK", {"host": "elsewhere", "pid": 1, "started": "1", "token": "t", "beat": 7})
    started = time.monotonic()
    with RunLock(tmp_path / "LOCK", heartbeat_s=0.2):
        assert 0.5 < time.monotonic() - started < 10


def test_beating_driver_of_another_host_is_refused(tmp_path: Path) -> None:
    held = {"host": "elsewhere", "pid": 1, "started": "1", "token": "t", "beat": 7}
    write_json(tmp_path / "LOCK", held)
    timer = threading.Timer(0.3, lambda: write_json(tmp_path / "LOCK", {**held, "beat": 8}))
    timer.start()
    with pytest.raises(ConfigError, match="on elsewhere works on this run"), RunLock(tmp_path / "LOCK", heartbeat_s=1):
        pass
    timer.join()
    assert read_json(tmp_path / "LOCK")["beat"] == 8


def test_only_one_of_many_gets_it(tmp_path: Path) -> None:
    write_json(
        tmp_path / "LOCK", {"host": os.uname().nodename, "pid": 2**22 + 1, "started": "1", "token": "t", "beat": 0}
    )
    got, refused = [], []
    gate, leave = threading.Barrier(8), threading.Event()

    def run() -> None:
        gate.wait()
        try:
            with RunLock(tmp_path / "LOCK"):
                got.append(1)
                leave.wait(20)
        except ConfigError:
            refused.append(1)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while len(got) + len(refused) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (len(got), len(refused)) == (1, 7)
    leave.set()
    for thread in threads:
        thread.join()
