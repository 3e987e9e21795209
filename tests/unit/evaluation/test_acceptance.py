"""Accepted length against a naive simulation, and its interval."""

from __future__ import annotations

import numpy as np
import pytest

from ray_jobs.evaluation.acceptance import Walk, accepted_length, by_source, interval, walk


def simulate(answer: list[int], drafts: list[list[int]]) -> tuple[int, int]:
    """Greedy speculative decoding, token by token: drafts[j] are the tokens drafted after answer[j]."""
    emitted, steps = [answer[0]], 0
    while len(emitted) < len(answer):
        at = len(emitted) - 1
        steps += 1
        for token in drafts[at]:
            if len(emitted) < len(answer) and token == answer[len(emitted)]:
                emitted.append(token)
            else:
                break
        if len(emitted) < len(answer):
            emitted.append(answer[len(emitted)])
    return len(answer) - 1, steps


@pytest.mark.parametrize("seed", range(20))
def test_walk_equals_token_by_token_decoding(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_prompt, n_answer, k = int(rng.integers(1, 6)), int(rng.integers(1, 30)), int(rng.integers(1, 5))
    ids = rng.integers(0, 3, size=n_prompt + n_answer).tolist()
    answer = ids[n_prompt:]
    drafts = rng.integers(0, 3, size=(n_answer, k)).tolist()
    matches = rng.random((len(ids), k)) < 0.5
    for j in range(n_answer):
        start = n_prompt - 1 + j
        for i in range(k):
            target = start + 2 + i
            matches[start, i] = target < len(ids) and drafts[j][i] == ids[target]
    got = walk(matches, n_prompt)
    assert (got.tokens, got.steps) == simulate(answer, drafts)


def test_nothing_accepted_is_one_and_everything_is_k_plus_one() -> None:
    none, every = np.zeros((23, 3), dtype=bool), np.ones((23, 3), dtype=bool)
    assert accepted_length([walk(none, 2)]) == 1.0
    assert accepted_length([walk(every, 2)]) == 4.0


def test_an_answer_of_one_token_counts_for_nothing() -> None:
    assert walk(np.ones((3, 3), dtype=bool), 2) == Walk("", 0, 0)
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
