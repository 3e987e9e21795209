"""Masks of positions, from segments."""

from __future__ import annotations

import pytest

from ray_jobs.text.loss_mask import masks
from ray_jobs.text.segments import Segment

SEGMENTS = [
    Segment("reasoning", 0, 2),
    Segment("marker", 2, 3),
    Segment("content", 3, 5),
    Segment("tool_call", 5, 6),
    Segment("stop", 6, 7),
    Segment("excess", 7, 9),
]


def bits(mask) -> str:
    return "".join("1" if bit else "0" for bit in mask)


@pytest.mark.parametrize(
    ("kinds", "wanted"),
    [
        ((), "000001000100"),
        (("reasoning",), "000111000100"),
        (["content", "tool_call"], "000001111100"),
        ({"reasoning", "content", "tool_call", "excess"}, "000111111100"),
    ],
)
def test_masks(kinds, wanted):
    sampled, made = masks(3, 9, SEGMENTS, kinds)
    assert bits(sampled) == "000111111100"
    assert bits(made) == wanted
    assert sampled.dtype == made.dtype == bool


def test_rows_of_the_samples_column_serve():
    rows = [{"kind": s.kind, "start": s.start, "stop": s.stop} for s in SEGMENTS]
    assert [bits(m) for m in masks(1, 9, rows, ("content",))] == [bits(m) for m in masks(1, 9, SEGMENTS, ("content",))]


def test_nothing_sampled():
    assert [bits(m) for m in masks(2, 0, [], ("content",))] == ["00", "00"]


@pytest.mark.parametrize(
    ("n_output", "segments", "kinds", "message"),
    [
        (9, SEGMENTS, ("thought",), "unknown segment kinds: thought"),
        (10, SEGMENTS, ("content",), "cover 9 of 10"),
        (9, SEGMENTS[1:], ("content",), "does not follow"),
        (9, SEGMENTS[:1] + SEGMENTS[:1], ("content",), "does not follow"),
    ],
)
def test_wrong_input_is_refused(n_output, segments, kinds, message):
    with pytest.raises(ValueError, match=message):
        masks(3, n_output, segments, kinds)
