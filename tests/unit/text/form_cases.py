"""Rows as the public sets write them, all made up, with what they say when they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ray_jobs.text.prompts import Dropped, Prompt, read_source

Row = dict[str, Any]


def one(folder: Path, row: Row, form: str = "auto") -> Prompt | Dropped:
    """What the only row of a file gives."""
    path = folder / "set.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (made,) = read_source(path, format=form)
    return made


def prompt(folder: Path, row: Row, form: str = "auto") -> Prompt:
    made = one(folder, row, form)
    assert isinstance(made, Prompt), made
    return made


def reason(folder: Path, row: Row, form: str = "auto") -> str:
    made = one(folder, row, form)
    assert isinstance(made, Dropped), made
    return made.reason


def user(text: str) -> Row:
    return {"role": "user", "content": text}


def calling(*calls: tuple[str, str], content: str | None = None, first: int = 0) -> Row:
    """An assistant turn with calls (name, arguments as JSON text) and the ids that the reader gives them."""
    made = [
        {"id": f"functions.{name}:{first + at}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made}


def result(name: str, index: int, content: str) -> Row:
    return {"role": "tool", "tool_call_id": f"functions.{name}:{index}", "content": content}


def tool(name: str, properties: Row | None = None, **rest: Any) -> Row:
    """A tool in the normal form; `properties` become an object's."""
    parameters = {"type": "object", "properties": properties or {}, **rest}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


PORT = {"port": {"type": "string"}}
TIDE = {"name": "tide_at", "parameters": {"type": "object", "properties": PORT}}


def glaive(*turns: tuple[str, str], system: str = "") -> Row:
    """Turns of (label, text) as Glaive's one string; assistant turns get the end marker."""
    end = " <|endoftext|>"
    text = "".join(f"{label}: {said}{end if label == 'ASSISTANT' else ''}\n\n\n" for label, said in turns)
    return {"system": f"SYSTEM: {system}\n", "chat": text}


def share(*turns: tuple[str, str | None], **rest: Any) -> Row:
    return {"conversations": [{"from": role, "value": text} for role, text in turns], **rest}


def hermes(*turns: tuple[str, str], tools: Any = None) -> Row:
    """A row of Hermes with its boilerplate, which mentions the tags."""
    listed = [{"type": "function", "function": TIDE}] if tools is None else tools
    lesson = (
        "You are a function calling AI model. Signatures stand within <tools> </tools> tags. "
        f"<tools> {listed} </tools> Answer with <tool_call>\n{{'arguments': <args-dict>, 'name': <name>}}\n</tool_call>"
    )
    text = listed if isinstance(listed, str) else json.dumps(listed)
    return share(("system", lesson), *turns, id="h-1", category="Marine", task="Tides", tools=text)


TIDE_TABLE = {"name": "Tide Table (Coast) V2", "parameters": {"type": "dict", "properties": PORT}, "required": None}
STARS = {"name": "Stars", "description": "d", "parameters": {"type": "dict", "properties": {"n": {"type": "int"}}}}
STARS_TOOL = tool("Stars", {"n": {"type": "integer"}})
STARS_TOOL["function"]["description"] = "d"


def toolace(*turns: tuple[str, str], tools: Any = None) -> Row:
    """A row of ToolACE: the list stands in the system's prose."""
    listed = json.dumps([TIDE_TABLE, STARS] if tools is None else tools)
    lesson = f"You are an expert in composing functions. You can invoke:\n{listed}. Use [name(key=value), ...]."
    return share(*turns, system=lesson)


def xlam(tools: Any, query: str = "Ferry times?", answers: str = "[]") -> Row:
    return {
        "id": 7,
        "query": query,
        "answers": answers,
        "tools": tools if isinstance(tools, str) else json.dumps(tools),
    }


EVERY_FORM: dict[str, Row] = {
    "messages": {
        "prompt": "p",
        "prompt_id": "x",
        "messages": [user("Plan a walk"), {"role": "assistant", "content": "B"}],
    },
    "openai tools": {
        "messages": [
            user("Tide?"),
            calling(("tide_at", '{"port": "Brest"}')),
            result("tide_at", 0, '{"m": 4.1}'),
            {"role": "assistant", "content": "4.1 m", "reasoning_content": "I read it."},
        ],
        "tools": json.dumps([{"type": "function", "function": TIDE}]),
    },
    "toolace": toolace(("user", "Tide?"), ("assistant", '[Tide Table (Coast) V2(port="Brest")]'), ("tool", "[4.1]")),
    "hermes": hermes(
        ("human", "Tide?"),
        ("gpt", "<tool_call>\n{'name': 'tide_at', 'arguments': {'port': 'Brest'}}\n</tool_call>"),
        ("tool", '<tool_response>\n{"m": 4.1}\n</tool_response>'),
        ("gpt", "4.1 m"),
    ),
    "sharegpt": share(("human", "Two soft cheeses?"), ("gpt", "Brie."), ("human", "One hard?"), id="s"),
    "openthoughts": share(
        ("user", "1+1?"),
        ("assistant", "<|begin_of_thought|>\n\nEasy.\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\n2\n\n"),
        ("user", "And 2+2?"),
        system="Think between <|begin_of_thought|> and <|end_of_thought|>.",
    ),
    "conversation": {"conversation_id": "c", "conversation": [user("Hello NAME_1")], "turn": 1, "redacted": True},
    "glaive": glaive(
        ("USER", "Tide?"),
        ("ASSISTANT", '<functioncall> {"name": "tide_at", "arguments": \'{"port": "Brest"}\'}'),
        ("FUNCTION RESPONSE", '{"m": 4.1}'),
        ("ASSISTANT", "It is 4.1 m."),
        system=f"You may use these -\n{json.dumps(TIDE)}\n",
    ),
    "instruction": {"instruction": "Sort the list", "input": "[2, 1]", "output": "[1, 2]"},
    "xlam": xlam([{"name": "ferry", "parameters": {"port": {"type": "str, optional", "default": ""}}}]),
    "query": {"query": "1+1?", "response": "2", "original_question": "What is 1+1?", "type": "MATH_AnsAug"},
    "problem": {"source": "demo", "problem": "Find x when x+2=5.", "solution": "x=3"},
    "prompt": {"prompt": "Why is ice light?", "system": "Be brief."},
}
"""A good row of every form that is read."""
