"""Finds an output whose end turns in a circle, by the share of distinct id n-grams."""

from __future__ import annotations

from collections.abc import Sequence

NGRAM = 4
WINDOWS = (64, 256, 1024, 4096)
MAX_DISTINCT = 0.25


def repeats(ids: Sequence[int]) -> bool:
    """Whether the last 64, 256, 1024 or 4096 ids hold fewer than a quarter distinct 4-grams.

    A loop of period p in a window of w ids has about p / w distinct 4-grams: four rounds of one period are found,
    also when a counter or a name changes from round to round. Outputs shorter than the smallest window never count.
    """
    for window in WINDOWS:
        if len(ids) < window:
            return False
        tail = list(ids[len(ids) - window :])
        grams = set(zip(*(tail[shift:] for shift in range(NGRAM)), strict=False))
        if len(grams) < MAX_DISTINCT * (window - NGRAM + 1):
            return True
    return False
