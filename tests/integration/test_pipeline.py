"""The whole path on a small random model: prompts to summary.json, then again, then more."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
import pytest

from ray_jobs.core.schemas import FAILURES
from tests.integration.conftest import N_PROMPTS, write_prompts
from tests.integration.sample_checks import check_samples

Run = Callable[..., tuple[int, str]]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.timeout(420)
def test_the_whole_path(run: Run, words: Any, model: Path, tmp_path: Path, cluster: str) -> None:
    folder = tmp_path / "whole"
    joined = f"cluster.address={cluster}"
    code, said = run("pipeline", words("whole", joined), timeout_s=240)
    assert code == 0, said
    rows = check_samples(folder, model)
    assert len(rows) == N_PROMPTS
    assert len({row["row_id"] for row in rows}) == N_PROMPTS
    assert pads.dataset(folder / "failures").schema.equals(FAILURES, check_metadata=False)
    kinds = Counter(s["kind"] for row in rows for s in row["segments"])
    assert kinds["reasoning"] > 0
    assert kinds["content"] > 0
    assert kinds["stop"] > 0
    assert len({row["n_output_tokens"] for row in rows}) > 3
    assert read(folder / "COMPLETE.generate.json")["rows"] == N_PROMPTS
    summary = read(folder / "evaluation" / "summary.json")
    assert summary["draft_tokens"] == 3
    assert summary["offline"]["accepted_length"] >= 1.0
    assert set(summary["offline"]["by_source"]) == {"questions"}
    assert read(folder / "export" / "config.json")["architectures"] == ["LlamaForCausalLMEagle3"]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["step"] == metrics[-1]["n_steps"] - 1
    assert {"loss", "accuracy", "prefix_accuracy", "expected_accepted_length", "tokens_per_s"} <= set(metrics[-1])
    assert read(folder / "status.json")["state"] == "complete"
    assert "serve it: python -m sglang.launch_server" in said
    assert said.splitlines()[-1] == f"report: {folder / 'report.html'}"
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert f"{summary['offline']['accepted_length']:.2f}" in page
    assert "reasoning" in summary["offline"]["by_segment"]

    code, shown = run("inspect", words("whole", "inspect.rows=1", "inspect.where='n_reasoning_tokens > 0'"))
    assert code == 0, shown
    assert "[reasoning " in shown

    # the same command again does nothing: no Ray, although there is none to join, and no server
    code, again = run("pipeline", words("whole", "cluster.address=127.0.0.1:1"))
    assert code == 0, again
    assert "ready" not in again

    # settings that would mix data are refused, with the keys
    code, said = run("generate", words("whole", "generate.sampling.temperature=0.1"))
    assert code == 2
    assert "Traceback" not in said
    assert "error: run.name=whole: holds rows made with other settings (sampling:" in said
    code, said = run("evaluate", words("whole", "target.thinking=false"))
    assert code == 2
    assert "thinking: True -> False" in said
    assert read(folder / "status.json")["state"] == "complete"
    code, said = run("train", words("whole", "train.learning_rate=0.1"))
    assert code == 2
    assert "train.learning_rate: 0.002 -> 0.1" in said


@pytest.mark.check
@pytest.mark.timeout(420)
def test_other_answers_and_more_prompts(run: Run, words: Any, model: Path, tmp_path: Path, cluster: str) -> None:
    folder, joined = tmp_path / "whole", f"cluster.address={cluster}"
    code, said = run("pipeline", words("whole", joined), timeout_s=240)
    assert code == 0, said
    rows = check_samples(folder, model)

    # other greedy answers are asked anew, never mixed with those that are there
    code, said = run("evaluate", words("whole", joined, "evaluate.max_new_tokens=9"))
    assert code == 0, said
    greedy = pads.dataset(folder / "evaluation" / "greedy" / "samples").to_table().to_pylist()
    assert max(row["n_output_tokens"] for row in greedy) <= 9
    assert {json.loads(row["sampling"])["max_new_tokens"] for row in greedy} == {9}

    # another file reopens the run and asks only for what is new
    more = write_prompts(tmp_path / "more.jsonl", 10, first=1000)
    files = next(w for w in words("whole") if w.startswith("data.files="))[len("data.files=[") : -1]
    code, said = run("generate", words("whole", joined, f"data.files=[{files},{more}]"))
    assert code == 0, said
    assert f"{N_PROMPTS + 10} prompts = {N_PROMPTS + 10} ok + 0 failed" in said
    grown = check_samples(folder, model)
    old = {row["row_id"]: row["output_ids"] for row in rows}
    assert {row["row_id"]: row["output_ids"] for row in grown if row["row_id"] in old} == old
    assert not (folder / "COMPLETE.train.json").exists()
