"""The generate stage: prompts to samples/ and failures/, then the COMPLETE file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ray_jobs.config.schema import Config
from ray_jobs.core.errors import StageError
from ray_jobs.generation import prompts
from ray_jobs.generation.ask import Counts, ask, manifest
from ray_jobs.generation.target_text import TargetText, fingerprint
from ray_jobs.store.run_dir import RunDir

log = logging.getLogger(__name__)

LATER_STAGES = ("generate", "train", "export", "evaluate")


def run(cfg: Config, run_dir: RunDir, text: TargetText, attempt: int, connect: Callable[[], Any]) -> Counts:
    """Answer every prompt of the configuration; what is answered already is not asked again.

    Raises:
        StageError: rows are left, or more rows failed than `generate.max_failed_share`.
    """
    run_dir.check_fingerprint(fingerprint(cfg, text))
    store = run_dir.samples
    picked = prompts.pick(cfg.data)
    new = prompts.add_to(store, picked, text.chat)
    log.info(
        "prompts: %d picked (%s), %d new, %d dropped, %d duplicate(s)",
        len(picked.rows),
        ", ".join(f"{name} {n}" for name, n in picked.by_source.items()),
        new,
        len(picked.dropped),
        picked.duplicates,
    )
    if new or cfg.generate.retry_failed:
        for stage in LATER_STAGES:
            run_dir.reopen(stage)
    sampling = text.sampling(cfg.generate.sampling)
    counts = ask(cfg, run_dir, store, text, sampling, attempt=attempt, stage="generate", connect=connect)
    _check_failures(cfg, counts)
    facts = manifest(store, counts)
    if run_dir.complete("generate") != facts:
        # also after a crash between adding prompts and taking the COMPLETE files away
        for stage in LATER_STAGES:
            run_dir.reopen(stage)
        run_dir.set_complete("generate", facts)
    run_dir.write_status(stage="generate", state="complete", done=counts.ok, **_rest(counts))
    return counts


def _rest(counts: Counts) -> dict[str, Any]:
    facts = asdict(counts)
    return {"failed": facts["failed"], "total": facts["rows"], "in_flight": 0, "asked": facts["asked"]}


def _check_failures(cfg: Config, counts: Counts) -> None:
    share = counts.failed / counts.rows
    if share > cfg.generate.max_failed_share:
        raise StageError(
            f"{counts.failed} of {counts.rows} prompts failed, more than "
            f"generate.max_failed_share={cfg.generate.max_failed_share:g}; see failures/. "
            "Raise it to go on, or ask them again with generate.retry_failed=true."
        )
