"""The project's own prompt files."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path

import pytest

from ray_jobs.text.prompts import Dropped, Prompt, is_held_out, read_source, unique

FOLDER = Path(__file__).parents[3] / "data" / "prompts"
FILES = ("everyday", "tasks")


def load(name: str) -> tuple[list[Prompt], list[Dropped]]:
    made = list(read_source(FOLDER / f"{name}.jsonl"))
    prompts = [p for p, _ in unique(p for p in made if isinstance(p, Prompt))]
    return prompts, [d for d in made if isinstance(d, Dropped)]


@pytest.mark.parametrize("name", FILES)
def test_enough_distinct_prompts(name):
    prompts, _ = load(name)
    assert len(prompts) >= 210
    last = [p.messages[-1]["content"].strip().lower() for p in prompts]
    assert len(set(last)) == len(last)
    assert {p.source for p in prompts} == {name}
    assert all(p.messages[-1]["role"] == "user" for p in prompts)


@pytest.mark.parametrize("name", FILES)
def test_prompts_are_varied_and_short(name):
    prompts, _ = load(name)
    last = [p.messages[-1]["content"] for p in prompts]
    words = [len(text.split()) for text in last]
    assert 8 <= statistics.median(words) <= 40
    assert max(words) <= 160
    openings = Counter(" ".join(text.split()[:3]).lower() for text in last)
    assert openings.most_common(1)[0][1] <= len(last) // 12
    assert all(text.isascii() for text in last)


def test_the_two_files_share_no_prompt():
    texts = [{p.messages[-1]["content"].lower() for p in load(name)[0]} for name in FILES]
    assert not texts[0] & texts[1]


def test_kinds_of_conversations():
    prompts, _ = load("everyday")
    systems = sum(p.messages[0]["role"] == "system" for p in prompts)
    longer = sum(any(m["role"] == "assistant" for m in p.messages) for p in prompts)
    assert systems >= 10
    assert longer >= 15


def test_dirt_is_dropped_with_its_reason():
    prompts, dropped = load("everyday")
    reasons = sorted(d.reason.split(":")[0] for d in dropped)
    assert reasons == ["has image", "no user turn", "no user turn", "not JSON", "unknown role 'narrator'"]
    assert not any(m["role"] == "assistant" for p in prompts for m in p.messages[-1:])
    _, dropped = load("tasks")
    assert sorted(d.reason.split(":")[0] for d in dropped) == [
        "content has a part of type 'image_url'",
        "orphan tool result",
    ]


def test_held_out_rows_exist():
    for name in FILES:
        prompts, _ = load(name)
        assert sum(is_held_out(p.prompt_id, 0.1) for p in prompts) >= 10
