"""The run of the demo on its real 135M model, killed three times. Minutes, so `make check` has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as pads
import pytest

from ray_jobs.core.schemas import SAMPLES
from tests.integration.conftest import kill_group, start, status, wait_for
from tests.integration.processes import family, marked, table

KILLS = (50, 120, 250)


@pytest.mark.check
@pytest.mark.timeout(1500)
def test_three_kills_lose_and_double_nothing(run: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    words = [
        f"run.root={tmp_path}",
        "run.name=demo",
        "generate.sampling.max_new_tokens=24",
        "generate.status_every_s=0.5",
    ]
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
    assert len(asked) >= 300
    assert sorted(ids) == sorted(asked)
    assert len(set(ids)) == len(ids)
