"""Slots are bounded, first come first served, and a lost lease is not given out again."""

from __future__ import annotations

import asyncio

import pytest

from ray_jobs.cluster.registry import Lease
from ray_jobs.generation.limiter import Limiter


def lease(replica: str, slots: int, generation: int = 1) -> Lease:
    return Lease(replica, f"http://{replica}", generation, slots, "v", "default")


def test_never_more_in_flight_than_leased_and_everybody_gets_a_turn() -> None:
    async def run() -> tuple[int, list[int]]:
        limiter, most, order = Limiter(), 0, []
        limiter.renew([lease("a", 2), lease("b", 1)])

        async def row(i: int) -> None:
            nonlocal most
            with limiter.holding(await limiter.acquire()):
                most = max(most, limiter.in_flight)
                order.append(i)
                await asyncio.sleep(0.001)

        await asyncio.gather(*[row(i) for i in range(30)])
        assert limiter.in_flight == 0
        return most, order

    most, order = asyncio.run(run())
    assert most == 3
    assert order == sorted(order)


def test_the_own_node_comes_first_and_a_lost_replica_is_avoided() -> None:
    async def run() -> None:
        limiter = Limiter()
        limiter.renew([lease("own", 1), lease("other", 5)])
        first, second = await limiter.acquire(), await limiter.acquire()
        assert (first.replica, second.replica) == ("own", "other")
        limiter.lost(first)
        limiter.release(first)
        assert (await limiter.acquire()).replica == "other"
        limiter.renew([lease("own", 1, generation=2), lease("other", 5)])
        assert (await limiter.acquire()).generation == 2

    asyncio.run(run())


def test_waiting_rows_go_on_when_a_lease_comes() -> None:
    async def run() -> str:
        limiter = Limiter()
        waiting = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        assert limiter.waiting == 1
        limiter.renew([lease("a", 1)])
        return (await asyncio.wait_for(waiting, 1)).replica

    assert asyncio.run(run()) == "a"


def test_close_ends_every_wait_now_and_later() -> None:
    async def run() -> None:
        limiter = Limiter()
        waiting = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        limiter.close(ValueError("over"))
        assert [str(r) for r in await asyncio.gather(*waiting, return_exceptions=True)] == ["over"] * 3
        with pytest.raises(ValueError, match="over"):
            await limiter.acquire()

    asyncio.run(run())


def test_a_cancelled_row_leaks_no_slot() -> None:
    async def run() -> None:
        limiter = Limiter()
        limiter.renew([lease("a", 1)])
        held = await limiter.acquire()
        gone = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        limiter.release(held)
        assert (await asyncio.wait_for(limiter.acquire(), 1)).replica == "a"

    asyncio.run(run())
