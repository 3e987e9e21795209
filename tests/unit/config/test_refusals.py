"""A wrong configuration is refused in one line: `<field>=<value>: <rule>. <what to do>`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ray_jobs.config.load import compose
from ray_jobs.config.messages import keys, to_config_error
from ray_jobs.config.schema import Config
from ray_jobs.core.errors import ConfigError

LIST = "docs/configuration.md lists the keys."

EXACT = {
    "unknown key": ("generate.foo=1", f"generate.foo=1: there is no such key. {LIST}"),
    "unknown section": ("foo.bar=1", f"foo.bar=1: there is no such key. {LIST}"),
    "misspelt key": ("generate.atempts=3", "generate.atempts=3: there is no such key. Did you mean generate.attempts?"),
    "unknown key with a plus": ("+generate.foo=1", f"generate.foo=1: there is no such key. {LIST}"),
    "unknown key in a source": (
        "data.sources=[{name: x, path: y, foo: 1}]",
        f"data.sources=[{{name: x, path: y, foo: 1}}]: there is no key foo in it. {LIST}",
    ),
    "engine argument without a plus": (
        "replicas.engine_args.tp_size=2",
        "replicas.engine_args.tp_size=2: a new key needs a plus. Write +replicas.engine_args.tp_size=2.",
    ),
    "unknown choice": (
        "experiment=nope",
        "experiment=nope: there is no such choice. Choose one of: kimi_k25, qwen3_8b, smollm2, tiny, tiny_sglang.",
    ),
    "wrong type": (
        "generate.rows_per_block=many",
        "generate.rows_per_block=many: must be a whole number. Correct it.",
    ),
    "half a number": ("run.seed=1.5", "run.seed=1.5: must be a whole number. Correct it."),
    "no truth value": ("dry_run=maybe", "dry_run=maybe: must be true or false. Correct it."),
    "wrong enum member": (
        "replicas.kind=bar",
        "replicas.kind=bar: must be one of embedded, serve, addresses. Correct it.",
    ),
    "null": ("generate.attempts=null", "generate.attempts=null: may not be null. Correct it."),
    "missing value": ("target.model=???", "target.model=???: must be given. Set target.model."),
    "missing value in a source": (
        "data.sources=[{name: x}]",
        "data.sources[0].path=???: must be given. Set data.sources[0].path.",
    ),
    "out of range": (
        "generate.rows_per_block=0",
        "generate.rows_per_block=0: must be at least 1. Set it at least 1.",
    ),
    "answer and context": (
        "generate.sampling.max_new_tokens=9000",
        "generate.sampling.max_new_tokens=9000: prompt + output must fit target.context_length=4096. "
        "Lower it, or raise target.context_length.",
    ),
    "draft vocabulary": (
        "drafter.vocab_size=60000",
        "drafter.vocab_size=60000: must be at most target.vocab_size=2048. Lower it.",
    ),
    "nothing to ask": (
        "data.sources=[]",
        "data.files=[]: there is nothing to ask. Give prompt files: 'data.files=[my.jsonl]'.",
    ),
    "object store": (
        "run.root=s3://bucket/runs",
        "run.root=s3://bucket/runs: must be a folder, not an object store. "
        "Use shared POSIX storage, and copy afterwards: aws s3 cp --recursive RUN s3://BUCKET/RUN.",
    ),
    "addresses without addresses": (
        "replicas=addresses",
        "replicas.addresses=[]: needed with replicas.kind=addresses. "
        "Use replicas=addresses 'replicas.addresses=[http://host:30000]', or leave them out.",
    ),
}


@pytest.mark.parametrize(("word", "line"), EXACT.values(), ids=EXACT)
def test_the_whole_line(word: str, line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose([word])
    assert str(refused.value) == line
    assert refused.value.exit_code == 2


FIELDS = {
    "run.name=a/b": "run.name",
    "run.name=": "run.name",
    "run.seed=-1": "run.seed",
    "data.limit=0": "data.limit",
    "data.duplicates=some": "data.duplicates",
    "data.held_out_share=1": "data.held_out_share",
    "generate.sampling.top_p=0": "generate.sampling.top_p",
    "generate.sampling.top_k=0": "generate.sampling.top_k",
    "generate.sampling.temperature=nan": "generate.sampling.temperature",
    "generate.max_failed_share=2": "generate.max_failed_share",
    "generate.least_tokens_per_s=0": "generate.least_tokens_per_s",
    "replicas.count=0": "replicas.count",
    "replicas.gpus=1": "replicas.gpus",
    "replicas.addresses=[http://host:1]": "replicas.addresses",
    "drafter.step_decay=0": "drafter.step_decay",
    "train.betas=[0.9]": "train.betas",
    "train.kinds=[stop]": "train.kinds",
    "train.kinds=[]": "train.kinds",
    "train.max_length=4096": "train.max_length",
    "train.warmup_share=1": "train.warmup_share",
    "evaluate.draft_tokens=[]": "evaluate.draft_tokens",
    "evaluate.draft_tokens=[17]": "evaluate.draft_tokens",
    "cluster.no_progress_timeout_s=10": "cluster.no_progress_timeout_s",
    "features.mode=disk": "features.mode",
    "generate.sampling=3": "generate.sampling",
    "~generate.attempts": "generate.attempts",
    "garbage": "garbage",
    "'run.name=": "'run.name",
}


@pytest.mark.parametrize(("word", "field"), FIELDS.items(), ids=FIELDS)
def test_the_line_names_the_field(word: str, field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose([word])
    line = str(refused.value)
    assert line.startswith(f"{field}=")
    assert line.endswith(".")
    assert "\n" not in line
    assert len(line) < 300


@pytest.mark.parametrize(
    ("address", "shown"),
    [("host:30000", "host:30000"), ("http://", "http://"), ("http://me:secret@host:1", "(hidden)")],
)
def test_addresses_are_checked_and_credentials_are_not_shown(address: str, shown: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose(["replicas=addresses", f"replicas.addresses=['{address}']"])
    assert str(refused.value).startswith(f"replicas.addresses={shown}: ")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("yaml", "line"),
    [
        ("generate:\n  foo: 1\n", "generate.foo=?: there is no such key"),
        ("generate:\n  attempts: many\n", "generate.attempts=many: must be a whole number"),
        ("features:\n  mode: disk\n", "features.mode=disk: must be one of in_process, online"),
    ],
)
def test_a_yaml_file_is_checked_as_well(tmp_path: Path, yaml: str, line: str) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "mine.yaml").write_text(f"# @package _global_\n{yaml}")
    (tmp_path / "config.yaml").write_text("defaults:\n  - schema\n  - part: mine\n  - _self_\n")
    with (
        hydra.initialize_config_dir(str(tmp_path), version_base="1.3"),
        pytest.raises((HydraException, OmegaConfBaseException)) as raised,
    ):
        hydra.compose("config")
    assert str(to_config_error(raised.value)).startswith(line)


def _flat(tree: dict[str, Any], head: str = "") -> set[str]:
    """Dotted keys of a nested dict; an empty one is a value."""
    found: set[str] = set()
    for key, value in tree.items():
        found |= _flat(value, f"{head}{key}.") if isinstance(value, dict) and value else {head + key}
    return found


def test_the_keys_are_those_of_the_tree() -> None:
    tree: Any = OmegaConf.to_container(OmegaConf.structured(Config))
    assert sorted(keys()) == sorted(_flat(tree))
    assert "generate.sampling.top_p" in set(keys())
