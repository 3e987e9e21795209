"""Reading `sampling_params`: the real server's names, defaults, rules and messages."""

from __future__ import annotations

import math
import re
from typing import Any

from ray_jobs.target.embedded.refusals import Refusal, refusal
from ray_jobs.target.embedded.sampling import SamplingParams

NAMES = (
    "max_new_tokens",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_new_tokens",
    "n",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "stream_interval",
    "logit_bias",
    "sampling_seed",
    "custom_params",
    "beam_width",
    "watermark",
    "choice",
)
_GRAMMAR = ("json_schema", "regex", "ebnf", "structural_tag")
_ABSENT = ("custom_params", "beam_width", "watermark", "choice")
_INTEGERS = ("max_new_tokens", "top_k", "min_new_tokens", "n", "sampling_seed")
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
_FLAGS = ("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim")


def parse_sampling(given: Any, vocab_size: int) -> SamplingParams:
    """Check one `sampling_params` object (None: all defaults); the keys of `logit_bias` are ids below `vocab_size`.

    Raises:
        Refusal: an unknown name, a wrong type or a broken rule.
    """
    given = {} if given is None else given
    wrong = _wrong_type(given)
    if wrong is not None:
        raise Refusal(400, {"error": wrong})
    if any(given.get(name) is not None for name in _GRAMMAR):
        raise refusal(
            "Grammar-based generation (json_schema, regex, ebnf, structural_tag) is not supported when the server is "
            "launched with --grammar-backend none"
        )
    unsupported = [name for name in _ABSENT if given.get(name) is not None]
    if unsupported:
        raise refusal(f"{unsupported[0]} is not supported by this server.")
    params = SamplingParams(**{name: value for name, value in given.items() if name in _OURS and value is not None})
    if "max_new_tokens" in given:
        params.max_new_tokens = given["max_new_tokens"]
    params.top_k = min(params.top_k, vocab_size)
    params.stop = _as_list(given.get("stop"))
    params.stop_regex = _as_list(given.get("stop_regex"))
    broken = _broken_rule(params, given, vocab_size)
    if broken is not None:
        raise refusal(broken)
    return params


_OURS = frozenset(NAMES) - set(_GRAMMAR) - set(_ABSENT) - {"stream_interval", "stop", "stop_regex", "max_new_tokens"}


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [one for one in value or [] if one]


def _wrong_type(given: Any) -> str | None:
    """The message for an unknown name or a value of another type, in the server's words."""
    if not isinstance(given, dict):
        return f"Expected `object`, got `{type(given).__name__}`"
    for name, value in given.items():
        if name not in NAMES:
            names = ", ".join(f"`{one}`" for one in NAMES)
            return f"unknown field `{name}`, expected one of {names}"
        expected = _expected(name, value)
        if expected is not None:
            return f"Expected `{expected}`, got `{type(value).__name__}` - at `$.{name}`"
    return None


def _expected(name: str, value: Any) -> str | None:
    """The type that a value should have, or None if it has it; null stands for the default."""
    if value is None:
        return None
    whole = isinstance(value, int) and not isinstance(value, bool)
    if name in _INTEGERS:
        return None if whole else "int"
    if name in _NUMBERS:
        # a larger whole number has no float
        return None if isinstance(value, float) or (whole and abs(value) < 1 << 53) else "float"
    if name in _FLAGS:
        return None if isinstance(value, bool) else "bool"
    if name == "stop_token_ids":
        fits = isinstance(value, list) and all(type(one) is int for one in value)
        return None if fits else "array"
    if name in ("stop", "stop_regex"):
        fits = isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))
        return None if fits else "str | array"
    if name == "logit_bias":
        return None if isinstance(value, dict) else "object"
    return None


def _broken_rule(params: SamplingParams, given: dict[str, Any], vocab_size: int) -> str | None:
    """The message of the first broken rule; the value is quoted as it was given."""

    def got(name: str) -> str:
        return f"got {given.get(name, getattr(params, name))}."

    new = params.max_new_tokens
    rules = (
        (
            math.isfinite(params.temperature) and params.temperature >= 0,
            f"temperature must be a non-negative finite number, {got('temperature')}",
        ),
        (0 < params.top_p <= 1, f"top_p must be in (0, 1], {got('top_p')}"),
        (0 <= params.min_p <= 1, f"min_p must be in [0, 1], {got('min_p')}"),
        (params.top_k == -1 or params.top_k >= 1, f"top_k must be -1 (disable) or at least 1, {got('top_k')}"),
        (-2 <= params.frequency_penalty <= 2, f"frequency_penalty must be in [-2, 2], {got('frequency_penalty')}"),
        (-2 <= params.presence_penalty <= 2, f"presence_penalty must be in [-2, 2], {got('presence_penalty')}"),
        (0 < params.repetition_penalty <= 2, f"repetition_penalty must be in (0, 2], {got('repetition_penalty')}"),
        (params.min_new_tokens >= 0, f"min_new_tokens must be at least 0, {got('min_new_tokens')}"),
        (new is None or new >= 0, f"max_new_tokens must be at least 0, {got('max_new_tokens')}"),
        (
            new is None or new < 0 or params.min_new_tokens <= new,
            f"min_new_tokens must be in [0, max_new_tokens({new})], {got('min_new_tokens')}",
        ),
        (params.n >= 1, f"n must be at least 1, {got('n')}"),
        (_fitting_bias(params.logit_bias, vocab_size), f"logit_bias must has keys in [0, {vocab_size - 1}]."),
        (_compile_all(params.stop_regex), "stop_regex is not a valid regular expression."),
    )
    return next((message for holds, message in rules if not holds), None)


def _fitting_bias(bias: dict[str, Any], vocab_size: int) -> bool:
    return all(key.isdecimal() and int(key) < vocab_size for key in bias) and all(
        isinstance(value, (int, float)) for value in bias.values()
    )


def _compile_all(sources: list[str]) -> bool:
    try:
        for source in sources:
            re.compile(source)
    except re.error:
        return False
    return True
