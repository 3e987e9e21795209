"""The lease table: own node first, never more than the slots, void after a death."""

from __future__ import annotations

import random

from ray_jobs.cluster.registry import LeaseTable, ReplicaState


def table(*slots: int) -> LeaseTable:
    made = LeaseTable([ReplicaState(f"r{i}", n) for i, n in enumerate(slots)])
    for i in range(len(slots)):
        made.up(f"r{i}", f"http://r{i}", f"node{i}", "v", "default")
    return made


def test_nothing_is_leased_before_a_server_is_up() -> None:
    made = LeaseTable([ReplicaState("r0", 4)])
    assert made.lease("c", None, 4) == []


def test_own_node_first_then_the_rest() -> None:
    leases = table(4, 4).lease("c", "node1", 6)
    assert [(x.replica, x.slots) for x in leases] == [("r1", 4), ("r0", 2)]


def test_a_death_voids_leases_and_late_news_is_ignored() -> None:
    made = table(4)
    assert [x.generation for x in made.lease("c", None, 4)] == [1]
    made.down("r0", 1)
    assert made.lease("c", None, 4) == []
    made.up("r0", "http://r0", None, "v", "default")
    made.down("r0", 1)
    assert [(x.generation, x.slots) for x in made.lease("c", None, 4)] == [(2, 4)]


def test_a_replicas_share_moves_to_the_others() -> None:
    made = table(4, 4)
    made.lease("a", "node0", 4)
    made.lease("b", "node1", 4)
    made.release("b")
    made.down("r0", 1)
    assert [(x.replica, x.slots) for x in made.lease("a", "node0", 4)] == [("r1", 4)]


def test_slots_are_never_oversubscribed() -> None:
    made, rng = table(3, 5, 2), random.Random(0)
    for _ in range(2000):
        client = f"c{rng.randrange(5)}"
        action = rng.randrange(4)
        name = f"r{rng.randrange(3)}"
        if action == 0:
            made.release(client)
        elif action == 1:
            made.down(name)
        elif action == 2:
            made.up(name, "http://x", "node", "v", "default")
        else:
            leases = made.lease(client, f"node{rng.randrange(3)}", rng.randrange(8))
            assert all(x.slots > 0 for x in leases)
        for state in made.replicas.values():
            assert sum(state.leased.values()) <= state.slots
