from __future__ import annotations

import numpy as np
import pytest
import torch

from ray_jobs.core.errors import ConfigError, StageError
from ray_jobs.drafter import vocab
from ray_jobs.drafter.vocab import choose, count_ids, vocab_from_ids


def test_counts_lists_arrays_and_tensors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vocab, "_CHUNK_IDS", 3)
    read_only = np.array([1, 1, 5], dtype=np.int32)
    read_only.setflags(write=False)
    counts = count_ids([[0, 1], read_only, [], torch.tensor([5, 5])], 7)
    assert counts.tolist() == [1, 3, 0, 0, 0, 3, 0]
    assert count_ids([], 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("wrong", [7, -1])
def test_an_id_outside_the_vocabulary_is_named(wrong: int):
    with pytest.raises(StageError, match=f"token id {wrong} "):
        count_ids([[1, wrong]], 7)


def test_most_frequent_ids_ascending_ties_to_the_lower_id():
    made = choose(torch.tensor([2, 9, 2, 0, 5, 2]), 3)
    assert made.ids.tolist() == [0, 1, 4]
    assert made.d2t.tolist() == [0, 0, 2]
    assert made.t2d.tolist() == [True, True, False, False, True, False]
    assert made.coverage == pytest.approx(16 / 20)
    assert made.target_ids(torch.tensor([[2, 0]])).tolist() == [[4, 0]]


def test_ties_go_to_the_lower_id_in_a_vocabulary_of_real_size():
    counts = torch.ones(50_000, dtype=torch.int64)
    counts[40_000] = 2
    assert choose(counts, 1000).ids.tolist() == [*range(999), 40_000]


def test_too_few_seen_ids_are_filled_with_the_lowest():
    assert choose(torch.tensor([0, 0, 0, 4, 0]), 3).ids.tolist() == [0, 1, 3]
    assert choose(torch.zeros(4, dtype=torch.int64), 2).coverage == 0.0


def test_full_size_is_the_identity():
    made = choose(torch.tensor([0, 3, 1]), 3)
    assert made.is_full
    assert made.ids.tolist() == [0, 1, 2]
    assert not made.d2t.any()
    assert made.coverage == 1.0


def test_impossible_sizes_and_ids_are_refused():
    with pytest.raises(ConfigError):
        choose(torch.ones(3), 4)
    for ids in ([], [1, 1], [2, 1], [0, 3]):
        with pytest.raises(StageError):
            vocab_from_ids(torch.tensor(ids, dtype=torch.int64), 3)
