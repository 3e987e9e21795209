"""Counts, failures and dropped prompts, and what is said of a run that has none of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from inspect_cases import empty_run, full_run, headers, look

from ray_jobs.config.schema_inspect import InspectConfig, InspectShow, InspectStage
from ray_jobs.core.errors import ConfigError
from ray_jobs.core.schemas import CLOSED, FLAGS
from ray_jobs.store.run_dir import RunDir
from ray_jobs.store.sample_set import write_dropped
from tests.sample_rows import ask_only, commit, sample


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return full_run(tmp_path_factory.mktemp("tables"))


def table(said: str) -> dict[str, list[int]]:
    """The lines of the table of counts, by label."""
    found = re.findall(r"^(\S.*?)((?: +[\d,]+)+)$", said, re.MULTILINE)
    return {label: [int(number.replace(",", "")) for number in numbers.split()] for label, numbers in found}


def test_counts_by_source(run: RunDir) -> None:
    said = look(run, show=InspectShow.counts)
    assert re.search(r"^ +all +sums +tools$", said, re.MULTILINE)
    rows = table(said)
    expected = {
        "prompts": [9, 6, 3],
        "ok": [6, 4, 2],
        "failed": [2, 1, 1],
        "pending": [1, 1, 0],
        "with a thought block": [5, 3, 2],
        "reasoning not empty": [5, 3, 2],
        "with tool calls": [1, 0, 1],
        "closed explicit": [3, 2, 1],
        "closed never": [2, 1, 1],
        "closed absent": [1, 1, 0],
        "closed implicit_tool": [0, 0, 0],
        "flag truncated": [2, 1, 1],
        "flag repetition": [1, 0, 1],
        "flag ids_after_stop": [1, 0, 1],
        "flag late_open": [0, 0, 0],
        "finish stop": [4, 3, 1],
        "finish length": [2, 1, 1],
        "prompt tokens": [90, 60, 30],
        "reasoning tokens a row, max": [300, 300, 300],
        "output tokens a row, max": [300, 300, 300],
    }
    assert {label: rows[label] for label in expected} == expected
    labels = [f"closed {word}" for word in CLOSED] + [f"flag {word}" for word in FLAGS]
    assert [label for label in rows if label.startswith(("closed ", "flag "))] == labels


def test_quantiles_are_those_of_rows(tmp_path: Path) -> None:
    run = empty_run(tmp_path)
    commit(run.samples, [sample(number, n_output_tokens=number + 1) for number in range(100)])
    rows = table(look(run, show=InspectShow.counts))
    labels = ("output tokens", *(f"output tokens a row, {at}" for at in ("p50", "p95", "max")))
    assert [rows[label][0] for label in labels] == [5050, 51, 96, 100]


def test_counts_of_the_rows_that_match(run: RunDir) -> None:
    said = look(run, show=InspectShow.counts, where="closed == 'never'")
    assert "\nrows that match inspect.where=closed == 'never'\n" in said
    rows = table(said)
    assert rows["ok"] == [2, 1, 1]
    assert rows["flag truncated"] == [2, 1, 1]
    assert not {"prompts", "failed", "pending"} & rows.keys()


def test_counting_is_plain_and_the_same_each_time(run: RunDir) -> None:
    said = look(run, show=InspectShow.counts)
    assert said == look(run, show=InspectShow.counts)
    assert said.isascii()
    assert "\x1b" not in said


def test_failures_by_class_with_examples(run: RunDir) -> None:
    rejected, refused = f"{7:032x}-0-0", f"{6:032x}-0-0"
    assert look(run, show=InspectShow.failures).splitlines()[1:] == [
        "",
        "== Prompt: 1 row(s); sums 1",
        f"  {refused}  source=sums  attempts=0",
        "    error: roles must alternate",
        "    last reply: none",
        f"  row_ids: {refused}",
        "",
        "== Rejected: 1 row(s); tools 1",
        f"  {rejected}  source=tools  attempts=1",
        "    error: too long",
        "    last reply: {}",
        f"  row_ids: {rejected}",
    ]
    one = look(run, show=InspectShow.failures, row_id=rejected)
    assert rejected in one
    assert refused not in one
    with pytest.raises(ConfigError, match="no failed row begins so"):
        look(run, show=InspectShow.failures, row_id=f"{0:032x}")


def test_failures_are_cut_and_made_visible(tmp_path: Path) -> None:
    run = empty_run(tmp_path)
    store = run.samples
    ids = [ask_only(store, number) for number in range(60)]
    store.outcomes.mkdir(parents=True)
    bad = {"error_class": "Rejected", "error": "\x1b[2J\n== forged", "attempts": 1, "last_reply": "x" * 100}
    lines = [json.dumps({"row_id": row_id, **bad}) + "\n" for row_id in ids]
    (store.outcomes / "1-0.jsonl").write_text("".join(lines))
    store.write_failures(set())
    said = look(run, show=InspectShow.failures, rows=2, max_chars=30)
    assert said.count("    error: \\x1b[2J\n      == forged\n") == 2
    assert f"    last reply: {'x' * 30}\n      ... 70 more character(s), inspect.max_chars=30\n" in said
    assert "... 10 more; inspect.max_chars=0 lists them all" in said
    assert ids[49] in said
    assert ids[50] not in said
    whole = look(run, show=InspectShow.failures, rows=2, max_chars=0)
    assert all(row_id in whole for row_id in ids)
    # rows are asked for, and there are none but these
    assert look(run).splitlines()[1:] == ["no row was answered; inspect.show=failures says why"]


def test_dropped_prompts_by_reason(tmp_path: Path) -> None:
    run = full_run(tmp_path)
    empty = [{"file": "a.jsonl", "line": number, "reason": "no user turn"} for number in range(1, 5)]
    write_dropped(run.samples.prompts, [{"file": "b\x1b.jsonl", "line": 9, "reason": "not JSON\nat all"}, *empty])
    assert look(run, show=InspectShow.dropped, rows=2).splitlines()[1:] == [
        "5 row(s) of the prompt files were no prompts",
        "",
        "== 4 row(s): no user turn",
        "  a.jsonl:1",
        "  a.jsonl:2",
        "  ... 2 more, inspect.rows=2",
        "",
        "== 1 row(s): not JSON\\nat all",
        "  b\\x1b.jsonl:9",
    ]


def test_greedy_answers_are_a_data_set_of_their_own(tmp_path: Path) -> None:
    run = full_run(tmp_path)
    commit(run.greedy, [sample(77)])
    said = look(run, stage=InspectStage.greedy)
    assert said.startswith("run made, evaluation/greedy: 1 prompts = 1 ok + 0 failed + 0 pending; ")
    assert headers(said) == [77]
    assert headers(look(run, rows=10)) == [0, 1, 2, 3, 4, 5]


EMPTY = {
    InspectShow.rows: ["no row is committed yet"],
    InspectShow.failures: ["no prompt has failed"],
    InspectShow.dropped: ["0 row(s) of the prompt files were no prompts"],
}


@pytest.mark.parametrize("stage", InspectStage, ids=lambda stage: stage.value)
@pytest.mark.parametrize(("show", "lines"), EMPTY.items(), ids=lambda value: getattr(value, "value", ""))
def test_an_empty_run(tmp_path: Path, show: InspectShow, lines: list[str], stage: InspectStage) -> None:
    first, *rest = look(empty_run(tmp_path), show=show, stage=stage).splitlines()
    assert first.endswith(": 0 prompts = 0 ok + 0 failed + 0 pending; not started")
    assert rest == lines


def test_an_empty_run_has_counts(tmp_path: Path) -> None:
    rows = table(look(empty_run(tmp_path), show=InspectShow.counts))
    assert rows["prompts"] == [0]
    assert rows["output tokens a row, max"] == [0]


def test_no_such_run_names_those_that_are_there(tmp_path: Path) -> None:
    run = empty_run(tmp_path)
    (run.path / "config.yaml").write_text("run: {}\n")
    with pytest.raises(ConfigError, match=r"run.name=other: there is no such run in .*runs\. Runs there: made\."):
        look(RunDir(run.path.parent / "other"))
    with pytest.raises(ConfigError, match=r"run.name=x: there is no such run in /no/such\. Set run.root"):
        look(RunDir(Path("/no/such/x")))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"show": InspectShow.failures, "where": "true"},
            "inspect.where=true: has no use with inspect.show=failures. "
            "Use it with inspect.show=rows or inspect.show=counts.",
        ),
        (
            {"show": InspectShow.counts, "row_id": "00"},
            "inspect.row_id=00: has no use with inspect.show=counts. "
            "Use it with inspect.show=rows or inspect.show=failures.",
        ),
        ({"rows": 0}, "inspect.rows=0: must be at least 1. Set it at least 1."),
        ({"max_chars": -1}, "inspect.max_chars=-1: must be at least 0. Set it at least 0."),
    ],
    ids=["where", "row_id", "rows", "max_chars"],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        InspectConfig(**settings)  # type: ignore[reportArgumentType]
    assert str(refused.value) == line
