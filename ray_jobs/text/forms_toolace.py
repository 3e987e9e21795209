"""ToolACE's form: tools as a list in the system's prose, calls as `[Name With Space(key="value"), ...]`."""

from __future__ import annotations

import json
import re
from typing import Any

from ray_jobs.text.forms_json import Message, RowError, parse_json, parse_loose, pasted_values
from ray_jobs.text.forms_tools import make_call, tool_names

_LIST = re.compile(r'\[\s*\{\s*"')

_ANY_NAME = re.compile(r"\s*([^\[\](),=\"']*[^\[\](),=\"'\s])\s*\(")
_SCAN = re.compile(r"""["'()\[\]{},\\]""")


def lists_tools(text: str) -> bool:
    """Whether a system text lists tools: any list of objects may be an example, but not with parameters."""
    return '"parameters"' in text and "<tools>" not in text and _LIST.search(text) is not None


def listed_tools(messages: list[Message]) -> list[Any]:
    """The tools of the lists in the system texts. Raises RowError for a list that is broken."""
    return [tool for m in messages if m["role"] == "system" for tool in _tools_in(m["content"] or "")]


def _tools_in(text: str) -> list[Any]:
    found = pasted_values(text, _LIST, "the list of tools in system") if lists_tools(text) else ()
    return [tool for _, _, tools in found for tool in tools]


def without_tool_lists(messages: list[Message]) -> list[Message]:
    """The turns without the system texts that list tools: they say how calls are to be written, too."""
    return [m for m in messages if m["role"] != "system" or not lists_tools(m["content"] or "")]


def read_brackets(messages: list[Message], tools: list[dict[str, Any]] | None) -> list[Message]:
    """The turns with bracket calls as tool calls, and one result for each call where a list holds as many.

    Raises RowError where the call of a listed tool cannot be read; any other text in brackets is an answer.
    """
    names = sorted(tool_names(tools), key=len, reverse=True)
    made: list[Message] = []
    n_calls = 0
    for message in messages:
        if message["role"] == "tool":
            made += _results(message, n_calls)
            continue
        if message["role"] == "assistant":
            message = _with_calls(message, names)
        n_calls = len(message.get("tool_calls", ()))
        made.append(message)
    return made


def _results(message: Message, n_calls: int) -> list[Message]:
    """A result that is a list as long as the calls before it, taken apart; else as it is."""
    try:
        found = parse_json(message["content"] or "", "result")
    except RowError:
        return [message]
    if n_calls < 2 or not isinstance(found, list) or len(found) != n_calls:
        return [message]
    return [{"role": "tool", "content": json.dumps(item, ensure_ascii=False)} for item in found]


def _with_calls(message: Message, names: list[str]) -> Message:
    text = message["content"] or ""
    listed = "|".join(map(re.escape, names))
    begin = re.search(rf"\[\s*(?:{listed})\s*\(", text) if names else None
    if begin is not None:
        before, body = text[: begin.start()], text[begin.start() :].strip()
    else:
        before, body = "", text.strip()
    try:
        calls = _calls(body, names)
    except RowError:
        if begin is not None:
            raise
        return message
    return message | {"content": before.strip() or None, "tool_calls": calls}


def _calls(text: str, names: list[str]) -> list[dict[str, Any]]:
    """All calls of a text that is nothing but a list of them. Raises RowError."""
    if not text.startswith("["):
        raise RowError("no list of calls")
    calls, at = [], 1
    while True:
        name, at = _name(text, at, names)
        pieces, at = _pieces(text, at)
        calls.append(make_call(name, dict(_argument(piece, name) for piece in pieces)))
        mark = re.compile(r"\s*([,\]])").match(text, at)
        if mark is None:
            raise RowError(f"the call of {name} is followed by something else")
        at = mark.end()
        if mark[1] == "]":
            break
    if text[at:].strip():
        raise RowError("text after the calls")
    return calls


def _name(text: str, at: int, names: list[str]) -> tuple[str, int]:
    """(name, place after its opening bracket): a listed name, which may hold brackets itself, or any other."""
    listed = [re.compile(rf"\s*({re.escape(name)})\s*\(") for name in names]
    match = next((found for pattern in (*listed, _ANY_NAME) if (found := pattern.match(text, at))), None)
    if match is None:
        raise RowError("a call has no name")
    return match[1], match.end()


def _pieces(text: str, at: int) -> tuple[list[str], int]:
    """(the arguments' texts, place after the closing bracket): cut at commas outside quotes and brackets."""
    pieces, start, depth, quote = [], at, 0, ""
    while mark := _SCAN.search(text, at):
        at = mark.end()
        char = mark[0]
        if char == "\\":
            at += 1
        elif quote or char in "\"'":
            quote = "" if char == quote else quote or char
        elif char in "([{":
            depth += 1
        elif depth and char in ")]}":
            depth -= 1
        elif depth == 0 and char in ",)":
            pieces.append(text[start : mark.start()])
            start = at
            if char == ")":
                return [piece for piece in pieces if piece.strip()], at
    raise RowError("a call does not end")


def _argument(piece: str, name: str) -> tuple[str, Any]:
    key, equals, value = piece.partition("=")
    if not equals or not key.strip():
        raise RowError(f"the call of {name} has an argument without a name")
    return key.strip(), parse_loose(value, f"argument {key.strip()} of {name}")
