"""Slots at the replicas, as leased; waiting rows take the next free one in the order they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ray_jobs.cluster.registry import Lease


class Limiter:
    """Hands out slots of the current leases inside one asyncio loop; bounds the requests in flight."""

    def __init__(self) -> None:
        self._leases: list[Lease] = []
        self._busy: dict[tuple[str, int], int] = {}
        self._waiting: deque[asyncio.Future[Lease]] = deque()
        self._closed: Exception | None = None

    @property
    def in_flight(self) -> int:
        """Slots in use now."""
        return sum(self._busy.values())

    @property
    def waiting(self) -> int:
        """Rows that wait for a slot."""
        return len(self._waiting)

    def renew(self, leases: list[Lease]) -> None:
        """Take the registry's latest word; slots in use of a lost lease are simply not given out again."""
        self._leases = leases
        self._wake()

    def lost(self, lease: Lease) -> None:
        """A replica does not answer: stop using this lease until the registry gives a new one."""
        self._leases = [x for x in self._leases if (x.replica, x.generation) != (lease.replica, lease.generation)]

    def close(self, error: Exception) -> None:
        """Give out no more slots: every row that waits, or comes later, gets `error` instead."""
        self._closed = error
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)

    async def acquire(self) -> Lease:
        """Wait for a slot.

        Raises:
            Exception: what `close` was given.
        """
        if self._closed:
            raise self._closed
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._wake()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release(future.result())
            raise

    def release(self, lease: Lease) -> None:
        """Give a slot back."""
        key = (lease.replica, lease.generation)
        self._busy[key] -= 1
        if not self._busy[key]:
            del self._busy[key]
        self._wake()

    @contextmanager
    def holding(self, lease: Lease) -> Iterator[Lease]:
        """Give the slot back at the end of the block."""
        try:
            yield lease
        finally:
            self.release(lease)

    def _wake(self) -> None:
        while self._waiting:
            if self._waiting[0].cancelled():
                self._waiting.popleft()
                continue
            lease = self._free()
            if lease is None:
                return
            key = (lease.replica, lease.generation)
            self._busy[key] = self._busy.get(key, 0) + 1
            self._waiting.popleft().set_result(lease)

    def _free(self) -> Lease | None:
        """The first lease (the registry puts the own node first) with a free slot."""
        for lease in self._leases:
            if self._busy.get((lease.replica, lease.generation), 0) < lease.slots:
                return lease
        return None
