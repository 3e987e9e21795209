"""The loop without Ray: it learns, packing does not matter, and a restart gives the unbroken run's weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from ray_jobs.drafter.batch import Batch
from ray_jobs.drafter.loss import TrainableDrafter
from ray_jobs.drafter.model import DrafterShape, Eagle3Drafter, initialise
from ray_jobs.drafter.teacher import Teacher
from ray_jobs.drafter.vocab import choose
from ray_jobs.training import checkpoint
from ray_jobs.training.loop import LoopSettings, Step, make_optimizer, train

V, H, W, N_STEPS = 31, 16, 20, 8
SETTINGS = LoopSettings(3, 0.8, N_STEPS, 1e-2, 0.1, 0.5, False, "cpu")


def document(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    n = int(torch.randint(8, 20, (1,), generator=generator))
    sampled = torch.arange(n) >= 3
    return Batch(
        input_ids=torch.randint(0, V, (n,), generator=generator),
        aux=torch.randn(n, 3 * H, generator=generator),
        last=torch.randn(n, H, generator=generator),
        sampled=sampled,
        wanted=sampled,
        starts=[0, n],
    )


def packed(batches: list[Batch]) -> Batch:
    starts = [0]
    for batch in batches:
        starts.append(starts[-1] + len(batch.input_ids))
    names = ("input_ids", "aux", "last", "sampled", "wanted")
    return Batch(**{n: torch.cat([getattr(b, n) for b in batches]) for n in names}, starts=starts)


def build() -> tuple[TrainableDrafter, checkpoint.TrainState]:
    generator = torch.Generator().manual_seed(0)
    embedding, head = (torch.randn(V, H, generator=generator) for _ in range(2))
    vocab = choose(torch.arange(V), W)
    shape = DrafterShape(H, H, 24, 4, 2, 4, V, W, 1e-5, 1e4, None, 64, (1, 2, 3))
    drafter = Eagle3Drafter(shape, embedding)
    initialise(drafter, head[vocab.ids], torch.ones(H), 0)
    optimizer, schedule = make_optimizer(drafter, SETTINGS, [0.9, 0.95], 0.01)
    state = checkpoint.TrainState(drafter, shape, vocab, optimizer, schedule)
    return TrainableDrafter(drafter, Teacher(head, vocab)), state


def steps(first: int = 0, *, together: bool = False) -> Iterator[Step]:
    for number in range(first, N_STEPS):
        batches = [document(10 * number + i) for i in range(3)]
        yield Step(number, [packed(batches)] if together else batches)


def run(together: bool = False) -> tuple[list[float], dict[str, torch.Tensor]]:
    model, state = build()
    losses = [m["loss"] for m in train(model, state.optimizer, state.schedule, steps(together=together), SETTINGS)]
    return losses, state.drafter.state_dict()


def test_micro_batches_and_packing_give_the_same_training() -> None:
    apart, weights = run()
    together, same = run(together=True)
    torch.testing.assert_close(apart, together, rtol=1e-5, atol=1e-5)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, same[name], rtol=1e-3, atol=2e-4)


def test_a_restart_from_a_checkpoint_changes_nothing(tmp_path: Path) -> None:
    losses, weights = run()
    model, state = build()
    for facts in train(model, state.optimizer, state.schedule, steps(), SETTINGS):
        if facts["step"] == 3:
            checkpoint.save(tmp_path / "c", state, 4)
            break
    model, state = build()
    first = checkpoint.restore(tmp_path / "c", state)
    assert first == 4
    rest = [m["loss"] for m in train(model, state.optimizer, state.schedule, steps(first), SETTINGS)]
    assert rest == losses[4:]
    for name, tensor in state.drafter.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def test_it_learns_what_it_sees_again_and_again() -> None:
    model, state = build()
    same = (Step(n, [document(1), document(2)]) for n in range(N_STEPS))
    seen = list(train(model, state.optimizer, state.schedule, same, SETTINGS))
    assert seen[-1]["loss"] < 0.8 * seen[0]["loss"]
    assert seen[0]["learning_rate"] > seen[-1]["learning_rate"] > 0
    assert 1.0 <= seen[-1]["expected_accepted_length"] <= 4.0
