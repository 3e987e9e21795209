"""Cuts an output into reasoning, answer, tool calls and markers by token id, never by text.

`split` is pure and linear in the ids. The numbers in comments are the split rules of docs and tests.
A family with another syntax gets a state machine of its own in `_MACHINES`; `Split` stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray_jobs.core.errors import ConfigError
from ray_jobs.core.schemas import FLAGS
from ray_jobs.text.markers import Markers
from ray_jobs.text.prompt_tail import CLOSES, NEITHER, OPENS, read_tail
from ray_jobs.text.repetition import repeats
from ray_jobs.text.tool_calls import read_calls

_HALF = "\ufffd"


@dataclass(frozen=True, slots=True)
class Segment:
    """Half-open range of output_ids of one kind."""

    kind: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Split:
    """A partition of output_ids, how the thought ended, and what was odd about it."""

    segments: tuple[Segment, ...]
    closed: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Texts:
    """What a reader sees of a split; `flags` are those of the split and those that need text."""

    reasoning: str | None
    content: str
    tool_calls: list[dict[str, Any]] | None
    n_reasoning_tokens: int
    flags: tuple[str, ...]


def split(
    prompt_ids: Sequence[int], output_ids: Sequence[int], markers: Markers, *, finish_reason: str = "stop"
) -> Split:
    """Cut `output_ids` by the rules of the family's syntax; prompt ids only say in which state it begins.

    Raises ConfigError for an entry whose ids are still unknown: every marker would pass for plain text.
    """
    if markers.unresolved:
        rule = f"the ids of {', '.join(markers.unresolved)} are not known without the tokenizer"
        raise ConfigError("target.markers", markers.family, rule, "Take the entry from markers.resolve().")
    return _MACHINES[markers.syntax](prompt_ids, output_ids, markers, finish_reason)


def texts(split: Split, output_ids: Sequence[int], decode: Callable[[list[int]], str], markers: Markers) -> Texts:
    """Texts by kind: each segment decoded alone in one call, byte for byte, then concatenated."""
    parts: dict[str, list[str]] = {"reasoning": [], "content": [], "tool_call": []}
    flags = set(split.flags)
    calls: list[dict[str, Any]] = []
    n_reasoning = 0
    for segment in split.segments:
        if segment.kind not in parts:
            continue
        ids = list(output_ids[segment.start : segment.stop])
        text = decode(ids)
        parts[segment.kind].append(text)
        if text.startswith(_HALF) or text.endswith(_HALF):
            flags.add("cut_character")
        if segment.kind == "reasoning":
            n_reasoning += len(ids)
        elif segment.kind == "tool_call":
            calls += read_calls(ids, markers, decode, first=len(calls))
    if repeats(output_ids[: _turn_length(split.segments)]):
        flags.add("repetition")
    return Texts(
        reasoning=None if split.closed == "absent" else "".join(parts["reasoning"]),
        content="".join(parts["content"]),
        tool_calls=calls if parts["tool_call"] else None,
        n_reasoning_tokens=n_reasoning,
        flags=_ordered(flags),
    )


def _turn_length(segments: Iterable[Segment]) -> int:
    """Output ids before the turn end."""
    return max((s.stop for s in segments if s.kind not in ("stop", "excess")), default=0)


def _ordered(flags: Iterable[str]) -> tuple[str, ...]:
    found = set(flags)
    return tuple(flag for flag in FLAGS if flag in found)


@dataclass(slots=True)
class _Partition:
    """Segments laid end to end; an empty one is left out, neighbours of one kind grow together (rule 11)."""

    segments: list[Segment] = field(default_factory=list)
    end: int = 0

    def up_to(self, stop: int, kind: str) -> None:
        """Give `kind` to every id from the end of the last segment up to `stop`; tool calls stay apart."""
        if stop <= self.end:
            return
        start, last = self.end, self.segments[-1] if self.segments else None
        if last is not None and last.kind == kind and kind != "tool_call":
            start = self.segments.pop().start
        self.segments.append(Segment(kind, start, stop))
        self.end = stop


_UNDECIDED, _INSIDE, _ANSWER, _TOOL = "undecided", "inside", "answer", "tool"
_KIND = {_UNDECIDED: "content", _INSIDE: "reasoning", _ANSWER: "content", _TOOL: "tool_call"}
_START = {NEITHER: _UNDECIDED, OPENS: _INSIDE, CLOSES: _ANSWER}


class _ThinkBlock:
    """One thought block at most, then the answer. A step is taken at marker ids only.

    Ordinary ids between two steps get the kind of the state that they were passed in (`_KIND`).

        undecided --opener--> inside --closer or tool begin--> answer
        undecided --closer (stray)--> answer
        any of them --tool begin--> tool --its end--> back (from inside: to answer)
    """

    def __init__(self, prompt_ids: Sequence[int], markers: Markers) -> None:
        tail = read_tail(prompt_ids, markers)
        self.state = _START[tail.state]
        self.closed = "never" if self.state == _INSIDE else "absent"
        self.flags = {"extra_open"} if tail.n_open > 1 else set[str]()
        self.done = _Partition()
        self.thought_start = 0
        self.has_sections = bool(markers.section_begin)
        self.tool_end = ""
        self.after_tool = _ANSWER

    def step(self, at: int, role: str) -> None:
        """The id at `at` has `role`; turn ends are handled by `finish`."""
        if self.state == _UNDECIDED:
            self._undecided(at, role)
        elif self.state == _INSIDE:
            self._inside(at, role)
        elif self.state == _ANSWER:
            self._answer(at, role)
        else:
            self._tool(at, role)

    def _undecided(self, at: int, role: str) -> None:
        """Rules 3 and 7: the first opener begins the block, a closer before it is stray."""
        if role == "think_open":
            self._mark(at)
            self.state, self.closed, self.thought_start = _INSIDE, "never", at + 1
        elif role == "think_close":
            self._mark(at)
            self.flags.add("stray_close")
            self.state = _ANSWER
        else:
            self._begin_tool(at, role, after=_UNDECIDED)

    def _inside(self, at: int, role: str) -> None:
        """Rules 4 and 5: openers at the very start are markers, later ones are thought; closer or tool ends it."""
        if role == "think_open":
            self.flags.add("extra_open")
            if at == self.thought_start:
                self._mark(at)
                self.thought_start = at + 1
        elif role == "think_close":
            self._mark(at)
            self.state, self.closed = _ANSWER, "explicit"
        elif self._begin_tool(at, role, after=_ANSWER):
            self.closed = "implicit_tool"

    def _answer(self, at: int, role: str) -> None:
        """Rules 6 and 7: openers and closers are content here, but for a closer as the very first id."""
        if role == "think_open":
            self.flags.add("late_open")
        elif role == "think_close" and at == 0:
            self._mark(at)
            self.flags.add("stray_close")
        elif role == "think_close":
            self.flags.add("late_close" if self.closed == "implicit_tool" else "extra_close")
        else:
            self._begin_tool(at, role, after=_ANSWER)

    def _tool(self, at: int, role: str) -> None:
        """Rule 8: whatever lies between begin and its own end is the tool segment."""
        if role == self.tool_end:
            self.done.up_to(at + 1, "tool_call")
            self.state = self.after_tool

    def _begin_tool(self, at: int, role: str, *, after: str) -> bool:
        """Enter a section or a bare call; other tool markers out of place are ordinary ids."""
        if role not in ("section_begin", "call_begin"):
            return False
        if role == "call_begin" and self.has_sections:
            self.flags.add("malformed_tool")
        self.done.up_to(at, _KIND[self.state])
        self.tool_end = "section_end" if role == "section_begin" else "call_end"
        self.state, self.after_tool = _TOOL, after
        return True

    def _mark(self, at: int) -> None:
        self.done.up_to(at, _KIND[self.state])
        self.done.up_to(at + 1, "marker")

    def finish(self, end: int, n_ids: int, finish_reason: str) -> Split:
        """Rules 9 and 10: `end` is the turn end's index, or `n_ids` where there is none."""
        if self.state == _TOOL:
            self.flags.add("malformed_tool")
        self.done.up_to(end, _KIND[self.state])
        self.done.up_to(min(end + 1, n_ids), "stop")
        if n_ids > end + 1:
            self.flags.add("ids_after_stop")
            self.done.up_to(n_ids, "excess")
        if self.closed == "never" and finish_reason == "stop":
            self.flags.add("unclosed_stop")
        if finish_reason == "length":
            self.flags.add("truncated")
        return Split(tuple(self.done.segments), self.closed, _ordered(self.flags))


_STEPS = ("think_open", "think_close", "section_begin", "section_end", "call_begin", "call_end", "turn_end")


def _think_block(prompt_ids: Sequence[int], output_ids: Sequence[int], markers: Markers, finish_reason: str) -> Split:
    """Run the think-block machine over the marker ids up to the first turn end."""
    roles = {token: role for role in _STEPS for token in getattr(markers, role)}
    machine = _ThinkBlock(prompt_ids, markers)
    end = len(output_ids)
    for at, token in enumerate(output_ids):
        if token not in roles:
            continue
        if roles[token] == "turn_end":
            end = at
            break
        machine.step(at, roles[token])
    return machine.finish(end, len(output_ids), finish_reason)


_MACHINES: dict[str, Callable[[Sequence[int], Sequence[int], Markers, str], Split]] = {"think_block": _think_block}
