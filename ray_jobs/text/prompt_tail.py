"""What the prompt's tail says about the thought block, read from ids alone (split rule 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray_jobs.text.markers import Markers

OPENS, CLOSES, NEITHER = "opens", "closes", "neither"


@dataclass(frozen=True, slots=True)
class Tail:
    """State in which the output begins, and the openers that the open block has in the prompt."""

    state: str
    n_open: int


def read_tail(prompt_ids: Sequence[int], markers: Markers) -> Tail:
    """The state after the last assistant header: `opens` (a block is open), `closes` (one was closed), `neither`.

    The last marker decides: control ids in a prompt come only from the template, so a later opener is a real one.
    """
    state, n_open = NEITHER, 0
    tool_begin = markers.section_begin + markers.call_begin
    for token in prompt_ids[tail_start(prompt_ids, markers) :]:
        if token in markers.think_open:
            n_open = n_open + 1 if state == OPENS else 1
            state = OPENS
        elif token in markers.think_close or (state == OPENS and token in tool_begin):
            state, n_open = CLOSES, 0
    return Tail(state, n_open)


def tail_start(prompt_ids: Sequence[int], markers: Markers) -> int:
    """Index of the first id after the last assistant header.

    Without a header in the entry or in the prompt: after the last turn end, else the whole prompt.
    """
    start = _last(prompt_ids, markers.header_start)
    if start is None:
        end = _last(prompt_ids, markers.turn_end)
        return 0 if end is None else end + 1
    for at in range(start + 1, len(prompt_ids)):
        if prompt_ids[at] in markers.header_end:
            return at + 1
    return start + 1


def _last(ids: Sequence[int], wanted: tuple[int, ...]) -> int | None:
    """Index of the last id that is one of `wanted`."""
    for at in range(len(ids) - 1, -1, -1):
        if ids[at] in wanted:
            return at
    return None
