"""Every form of a public set, each with the dirt that is usual in it."""

from __future__ import annotations

import pytest
from form_cases import (
    EVERY_FORM,
    PORT,
    STARS_TOOL,
    calling,
    prompt,
    reason,
    result,
    share,
    tool,
    user,
    xlam,
)

from ray_jobs.text.forms import FORMS
from ray_jobs.text.prompts import Prompt

TOOLACE_TOOL = tool("Tide Table (Coast) V2", PORT)

EXPECTED = {
    "messages": ([user("Plan a walk")], None),
    "openai tools": (
        [user("Tide?"), calling(("tide_at", '{"port": "Brest"}')), result("tide_at", 0, '{"m": 4.1}')],
        [tool("tide_at", PORT)],
    ),
    "toolace": (
        [
            user("Tide?"),
            calling(("Tide Table (Coast) V2", '{"port": "Brest"}')),
            result("Tide Table (Coast) V2", 0, "[4.1]"),
        ],
        [TOOLACE_TOOL, STARS_TOOL],
    ),
    "hermes": (
        [user("Tide?"), calling(("tide_at", '{"port": "Brest"}')), result("tide_at", 0, '{"m": 4.1}')],
        [tool("tide_at", PORT)],
    ),
    "sharegpt": ([user("Two soft cheeses?"), {"role": "assistant", "content": "Brie."}, user("One hard?")], None),
    "openthoughts": (
        [user("1+1?"), {"role": "assistant", "content": "2", "reasoning_content": "Easy."}, user("And 2+2?")],
        None,
    ),
    "conversation": ([user("Hello NAME_1")], None),
    "glaive": (
        [user("Tide?"), calling(("tide_at", '{"port": "Brest"}')), result("tide_at", 0, '{"m": 4.1}')],
        [tool("tide_at", PORT)],
    ),
    "instruction": ([user("Sort the list\n\n[2, 1]")], None),
    "xlam": ([user("Ferry times?")], [tool("ferry", {"port": {"type": "string", "default": ""}})]),
    "query": ([user("1+1?")], None),
    "problem": ([user("Find x when x+2=5.")], None),
    "prompt": ([{"role": "system", "content": "Be brief."}, user("Why is ice light?")], None),
}


@pytest.mark.parametrize("name", EVERY_FORM)
def test_a_row_of_every_form(tmp_path, name):
    made = prompt(tmp_path, EVERY_FORM[name])
    assert (made.messages, made.tools) == EXPECTED[name]


@pytest.mark.parametrize("name", [name for name in EVERY_FORM if name in FORMS])
def test_a_named_form_reads_what_auto_recognises(tmp_path, name):
    assert prompt(tmp_path, EVERY_FORM[name], name) == prompt(tmp_path, EVERY_FORM[name])


def test_every_name_has_a_row():
    assert set(FORMS) <= EVERY_FORM.keys()


def test_the_order_in_which_forms_are_tried(tmp_path):
    """Each row holds the fields of all the forms after it, too."""
    rest: dict = {}
    for name in reversed(FORMS):
        rest = {**rest, **{key: item for key, item in EVERY_FORM[name].items() if key not in ("system", "tools")}}
        if name in ("toolace", "hermes"):  # They have the fields of sharegpt.
            continue
        both = prompt(tmp_path, rest)
        assert both.messages[-1]["content"] == EXPECTED[name][0][-1]["content"], name


def test_tags_and_lists_decide_between_forms_of_the_same_fields(tmp_path):
    both = EVERY_FORM["hermes"]
    assert prompt(tmp_path, both, "sharegpt").messages[0]["role"] == "system"
    assert "tool_calls" not in prompt(tmp_path, both, "sharegpt").messages[2]
    quoted = share(("human", "What is a tag?"), ("gpt", "<tool_call> begins one."), ("human", "Thanks."))
    assert prompt(tmp_path, quoted).messages[1]["content"] == "<tool_call> begins one."
    example = share(("human", "Go"), system='Answer as [{"name": "Ann", "age": 3}].')
    assert prompt(tmp_path, example).messages[0]["content"] == 'Answer as [{"name": "Ann", "age": 3}].'


def test_xlam_answers_are_not_read_and_broken_tools_drop_the_row(tmp_path):
    assert prompt(tmp_path, xlam([], answers="[{")).messages == [user("Ferry times?")]
    assert reason(tmp_path, xlam('[{"name":', query="Broken tools")).startswith("tools is not JSON")
    assert reason(tmp_path, xlam([], query="")) == "no user turn"


def test_forms_give_the_same_prompt(tmp_path):
    """One question with its call and result is one prompt, whichever set wrote it."""
    names = ("openai tools", "hermes", "glaive")
    made: list[Prompt] = [prompt(tmp_path, EVERY_FORM[name]) for name in names]
    assert len({p.prompt_id for p in made}) == 1
