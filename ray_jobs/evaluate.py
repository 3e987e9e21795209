"""Measure the exported drafter on held-out prompts: `python -m ray_jobs.evaluate [overrides]`."""

from __future__ import annotations

import json

from ray_jobs import plan, stages
from ray_jobs.config.load import command
from ray_jobs.config.schema import Config
from ray_jobs.evaluation.report import report_path


def main(cfg: Config) -> int:
    """export/ -> evaluation/summary.json and report.html."""
    if cfg.dry_run:
        return plan.show(cfg, ("evaluate",))
    with stages.open_run(cfg) as run:
        summary = stages.evaluate(run)
    print(json.dumps(summary, indent=2))
    print(f"report: {report_path(run.folder)}")
    return 0


if __name__ == "__main__":
    command(main)()
