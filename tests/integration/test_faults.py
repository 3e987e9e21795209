"""A sick server, a dying server, rows that fail: counts add up, and nothing finished is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
import pytest

from tests.integration.conftest import N_PROMPTS
from tests.integration.sample_checks import check_samples, prompt_rows

Run = Callable[..., tuple[int, str]]

FAULTS = {
    "latency_s": 0.01,
    "reset_share": 0.1,
    "error_500_share": 0.05,
    "error_429_share": 0.05,
    "abort_share": 0.1,
    "malformed_share": 0.05,
    "wrong_count_share": 0.1,
    "seed": 3,
}


@pytest.mark.timeout(240)
def test_a_sick_server_costs_no_row(run: Run, words: Any, model: Path, tmp_path: Path, cluster: str) -> None:
    code, said = run("generate", words("sick", f"cluster.address={cluster}", "generate.attempts=30", faults=FAULTS))
    assert code == 0, said
    rows = check_samples(tmp_path / "sick", model)
    assert len({row["row_id"] for row in rows}) == len(rows) == N_PROMPTS
    assert max(row["attempt"] for row in rows) > 1


@pytest.mark.check
@pytest.mark.timeout(240)
def test_a_server_that_dies_comes_back(run: Run, words: Any, model: Path, tmp_path: Path, cluster: str) -> None:
    code, said = run(
        "generate",
        words("mortal", f"cluster.address={cluster}", "replicas.slots=4", faults={"die_after": 25}),
        timeout_s=200,
    )
    assert code == 0, said
    rows = check_samples(tmp_path / "mortal", model)
    assert len({row["row_id"] for row in rows}) == len(rows) == N_PROMPTS


@pytest.mark.timeout(240)
def test_rows_that_fail_are_counted_and_can_be_asked_again(
    run: Run, words: Any, model: Path, tmp_path: Path, cluster: str
) -> None:
    folder, joined = tmp_path / "failing", f"cluster.address={cluster}"
    one_try = words(
        "failing", f"cluster.address={cluster}", "generate.attempts=1", faults={"error_500_share": 0.3, "seed": 1}
    )
    code, said = run("generate", one_try)
    assert code == 1
    assert "prompts failed, more than generate.max_failed_share=0.02; see failures/" in said
    assert "Traceback" not in said
    failures = pads.dataset(folder / "failures").to_table().to_pylist()
    ok = check_samples(folder, model)
    assert len(failures) > 2
    assert {row["error_class"] for row in failures} == {"Retryable"}
    assert all(row["last_reply"] for row in failures)
    assert {row["row_id"] for row in ok} | {row["row_id"] for row in failures} == prompt_rows(folder)
    assert len(ok) + len(failures) == N_PROMPTS
    code, said = run("generate", words("failing", joined, "generate.retry_failed=true"))
    assert code == 0, said
    assert {row["row_id"] for row in check_samples(folder, model)} == prompt_rows(folder)
    assert pads.dataset(folder / "failures").to_table().num_rows == 0
