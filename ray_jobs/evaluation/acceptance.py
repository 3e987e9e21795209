"""Accepted length of a drafter along recorded greedy answers, without serving it.

A verify step drafts k tokens; the target accepts the longest prefix that equals its own greedy choice and adds one
token. Along a greedy answer that prefix is known: it is where drafted and recorded tokens agree. Up to its first
miss a chain that feeds its own tokens has fed exactly the recorded ones, so all chains are drafted at once and then
walked.

Three views of the same steps, each of which adds up to the whole:

    by source     a step and its tokens belong to the source of the prompt
    by segment    a step and all its tokens belong to the kind of the segment that holds the first token it drafts,
                  also where the step goes on into the next segment. Markers (`</think>`) and the stop id have lines
                  of their own, because they are easy or hard to draft for reasons of their own; the markers of a tool
                  call belong to `tool_call`, as they do in the segments. A step that begins at the stop id ends the
                  answer: it is one token whatever was drafted. Ids behind the stop id (excess) are no part of the
                  answer: a server would never verify them, so they are not followed.
    by position   the share of all steps in which the drafted tokens 1..i were accepted; a position beyond the end of
                  the answer counts as not accepted

Shape letters: T ids of a row, L draft tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ray_jobs.core.schemas import SEGMENT_KINDS


class Count(NamedTuple):
    """`tokens` came from `steps` verify steps."""

    tokens: int
    steps: int


@dataclass(frozen=True)
class Walk:
    """One answer: `tokens` came from `steps` verify steps; the first token, which the prompt gives, is not counted.

    `by_kind` divides both among segment kinds. `accepted[i]` counts the steps whose drafted tokens 1..i+1 were all
    accepted.
    """

    source: str
    tokens: int
    steps: int
    by_kind: Mapping[str, Count] = field(default_factory=dict)
    accepted: tuple[int, ...] = ()


def kinds_of(segments: Iterable[Mapping[str, Any]]) -> list[str]:
    """The kind of each output id of the turn, from a row's column `segments`; excess is behind its end, so left out."""
    return [s["kind"] for s in segments if s["kind"] != "excess" for _ in range(s["start"], s["stop"])]


def walk(matches: np.ndarray, n_prompt: int, kinds: Sequence[str], source: str = "") -> Walk:
    """Follow the verify steps of one row.

    matches [T, L] bool: step i of the chain that starts at s drafts the recorded token s+2+i. The chain that
    follows the answer's first token (position n_prompt) starts at s = n_prompt - 1. kinds: the kind of each output
    id to follow; there may be fewer than T - n_prompt, then the answer ends there.
    """
    n_draft = matches.shape[1]
    last = n_prompt + len(kinds) - 1
    runs = np.cumprod(matches, axis=1).sum(axis=1)
    reached = np.zeros(n_draft, dtype=np.int64)
    by_kind: dict[str, list[int]] = {}
    at, steps = n_prompt, 0
    while at < last:
        accepted = min(int(runs[at - 1]), last - at)
        gained = min(accepted + 1, last - at)
        reached[:accepted] += 1
        count = by_kind.setdefault(kinds[at + 1 - n_prompt], [0, 0])
        count[0] += gained
        count[1] += 1
        at += gained
        steps += 1
    counts = {kind: Count(*count) for kind, count in by_kind.items()}
    return Walk(source, max(0, last - n_prompt), steps, counts, tuple(reached.tolist()))


def accepted_length(walks: Iterable[Walk | Count]) -> float | None:
    """Tokens a verify step, pooled; 1.0 when nothing is ever accepted; None when nothing was drafted."""
    tokens, steps = 0, 0
    for w in walks:
        tokens, steps = tokens + w.tokens, steps + w.steps
    return tokens / steps if steps else None


def interval(walks: Sequence[Walk], resamples: int, seed: int) -> tuple[float, float] | None:
    """95 % interval of the pooled accepted length: percentile bootstrap over prompts."""
    tokens = np.array([w.tokens for w in walks], dtype=np.float64)
    steps = np.array([w.steps for w in walks], dtype=np.float64)
    if not steps.sum():
        return None
    drawn = np.random.default_rng(seed).integers(0, len(walks), size=(resamples, len(walks)))
    sums = steps[drawn].sum(axis=1)
    ratios = tokens[drawn].sum(axis=1)[sums > 0] / sums[sums > 0]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def by_source(walks: Sequence[Walk]) -> dict[str, float | None]:
    """Pooled accepted length of each source."""
    return {name: accepted_length(w for w in walks if w.source == name) for name in sorted({w.source for w in walks})}


def by_segment(walks: Sequence[Walk]) -> dict[str, Count]:
    """Tokens and steps of each segment kind in which a step began; they add up to those of the walks."""

    def total(kind: str, of: Callable[[Count], int]) -> int:
        return sum(of(w.by_kind[kind]) for w in walks if kind in w.by_kind)

    seen = [kind for kind in SEGMENT_KINDS if any(kind in w.by_kind for w in walks)]
    return {kind: Count(total(kind, lambda c: c.tokens), total(kind, lambda c: c.steps)) for kind in seen}


def by_position(walks: Sequence[Walk]) -> list[float] | None:
    """[L]: share of all steps in which the drafted tokens 1..i were accepted; None when nothing was drafted."""
    steps = sum(w.steps for w in walks)
    if not steps:
        return None
    return [sum(column) / steps for column in zip(*(w.accepted for w in walks if w.steps), strict=True)]


def figures(walks: Sequence[Walk], resamples: int, seed: int) -> dict[str, Any]:
    """What summary.json says for one number of draft tokens; sums by segment add up to those of the whole."""
    segments = by_segment(walks)
    return {
        "accepted_length": accepted_length(walks),
        "interval_95": interval(walks, resamples, seed),
        "by_source": by_source(walks),
        "by_segment": {kind: accepted_length([count]) for kind, count in segments.items()},
        "by_position": by_position(walks),
        "prompts": len(walks),
        "prompts_by_source": dict(Counter(w.source for w in walks)),
        "output_tokens": sum(w.tokens + 1 for w in walks),
        "verify_tokens": sum(w.tokens for w in walks),
        "verify_steps": sum(w.steps for w in walks),
        "verify_tokens_by_segment": {kind: count.tokens for kind, count in segments.items()},
        "verify_steps_by_segment": {kind: count.steps for kind, count in segments.items()},
    }
