"""Which prompts a run asks: sources in turn, a larger limit is a superset, duplicates by setting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ray_jobs.config.schema import DataConfig, SourceConfig
from ray_jobs.core.errors import ConfigError
from ray_jobs.generation.prompts import pick


def write(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"messages": [{"role": "user", "content": t}]}) + "\n" for t in texts))
    return str(path)


def ids(data: DataConfig) -> list[tuple[str, int]]:
    return [(prompt.prompt_id, sample) for prompt, sample in pick(data).rows]


def test_limits_grow_into_supersets_and_take_sources_in_turn(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", list("abcdef")), write(tmp_path / "b.jsonl", list("xy"))]
    small, large = ids(DataConfig(files=files, limit=3)), ids(DataConfig(files=files, limit=6))
    assert large[:3] == small
    assert pick(DataConfig(files=files, limit=5)).by_source == {"a": 3, "b": 2}
    assert len(ids(DataConfig(files=files))) == 8


def test_duplicates_are_dropped_or_become_later_samples(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", ["same", "other", "same"])]
    dropped, kept = DataConfig(files=files, samples_per_prompt=2), DataConfig(files=files, samples_per_prompt=2)
    kept.duplicates = "keep"
    assert [k for _, k in ids(dropped)] == [0, 1, 0, 1]
    assert pick(dropped).duplicates == 1
    assert [k for _, k in ids(kept)] == [0, 1, 0, 1, 2, 3]
    assert len(set(ids(kept))) == 6


def test_a_sources_own_limit_and_its_name(tmp_path: Path) -> None:
    source = SourceConfig(name="named", path=write(tmp_path / "a.jsonl", list("abc")), rows=2)
    assert pick(DataConfig(sources=[source])).by_source == {"named": 2}


def test_a_file_without_a_prompt_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\nnot json\n")
    with pytest.raises(ConfigError, match=r"data\.files=.*no usable prompt in them\. Look at the reasons"):
        pick(DataConfig(files=[str(tmp_path / "a.jsonl")]))
