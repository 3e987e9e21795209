"""A SampleSet's prompts to its samples, exactly once: pending -> Ray Data -> audit (design section 5)."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray.data
from ray.data import ActorPoolStrategy, DataContext
from ray.data.checkpoint import CheckpointConfig, CheckpointManager
from ray.data.exceptions import ExecutionTimeoutError, SystemException
from ray.exceptions import RayError

from ray_jobs.cluster.replicas import Replicas, running
from ray_jobs.config.schema import Config
from ray_jobs.core.errors import StageError
from ray_jobs.core.schemas import PROMPTS, SAMPLES, SCHEMA_VERSION
from ray_jobs.generation.progress import Progress
from ray_jobs.generation.stage import Generate, Settings
from ray_jobs.generation.target_text import TargetText
from ray_jobs.store.atomic_filesystem import atomic_local_filesystem
from ray_jobs.store.run_dir import RunDir
from ray_jobs.store.sample_set import SampleSet

log = logging.getLogger(__name__)

PENDING = pa.schema([PROMPTS.field(i) for i in range(len(PROMPTS) - 1)] + [pa.field("journaled", pa.string())])
BLOCKS_AHEAD = 3
"""Rows in a client's hands, in multiples of its slots, so that a block's stragglers leave no slot idle."""


class WritesOnly(CheckpointManager):
    """Ray's checkpoint without its filter: what Ray reads holds no committed row, so there is nothing to filter.

    The filter would hold a CPU and a gigabyte; recovery has been done by `SampleSet.recover` under the run's lock.
    """

    def load_checkpoint(self, data_file_dir: Any = None, data_file_filesystem: Any = None) -> tuple[None, int]:  # noqa: ARG002
        """Nothing to restore."""
        return None, 0


@dataclass(frozen=True)
class Counts:
    """A finished stage in figures."""

    rows: int
    ok: int
    failed: int
    asked: int
    """Rows that this command had to ask; 0 if all was done before."""


def ask(
    cfg: Config,
    run: RunDir,
    store: SampleSet,
    text: TargetText,
    sampling: dict[str, Any],
    *,
    attempt: int,
    stage: str,
    connect: Callable[[], Any],
) -> Counts:
    """Ask every prompt of `store` that has neither a committed row nor a final failure.

    `connect` opens Ray; it is entered only when there is something to ask.

    Raises:
        StageError: rows are left; running the same command again asks only them.
    """
    cut = store.recover()
    if cut:
        log.info("%d write(s) of an earlier attempt were cut short; their rows are asked again", cut)
    for folder in (store.samples, store.failures, store.checkpoint, store.outcomes, store.journal):
        folder.mkdir(parents=True, exist_ok=True)
    committed = set(store.committed())
    store.write_failures(committed, forget=cfg.generate.retry_failed)
    done = committed | set(store.failed())
    pending = _pending(store, done)
    if pending.num_rows:
        rows = store.write_pending(attempt, pending)
        settings = _settings(cfg, store, text, sampling, attempt)
        with connect(), running(cfg.replicas, text.location, run.path / "logs" / f"attempt_{attempt}") as replicas:
            n_done = {"ok": len(committed), "failed": len(done) - len(committed)}
            total = len(done) + pending.num_rows
            with Progress(run, stage, replicas.registry, n_done, total, cfg.generate.status_every_s) as progress:
                try:
                    _write(cfg, store, str(rows), settings, replicas)
                except (RayError, SystemException, ExecutionTimeoutError) as error:
                    progress.raise_if_stopped()
                    raise _stage_error(error) from error
            progress.raise_if_stopped()
    return _finish(store, pending.num_rows)


def _pending(store: SampleSet, done: set[str]) -> pa.Table:
    """The prompts to ask, in order, each with the answer that a journal holds for it."""
    prompts = store.prompt_table()
    mask = [row_id not in done for row_id in prompts["row_id"].to_pylist()]
    open_rows = prompts.filter(pa.array(mask, pa.bool_())).drop_columns(["error"])
    ids = open_rows["row_id"].to_pylist()
    answers = {record["row_id"]: json.dumps(record) for record in store.journaled(set(ids))}
    if answers:
        log.info("%d finished row(s) of an earlier attempt come from its journal", len(answers))
    journaled = pa.array([answers.get(row_id) for row_id in ids], pa.string())
    return open_rows.append_column("journaled", journaled).cast(PENDING)


def _settings(cfg: Config, store: SampleSet, text: TargetText, sampling: dict[str, Any], attempt: int) -> Settings:
    return Settings(
        folder=str(store.path),
        attempt=attempt,
        model=cfg.target.model,
        location=text.location,
        revision=cfg.target.revision,
        trust_remote_code=cfg.target.trust_remote_code,
        thinking=cfg.target.thinking,
        markers_family=cfg.target.markers,
        limits=text.limits,
        sampling=sampling,
        attempts=cfg.generate.attempts,
        least_tokens_per_s=cfg.generate.least_tokens_per_s,
        slots=cfg.replicas.slots,
    )


def _write(cfg: Config, store: SampleSet, rows: str, settings: Settings, replicas: Replicas) -> None:
    """Run the data set; returns when every block is written."""
    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.execution_no_progress_timeout_s = cfg.cluster.no_progress_timeout_s
    context.checkpoint_config = CheckpointConfig(
        id_column="row_id",
        checkpoint_path=str(store.checkpoint),
        delete_checkpoint_on_success=False,
        checkpoint_manager_cls=WritesOnly,
    )
    calls = math.ceil(BLOCKS_AHEAD * replicas.slots / cfg.generate.rows_per_block)
    pool = ActorPoolStrategy(
        size=replicas.count, max_concurrent_calls_per_actor=calls, max_tasks_in_flight_per_actor=calls + 2
    )
    with DataContext.current(context):
        dataset = ray.data.read_parquet(rows).repartition(target_num_rows_per_block=cfg.generate.rows_per_block)
        dataset = dataset.map_batches(
            Generate,
            fn_constructor_args=(settings, replicas.registry),
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=0,
            compute=pool,
        )
        dataset.write_parquet(
            str(store.samples),
            min_rows_per_file=cfg.generate.rows_per_file,
            filesystem=atomic_local_filesystem(),
            ray_remote_args={"num_cpus": 0.2},
            schema=SAMPLES,
        )


def _stage_error(error: Exception) -> StageError:
    """One line for what Ray Data raised; the traceback goes to the attempt's log."""
    log.debug("Ray Data failed", exc_info=error)
    text = str(error)
    if "No space left on device" in text or "[Errno 28]" in text:
        return StageError("the disk is full. Free space and run the same command again; nothing finished is lost.")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if "Error" in line.split(":")[0]), lines[-1] if lines else "?")
    return StageError(f"Ray Data stopped: {reason[:300]}. Run the same command again; nothing finished is lost.")


def _finish(store: SampleSet, asked: int) -> Counts:
    """Failures, audit, journals: what the driver alone does, after the write has returned.

    Raises:
        StageError: the sets do not add up.
    """
    listed = store.committed()
    committed = set(listed)
    store.write_failures(committed)
    prompts, failed = store.prompt_ids_of_rows(), set(store.failed())
    present = [pq.read_table(f, columns=["row_id"])["row_id"].to_pylist() for f in store.samples.glob("*.parquet")]
    on_disk = Counter(row_id for ids in present for row_id in ids)
    problems = {
        "row(s) committed twice": len(listed) - len(committed),
        "committed row(s) not in samples/": len(committed - on_disk.keys()),
        "row(s) in samples/ that were not committed, or twice": sum(on_disk.values()) - len(on_disk.keys() & committed),
        "row(s) both committed and failed": len(committed & failed),
        "row(s) that nobody asked for": len((committed | failed) - set(prompts)),
    }
    found = [f"{count} {what}" for what, count in problems.items() if count]
    if found:
        raise StageError(f"audit of {store.path}: {', '.join(found)}. Keep the folder and report this.")
    store.prune_journal(committed)
    left = len(set(prompts) - committed - failed)
    if left:
        raise StageError(f"{left} of {len(prompts)} prompts are still open. Run the same command again.")
    return Counts(rows=len(prompts), ok=len(committed), failed=len(failed), asked=asked)


def manifest(store: SampleSet, counts: Counts) -> dict[str, Any]:
    """What a COMPLETE file says of a data set."""
    ids = "\n".join(sorted(store.committed()))
    return {
        "rows": counts.rows,
        "ok": counts.ok,
        "failed": counts.failed,
        "files": sorted(f.name for f in store.samples.glob("*.parquet")),
        "ids_sha256": hashlib.sha256(ids.encode()).hexdigest(),
        "schema_version": SCHEMA_VERSION,
    }
