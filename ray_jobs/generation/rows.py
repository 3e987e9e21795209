"""One answer becomes one row of samples/; a pure function, used by the stage and by `resplit`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ray_jobs.core.records import Reply
from ray_jobs.text.markers import Markers
from ray_jobs.text.segments import split, texts


@dataclass(frozen=True)
class Answer:
    """A reply with where and when it was made: what a journal keeps, as JSON."""

    reply: Reply
    sampling: dict[str, Any]
    replica: str
    server_version: str
    attempt: int
    started_at_s: float
    """Unix time."""
    latency_s: float


def derived_columns(
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    finish_reason: str,
    markers: Markers,
    decode: Callable[[Sequence[int]], str],
) -> dict[str, Any]:
    """The columns that are computed from ids alone."""
    parts = split(prompt_ids, output_ids, markers, finish_reason=finish_reason)
    view = texts(parts, output_ids, decode, markers)
    return {
        "segments": [{"kind": s.kind, "start": s.start, "stop": s.stop} for s in parts.segments],
        "reasoning": view.reasoning,
        "content": view.content,
        "tool_calls": None if view.tool_calls is None else json.dumps(view.tool_calls, ensure_ascii=False),
        "closed": parts.closed,
        "flags": list(view.flags),
        "n_reasoning_tokens": view.n_reasoning_tokens,
    }


def sample_row(
    prompt: dict[str, Any],
    answer: Answer,
    markers: Markers,
    decode: Callable[[Sequence[int]], str],
    *,
    model: str,
    template_hash: str,
) -> dict[str, Any]:
    """The row of samples/ for a prompts row and its answer."""
    reply = answer.reply
    keys = ("row_id", "prompt_id", "turn", "sample", "source", "messages", "tools", "prompt_ids")
    return {
        **{key: prompt[key] for key in keys},
        **derived_columns(prompt["prompt_ids"], reply.output_ids, reply.finish_reason, markers, decode),
        "output_ids": reply.output_ids,
        "finish_reason": reply.finish_reason,
        "matched_stop": None if reply.matched_stop is None else json.dumps(reply.matched_stop),
        "n_prompt_tokens": len(prompt["prompt_ids"]),
        "n_output_tokens": len(reply.output_ids),
        "sampling": json.dumps(answer.sampling, sort_keys=True),
        "model": model,
        "template_hash": template_hash,
        "replica": answer.replica,
        "server_version": answer.server_version,
        "weight_version": reply.weight_version,
        "attempt": answer.attempt,
        "request_id": reply.request_id,
        "started_at": datetime.fromtimestamp(answer.started_at_s, UTC),
        "latency_s": answer.latency_s,
    }


def to_record(row_id: str, request: str, answer: Answer) -> dict[str, Any]:
    """The journal's line for an answer; `request` is the hash of what was asked."""
    reply = answer.reply
    return {
        "row_id": row_id,
        "request": request,
        "reply": {name: getattr(reply, name) for name in Reply.__dataclass_fields__ if name != "features"},
        **{name: getattr(answer, name) for name in Answer.__dataclass_fields__ if name != "reply"},
    }


def from_record(record: dict[str, Any]) -> Answer:
    """The answer in a journal's line."""
    fields = {name: record[name] for name in Answer.__dataclass_fields__ if name != "reply"}
    return Answer(reply=Reply(**record["reply"]), **fields)
