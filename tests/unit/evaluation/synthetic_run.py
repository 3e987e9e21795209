"""A run folder without a run: rows made with the stages' own functions, with thoughts, calls, failures, hostile text.

It also makes one to look at: `python -m tests.unit.evaluation.synthetic_run FOLDER [rows a source]`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ray_jobs.config.schema import Config, DataConfig, EvaluateConfig, RunConfig, TargetConfig
from ray_jobs.core.files import JsonLines, write_json
from ray_jobs.core.records import Reply
from ray_jobs.core.schemas import SAMPLES
from ray_jobs.evaluation.acceptance import figures, kinds_of, walk
from ray_jobs.generation.rows import Answer, sample_row
from ray_jobs.store.run_dir import RunDir
from ray_jobs.store.sample_set import SampleSet, write_dropped, write_table
from ray_jobs.text.chat import Chat
from tests.models import IDS, tiny_model

HOSTILE = (
    "<script>alert('model')</script><img src=http://evil.example/x.png onerror=alert(1)></div></article>",
    "</style><style>body{display:none}</style><svg onload=alert(2)><a href='javascript:alert(3)'>x</a>",
    "{{ 7 * 7 }}{% raw %}&lt;b&gt;&#x3c;i&#x3e; <!-- -->]]>",
    "nul \0 bell \x07 escape \x1b[31mred\x1b[0m back\x08space c1 \x85\x9b return \r end",
    "override \u202egnp.exe\u202c isolate \u2066 mark \u200f\u200e \ufeff bom \u2028 line \u2029 paragraph",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd \u0645\u0631\u062d\u0628\u0627 \u0628\u0643\u0645 (abc) 123",
    "z" + "\u0301\u0302\u0303\u0304\u0305" * 40 + "algo and \U0001f469\u200d\U0001f4bb and \ufffd",
    "long" * 3000,
)
SOURCES = ("chat", "code", "maths")
WORDS = "I add the numbers one by one, then I check the answer. "


@dataclass
class Plan:
    """What to build; `stages` are those that are done."""

    rows: int = 12
    sources: tuple[str, ...] = SOURCES
    thoughts: bool = True
    empty_thoughts: bool = False
    failures: bool = True
    all_failed: bool = False
    hostile: bool = True
    stages: tuple[str, ...] = ("generate", "train", "export", "evaluate")
    draft_tokens: list[int] = field(default_factory=lambda: [3, 7])


def make_run(folder: Path, chat: Chat, plan: Plan) -> tuple[Config, RunDir, list[dict[str, Any]]]:
    """The run, its folder, and its samples as they were written."""
    markers = "tiny" if plan.thoughts else "none"
    cfg = Config(
        run=RunConfig(name=folder.name, root=str(folder.parent), seed=7),
        data=DataConfig(held_out_share=0.2),
        target=TargetConfig(model="tiny", markers=markers),
        evaluate=EvaluateConfig(draft_tokens=plan.draft_tokens, resamples=200),
    )
    run_dir = RunDir(folder)
    prompts = [_prompt(i, source, plan, chat) for i in range(plan.rows) for source in plan.sources]
    write_dropped(run_dir.samples.prompts, _dropped(plan))
    run_dir.samples.add_prompts(prompts)
    failed = _fail(run_dir.samples, prompts, plan)
    answered = [p for p in prompts if p["row_id"] not in failed and p["prompt_ids"] is not None]
    rows = [_row(i, prompt, plan, chat) for i, prompt in enumerate(answered)]
    commit(run_dir.samples, rows)
    run_dir.samples.write_failures({row["row_id"] for row in rows})
    _small_files(run_dir, chat, plan, markers)
    if "train" in plan.stages:
        _train(run_dir)
    if "export" in plan.stages:
        run_dir.set_complete("export", {"parameters": 1234567, "bytes": 4938268, "sha256": "e" * 64, "serve": "sglang"})
    if "evaluate" in plan.stages:
        _evaluate(run_dir, rows, plan)
    return cfg, run_dir, rows


def commit(store: SampleSet, rows: list[dict[str, Any]], rows_per_file: int = 16) -> None:
    """Write rows as Ray's write tasks leave them: the ids under work/checkpoint, the rows in samples/."""
    store.samples.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(rows), rows_per_file):
        part, name = rows[first : first + rows_per_file], f"w_{first:08d}"
        write_table(store.samples / f"{name}-0.parquet", pa.Table.from_pylist(part, SAMPLES))
        write_table(store.checkpoint / f"{name}.parquet", pa.table({"row_id": [r["row_id"] for r in part]}))


def _prompt(i: int, source: str, plan: Plan, chat: Chat) -> dict[str, Any]:
    prompt_id = hashlib.sha256(f"{source}{i}".encode()).hexdigest()[:32]
    asked = HOSTILE[i % len(HOSTILE)] if plan.hostile and source == plan.sources[-1] else f"What is {i} and {i * 7}?"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": asked}]
    refused = plan.failures and source == plan.sources[0] and i == 1
    return {
        "row_id": f"{prompt_id}-0-0",
        "prompt_id": prompt_id,
        "turn": 0,
        "sample": 0,
        "source": source,
        "messages": json.dumps(messages, sort_keys=True),
        "tools": None,
        "prompt_ids": None if refused else chat.render_ids(messages),
        "error": "chat template: TemplateError: unknown role <b>narrator</b>" if refused else None,
    }


def _fail(store: SampleSet, prompts: list[dict[str, Any]], plan: Plan) -> set[str]:
    """Note the outcomes of rows that failed for good; returns their ids."""
    if not (plan.failures or plan.all_failed):
        return set()
    lost = [p["row_id"] for i, p in enumerate(prompts) if p["prompt_ids"] and (plan.all_failed or i % 17 == 3)]
    outcomes = JsonLines(store.outcomes / "1-a.jsonl")
    for i, row_id in enumerate(lost):
        error = "429 Too Many Requests " + HOSTILE[i % len(HOSTILE)] if plan.hostile else "500 Server Error"
        kind = "Rejected" if i % 3 == 2 else "Retryable"
        outcomes.append({"row_id": row_id, "error_class": kind, "error": error, "attempts": 5, "last_reply": None})
    outcomes.close()
    return set(lost)


def _dropped(plan: Plan) -> list[dict[str, Any]]:
    if not plan.failures:
        return []
    reasons = ("no messages", "not JSON: <b>lone</b> \ud800", "no messages")
    return [{"file": "/data/a.jsonl", "line": 3 + i, "reason": reason} for i, reason in enumerate(reasons)]


def _row(i: int, prompt: dict[str, Any], plan: Plan, chat: Chat) -> dict[str, Any]:
    """An answer whose form depends on its number: plain, with a call, cut off, with ids after the stop."""
    rng = np.random.default_rng(i)
    output_ids = _thought(i, rng, plan, chat)
    text = (
        HOSTILE[i // 2 % len(HOSTILE)] if plan.hostile and i % 2 else f"The answer is {i}. " * int(rng.integers(1, 9))
    )
    output_ids += _ids(chat, text)
    if i % 5 == 2:
        output_ids += _call(chat, broken=i % 10 == 7)
    truncated = i % 7 == 6
    output_ids += [] if truncated else [IDS["<|im_end|>"]]
    output_ids += _ids(chat, " and more") if i % 4 == 1 and not truncated else []
    reply = Reply(output_ids, "length" if truncated else "stop", None, len(prompt["prompt_ids"]), 0, "default", f"r{i}")
    answer = Answer(reply, {"temperature": 1.0}, f"replica-{i % 2}", "0.5.23", 1, 1796091578.25 + i, 1.5)
    return sample_row(prompt, answer, chat.markers, chat.decode, model="tiny", template_hash=chat.template_hash)


def _thought(i: int, rng: np.random.Generator, plan: Plan, chat: Chat) -> list[int]:
    if not plan.thoughts:
        return []
    if plan.empty_thoughts:
        return [*_ids(chat, "\n\n"), IDS["</think>"]]
    said = HOSTILE[i % len(HOSTILE)] if plan.hostile and i % 3 == 1 else WORDS * int(rng.integers(1, 12))
    return [*_ids(chat, said), IDS["</think>"]]


def _call(chat: Chat, *, broken: bool) -> list[int]:
    arguments = '{"city": "Par' if broken else '{"city": "Paris"}'
    return [
        IDS["<|tool_calls_section_begin|>"],
        IDS["<|tool_call_begin|>"],
        *_ids(chat, "functions.weather:0"),
        IDS["<|tool_call_argument_begin|>"],
        *_ids(chat, arguments),
        IDS["<|tool_call_end|>"],
        IDS["<|tool_calls_section_end|>"],
    ]


def _ids(chat: Chat, text: str) -> list[int]:
    return chat.tokenizer.encode(text, add_special_tokens=False)


def _small_files(run_dir: RunDir, chat: Chat, plan: Plan, markers: str) -> None:
    sampling = {"temperature": 1.0, "top_p": 0.95, "max_new_tokens": 1024}
    made = {"template": chat.template_hash, "tokenizer": chat.tokenizer_hash, "sampling": sampling}
    write_json(run_dir.path / "fingerprint.json", {**made, "markers": markers, "context_length": 2048})
    packages = {"ray": "2.60.0", "torch": "2.13.0", "gone": None}
    facts = {"python": "3.12.1", "platform": "Linux", "command": ["pipeline"], "packages": packages, "commit": "c0ffee"}
    write_json(run_dir.path / "provenance.json", facts)
    (run_dir.path / "config.yaml").write_text("run:\n  name: '<b>synthetic</b>'\n", encoding="utf-8")
    for attempt in (1, 2):
        (run_dir.path / "logs" / f"attempt_{attempt}").mkdir(parents=True)
    if "generate" in plan.stages:
        run_dir.set_complete("generate", {"rows": 1, "ok": 1, "failed": 0})


def _train(run_dir: RunDir, n_steps: int = 400) -> None:
    lines = JsonLines(run_dir.metrics)
    rng, record = np.random.default_rng(0), {}
    for step in [*range(0, n_steps, 10), n_steps - 1]:
        share = (step + 1) / n_steps
        loss = 24 - 14 * share**0.4 + float(rng.normal(0, 0.25))
        accuracy = [round(0.55 * share**0.5 * 0.86**i, 4) for i in range(7)]
        record = {"step": step, "n_steps": n_steps, "loss": loss, "accuracy": accuracy, "tokens": 3000}
        record |= {"tokens_per_s": 1500.0, "expected_accepted_length": 1.0 + sum(accuracy[:3])}
        if step in (190, n_steps - 1):
            record["held_out"] = {"loss": loss + 0.6, "accuracy": accuracy}
        lines.append(record)
    lines.close()
    run_dir.set_complete("train", {"rows": 30, "tokens": 9000, "n_steps": n_steps, "coverage": 0.987, "last": record})


def _evaluate(run_dir: RunDir, rows: list[dict[str, Any]], plan: Plan) -> None:
    """Greedy answers are some of the samples; what is accepted is drawn at random."""
    greedy = rows[::3]
    commit(run_dir.greedy, greedy)
    write_json(run_dir.greedy.path / "sampling.json", {"temperature": 0.0})
    made = {}
    for k in plan.draft_tokens:
        walks = []
        for i, row in enumerate(greedy):
            n_ids = row["n_prompt_tokens"] + row["n_output_tokens"]
            matches = np.random.default_rng([k, i]).random((n_ids, k)) < 0.45
            matches &= np.arange(n_ids)[:, None] + 2 + np.arange(k) < n_ids
            walks.append(walk(matches, row["n_prompt_tokens"], kinds_of(row["segments"]), row["source"]))
        made[str(k)] = figures(walks, 200, 7)
    head = plan.draft_tokens[0]
    summary = {"draft_tokens": head, "offline": made[str(head)], "offline_by_draft_tokens": made}
    write_json(run_dir.summary, summary)
    run_dir.set_complete("evaluate", {"summary": summary})


def main(folder: Path, rows: int) -> None:
    """Build a run and its page."""
    from ray_jobs.evaluation.report import write

    chat = Chat.load(tiny_model(folder / "tiny"), markers_family="tiny")
    cfg, run_dir, _ = make_run(folder / "synthetic", chat, Plan(rows=rows))
    print(write(cfg, run_dir, chat.decode))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int((sys.argv[2:] or ["40"])[0]))
