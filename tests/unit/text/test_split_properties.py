"""What holds for every output: random ids, thick with markers."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from ray_jobs.core.schemas import CLOSED, SEGMENT_KINDS
from ray_jobs.text.markers import FAMILIES, Markers
from ray_jobs.text.segments import FLAGS, split

KNOWN = sorted(name for name, entry in FAMILIES.items() if not entry.unresolved and entry.think_open)


def marker_ids(markers: Markers) -> list[int]:
    """All ids that the split knows."""
    roles = ("think_open", "think_close", "turn_end", "header_start", "header_end")
    tools = ("section_begin", "section_end", "call_begin", "call_argument", "call_end")
    return [token for role in roles + tools for token in getattr(markers, role)]


def draw(rng: random.Random, special: list[int], n: int, share: float) -> list[int]:
    return [rng.choice(special) if rng.random() < share else rng.randrange(1000) for _ in range(n)]


@pytest.mark.parametrize("family", KNOWN)
def test_segments_partition_the_output(family):
    markers = FAMILIES[family]
    special = marker_ids(markers)
    rng = random.Random(f"split {family}")
    for _ in range(1500):
        prompt = draw(rng, special, rng.randrange(8), 0.7)
        # Turn ends are thinned out, else nearly every output ends at once.
        inner = [i for i in special if i not in markers.turn_end or rng.random() < 0.2]
        output = draw(rng, inner, rng.randrange(24), rng.choice((0.1, 0.5, 0.9)))
        made = split(prompt, output, markers, finish_reason=rng.choice(("stop", "length")))
        joined = [i for s in made.segments for i in output[s.start : s.stop]]
        assert joined == output
        assert all(s.stop > s.start and s.kind in SEGMENT_KINDS for s in made.segments)
        assert [s.start for s in made.segments[1:]] == [s.stop for s in made.segments[:-1]]
        pairs = zip(made.segments, made.segments[1:], strict=False)
        assert all(a.kind != b.kind or a.kind == "tool_call" for a, b in pairs)
        assert made.closed in CLOSED
        assert list(made.flags) == [flag for flag in FLAGS if flag in made.flags]
        check_meaning(output, made, markers)


def check_meaning(output, made, markers):
    """The turn ends at its first end id; reasoning needs a block; never means that no answer was guessed."""
    kinds = [s.kind for s in made.segments]
    ends = [at for at, token in enumerate(output) if token in markers.turn_end]
    stops = [(s.start, s.stop) for s in made.segments if s.kind == "stop"]
    assert stops == ([(ends[0], ends[0] + 1)] if ends else [])
    assert ("excess" in kinds) == ("ids_after_stop" in made.flags)
    if made.closed == "absent":
        assert "reasoning" not in kinds
    if made.closed == "never":
        last = [k for k in kinds if k in ("reasoning", "content", "tool_call")]
        assert last.count("reasoning") <= 1
        assert "content" not in last[last.index("reasoning") :] if "reasoning" in last else True
    if made.closed in ("explicit", "implicit_tool"):
        assert kinds.count("reasoning") <= 1


def test_a_split_does_not_depend_on_its_container():
    from array import array

    import numpy as np

    markers = FAMILIES["kimi_k25"]
    prompt, output = [163588, 1, 163601, 163606], [5, 163607, 6, 163586]
    expected = split(prompt, output, markers)
    kinds: tuple[Any, ...] = (tuple, np.array, lambda x: array("i", x))
    for kind in kinds:
        assert split(kind(prompt), kind(output), markers) == expected


@pytest.mark.parametrize("kind", ["ordinary", "closers", "calls", "openers"])
def test_time_is_linear(kind):
    markers = FAMILIES["kimi_k25"]
    unit = {"ordinary": [5], "closers": [163607, 5], "calls": [163597, 5, 163599], "openers": [163606, 5]}[kind]
    prompt = [163588, 1, 163601, 163606]

    def seconds(n: int) -> float:
        output = (unit * n)[:n]
        begun = time.process_time()
        split(prompt, output, markers)
        return time.process_time() - begun

    def grows_eightfold() -> bool:
        return min(seconds(160_000) for _ in range(2)) < 24 * min(seconds(20_000) for _ in range(2))

    # Eight times the ids: a quadratic split would take sixty-four times as long, at every try.
    assert any(grows_eightfold() for _ in range(4))
