"""Accepted length against a naive simulation, and its interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from ray_jobs.core.schemas import SEGMENT_KINDS
from ray_jobs.evaluation.acceptance import (
    Count,
    Walk,
    accepted_length,
    by_position,
    by_segment,
    by_source,
    figures,
    interval,
    kinds_of,
    walk,
)

KINDS = [kind for kind in SEGMENT_KINDS if kind != "excess"]


@dataclass
class Step:
    """One verify step of the simulation: the kind of the first token it drafts, and what came of it."""

    kind: str
    emitted: int = 0
    accepted: int = 0


def simulate(answer: list[int], drafts: list[list[int]], kinds: list[str]) -> list[Step]:
    """Greedy speculative decoding, token by token: drafts[j] are the tokens drafted after answer[j]."""
    emitted, steps = [answer[0]], []
    while len(emitted) < len(answer):
        step = Step(kinds[len(emitted)])
        steps.append(step)
        before = len(emitted)
        for token in drafts[before - 1]:
            if len(emitted) < len(answer) and token == answer[len(emitted)]:
                emitted.append(token)
                step.accepted += 1
            else:
                break
        if len(emitted) < len(answer):
            emitted.append(answer[len(emitted)])
        step.emitted = len(emitted) - before
    return steps


@pytest.mark.parametrize("seed", range(40))
def test_walk_equals_token_by_token_decoding(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_prompt, n_answer, k = int(rng.integers(1, 6)), int(rng.integers(1, 30)), int(rng.integers(1, 5))
    kinds = np.repeat(rng.permutation(KINDS), rng.integers(0, 9, size=len(KINDS))).tolist()[:n_answer]
    kinds += ["content"] * (n_answer - len(kinds))
    ids = rng.integers(0, 3, size=n_prompt + n_answer).tolist()
    answer = ids[n_prompt:]
    drafts = rng.integers(0, 3, size=(n_answer, k)).tolist()
    matches = rng.random((len(ids), k)) < 0.5
    for j in range(n_answer):
        start = n_prompt - 1 + j
        for i in range(k):
            target = start + 2 + i
            matches[start, i] = target < len(ids) and drafts[j][i] == ids[target]
    got, steps = walk(matches, n_prompt, kinds), simulate(answer, drafts, kinds)
    assert (got.tokens, got.steps) == (n_answer - 1, len(steps))
    assert sum(step.emitted for step in steps) == got.tokens
    assert got.by_kind == {
        kind: (sum(s.emitted for s in steps if s.kind == kind), sum(s.kind == kind for s in steps))
        for kind in {s.kind for s in steps}
    }
    assert got.accepted == tuple(sum(s.accepted > i for s in steps) for i in range(k))


def test_nothing_accepted_is_one_and_everything_is_k_plus_one() -> None:
    none, every = np.zeros((23, 3), dtype=bool), np.ones((23, 3), dtype=bool)
    kinds = ["content"] * 21
    assert accepted_length([walk(none, 2, kinds)]) == 1.0
    assert accepted_length([walk(every, 2, kinds)]) == 4.0
    assert by_position([walk(none, 2, kinds)]) == [0.0, 0.0, 0.0]
    assert by_position([walk(every, 2, kinds)]) == [1.0, 1.0, 1.0]


def test_a_step_belongs_to_the_segment_of_the_first_token_it_drafts() -> None:
    # the first token of the thought, two more of it, the marker, two of content, the stop id
    kinds = ["reasoning"] * 3 + ["marker"] + ["content"] * 2 + ["stop"]
    every = np.ones((1 + len(kinds), 3), dtype=bool)
    # one step: two tokens of the thought, the marker and one of content; the next: one of content and the stop id
    assert walk(every, 1, kinds).by_kind == {"reasoning": Count(4, 1), "content": Count(2, 1)}
    none = np.zeros((1 + len(kinds), 3), dtype=bool)
    assert walk(none, 1, kinds).by_kind == {
        "reasoning": Count(2, 2),
        "marker": Count(1, 1),
        "content": Count(2, 2),
        "stop": Count(1, 1),
    }


def test_ids_behind_the_stop_are_not_followed() -> None:
    bounds = {"reasoning": (0, 2), "marker": (2, 3), "stop": (3, 4), "excess": (4, 9)}
    segments = [{"kind": kind, "start": start, "stop": stop} for kind, (start, stop) in bounds.items()]
    kinds = kinds_of(segments)
    assert kinds == ["reasoning", "reasoning", "marker", "stop"]
    long = np.ones((2 + 9, 4), dtype=bool)
    assert walk(long, 2, kinds) == walk(long[:6], 2, kinds)
    assert walk(long, 2, kinds).tokens == 3


def test_segments_and_positions_add_up_to_the_whole() -> None:
    rng = np.random.default_rng(1)
    walks = []
    for source in ["a", "b", "b"] * 10:
        kinds = rng.choice(KINDS, size=int(rng.integers(1, 60))).tolist()
        walks.append(walk(rng.random((5 + len(kinds), 4)) < 0.6, 5, kinds, source))
    made = figures(walks, 100, 0)
    segments = by_segment(walks)
    assert set(segments) == set(KINDS)
    assert sum(count.tokens for count in segments.values()) == made["verify_tokens"] == sum(w.tokens for w in walks)
    assert sum(count.steps for count in segments.values()) == made["verify_steps"] == sum(w.steps for w in walks)
    weighted = sum(made["by_segment"][k] * made["verify_steps_by_segment"][k] for k in segments)
    assert weighted / made["verify_steps"] == pytest.approx(made["accepted_length"])
    assert made["by_position"] == sorted(made["by_position"], reverse=True)
    # one token a step besides the accepted ones, but for steps whose drafts reach the end of the answer
    surplus = 1 + sum(made["by_position"]) - made["accepted_length"]
    assert 0 <= surplus <= len(walks) / made["verify_steps"]
    assert made["prompts_by_source"] == {"a": 10, "b": 20}


def test_an_answer_of_one_token_counts_for_nothing() -> None:
    assert walk(np.ones((3, 3), dtype=bool), 2, ["stop"]) == Walk("", 0, 0, {}, (0, 0, 0))
    made = figures([walk(np.ones((3, 3), dtype=bool), 2, ["stop"])], 100, 0)
    assert (made["accepted_length"], made["interval_95"], made["by_position"]) == (None, None, None)
    assert made["by_segment"] == {}
    assert accepted_length([Walk("", 0, 0)]) is None
    assert interval([Walk("", 0, 0)], 100, 0) is None


def test_pooled_not_averaged_and_by_source() -> None:
    walks = [Walk("a", 10, 10), Walk("a", 90, 30), Walk("b", 20, 10)]
    assert accepted_length(walks) == pytest.approx(120 / 50)
    assert by_source(walks) == {"a": 2.5, "b": 2.0}


def test_interval_covers_and_shrinks() -> None:
    rng = np.random.default_rng(0)
    few = [Walk("", int(t), 20) for t in rng.integers(20, 60, size=20)]
    many = few * 16
    low, high = interval(few, 1000, 0) or (0, 0)
    narrow = interval(many, 1000, 0) or (0, 0)
    pooled = accepted_length(few) or 0
    assert low < pooled < high
    assert narrow[1] - narrow[0] < 0.5 * (high - low)
    assert interval(few, 1000, 0) == (low, high)
