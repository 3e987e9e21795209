"""The documentation says what the code says: configuration, columns, and where links lead."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from ray_jobs.core import schemas
from ray_jobs.text.segments import FLAGS

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]


def read(path: Path) -> str:
    """The page's text."""
    return path.read_text(encoding="utf-8")


def test_the_configuration_page_is_up_to_date() -> None:
    render = runpy.run_path(str(DOCS / "generate_configuration.py"))["render"]
    assert read(DOCS / "configuration.md") == render(), "run .venv/bin/python docs/generate_configuration.py"


def test_the_configuration_page_has_every_key() -> None:
    from ray_jobs.config.messages import keys

    text = read(DOCS / "configuration.md")
    assert [key for key in keys() if f"`{key}`" not in text] == []


@pytest.mark.parametrize(
    ("title", "schema"),
    [("prompts/", schemas.PROMPTS), ("samples/", schemas.SAMPLES), ("failures/", schemas.FAILURES)],
)
def test_the_columns_are_the_schema(title: str, schema: pa.Schema) -> None:
    section = read(DOCS / "data_format.md").split(f"\n## {title}\n")[1].split("\n## ")[0]
    table = section.split("| column | type | |\n")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.MULTILINE)
    assert [name for name, _ in rows] == schema.names
    for name, kind in rows:
        field = schema.field(name)
        assert (", null" in kind) == field.nullable, name
        written = {"list": "list of", "timestamp": "timestamp", "float": "float32"}
        start = str(field.type).split("<")[0].split("[")[0]
        assert kind.startswith(written.get(start, start)), name


def test_every_word_of_a_row_is_explained() -> None:
    text = read(DOCS / "data_format.md")
    for word in (*FLAGS, *schemas.CLOSED, *schemas.SEGMENT_KINDS):
        assert f"`{word}`" in text, word


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere_and_pages_are_ascii(page: Path) -> None:
    text = read(page)
    assert text.isascii()
    for link in re.findall(r"\]\(([^)#]+)", text):
        if not link.startswith(("https://", "http://")):
            assert (page.parent / link).exists(), link


def test_the_menu_has_every_page() -> None:
    menu = yaml.safe_load(read(ROOT / "mkdocs.yml"))["nav"]
    listed = {page for entry in menu for page in entry.values()}
    assert listed == {page.name for page in DOCS.glob("*.md")}
