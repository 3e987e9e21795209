"""Prompt files of every form and with every kind of dirt."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_jobs.core.errors import ConfigError
from ray_jobs.text.prompts import Dropped, Prompt, read_source


def write(folder: Path, rows: list, name: str = "set.jsonl") -> Path:
    path = folder / name
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def one(folder: Path, row: dict, form: str = "auto") -> Prompt | Dropped:
    (made,) = read_source(write(folder, [row]), format=form)
    return made


def turns(made: Prompt | Dropped) -> list[tuple[str, str | None]]:
    assert isinstance(made, Prompt), made
    return [(m["role"], m["content"]) for m in made.messages]


def reason(made: Prompt | Dropped) -> str:
    assert isinstance(made, Dropped), made
    return made.reason


def share(*pairs: tuple[str, str | None], **rest) -> dict:
    return {"conversations": [{"from": role, "value": text} for role, text in pairs], **rest}


def chat(*pairs: tuple[str, object], **rest) -> dict:
    return {"messages": [{"role": role, "content": text} for role, text in pairs], **rest}


GOOD = {
    "sharegpt ends on the user": (
        share(("human", "Two blue birds?"), ("gpt", "Jay and tit."), ("human", "A red one?"), id="a"),
        [("user", "Two blue birds?"), ("assistant", "Jay and tit."), ("user", "A red one?")],
    ),
    "sharegpt begins with the answer": (
        share(("gpt", "Where were we"), ("human", "at step two")),
        [("user", "at step two")],
    ),
    "sharegpt empty turn, system kept": (
        share(("system", "Be short."), ("human", ""), ("human", " \n"), ("human", "What is a stoat?")),
        [("system", "Be short."), ("user", "What is a stoat?")],
    ),
    "sharegpt other role names": (
        share(
            ("USER", "a"), ("chatgpt", "b"), ("human", "c"), ("bing", "d"), ("user", "e"), ("bard", "f"), ("human", "g")
        ),
        [
            ("user", "a"),
            ("assistant", "b"),
            ("user", "c"),
            ("assistant", "d"),
            ("user", "e"),
            ("assistant", "f"),
            ("user", "g"),
        ],
    ),
    "sharegpt under role and content": (
        {"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
        [("user", "q")],
    ),
    "sharegpt with the row's own system text": (
        share(("user", "q"), system="You are terse."),
        [("system", "You are terse."), ("user", "q")],
    ),
    "sharegpt system turn wins over the row's": (
        share(("system", "A"), ("human", "q"), system_prompt="B"),
        [("system", "A"), ("user", "q")],
    ),
    "sharegpt tool result at the end": (
        share(("user", "Tide?"), ("assistant", '[tide(port="Brest")]'), ("tool", "[4.1]")),
        [("user", "Tide?"), ("assistant", '[tide(port="Brest")]'), ("tool", "[4.1]")],
    ),
    "same role twice stays": (
        chat(("user", "a"), ("assistant", "b"), ("user", "c"), ("user", "d")),
        [("user", "a"), ("assistant", "b"), ("user", "c"), ("user", "d")],
    ),
    "messages end on the assistant": (
        chat(("user", "Plan a walk"), ("assistant", "Take boots."), prompt="Plan a walk", prompt_id="x"),
        [("user", "Plan a walk")],
    ),
    "several answers at the end": (chat(("user", "q"), ("assistant", "a"), ("assistant", "b")), [("user", "q")]),
    "text parts are joined": (
        chat(("user", [{"type": "text", "text": "Describe "}, {"type": "text", "text": "snow."}]), prompt=None),
        [("user", "Describe snow.")],
    ),
    "content is not stripped": (chat(("user", "  q \n")), [("user", "  q \n")]),
    "developer is system": (chat(("developer", "s"), ("user", "q")), [("system", "s"), ("user", "q")]),
    "conversation": (
        {"conversation": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "turn": 1},
        [("user", "q")],
    ),
    "prompt": ({"prompt": "Why is ice light?"}, [("user", "Why is ice light?")]),
    "instruction and input": (
        {"instruction": "Sort the list", "input": "[2, 1]", "output": "[1, 2]"},
        [("user", "Sort the list\n\n[2, 1]")],
    ),
    "instruction, empty input": ({"instruction": "Say bye", "input": "", "output": "Bye"}, [("user", "Say bye")]),
    "instruction, no input": ({"instruction": "Say bye", "input": "<noinput>"}, [("user", "Say bye")]),
    "messages win": (
        chat(("user", "Find y when y+1=3."), problem="other", prompt="p"),
        [("user", "Find y when y+1=3.")],
    ),
    "null columns are passed over": (
        {"messages": None, "conversations": None, "instruction": None, "prompt": "p", "system_prompt": None},
        [("user", "p")],
    ),
    "messages as JSON text": ({"messages": json.dumps([{"role": "user", "content": "q"}])}, [("user", "q")]),
    "an answer that mentions a marker": (
        chat(("user", "q"), ("assistant", "It writes <think>."), ("user", "why?")),
        [("user", "q"), ("assistant", "It writes <think>."), ("user", "why?")],
    ),
}


@pytest.mark.parametrize(("row", "expected"), GOOD.values(), ids=GOOD.keys())
def test_row_is_read(tmp_path, row, expected):
    assert turns(one(tmp_path, row)) == expected


BAD = {
    "image part": (
        chat(("user", [{"type": "image_url", "image_url": {"url": "x"}}]), ("user", "What is it?")),
        "content has a part of type 'image_url': only text can be asked",
    ),
    "image column": (share(("human", "<image>\nWhat?"), image="x.png"), "has image: only text can be asked"),
    "orphan tool result": (chat(("tool", "4.1"), ("user", "hm")), "orphan tool result: no assistant turn before it"),
    "tool result after the user": (
        chat(("user", "q"), ("tool", "4.1")),
        "orphan tool result: no assistant turn before it",
    ),
    "tool result of a dropped answer": (
        chat(("assistant", "call"), ("tool", "4.1"), ("user", "q")),
        "orphan tool result: no assistant turn before it",
    ),
    "no user turn": (share(("gpt", "Hello"), ("gpt", "there")), "no user turn"),
    "only empty turns": (chat(("user", ""), ("assistant", "a"), ("user", None)), "no user turn"),
    "empty prompt": ({"prompt": " "}, "no user turn"),
    "system alone": (chat(("system", "s")), "no user turn"),
    "unknown role": (share(("narrator", "Once"), ("human", "q")), "unknown role 'narrator'"),
    "no role": ({"messages": [{"content": "q"}]}, "unknown role None"),
    "turn is text": ({"messages": ["q"]}, "a turn is not an object"),
    "content is a number": (chat(("user", 3)), "content is not text"),
    "messages are an object": ({"messages": {"role": "user"}}, "messages is not a list"),
    "messages are broken text": ({"messages": "[{"}, "messages is not JSON"),
    "no form": ({"text": "USER: Hi", "system": "s"}, "no known form in the fields system, text"),
    "nothing": ({}, "no known form in the fields (none)"),
    "tools are broken text": ({"prompt": "q", "tools": '[{"name":'}, "tools is not JSON"),
    "tools are text": ({"prompt": "q", "tools": "[3]"}, "tools are not a list of objects"),
    "a tool without a name": ({"prompt": "q", "tools": [{"parameters": {}}]}, "a tool has no name"),
}


@pytest.mark.parametrize(("row", "expected"), BAD.values(), ids=BAD.keys())
def test_row_is_dropped_with_its_reason(tmp_path, row, expected):
    assert reason(one(tmp_path, row)).startswith(expected)


CALL = {"id": "functions.tide:0", "type": "function", "function": {"name": "tide", "arguments": '{"port":"Brest"}'}}
TOOL = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}


def tool_row(**rest) -> dict:
    return {
        "messages": [
            {"role": "user", "content": "Tide?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL, CALL | {"id": "functions.tide:1"}]},
            {"role": "tool", "tool_call_id": "functions.tide:0", "content": "4.1"},
            {"role": "tool", "tool_call_id": "functions.tide:1", "content": ""},
        ],
        **rest,
    }


def test_tool_conversation(tmp_path):
    made = one(tmp_path, tool_row(tools=json.dumps([TOOL])))
    assert [t for t, _ in turns(made)] == ["user", "assistant", "tool", "tool"]
    assert isinstance(made, Prompt)
    assert made.messages[1]["content"] is None
    assert len(made.messages[1]["tool_calls"]) == 2
    assert made.messages[2]["tool_call_id"] == "functions.tide:0"
    assert made.tools == [TOOL]


def test_result_of_an_unknown_call_is_dropped(tmp_path):
    row = tool_row()
    row["messages"][2]["tool_call_id"] = "functions.tide:7"
    assert reason(one(tmp_path, row)) == "orphan tool result: no call functions.tide:7 before it"


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (None, None),
        ("", None),
        ([], None),
        ("[]", None),
        ("null", None),
        ([TOOL], [TOOL]),
        (TOOL, [TOOL]),
        ([{"name": "f", "parameters": {}}], [{"type": "function", "function": {"name": "f", "parameters": {}}}]),
    ],
)
def test_tools(tmp_path, tools, expected):
    made = one(tmp_path, {"prompt": "q", "tools": tools})
    assert isinstance(made, Prompt)
    assert made.tools == expected


def test_both_names_of_earlier_thoughts(tmp_path):
    for key in ("reasoning", "reasoning_content"):
        row = {"messages": [{"role": "assistant", "content": "a", key: "t"}, {"role": "user", "content": "r"}]}
        row["messages"].insert(0, {"role": "user", "content": "q"})
        made = one(tmp_path, row)
        assert isinstance(made, Prompt)
        assert made.messages[1] == {"role": "assistant", "content": "a", "reasoning_content": "t"}


def test_bad_lines_have_file_and_line(tmp_path):
    rows = [
        b'\xef\xbb\xbf{"prompt": "first"}',
        b"",
        b'{"prompt": "no end',
        b'["prompt"]',
        b'{"prompt": "\xff"}',
        b'{"prompt": "half \\ud83d"}',
        b"[" * 100_000,
        b'{"prompt": "whole \\ud83d\\ude00"}',
    ]
    path = write(tmp_path, rows)
    made = list(read_source(path))
    assert [m.prompt_id != "" for m in made if isinstance(m, Prompt)] == [True, True]
    dropped = [m for m in made if isinstance(m, Dropped)]
    assert [(d.file, d.line) for d in dropped] == [(str(path), n) for n in (3, 4, 5, 6, 7)]
    starts = ("not JSON: ", "not a JSON object", "not UTF-8 at byte 12", "not Unicode text", "not JSON: ")
    assert [d.reason.startswith(s) for d, s in zip(dropped, starts, strict=True)] == [True] * 5


def test_format_can_be_forced(tmp_path):
    row = chat(("user", "m"), prompt="p", instruction="i")
    assert turns(one(tmp_path, row, "prompt")) == [("user", "p")]
    assert turns(one(tmp_path, row, "instruction")) == [("user", "i")]
    assert reason(one(tmp_path, row, "sharegpt")).startswith("no sharegpt form in the fields")
    with pytest.raises(ConfigError, match=r"^data.format=alpaca: "):
        read_source(tmp_path / "set.jsonl", format="alpaca")


def test_json_array_and_json_lines_under_one_suffix(tmp_path):
    array, lines = tmp_path / "a.json", tmp_path / "b.json"
    array.write_text(json.dumps([{"prompt": "x"}, 3, {"prompt": "y"}], indent=2))
    lines.write_text('{"prompt": "x"}\n{"prompt": "y"}\n')
    made = list(read_source(array))
    assert [m.messages[0]["content"] if isinstance(m, Prompt) else m.line for m in made] == ["x", 2, "y"]
    assert len(list(read_source(lines))) == 2
    array.write_text('[{"prompt": ')
    with pytest.raises(ConfigError, match=r"^data.files=.*a.json: not a JSON array"):
        list(read_source(array))


def test_parquet_without_the_nulls_of_other_rows(tmp_path):
    other = {"type": "function", "function": {"name": "f", "parameters": {"unit": "m"}}}
    # Arrow cannot hold an empty object, so this tool has a parameter.
    tool = {"type": "function", "function": {"name": "tide", "parameters": {"port": "Brest"}}}
    rows = [tool_row(tools=[tool]), chat(("user", "q"), ("assistant", "a"), tools=[other]), chat(("tool", "x"))]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    first, second, third = read_source(tmp_path / "p.parquet")
    (from_lines,) = read_source(write(tmp_path, [tool_row(tools=[tool])]), name="p")
    assert first == from_lines
    assert isinstance(second, Prompt)
    assert second.tools == [other]
    assert turns(second) == [("user", "q")]
    assert (reason(third)[:6], third.line if isinstance(third, Dropped) else 0) == ("orphan", 3)


def test_parquet_with_json_text(tmp_path):
    row = tool_row()
    table = pa.table({"messages": [json.dumps(row["messages"])], "tools": [json.dumps([TOOL])]})
    pq.write_table(table, tmp_path / "set.parquet")
    (made,) = read_source(tmp_path / "set.parquet")
    (same,) = read_source(write(tmp_path, [tool_row(tools=[TOOL])]))
    assert made == same


def test_globs_are_sorted_and_name_their_sources(tmp_path):
    for name in ("b", "a", "c[1]"):
        write(tmp_path, [{"prompt": name}], f"{name}.jsonl")
    made = list(read_source(str(tmp_path / "*.jsonl")))
    assert [m.source for m in made if isinstance(m, Prompt)] == ["a", "b", "c[1]"]
    assert [m.source for m in read_source(tmp_path / "*.jsonl", name="n") if isinstance(m, Prompt)] == ["n"] * 3
    assert len(list(read_source(tmp_path / "c[1].jsonl"))) == 1


@pytest.mark.parametrize("name", ["absent.jsonl", "*.parquet", "."])
def test_missing_files_are_refused_at_once(tmp_path, name):
    with pytest.raises(ConfigError, match=r"^data.files=.*: no such file\. Name an existing"):
        read_source(tmp_path / name)


def test_unknown_types_and_broken_parquet_are_refused(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n")
    with pytest.raises(ConfigError, match=r"must be a .jsonl, .json or .parquet file"):
        read_source(tmp_path / "x.csv")
    (tmp_path / "x.parquet").write_text("no")
    with pytest.raises(ConfigError, match=r"not a Parquet file"):
        list(read_source(tmp_path / "x.parquet"))


def test_lines_are_streamed(tmp_path):
    """The first prompts come before a broken end of the file is met, and without reading to it."""
    path = tmp_path / "big.jsonl"
    with path.open("wb") as file:
        for n in range(2000):
            file.write(json.dumps({"prompt": f"q{n}"}).encode() + b"\n")
    reader = read_source(path)
    assert len(list(itertools.islice(reader, 3))) == 3
    path.write_bytes(b"")
    assert len(list(reader)) < 1990
