"""The only file that knows the server's field names: Request -> JSON, JSON -> Reply (design 4.4).

Recorded against SGLang 0.5.23. The server answers 200 to much that is no answer, and dies on ids that it should
refuse, so both directions are checked here.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from ray_jobs.core.errors import Rejected, Retryable
from ray_jobs.core.records import Drafts, Reply, Request, ServerFacts

GENERATE = "/generate"
ABORT = "/abort_request"
SERVER_INFO = "/server_info"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the target can take: ids below `vocab_size`, prompt and answer together within `context_length`."""

    vocab_size: int
    context_length: int


def check_prompt(ids: list[int], limits: Limits) -> None:
    """Refuse what would kill a real server or be refused by it.

    Raises:
        Rejected: no ids, an id outside the vocabulary, or no room for one answer id.
    """
    if not ids:
        raise Rejected("the prompt has no ids")
    low, high = min(ids), max(ids)
    if low < 0 or high >= limits.vocab_size:
        wrong = low if low < 0 else high
        raise Rejected(f"prompt id {wrong} is outside the vocabulary of {limits.vocab_size} ids")
    if len(ids) + 1 > limits.context_length:
        raise Rejected(f"the prompt's {len(ids)} ids leave no room in the context of {limits.context_length}")


def fit_sampling(sampling: dict[str, Any], n_prompt: int, limits: Limits) -> dict[str, Any]:
    """`sampling` with max_new_tokens lowered to what the context leaves.

    One id is kept free: a real server refuses a sum above its context, and 8192 of 8192 prompt ids as well.
    """
    room = limits.context_length - n_prompt - 1
    return {**sampling, "max_new_tokens": max(1, min(sampling["max_new_tokens"], room))}


def to_json(request: Request, rid: str) -> dict[str, Any]:
    """The body of POST /generate."""
    body: dict[str, Any] = {"input_ids": request.input_ids, "sampling_params": request.sampling, "rid": rid}
    if request.want_features:
        body["return_hidden_states"] = True
    return body


def request_hash(request: Request) -> str:
    """Tells whether an answer in a journal belongs to this request."""
    content = json.dumps([request.row_id, request.input_ids, request.sampling], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def to_reply(body: Any, request: Request, limits: Limits) -> Reply:
    """The accepted answer.

    Raises:
        Retryable: the body is not an answer to this request: aborted, malformed, or its counts do not add up.
    """
    raw = json.dumps(body)[:4000]
    try:
        ids, meta = body["output_ids"], body["meta_info"]
        reason = meta["finish_reason"]
        kind = reason["type"]
        n_prompt, n_output = int(meta["prompt_tokens"]), int(meta["completion_tokens"])
    except (KeyError, TypeError, ValueError):
        raise Retryable("malformed reply: no output_ids, counts or finish reason", raw) from None
    if kind not in ("stop", "length"):
        raise Retryable(f"the generation ended with {kind!r}: {reason.get('message')}", raw)
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise Retryable("malformed reply: output_ids are not integers", raw)
    if len(ids) != n_output or not ids:
        raise Retryable(f"{len(ids)} output ids but completion_tokens={n_output}", raw)
    if n_prompt != len(request.input_ids):
        raise Retryable(f"sent {len(request.input_ids)} prompt ids but prompt_tokens={n_prompt}", raw)
    if min(ids) < 0 or max(ids) >= limits.vocab_size:
        raise Retryable("an output id is outside the vocabulary", raw)
    if len(ids) > request.sampling["max_new_tokens"]:
        raise Retryable(f"{len(ids)} output ids but max_new_tokens={request.sampling['max_new_tokens']}", raw)
    return Reply(
        output_ids=ids,
        finish_reason=kind,
        matched_stop=reason.get("matched"),
        prompt_tokens=n_prompt,
        cached_tokens=int(meta.get("cached_tokens") or 0),
        weight_version=str(meta.get("weight_version") or ""),
        request_id=str(meta.get("id") or ""),
        features=meta.get("hidden_states"),
        drafts=_drafts(meta),
    )


def _drafts(meta: dict[str, Any]) -> Drafts | None:
    steps = meta.get("spec_verify_ct")
    if steps is None:
        return None
    return Drafts(int(steps), int(meta["spec_num_proposed_drafts"]), int(meta["spec_num_correct_drafts"]))


def error_text(status: int, body: str) -> str:
    """One line from an error body; the server has three shapes for it."""
    text = body
    try:
        value = json.loads(body)
        error = value.get("error", value) if isinstance(value, dict) else value
        text = error.get("message", error) if isinstance(error, dict) else error
    except ValueError:
        pass
    line = " ".join(str(text).split())
    return f"HTTP {status}: {line[:300]}"


def to_facts(body: Any) -> ServerFacts:
    """What /server_info says."""
    if not isinstance(body, dict):
        raise Retryable("malformed /server_info")
    return ServerFacts(
        version=str(body.get("version", "?")),
        model_path=str(body.get("model_path", "?")),
        context_length=body.get("context_length"),
        max_running_requests=body.get("max_running_requests"),
        weight_version=str(body.get("weight_version") or "default"),
    )


def abort_json(rid: str) -> dict[str, Any]:
    """The body of POST /abort_request."""
    return {"rid": rid}


def top_two_json(input_ids: list[int]) -> dict[str, Any]:
    """The body of POST /generate that asks for the two likeliest next ids."""
    sampling = {"max_new_tokens": 1, "temperature": 0.0}
    return {"input_ids": input_ids, "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 2}


def to_top_two(body: Any) -> tuple[float, float]:
    """Log-probabilities of the two likeliest next ids, the likelier first.

    Raises:
        Retryable: the body does not have them.
    """
    try:
        first, second = body["meta_info"]["output_top_logprobs"][0][:2]
        return float(first[0]), float(second[0])
    except (KeyError, TypeError, ValueError, IndexError):
        raise Retryable("malformed reply: no output_top_logprobs", json.dumps(body)[:4000]) from None


def probe_json(token_id: int) -> dict[str, Any]:
    """A real request of one id: health endpoints can be green on a dead scheduler."""
    return {"input_ids": [token_id], "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}
