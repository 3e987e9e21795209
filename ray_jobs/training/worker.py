"""What one Ray Train worker does: load the target, build the drafter, pull features, run the loop, report."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
from torch.nn.parallel import DistributedDataParallel

from ray_jobs.core.files import read_json_lines, write_atomic
from ray_jobs.drafter.batch import Batch
from ray_jobs.drafter.loss import TrainableDrafter
from ray_jobs.drafter.model import DrafterShape, Eagle3Drafter, initialise
from ray_jobs.drafter.teacher import Teacher
from ray_jobs.drafter.vocab import vocab_from_ids
from ray_jobs.store.sample_set import SampleSet
from ray_jobs.target.in_process import InProcessTarget
from ray_jobs.training import checkpoint
from ray_jobs.training.data import Order, TrainingSet, pack, share
from ray_jobs.training.features import InProcessFeatures, empty_batch, to_batch
from ray_jobs.training.loop import LoopSettings, Step, evaluate, make_optimizer, train


@dataclass(frozen=True)
class WorkerSettings:
    """Everything a worker needs; plain data."""

    samples: str
    metrics: str
    target_folder: str
    trust_remote_code: bool
    shape: DrafterShape
    draft_ids: list[int]
    loop: LoopSettings
    seed: int
    rows_per_step: int
    epochs: int
    kinds: list[str]
    exclude: list[str]
    max_length: int
    held_out_share: float
    tokens_per_micro_batch: int
    betas: list[float]
    weight_decay: float
    feature_dtype: str
    cache_bytes: int
    threads: int | None
    checkpoint_every: int
    log_every: int


class Worker:
    """One rank's objects."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.set = settings
        context = ray.train.get_context()
        self.rank, self.world = context.get_world_rank(), context.get_world_size()
        device = settings.loop.device
        self.target = InProcessTarget.load(
            settings.target_folder,
            dtype=settings.feature_dtype,
            aux_layers=list(settings.shape.aux_layers),
            threads=settings.threads,
            trust_remote_code=settings.trust_remote_code,
            device=device,
        )
        store = SampleSet(Path(settings.samples))
        self.rows = self._side(store, held_out=False)
        self.held_out = self._side(store, held_out=True)
        self.order = Order(len(self.rows), settings.rows_per_step, settings.epochs, settings.seed)
        self.source = InProcessFeatures(
            self.target, cache_bytes=settings.cache_bytes, most_tokens=settings.tokens_per_micro_batch
        )
        self._build()

    def _side(self, store: SampleSet, *, held_out: bool) -> TrainingSet:
        return TrainingSet.load(
            store,
            held_out=held_out,
            share=self.set.held_out_share,
            kinds=self.set.kinds,
            max_length=self.set.max_length,
            exclude=() if held_out else self.set.exclude,
        )

    def _build(self) -> None:
        vocab = vocab_from_ids(torch.tensor(self.set.draft_ids), self.set.shape.vocab_size)
        lm_head = self.target.lm_head.detach()
        drafter = Eagle3Drafter(self.set.shape, self.target.embedding).to(self.set.loop.device)
        initialise(
            drafter, lm_head[vocab.ids.to(lm_head.device)].float(), self.target.final_norm.float(), self.set.seed
        )
        optimizer, schedule = make_optimizer(drafter, self.set.loop, self.set.betas, self.set.weight_decay)
        self.state = checkpoint.TrainState(drafter, self.set.shape, vocab, optimizer, schedule)
        model = TrainableDrafter(drafter, Teacher(lm_head, vocab))
        self.model = DistributedDataParallel(model) if self.world > 1 else model

    def resume(self) -> int:
        """The next step: 0, or what the latest checkpoint says."""
        latest = ray.train.get_checkpoint()
        if latest is None:
            return 0
        with latest.as_directory() as folder:
            return checkpoint.restore(Path(folder), self.state)

    def steps(self, first: int) -> Iterator[Step]:
        """This rank's part of each step from `first` on."""
        for number in range(first, self.order.n_steps):
            mine = share(self.order.rows(number), self.rows.lengths, self.rank, self.world)
            yield Step(number, self._batches(self.rows, mine) or [self._nothing()])

    def check_held_out(self) -> dict[str, Any]:
        """Metrics of the held-out rows, all ranks together."""
        mine = share(range(len(self.held_out)), self.held_out.lengths, self.rank, self.world)
        # not the wrapper: without gradients there is nothing to exchange, and ranks may have unequal parts
        model = self.model.module if isinstance(self.model, DistributedDataParallel) else self.model
        return evaluate(model, self._batches(self.held_out, mine), self.set.loop)

    def _batches(self, rows: TrainingSet, indices: list[int]) -> list[Batch]:
        batches = []
        for group in pack(indices, rows.lengths, self.set.tokens_per_micro_batch):
            members = [rows[i] for i in group]
            batches.append(to_batch(members, self.source.features(members)))
        return batches

    def _nothing(self) -> Batch:
        return empty_batch(self.set.shape.target_hidden_size, len(self.set.shape.aux_layers), self.target.dtype)


def work(config: dict[str, Any]) -> None:
    """The function that Ray Train runs on every worker."""
    settings: WorkerSettings = config["settings"]
    worker = Worker(settings)
    first = worker.resume()
    log = _MetricsLog(Path(settings.metrics), first) if worker.rank == 0 else None
    last = worker.order.n_steps - 1
    for facts in train(worker.model, worker.state.optimizer, worker.state.schedule, worker.steps(first), settings.loop):
        step = facts["step"]
        epoch_ends = (step + 1) % worker.order.steps_per_epoch == 0
        facts["epoch"] = step // worker.order.steps_per_epoch
        facts["n_steps"] = worker.order.n_steps
        if epoch_ends and len(worker.held_out):
            facts["held_out"] = worker.check_held_out()
        if log and (step % settings.log_every == 0 or epoch_ends or step == last):
            log.append(facts)
        if step == last or (step + 1) % settings.checkpoint_every == 0:
            _report(worker, facts)


def _report(worker: Worker, facts: dict[str, Any]) -> None:
    """Save and report; every rank must call it, rank 0 brings the files."""
    if worker.rank:
        ray.train.report(facts, checkpoint=None)
        return
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        checkpoint.save(Path(folder), worker.state, facts["step"] + 1)
        ray.train.report(facts, checkpoint=ray.train.Checkpoint.from_directory(folder))


class _MetricsLog:
    """metrics.jsonl: lines of steps that will be done again are taken out first, so each step has one line."""

    def __init__(self, path: Path, first_step: int) -> None:
        kept = [r for r in (read_json_lines(path) if path.exists() else ()) if r["step"] < first_step]
        write_atomic(path, "".join(json.dumps(record) + "\n" for record in kept))
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - lives as long as the worker

    def append(self, facts: dict[str, Any]) -> None:
        """Write a line that a reader sees at once."""
        self._file.write(json.dumps(facts) + "\n")
        self._file.flush()
