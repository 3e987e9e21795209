"""One rank with all documents against two ranks with some each."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from drafter_cases import Case, make_case
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ray_jobs.drafter.loss import StepSums, TrainableDrafter, count_rows, total_loss, unroll

L = 3
DEADLINE_S = 60
SEEDS = (3, 8)


def rank_case(rank: int, empty_rank: int | None) -> Case:
    """Equal weights, other data on each rank."""
    case = make_case(SEEDS[rank], (16, 9))
    if rank == empty_rank:
        case.batch.sampled = torch.zeros_like(case.batch.sampled)
    return case


def replicated(model: torch.nn.Module) -> torch.nn.Module:
    return DistributedDataParallel(model)


def sharded(model: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
    return model


WRAPPERS = {"replicated": replicated, "sharded": sharded}


def whole(grad: torch.Tensor | None) -> torch.Tensor:
    assert grad is not None
    return grad.full_tensor() if isinstance(grad, DTensor) else grad


def train_step(wrapper: str, rank: int, empty_rank: int | None) -> dict[str, torch.Tensor]:
    """Gradients and global sums of one optimiser step; both wrappers average gradients over ranks."""
    case = rank_case(rank, empty_rank)
    n = torch.tensor(count_rows(case.batch))
    dist.all_reduce(n)
    model = WRAPPERS[wrapper](TrainableDrafter(case.model, case.teacher))
    sums = StepSums(*model(case.batch, L, 0.8))
    (total_loss(sums.ce_sum, n) * dist.get_world_size()).backward()
    table = sums.as_tensor()
    dist.all_reduce(table)
    return {"sums": table} | {name: whole(p.grad) for name, p in case.model.named_parameters()}


def worker(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    timeout = timedelta(seconds=DEADLINE_S)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timeout)
    for wrapper in WRAPPERS:
        for empty_rank in (None, 1):
            found = train_step(wrapper, rank, empty_rank)
            torch.save(found, Path(folder) / f"{wrapper}-{empty_rank}-{rank}.pt")
    dist.destroy_process_group()
    # gloo's threads may still be releasing tensors; one that asks a closing interpreter for its lock aborts the process
    os._exit(0)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    # the parent holds the store, on a port that the system chose: nobody can take it in between
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = mp.spawn(worker, (store.port, str(folder)), nprocs=2, join=False)
    assert context is not None
    end = time.monotonic() + DEADLINE_S
    while not context.join(timeout=1):
        if time.monotonic() > end:
            for process in filter(None, context.processes):
                process.kill()
            pytest.fail(f"two ranks did not finish in {DEADLINE_S} s")
    return folder


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("empty_rank", [None, 1])
def test_two_ranks_give_the_sums_and_gradients_of_one(results: Path, wrapper: str, empty_rank: int | None):
    cases = [rank_case(rank, empty_rank) for rank in (0, 1)]
    n = sum(count_rows(case.batch) for case in cases)
    model, sums = cases[0].model, torch.zeros(5, L, dtype=torch.float64)
    for case in cases:
        step = unroll(model, case.teacher, case.batch, L)
        total_loss(step.ce_sum, n).backward()
        sums += step.as_tensor()
    assert count_rows(cases[0].batch) > 0
    assert (count_rows(cases[1].batch) == 0) == (empty_rank == 1)
    for rank in (0, 1):
        found = torch.load(results / f"{wrapper}-{empty_rank}-{rank}.pt")
        torch.testing.assert_close(found.pop("sums"), sums)
        assert set(found) == {name for name, _ in model.named_parameters()}
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad)
