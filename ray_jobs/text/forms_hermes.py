"""Hermes' form: calls, results and tools stand in tags inside the texts of ShareGPT turns."""

from __future__ import annotations

import re
from typing import Any

from ray_jobs.text.forms_json import Message, RowError, parse_loose, pasted_values
from ray_jobs.text.forms_tools import make_call

TAGS = ("<tools>", "<tool_call>", "<tool_response>")
"""The tags that the form is told by."""

_PASTED = re.compile(r'\{\s*"')


def tagged_tools(messages: list[Message]) -> list[Any]:
    """The tools between `<tools>` and `</tools>` of the system texts: a list, or objects one after the other.

    The pair without anything between is a mention of the tag. Raises RowError where there is a tag and no tool.
    """
    texts = [m["content"] for m in messages if m["role"] == "system" and "<tools>" in (m["content"] or "")]
    bodies = [body for text in texts for body in _blocks(text, "tools")[1] if body.strip()]
    if texts and not bodies:
        raise RowError("<tools> without a tool")
    return [tool for body in bodies for tool in _tools_in(body)]


def _tools_in(body: str) -> list[Any]:
    try:
        value = parse_loose(body, "<tools>")
    except RowError:
        value = [value for _, _, value in pasted_values(body, _PASTED, "<tools>")]
        if not value:
            raise
    return value if isinstance(value, list) else [value]


def without_tag_lessons(messages: list[Message]) -> list[Message]:
    """The turns without the system texts that declare tools in tags or say how calls are to be written."""
    return [m for m in messages if m["role"] != "system" or not any(tag in (m["content"] or "") for tag in TAGS)]


def read_tags(messages: list[Message]) -> list[Message]:
    """The turns with calls as tool calls and each result as a turn of its own. Raises RowError for a broken tag."""
    made: list[Message] = []
    for message in messages:
        if message["role"] == "assistant":
            made.append(_with_calls(message))
        elif message["role"] == "tool":
            made += _results(message)
        else:
            made.append(message)
    return made


def _with_calls(message: Message) -> Message:
    text, bodies = _blocks(message["content"] or "", "tool_call")
    if not bodies:
        return message
    return message | {"content": text.strip() or None, "tool_calls": [call for body in bodies for call in _calls(body)]}


def _calls(body: str) -> list[dict[str, Any]]:
    value = parse_loose(body, "<tool_call>")
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(isinstance(call, dict) for call in calls):
        raise RowError("<tool_call> holds no call")
    return [make_call(call.get("name"), call.get("arguments")) for call in calls]


def _results(message: Message) -> list[Message]:
    """One result a tag; a turn with text outside the tags stays whole."""
    text, bodies = _blocks(message["content"] or "", "tool_response")
    if not bodies or text.strip():
        return [message]
    return [{"role": "tool", "content": body.strip()} for body in bodies]


def _blocks(text: str, tag: str) -> tuple[str, list[str]]:
    """(text outside, what stands inside each pair of tags). Raises RowError for a tag that is not closed."""
    outside, rest = "", text
    bodies: list[str] = []
    while True:
        before, mark, rest = rest.partition(f"<{tag}>")
        outside += before
        if not mark:
            return outside, bodies
        body, end, rest = rest.partition(f"</{tag}>")
        if not end:
            raise RowError(f"<{tag}> without </{tag}>")
        bodies.append(body)
