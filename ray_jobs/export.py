"""Write the trained drafter as servers load it: `python -m ray_jobs.export [overrides]`."""

from __future__ import annotations

from ray_jobs import plan, stages
from ray_jobs.config.load import command
from ray_jobs.config.schema import Config


def main(cfg: Config) -> int:
    """checkpoints/ -> export/, verified; prints the line that serves it."""
    if cfg.dry_run:
        return plan.show(cfg, ("export",))
    with stages.open_run(cfg) as run:
        print(stages.export(run))
    return 0


if __name__ == "__main__":
    command(main)()
