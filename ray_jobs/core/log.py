"""Logging of commands and workers: one format, one file an attempt, readable without a terminal."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def to_console(level: int = logging.INFO) -> None:
    """Send the project's own messages to stderr; libraries only from WARNING up."""
    logging.basicConfig(level=logging.WARNING, format=FORMAT, stream=sys.stderr, force=True)
    project = logging.getLogger("ray_jobs")
    project.setLevel(logging.DEBUG)
    for handler in logging.getLogger().handlers:
        handler.addFilter(lambda record: record.levelno >= (level if record.name.startswith("ray_jobs") else 0))


def to_file(path: Path) -> logging.Handler:
    """Add a file that gets everything the project says; returns the handler, for `close_file`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(FORMAT))
    logging.getLogger("ray_jobs").addHandler(handler)
    return handler


def close_file(handler: logging.Handler) -> None:
    """Take the file of `to_file` away again."""
    logging.getLogger("ray_jobs").removeHandler(handler)
    handler.close()
