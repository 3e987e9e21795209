"""Accepted length of a drafter along recorded greedy answers, without serving it.

A verify step drafts k tokens; the target accepts the longest prefix that equals its own greedy choice and adds one
token. Along a greedy answer that prefix is known: it is where drafted and recorded tokens agree. Up to its first
miss a chain that feeds its own tokens has fed exactly the recorded ones, so all chains are drafted at once and then
walked.

Shape letters: T ids of a row, L draft tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Walk:
    """One answer: `tokens` came from `steps` verify steps; the first token, which the prompt gives, is not counted."""

    source: str
    tokens: int
    steps: int


def walk(matches: np.ndarray, n_prompt: int, source: str = "") -> Walk:
    """Follow the verify steps of one row.

    matches [T, L] bool: step i of the chain that starts at s drafts the recorded token s+2+i. The chain that
    follows the answer's first token (position n_prompt) starts at s = n_prompt - 1.
    """
    n_tokens, n_draft = matches.shape
    last = n_tokens - 1
    at, steps = n_prompt, 0
    accepted = np.cumprod(matches, axis=1).sum(axis=1)
    while at < last:
        gained = min(int(accepted[at - 1]), n_draft) + 1
        at = min(at + gained, last)
        steps += 1
    return Walk(source, last - n_prompt, steps)


def accepted_length(walks: Iterable[Walk]) -> float | None:
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
