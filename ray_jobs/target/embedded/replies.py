"""The JSON of an answer of /generate, whole or in parts, and what the server was started with."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ray_jobs.target.embedded.jobs import Entry, Job, Logprobs, Outcome
from ray_jobs.target.embedded.protocol import Call
from ray_jobs.target.embedded.vocabulary import Vocabulary

WEIGHT_VERSION = "default"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the server was started with."""

    model_path: str
    host: str = "127.0.0.1"
    port: int = 30000
    dtype: str = "bfloat16"
    threads: int | None = None
    max_running_requests: int = 48
    max_total_tokens: int | None = None
    """Tokens that the cache may come to hold; None: a quarter of this machine's memory."""
    enable_return_hidden_states: bool = False
    enable_return_aux_hidden_states: bool = False
    """Hidden states are then those of the aux layers, beside each other; implies the flag above."""
    enable_deterministic_inference: bool = False
    """Every step has the shape of a full one, also where that costs; small models always do so."""
    aux_layers: tuple[int, ...] | None = None
    """Layers whose outputs are returned; None: the three that EAGLE-3 reads."""

    @property
    def hidden_states(self) -> bool:
        """Whether hidden states are returned when a request asks for them."""
        return self.enable_return_hidden_states or self.enable_return_aux_hidden_states


def answer(call: Call, outcomes: list[Outcome], vocabulary: Vocabulary, started: float) -> list[dict[str, Any]]:
    """One object for each job of a call, in their order; `started` is the call's monotonic start."""
    now = time.time()
    return [whole(call, index, outcome, vocabulary, started, now) for index, outcome in enumerate(outcomes)]


def whole(
    call: Call, index: int, outcome: Outcome, vocabulary: Vocabulary, started: float, sent_ts: float
) -> dict[str, Any]:
    """The object for one finished job; `sent_ts` is when its first part was sent."""
    assert outcome.finish_reason is not None
    text = vocabulary.text(outcome.output_ids, outcome.finish_reason, call.jobs[index].params)
    reply = part(call, index, outcome, text, vocabulary)
    reply["meta_info"] |= {"e2e_latency": time.monotonic() - started, "response_sent_to_client_ts": sent_ts}
    return reply


def part(call: Call, index: int, outcome: Outcome, text: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """The object for what there is of one job, as a stream repeats it."""
    job, prompt_tokens, count = call.jobs[index], call.prompt_tokens[index], len(outcome.output_ids)
    meta: dict[str, Any] = {
        "id": job.rid,
        "finish_reason": outcome.finish_reason,
        "prompt_tokens": prompt_tokens,
        "weight_version": WEIGHT_VERSION,
        "num_retractions": outcome.retractions,
    }
    if job.logprobs:
        meta |= _logprobs(job, outcome, vocabulary if call.logprob_text else None)
    meta |= {"reasoning_tokens": 0, "completion_tokens": count, "cached_tokens": 0}
    if outcome.finish_reason is not None:
        meta["weight_versions"] = [{"version": WEIGHT_VERSION, "start": 0, "end": count}]
    meta["cached_tokens_details"] = None
    if job.hidden:
        meta["hidden_states"] = [states.tolist() for states in outcome.hidden]
    meta["dp_rank"] = None
    reply = {"text": text, "output_ids": outcome.output_ids, "meta_info": meta}
    if call.prompt_ids:
        reply["prompt_token_ids"] = job.prompt[:prompt_tokens]
    return reply


def _logprobs(job: Job, outcome: Outcome, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """The log-probability fields, with the texts of their ids if a vocabulary is given."""

    def one(entry: Entry) -> list[Any]:
        return [entry[0], entry[1], vocabulary.token_text(entry[1]) if vocabulary else None]

    def many(lines: list[list[Entry] | None]) -> list[Any]:
        return [None if line is None else [one(entry) for entry in line] for line in lines]

    parts: tuple[tuple[str, Logprobs], ...] = (
        ("input", outcome.input_logprobs),
        ("output", outcome.output_logprobs),
    )
    made: dict[str, Any] = {f"{side}_token_logprobs": [one(entry) for entry in notes.tokens] for side, notes in parts}
    made["output_token_logprobs_length"] = len(outcome.output_logprobs.tokens)
    if job.top_logprobs > 0:
        made |= {f"{side}_top_logprobs": many(notes.top) for side, notes in parts}
    if job.token_ids_logprob:
        made |= {f"{side}_token_ids_logprobs": many(notes.chosen) for side, notes in parts}
    return made
