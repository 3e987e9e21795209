"""Tools as function objects and tool calls in OpenAI's form, whatever a row writes for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice, takewhile, zip_longest
from typing import Any

from ray_jobs.text.forms_json import Message, RowError, check_storable, parse_json, parse_loose
from ray_jobs.text.forms_schema import read_parameters


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """The tools as function objects with valid JSON schema; null, empty text and an empty list mean none.

    Raises RowError where a tool has no name, or a part of its schema no safe meaning.
    """
    if isinstance(value, str):
        value = parse_json(value, "tools") if value.strip() else None
    if isinstance(value, dict):
        value = [value]
    if not value:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise RowError("tools are not a list of objects")
    return [_tool(tool.get("function", tool)) for tool in value]


def _tool(function: Any) -> dict[str, Any]:
    """A tool, bare or wrapped, in the form that chat templates read."""
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"].strip():
        raise RowError("a tool has no name")
    made = {key: item for key, item in function.items() if item is not None}
    if not isinstance(made.get("description", ""), str):
        raise RowError(f"tool {made['name']}: description is not a text")
    if "parameters" in made:
        made["parameters"] = read_parameters(made["parameters"], made["name"])
    return {"type": "function", "function": made}


def tool_names(tools: Sequence[dict[str, Any]] | None) -> list[str]:
    """The functions' names."""
    return [tool["function"]["name"] for tool in tools or ()]


def read_calls(value: Any) -> list[dict[str, Any]]:
    """A turn's `tool_calls` in OpenAI's form; ids that are missing stay missing. Raises RowError."""
    if isinstance(value, str):
        value = parse_json(value, "tool_calls")
    if not isinstance(value, list) or not all(isinstance(call, dict) for call in value):
        raise RowError("tool_calls are not a list of objects")
    calls = []
    for call in value:
        function = call.get("function", call)
        if not isinstance(function, dict):
            raise RowError("a tool call has no name")
        made = make_call(function.get("name"), function.get("arguments"))
        calls.append(({} if call.get("id") in (None, "") else {"id": str(call["id"])}) | made)
    return calls


def make_call(name: Any, arguments: Any) -> dict[str, Any]:
    """One call without an id. Raises RowError where it has no name, or arguments that are no object."""
    if not isinstance(name, str) or not name.strip():
        raise RowError("a tool call has no name")
    return {"type": "function", "function": {"name": name, "arguments": _arguments(arguments, name)}}


def _arguments(value: Any, name: str) -> str:
    """Arguments as the text of a JSON object: a good text unchanged, a Python literal and an object written anew."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return "{}"
    text = value if isinstance(value, str) else None
    for _ in range(2):  # Some sets encode the text once more.
        if isinstance(value, str):
            value = parse_loose(value, f"arguments of {name}")
    if not isinstance(value, dict):
        raise RowError(f"arguments of {name} are not an object")
    check_storable(value)
    if text is not None and _is_object(text):
        return text
    return json.dumps(value, ensure_ascii=False)


def _is_object(text: str) -> bool:
    """Whether the text as it stands is a JSON object, so that it may stay as its author wrote it."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def link_results(messages: list[Message]) -> None:
    """Give each call an id and each tool result the id of its call, in place, where the row has none.

    Results without an id answer the calls in order. A call without one takes its result's, or else becomes
    `functions.NAME:N`, counted through the conversation.
    Raises RowError for a result that follows no assistant turn, names no call before it, or has no call left.
    """
    count = 0
    caller: Message | None = None
    waiting: list[str] = []
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            _link(message, caller, waiting)
            continue
        caller = message if message["role"] == "assistant" else None
        calls = message.get("tool_calls", [])
        results = takewhile(lambda later: later["role"] == "tool", messages[at + 1 :])
        for call, result in zip_longest(calls, islice(results, len(calls)), fillvalue={}):
            own = result.get("tool_call_id") or f"functions.{call['function']['name']}:{count}"
            call.setdefault("id", own)
            count += 1
        waiting = [call["id"] for call in calls]


def _link(result: Message, caller: Message | None, waiting: list[str]) -> None:
    if caller is None:
        raise RowError("orphan tool result: no assistant turn before it")
    ids = [call["id"] for call in caller.get("tool_calls", ())]
    if not ids:
        return  # A call that was written as text, in a set whose form for it is not known.
    own = result.get("tool_call_id")
    if own is None and not waiting:
        raise RowError("orphan tool result: more results than calls")
    if own is not None and own not in ids:
        raise RowError(f"orphan tool result: no call {own} before it")
    result["tool_call_id"] = waiting[0] if own is None else own
    if result["tool_call_id"] in waiting:
        waiting.remove(result["tool_call_id"])
