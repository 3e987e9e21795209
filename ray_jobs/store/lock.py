"""LOCK: one driver a run. A second one would delete the first one's files in flight."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray_jobs.core.errors import ConfigError
from ray_jobs.core.files import read_json, write_json

log = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
MISSED = 3


class RunLock:
    """Holds `path` while a command works on a run; a context manager with its own heartbeat thread.

    A lock of the same host whose process is dead is taken over at once; one of another host after
    three missed heartbeats, told apart by the holder's counter and never by comparing two hosts' clocks.
    """

    def __init__(self, path: Path, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.path = path
        self._heartbeat_s = heartbeat_s
        self._owner: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": _process_start(os.getpid()),
            "token": uuid.uuid4().hex,
            "beat": 0,
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="run-lock", daemon=True)

    def __enter__(self) -> RunLock:
        """Take the lock.

        Raises:
            ConfigError: a living driver holds it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        dead: str | None = None
        while not self._take(dead):
            dead = self._wait_until_dead(read_json(self.path))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give the lock back, if it is still ours."""
        self._stop.set()
        self._thread.join(timeout=5)
        held = read_json(self.path)
        if held is not None and held.get("token") == self._owner["token"]:
            self.path.unlink(missing_ok=True)

    def _take(self, dead: str | None) -> bool:
        """Write the lock if there is none, or if it is still the one whose holder was found dead (its token)."""
        with self._deciding():
            held = read_json(self.path)
            if held is not None and held["token"] != dead:
                return False
            write_json(self.path, self._owner)
            return True

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """One driver at a time looks and writes; the kernel lets go of this lock when a driver dies."""
        with open(self.path.with_name(".LOCK.deciding"), "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _wait_until_dead(self, held: dict[str, Any] | None) -> str | None:
        """The holder's token once it is found dead, None if there is no holder any more; refuse while it lives."""
        if held is None:
            return None
        if held["host"] == self._owner["host"]:
            if _process_start(held["pid"]) == held["started"]:
                self._refuse(held)
            log.warning("run lock: taken over from dead process %s of this host", held["pid"])
            return held["token"]
        wait_s = MISSED * self._heartbeat_s
        log.warning("run lock: held by %s; waiting %.0f s for its heartbeat", held["host"], wait_s)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            time.sleep(min(1.0, self._heartbeat_s / 4))
            now = read_json(self.path)
            if now is None:
                return None
            if now["token"] != held["token"] or now["beat"] != held["beat"]:
                self._refuse(now)
        log.warning("run lock: %s missed %d heartbeats; taken over", held["host"], MISSED)
        return held["token"]

    def _refuse(self, held: dict[str, Any]) -> None:
        raise ConfigError(
            "run.name",
            self.path.parent.name,
            f"process {held['pid']} on {held['host']} works on this run",
            "Wait for it, stop it, or choose another run.name.",
        )

    def _beat(self) -> None:
        while not self._stop.wait(self._heartbeat_s):
            held = read_json(self.path)
            if held is None or held.get("token") != self._owner["token"]:
                log.error("run lock: %s was taken by another driver", self.path)
                return
            self._owner["beat"] += 1
            try:
                write_json(self.path, self._owner)
            except OSError as error:
                # a full disk, say: the next beat may pass, and until then the lock is still ours
                log.warning("run lock: heartbeat not written (%s)", error)


def _process_start(pid: int) -> str | None:
    """Start time of a live process from /proc, which tells a process from a later one with its number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # a zombie holds nothing any more
    return None if fields[0] in ("Z", "X") else fields[19]
