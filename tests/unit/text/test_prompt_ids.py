"""Ids, duplicates and the held-out share."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ray_jobs.core.errors import ConfigError
from ray_jobs.text.prompts import Prompt, UniqueCounts, is_held_out, make_prompt_id, read_source, row_id, unique

ROOT = Path(__file__).parents[3]
MESSAGES = [{"role": "system", "content": "Be kind. \u00e9"}, {"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": [2.5, None]}}}]


def prompts(texts: list[str]) -> list[Prompt]:
    made = []
    for text in texts:
        messages = [{"role": "user", "content": text}]
        made.append(Prompt(make_prompt_id("s", messages, None), "s", messages, None))
    return made


def test_id_is_a_hash_of_source_messages_and_tools():
    made = make_prompt_id("s", MESSAGES, TOOLS)
    assert re.fullmatch("[0-9a-f]{32}", made)
    others = [
        make_prompt_id("t", MESSAGES, TOOLS),
        make_prompt_id("s", MESSAGES[1:], TOOLS),
        make_prompt_id("s", MESSAGES, None),
    ]
    assert len({made, *others}) == 4


def test_id_does_not_depend_on_the_order_of_keys():
    turned = [dict(reversed(m.items())) for m in MESSAGES]
    tools = json.loads(json.dumps(TOOLS, sort_keys=True))
    assert list(turned[0]) != list(MESSAGES[0])
    assert make_prompt_id("s", turned, tools) == make_prompt_id("s", MESSAGES, TOOLS)


def test_id_is_the_same_in_every_process():
    code = (
        "import json, sys; from ray_jobs.text.prompts import make_prompt_id;"
        "print(make_prompt_id('s', *json.loads(sys.argv[1])))"
    )
    made = {make_prompt_id("s", MESSAGES, TOOLS)}
    for seed in ("0", "77"):
        run = [sys.executable, "-c", code, json.dumps([MESSAGES, TOOLS])]
        env = os.environ | {"PYTHONHASHSEED": seed}
        made.add(subprocess.run(run, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout.strip())
    assert len(made) == 1


def test_fields_beside_the_conversation_do_not_matter(tmp_path):
    rows = [
        {"id": "a", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "x", "weight": 1}]},
        {"uuid": 3, "messages": [{"content": "Hi", "role": "user", "weight": None}], "tools": []},
        {"prompt": "Hi"},
    ]
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    made = [p for p in read_source(path) if isinstance(p, Prompt)]
    assert len(made) == 3
    assert len({p.prompt_id for p in made}) == 1


def test_row_id():
    assert row_id("ab", 0, 12) == "ab-0-12"


def test_duplicates():
    texts = ["a", "b", "a", "a", "c", "b"]
    counts = UniqueCounts()
    assert [p.messages[0]["content"] for p, _ in unique(prompts(texts), counts=counts)] == ["a", "b", "c"]
    assert (counts.seen, counts.duplicates) == (6, 3)
    kept = [(p.messages[0]["content"], k) for p, k in unique(prompts(texts), "keep")]
    assert kept == [("a", 0), ("b", 0), ("a", 1), ("a", 2), ("c", 0), ("b", 1)]
    with pytest.raises(ConfigError, match=r"^data.duplicates=some"):
        list(unique([], "some"))


def test_held_out_is_pure_monotone_and_fair():
    ids = [hashlib.sha256(str(n).encode()).hexdigest()[:32] for n in range(5000)]
    before: set[str] = set()
    for share in (0.0, 0.05, 0.1, 0.5, 1.0):
        held = {i for i in ids if is_held_out(i, share)}
        assert before <= held
        assert abs(len(held) / len(ids) - share) < 0.02
        before = held
    assert len(before) == len(ids)
