"""Rows as a person reads them: what is shown, in which order, and that no text of a model can act on a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from inspect_cases import CALLS, CUT, full_run, headers, look

from ray_jobs.config.schema_inspect import InspectOrder
from ray_jobs.core.errors import ConfigError
from ray_jobs.inspection.visible import one_line, visible
from ray_jobs.store.run_dir import RunDir
from tests.sample_rows import TOKENIZER, commit, encode, sample


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return full_run(tmp_path_factory.mktemp("rows"))


def test_a_row_is_shown_with_header_question_and_segments(run: RunDir) -> None:
    assert look(run, rows=1) == (
        "run made: 9 prompts = 6 ok + 2 failed + 1 pending; generate is running\n"
        "1 of 6 row(s)\n"
        "\n"
        f"== {0:032x}-0-0  source=sums  closed=explicit  flags=none  finish=stop  "
        "15 prompt + 18 output (11 reasoning) tokens  http://127.0.0.1:30000  1.5 s\n"
        "  [user]\n"
        "    What is 2+2?\n"
        "  [reasoning 0:11]\n"
        "    two and two\n"
        "  [marker 11:12]\n"
        "    </think>\n"
        "  [content 12:17]\n"
        "    Four.\n"
        "  [stop 17:18]\n"
        "    <|im_end|>\n"
    )


def test_tool_calls_are_shown_raw_and_parsed(run: RunDir) -> None:
    said = look(run, where="tool_calls != null", rows=1)
    for kind, text in CALLS:
        assert re.search(rf"^  \[{kind} \d+:\d+\]\n    {re.escape(text)}$", said, re.MULTILINE), kind
    assert '  [call 0: weather]\n    {"city": "Paris"}\n' in said


def test_a_call_whose_arguments_are_no_json_says_so(tmp_path: Path) -> None:
    run = full_run(tmp_path)
    broken = [{"index": 2, "name": None, "arguments": '{"city": Par', "parsed": None}]
    commit(run.samples, [sample(20, tool_calls=json.dumps(broken))], "c")
    said = look(run, row_id=f"{20:032x}")
    assert '  [call 2: (no name), arguments are not JSON]\n    {"city": Par\n' in said


def test_colours_follow_the_kinds_and_plain_output_has_none(run: RunDir) -> None:
    plain, coloured = look(run), look(run, colour=True)
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert "\x1b[36m    two and two\x1b[0m" in coloured
    assert "\x1b[32m    Four.\x1b[0m" in coloured
    assert "\x1b[33m" in coloured
    assert look(run) == plain


ORDERS = {"stored": [0, 1, 2], "longest": [1, 4, 2], "shortest": [3, 0, 5], "latest": [5, 4, 3]}


@pytest.mark.parametrize(("order", "numbers"), ORDERS.items(), ids=ORDERS)
def test_orders(run: RunDir, order: str, numbers: list[int]) -> None:
    assert headers(look(run, order=InspectOrder[order], rows=3)) == numbers


def test_a_filter_and_the_number_of_rows(run: RunDir) -> None:
    said = look(run, where="closed == 'never' and 'truncated' in flags")
    assert headers(said) == [1, 4]
    assert "\n2 matching row(s)\n" in said
    assert headers(look(run, where="source == 'tools'", rows=1)) == [2]
    assert look(run, where="n_output_tokens > 100000").splitlines()[1:] == [
        "no row matches inspect.where=n_output_tokens > 100000"
    ]


def test_row_ids(run: RunDir) -> None:
    assert headers(look(run, row_id=f"{4:032x}")) == [4]
    assert headers(look(run, row_id=f"{4:032x}-0-0", where="closed == 'never'")) == [4]
    assert headers(look(run, row_id="0" * 31, rows=2)) == [0, 1]
    rejected, waiting = f"{7:032x}-0-0", f"{8:032x}-0-0"
    assert look(run, row_id=rejected).splitlines()[1] == (
        f"row {rejected} failed: Rejected; see inspect.show=failures inspect.row_id={rejected}"
    )
    assert look(run, row_id=waiting).splitlines()[1] == f"row {waiting} is not answered yet"
    assert "matches inspect.where=" in look(run, row_id=f"{4:032x}", where="closed == 'absent'")
    with pytest.raises(ConfigError, match=r"inspect\.row_id=f: no row of this run begins so"):
        look(run, row_id="f")


def test_ids_and_the_prompt_with_its_control_ids_marked(run: RunDir) -> None:
    said = look(run, rows=1, ids=True, prompt=True)
    assert "  [prompt, 15 ids]\n    [[<|im_user|>]]What is 2+2?[[<|im_end|>]][[<|im_assistant|>]]\n" in said
    prompt_ids = encode("<|im_user|>What is 2+2?<|im_end|><|im_assistant|>")
    assert f"  [prompt ids]\n    {' '.join(map(str, prompt_ids))}\n" in said
    assert f"  [content 12:17]\n    Four.\n  [ids]\n    {' '.join(map(str, encode('Four.')))}\n" in said


def test_long_texts_are_cut_with_a_count(run: RunDir) -> None:
    whole = CUT[0][1]
    said = look(run, row_id=f"{1:032x}", max_chars=25)
    assert f"    {whole[:25]}\n    ... {len(whole) - 25} more character(s), inspect.max_chars=25\n" in said
    assert f"    {whole}\n" in look(run, row_id=f"{1:032x}", max_chars=0)


def test_the_whole_conversation(tmp_path: Path) -> None:
    run = full_run(tmp_path)
    turns = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "first question"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]},
        {"role": "user", "content": [{"type": "text", "text": "last question"}]},
    ]
    row = sample(20, messages=json.dumps(turns), tools=json.dumps([{"name": "weather"}]))
    commit(run.samples, [row], "c")
    last = look(run, row_id=row["row_id"])
    assert "last question" in last
    assert "first question" not in last
    said = look(run, row_id=row["row_id"], all_turns=True)
    labels = re.findall(r"^  \[(\w+)\]$", said, re.MULTILINE)
    assert labels == ["tools", "system", "user", "assistant", "user"]
    assert '"tool_calls": [{"id": "c1"}]' in said


HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07 \x9b31m \x00 \r over \x7f [red]markup[/red] :smile: \u202eevil\u202c "
    "\u2028 \ufeff\n== 00-0-0  forged\n  [stop 0:1]\tend"
)


def test_no_text_can_act_hide_or_forge(tmp_path: Path) -> None:
    run = full_run(tmp_path)
    call = [{"index": 0, "name": HOSTILE, "arguments": '"\\ud800"', "parsed": "\ud800"}]
    row = sample(
        20,
        [("reasoning", HOSTILE), ("content", HOSTILE), ("stop", "<|im_end|>")],
        question=HOSTILE,
        source=HOSTILE,
        replica=HOSTILE,
        tool_calls=json.dumps(call),
    )
    commit(run.samples, [row], "c")
    said = look(run, row_id=row["row_id"], prompt=True, max_chars=0)
    assert said.replace("\n", "").replace(" ", "").isprintable()
    said.encode()
    assert "[red]markup[/red] :smile:" in said
    assert "\\x1b[2J\\x1b]0;owned\\x07 \\x9b31m \\x00 \\x0d over \\x7f" in said
    assert "\\u202eevil\\u202c" in said
    assert "\\ud800" in said
    # the only lines at the margin are ours
    at_margin = [line.split(" ")[0] for line in said.splitlines() if line and not line.startswith("  ")]
    assert at_margin == ["run", "1", "=="]
    assert len(re.findall(r"^==", said, re.MULTILINE)) == 1
    assert len(re.findall(r"^  \[stop", said, re.MULTILINE)) == 1


def test_visible_keeps_what_people_write() -> None:
    kept = "plain\ttext\n\u00e4\u6f22\U0001f469\u200d\U0001f680"
    assert visible(kept) == kept
    assert visible("\U000e0041") == "\\U000e0041"
    assert one_line("a\nb\tc") == "a\\nb\\tc"
    assert one_line("abcdef", 3) == "abc..."


def test_without_the_vocabulary_the_columns_are_shown_and_one_line_says_so(tmp_path: Path) -> None:
    run = full_run(tmp_path)
    (tmp_path / "model" / "tokenizer.json").unlink()
    said = look(run, rows=6, prompt=True)
    assert len(re.findall("^  note: the tokenizer of .* cannot be loaded", said, re.MULTILINE)) == 1
    assert "    two and two\n" in said
    assert "    Four.\n" in said
    assert f"    <id {encode('</think>')[0]}>\n" in said
    assert "  [content 11:22]\n    Let me see.Done.\n" in said
    assert "its text is in the first content segment]\n" in said
    assert ", see the calls below]\n" in said
    assert '    {"city": "Paris"}\n' in said


def test_the_vocabulary_is_not_loaded_where_the_columns_are_enough(tmp_path: Path) -> None:
    run = full_run(tmp_path)
    (tmp_path / "model" / "tokenizer.json").unlink()
    said = look(run, row_id=f"{1:032x}")
    assert "on and on" in said
    assert "note:" not in said


def test_a_vocabulary_of_another_model_is_not_believed(tmp_path: Path) -> None:
    run = full_run(tmp_path)
    other = json.loads(TOKENIZER.to_str())
    vocabulary = other["model"]["vocab"]
    vocabulary["e"], vocabulary["o"] = vocabulary["o"], vocabulary["e"]
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(other))
    said = look(run, rows=1)
    assert "note: this tokenizer does not give back the stored reasoning" in said
    assert "    two and two\n" in said
    assert "    Four.\n" in said
