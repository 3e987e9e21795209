"""Every field of the configuration has its manual below it."""

from __future__ import annotations

import ast
from pathlib import Path

from ray_jobs.config import schema

TREES = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(schema.__file__).parent.glob("schema*.py")]
CLASSES = {node.name: node for tree in TREES for node in tree.body if isinstance(node, ast.ClassDef)}
SECTIONS = {name for name in CLASSES if name.endswith("Config")}


def _is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_every_field_has_a_text() -> None:
    bare, fields = [], 0
    for name in sorted(SECTIONS):
        body = CLASSES[name].body
        for node, after in zip(body, [*body[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign):
                continue
            fields += 1
            # a section of the root has its class's docstring
            is_section = name == "Config" and ast.unparse(node.annotation) in SECTIONS
            if not is_section and not _is_text(after):
                bare.append(f"{name}.{ast.unparse(node.target)}")
    assert fields > 60
    assert not bare


def test_every_class_has_a_docstring() -> None:
    assert all(ast.get_docstring(node) for node in CLASSES.values())
