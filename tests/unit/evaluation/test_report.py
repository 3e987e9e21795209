"""report.html: well-formed and inert, its figures those of the rows, and possible for a run in any state."""

from __future__ import annotations

import re
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from html_page import Page
from synthetic_run import HOSTILE, SOURCES, Plan, commit, make_run

from ray_jobs.config.schema import Config
from ray_jobs.core.files import read_json
from ray_jobs.evaluation import report, table
from ray_jobs.evaluation.examples import N_EXAMPLES
from ray_jobs.store.run_dir import RunDir
from ray_jobs.text.chat import Chat
from tests.models import tiny_model

Made = tuple[Config, RunDir, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("m") / "tiny")


@pytest.fixture(scope="module")
def chat(model: Path) -> Chat:
    return Chat.load(model, markers_family="tiny")


@pytest.fixture(scope="module")
def full(chat: Chat, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_run(tmp_path_factory.mktemp("runs") / "full", chat, Plan(rows=24))


@pytest.fixture(scope="module")
def html(full: Made, chat: Chat) -> str:
    cfg, run_dir, _ = full
    return report.write(cfg, run_dir, chat.decode).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def write(chat: Chat, folder: Path, plan: Plan) -> tuple[Page, Made]:
    made = make_run(folder / "run", chat, plan)
    return Page(report.write(made[0], made[1], chat.decode).read_text(encoding="utf-8")), made


def test_the_file_is_whole_and_where_the_commands_say(full: Made, html: str) -> None:
    _, run_dir, _ = full
    assert report.report_path(run_dir) == run_dir.path / "report.html"
    assert html.startswith("<!doctype html>")
    assert html.endswith("</html>")
    assert len(html) < 300_000
    assert not list(run_dir.path.glob(".report*"))


def test_the_page_is_balanced_and_reads_nothing_from_elsewhere(html: str, page: Page) -> None:
    assert page.faults == []
    assert not {"script", "img", "link", "iframe", "object", "embed", "base", "form", "audio", "video"} & set(page.tags)
    styles = "".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL)) + "".join(re.findall(r'style="(.*?)"', html))
    assert "--reasoning" in styles
    assert "@import" not in styles
    assert set(re.findall(r"url\(\s*(.)", html)) <= {"#"}
    assert "default-src 'none'" in html


def test_the_page_can_be_read_without_seeing_it(html: str, page: Page) -> None:
    assert '<html lang="en">' in html
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(t.caption and t.heads for t in page.tables)
    assert page.tags.count("svg") == page.tags.count("figcaption") == 5
    assert html.count('<svg viewBox="') == html.count('role="img" aria-labelledby="')
    assert all(line.count("scope=") for line in html.splitlines() if "<th" in line)


def test_hostile_text_is_shown_and_inert(full: Made, html: str, page: Page) -> None:
    assert "<script>alert('model')</script>" in page.text
    assert "</style><style>body{display:none}</style>" in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert "unknown role <b>narrator</b>" in page.text
    assert "not JSON: <b>lone</b> U+D800" in page.text
    assert "name: '<b>synthetic</b>'" in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]", html)
    assert max(len(run) for run in re.findall(r"(?:long)+", html)) <= 500
    assert HOSTILE[-1] not in page.text


def test_rows_by_source_are_those_of_the_run(full: Made, page: Page) -> None:
    _, run_dir, rows = full
    shown = page.table("asked = ok + failed")
    failed = {row["row_id"]: row["source"] for row in run_dir.samples.failure_table().to_pylist()}
    for source in (*SOURCES, "all"):
        mine = [row for row in rows if source in (row["source"], "all")]
        n_failed = sum(source in (name, "all") for name in failed.values())
        asked = 24 * (len(SOURCES) if source == "all" else 1)
        called = [row for row in mine if any(s["kind"] == "tool_call" for s in row["segments"])]
        broken = [row for row in called if '"Par<' in row["tool_calls"] or '"parsed": null' in row["tool_calls"]]
        expected = [asked, len(mine), n_failed, len(mine), len(mine), len(called), len(called), len(broken)]
        assert shown.row(source) == [str(n) for n in expected]
        assert asked == len(mine) + n_failed
    assert int(shown.row("all")[5]) > int(shown.row("all")[7]) > 0


def test_reasoning_flags_and_lengths_are_those_of_the_rows(full: Made, html: str, page: Page) -> None:
    rows = full[2]
    for closed in ("explicit", "never", "implicit_tool", "absent"):
        line = next(r for r in page.table("How thoughts ended").rows if r[0].split()[0] == closed)
        assert line[1] == str(sum(row["closed"] == closed for row in rows))
    flags = {name: int(n) for name, n, _ in page.table("Flags").rows}
    assert [share for _, _, share in page.table("Flags").rows] == [
        f"{n / len(rows):.1%}"[:-1] + " %" for n in flags.values()
    ]
    assert flags == {f: sum(f in row["flags"] for row in rows) for f in {f for row in rows for f in row["flags"]}}
    assert {"truncated", "ids_after_stop"} <= set(flags)
    lengths = page.table("Ids of each part")
    content = [sum(s["stop"] - s["start"] for s in row["segments"] if s["kind"] == "content") for row in rows]
    parts = {
        "prompt": [len(row["prompt_ids"]) for row in rows],
        "output": [len(row["output_ids"]) for row in rows],
        "reasoning": [row["n_reasoning_tokens"] for row in rows],
        "content": content,
    }
    for name, values in parts.items():
        n, total, mean, least, *_, most = lengths.row(name)
        assert (n, total) == (str(len(values)), f"{sum(values):,}")
        assert (mean, least, most) == (f"{statistics.mean(values):,.1f}", f"{min(values):,}", f"{max(values):,}")
        assert lengths.heads[7] == "median"
        shown = int(lengths.row(name)[6].replace(",", ""))
        assert statistics.median_low(values) <= shown <= statistics.median_high(values)
        if name in ("reasoning", "content", "output"):
            assert f"Histogram of {name} ids: {len(values):,} rows, median {shown:,}, largest {max(values):,}" in html


def test_failures_and_dropped_rows_have_an_example(full: Made, page: Page) -> None:
    failures = full[1].samples.failure_table().to_pylist()
    shown = page.table(f"{len(failures)} of 72 prompts failed")
    assert {name: int(n) for name, n, _ in shown.rows} == {
        name: sum(row["error_class"] == name for row in failures) for name in ("Retryable", "Rejected", "Prompt")
    }
    for name, _, example in shown.rows:
        assert min(row["row_id"] for row in failures if row["error_class"] == name) in example
    dropped = page.table("Rows of the prompt files that gave no prompt")
    assert dropped.row("no messages") == ["2", "/data/a.jsonl:3"]


def test_accepted_lengths_are_those_of_the_summary(full: Made, page: Page) -> None:
    summary = read_json(full[1].summary)
    each = summary["offline_by_draft_tokens"]
    low, high = each["3"]["interval_95"]
    assert f"{each['3']['accepted_length']:.3f}" in page.text
    assert f"95 % interval {low:.3f} to {high:.3f}" in page.text
    assert f"on {each['3']['prompts']} held-out prompts" in page.text
    sources = page.table("By source of the prompt")
    assert sources.heads == ["source", "prompts", "3 draft tokens", "7 draft tokens"]
    for source in SOURCES:
        assert sources.row(source)[1:] == [f"{each[k]['by_source'][source]:.3f}" for k in ("3", "7")]
    kinds = page.table("By kind of segment")
    assert [row[0] for row in kinds.rows] == ["reasoning", "content", "tool_call", "marker", "stop", "all"]
    for kind, three, seven, *counts in kinds.rows[:-1]:
        assert [three, seven] == [f"{each[k]['by_segment'][kind]:.3f}" for k in ("3", "7")]
        tokens, steps = (int(n.replace(",", "")) for n in counts[0].split(" / "))
        assert f"{tokens / steps:.3f}" == three
    sums = [[int(n.replace(",", "")) for n in row[3].split(" / ")] for row in kinds.rows]
    assert [sum(column) for column in zip(*sums[:-1], strict=True)] == sums[-1]
    positions = page.table("By position")
    assert [cell.split(" %")[0] for cell in positions.row("7")] == [f"{100 * s:.1f}" for s in each["7"]["by_position"]]
    assert positions.row("3")[3:] == ["-"] * 4


def test_the_terminal_names_the_kinds(full: Made) -> None:
    made = table.lines(full[1])
    offline = read_json(full[1].summary)["offline"]
    assert f"reasoning {offline['by_segment']['reasoning']:.2f}, content" in made["evaluate"]
    assert made["export"] == "1.2 M parameters, 4.9 MB"


def test_samples_follow_the_rule(full: Made, page: Page) -> None:
    rows = full[2]
    ids = [sorted(row["row_id"] for row in rows if row["source"] == source) for source in SOURCES]
    expected = [row_id for turn in zip(*ids, strict=False) for row_id in turn][:N_EXAMPLES]
    assert re.findall(r"row ([0-9a-f]{32}-0-0);", page.text) == expected
    shown = [row for row in rows if row["row_id"] in expected]
    kinds = [s["kind"] for row in shown for s in row["segments"]]
    # the legend has one of each
    assert [page.classes.count(kind) - 1 for kind in set(kinds)] == [kinds.count(kind) for kind in set(kinds)]
    assert {"reasoning", "content", "tool_call", "marker", "stop", "excess"} == set(kinds)


@pytest.mark.parametrize("n_done", range(4))
def test_what_is_not_done_is_said(n_done: int, chat: Chat, tmp_path: Path) -> None:
    stages = ("generate", "train", "export")[:n_done]
    page, _ = write(chat, tmp_path, Plan(rows=3, stages=stages))
    assert page.faults == []
    for stage in ("generate", "train", "export", "evaluate"):
        assert f"{stage}: {'done' if stage in stages else 'not done'}" in page.text
    assert "Not measured yet: the stage evaluate is not done." in page.text
    assert ("Nothing has been trained yet." in page.text) == ("train" not in stages)


def test_an_empty_folder_has_a_page(chat: Chat, tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "new")
    run_dir.path.mkdir()
    page = Page(report.write(Config(), run_dir, chat.decode).read_text(encoding="utf-8"))
    assert page.faults == []
    assert "No prompt has been asked yet." in page.text
    assert "There is no answered row to show yet." in page.text


def test_a_run_without_thoughts(model: Path, tmp_path: Path) -> None:
    plain = Chat.load(tiny_model(tmp_path / "plain", think=False), markers_family="none")
    page, (_, _, rows) = write(plain, tmp_path, Plan(rows=4, thoughts=False, failures=False))
    assert page.faults == []
    assert {row["closed"] for row in rows} == {"absent"}
    assert "No row has a thought: with the markers family none nothing opens one." in page.text
    assert page.table("Ids of each part").row("reasoning")[:3] == ["0", "0", "-"]
    assert "No prompt failed." in page.text
    assert "No row of the prompt files was dropped." in page.text
    assert "reasoning ids" not in page.text


def test_a_family_whose_thoughts_never_open_raises_a_warning(chat: Chat, tmp_path: Path) -> None:
    cfg, run_dir, _ = make_run(tmp_path / "run", chat, Plan(rows=4, thoughts=False))
    thoughtless = [dict(row, closed="absent", reasoning=None) for row in run_dir.samples.sample_table().to_pylist()]
    commit(run_dir.samples, thoughtless)
    cfg.target.markers = "<i>family</i>"
    page = Page(report.write(cfg, run_dir, chat.decode).read_text(encoding="utf-8"))
    assert page.faults == []
    assert "No row opened a thought, although the markers family <i>family</i> knows them." in page.text


def test_thoughts_that_are_all_empty_raise_a_warning(chat: Chat, tmp_path: Path) -> None:
    page, (_, _, rows) = write(chat, tmp_path, Plan(rows=4, empty_thoughts=True, failures=False))
    assert {row["reasoning"] for row in rows} == {"\n\n"}
    assert "No reasoning was captured." in page.text
    assert "warning" in page.classes
    assert page.table("asked = ok + failed").row("all")[3:5] == ["12", "0"]


def test_every_row_failed(chat: Chat, tmp_path: Path) -> None:
    page, (_, run_dir, rows) = write(chat, tmp_path, Plan(rows=2, all_failed=True, stages=()))
    assert page.faults == []
    assert rows == []
    assert run_dir.samples.failure_table().num_rows == 6
    assert page.table("asked = ok + failed").row("all")[:3] == ["6", "0", "6"]
    assert "6 of 6 prompts failed (100.0 %)" in page.table("6 of 6").caption
    assert "There is no answered row yet." in page.text


def test_rows_that_were_not_committed_do_not_count(chat: Chat, tmp_path: Path) -> None:
    cfg, run_dir, rows = make_run(tmp_path / "run", chat, Plan(rows=12, failures=False, stages=()))
    last = max(run_dir.samples.checkpoint.glob("*.parquet"))
    last.rename(last.with_name(last.name.replace(".parquet", ".pending.parquet")))
    page = Page(report.write(cfg, run_dir, chat.decode).read_text(encoding="utf-8"))
    ok = len(run_dir.samples.committed())
    assert 0 < ok < len(rows) == 36
    shown = page.table("asked = ok + failed + open")
    assert shown.row("all")[:4] == ["36", str(ok), "0", str(36 - ok)]
