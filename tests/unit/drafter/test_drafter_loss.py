"""The unrolled loss against the reference, number by number."""

from __future__ import annotations

from itertools import pairwise

import pytest
import reference
import torch
from drafter_cases import Case, make_case, make_shape

from ray_jobs.drafter.batch import Batch
from ray_jobs.drafter.head import head_sums
from ray_jobs.drafter.loss import StepSums, TrainableDrafter, count_rows, step_masks, total_loss, unroll
from ray_jobs.drafter.teacher import Teacher

L = 4
DECAY = 0.8

SHAPES = {
    "pruned": make_shape(),
    "small": make_shape(vocab=6, draft_vocab=4, n_heads=2, n_kv_heads=1),
    "full": make_shape(vocab=7, draft_vocab=7, n_heads=3, n_kv_heads=3),
}
LENGTHS = {"one": (14,), "packed": (11, 3, 9), "short": (1, 2, 8, 2, 9)}


def cases(dtype: torch.dtype, n_seeds: int) -> list[Case]:
    """Every shape with every packing; seeds differ, so do spans and kinds that are switched off."""
    return [
        make_case(100 * i + 10 * j + seed, lengths, dtype, shape)
        for i, shape in enumerate(SHAPES.values())
        for j, lengths in enumerate(LENGTHS.values())
        for seed in range(n_seeds)
    ]


def reference_loss(result: reference.Result, n: int) -> torch.Tensor:
    return torch.stack([DECAY**i * ce / max(n, 1) for i, ce in enumerate(result.ce)]).sum()


def run_reference(case: Case) -> tuple[reference.Naive, reference.Result]:
    naive, data = case.naive()
    return naive, reference.losses(naive, data, case.head, case.vocab.ids.tolist(), L)


def test_losses_and_counts_equal_the_reference_in_float64():
    seen = torch.zeros(5, dtype=torch.int64)
    for case in cases(torch.float64, 4):
        sums = unroll(case.model, case.teacher, case.batch, L)
        with torch.no_grad():
            _, expected = run_reference(case)
        torch.testing.assert_close(sums.ce_sum, torch.stack(expected.ce), rtol=1e-6, atol=1e-9)
        assert sums.n_rows.tolist() == expected.rows
        assert sums.n_in_vocab.tolist() == expected.in_vocab
        assert sums.n_correct.tolist() == expected.correct
        assert sums.n_prefix_correct.tolist() == expected.prefix_correct
        assert count_rows(case.batch) == expected.rows[0]
        dropped = expected.rows[0] - expected.in_vocab[0]
        prefix = expected.correct[1] - expected.prefix_correct[1]
        seen += torch.tensor([expected.rows[L - 1], dropped, expected.correct[1], expected.prefix_correct[1], prefix])
    # the cases must contain what they are meant to tell apart
    assert bool((seen > 0).all()), seen


def test_losses_equal_the_reference_in_float32():
    for case in cases(torch.float32, 2):
        sums = unroll(case.model, case.teacher, case.batch, L)
        with torch.no_grad():
            _, expected = run_reference(case)
        torch.testing.assert_close(sums.ce_sum, torch.stack(expected.ce), rtol=1e-4, atol=1e-4)
        assert sums.n_rows.tolist() == expected.rows


@pytest.mark.parametrize("decay", [None, DECAY])
def test_gradients_equal_autograd_through_the_reference(decay: float | None):
    for case in cases(torch.float64, 1):
        n = count_rows(case.batch)
        total_loss(unroll(case.model, case.teacher, case.batch, L, decay).ce_sum, n, DECAY).backward()
        naive, expected = run_reference(case)
        if not n:
            continue
        reference_loss(expected, n).backward()
        for name, parameter in case.model.named_parameters():
            grad = naive.w[name].grad
            assert parameter.grad is not None
            grad = torch.zeros_like(parameter) if grad is None else grad
            torch.testing.assert_close(parameter.grad, grad, rtol=1e-6, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


def test_bfloat16_and_autocast_stay_close_to_float32():
    exact = make_case(5, (40, 30), torch.float32)
    expected = unroll(exact.model, exact.teacher, exact.batch, L).ce_sum
    half = make_case(5, (40, 30), torch.float32)
    half.model.bfloat16()
    assert half.model.embedding.dtype == torch.float32
    sums = unroll(half.model, half.teacher, half.batch, L, DECAY)
    torch.testing.assert_close(sums.ce_sum, expected, rtol=0.1, atol=0.5)
    total_loss(sums.ce_sum, 10).backward()
    with torch.autocast("cpu", torch.bfloat16):
        sums = unroll(exact.model, exact.teacher, exact.batch, L, DECAY)
    torch.testing.assert_close(sums.ce_sum, expected, rtol=0.1, atol=0.5)
    total_loss(sums.ce_sum, 10).backward()
    for model, dtype in ((half.model, torch.bfloat16), (exact.model, torch.float32)):
        for parameter in model.parameters():
            assert parameter.grad is not None
            assert parameter.grad.dtype == dtype
            assert bool(torch.isfinite(parameter.grad).all())


def worked_example() -> Case:
    """Two documents of 12 and 5 tokens; sampled are 3-6 and 9-11 of the first, 14-16 (its last three) of the second."""
    shape = make_shape(vocab=7, draft_vocab=7)
    case = make_case(0, (12, 5), shape=shape)
    sampled = torch.zeros(17, dtype=torch.bool)
    sampled[[3, 4, 5, 6, 9, 10, 11, 14, 15, 16]] = True
    case.batch.sampled, case.batch.wanted = sampled, torch.ones(17, dtype=torch.bool)
    return case


# (chain, step): 2, 8 and 13 read the last prompt token and the first token of an answer
TRAINED = {0: [2, 3, 4, 8, 9, 13, 14], 1: [2, 3, 8, 13], 2: [2]}


def test_the_rows_that_get_a_gradient_are_exactly_those_of_the_rule():
    case = worked_example()
    outputs: list[torch.Tensor] = []

    def keep(_module, _inputs, hidden: list[torch.Tensor]) -> None:
        outputs.extend(hidden)
        for h in hidden:
            h.retain_grad()

    case.model.register_forward_hook(keep)
    sums = unroll(case.model, case.teacher, case.batch, 3)
    total_loss(sums.ce_sum, 7).backward()
    chains = step_masks(case.batch, 3).any(0).nonzero()[:, 0]
    for step, expected in TRAINED.items():
        grad = outputs[step].grad
        assert grad is not None
        assert chains[grad.abs().sum(1) > 0].tolist() == expected
    assert sums.n_rows.tolist() == [7, 4, 1]


def aux_rows_with_gradient(case: Case) -> list[int]:
    case.batch.aux = case.batch.aux.requires_grad_()
    total_loss(unroll(case.model, case.teacher, case.batch, 3).ce_sum, 7).backward()
    assert case.batch.aux.grad is not None
    return (case.batch.aux.grad.abs().sum(1) > 0).nonzero()[:, 0].tolist()


def test_features_beyond_the_last_trained_chain_of_a_document_get_exactly_zero():
    # chains end at 9 and 14; earlier rows are read as keys
    assert aux_rows_with_gradient(worked_example()) == [*range(10), *range(12, 15)]


def test_the_first_token_of_an_answer_trains():
    case = worked_example()
    case.batch.wanted = torch.zeros(17, dtype=torch.bool)
    case.batch.wanted[15] = True  # the token after the first token of the last answer
    assert aux_rows_with_gradient(case) == [12, 13]
    assert unroll(case.model, case.teacher, case.batch, 3).n_rows.tolist() == [1, 0, 0]


def test_a_document_that_is_only_prompt_adds_nothing():
    case = worked_example()
    case.batch.sampled[:12] = False
    assert aux_rows_with_gradient(case) == [12, 13, 14]


def test_a_batch_without_rows_gives_every_parameter_a_zero_gradient():
    case = worked_example()
    case.batch.sampled = torch.zeros(17, dtype=torch.bool)
    sums = TrainableDrafter(case.model, case.teacher)(case.batch, 3, DECAY)
    total_loss(sums.ce_sum, 0).backward()
    assert sums.n_rows.tolist() == [0, 0, 0]
    assert all(p.grad is not None and not p.grad.any() for p in case.model.parameters())


def test_packing_changes_no_sum():
    packed = make_case(7, (9, 12, 6))
    whole = unroll(packed.model, packed.teacher, packed.batch, L).as_tensor()
    edges, parts, batch = packed.batch.offsets(), torch.zeros(5, L, dtype=torch.float64), packed.batch
    for a, b in pairwise(edges):
        columns = (batch.input_ids, batch.aux, batch.last, batch.sampled, batch.wanted)
        single = Batch(*(x[a:b] for x in columns), starts=torch.tensor([0, b - a]))
        parts += unroll(packed.model, packed.teacher, single, L).as_tensor()
    torch.testing.assert_close(whole, parts)
    again = StepSums.from_tensor(whole)
    assert again.n_rows.dtype == torch.int64
    torch.testing.assert_close(again.as_tensor(), whole)


def test_head_gradients_are_exact():
    case = make_case(4, (13,))
    chains = torch.tensor([0, 2, 3, 7])
    masks = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1]], dtype=torch.bool)
    hidden = [torch.randn(4, 12, dtype=torch.float64, requires_grad=True) for _ in range(2)]

    def sums(weight: torch.Tensor, *hidden: torch.Tensor) -> torch.Tensor:
        return head_sums(weight, hidden, case.teacher, case.batch.last, chains, masks).ce_sum

    assert torch.autograd.gradcheck(sums, (case.model.lm_head.weight, *hidden))


def test_small_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch):
    case = make_case(6, (12, 10))
    whole = unroll(case.model, case.teacher, case.batch, L)
    monkeypatch.setattr(Teacher, "block_rows", 3)
    blocks = unroll(case.model, case.teacher, case.batch, L)
    torch.testing.assert_close(whole.as_tensor(), blocks.as_tensor())
    grads = [torch.autograd.grad(total_loss(s.ce_sum, 9), list(case.model.parameters())) for s in (whole, blocks)]
    torch.testing.assert_close(*grads)


def test_another_decay_than_announced_is_refused():
    case = worked_example()
    loss = total_loss(unroll(case.model, case.teacher, case.batch, 3, 0.8).ce_sum, 7, decay=0.9)
    with pytest.raises(ValueError, match="decay"):
        loss.backward()


def test_no_gradient_is_made_where_none_is_asked_for():
    case = worked_example()
    with torch.no_grad():
        sums = unroll(case.model, case.teacher, case.batch, 3)
    assert not sums.ce_sum.requires_grad
    torch.testing.assert_close(sums.ce_sum, unroll(case.model, case.teacher, case.batch, 3).ce_sum.detach())


def test_a_batch_whose_parts_do_not_fit_is_refused():
    case = worked_example()
    with pytest.raises(ValueError, match="starts"):
        Batch(*(getattr(case.batch, n) for n in ("input_ids", "aux", "last", "sampled", "wanted")), starts=[0, 16])
    with pytest.raises(ValueError, match="aux"):
        Batch(case.batch.input_ids, case.batch.aux[1:], *([case.batch.last] * 3), starts=[0, 17])
