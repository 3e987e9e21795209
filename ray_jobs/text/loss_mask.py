"""Which positions of a document the drafter learns, from the segments of the output.

T = n_prompt + n_output; position t is the id x_t of prompt and output joined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ray_jobs.core.schemas import SEGMENT_KINDS
from ray_jobs.text.segments import Segment

Mask = npt.NDArray[np.bool_]

_ALWAYS = ("marker", "stop")


def masks(
    n_prompt: int, n_output: int, segments: Iterable[Segment | Mapping[str, Any]], kinds: Collection[str]
) -> tuple[Mask, Mask]:
    """`(sampled [T], wanted [T])`: what the target produced, and what of it has a kind to be trained.

    Markers and the turn end are wanted always; ids after the turn end (excess) are neither. Segments may be
    rows of the samples' column. Raises ValueError for unknown kinds and for segments that do not cover the output.
    """
    unknown = sorted(set(kinds) - set(SEGMENT_KINDS))
    if unknown:
        raise ValueError(f"unknown segment kinds: {', '.join(unknown)}")
    sampled = np.zeros(n_prompt + n_output, dtype=np.bool_)
    wanted = np.zeros_like(sampled)
    at = 0
    for kind, start, stop in map(_parts, segments):
        if start != at or stop <= start:
            raise ValueError(f"segment {kind} {start}:{stop} does not follow on {at}")
        at = stop
        if kind == "excess":
            continue
        sampled[n_prompt + start : n_prompt + stop] = True
        wanted[n_prompt + start : n_prompt + stop] = kind in kinds or kind in _ALWAYS
    if at != n_output:
        raise ValueError(f"segments cover {at} of {n_output} output ids")
    return sampled, wanted


def _parts(segment: Segment | Mapping[str, Any]) -> tuple[str, int, int]:
    if isinstance(segment, Segment):
        return segment.kind, segment.start, segment.stop
    return segment["kind"], segment["start"], segment["stop"]
