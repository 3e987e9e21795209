"""Kill -9 of the driver's process group, the same command again: same rows, none twice, nothing left running."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
import pytest

from tests.integration.conftest import N_PROMPTS, kill_group, start, status, wait_for
from tests.integration.processes import family, marked, table
from tests.integration.sample_checks import prompt_rows


def row_ids(folder: Path) -> list[str]:
    return sorted(pads.dataset(folder / "samples").to_table(columns=["row_id"])["row_id"].to_pylist())


@pytest.mark.timeout(420)
def test_kill_and_run_again(run: Callable[..., tuple[int, str]], words: Any, tmp_path: Path, cluster: str) -> None:
    slow = words("killed", "replicas.slots=4", faults={"latency_s": 0.4})
    folder = tmp_path / "killed"
    for at in (15, 40):
        child = start("generate", slow, tmp_path / "killed.log")
        wait_for(
            lambda at=at, child=child: status(folder).get("done", 0) >= at or child.poll() is not None,
            100,
            f"done >= {at}: {(tmp_path / 'killed.log').read_text()[-2000:]}",
        )
        assert child.poll() is None, (tmp_path / "killed.log").read_text()[-3000:]
        started = family(child.pid)
        assert len(started) > 3
        kill_group(child)
        wait_for(lambda started=started: not started & table().keys(), 30, "processes of the killed run are left")
        wait_for(lambda: not marked(str(folder)), 30, f"processes that name the run are left: {marked(str(folder))}")
    code, said = run("generate", [*slow, f"cluster.address={cluster}"])
    assert code == 0, said
    assert f"{N_PROMPTS} prompts = {N_PROMPTS} ok + 0 failed" in said
    assert row_ids(folder) == sorted(prompt_rows(folder))
    assert len(set(row_ids(folder))) == N_PROMPTS


@pytest.mark.timeout(120)
def test_a_second_driver_is_refused(run: Callable[..., tuple[int, str]], words: Any, tmp_path: Path) -> None:
    child = start("generate", words("busy"), tmp_path / "busy.log")
    try:
        wait_for((tmp_path / "busy" / "LOCK").exists, 30, "LOCK")
        code, said = run("generate", words("busy"))
        assert code == 2
        assert f"error: run.name=busy: process {child.pid} on" in said
    finally:
        kill_group(child)
