"""Looks at the process table from outside."""

from __future__ import annotations

import os
from pathlib import Path


def table() -> dict[int, tuple[int, str]]:
    """Parent and command line of every live process; zombies are dead."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if fields[0] not in ("Z", "X"):
            found[int(entry.name)] = (int(fields[1]), line)
    return found


def family(pid: int) -> set[int]:
    """A process and all that descend from it now."""
    processes = table()
    members = {pid}
    grew = True
    while grew:
        children = {p for p, (parent, _) in processes.items() if parent in members} - members
        members |= children
        grew = bool(children)
    return members


def marked(text: str) -> dict[int, str]:
    """Other processes whose command line or environment holds `text`: orphans have no parent to be found by."""
    found = {}
    for pid, (_, line) in table().items():
        if pid == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            environment = ""
        if text in line or text in environment:
            found[pid] = line
    return found
