"""The target's servers under one interface: those that run already, and those that we start, one actor each."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ray_jobs.cluster.connect import n_nodes
from ray_jobs.cluster.registry import Registry, ReplicaState
from ray_jobs.config.schema import ReplicaKind, ReplicasConfig
from ray_jobs.core.errors import EagleRayError, StageError, TargetError
from ray_jobs.target.client import Client
from ray_jobs.target.process import ServerCommand, ServerProcess, embedded_command, sglang_command
from ray_jobs.target.wire import Limits

log = logging.getLogger(__name__)

WATCH_S = 1.0
BACK_OFF_S = (1.0, 2.0, 5.0, 15.0, 60.0)
STEADY_S = 300.0
_CONTROL = Client(Limits(vocab_size=1, context_length=2))


@dataclass(frozen=True)
class Replicas:
    """What the generation stage needs: the registry's handle and how many servers there are."""

    registry: Any
    count: int
    slots: int


class Replica:
    """An actor: owns one server process: starts it, restarts it with back-off, tells the registry, stops it."""

    def __init__(
        self, name: str, command: ServerCommand, registry: Any, log_folder: str, host: str | None, timeout_s: float
    ) -> None:
        self._name, self._command, self._registry = name, command, registry
        self._log_path = Path(log_folder) / f"{name}.log"
        self._host = host or ray.util.get_node_ip_address()
        self._timeout_s = timeout_s
        self._stopping = threading.Event()
        self._first = threading.Event()
        self._error: str | None = None
        self._server: ServerProcess | None = None
        # one lasting thread starts every child: a child could be bound to the life of the thread that made it
        self._thread = threading.Thread(target=self._keep_running, name="server", daemon=True)
        self._thread.start()

    def wait_ready(self) -> None:
        """Wait for the first start.

        Raises:
            StageError: the server did not start.
        """
        self._first.wait()
        if self._error:
            raise StageError(f"replica {self._name}: {self._error}")

    def pid(self) -> int | None:
        """Process id of the running server."""
        return self._server.pid if self._server else None

    def stop(self) -> None:
        """End the server and wait for it."""
        self._stopping.set()
        self._thread.join(timeout=30)

    def _keep_running(self) -> None:
        failures = 0
        try:
            while not self._stopping.is_set():
                started = time.monotonic()
                self._run_once()
                failures = 1 if time.monotonic() - started > STEADY_S else failures + 1
                if self._error and not self._first.is_set():
                    return
                self._stopping.wait(BACK_OFF_S[min(failures, len(BACK_OFF_S)) - 1])
        finally:
            self._first.set()

    def _run_once(self) -> None:
        """One life of the server, from start to end."""
        self._server = ServerProcess(self._command, self._log_path, self._host)
        try:
            self._server.wait_ready(self._timeout_s, self._stopping.is_set)
            if self._stopping.is_set():
                return
            self._announce(self._server.address)
            while not self._stopping.is_set() and self._server.exit_code() is None:
                self._stopping.wait(WATCH_S)
                self._back_if_well(self._server.address)
            if not self._stopping.is_set():
                raise StageError(
                    f"the server ended with exit code {self._server.exit_code()}.{self._server.log_tail()}"
                )
        except EagleRayError as error:
            self._error = None if self._first.is_set() else str(error)
            self._registry.down.remote(self._name, None, str(error))
        finally:
            self._server.stop()

    def _back_if_well(self, address: str) -> None:
        """A client found the server gone, but it lives: say so once it has answered a real request again."""
        if self._stopping.is_set() or ray.get(self._registry.is_healthy.remote(self._name), timeout=30):
            return
        try:
            _CONTROL.probe(address, deadline_s=30)
            self._announce(address)
        except TargetError as error:
            log.warning("replica %s: %s", self._name, error)

    def _announce(self, address: str) -> None:
        facts = _CONTROL.facts(address)
        node_id = ray.get_runtime_context().get_node_id()
        ray.get(self._registry.up.remote(self._name, address, node_id, facts.version, facts.weight_version), timeout=30)
        self._first.set()


@contextmanager
def running(cfg: ReplicasConfig, model_path: str, log_folder: Path) -> Iterator[Replicas]:
    """The target's servers, ready to answer, for the body of the `with`.

    Raises:
        StageError: a server did not start, or an address does not answer.
    """
    names = [f"replica-{i}" for i in range(cfg.n_replicas)]
    # unsynchronised by design: clients may ask before the servers are up, and get no lease
    actor: Any = ray.remote(Registry)
    states = [ReplicaState(name, cfg.slots) for name in names]
    registry = actor.options(num_cpus=0, max_concurrency=16).remote(states)
    handle = Replicas(registry, len(names), cfg.slots)
    if cfg.kind is ReplicaKind.addresses:
        with _watched_addresses(cfg, names, registry):
            yield handle
        return
    actors, groups = _start(cfg, names, model_path, registry, log_folder)
    try:
        ray.get([actor.wait_ready.remote() for actor in actors], timeout=cfg.start_timeout_s + 60)
        log.info("%d replica(s) ready", len(actors))
        yield handle
    except GetTimeoutError:
        action = f"{cfg.count} x {cfg.gpus} GPUs may not be free" if cfg.gpus else "see the logs of the run"
        raise StageError(f"replicas were not ready within {cfg.start_timeout_s:.0f} s: {action}") from None
    except RayTaskError as error:
        cause = error.cause if isinstance(getattr(error, "cause", None), EagleRayError) else error
        raise cause from None
    finally:
        _stop(actors, groups, registry)


def _start(
    cfg: ReplicasConfig, names: list[str], model_path: str, registry: Any, log_folder: Path
) -> tuple[list[Any], list[PlacementGroup]]:
    """One actor a server, on its own placement group when it holds GPUs."""
    engine_args = dict(cfg.engine_args)
    if cfg.kind is ReplicaKind.embedded:
        command = embedded_command(model_path, engine_args, cfg.env)
    else:
        # absolute, because a worker may stand in another folder; not resolved: an environment's python is a link
        python = str(Path(cfg.python).absolute()) if cfg.python and "/" in cfg.python else cfg.python
        command = sglang_command(python, model_path, engine_args, cfg.env)
    # servers are for this machine only, unless clients of other nodes must reach them
    host = "127.0.0.1" if n_nodes() == 1 else None
    actor: Any = ray.remote(Replica)
    actors, groups = [], []
    for name in names:
        options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 4, "max_restarts": 4}
        if cfg.gpus:
            group = placement_group([{"GPU": cfg.gpus}], strategy="STRICT_PACK", name=f"{name}-{uuid.uuid4().hex[:6]}")
            groups.append(group)
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=False)
            options |= {"num_gpus": cfg.gpus, "scheduling_strategy": strategy}
        actors.append(
            actor.options(**options).remote(name, command, registry, str(log_folder), host, cfg.start_timeout_s)
        )
    return actors, groups


@contextmanager
def _watched_addresses(cfg: ReplicasConfig, names: list[str], registry: Any) -> Iterator[None]:
    """Register servers that run already, and put those back that clients reported gone and that answer again."""
    addresses = dict(zip(names, [a.rstrip("/") for a in cfg.addresses], strict=True))
    stopping = threading.Event()

    def watch() -> None:
        while not stopping.wait(5 * WATCH_S):
            for name, address in addresses.items():
                try:
                    if not ray.get(registry.is_healthy.remote(name), timeout=30):
                        _register(registry, name, address, 30.0)
                except (EagleRayError, RayError) as error:
                    log.warning("replica %s: %s", name, error)

    thread = threading.Thread(target=watch, name="addresses", daemon=True)
    try:
        for name, address in addresses.items():
            try:
                _register(registry, name, address, min(60.0, cfg.start_timeout_s))
            except EagleRayError as error:
                raise StageError(f"replicas.addresses={address}: {error}") from None
        thread.start()
        yield
    finally:
        stopping.set()
        if thread.is_alive():
            thread.join(timeout=70)
        ray.kill(registry)


def _register(registry: Any, name: str, address: str, deadline_s: float) -> None:
    _CONTROL.probe(address, deadline_s=deadline_s)
    facts = _CONTROL.facts(address)
    ray.get(registry.up.remote(name, address, None, facts.version, facts.weight_version), timeout=30)


def _stop(actors: list[Any], groups: list[PlacementGroup], registry: Any) -> None:
    """End servers, actors and placement groups; nothing here may hide the error that brought us here."""
    done, _ = ray.wait([a.stop.remote() for a in actors], num_returns=len(actors), timeout=40)
    if len(done) < len(actors):
        log.warning("%d replica(s) did not stop in time; killing them", len(actors) - len(done))
    for actor in [*actors, registry]:
        ray.kill(actor)
    for group in groups:
        remove_placement_group(group)
