"""SGLang's native protocol: from the JSON body of /generate to jobs, or to the reply that refuses it.

The shapes, names and messages are those of a real 0.5.23 server.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ray_jobs.target.embedded.jobs import Job
from ray_jobs.target.embedded.refusals import Deadly, Refusal, refusal, validation_refusal
from ray_jobs.target.embedded.sampling import SamplingParams
from ray_jobs.target.embedded.sampling_params import parse_sampling


@dataclass(frozen=True, slots=True)
class Limits:
    """What a prompt is checked against."""

    vocab_size: int
    context_length: int
    max_input_length: int
    hidden_states: bool
    """Whether the server was started to return hidden states."""


@dataclass(slots=True)
class Call:
    """One /generate call, taken apart."""

    jobs: list[Job]
    prompt_tokens: list[int]
    """One a job."""
    single: bool
    """Whether the reply is one object rather than a list."""
    prompt_ids: bool
    """Whether replies repeat the prompt's ids."""
    logprob_text: bool


def decode_json(raw: bytes, path: str = "/generate") -> dict[str, Any]:
    """The body of a call of `path`.

    Raises:
        Refusal: it is not a JSON object.
    """
    if not raw:
        raise validation_refusal(
            str({"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}), path
        )
    try:
        body = json.loads(raw)
    except ValueError as error:
        place = getattr(error, "pos", 0)
        details = {
            "type": "json_invalid",
            "loc": ("body", place),
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": getattr(error, "msg", str(error))},
        }
        raise validation_refusal(str(details), path) from None
    if not isinstance(body, dict):
        details = {"type": "dict_type", "loc": ("body",), "msg": "Input should be a valid dictionary", "input": body}
        raise validation_refusal(str(details), path)
    return body


def parse_call(body: dict[str, Any], limits: Limits, encode: Callable[[str], list[int]]) -> Call:
    """Check a body as the real server does and turn it into jobs.

    Raises:
        Refusal: the server would answer with an error.
        Deadly: the server would die.
    """
    prompts, single = _prompts(body, encode)
    count = len(prompts)
    params = [parse_sampling(one, limits.vocab_size) for one in _each(body, "sampling_params", count)]
    _refuse_lengths(prompts, [one.max_new_tokens for one in params], limits)
    rids = _rids(body.get("rid"), [one.n for one in params])
    hidden = _hidden(body, count, limits)
    extras = [_logprob_fields(body, index, count, limits.vocab_size) for index in range(count)]
    _refuse_deadly(prompts, limits.vocab_size)
    jobs: list[Job] = []
    for prompt, one, wants, fields in zip(prompts, params, hidden, extras, strict=True):
        for _copy in range(one.n):
            # the real server answers an empty prompt beside others with garbage: what follows id 0 is as good
            jobs.append(Job(rids[len(jobs)], prompt or [0], one, _seed(one), hidden=wants, **fields))
    return Call(
        jobs,
        [len(prompt) for prompt, one in zip(prompts, params, strict=True) for _ in range(one.n)],
        single and params[0].n == 1,
        bool(body.get("return_prompt_token_ids")),
        bool(body.get("return_text_in_logprobs")),
    )


def _seed(params: SamplingParams) -> int:
    return secrets.randbits(63) if params.sampling_seed is None else params.sampling_seed


def _hidden(body: dict[str, Any], count: int, limits: Limits) -> list[bool]:
    """Whether each prompt's hidden states are wanted."""
    wanted = _each(body, "return_hidden_states", count)
    if not all(one is None or isinstance(one, bool) for one in wanted):
        message = "Value error, expected a value or an array of values for BoolOrList"
        raise _wrong("return_hidden_states", message, body["return_hidden_states"])
    if any(wanted) and not limits.hidden_states:
        raise refusal(
            "The server is not configured to return the hidden states. "
            "Please set `--enable-return-hidden-states` to enable this feature."
        )
    return [bool(one) for one in wanted]


def _prompts(body: dict[str, Any], encode: Callable[[str], list[int]]) -> tuple[list[list[int]], bool]:
    """The prompts as ids, and whether it was one alone; ids win over text."""
    ids, text = body.get("input_ids"), body.get("text")
    if ids is not None:
        return _id_prompts(ids)
    if text is None:
        raise refusal("Either text, input_ids or input_embeds should be provided.")
    if isinstance(text, str):
        return [encode(text)], True
    if not isinstance(text, list) or not all(isinstance(one, str) for one in text):
        raise _wrong("text", "Input should be a valid string or a list of them", text)
    if not text:
        raise refusal("text cannot be empty.")
    return [encode(one) for one in text], False


def _id_prompts(ids: Any) -> tuple[list[list[int]], bool]:
    if not isinstance(ids, list):
        raise _wrong("input_ids", "Input should be a valid list", ids)
    if not ids:
        raise refusal("input_ids cannot be empty.")
    batched = isinstance(ids[0], list)
    prompts = ids if batched else [ids]
    for prompt in prompts:
        if not isinstance(prompt, list):
            raise _wrong("input_ids", f"Value error, elements must be list; got {type(prompt).__name__}", ids)
        for one in prompt:
            if type(one) is not int:
                raise _wrong("input_ids", f"Value error, elements must be int or list; got {type(one).__name__}", ids)
    return prompts, not batched


def _wrong(name: str, message: str, value: Any) -> Refusal:
    details = {"type": "value_error", "loc": ("body", name), "msg": message, "input": value}
    return validation_refusal(str(details))


def _refuse_lengths(prompts: Sequence[Sequence[int]], asked: Sequence[int | None], limits: Limits) -> None:
    context = limits.context_length
    for prompt, new in zip(prompts, asked, strict=True):
        length = len(prompt)
        if length >= context:
            raise refusal(f"The input ({length} tokens) is longer than the model's context length ({context} tokens).")
        if new is not None and length + new > context:
            raise refusal(
                f"Requested token count exceeds the model's maximum context length of {context} tokens. "
                f"You requested a total of {length + new} tokens: {length} tokens from the input messages and {new} "
                "tokens for the completion. Please reduce the number of tokens in the input messages or the "
                "completion to fit within the limit."
            )
        if length > limits.max_input_length:
            raise refusal(
                f"Input length ({length} tokens) exceeds the maximum allowed length ({limits.max_input_length} "
                "tokens). Use a shorter input or enable --allow-auto-truncate."
            )


def _refuse_deadly(prompts: list[list[int]], vocab_size: int) -> None:
    """Raise for what kills the real server; an empty prompt beside others gets a garbage answer there, and here."""
    for prompt in prompts:
        for token in prompt:
            if not 0 <= token < vocab_size:
                raise Deadly(f"id {token} is outside the vocabulary of {vocab_size}")
    if not any(prompts):
        raise Deadly("a prompt without a token")


def _each(body: dict[str, Any], name: str, count: int) -> list[Any]:
    """A field that holds one value for all prompts or a list of one a prompt."""
    value = body.get(name)
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise refusal(f"The length of {name} should be equal to the batch size.")
    return value


def _rids(given: Any, copies: Sequence[int]) -> list[str]:
    """One request id a job; copies of one prompt get new ones, as nobody named them."""
    total = sum(copies)
    if given is None or total != len(copies):
        return [uuid.uuid4().hex for _ in range(total)]
    if isinstance(given, str):
        return [given] if total == 1 else [f"{given}_{index}" for index in range(total)]
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise _wrong("rid", "Input should be a valid string or a list of them", given)
    if len(given) != total:
        raise refusal("The specified rids length mismatch with the batch_size for batch processing.")
    twice = sorted({one for one in given if given.count(one) > 1})
    if twice:
        raise refusal(f"Duplicate request IDs detected within the request: {twice}")
    return given


def _logprob_fields(body: dict[str, Any], index: int, count: int, vocab_size: int) -> dict[str, Any]:
    """The log-probability fields of one prompt, fit for the engine's thread, which has no caller to complain to."""

    def number(name: str, default: int) -> int:
        value = _each(body, name, count)[index]
        if value is not None and type(value) is not int:
            raise _wrong(name, "Input should be a valid integer", body[name])
        return default if value is None else value

    ids = body.get("token_ids_logprob")
    if isinstance(ids, list) and ids and isinstance(ids[0], list):
        ids = _each(body, "token_ids_logprob", count)[index]
    if ids is not None and not (isinstance(ids, list) and all(type(one) is int for one in ids)):
        raise _wrong("token_ids_logprob", "Input should be a valid list of integers", body["token_ids_logprob"])
    if any(not 0 <= one < vocab_size for one in ids or ()):
        raise refusal(f"token_ids_logprob must be in [0, {vocab_size - 1}].")
    return {
        "logprobs": bool(_each(body, "return_logprob", count)[index]),
        "logprob_start": number("logprob_start_len", -1),
        "top_logprobs": min(number("top_logprobs_num", 0), vocab_size),
        "token_ids_logprob": ids or None,
    }
