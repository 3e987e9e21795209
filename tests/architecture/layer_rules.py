"""The rules between the parts of ray_jobs, as a function of source text: what may import what, and how files look.

Positive: each part lists the parts that it may import; what is not listed is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

PROJECT = "ray_jobs"
MOST_LINES = 400
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}

_BELOW_L2 = {"core", "config", "text"}
_BELOW_L3 = {*_BELOW_L2, "target", "store", "drafter"}
MAY_IMPORT: dict[str, set[str]] = {
    # L0
    "core": set(),
    # L1: do not know each other
    "config": {"core"},
    "text": {"core"},
    # L2: do not know each other
    "target": _BELOW_L2,
    "store": _BELOW_L2,
    "drafter": _BELOW_L2,
    # L3: looks only, and knows no stage
    "inspection": _BELOW_L3,
    # L3: in the order of the stages, never back
    "cluster": _BELOW_L3,
    "generation": {*_BELOW_L3, "cluster"},
    "extraction": {*_BELOW_L3, "cluster"},
    "training": {*_BELOW_L3, "cluster", "extraction"},
    "evaluation": {*_BELOW_L3, "cluster", "generation", "extraction", "training"},
}
"""Parts by folder; modules directly in ray_jobs/ (L4) may import every part and each other."""

COMMANDS = "*.py"
MAY_USE: dict[str, tuple[str, ...]] = {
    "ray": (COMMANDS, "cluster/", "generation/", "extraction/", "training/", "evaluation/"),
    "torch": (
        "drafter/",
        "training/",
        "evaluation/",
        "extraction/",
        "target/embedded/",
        "target/in_process.py",
        "target/smollm2.py",
        "target/capture_plugin.py",
    ),
    "transformers": ("text/chat.py", "target/embedded/", "target/in_process.py", "target/smollm2.py"),
    "requests": ("target/client.py",),
    "hydra": ("config/", COMMANDS),
    "omegaconf": ("config/", COMMANDS),
    "sglang": ("target/capture_plugin.py",),
}
"""Heavy or foreign packages: the folders (ending in /) and files of ray_jobs that may import them."""

ONLY_IN_FUNCTIONS = {"sglang"}
"""Packages of another environment: a module that imports them at its head could not even be read here."""


def faults(path: str, source: str) -> list[str]:
    """What breaks a rule in the file `path` (below ray_jobs/, with /), as `path:line: what`."""
    found = [(1, f"is called {part}: name what it holds") for part in _vague(path)]
    if not source.isascii():
        lines = (number for number, line in enumerate(source.splitlines(), 1) if not line.isascii())
        found.append((next(lines), "is not ASCII"))
    n_lines = len(source.splitlines())
    if n_lines > MOST_LINES:
        found.append((n_lines, f"has {n_lines} lines, more than {MOST_LINES}"))
    tree = ast.parse(source, path)
    if not ast.get_docstring(tree) and source.strip():
        found.append((1, "has no docstring at its head"))
    for line, name, in_function in imports(path, tree):
        found += [(line, fault) for fault in _import_faults(path, name, in_function)]
    return [f"{PROJECT}/{path}:{line}: {what}" for line, what in found]


def imports(path: str, tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """(line, dotted name, inside a function) of everything that a file imports, wherever it does."""
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        for name in _names(path, node):
            yield node.lineno, name, id(node) in inside  # type: ignore[attr-defined]


def _names(path: str, node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = [PROJECT, *PurePosixPath(path).parent.parts]
            base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
        # `from ray_jobs import plan` names the module that is imported
        return [f"{base}.{alias.name}" for alias in node.names] if base == PROJECT else [base]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
        return [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    return []


def _import_faults(path: str, name: str, in_function: bool) -> Iterator[str]:
    package, *rest = name.split(".")
    if package == PROJECT:
        here = PurePosixPath(path).parts
        if len(here) == 1 or not rest or rest[0] == here[0]:
            return
        allowed = MAY_IMPORT.get(here[0])
        if allowed is None:
            yield f"is in the unknown part {here[0]}/: give it a place in MAY_IMPORT"
        elif rest[0] not in allowed:
            yield f"imports {name}: {here[0]} may import {', '.join(sorted(allowed)) or 'nothing of the project'}"
        return
    places = MAY_USE.get(package)
    if places is not None and not any(_is_at(path, place) for place in places):
        yield f"imports {name}: only {', '.join(places)} may"
    if package in ONLY_IN_FUNCTIONS and not in_function:
        yield f"imports {name} at its head: only inside a function"


def _is_at(path: str, place: str) -> bool:
    if place == COMMANDS:
        return "/" not in path
    return path.startswith(place) if place.endswith("/") else path == place


def _vague(path: str) -> list[str]:
    return [part for part in PurePosixPath(path).with_suffix("").parts if part in VAGUE_NAMES]
