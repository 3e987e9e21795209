"""Turns as role/content messages: known roles, text only, and a conversation that ends where the target goes on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ray_jobs.text.forms_json import Message, Row, RowError, parse_json

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
_THOUGHT = ("<|begin_of_thought|>", "<|end_of_thought|>")
_SOLUTION = ("<|begin_of_solution|>", "<|end_of_solution|>")


def read_turns(row: Row, field: str) -> list[Message]:
    """The turns of a field (a list, or its JSON text), after the row's own system text where they have none.

    Raises RowError for an unknown role and for anything that is not text.
    """
    turns = parse_json(row[field], field) if isinstance(row[field], str) else row[field]
    if not isinstance(turns, list):
        raise RowError(f"{field} is not a list")
    messages = [_message(turn) for turn in turns]
    return messages if any(m["role"] == "system" for m in messages) else [*system_of(row), *messages]


def system_of(row: Row) -> list[Message]:
    """The system text that stands beside the conversation, as a message."""
    for key in ("system", "system_prompt"):
        if isinstance(row.get(key), str) and row[key].strip():
            return [{"role": "system", "content": row[key]}]
    return []


def cut(messages: Iterable[Message]) -> list[Message]:
    """A conversation that ends where the target is to go on.

    Dropped: empty turns (but not empty tool results), assistant turns before the first user turn, and those at the
    end: the target writes its own answer, so that whatever stands in the last one does no harm. Kept as they are:
    two turns of one role in a row, which templates render. Raises RowError where no user turn is left.
    """
    made = [m for m in messages if m["role"] == "tool" or m.get("tool_calls") or (m["content"] or "").strip()]
    first = next((at for at, m in enumerate(made) if m["role"] == "user"), None)
    if first is None:
        _refuse_orphans(made)
        raise RowError("no user turn")
    made = [m for at, m in enumerate(made) if at > first or m["role"] != "assistant"]
    while made[-1]["role"] == "assistant":
        made.pop()
    return made


def _refuse_orphans(messages: list[Message]) -> None:
    if any(m["role"] == "tool" for m in messages):
        raise RowError("orphan tool result: no user turn before it")


def _message(turn: Any) -> Message:
    """One turn with known fields only, so that ids do not hang on bookkeeping beside the text."""
    if not isinstance(turn, dict):
        raise RowError("a turn is not an object")
    name = _first(turn, "role", "from")
    role = _ROLES.get(name.strip().lower()) if isinstance(name, str) else None
    if role is None:
        raise RowError(f"unknown role {name!r}")
    message: Message = {"role": role, "content": read_content(_first(turn, "content", "value"))}
    thought = turn.get("reasoning_content") or turn.get("reasoning")
    if role == "assistant" and isinstance(thought, str) and thought:
        message["reasoning_content"] = thought
    message.update({key: str(turn[key]) for key in ("tool_call_id", "name") if turn.get(key) not in (None, "")})
    calls = turn.get("tool_calls") or ([turn["function_call"]] if turn.get("function_call") else [])
    none = not calls or (isinstance(calls, str) and calls.strip() in ("", "[]", "null"))
    return message if none or role != "assistant" else message | {"tool_calls": calls}


def _first(turn: dict[str, Any], *keys: str) -> Any:
    """The first of the fields that is there and not null: sets, and turns of one set, name them differently."""
    return next((turn[key] for key in keys if turn.get(key) is not None), None)


def read_content(content: Any) -> str | None:
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


def split_thought(message: Message) -> Message:
    """An assistant turn whose thought stands in text markers, with its thought apart; others as they are.

    Raises RowError for a thought that does not end.
    """
    text = message["content"] or ""
    if message["role"] != "assistant" or not text.lstrip().startswith(_THOUGHT[0]):
        return message
    thought, end, answer = text.lstrip().removeprefix(_THOUGHT[0]).partition(_THOUGHT[1])
    if not end:
        raise RowError(f"a thought without {_THOUGHT[1]}")
    answer = answer.strip().removeprefix(_SOLUTION[0]).removesuffix(_SOLUTION[1]).strip()
    return message | {"content": answer, "reasoning_content": thought.strip()}


def asks_for_markers(message: Message) -> bool:
    """Whether it is a system text that asks for thoughts in text markers: the target thinks in its own."""
    return message["role"] == "system" and _THOUGHT[0] in (message["content"] or "")
