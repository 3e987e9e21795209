from __future__ import annotations

import pytest
import reference
import torch
from drafter_cases import make_case, make_shape

from ray_jobs.drafter.chains import chain_matches

L = 4


def leading(flags: list[bool]) -> int:
    return flags.index(False) if False in flags else len(flags)


@pytest.mark.parametrize(("vocab", "draft_vocab"), [(5, 3), (4, 4)])
def test_accepted_prefix_is_that_of_drafting_with_its_own_tokens(vocab: int, draft_vocab: int):
    shape = make_shape(vocab=vocab, draft_vocab=draft_vocab, n_heads=2, n_kv_heads=1)
    accepted = []
    for seed in range(3):
        case = make_case(seed, (9, 2, 10), shape=shape)
        matches = chain_matches(case.model, case.batch, L, case.vocab)
        naive, data = case.naive()
        for first, stop in data.documents:
            for s in range(first, stop):
                real = data.ids[s + 2 : stop][:L]
                drafted = []
                if real:
                    with torch.no_grad():
                        drafted = reference.draft(naive, data, first, s, case.vocab.ids.tolist(), len(real))
                expected = leading([a == b for a, b in zip(drafted, real, strict=True)])
                assert leading(matches[s].tolist()) == expected
                assert not matches[s, len(real) :].any()
                accepted.append(expected)
    assert max(accepted) >= 2


def test_chosen_chains_alone_are_the_same_rows():
    case = make_case(2, (9, 10), shape=make_shape(vocab=4, draft_vocab=4))
    chosen = torch.zeros(19, dtype=torch.bool)
    chosen[[1, 4, 5, 12]] = True
    every = chain_matches(case.model, case.batch, L)
    assert torch.equal(chain_matches(case.model, case.batch, L, chains=chosen), every & chosen[:, None])
    assert not chain_matches(case.model, case.batch, L, chains=torch.zeros(19, dtype=torch.bool)).any()


def test_a_pruned_drafter_needs_its_vocabulary():
    case = make_case(0)
    with pytest.raises(ValueError, match="vocab"):
        chain_matches(case.model, case.batch, L)
