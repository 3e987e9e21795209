"""Writes docs/configuration.md from the docstrings under the fields of the configuration's dataclasses."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCHEMAS = sorted((ROOT / "ray_jobs" / "config").glob("schema*.py"))
PAGE = ROOT / "docs" / "configuration.md"

HEAD = """\
# Configuration

<!-- Made by docs/generate_configuration.py from ray_jobs/config/schema*.py; edit the docstrings there. -->

Every command reads the same tree. It is composed from the files in `conf/`: `conf/config.yaml` picks one file of each
group, an experiment picks others, and words on the command line come last.

- A value: `generate.sampling.temperature=0.8`. A list: `'data.files=[a.jsonl,b.jsonl]'`, with the quotes for the shell.
- A file of a group: `replicas=serve`, `train=gpus`, `experiment=kimi_k25`.
- A key that is not listed here is refused. Only the free tables `replicas.engine_args` and `replicas.env` take new
  keys, with a plus: `+replicas.engine_args.tp_size=2`.
- `--cfg job` prints the composed tree; `dry_run=true` prints what it would do and what that takes. Neither starts
  anything.
"""

Field = tuple[str, str, str, str]
"""Key, type, default, meaning: the cells of one line."""


def render() -> str:
    """The whole page."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in SCHEMAS]
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    parts = [HEAD, _groups()]
    _section(classes, "Config", "", parts)
    return "\n".join(parts).rstrip() + "\n"


def _groups() -> str:
    """The files of each group, from the folder."""
    lines = ["| group | files |", "|---|---|"]
    for folder in sorted(path for path in (ROOT / "conf").iterdir() if any(path.glob("*.yaml"))):
        names = ", ".join(f"`{file.stem}`" for file in sorted(folder.glob("*.yaml")))
        lines.append(f"| `{folder.name}` | {names} |")
    return "\n".join(lines) + "\n"


def _section(classes: dict[str, ast.ClassDef], name: str, head: str, parts: list[str]) -> None:
    """Append a class's table, then those of the sections below it."""
    rows: list[Field] = []
    below: list[tuple[str, str]] = []
    body = classes[name].body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign):
            continue
        key, kind = ast.unparse(node.target), ast.unparse(node.annotation)
        inner = kind.removeprefix("list[").removesuffix("]")
        if kind in classes and kind.endswith("Config"):
            below.append((kind, f"{head}{key}"))
            continue
        if inner in classes and inner.endswith("Config"):
            below.append((inner, f"{head}{key}[]"))
        rows.append((f"`{head}{key}`", _type(classes, kind), _default(classes, node.value), _text(after)))
    title = head.rstrip(".") or "The whole tree"
    parts.append(f"## {title}\n\n{ast.get_docstring(classes[name])}\n")
    if rows:
        lines = ["| key | type | default | |", "|---|---|---|---|", *("| " + " | ".join(row) + " |" for row in rows)]
        parts.append("\n".join(lines) + "\n")
    for kind, key in below:
        _section(classes, kind, f"{key}.", parts)


def _type(classes: dict[str, ast.ClassDef], kind: str) -> str:
    """A type as a reader of YAML knows it."""
    if kind in classes:
        members = [ast.literal_eval(node.value) for node in classes[kind].body if isinstance(node, ast.Assign)]
        return ", ".join(f"`{member}`" for member in members)
    words = {"str": "text", "int": "whole number", "float": "number", "bool": "true, false", "None": "null"}
    if kind.startswith("dict["):
        return "table"
    if kind.startswith("list["):
        inner = kind[len("list[") : -1]
        return f"list of {words.get(inner, 'sources')}{'s' if inner in ('int', 'float') else ''}"
    return " or ".join(words[part] for part in kind.split(" | "))


def _default(classes: dict[str, ast.ClassDef], value: ast.expr | None) -> str:
    """A default as one writes it in YAML."""
    if isinstance(value, ast.Call):
        factory = next(keyword.value for keyword in value.keywords if keyword.arg == "default_factory")
        if isinstance(factory, ast.Lambda):
            value = factory.body
        else:
            return {"list": "`[]`", "dict": "`{}`"}[ast.unparse(factory)]
    if isinstance(value, ast.Attribute) and ast.unparse(value.value) in classes:
        return f"`{value.attr}`"
    assert value is not None
    made = ast.literal_eval(value)
    if made == "???":
        return "(to be given)"
    if isinstance(made, list):
        return f"`[{', '.join(str(item) for item in made)}]`"
    if made is None or isinstance(made, bool):
        return {None: "`null`", True: "`true`", False: "`false`"}[made]
    return f"`{made}`"


def _text(node: ast.stmt | None) -> str:
    """The docstring under a field, in one line, safe in a table."""
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return ""
    return " ".join(str(node.value.value).split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
