"""A row as a person reads it: a header, the question, the output segment by segment.

Only our own words stand at the left margin; every text of a prompt or a model is indented below its label and made
visible, so that it can forge no header. Colours repeat what the labels say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ray_jobs.config.schema_inspect import InspectConfig
from ray_jobs.inspection.decoder import Decoder
from ray_jobs.inspection.visible import one_line, shorten, visible

COLOURS = {
    "reasoning": "cyan",
    "content": "green",
    "tool_call": "yellow",
    "marker": "magenta",
    "stop": "red",
    "excess": "bright_black",
}
_HEADER = (
    "row_id",
    "source",
    "closed",
    "flags",
    "finish_reason",
    "n_prompt_tokens",
    "n_output_tokens",
    "n_reasoning_tokens",
    "replica",
    "latency_s",
)
_BODY = ("messages", "segments", "output_ids", "reasoning", "content", "tool_calls")
_TEXT_COLUMNS = ("reasoning", "content")
_ELSEWHERE = {
    "reasoning": "its text is in the first reasoning segment",
    "content": "its text is in the first content segment",
    "tool_call": "see the calls below",
}
"""Where a segment's text is when its ids cannot be decoded."""


def columns(settings: InspectConfig) -> list[str]:
    """The columns that the view needs."""
    prompt = ["prompt_ids"] if settings.prompt or settings.ids else []
    return [*_HEADER, *_BODY, *prompt, *(["tools"] if settings.all_turns else [])]


def line(console: Console, text: str, style: str = "") -> None:
    """One line of our own; fields in it have been made visible before."""
    console.print(Text(text, style), soft_wrap=True)


class RowView:
    """Prints rows with the same settings; loads the vocabulary when a row needs it."""

    def __init__(self, settings: InspectConfig, decoder: Decoder, console: Console) -> None:
        self._set, self._decoder, self._console = settings, decoder, console
        self._noted: set[str] = set()

    def show(self, row: dict[str, Any]) -> None:
        """Print one row."""
        line(self._console, "")
        line(self._console, header(row), "bold")
        if self._set.prompt:
            self._prompt(row["prompt_ids"])
        if self._set.ids:
            self._ids("prompt ids", row["prompt_ids"])
        self._messages(row)
        texts = self._segment_texts(row)
        for segment, text in zip(row["segments"], texts, strict=True):
            self._segment(segment, text, row["output_ids"])
        if row["tool_calls"] is not None:
            self._calls(json.loads(row["tool_calls"]))

    def _block(self, label: str, text: str | None, style: str = "") -> None:
        """A label, and below it a text from outside."""
        line(self._console, f"  [{label}]", f"bold {style}".strip())
        if text is None:
            return
        shown, cut = shorten(text, self._set.max_chars)
        indented = "\n".join(f"    {part}" for part in visible(shown).split("\n"))
        line(self._console, indented, style)
        if cut:
            line(self._console, f"    ... {cut} more character(s), inspect.max_chars={self._set.max_chars}", "dim")

    def _ids(self, label: str, ids: Sequence[int]) -> None:
        self._block(label, " ".join(map(str, ids)), "dim")

    def _note(self, text: str) -> None:
        """Said once, however many rows it holds for."""
        if text not in self._noted:
            self._noted.add(text)
            line(self._console, f"  note: {one_line(text)}", "dim")

    def _prompt(self, ids: Sequence[int]) -> None:
        if not self._decoder.ready():
            self._note_missing()
            self._block(f"prompt, {len(ids)} ids", None)
            return
        pieces = self._decoder.marked(ids)
        self._block(f"prompt, {len(ids)} ids", "".join(f"[[{text}]]" if mark else text for text, mark in pieces))

    def _note_missing(self) -> None:
        self._note(f"{self._decoder.problem}: reasoning, content and tool calls are shown from their columns")

    def _messages(self, row: dict[str, Any]) -> None:
        messages = json.loads(row["messages"])
        if self._set.all_turns:
            if row["tools"] is not None:
                self._block("tools", json.dumps(json.loads(row["tools"]), ensure_ascii=False))
            for message in messages:
                self._message(message)
            return
        of_user = [message for message in messages if message.get("role") == "user"]
        for message in (of_user or messages)[-1:]:
            self._message(message)

    def _message(self, message: dict[str, Any]) -> None:
        rest = {key: value for key, value in message.items() if key not in ("role", "content") and value is not None}
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        if rest:
            text = f"{text}\n{json.dumps(rest, ensure_ascii=False)}"
        self._block(one_line(str(message.get("role")), 40), text)

    def _segment(self, segment: dict[str, Any], text: str | None, output_ids: Sequence[int]) -> None:
        kind, start, stop = segment["kind"], segment["start"], segment["stop"]
        ids = output_ids[start:stop]
        label = f"{kind} {start}:{stop}"
        if text is None and kind in _ELSEWHERE:
            label = f"{label}, {_ELSEWHERE[kind]}"
        elif text is None:
            text = " ".join(f"<id {token}>" for token in ids)
        self._block(label, text, COLOURS.get(kind, ""))
        if self._set.ids:
            self._ids("ids", ids)

    def _segment_texts(self, row: dict[str, Any]) -> list[str | None]:
        """The text of each segment, None where it is not to be had; the stored columns have the last word."""
        stored = column_texts(row)
        if all(text is not None for text in stored):
            return stored
        if not self._decoder.ready():
            self._note_missing()
            return stored
        ids, segments = row["output_ids"], row["segments"]
        decoded = [self._decoder.text(ids[s["start"] : s["stop"]]) for s in segments]
        for kind in _TEXT_COLUMNS:
            joined = "".join(text for s, text in zip(segments, decoded, strict=True) if s["kind"] == kind)
            if joined != (row[kind] or ""):
                self._note(f"this tokenizer does not give back the stored {kind}: texts are shown from their columns")
                return stored
        return list(decoded)

    def _calls(self, calls: list[dict[str, Any]]) -> None:
        for call in calls:
            name = "(no name)" if call["name"] is None else one_line(call["name"], 80)
            parsed = call["parsed"]
            note = "" if parsed is not None else ", arguments are not JSON"
            text = call["arguments"] if parsed is None else json.dumps(parsed, ensure_ascii=False)
            self._block(f"call {call['index']}: {name}{note}", text, COLOURS["tool_call"])


def header(row: dict[str, Any]) -> str:
    """Everything about a row that is no text, in one line."""
    tokens = "{n_prompt_tokens} prompt + {n_output_tokens} output ({n_reasoning_tokens} reasoning) tokens".format(**row)
    parts = (
        f"== {row['row_id']}",
        f"source={row['source']}",
        f"closed={row['closed']}",
        f"flags={','.join(row['flags']) or 'none'}",
        f"finish={row['finish_reason']}",
        tokens,
        str(row["replica"]),
        f"{row['latency_s']:.1f} s",
    )
    return one_line("  ".join(parts))


def column_texts(row: dict[str, Any]) -> list[str | None]:
    """What the text columns alone say of each segment: a column belongs to its kind's first segment."""
    kinds = [segment["kind"] for segment in row["segments"]]
    texts: list[str | None] = [None] * len(kinds)
    for kind in _TEXT_COLUMNS:
        if kind in kinds:
            texts[kinds.index(kind)] = row[kind]
    return texts
