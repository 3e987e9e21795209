"""Dirt that is usual in one set: leaked templates, absent figures, pages as HTML, thoughts in text markers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from form_cases import EVERY_FORM, one, prompt, reason, share, user
from jsonschema import Draft202012Validator

from ray_jobs.text.forms import FORMS, RowError, read_row
from ray_jobs.text.prompts import Dropped, Prompt, make_prompt_id, read_source

ROOT = Path(__file__).parents[3]


def magpie(text: str) -> dict:
    return share(("human", text), ("gpt", "a"), uuid="u", instruction=text, response="a", quality="good")


def test_magpie_leaks(tmp_path):
    clean = prompt(tmp_path, magpie("Name a bird."))
    assert clean.messages == [user("Name a bird.")]
    assert prompt(tmp_path, magpie("Name a bird.<|eot_id|>\n")).prompt_id == clean.prompt_id
    leaked = magpie("Name a bird.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnd a fish.")
    assert reason(tmp_path, leaked) == "template text in a user turn: <|start_header_id|>"
    answered = magpie("Begin a turn.")
    answered["conversations"][1:] = [{"from": "gpt", "value": "<|im_start|>"}, {"from": "human", "value": "Thanks."}]
    assert prompt(tmp_path, answered).messages[1]["content"] == "<|im_start|>"
    asked = share(("human", "What does <|im_start|> mean?"))
    assert prompt(tmp_path, asked).messages == [user("What does <|im_start|> mean?")]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Find the area of ABC in the figure.", False),
        ("As shown in the diagram, AB = 3. Find BC.", False),
        ("Find x. ![](https://example.org/a.png)", False),
        ("[asy] draw((0,0)--(1,1)); [/asy] Find the length in the figure.", True),
        ("How many figures does 2^10 have?", True),
    ],
)
def test_problems_whose_figure_is_absent(tmp_path, text, kept):
    for row in ({"problem": text}, {"problem": text, "messages": [user(text), {"role": "assistant", "content": "3"}]}):
        if kept:
            assert prompt(tmp_path, row).messages == [user(text)]
        else:
            assert reason(tmp_path, row) == "refers to a figure that is not there: only text can be asked"


@pytest.mark.parametrize(
    ("html", "text"),
    [
        (
            '<div class="markdown prose"><p>One &amp; two.</p><ul><li>a</li><li>b</li></ul></div>',
            "One & two.\n\n- a\n- b",
        ),
        ("<p>First</p><p>Second<br>line</p>", "First\n\nSecond\nline"),
        ('<div class="markdown"><p>So:</p><pre><code>x &lt; 1\n</code></pre></div>', "So:\n\n```\nx < 1\n\n```"),
        ("What does <p>a</p> mean?", "What does <p>a</p> mean?"),
        ("<div>Why is this <b>bold</b>?</div>", "<div>Why is this <b>bold</b>?</div>"),
        ("<p><![odd[x]]></p>", "<p><![odd[x]]></p>"),
    ],
)
def test_pages_as_html(tmp_path, html, text):
    made = prompt(tmp_path, share(("human", "q"), ("gpt", html), ("human", html)))
    assert [m["content"] for m in made.messages] == ["q", text, text]
    assert prompt(tmp_path, {"messages": [user(html)]}).messages == [user(html)]


def test_a_page_without_text_is_an_empty_turn(tmp_path):
    assert prompt(tmp_path, share(("human", "<p> <br></p>"), ("human", "q"))).messages == [user("q")]


def test_a_thought_that_does_not_end_drops_the_row(tmp_path):
    row = share(("user", "q"), ("assistant", "<|begin_of_thought|> hm"), ("user", "r"))
    assert reason(tmp_path, row) == "a thought without <|end_of_thought|>"


def test_columns_of_openhermes(tmp_path):
    row = share(("system", "Be kind."), ("human", "q"), system_prompt=None, category=None, source="x", id=None)
    row["conversations"][1]["weight"] = 0
    assert prompt(tmp_path, row).messages == [{"role": "system", "content": "Be kind."}, user("q")]


def test_turns_that_name_their_fields_differently(tmp_path):
    row = {
        "conversations": [
            {"from": "human", "content": "a"},
            {"role": "assistant", "value": "b"},
            {"from": "human", "value": "c"},
        ]
    }
    assert [m["content"] for m in prompt(tmp_path, row).messages] == ["a", "b", "c"]


@pytest.mark.parametrize("given", ["", " ", "<noinput>", "<NoInput>", "No input", None])
def test_inputs_that_say_nothing(tmp_path, given):
    assert prompt(tmp_path, {"instruction": "Go", "input": given, "output": "x"}).messages == [user("Go")]


def test_input_that_is_not_text(tmp_path):
    assert reason(tmp_path, {"instruction": "Go", "input": ["a"]}) == "input is not text"


def test_text_that_cannot_be_stored_is_dropped(tmp_path):
    half = '[{"name": "f", "description": "\\ud83d"}]'
    assert reason(tmp_path, {"prompt": "q", "tools": half}) == "not Unicode text: half a surrogate pair"
    big = '[{"name": "f", "parameters": {"a": {"default": 1e999}}}]'
    assert reason(tmp_path, {"prompt": "q", "tools": big}).startswith("not JSON: ")


@pytest.mark.parametrize("depth", [10, 150, 250, 320, 330, 450, 900, 50_000])
def test_deep_tools_are_read_or_dropped(tmp_path, depth):
    deep = '{"name": "f", "parameters": ' + '{"properties": {"a": ' * depth + "{}" + "}}" * depth + "}"
    made = one(tmp_path, {"prompt": "q", "tools": deep})
    if depth == 10:
        assert isinstance(made, Prompt)
    elif depth == 50_000 or isinstance(made, Dropped):
        assert isinstance(made, Dropped)
        assert made.reason.startswith(("nested too deeply", "tools is not JSON"))


def test_parquet_values_that_are_no_json(tmp_path):
    pq.write_table(pa.table({"prompt": ["a"], "tools": [[{"name": "f", "x": b"1"}]]}), tmp_path / "a.parquet")
    (made,) = read_source(tmp_path / "a.parquet")
    assert isinstance(made, Dropped)
    bad = pa.StringArray.from_buffers(
        2, pa.py_buffer(b"\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00"), pa.py_buffer(b"\xffb")
    )
    pq.write_table(pa.table({"prompt": bad}), tmp_path / "b.parquet")
    first, second = read_source(tmp_path / "b.parquet")
    assert isinstance(first, Dropped)
    assert first.reason.startswith("not readable: ")
    assert isinstance(second, Prompt)
    assert second.messages == [user("b")]


TEXTS = ("", " ", "null", "{", "[", "[Stars(", "<tool_call>", "</tool_call>", "<tools>", "<functioncall> {'a'", "\x00")
VALUES: tuple[Any, ...] = (None, 0, -1.5, True, float("nan"), [], {}, [[]], [None], {"a": None}, *TEXTS)


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside a JSON-like value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in ((value, key), *places(item))]


def holds_json(item: Any) -> bool:
    try:
        return isinstance(json.loads(item), dict | list)
    except (TypeError, ValueError):
        return False


def spoil(row: Any, rng: random.Random) -> Any:
    """The row with one to three things in it replaced, removed, doubled, cut, or turned into JSON text."""
    row = json.loads(json.dumps(row))
    for _ in range(rng.randint(1, 3)):
        found = places(row)
        if not found:
            break
        container, key = rng.choice(found)
        item = container[key]
        kind = rng.randrange(6)
        if kind == 0:
            container[key] = json.loads(json.dumps(rng.choice(VALUES)))
        elif kind == 1:
            del container[key]
        elif kind == 2 and isinstance(container, list):
            container.insert(key, json.loads(json.dumps(item)))
        elif kind == 3 and isinstance(item, str) and item:
            at = rng.randrange(len(item))
            container[key] = (
                item[:at] + rng.choice(("", rng.choice(TEXTS), *"'\"{}[]()\\")) + item[at + rng.randrange(2) :]
            )
        elif kind == 4:
            container[key] = json.dumps(spoil(json.loads(item), rng) if holds_json(item) else item)
        elif isinstance(container, dict):
            container[rng.choice(("tools", "type", "required", "from", "role", "properties", "arguments"))] = item
    return row


@pytest.mark.parametrize("name", EVERY_FORM)
def test_a_spoilt_row_gives_a_sound_prompt_or_a_reason(name):
    """Never another exception; and what is read is in the normal form, and is read again as the same prompt."""
    rng = random.Random(f"spoil {name}")
    reasons = []
    for _ in range(1500):
        row = spoil(EVERY_FORM[name], rng)
        try:
            messages, tools = read_row(row, rng.choice(("auto",) * 20 + FORMS))
        except RowError as refused:
            reasons.append(str(refused))
            continue
        check_normal(messages, tools)
        again = read_row({"messages": messages, "tools": tools})
        assert make_prompt_id("s", *again) == make_prompt_id("s", messages, tools)
    assert 50 < len(reasons) < 1450
    assert all(reasons)


def check_normal(messages: list[dict], tools: list[dict] | None) -> None:
    assert messages[-1]["role"] != "assistant"
    assert any(m["role"] == "user" for m in messages)
    known: set[str] = set()
    for message in messages:
        assert message.keys() <= {"role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name"}
        assert isinstance(message["content"], str) or message["role"] in ("assistant", "tool")
        calls = message.get("tool_calls", [])
        known |= {call["id"] for call in calls}
        for call in calls:
            assert call.keys() == {"id", "type", "function"}
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
        assert message.get("tool_call_id") in {None, *known} or not known
    assert tools is None or tools
    for tool in tools or ():
        assert tool.keys() == {"type", "function"}
        Draft202012Validator.check_schema(tool["function"].get("parameters", {}))


def test_ids_are_the_same_in_every_process(tmp_path):
    path = tmp_path / "all.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in EVERY_FORM.values()))
    code = (
        "import sys; from ray_jobs.text.prompts import read_source;"
        "print([p.prompt_id for p in read_source(sys.argv[1])])"
    )
    expected = str([p.prompt_id for p in read_source(path) if isinstance(p, Prompt)])
    for seed in ("1", "4711"):
        env = os.environ | {"PYTHONHASHSEED": seed}
        run = [sys.executable, "-c", code, str(path)]
        assert (
            subprocess.run(run, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout.strip()
            == expected
        )
