"""Joining a Ray cluster, or starting a local one for this command."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from ray_jobs.config.schema import ClusterConfig
from ray_jobs.core.errors import ConfigError

log = logging.getLogger(__name__)

# what the project's own workers need to know, wherever they start
WORKER_ENV = {"RAY_DATA_DISABLE_PROGRESS_BARS": "1"}


@contextmanager
def connected(cfg: ClusterConfig) -> Iterator[None]:
    """Ray for the body of the `with`; inside another `connected` it does nothing.

    Raises:
        ConfigError: no cluster answers at the address.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.update(WORKER_ENV)
    # a runtime with usage reports would try to reach the internet
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = cfg.address or os.environ.get("RAY_ADDRESS")
    quiet = {"logging_level": logging.WARNING, "log_to_driver": False, "namespace": f"eagle_ray_{os.getpid()}"}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            log.info("starting a local Ray with %d logical CPUs", cfg.num_cpus)
            ray.init(address="local", num_cpus=cfg.num_cpus, include_dashboard=cfg.dashboard, **quiet)
    except ConnectionError as error:
        line = " ".join(str(error).split())[:200]
        action = "Start Ray there, or leave cluster.address out for a local one."
        raise ConfigError("cluster.address", address, f"no Ray cluster answers ({line})", action) from None
    # Data and Train tell each execution plan; their own log files keep it
    for name in ("ray.data", "ray.train"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        ray.shutdown()


def n_nodes() -> int:
    """Living nodes of the cluster."""
    return sum(1 for node in ray.nodes() if node["Alive"])
