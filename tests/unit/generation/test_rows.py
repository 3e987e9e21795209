"""An answer goes through a journal unchanged, and becomes a row of the schema."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from ray_jobs.core.records import Reply
from ray_jobs.core.schemas import SAMPLES
from ray_jobs.generation.rows import Answer, from_record, sample_row, to_record
from ray_jobs.text.chat import Chat
from tests.models import IDS, tiny_model


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return Chat.load(tiny_model(tmp_path_factory.mktemp("m") / "tiny"), markers_family="tiny")


def answer(output_ids: list[int], matched: int | str | None) -> Answer:
    reply = Reply(output_ids, "stop", matched, 3, 0, "default", "rid")
    return Answer(reply, {"temperature": 0.5, "max_new_tokens": 9}, "replica-0", "v", 2, 1796091578.25, 0.5)


@pytest.mark.parametrize("matched", [2, "text", None])
def test_the_journal_changes_nothing(matched: int | str | None) -> None:
    made = answer([5, 6, 7], matched)
    assert from_record(json.loads(json.dumps(to_record("r", "hash", made)))) == made


def test_a_row_fits_the_schema_and_its_texts_are_its_segments(chat: Chat, tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "hi"}]
    prompt_ids = chat.render_ids(prompt)
    thought, said = chat.tokenizer.encode("so it is"), chat.tokenizer.encode("yes")
    output_ids = [*thought, IDS["</think>"], *said, IDS["<|im_end|>"]]
    keys = {"row_id": "p-0-0", "prompt_id": "p", "turn": 0, "sample": 0, "source": "s", "messages": "[]", "tools": None}
    row = sample_row(
        {**keys, "prompt_ids": prompt_ids},
        answer(output_ids, IDS["<|im_end|>"]),
        chat.markers,
        chat.decode,
        model="m",
        template_hash="t",
    )
    table = pa.Table.from_pylist([row], SAMPLES)
    assert table.schema.equals(SAMPLES)
    assert (row["reasoning"], row["content"], row["closed"]) == ("so it is", "yes", "explicit")
    assert [s["kind"] for s in row["segments"]] == ["reasoning", "marker", "content", "stop"]
    assert row["n_reasoning_tokens"] == len(thought)
    assert row["matched_stop"] == str(IDS["<|im_end|>"])
    assert row["attempt"] == 2
