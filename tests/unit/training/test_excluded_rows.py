"""Rows with excluded flags are not trained on, counted by flag, and part of what a training is."""

from __future__ import annotations

import json
import logging
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from ray_jobs.config.load import compose
from ray_jobs.config.schema import Config
from ray_jobs.core.errors import ConfigError
from ray_jobs.core.schemas import FLAGS
from ray_jobs.store.run_dir import RunDir
from ray_jobs.training.data import TrainingSet, facts
from tests.models import tiny_model
from tests.sample_rows import commit, sample

FLAGGED = {0: [], 1: ["truncated"], 2: ["repetition", "truncated"], 3: ["repetition"], 4: ["late_open"], 5: []}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Six finished rows, with and without flags."""
    made = RunDir(tmp_path / "runs" / "flags")
    commit(made.samples, [sample(number, flags=flags) for number, flags in FLAGGED.items()])
    made.set_complete("generate", {"ids_sha256": "0"})
    return made


def load(run: RunDir, *exclude: str) -> TrainingSet:
    return TrainingSet.load(run.samples, held_out=False, share=0.0, kinds=["content"], max_length=100, exclude=exclude)


def numbers(rows: TrainingSet) -> list[int]:
    return [int(row_id[:32], 16) for row_id in rows.row_ids()]


def test_rows_with_any_of_the_flags_are_left_out(run: RunDir) -> None:
    assert numbers(load(run)) == [0, 1, 2, 3, 4, 5]
    assert numbers(load(run, "truncated")) == [0, 3, 4, 5]
    both = load(run, "truncated", "repetition")
    assert numbers(both) == [0, 4, 5]
    assert [row.row_id for row in map(both.__getitem__, range(3))] == both.row_ids()
    assert both.lengths.tolist() == [33, 33, 33]


def test_what_is_left_out_is_counted_by_flag(run: RunDir) -> None:
    made_of = facts(load(run, "truncated", "repetition", "late_close"), load(run))
    assert made_of["excluded"] == {"rows": 3, "by_flag": {"repetition": 2, "truncated": 2}}
    assert made_of["rows"] == 3
    assert made_of["tokens"] == 99
    assert facts(load(run), load(run))["excluded"] == {"rows": 0, "by_flag": {}}


def test_leaving_out_everything_is_refused_with_the_flags(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "flags")
    commit(run.samples, [sample(0, flags=["truncated"]), sample(1, flags=["repetition", "truncated"])])
    with pytest.raises(ConfigError) as refused:
        load(run, "truncated", "late_open")
    assert str(refused.value) == (
        "train.rows.exclude=truncated,late_open: each of the 2 rows to train has one of these flags (truncated 2). "
        "Take one of them out."
    )


def test_an_unknown_flag_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as refused:
        compose(["train.rows.exclude=[repetition,truncatd]"])
    line = str(refused.value)
    assert line.startswith("train.rows.exclude=truncatd: is no flag of a row. The flags are ")
    assert all(flag in line for flag in FLAGS)
    assert compose(["train.rows.exclude=[repetition]"]).train.rows.exclude == ["repetition"]
    assert compose([]).train.rows.exclude == []


class _ConnectedError(Exception):
    """Raised where Ray would be started: everything before that has been done."""


def start(run: RunDir, model: Path, *exclude: str) -> dict[str, object]:
    """Begin the train stage; the facts of a training that is done."""
    from ray_jobs.training import run as training

    def connect() -> AbstractContextManager[None]:
        raise _ConnectedError

    return training.run(_config(run, model, exclude), run, connect).facts


def _config(run: RunDir, model: Path, exclude: tuple[str, ...]) -> Config:
    cfg = compose(
        [
            f"run.root={run.path.parent}",
            f"run.name={run.path.name}",
            "data.held_out_share=0",
            f"train.rows.exclude=[{','.join(exclude)}]",
        ]
    )
    cfg.target.model = str(model)
    cfg.drafter.vocab_size = 64
    return cfg


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("target"), layers=5, hidden=32)


def test_the_flags_are_part_of_what_a_training_is(run: RunDir, model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(_ConnectedError):
        start(run, model, "truncated", "repetition")
    assert "3 row(s) are not trained on, by train.rows.exclude: repetition 2, truncated 2" in caplog.messages
    saved = json.loads((run.checkpoints / "settings.json").read_text())
    assert saved["train.rows.exclude"] == ["repetition", "truncated"]
    # the same flags in another order go on, others do not
    with pytest.raises(_ConnectedError):
        start(run, model, "repetition", "truncated")
    for other in ((), ("truncated",)):
        with pytest.raises(ConfigError, match=r"made with other settings \(train.rows.exclude: \['repetition'"):
            start(run, model, *other)
    run.set_complete("train", {"checkpoint": "checkpoints/x"})
    assert start(run, model, "truncated", "repetition") == {"checkpoint": "checkpoints/x"}
    with pytest.raises(ConfigError, match=r"train\.rows\.exclude"):
        start(run, model)


def test_no_flags_are_the_same_training_as_before_there_were_any(
    run: RunDir, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(_ConnectedError):
        start(run, model)
    assert not [message for message in caplog.messages if "train.rows.exclude" in message]
    saved = json.loads((run.checkpoints / "settings.json").read_text())
    assert not [key for key in saved if key.startswith("train.rows.") or key == "train.rows"]
    with pytest.raises(ConfigError, match=r"train\.rows\.exclude: None -> \['late_open'\]"):
        start(run, model, "late_open")


def test_held_out_rows_are_all_measured(run: RunDir, model: Path) -> None:
    from ray_jobs.training.run import _prepare

    cfg = _config(run, model, ("truncated",))
    cfg.data.held_out_share = 0.5
    settings, made_of = _prepare(cfg, run, {"ids_sha256": "0"})
    whole = TrainingSet.load(run.samples, held_out=True, share=0.5, kinds=["content"], max_length=100)
    flagged = {number for number, flags in FLAGGED.items() if "truncated" in flags}
    assert {*numbers(whole)} & flagged, "the case needs a flagged row that is held out"
    assert made_of["held_out_rows"] == len(whole)
    assert made_of["rows"] == len({*FLAGGED} - {*numbers(whole)} - flagged)
    assert settings.exclude == ["truncated"]
