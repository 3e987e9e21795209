"""The eight prompt files of the model `tiny`: made again they are the same, and their dirt is what their page says."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from data.make_prompts import FOLDER, MAKERS, as_table, as_text, make_all
from ray_jobs.text.prompts import Dropped, Prompt, UniqueCounts, is_held_out, read_source, unique
from tiny_model import conversations
from tiny_model.conversation import Conversation

ROOT = Path(__file__).parents[3]
PAGE = (FOLDER / "README.md").read_text(encoding="ascii")
ROWS, POOL = make_all()

REASONS = {
    "no user turn": r"no user turn",
    "unknown role": r"unknown role '",
    "has image": r"has image: ",
    "not a JSON object": r"not a JSON object",
    "a thought without its end": r"a thought without <\|end_of_thought\|>",
    "arguments of a call are not JSON": r"arguments of \w+ is not JSON: ",
    "a tool in system is not JSON": r"a tool in system is not JSON: ",
    "chat has text before its first turn": r"chat has text before its first turn",
    "a tool call is not JSON": r"<tool_call> is not JSON: ",
    "a tool call does not end": r"<tool_call> without </tool_call>",
    "tools is not JSON": r"tools is not JSON: ",
    "unknown type": r"tool \w+, properties\.\w+: unknown type 'Callable",
    "orphan tool result": r"orphan tool result: ",
    "image": r"content has a part of type 'image_url': ",
}
"""The page's words to the beginning of the reader's."""


def table(columns: int) -> list[list[str]]:
    """The cells of the page's rows about a file, in the table with so many columns."""
    rows = [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in PAGE.splitlines()]
    return [row for row in rows if len(row) == columns and row[0] in MAKERS]


FORMS = {name: form for name, form, *_ in table(6)}


def load(name: str, form: str = "auto") -> tuple[list[Prompt], list[Dropped], int]:
    """(prompts without duplicates, dropped rows, duplicates)."""
    made = list(read_source(FOLDER / name, format=form))
    counts = UniqueCounts()
    prompts = [p for p, _ in unique((m for m in made if isinstance(m, Prompt)), counts=counts)]
    return prompts, [m for m in made if isinstance(m, Dropped)], counts.duplicates


LOADED = {name: load(name) for name in MAKERS}


def spoken(prompt: Prompt) -> tuple[str, ...]:
    """What the held-out side of a conversation is decided by: the questions, and the result of a call."""
    return tuple(m["content"] for m in prompt.messages if m["role"] in ("user", "tool"))


@pytest.mark.parametrize("name", MAKERS)
def test_the_files_are_what_the_script_makes(name):
    if name.endswith(".parquet"):
        assert pq.read_table(FOLDER / name).equals(as_table(ROWS[name]))
    else:
        assert (FOLDER / name).read_bytes() == as_text(name, ROWS[name]).encode("utf-8")


def test_another_seed_gives_other_files():
    other, _ = make_all(seed=2)
    assert all(other[name] != ROWS[name] for name in MAKERS)


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_is_small_and_has_enough_prompts_in_its_own_form(name):
    assert (FOLDER / name).stat().st_size <= 300_000
    prompts, dropped, _ = LOADED[name]
    assert len(prompts) >= 150
    named = load(name, FORMS[name])
    assert [p.prompt_id for p in named[0]] == [p.prompt_id for p in prompts]
    assert named[1] == dropped


def test_the_page_says_what_is_in_the_files():
    counted = [
        [name, FORMS[name], *map(str, (len(ROWS[name]), len(prompts), duplicates, len(dropped)))]
        for name, (prompts, dropped, duplicates) in LOADED.items()
    ]
    assert table(6) == counted


@pytest.mark.parametrize("name", MAKERS)
def test_the_page_says_why_rows_are_dropped(name):
    said = {reason: int(n) for file, n, reason in table(3) if file == name}
    reasons = [d.reason for d in LOADED[name][1]]
    found = Counter(words for reason in reasons for words, begin in REASONS.items() if re.match(begin, reason))
    assert found == said
    assert found.total() == len(reasons)


def test_no_prompt_is_seen_in_training_or_in_two_files():
    all_prompts = [p for prompts, _, _ in LOADED.values() for p in prompts]
    assert len(all_prompts) >= 1200
    texts = [spoken(p) for p in all_prompts]
    assert len(set(texts)) == len(texts)
    seen = [text for text in texts if not conversations.is_held_out(Conversation("", [], spoken=text))]
    assert seen == []


def test_all_kinds_are_asked():
    asked = {POOL.given[spoken(p)].kind for prompts, _, _ in LOADED.values() for p in prompts}
    assert asked == set(conversations.KINDS)


@pytest.mark.parametrize("name", ["glaive.jsonl", "hermes_tools.json", "xlam.json", "openai_tools.jsonl"])
def test_tools_and_calls_come_back_as_they_were_drawn(name):
    """Through the way of the set, and so as the model learnt them; only an optional parameter is another."""
    whole = 0
    for prompt in LOADED[name][0]:
        drawn = POOL.given[spoken(prompt)]
        calls = [m["tool_calls"] for m in prompt.messages if "tool_calls" in m]
        assert calls == [m["tool_calls"] for m in drawn.prompt if "tool_calls" in m]
        ids = [m["tool_call_id"] for m in prompt.messages if m["role"] == "tool"]
        assert ids == [m["tool_call_id"] for m in drawn.prompt if m["role"] == "tool"]
        whole += prompt.tools == drawn.tools
    assert len(LOADED[name][0]) - whole == (16 if name == "xlam.json" else 0)


def test_histories_are_mended_to_what_was_said():
    for name in ("sharegpt.json", "ultrachat.parquet", "openthoughts.jsonl", "glaive.jsonl", "openai_tools.jsonl"):
        several = 0
        for prompt in LOADED[name][0]:
            drawn = POOL.given[spoken(prompt)]
            answers = [m["content"] for m in prompt.messages if m["role"] == "assistant"]
            assert answers == [m["content"] for m in drawn.prompt if m["role"] == "assistant"]
            several += bool(answers)
        assert several >= 16, name


def test_thoughts_of_histories_are_kept_apart():
    thoughts = [
        (m["reasoning_content"], next(d for d in POOL.given[spoken(p)].prompt if d["content"] == m["content"]))
        for p in LOADED["openthoughts.jsonl"][0]
        for m in p.messages
        if m["role"] == "assistant"
    ]
    assert len(thoughts) >= 40
    assert all(thought == drawn["reasoning_content"] for thought, drawn in thoughts)


def test_every_file_has_prompts_for_the_held_out_share():
    for name, (prompts, _, _) in LOADED.items():
        assert sum(is_held_out(p.prompt_id, 0.1) for p in prompts) >= 8, name


def test_the_configuration_names_the_files():
    sources = yaml.safe_load((ROOT / "conf" / "data" / "tiny.yaml").read_text())["sources"]
    assert [Path(source["path"]).name for source in sources] == list(MAKERS)
    assert all((ROOT / source["path"]).is_file() for source in sources)
    assert [source["name"] for source in sources] == [Path(name).stem for name in MAKERS]
