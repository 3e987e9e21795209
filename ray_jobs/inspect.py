"""Look at a run's rows, counts, failures and dropped prompts: `python -m ray_jobs.inspect [overrides]`."""

from __future__ import annotations

from ray_jobs import stages
from ray_jobs.config.load import command
from ray_jobs.config.schema import Config
from ray_jobs.inspection import run as inspection


def main(cfg: Config) -> int:
    """The run's folder -> a page to read; writes nothing."""
    inspection.run(cfg, stages.run_dir(cfg))
    return 0


if __name__ == "__main__":
    command(main)()
