"""Which rows are shown, and what of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ray_jobs.evaluation.examples import N_EXAMPLES, Candidate, Candidates, last_turn


def chosen(rows: list[tuple[str, str, bool, bool]]) -> list[str]:
    """row_ids for (source, row_id, called, flagged), added in the given order."""
    candidates = Candidates()
    for source, row_id, called, flagged in rows:
        candidates.add(Candidate(row_id, Path("f"), called, flagged), source)
    return [row.row_id for row in candidates.choose()]


def test_sources_take_turns_in_row_order() -> None:
    rows = [("b", f"{i:02d}b", True, True) for i in range(30)] + [
        ("a", "02a", False, False),
        ("a", "01a", False, False),
    ]
    expected = ["01a", "00b", "02a", "01b", *(f"{i:02d}b" for i in range(2, 8))]
    assert chosen(rows) == chosen(rows[::-1]) == expected


@pytest.mark.parametrize("called", [None, 3, 95])
@pytest.mark.parametrize("flagged", [None, 3, 9, 80, 95])
def test_a_call_and_a_flag_are_among_them_where_there_are_such(called: int | None, flagged: int | None) -> None:
    ids = [f"{i:02d}" for i in range(100)]
    got = chosen([("s", ids[i], i == called, i == flagged) for i in range(100)])
    assert len(set(got)) == len(got) == N_EXAMPLES
    for wanted in (called, flagged):
        assert wanted is None or ids[wanted] in got
    assert got[:8] == ids[:8]


def test_fewer_rows_than_places() -> None:
    assert chosen([("s", "1", False, False), ("t", "2", True, False)]) == ["1", "2"]
    assert chosen([]) == []


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], ("user", "a")),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "c"}, {"role": "tool"}], ("user", "c")),
        ([{"role": "system", "content": None}], ("system", "")),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image"}]}], ("user", "x[image]")),
        ([], ("user", "")),
    ],
)
def test_the_last_user_turn(messages: list[object], expected: tuple[str, str]) -> None:
    assert last_turn(json.dumps(messages)) == expected
