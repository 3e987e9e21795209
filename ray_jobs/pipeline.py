"""All stages in order: `python -m ray_jobs.pipeline [overrides]`. What is done is skipped; running it again resumes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ray_jobs import plan, stages
from ray_jobs.config.load import check_trainable, command
from ray_jobs.config.schema import Config
from ray_jobs.evaluation.report import report_path
from ray_jobs.evaluation.table import show

STAGES: dict[str, Callable[[stages.OpenRun], Any]] = {
    "generate": stages.generate,
    "train": stages.train,
    "export": stages.export,
    "evaluate": stages.evaluate,
}


def main(cfg: Config) -> int:
    """generate, train, export, evaluate; one table at the end."""
    if cfg.dry_run:
        return plan.show(cfg, tuple(STAGES))
    check_trainable(cfg)
    seconds: dict[str, float] = {}
    with stages.open_run(cfg) as run:
        for name, stage in STAGES.items():
            started = time.monotonic()
            stage(run)
            seconds[name] = time.monotonic() - started
    # said when Ray is gone: its workers' log lines would come in between and after
    show(run.folder, seconds)
    exported = run.folder.complete("export") or {}
    print(f"serve it: {exported.get('serve')}")
    print(f"summary: {run.folder.summary}")
    print(f"report: {report_path(run.folder)}")
    return 0


if __name__ == "__main__":
    command(main)()
