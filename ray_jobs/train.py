"""Train a drafter on a run's samples: `python -m ray_jobs.train [overrides]`. Running it again resumes."""

from __future__ import annotations

from ray_jobs import plan, stages
from ray_jobs.config.load import command
from ray_jobs.config.schema import Config


def main(cfg: Config) -> int:
    """samples/ -> checkpoints/."""
    if cfg.dry_run:
        return plan.show(cfg, ("train",))
    with stages.open_run(cfg) as run:
        result = stages.train(run)
        print(f"{result.checkpoint}: {result.facts['n_steps']} steps on {result.facts['rows']} rows")
    return 0


if __name__ == "__main__":
    command(main)()
