"""Answer prompts: `python -m ray_jobs.generate [overrides]`. Running it again resumes."""

from __future__ import annotations

from ray_jobs import plan, stages
from ray_jobs.config.load import command
from ray_jobs.config.schema import Config


def main(cfg: Config) -> int:
    """prompts -> samples/, failures/."""
    if cfg.dry_run:
        return plan.show(cfg, ("generate",))
    with stages.open_run(cfg) as run:
        counts = stages.generate(run)
        print(f"{run.folder.path}: {counts.rows} prompts = {counts.ok} ok + {counts.failed} failed")
    return 0


if __name__ == "__main__":
    command(main)()
