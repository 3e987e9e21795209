"""Rows of the known prompt forms as role/content messages, mended where that is safe and refused where not.

A form is told by the fields of the row, the first that fits: fields that hold a whole conversation come before single
ones. ToolACE and Hermes have the fields of ShareGPT, so a row is theirs only if it shows their way to write tools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray_jobs.text import forms_glaive, forms_hermes, forms_toolace
from ray_jobs.text.forms_dirt import clean_turns
from ray_jobs.text.forms_json import Message, Row, RowError, check_storable
from ray_jobs.text.forms_tools import link_results, read_calls, read_tools
from ray_jobs.text.forms_turns import asks_for_markers, cut, read_turns, split_thought, system_of

__all__ = ["FORMS", "RowError", "read_row"]

Tools = list[dict[str, Any]] | None
Convert = Callable[[list[Message], Tools], list[Message]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a form finds in a row: turns as they stand, tools as they stand, and how to read the calls in the turns."""

    messages: list[Message]
    tools: Any = None
    convert: Convert = lambda messages, _: messages


@dataclass(frozen=True, slots=True)
class Form:
    """`has`: the row has its fields. `shows`: it also shows what tells the form from others with the same fields."""

    has: Callable[[Row], bool]
    read: Callable[[Row], Reading]
    shows: Callable[[Row], bool] = lambda _: True


def read_row(row: Row, form: str = "auto") -> tuple[list[Message], Tools]:
    """(messages, tools) of a row; messages and tools are in OpenAI's form, each call's arguments a JSON text.

    Raises RowError with the reason where it gives no prompt, and nothing else, whatever the row holds.
    """
    try:
        messages, tools = _finish(row, _find(row, form).read(row))
        check_storable([messages, tools])
    except RecursionError as error:
        raise RowError("nested too deeply") from error
    return messages, tools


def _find(row: Row, form: str) -> Form:
    for key in ("image", "images", "audio", "video"):
        if row.get(key):
            raise RowError(f"has {key}: only text can be asked")
    for name, entry in _FORMS.items():
        if entry.has(row) and (name == form or (form == "auto" and entry.shows(row))):
            return entry
    known = "known" if form == "auto" else form
    raise RowError(f"no {known} form in the fields {', '.join(sorted(map(str, row))) or '(none)'}")


def _finish(row: Row, reading: Reading) -> tuple[list[Message], Tools]:
    """The normal form. The row's own last answer is cut before anything in it is read: the target writes its own."""
    messages = cut(clean_turns(row, reading.messages))
    tools = read_tools(reading.tools)
    messages = [split_thought(m) for m in reading.convert(messages, tools) if not asks_for_markers(m)]
    messages = [m | {"tool_calls": read_calls(m["tool_calls"])} if "tool_calls" in m else m for m in messages]
    link_results(messages)
    return messages, tools


def _chat(field: str) -> Callable[[Row], Reading]:
    return lambda row: Reading(read_turns(row, field), row.get("tools"))


def _read_toolace(row: Row) -> Reading:
    messages = read_turns(row, "conversations")
    tools = read_tools(row.get("tools")) or forms_toolace.listed_tools(messages)
    return Reading(forms_toolace.without_tool_lists(messages), tools, forms_toolace.read_brackets)


def _lists_tools(row: Row) -> bool:
    messages = read_turns(row, "conversations")
    return any(m["role"] == "system" and forms_toolace.lists_tools(m["content"] or "") for m in messages)


def _read_hermes(row: Row) -> Reading:
    messages = read_turns(row, "conversations")
    tools = read_tools(row.get("tools")) or forms_hermes.tagged_tools(messages)
    return Reading(forms_hermes.without_tag_lessons(messages), tools, lambda found, _: forms_hermes.read_tags(found))


def _has_tags(row: Row) -> bool:
    """A tag alone may be quoted: there must be tools, or the turn of one, too."""
    messages = read_turns(row, "conversations")
    declared = any(m["role"] == "system" and "<tools>" in (m["content"] or "") for m in messages)
    tagged = any(tag in (m["content"] or "") for m in messages for tag in forms_hermes.TAGS)
    return declared or (tagged and (bool(row.get("tools")) or any(m["role"] == "tool" for m in messages)))


def _read_glaive(row: Row) -> Reading:
    tools = forms_glaive.pasted_tools(row)
    return Reading(forms_glaive.read_chat(row), tools, lambda found, _: forms_glaive.read_function_calls(found))


def _read_instruction(row: Row) -> Reading:
    """Instruction and input, a blank line between them; an empty input adds nothing."""
    given = row.get("input") or ""
    if not isinstance(given, str):
        raise RowError("input is not text")
    extra = given if given.strip().lower() not in ("", "<noinput>", "noinput", "no input") else ""
    return _asked(row, row["instruction"] + (f"\n\n{extra}" if extra else ""))


def _field(name: str) -> Form:
    return Form(lambda row: isinstance(row.get(name), str), lambda row: _asked(row, row[name]))


def _asked(row: Row, text: str) -> Reading:
    """One question, after the row's system text."""
    return Reading([*system_of(row), {"role": "user", "content": text}], row.get("tools"))


def _has_conversations(row: Row) -> bool:
    return bool(row.get("conversations"))


_FORMS: dict[str, Form] = {
    "messages": Form(lambda row: bool(row.get("messages")), _chat("messages")),
    "toolace": Form(_has_conversations, _read_toolace, _lists_tools),
    "hermes": Form(_has_conversations, _read_hermes, _has_tags),
    "sharegpt": Form(_has_conversations, _chat("conversations")),
    "conversation": Form(lambda row: isinstance(row.get("conversation"), str | list), _chat("conversation")),
    "glaive": Form(lambda row: isinstance(row.get("chat"), str), _read_glaive),
    "instruction": Form(lambda row: isinstance(row.get("instruction"), str), _read_instruction),
    "query": _field("query"),
    "problem": _field("problem"),
    "prompt": _field("prompt"),
}

FORMS = tuple(_FORMS)
"""Form names, in the order in which a row is tried."""
