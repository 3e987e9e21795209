"""Files that are either whole or not there: temporary name, fsync, rename."""

from __future__ import annotations

import errno
import json
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write `path` so that a reader, also after a crash, sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # hidden, so that readers of a data set's folder pass over what a crash left behind
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}.tmp"
    raw = data.encode() if isinstance(data, str) else data
    try:
        with open(temporary, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path | str) -> None:
    """Make a rename in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON with sorted keys, atomically."""
    write_atomic(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> Any:
    """The JSON value in `path`, or None if there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


class JsonLines:
    """An append-only JSON Lines file; every `append` is on disk when it returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        # unbuffered: a record that failed to reach a full disk must not be written by a later append
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - lives as long as its owner
        self._lock = threading.Lock()

    def append(self, record: dict[str, Any]) -> None:
        """Write one record and wait until the disk has it; safe to call from many threads."""
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            written = self._file.write(line)
            if written != len(line):
                # end the torn line, so that the next record stands on a line of its own
                self._file.write(b"\n")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole records of a JSON Lines file; a last line cut by a crash is passed over."""
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError:
                # a crash can also leave a block of zeros in front of later, whole lines
                continue
            if isinstance(record, dict):
                yield record
