"""Calls, results and tools that a set writes as text: Glaive's, Hermes' and ToolACE's, good and broken."""

from __future__ import annotations

import json

import pytest
from form_cases import (
    PORT,
    STARS_TOOL,
    TIDE,
    calling,
    glaive,
    hermes,
    prompt,
    reason,
    result,
    share,
    tool,
    toolace,
    user,
)


def glaive_call(body: str) -> dict:
    turns = [("USER", "Tide?"), ("ASSISTANT", f"Sure. <functioncall> {body}"), ("FUNCTION RESPONSE", "4.1")]
    tools = f"{json.dumps(TIDE)}\n\n{json.dumps(STARS_TOOL['function'])}"
    return glaive(*turns, ("ASSISTANT", "Done."), system=f"Use -\n{tools}")


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "tide_at", "arguments": \'{"port": "Brest"}\'}', '{"port": "Brest"}'),
        ('{"name": "tide_at", "arguments": \'{"port": "Pen\'March"}\'}', '{"port": "Pen\'March"}'),
        ('{"name": "tide_at", "arguments": \'{"port": "Pen\\\'March"}\'}', '{"port": "Pen\'March"}'),
        ('{"name": "tide_at", "arguments": \'{"now": true, "a": "\\\'"}\'}', '{"now": true, "a": "\'"}'),
        ('{"name": "tide_at", "arguments": \'{\n  "port": "Brest"\n}\'}', '{\n  "port": "Brest"\n}'),
        ('{"name": "tide_at", "arguments": {"port": "Brest"}}', '{"port": "Brest"}'),
        ('{"arguments": {"port": "Brest"}, "name": "tide_at"}', '{"port": "Brest"}'),
        ('{"name": "tide_at"}', "{}"),
        ('{"name": "tide_at", "arguments": \'\'}', "{}"),
    ],
)
def test_glaive_calls(tmp_path, body, arguments):
    made = prompt(tmp_path, glaive_call(body))
    assert made.messages[1:] == [calling(("tide_at", arguments), content="Sure."), result("tide_at", 0, "4.1")]
    assert made.tools == [tool("tide_at", PORT), STARS_TOOL]
    assert "<|endoftext|>" not in json.dumps(made.messages)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (glaive_call('{"name": "tide_at", "arguments": \'{"port": \'}'), "arguments of tide_at is not JSON"),
        (glaive_call("tide_at(Brest)"), "<functioncall> is not JSON"),
        (glaive_call("[1]"), "<functioncall> holds no call"),
        (glaive_call('{"name": "tide_at", "arguments": \'[1]\'}'), "arguments of tide_at are not an object"),
        (glaive(("USER", "Hi"), system='Use {"name": "tide_at", '), "a tool in system is not JSON"),
        (glaive(("USER", "Hi"), system='Use {"parameters": {}}'), "a tool has no name"),
        ({"chat": "Hi there", "system": ""}, "chat has text before its first turn"),
        ({"chat": "ASSISTANT: Hi", "system": None}, "no user turn"),
        ({"chat": "", "system": ""}, "no user turn"),
        (glaive(("USER", "a"), ("FUNCTION RESPONSE", "4.1")), "orphan tool result: no assistant turn before it"),
    ],
)
def test_glaive_rows_that_are_dropped(tmp_path, row, expected):
    assert reason(tmp_path, row).startswith(expected)


def test_glaive_texts(tmp_path):
    """A label inside a paragraph is text; blank lines inside a turn stay; no tools are absent, not an empty list."""
    row = glaive(("USER", "He wrote\nUSER: me\n\nand left.\n\n\n- USER: x"), ("ASSISTANT", "Ok"), ("USER", "Bye"))
    made = prompt(tmp_path, row)
    texts = ["He wrote\nUSER: me\n\nand left.\n\n\n- USER: x", "Ok", "Bye"]
    assert [m["content"] for m in made.messages] == texts
    assert made.tools is None
    kept = prompt(tmp_path, glaive(("USER", "Hi"), system="You have no functions."))
    assert kept.messages[0] == {"role": "system", "content": "You have no functions."}


def tagged(call: str, response: str = "<tool_response>4.1</tool_response>", **rest) -> dict:
    return hermes(("human", "Tide?"), ("gpt", call), ("tool", response), ("gpt", "ok"), ("human", "More"), **rest)


GOOD_CALL = '<tool_call>{"name": "tide_at", "arguments": {"port": "Brest"}}</tool_call>'


def test_hermes_calls_and_results(tmp_path):
    two = f"Looking.\n{GOOD_CALL}\n<tool_call>\n{{'name': 'tide_at', 'arguments': {{'port': None}}}}\n</tool_call>"
    made = prompt(tmp_path, tagged(two, "<tool_response>\n4.1\n</tool_response>\n<tool_response>5</tool_response>"))
    assert made.messages == [
        user("Tide?"),
        calling(("tide_at", '{"port": "Brest"}'), ("tide_at", '{"port": null}'), content="Looking."),
        result("tide_at", 0, "4.1"),
        result("tide_at", 1, "5"),
        {"role": "assistant", "content": "ok"},
        user("More"),
    ]


def test_hermes_ids_count_through_the_conversation(tmp_path):
    made = prompt(
        tmp_path, hermes(("human", "q"), ("gpt", GOOD_CALL), ("human", "q"), ("gpt", GOOD_CALL), ("human", "r"))
    )
    ids = [c["id"] for m in made.messages for c in m.get("tool_calls", ())]
    assert ids == ["functions.tide_at:0", "functions.tide_at:1"]


def test_hermes_calls_as_a_list_and_results_with_text_around(tmp_path):
    call = '<tool_call>[{"name": "tide_at"}, {"name": "tide_at"}]</tool_call>'
    said = "At noon: <tool_response>4</tool_response>"
    made = prompt(tmp_path, tagged(call, said))
    assert made.messages[1:3] == [calling(("tide_at", "{}"), ("tide_at", "{}")), result("tide_at", 0, said)]


def test_hermes_tools_in_the_system_text_alone(tmp_path):
    row = tagged(GOOD_CALL)
    expected = prompt(tmp_path, row)
    row["tools"] = None
    assert prompt(tmp_path, row) == expected
    pasted = f"<tools>\n{json.dumps(TIDE)}\n{json.dumps(STARS_TOOL)}\n</tools>"
    row["conversations"][0]["value"] = pasted
    assert prompt(tmp_path, row).tools == [tool("tide_at", PORT), STARS_TOOL]
    row["conversations"][0]["value"] = "You are kind."
    assert prompt(tmp_path, row).messages[0] == {"role": "system", "content": "You are kind."}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (tagged('<tool_call>{"name": "tide_at", "arguments": {</tool_call>'), "<tool_call> is not JSON"),
        (tagged('<tool_call>{"name": "tide_at"}'), "<tool_call> without </tool_call>"),
        (tagged("<tool_call>[]</tool_call>"), "<tool_call> holds no call"),
        (tagged('<tool_call>{"arguments": {}}</tool_call>'), "a tool call has no name"),
        (tagged('<tool_call>{"name": "f", "arguments": [1]}</tool_call>'), "arguments of f are not an object"),
        (tagged(GOOD_CALL, "<tool_response>4.1"), "<tool_response> without </tool_response>"),
        (
            tagged(GOOD_CALL, "<tool_response>a</tool_response><tool_response>b</tool_response>"),
            "orphan tool result: more",
        ),
        (tagged(GOOD_CALL, tools="[{'name': "), "tools is not JSON"),
        (share(("system", "<tools> </tools>"), ("human", "q")), "<tools> without a tool"),
        (share(("system", "<tools>{broken</tools>"), ("human", "q")), "<tools> is not JSON"),
    ],
)
def test_hermes_rows_that_are_dropped(tmp_path, row, expected):
    assert reason(tmp_path, row).startswith(expected)


def test_the_last_answer_does_no_harm(tmp_path):
    """The target writes its own, so a broken call in it is not looked at."""
    assert prompt(tmp_path, hermes(("human", "q"), ("gpt", "<tool_call>{</tool_call>"))).messages == [user("q")]
    assert prompt(tmp_path, share(("user", "q"), ("assistant", "<|begin_of_thought|> cut"))).messages == [user("q")]
    row = {"messages": [user("q"), {"role": "assistant", "content": None, "tool_calls": "[{"}]}
    assert prompt(tmp_path, row).messages == [user("q")]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('[Tide Table (Coast) V2(port="Brest")]', [("Tide Table (Coast) V2", '{"port": "Brest"}')]),
        ("[Stars(n=3), Stars(n=-1.5)]", [("Stars", '{"n": 3}'), ("Stars", '{"n": -1.5}')]),
        ("[Stars()]", [("Stars", "{}")]),
        (
            '[Other Name(a=[1, "x, y)"], b={"k": true}, c=None)]',
            [("Other Name", '{"a": [1, "x, y)"], "b": {"k": true}, "c": null}')],
        ),
        ("[Stars(n='it\\'s (a] test')]", [("Stars", '{"n": "it\'s (a] test"}')]),
        (' [ Stars ( n = "=" ) ] ', [("Stars", '{"n": "="}')]),
    ],
)
def test_toolace_calls(tmp_path, text, calls):
    made = prompt(tmp_path, toolace(("user", "q"), ("assistant", text), ("user", "r")))
    assert made.messages[1] == calling(*calls)


def test_toolace_names_that_begin_alike(tmp_path):
    turns = (("user", "q"), ("assistant", "[Tide (Coast)(n=1), Tide(n=2)]"), ("user", "r"))
    made = prompt(tmp_path, toolace(*turns, tools=[{"name": n, "parameters": {}} for n in ("Tide", "Tide (Coast)")]))
    assert made.messages[1] == calling(("Tide (Coast)", '{"n": 1}'), ("Tide", '{"n": 2}'), first=0)


@pytest.mark.parametrize(
    "text", ["I cannot do that.", "[1, 2]", "[see f(x)](http://a)", "[]", "[a(b=1)] and more", "["]
)
def test_toolace_answers_that_are_text(tmp_path, text):
    made = prompt(tmp_path, toolace(("user", "q"), ("assistant", text), ("user", "r")))
    assert made.messages[1] == {"role": "assistant", "content": text}


def test_toolace_results_of_several_calls(tmp_path):
    turns = (("user", "q"), ("assistant", "Both: [Stars(n=1), Stars(n=2)]"))
    made = prompt(tmp_path, toolace(*turns, ("tool", '[{"a": 1}, "b"]')))
    assert made.messages[1]["content"] == "Both:"
    assert made.messages[2:] == [result("Stars", 0, '{"a": 1}'), result("Stars", 1, '"b"')]
    whole = prompt(tmp_path, toolace(*turns, ("tool", '[{"a": 1}]')))
    assert whole.messages[2:] == [result("Stars", 0, '[{"a": 1}]')]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (toolace(("user", "q"), ("assistant", "[Stars(n=)]"), ("user", "r")), "argument n of Stars is not JSON"),
        (
            toolace(("user", "q"), ("assistant", "[Stars(3)]"), ("user", "r")),
            "the call of Stars has an argument without",
        ),
        (toolace(("user", "q"), ("assistant", "[Stars(n=1"), ("user", "r")), "a call does not end"),
        (toolace(("user", "q"), ("assistant", "[Stars(n=1)"), ("user", "r")), "the call of Stars is followed by"),
        (toolace(("user", "q"), ("assistant", "[Stars(n=1)] ok"), ("user", "r")), "text after the calls"),
        (share(("user", "q"), system='Use [{"name": "f", "parameters": {'), "the list of tools in system is not JSON"),
    ],
)
def test_toolace_rows_that_are_dropped(tmp_path, row, expected):
    assert reason(tmp_path, row).startswith(expected)
