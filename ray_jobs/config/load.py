"""From Hydra's DictConfig to the checked dataclass tree; DictConfig never leaves this file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ray_jobs.config.messages import to_config_error
from ray_jobs.config.schema import Config, FeatureMode, ReplicaKind, require
from ray_jobs.config.words import quoted
from ray_jobs.core.errors import EagleRayError

HYDRA_FLAGS = ("--help", "--cfg", "--info", "--resolve", "--package", "--version")
"""What Hydra answers by itself: `--cfg job` prints the composed configuration."""

CONF_DIR = Path(__file__).resolve().parents[2] / "conf"

ConfigStore.instance().store(name="schema", node=Config)


def load(tree: DictConfig, words: Sequence[str] = ()) -> Config:
    """The checked configuration; `words` of the command line make its errors more precise.

    Raises:
        ConfigError: a value is missing, of the wrong type, or does not go with another.
    """
    try:
        # merged once more, because `+section.key=1` puts any key into a typed section without a word
        typed = OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.to_container(tree))
        made = OmegaConf.to_object(typed)
    except OmegaConfBaseException as error:
        raise to_config_error(error, words) from None
    assert isinstance(made, Config)
    check(made)
    return made


def compose(overrides: list[str]) -> Config:
    """The configuration for these command-line words, as a command would see it."""
    with hydra.initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        try:
            tree = hydra.compose("config", overrides=quoted(overrides))
        except (HydraException, OmegaConfBaseException) as error:
            raise to_config_error(error, overrides) from None
    return load(tree, overrides)


def check(cfg: Config) -> None:
    """Rules between sections."""
    root = cfg.run.root or ""
    action = "Use shared POSIX storage, and copy afterwards: aws s3 cp --recursive RUN s3://BUCKET/RUN."
    require("://" not in root, "run.root", root, "must be a folder, not an object store", action)
    _check_replicas(cfg)
    require(
        not cfg.evaluate.served.enabled or cfg.replicas.kind is ReplicaKind.serve,
        "evaluate.served.enabled",
        "true",
        f"needs servers that we start, and replicas.kind={cfg.replicas.kind.value}",
        "Use replicas=serve or replicas=sglang_cpu, or leave it out.",
    )
    asked = cfg.generate.sampling.max_new_tokens
    length = cfg.target.context_length
    require(
        length is None or asked < length,
        "generate.sampling.max_new_tokens",
        asked,
        f"prompt + output must fit target.context_length={length}",
        "Lower it, or raise target.context_length.",
    )
    size, vocab = cfg.drafter.vocab_size, cfg.target.vocab_size
    require(
        vocab is None or size <= vocab,
        "drafter.vocab_size",
        size,
        f"must be at most target.vocab_size={vocab}",
        "Lower it.",
    )
    slowest = asked / cfg.generate.least_tokens_per_s
    require(
        cfg.cluster.no_progress_timeout_s > slowest,
        "cluster.no_progress_timeout_s",
        cfg.cluster.no_progress_timeout_s,
        f"must exceed the longest answer, {slowest:.0f} s (generate.sampling.max_new_tokens / least_tokens_per_s)",
        "Raise it, or generate.least_tokens_per_s.",
    )
    require(
        bool(cfg.data.sources or cfg.data.files),
        "data.files",
        cfg.data.files,
        "there is nothing to ask",
        "Give prompt files: 'data.files=[my.jsonl]'.",
    )


def _check_replicas(cfg: Config) -> None:
    replicas = cfg.replicas
    external = replicas.kind is ReplicaKind.addresses
    require(
        bool(replicas.addresses) == external,
        "replicas.addresses",
        replicas.addresses,
        f"{'needed' if external else 'not used'} with replicas.kind={replicas.kind.value}",
        "Use replicas=addresses 'replicas.addresses=[http://host:30000]', or leave them out.",
    )
    for address in replicas.addresses:
        ok = address.startswith(("http://", "https://")) and len(address.split("://", 1)[1]) > 0
        require(ok, "replicas.addresses", address, "must be http://host:port", "Correct it.")
        secret = "@" in address
        action = "Set EAGLE_RAY_API_KEY in the environment."
        require(not secret, "replicas.addresses", "(hidden)", "may not hold credentials", action)
    require(
        not (replicas.kind is ReplicaKind.embedded and replicas.gpus),
        "replicas.gpus",
        replicas.gpus,
        "the embedded server runs on the CPU",
        "Use replicas=serve, or replicas.gpus=0.",
    )


def check_trainable(cfg: Config) -> None:
    """Rules for the train stage alone, so that generating and dry runs stay possible."""
    require(
        cfg.features.mode is FeatureMode.in_process,
        "features.mode",
        cfg.features.mode.value,
        "training needs features, and this version captures them in process only",
        "Use features.mode=in_process for a target that fits a training worker.",
    )
    needed = cfg.train.workers * cfg.train.cpus_per_worker
    local = cfg.cluster.address is None and not os.environ.get("RAY_ADDRESS")
    require(
        not local or needed <= cfg.cluster.num_cpus,
        "train.workers",
        cfg.train.workers,
        f"needs {needed:g} CPUs and cluster.num_cpus={cfg.cluster.num_cpus}",
        "Lower it, or train.cpus_per_worker, or raise cluster.num_cpus (logical CPUs).",
    )


def command(main: Callable[[Config], int]) -> Callable[[], None]:
    """Turn `main(cfg) -> exit code` into a Hydra command that says errors in one line.

    Exit codes: 0 done, 1 the stage failed, 2 the configuration is wrong, 3 a guard stopped the run.
    """

    def entry() -> None:
        try:
            sys.exit(_run(main))
        except EagleRayError as error:
            _fail(error)

    return entry


def _run(main: Callable[[Config], int]) -> int:
    overrides = sys.argv[1:]
    flags = [word for word in overrides if word.startswith("-")]
    for word in flags:
        # another flag, such as --multirun, would run nothing and say nothing
        require(word in HYDRA_FLAGS, "flag", word, "is not one of this command", f"Use {', '.join(HYDRA_FLAGS)}.")
    if flags:
        hydra.main(config_path=str(CONF_DIR), config_name="config", version_base="1.3")(lambda tree: load(tree))()
        return 0
    return main(compose(overrides))


def _fail(error: EagleRayError) -> NoReturn:
    print(f"error: {error}", file=sys.stderr, flush=True)
    sys.exit(error.exit_code)


def runs_root(cfg: Config) -> Path:
    """The folder of all runs, absolute (design 4.1)."""
    return Path(cfg.run.root or os.environ.get("EAGLE_RAY_RUNS") or "runs").expanduser().absolute()


def as_yaml(cfg: Config) -> str:
    """The resolved configuration, for the run folder."""
    return OmegaConf.to_yaml(OmegaConf.structured(cfg))
