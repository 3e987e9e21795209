"""Which replica answers, how many requests it may have, and what the clients count: one small actor."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass, field
from typing import Any

log = logging.getLogger(__name__)


@dataclass
class ReplicaState:
    """One server as the registry sees it; `generation` grows with every restart."""

    name: str
    slots: int
    address: str | None = None
    node_id: str | None = None
    version: str = ""
    weight_version: str = ""
    generation: int = 0
    healthy: bool = False
    error: str | None = None
    leased: dict[str, int] = field(default_factory=dict)
    """Slots by client."""


@dataclass(frozen=True)
class Lease:
    """`slots` requests that one client may have in flight at one replica."""

    replica: str
    address: str
    generation: int
    slots: int
    version: str
    weight_version: str


class LeaseTable:
    """The pure part: who has how many slots where; no Ray, no clock."""

    def __init__(self, replicas: list[ReplicaState]) -> None:
        self.replicas = {replica.name: replica for replica in replicas}

    def up(self, name: str, address: str, node_id: str | None, version: str, weight_version: str) -> None:
        """A server answers, for the first time or after a restart."""
        replica = self.replicas[name]
        replica.address, replica.node_id, replica.version = address, node_id, version
        replica.weight_version = weight_version
        replica.generation += 1
        replica.healthy, replica.error = True, None
        replica.leased.clear()

    def down(self, name: str, generation: int | None = None, error: str | None = None) -> None:
        """A server is gone; its leases are void. A report about an older generation is late news and ignored."""
        replica = self.replicas[name]
        if generation is not None and generation != replica.generation:
            return
        replica.healthy, replica.error = False, error
        replica.leased.clear()

    def lease(self, client: str, node_id: str | None, wanted: int) -> list[Lease]:
        """Up to `wanted` slots for a client in all; its own node's replicas first, then the emptiest."""
        for replica in self.replicas.values():
            replica.leased.pop(client, None)
        usable = [r for r in self.replicas.values() if r.healthy and r.address]
        usable.sort(key=lambda r: (r.node_id != node_id, sum(r.leased.values()) / r.slots, r.name))
        leases = []
        for replica in usable:
            free = replica.slots - sum(replica.leased.values())
            take = min(free, wanted)
            if take > 0:
                replica.leased[client] = take
                wanted -= take
                leases.append(
                    Lease(
                        replica.name,
                        str(replica.address),
                        replica.generation,
                        take,
                        replica.version,
                        replica.weight_version,
                    )
                )
        return leases

    def release(self, client: str) -> None:
        """The client is gone."""
        for replica in self.replicas.values():
            replica.leased.pop(client, None)


class Registry:
    """An actor: the lease table with the clients' counters; asked a few times a second, not per row."""

    def __init__(self, replicas: list[ReplicaState]) -> None:
        self._table = LeaseTable(replicas)
        self._counters: dict[str, dict[str, float]] = {}
        self._seen: dict[str, float] = {}
        self._fatal: str | None = None

    def up(self, name: str, address: str, node_id: str | None, version: str, weight_version: str) -> None:
        """See `LeaseTable.up`."""
        self._table.up(name, address, node_id, version, weight_version)

    def down(self, name: str, generation: int | None = None, error: str | None = None) -> None:
        """See `LeaseTable.down`."""
        self._table.down(name, generation, error)

    def sync(
        self, client: str, node_id: str | None, wanted: int, counters: dict[str, float], fatal: str | None
    ) -> tuple[list[Lease], str | None]:
        """A client's heartbeat: takes its counters, drops clients that went silent.

        Returns its leases, and why it must stop asking, if it must.
        """
        now = time.monotonic()
        self._seen[client] = now
        self._counters[client] = counters
        self._fatal = self._fatal or fatal
        for other in [c for c, seen in self._seen.items() if now - seen > 30]:
            del self._seen[other]
            self._table.release(other)
            self._counters[other]["in_flight"] = 0
        return ([], self._fatal) if self._fatal else (self._table.lease(client, node_id, wanted), None)

    def stop(self, reason: str) -> None:
        """Have every client stop asking."""
        self._fatal = self._fatal or reason

    def is_healthy(self, name: str) -> bool:
        """Whether the replica is given out."""
        return self._table.replicas[name].healthy

    def snapshot(self) -> dict[str, Any]:
        """Sums of the clients' counters, the state of each replica, and the first fault that must stop the run."""
        total: dict[str, float] = {}
        for counters in self._counters.values():
            for key, value in counters.items():
                total[key] = total.get(key, 0) + value
        replicas = {name: asdict(state) for name, state in self._table.replicas.items()}
        return {"counters": total, "replicas": replicas, "fatal": self._fatal}
