"""Run every benchmark of this folder, one after the other: `make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    scripts = sorted(p for p in HERE.glob("*.py") if p != Path(__file__).resolve())
    for script in scripts:
        print(f"== {script.name}", flush=True)
        subprocess.run([sys.executable, str(script)], cwd=HERE.parent, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
