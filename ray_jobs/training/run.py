"""The train stage: samples/ to checkpoints/ with Ray Train, then the COMPLETE file."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError

from ray_jobs.config.schema import Config, Precision
from ray_jobs.core.errors import ConfigError, StageError
from ray_jobs.core.files import read_json, read_json_lines, write_json
from ray_jobs.drafter.model import DrafterShape
from ray_jobs.drafter.vocab import choose, count_ids
from ray_jobs.store.run_dir import RunDir
from ray_jobs.target.in_process import TargetFacts, default_aux_layers, read_target_facts
from ray_jobs.target.model_folder import local_folder, locate
from ray_jobs.training.data import Order, TrainingSet, facts
from ray_jobs.training.loop import LoopSettings
from ray_jobs.training.worker import WorkerSettings, work

log = logging.getLogger(__name__)

KEPT_CHECKPOINTS = 2


@dataclass(frozen=True)
class TrainResult:
    """A trained drafter."""

    checkpoint: Path
    facts: dict[str, Any]


def run(cfg: Config, run_dir: RunDir, connect: Callable[[], Any]) -> TrainResult:
    """Train on the run's committed samples; goes on from the latest checkpoint.

    Raises:
        StageError: generation is not complete, or the workers failed more often than `train.max_failures`.
        ConfigError: checkpoints/ was made with other settings.
    """
    generated = run_dir.complete("generate")
    if generated is None:
        raise StageError("samples/ is not complete. Run the generate stage first.")
    settings, made_of = _prepare(cfg, run_dir, generated)
    done = run_dir.complete("train")
    if done is not None:
        return TrainResult(run_dir.path / done["checkpoint"], done)
    log.info("training on %(rows)d rows, %(tokens)d tokens, %(n_steps)d steps", made_of)
    with connect(), _Watcher(run_dir, made_of["n_steps"]):
        result = _fit(cfg, run_dir, settings)
    done = {"checkpoint": str(result.checkpoint.relative_to(run_dir.path)), **made_of, "last": result.facts}
    run_dir.set_complete("train", done)
    run_dir.write_status(stage="train", state="complete", done=made_of["n_steps"], total=made_of["n_steps"])
    return TrainResult(result.checkpoint, done)


def _prepare(cfg: Config, run_dir: RunDir, generated: dict[str, Any]) -> tuple[WorkerSettings, dict[str, Any]]:
    """The workers' settings and the facts of the data; checks that checkpoints/ belongs to both."""
    sides = [
        TrainingSet.load(
            run_dir.samples,
            held_out=side,
            share=cfg.data.held_out_share,
            kinds=cfg.train.kinds,
            max_length=cfg.train.max_length,
            exclude=() if side else cfg.train.rows.exclude,
        )
        for side in (False, True)
    ]
    excluded = sides[0].excluded
    if excluded.rows:
        log.info("%d row(s) are not trained on, by train.rows.exclude: %s", excluded.rows, excluded)
    order = Order(len(sides[0]), cfg.train.rows_per_step, cfg.train.epochs, cfg.run.seed)
    folder = local_folder(locate(cfg.target.model), cfg.target.revision)
    target = read_target_facts(folder, trust_remote_code=cfg.target.trust_remote_code)
    vocab = choose(count_ids(sides[0].trained_ids(), target.vocab_size), cfg.drafter.vocab_size)
    log.info("draft vocabulary: %d ids cover %.2f %% of the trained tokens", len(vocab.ids), 100 * vocab.coverage)
    made_of = {
        **facts(*sides),
        "n_steps": order.n_steps,
        "coverage": vocab.coverage,
        "ids_sha256": generated["ids_sha256"],
    }
    _check_settings(cfg, run_dir, generated)
    settings = WorkerSettings(
        samples=str(run_dir.path),
        metrics=str(run_dir.metrics),
        target_folder=folder,
        trust_remote_code=cfg.target.trust_remote_code,
        shape=drafter_shape(cfg, target),
        draft_ids=vocab.ids.tolist(),
        loop=_loop_settings(cfg, order.n_steps),
        seed=cfg.run.seed,
        rows_per_step=cfg.train.rows_per_step,
        epochs=cfg.train.epochs,
        kinds=list(cfg.train.kinds),
        exclude=list(cfg.train.rows.exclude),
        max_length=cfg.train.max_length,
        held_out_share=cfg.data.held_out_share,
        tokens_per_micro_batch=cfg.train.tokens_per_micro_batch,
        betas=list(cfg.train.betas),
        weight_decay=cfg.train.weight_decay,
        feature_dtype=cfg.features.dtype.value,
        cache_bytes=cfg.features.cache_bytes,
        threads=cfg.train.threads,
        checkpoint_every=cfg.train.checkpoint_every,
        log_every=cfg.train.log_every,
    )
    return settings, made_of


def drafter_shape(cfg: Config, target: TargetFacts) -> DrafterShape:
    """The drafter's sizes: the target's, where the configuration does not say otherwise.

    Raises:
        ConfigError: more draft ids than the target has.
    """
    if cfg.drafter.vocab_size > target.vocab_size:
        rule = f"must be at most the target's {target.vocab_size}"
        raise ConfigError("drafter.vocab_size", cfg.drafter.vocab_size, rule, "Lower it.")
    n_heads = cfg.drafter.n_heads or target.n_heads
    rope = dict(target.rope_parameters)
    theta = float(rope.pop("rope_theta", 10000.0))
    scaled = rope if rope.get("rope_type", "default") != "default" else None
    return DrafterShape(
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=cfg.drafter.intermediate_size or target.intermediate_size,
        n_heads=n_heads,
        n_kv_heads=cfg.drafter.n_kv_heads or target.n_kv_heads,
        head_dim=target.head_dim,
        vocab_size=target.vocab_size,
        draft_vocab_size=cfg.drafter.vocab_size,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=theta,
        rope_scaling=scaled,
        max_position_embeddings=target.context_length,
        aux_layers=tuple(cfg.drafter.aux_layers or default_aux_layers(target.n_layers)),
    )


def _loop_settings(cfg: Config, n_steps: int) -> LoopSettings:
    return LoopSettings(
        unroll_steps=cfg.drafter.unroll_steps,
        step_decay=cfg.drafter.step_decay,
        n_steps=n_steps,
        learning_rate=cfg.train.learning_rate,
        warmup_share=cfg.train.warmup_share,
        clip=cfg.train.clip,
        bfloat16=cfg.train.precision is Precision.bfloat16,
        device="cuda" if cfg.train.gpus_per_worker else "cpu",
    )


# what may change between two attempts without changing the drafter
_FREE = (
    "workers",
    "gpus_per_worker",
    "cpus_per_worker",
    "threads",
    "checkpoint_every",
    "log_every",
    "max_failures",
    "tokens_per_s",
)


def _check_settings(cfg: Config, run_dir: RunDir, generated: dict[str, Any]) -> None:
    """Write checkpoints/settings.json, or compare: same settings go on, grown samples start anew, others are refused.

    Raises:
        ConfigError: naming the keys that differ.
    """
    train = {k: v for k, v in asdict(cfg.train).items() if k not in (*_FREE, "rows")}
    now: dict[str, Any] = {f"train.{k}": v for k, v in train.items()}
    if cfg.train.rows.exclude:
        now["train.rows.exclude"] = sorted({*cfg.train.rows.exclude})
    now |= {f"drafter.{k}": v for k, v in asdict(cfg.drafter).items()}
    now |= {"run.seed": cfg.run.seed, "features.dtype": cfg.features.dtype}
    now = {k: getattr(v, "value", v) for k, v in now.items()}
    path = run_dir.checkpoints / "settings.json"
    old = read_json(path)
    if old is not None:
        differing = sorted(k for k in now.keys() | old.keys() if now.get(k) != old.get(k) and k != "ids_sha256")
        if differing:
            shown = ", ".join(f"{k}: {old.get(k)} -> {now.get(k)}" for k in differing)
            raise ConfigError(
                "run.name",
                run_dir.path.name,
                f"its checkpoints/ were made with other settings ({shown})",
                "Set them back, choose another run.name, or remove checkpoints/ and COMPLETE.train.json.",
            )
        if old["ids_sha256"] == generated["ids_sha256"]:
            return
        number = len(list(run_dir.path.glob("checkpoints-*"))) + 1
        aside = run_dir.path / f"checkpoints-{number}"
        run_dir.checkpoints.rename(aside)
        log.warning("samples/ has grown; the checkpoints so far are kept in %s and training starts anew", aside.name)
        for stage in ("train", "export", "evaluate"):
            run_dir.reopen(stage)
    write_json(path, {**now, "ids_sha256": generated["ids_sha256"]})


def _fit(cfg: Config, run_dir: RunDir, settings: WorkerSettings) -> TrainResult:
    resources = {"CPU": cfg.train.cpus_per_worker}
    if cfg.train.gpus_per_worker:
        resources["GPU"] = cfg.train.gpus_per_worker
    trainer = TorchTrainer(
        work,
        train_loop_config={"settings": settings},
        torch_config=TorchConfig(backend="nccl" if cfg.train.gpus_per_worker else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=cfg.train.workers,
            use_gpu=bool(cfg.train.gpus_per_worker),
            resources_per_worker=resources,
        ),
        run_config=RunConfig(
            name=run_dir.checkpoints.name,
            storage_path=str(run_dir.path),
            failure_config=FailureConfig(max_failures=cfg.train.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=KEPT_CHECKPOINTS),
        ),
    )
    try:
        result = trainer.fit()
    except TrainingFailedError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise StageError(f"training failed: {lines[-1] if lines else error}. Run again to go on.") from error
    if result.checkpoint is None:
        raise StageError(f"training ended without a checkpoint: {result.error}")
    return TrainResult(Path(result.checkpoint.path), result.metrics or {})


class _Watcher:
    """Shows the newest line of metrics.jsonl, in status.json and as a plain line."""

    def __init__(self, run_dir: RunDir, n_steps: int) -> None:
        self._run, self._n_steps = run_dir, n_steps
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="train-progress", daemon=True)
        self._shown = -1

    def __enter__(self) -> _Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _watch(self) -> None:
        while not self._stop.wait(5.0):
            lines = list(read_json_lines(self._run.metrics)) if self._run.metrics.exists() else []
            newest = lines[-1] if lines else None
            if newest is None or newest["step"] == self._shown:
                continue
            self._shown = newest["step"]
            done = self._shown + 1
            eta = (self._n_steps - done) * newest["tokens"] / max(newest["tokens_per_s"], 1e-9)
            self._run.write_status(
                stage="train",
                state="running",
                done=done,
                failed=0,
                total=self._n_steps,
                in_flight=0,
                tokens_per_s=round(newest["tokens_per_s"], 1),
                eta_s=round(eta),
            )
            log.info(
                "train: step %d/%d, loss %.3f, accuracy %s, expected accepted length %.2f, %.0f tokens/s",
                done,
                self._n_steps,
                newest["loss"],
                " ".join(f"{a:.2f}" for a in newest["accuracy"]),
                newest["expected_accepted_length"],
                newest["tokens_per_s"],
            )
