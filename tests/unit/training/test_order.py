"""The order of rows: every row once an epoch, the same for any number of workers, packed within bounds."""

from __future__ import annotations

import numpy as np
import pytest

from ray_jobs.core.errors import ConfigError
from ray_jobs.training.data import Order, pack, share


@pytest.mark.parametrize(("n_rows", "rows_per_step"), [(10, 3), (9, 3), (1, 4), (100, 7)])
def test_each_epoch_sees_each_row_once(n_rows: int, rows_per_step: int) -> None:
    order = Order(n_rows, rows_per_step, epochs=3, seed=5)
    for epoch in range(3):
        first = epoch * order.steps_per_epoch
        seen = [row for step in range(first, first + order.steps_per_epoch) for row in order.rows(step)]
        assert sorted(seen) == list(range(n_rows))
    assert order.n_steps == 3 * order.steps_per_epoch


def test_epochs_and_seeds_differ_and_repeat() -> None:
    a, b = Order(50, 50, 2, seed=1), Order(50, 50, 2, seed=2)
    assert a.rows(0) == Order(50, 50, 2, seed=1).rows(0)
    assert a.rows(0) != a.rows(1)
    assert a.rows(0) != b.rows(0)


def test_no_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="no row is left to train"):
        Order(0, 4, 1, 0)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_ranks_share_a_step_without_overlap_and_evenly(world: int) -> None:
    lengths = np.random.default_rng(0).integers(10, 500, size=64)
    parts = [share(range(64), lengths, rank, world) for rank in range(world)]
    assert sorted(row for part in parts for row in part) == list(range(64))
    tokens = [int(lengths[part].sum()) for part in parts]
    assert max(tokens) - min(tokens) <= 500


def test_more_ranks_than_rows_leaves_some_empty() -> None:
    assert [len(share([7], np.full(8, 5), rank, 3)) for rank in range(3)] == [1, 0, 0]


def test_packs_hold_all_rows_within_the_bound() -> None:
    lengths = np.random.default_rng(1).integers(1, 100, size=200)
    packs = pack(range(200), lengths, 128)
    assert sorted(row for group in packs for row in group) == list(range(200))
    assert max(int(lengths[group].sum()) for group in packs) <= 128
    assert len(packs) <= 1.3 * lengths.sum() / 128
