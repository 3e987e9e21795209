"""What is read, and what is not: committed files only, and wide columns only where a shown row lies."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from inspect_cases import empty_run, headers, look

from ray_jobs.config.schema_inspect import InspectShow
from ray_jobs.core.errors import StageError
from ray_jobs.inspection import reading
from ray_jobs.store.run_dir import RunDir
from tests.sample_rows import ask_only, commit, sample

WIDE = ("messages", "prompt_ids", "output_ids", "segments", "reasoning", "content", "tool_calls", "sampling")


def spoil(path: Path, columns: Sequence[str] = WIDE) -> None:
    """Overwrite the data of these columns, so that whoever reads one of them fails."""
    raw = bytearray(path.read_bytes())
    groups = pq.ParquetFile(path).metadata
    for number in range(groups.num_row_groups):
        group = groups.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            if column.path_in_schema.split(".")[0] in columns:
                starts = [column.dictionary_page_offset, column.data_page_offset]
                start = min(offset for offset in starts if offset)
                raw[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(raw)


@pytest.fixture
def spoilt(tmp_path: Path) -> RunDir:
    """Thirty files of four rows; only the row 50 lies in a file whose wide columns can be read."""
    run = empty_run(tmp_path)
    for number in range(30):
        rows = [sample(4 * number + k, n_output_tokens=20 + 4 * number + k) for k in range(4)]
        rows[2]["closed"] = "never" if number == 12 else "explicit"
        path = commit(run.samples, rows, f"{number:02d}")
        if number != 12:
            spoil(path)
    return run


def test_wide_columns_are_read_only_where_a_shown_row_lies(spoilt: RunDir) -> None:
    said = look(spoilt, where="closed == 'never' and n_output_tokens > 40", ids=True, prompt=True)
    assert headers(said) == [50]
    assert "two and two" in said


def test_counting_reads_no_wide_column_but_whether_there_are_calls(tmp_path: Path) -> None:
    run = empty_run(tmp_path)
    path = commit(run.samples, [sample(0), sample(1)])
    spoil(path, [name for name in WIDE if name != "tool_calls"])
    assert "ok" in look(run, show=InspectShow.counts)


def test_the_spoilt_columns_would_be_noticed(spoilt: RunDir) -> None:
    with pytest.raises(OSError, match=r"page|Page|deserializ|thrift|Thrift"):
        look(spoilt, rows=1)


def test_what_an_unfinished_write_left_is_no_row(tmp_path: Path) -> None:
    run = empty_run(tmp_path)
    commit(run.samples, [sample(0)], "aa")
    commit(run.samples, [sample(1)], "bb", pending=True)
    (run.samples.samples / ".cc-0.parquet.1234.tmp").write_bytes(b"half a file")
    assert headers(look(run)) == [0]
    assert look(run).startswith("run made: 2 prompts = 1 ok + 0 failed + 1 pending; not started\n")
    (run.samples.checkpoint / "bb.pending.parquet").rename(run.samples.checkpoint / "bb.parquet")
    assert headers(look(run)) == [0, 1]


def test_a_copy_without_the_work_folder_can_be_read(tmp_path: Path) -> None:
    run = empty_run(tmp_path)
    commit(run.samples, [sample(0)])
    shutil.rmtree(run.samples.work)
    assert headers(look(run)) == [0]


def test_a_file_that_goes_away_is_one_line(tmp_path: Path) -> None:
    run = empty_run(tmp_path)
    path = commit(run.samples, [sample(0)])
    found = reading.find(run.samples, None, reading.InspectOrder.stored, 5)
    path.unlink()
    with pytest.raises(StageError, match="was removed while it was read"):
        list(reading.read_rows(run.samples, found.places, ["content"]))


def test_failures_that_are_noted_and_not_written_yet_count(tmp_path: Path) -> None:
    run = empty_run(tmp_path)
    store = run.samples
    commit(store, [sample(0)])
    failed, again = ask_only(store, 1), sample(0)["row_id"]
    store.outcomes.mkdir(parents=True)
    lines = [
        f'{{"row_id": "{row_id}", "error_class": "Retryable", "error": "503", "attempts": 5, "last_reply": null}}\n'
        for row_id in (failed, again)
    ]
    (store.outcomes / "1-0.jsonl").write_text("".join(lines))
    found = reading.failures(store, {again})
    assert [(f.row_id, f.source, f.error_class, f.attempts) for f in found] == [(failed, "sums", "Retryable", 5)]
