"""One made-up file with rows of all sets, good and dirty, and what each must give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from form_cases import PORT, calling, result, tool, user

from ray_jobs.text.forms import FORMS
from ray_jobs.text.prompts import Dropped, Prompt, read_source

MADE = list(read_source(Path(__file__).with_name("example_rows.jsonl")))

GIVEN = {
    1: [user("Name two soft cheeses."), {"role": "assistant", "content": "Brie and ricotta."}, user("And one hard?")],
    2: [user("ok, next step?")],
    3: [{"role": "system", "content": "Be brief."}, user("What is a heron?")],
    4: [user("Plan a picnic")],
    5: [user("Describe rain.")],
    7: [user("Reverse the list\n\n[1, 2]")],
    8: [user("Say hello")],
    9: [user("Find x when x+2=5.")],
    10: [user("Tide at Brest?"), calling(("tide_at", '{"port": "Brest"}')), result("tide_at", 0, '{"m": 4.1}')],
    11: [{"role": "system", "content": "You have no functions."}, user("Hi")],
    12: [user("Ferry times for Oban and Mull")],
    14: [
        user("Tide at Brest?"),
        calling(("Tide Table (Coast) V2", '{"port": "Brest"}')),
        result("Tide Table (Coast) V2", 0, '[{"m":4.1}]'),
    ],
    15: [user("Tide?"), calling(("tide", '{"port":"Brest"}')), result("tide", 0, "4.1")],
}
"""Line to messages. The last answers are gone: the target writes its own."""

FERRY = tool("ferry", {"port": {"type": "string", "default": ""}})
FERRY["function"]["description"] = "d"
TOOLS = {10: [tool("tide_at", PORT)], 12: [FERRY], 14: [tool("Tide Table (Coast) V2", PORT)], 15: [tool("tide")]}

DROPPED = {
    6: "content has a part of type 'image_url': only text can be asked",
    13: "tools is not JSON: Expecting value: line 1 column 10 (char 9)",
    16: "orphan tool result: no assistant turn before it",
}


def test_every_row_has_its_expectation():
    assert {*GIVEN, *DROPPED} == set(range(1, len(MADE) + 1))


@pytest.mark.parametrize("line", GIVEN)
def test_row_that_is_asked(line):
    made = MADE[line - 1]
    assert isinstance(made, Prompt)
    assert (made.messages, made.tools) == (GIVEN[line], TOOLS.get(line))


def test_rows_that_are_dropped():
    assert {d.line: d.reason for d in MADE if isinstance(d, Dropped)} == DROPPED


def test_rows_with_one_id_are_different_prompts():
    assert len({m.prompt_id for m in MADE if isinstance(m, Prompt)}) == len(GIVEN)


def test_the_documentation_lists_the_forms_in_their_order():
    page = (Path(__file__).parents[3] / "docs" / "data_format.md").read_text(encoding="ascii")
    table = page.split("| form | fields |")[1].split("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == FORMS
