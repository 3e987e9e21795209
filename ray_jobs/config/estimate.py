"""The bill of a run, from its configuration alone: rows, tokens, bytes, GPUs, hours. Estimates, and said to be so."""

from __future__ import annotations

from dataclasses import dataclass

from ray_jobs.config.schema import Config, FeatureMode

BYTES_PER_TOKEN = 10
"""samples/ on disk: an id of 4 bytes, its text of about 4, both compressed, and the columns around."""
FEATURE_BYTES = 2
"""bfloat16."""
TRAIN_TOKENS_PER_S_GPU = 6000
"""A one-layer drafter of hidden size 4096, 7 unrolled steps, one H100-class GPU; scaled by hidden size squared."""


@dataclass(frozen=True)
class Bill:
    """What a run will take; None where the configuration does not say enough."""

    rows: int | None
    output_tokens: int | None
    train_tokens: int | None
    sample_bytes: int | None
    feature_bytes_per_token: int | None
    feature_bytes: int | None
    features_stored: bool
    generate_gpus: int
    train_gpus: int
    generate_hours: float | None
    train_hours: float | None

    @property
    def gpus(self) -> int:
        """GPUs at the same time: stages follow each other, unless features stream from servers to trainer."""
        if self.features_stored or self.feature_bytes is None:
            return max(self.generate_gpus, self.train_gpus)
        return self.generate_gpus + self.train_gpus


def prompts_of(cfg: Config, counted: int | None = None) -> int | None:
    """Prompts to ask: what the files hold if they could be counted, else what the configuration says."""
    if counted is None:
        said = [source.rows for source in cfg.data.sources] if not cfg.data.files else [None]
        total = None if None in said else sum(n for n in said if n is not None)
    else:
        total = counted
    limit = cfg.data.limit
    if total is None:
        return limit
    return total if limit is None else min(total, limit)


def _train_rate(cfg: Config) -> float | None:
    """Tokens a second of one training worker."""
    hidden = cfg.target.hidden_size
    if cfg.train.tokens_per_s is not None:
        return cfg.train.tokens_per_s
    if not cfg.train.gpus_per_worker or hidden is None:
        return None
    return TRAIN_TOKENS_PER_S_GPU * cfg.train.gpus_per_worker * (4096 / hidden) ** 2


def estimate(cfg: Config, counted: int | None = None) -> Bill:
    """The bill; `counted` is the number of usable prompts where the files are at hand."""
    prompts = prompts_of(cfg, counted)
    rows = None if prompts is None else prompts * cfg.data.samples_per_prompt
    mean = cfg.generate.mean_output_tokens or cfg.generate.sampling.max_new_tokens // 2
    output = None if rows is None else rows * mean
    kept = 1.0 - cfg.data.held_out_share
    row_tokens = min(mean + cfg.data.mean_prompt_tokens, cfg.train.max_length)
    epoch = None if rows is None else int(rows * kept * row_tokens)
    train = None if epoch is None else epoch * cfg.train.epochs
    hidden = cfg.target.hidden_size
    per_token = None if hidden is None else 4 * hidden * FEATURE_BYTES
    online = cfg.features.mode is FeatureMode.online
    # streamed features are made anew in each epoch, those in memory once
    feature_tokens = train if online else epoch
    feature = None if feature_tokens is None or per_token is None else feature_tokens * per_token
    speed = cfg.replicas.tokens_per_s
    generate_s = None if output is None or speed is None else output / (speed * cfg.replicas.n_replicas)
    train_gpus = cfg.train.workers * cfg.train.gpus_per_worker
    rate = _train_rate(cfg)
    train_s = None if train is None or rate is None else train / (rate * cfg.train.workers)
    return Bill(
        rows=rows,
        output_tokens=output,
        train_tokens=train,
        sample_bytes=None
        if output is None or rows is None
        else (output + rows * cfg.data.mean_prompt_tokens) * BYTES_PER_TOKEN,
        feature_bytes_per_token=per_token,
        feature_bytes=feature,
        features_stored=not online,
        generate_gpus=cfg.replicas.n_replicas * cfg.replicas.gpus,
        train_gpus=train_gpus,
        generate_hours=None if generate_s is None else generate_s / 3600,
        train_hours=None if train_s is None else train_s / 3600,
    )
