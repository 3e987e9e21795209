"""The default run on its real model, killed three times, and twice from one seed. Minutes, so `make check` has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as pads
import pytest
from safetensors.torch import load_file

from ray_jobs.core.schemas import SAMPLES
from tests.integration.conftest import kill_group, start, status, wait_for
from tests.integration.processes import family, marked, table

KILLS = (50, 120, 250)
Run = Callable[..., tuple[int, str]]


@pytest.mark.check
@pytest.mark.timeout(1500)
def test_three_kills_lose_and_double_nothing(run: Run, tmp_path: Path) -> None:
    words = [f"run.root={tmp_path}", "run.name=demo", "generate.status_every_s=0.2"]
    folder = tmp_path / "demo"
    for at in KILLS:
        child = start("generate", words, tmp_path / "demo.log")
        wait_for(
            lambda at=at, child=child: status(folder).get("done", 0) >= at or child.poll() is not None,
            400,
            f"done >= {at}",
        )
        assert child.poll() is None, (tmp_path / "demo.log").read_text()[-3000:]
        started = family(child.pid)
        kill_group(child)
        wait_for(lambda started=started: not started & table().keys(), 30, "processes of the killed run are left")
        wait_for(lambda: not marked(str(folder)), 30, "processes that name the run are left")
        print(f"killed at done={status(folder)['done']}, {len(started)} processes")
    code, said = run("generate", words, timeout_s=500)
    assert code == 0, said
    rows = pads.dataset(folder / "samples")
    assert rows.schema.equals(SAMPLES, check_metadata=False)
    ids = rows.to_table(columns=["row_id"])["row_id"].to_pylist()
    asked = (
        pads.dataset(sorted((folder / "prompts").glob("*.parquet"))).to_table(columns=["row_id"])["row_id"].to_pylist()
    )
    assert len(asked) >= 1000
    assert sorted(ids) == sorted(asked)
    assert len(set(ids)) == len(ids)
    _check_reasoning(folder)


def _check_reasoning(folder: Path) -> None:
    """What the demo promises of its rows: nearly all have a thought, and an opened thought is not empty."""
    columns = ["reasoning", "closed", "content", "tool_calls", "source"]
    rows = pads.dataset(folder / "samples").to_table(columns=columns).to_pylist()
    opened = [row for row in rows if row["closed"] != "absent"]
    assert len(opened) >= 0.9 * len(rows)
    assert sum(bool(row["reasoning"]) for row in opened) >= 0.99 * len(opened)
    assert len({row["source"] for row in rows}) == 8
    assert sum(bool(row["tool_calls"]) for row in rows) >= 100


@pytest.mark.check
@pytest.mark.timeout(1200)
def test_two_runs_at_one_seed_give_the_same_rows_and_the_same_drafter(run: Run, tmp_path: Path) -> None:
    runs = []
    # another order of arrival: what shares a batch must not change an answer
    for name, slots in (("first", 48), ("second", 29)):
        words = [f"run.root={tmp_path}", f"run.name={name}", f"replicas.slots={slots}"]
        words += ["data.limit=240", "train.epochs=1", "evaluate.prompts=16"]
        code, said = run("pipeline", words, timeout_s=500)
        assert code == 0, said
        runs.append(tmp_path / name)
    answers = [_answers(folder) for folder in runs]
    assert len(answers[0]) == 240
    assert answers[0] == answers[1]
    weights = [load_file(folder / "export" / "model.safetensors") for folder in runs]
    assert weights[0].keys() == weights[1].keys()
    worst = max(float((weights[0][k].double() - weights[1][k].double()).abs().max()) for k in weights[0])
    print(f"largest difference of two drafters: {worst:.1e}")
    assert worst <= 1e-5
    figures = [json.loads((folder / "evaluation" / "summary.json").read_text()) for folder in runs]
    assert figures[0] == figures[1]


def _answers(folder: Path) -> dict[str, list[int]]:
    rows = pads.dataset(folder / "samples").to_table(columns=["row_id", "output_ids"])
    return dict(zip(rows["row_id"].to_pylist(), rows["output_ids"].to_pylist(), strict=True))


@pytest.mark.check
@pytest.mark.timeout(900)
def test_the_chat_model_of_the_package_still_works(run: Run, tmp_path: Path) -> None:
    words = ["experiment=smollm2", f"run.root={tmp_path}", "data.limit=64", "generate.sampling.max_new_tokens=24"]
    words += ["train.epochs=1", "data.held_out_share=0.2", "evaluate.max_new_tokens=24"]
    code, said = run("pipeline", words, timeout_s=800)
    assert code == 0, said
    assert "64 ok + 0 failed" in " ".join(said.split())
    offline = json.loads((tmp_path / "smollm2" / "evaluation" / "summary.json").read_text())["offline"]
    assert offline["accepted_length"] > 1.0
    reasoning = pads.dataset(tmp_path / "smollm2" / "samples").to_table(columns=["reasoning"])["reasoning"]
    assert reasoning.null_count == len(reasoning) == 64
