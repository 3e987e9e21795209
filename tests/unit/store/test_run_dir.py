"""The run folder: attempts, fingerprint, COMPLETE files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ray_jobs.core.errors import ConfigError
from ray_jobs.store.run_dir import RunDir


def test_attempts_are_counted_and_latest_points_to_the_last(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "r")
    for expected in (1, 2):
        with run.open("a: 1\n", {"python": "3"}) as attempt:
            assert attempt == expected
            assert os.readlink(run.path / "logs" / "latest") == f"attempt_{expected}"
            assert (run.path / "LOCK").exists()
    assert not (run.path / "LOCK").exists()
    assert (run.path / "config.yaml").read_text() == "a: 1\n"


def test_a_root_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"^run\.root=.*file: cannot be written"),
        RunDir(tmp_path / "file" / "r").open("", {}),
    ):
        pass


def test_fingerprint_mismatch_names_the_keys(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.check_fingerprint({"model": "a", "template": "t", "sampling": {"temperature": 1.0}})
    run.check_fingerprint({"model": "a", "template": "t", "sampling": {"temperature": 1.0}})
    with pytest.raises(ConfigError) as caught:
        run.check_fingerprint({"model": "b", "template": "t", "sampling": {"temperature": 0.5}})
    assert "model: 'a' -> 'b'" in str(caught.value)
    assert "sampling" in str(caught.value)
    assert "template" not in str(caught.value)


def test_complete_and_reopen(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.complete("train") is None
    run.set_complete("train", {"n_steps": 3})
    assert run.complete("train") == {"n_steps": 3}
    run.reopen("train")
    assert run.complete("train") is None
