r"""Glaive's form: the conversation is one string, the tools are pasted into the system text.

system  SYSTEM: You may use these functions -\n{"name": ...}\n\n{"name": ...}
chat    USER: ...\n\n\nASSISTANT: <functioncall> {"name": "f", "arguments": '{"a": 1}'} <|endoftext|>\n\n\n...
"""

from __future__ import annotations

import re
from typing import Any

from ray_jobs.text.forms_json import Message, Row, RowError, parse_loose, pasted_values
from ray_jobs.text.forms_tools import make_call

_LABELS = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
_LABEL = re.compile(rf"\s*({'|'.join(_LABELS)}):")
_PASTED = re.compile(r'\{\s*"')
_CALL = re.compile(
    r"""\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*(?:,\s*"arguments"\s*:\s*(?:'(.*)'|([^'\s].*)))?\s*\}\s*""",
    re.DOTALL,
)
_CALL_MARK = "<functioncall>"
_END = "<|endoftext|>"


def read_chat(row: Row) -> list[Message]:
    """The turns of the string; a label begins one only after a blank line. Raises RowError for text before the first.

    The literal end marker is left out wherever it stands. The system text goes with the tools that it declares.
    """
    messages: list[Message] = []
    blank = True
    for line in row["chat"].replace(_END, "").split("\n"):
        label = _LABEL.match(line) if blank else None
        blank = not line.strip()
        if label is not None:
            messages.append({"role": _LABELS[label[1]], "content": line[label.end() :]})
        elif messages:
            messages[-1]["content"] += f"\n{line}"
        elif not blank:
            raise RowError("chat has text before its first turn")
    for message in messages:
        message["content"] = message["content"].strip()
    return [*_system(row), *messages]


def _system(row: Row) -> list[Message]:
    text = _system_text(row)
    return [{"role": "system", "content": text}] if text and not pasted_tools(row) else []


def _system_text(row: Row) -> str:
    text = row.get("system")
    return text.replace(_END, "").strip().removeprefix("SYSTEM:").strip() if isinstance(text, str) else ""


def pasted_tools(row: Row) -> list[Any]:
    """The JSON objects in the system text, which need not be a list. Raises RowError for a broken one."""
    return [value for _, _, value in pasted_values(_system_text(row), _PASTED, "a tool in system")]


def read_function_calls(messages: list[Message]) -> list[Message]:
    """Assistant turns with what follows `<functioncall>` as tool calls. Raises RowError where it cannot be read."""
    return [_with_calls(m) if m["role"] == "assistant" else m for m in messages]


def _with_calls(message: Message) -> Message:
    text, *bodies = message["content"].split(_CALL_MARK)
    if not bodies:
        return message
    return {"role": "assistant", "content": text.strip() or None, "tool_calls": [_call(body) for body in bodies]}


def _call(body: str) -> dict[str, Any]:
    """A call whose arguments stand in single quotes, so that the whole is no JSON; apostrophes in it may be escaped."""
    match = _CALL.fullmatch(body)
    if match is None:
        call = parse_loose(body, _CALL_MARK)
        if not isinstance(call, dict):
            raise RowError(f"{_CALL_MARK} holds no call")
        return make_call(call.get("name"), call.get("arguments"))
    name, quoted, plain = match.groups()
    return make_call(name, plain if quoted is None else quoted.replace("\\'", "'"))
