"""Rows of the known prompt forms as role/content messages, mended where that is safe and refused where not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
Message = dict[str, Any]


class RowError(ValueError):
    """This row gives no prompt; the text is the reason."""


FORMS = ("messages", "sharegpt", "conversation", "instruction", "prompt")
"""Form names, in the order in which a row is tried: a conversation wins over the single fields beside it."""

_ROLES = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
}
_KEPT = ("tool_calls", "tool_call_id", "name")


def read_row(row: Row, form: str = "auto") -> tuple[list[Message], list[dict[str, Any]] | None]:
    """(messages, tools) of a row. Raises RowError with the reason where it gives no prompt."""
    for key in ("image", "images", "audio", "video"):
        if row.get(key):
            raise RowError(f"has {key}: only text can be asked")
    found = next((name for name in FORMS if form in ("auto", name) and _READ[name][0](row)), None)
    if found is None:
        raise RowError(
            f"no {'known' if form == 'auto' else form} form in the fields {', '.join(sorted(row)) or '(none)'}"
        )
    messages = _READ[found][1](row)
    return mend(messages), read_tools(row.get("tools"))


def mend(messages: list[Message]) -> list[Message]:
    """A conversation that ends where the target is to go on.

    Dropped: empty turns (but not empty tool results), assistant turns before the first user turn, and those at the
    end. Kept as they are: two turns of one role in a row, which templates render. Raises RowError for a tool result
    that answers nothing, and where no user turn is left.
    """
    made = [m for m in messages if m["role"] == "tool" or m.get("tool_calls") or (m["content"] or "").strip()]
    first = next((at for at, m in enumerate(made) if m["role"] == "user"), None)
    if first is not None:
        made = [m for at, m in enumerate(made) if at > first or m["role"] != "assistant"]
    _check_tool_results(made)
    while made and made[-1]["role"] == "assistant":
        made.pop()
    if not any(m["role"] == "user" for m in made):
        raise RowError("no user turn")
    return made


def _check_tool_results(messages: list[Message]) -> None:
    """Each run of tool results must follow an assistant turn, and name one of its calls where both have ids."""
    caller: Message | None = None
    for message in messages:
        if message["role"] != "tool":
            caller = message if message["role"] == "assistant" else None
            continue
        if caller is None:
            raise RowError("orphan tool result: no assistant turn before it")
        ids = {call.get("id") for call in caller.get("tool_calls", ()) if call.get("id")}
        if ids and message.get("tool_call_id") and message["tool_call_id"] not in ids:
            raise RowError(f"orphan tool result: no call {message['tool_call_id']} before it")


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """The tools as function objects; null, empty text and an empty list mean none. Raises RowError."""
    if isinstance(value, str):
        value = _json(value, "tools") if value.strip() else None
    if isinstance(value, dict):
        value = [value]
    if not value:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise RowError("tools are not a list of objects")
    return [tool if "function" in tool else _wrapped(tool) for tool in value]


def _wrapped(tool: dict[str, Any]) -> dict[str, Any]:
    """A bare tool in the form that chat templates read."""
    if not isinstance(tool.get("name"), str):
        raise RowError("a tool has no name")
    return {"type": "function", "function": tool}


def _from_messages(row: Row) -> list[Message]:
    return _turns(row, "messages", "role", "content")


def _from_conversation(row: Row) -> list[Message]:
    return _turns(row, "conversation", "role", "content")


def _from_sharegpt(row: Row) -> list[Message]:
    turns = row["conversations"]
    own = isinstance(turns, list) and bool(turns) and isinstance(turns[0], dict) and "role" in turns[0]
    return _turns(row, "conversations", *(("role", "content") if own else ("from", "value")))


def _from_instruction(row: Row) -> list[Message]:
    """Instruction and input, a blank line between them; an empty input adds nothing."""
    given = row.get("input")
    extra = given if isinstance(given, str) and given.strip() not in ("", "<noinput>") else ""
    text = row["instruction"] + (f"\n\n{extra}" if extra else "")
    return [*_system(row), {"role": "user", "content": text}]


def _from_prompt(row: Row) -> list[Message]:
    return [*_system(row), {"role": "user", "content": row["prompt"]}]


def _turns(row: Row, field: str, role_key: str, text_key: str) -> list[Message]:
    """The turns of a field (a list, or its JSON text), after the row's own system text where they have none."""
    turns = _json(row[field], field) if isinstance(row[field], str) else row[field]
    if not isinstance(turns, list):
        raise RowError(f"{field} is not a list")
    messages = [_message(turn, role_key, text_key) for turn in turns]
    if any(m["role"] == "system" for m in messages):
        return messages
    return [*_system(row), *messages]


def _system(row: Row) -> list[Message]:
    for key in ("system", "system_prompt"):
        if isinstance(row.get(key), str) and row[key].strip():
            return [{"role": "system", "content": row[key]}]
    return []


def _message(turn: Any, role_key: str, text_key: str) -> Message:
    """One turn with known fields only, so that ids do not hang on bookkeeping beside the text."""
    if not isinstance(turn, dict):
        raise RowError("a turn is not an object")
    name = turn.get(role_key)
    role = _ROLES.get(name.strip().lower()) if isinstance(name, str) else None
    if role is None:
        raise RowError(f"unknown role {name!r}")
    message: Message = {"role": role, "content": _content(turn.get(text_key))}
    thought = turn.get("reasoning_content") or turn.get("reasoning")
    if role == "assistant" and isinstance(thought, str) and thought:
        message["reasoning_content"] = thought
    message.update({key: turn[key] for key in _KEPT if turn.get(key)})
    calls = message.get("tool_calls", [])
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise RowError("tool_calls are not a list of objects")
    return message


def _content(content: Any) -> str | None:
    """A turn's text: a string, null, or text parts joined; never only the text of something that had more."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError("content is not text")
    return "".join(_part(part) for part in content)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", None) and isinstance(part, dict) and isinstance(part.get("text"), str):
        return part["text"]
    raise RowError(f"content has a part of type {kind!r}: only text can be asked")


def _json(text: str, field: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError(f"{field} is not JSON: {error}") from error


_READ: dict[str, tuple[Callable[[Row], bool], Callable[[Row], list[Message]]]] = {
    "messages": (lambda row: bool(row.get("messages")), _from_messages),
    "sharegpt": (lambda row: bool(row.get("conversations")), _from_sharegpt),
    "conversation": (lambda row: isinstance(row.get("conversation"), str | list), _from_conversation),
    "instruction": (lambda row: isinstance(row.get("instruction"), str), _from_instruction),
    "prompt": (lambda row: isinstance(row.get("prompt"), str), _from_prompt),
}
"""Form name to (does the row have it, its turns)."""
