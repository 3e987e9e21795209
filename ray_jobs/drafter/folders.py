"""Folders that appear whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Indented, keys in the given order, newline at the end."""
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="ascii")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary sibling to write into; it becomes `folder` if the block ends well and is deleted if not.

    A folder of that name is replaced: readers find the old one, the new one, or for an instant none, never a mix.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    for left_over in (fresh, old):
        shutil.rmtree(left_over, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
        # the data must be on the disk before the name is: a crash after the rename must not leave empty files
        for path in (*fresh.iterdir(), fresh):
            _sync(path)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
