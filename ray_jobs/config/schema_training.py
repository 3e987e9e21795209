"""The sections of the configuration from features to evaluation; `schema` has the tree that they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ray_jobs.config.rules import at_least, require
from ray_jobs.core.schemas import FLAGS, SEGMENT_KINDS


class FeatureMode(Enum):
    """How the target's hidden states reach the trainer."""

    in_process = "in_process"
    online = "online"


class Precision(Enum):
    """Number format of the trainer's matrix products; weights and optimiser stay in float32."""

    float32 = "float32"
    bfloat16 = "bfloat16"


@dataclass(kw_only=True)
class FeaturesConfig:
    """The target's hidden states for training."""

    mode: FeatureMode = FeatureMode.in_process
    """`in_process`: a transformers forward of the target in each training worker (small targets).
    `online`: captured in the servers and streamed, nothing stored; this version bills it, and refuses to train."""
    dtype: Precision = Precision.bfloat16
    """Number format of the target's forward."""
    cache_bytes: int = 1_000_000_000
    """Features kept in memory by each training worker, so that later epochs need no forward; 0: none."""

    def __post_init__(self) -> None:
        at_least("features", {"cache_bytes": self.cache_bytes}, 0)


@dataclass(kw_only=True)
class DrafterConfig:
    """The EAGLE-3 drafter; null sizes are the target's."""

    vocab_size: int = 32000
    """Draft vocabulary: the ids sampled most often; clamped to nothing: larger than the target's is refused."""
    intermediate_size: int | None = None
    """Width of the MLP."""
    n_heads: int | None = None
    """Attention heads."""
    n_kv_heads: int | None = None
    """Key/value heads."""
    aux_layers: list[int] | None = None
    """Layer outputs that the drafter reads; null: 1, n//2-1, n-4."""
    unroll_steps: int = 7
    """Draft steps unrolled in training."""
    step_decay: float = 0.8
    """Weight of step i is step_decay**i."""

    def __post_init__(self) -> None:
        counts = {k: getattr(self, k) for k in ("vocab_size", "intermediate_size", "n_heads", "n_kv_heads")}
        at_least("drafter", counts, 1)
        at_least("drafter", {"unroll_steps": self.unroll_steps}, 1)
        ok = 0 < self.step_decay <= 1
        require(ok, "drafter.step_decay", self.step_decay, "must be in (0, 1]", "EAGLE-3 uses 0.8.")


@dataclass(kw_only=True)
class TrainRowsConfig:
    """Which rows of samples/ are trained on."""

    exclude: list[str] = field(default_factory=list)
    """Rows with any of these flags (column `flags` of samples/) are not trained on; empty: all rows are. What is
    measured on held-out rows keeps all of them, so that figures stay comparable."""

    def __post_init__(self) -> None:
        unknown = [flag for flag in self.exclude if flag not in FLAGS]
        shown = ", ".join(unknown)
        require(not unknown, "train.rows.exclude", shown, "is no flag of a row", f"The flags are {', '.join(FLAGS)}.")


@dataclass(kw_only=True)
class TrainConfig:
    """samples/ -> checkpoints/."""

    workers: int = 2
    """Ray Train workers."""
    gpus_per_worker: int = 0
    """GPUs of one worker; 0 trains on the CPU."""
    cpus_per_worker: float = 1.0
    """Logical CPUs of one worker."""
    threads: int | None = None
    """Torch threads of a CPU worker; null: torch's default."""
    kinds: list[str] = field(default_factory=lambda: ["reasoning", "content", "tool_call"])
    """Segment kinds whose ids are trained; markers and the turn end always are."""
    rows: TrainRowsConfig = field(default_factory=TrainRowsConfig)
    """Which rows are trained on."""
    epochs: int = 1
    """Passes over the training rows."""
    rows_per_step: int = 16
    """Rows of one optimiser step, over all workers; the result does not depend on the number of workers."""
    tokens_per_micro_batch: int = 4096
    """Most ids packed into one forward pass of a worker."""
    max_length: int = 4096
    """Longer rows are cut there, from the end."""
    learning_rate: float = 1e-4
    """Peak rate of AdamW; cosine to zero after the warm-up."""
    warmup_share: float = 0.015
    """Share of the steps in which the rate rises."""
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    """AdamW's two decay rates."""
    weight_decay: float = 0.0
    """AdamW's weight decay."""
    clip: float = 0.5
    """Largest gradient norm."""
    precision: Precision = Precision.bfloat16
    """Format of the drafter's matrix products."""
    checkpoint_every: int = 50
    """Optimiser steps between two checkpoints."""
    log_every: int = 10
    """Optimiser steps between two lines of metrics.jsonl."""
    tokens_per_s: float | None = None
    """Tokens a second of one worker, for the bill only; null: a guess for an H100-class GPU, none for a CPU."""
    max_failures: int = 2
    """Times that Ray Train restarts the workers from the last checkpoint."""

    def __post_init__(self) -> None:
        names = ("workers", "epochs", "rows_per_step", "checkpoint_every", "log_every")
        at_least("train", {k: getattr(self, k) for k in names}, 1)
        at_least("train", {"tokens_per_micro_batch": self.tokens_per_micro_batch, "max_length": self.max_length}, 3)
        at_least("train", {"threads": self.threads}, 1)
        at_least("train", {k: getattr(self, k) for k in ("gpus_per_worker", "weight_decay", "max_failures")}, 0)
        names = ("cpus_per_worker", "learning_rate", "clip", "tokens_per_s")
        at_least("train", {k: getattr(self, k) for k in names}, 0, strict=True)
        ok = 0 <= self.warmup_share < 1
        require(ok, "train.warmup_share", self.warmup_share, "must be in [0, 1)", "Lower it.")
        ok = len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas)
        require(ok, "train.betas", self.betas, "must be two numbers in [0, 1)", "Use [0.9, 0.95].")
        unknown = [k for k in self.kinds if k not in SEGMENT_KINDS or k in ("marker", "stop", "excess")]
        rule = "may hold only reasoning, content and tool_call"
        require(not unknown and bool(self.kinds), "train.kinds", self.kinds, rule, "Name at least one of them.")
        fits = self.max_length <= self.tokens_per_micro_batch
        rule = f"must fit train.tokens_per_micro_batch={self.tokens_per_micro_batch}"
        require(fits, "train.max_length", self.max_length, rule, "Lower it, or raise the other.")


@dataclass(kw_only=True)
class ServedConfig:
    """The target served with and without the drafter, by SGLang servers that are started for it in turn."""

    enabled: bool = False
    """Measure it; needs `replicas.kind=serve`."""
    engine_args: dict[str, Any] = field(default_factory=dict)
    """Added to `replicas.engine_args` for these servers, with and without the drafter; null takes one away."""
    prompts: int = 64
    """Held-out prompts to send, at most: the first of those of the offline figure."""
    concurrency: list[int] = field(default_factory=lambda: [1, 8])
    """Requests in flight at once, one pass each; accepted length and outputs are those of the last pass."""
    timed_prompts: int = 16
    """Prompts of every pass but the last: one after the other they take long."""

    def __post_init__(self) -> None:
        at_least("evaluate.served", {"prompts": self.prompts, "timed_prompts": self.timed_prompts}, 1)
        ok = bool(self.concurrency) and all(n >= 1 for n in self.concurrency)
        require(ok, "evaluate.served.concurrency", self.concurrency, "must hold numbers from 1", "Use [1, 8].")


@dataclass(kw_only=True)
class EvaluateConfig:
    """Accepted length of the exported drafter."""

    draft_tokens: list[int] = field(default_factory=lambda: [3])
    """Draft tokens a step to measure; the first is the headline."""
    prompts: int = 64
    """Held-out prompts to answer, at most."""
    max_new_tokens: int | None = None
    """Longest greedy answer; null: generate.sampling.max_new_tokens."""
    resamples: int = 2000
    """Bootstrap resamples over prompts for the 95 % interval."""
    served: ServedConfig = field(default_factory=ServedConfig)
    """The same prompts on real servers."""

    def __post_init__(self) -> None:
        at_least("evaluate", {k: getattr(self, k) for k in ("prompts", "max_new_tokens")}, 1)
        at_least("evaluate", {"resamples": self.resamples}, 100)
        ok = bool(self.draft_tokens) and all(1 <= k <= 16 for k in self.draft_tokens)
        require(ok, "evaluate.draft_tokens", self.draft_tokens, "must hold numbers from 1 to 16", "Use [3].")
