"""Measure the exported drafter on held-out prompts: `python -m ray_jobs.evaluate [overrides]`."""

from __future__ import annotations

import json

from ray_jobs import plan, stages
from ray_jobs.config.load import command
from ray_jobs.config.schema import Config


def main(cfg: Config) -> int:
    """export/ -> evaluation/summary.json."""
    if cfg.dry_run:
        return plan.show(cfg, ("evaluate",))
    with stages.open_run(cfg) as run:
        print(json.dumps(stages.evaluate(run), indent=2))
    return 0


if __name__ == "__main__":
    command(main)()
