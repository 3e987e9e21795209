"""What made a run: versions, machine, code. Written beside the data, compared by nobody, read by people."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("ray", "torch", "transformers", "pyarrow", "hydra-core", "safetensors")


def collect() -> dict[str, Any]:
    """Facts of this process and its code."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "command": sys.argv,
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The code's commit, `+changes` if the tree differs from it; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    try:
        head = _git(root, "rev-parse", "HEAD")
        return head + ("+changes" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True, timeout=10)
    return done.stdout.strip()
