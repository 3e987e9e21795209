"""What the engine is asked for and what it gives back; log-probabilities are noted here as they arise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ray_jobs.target.embedded.sampling import SamplingParams

Entry = tuple[float | None, int]
"""A log-probability (None for the first token of a prompt) and its id."""


@dataclass(slots=True)
class Job:
    """One sequence to generate."""

    rid: str
    prompt: list[int]
    params: SamplingParams
    seed: int
    hidden: bool = False
    logprobs: bool = False
    logprob_start: int = -1
    """First prompt position with log-probabilities; below 0: none of the prompt."""
    top_logprobs: int = 0
    token_ids_logprob: list[int] | None = None


@dataclass(slots=True)
class Logprobs:
    """Log-probabilities of consecutive positions, and those of the likeliest and of chosen ids beside them."""

    tokens: list[Entry] = field(default_factory=list)
    top: list[list[Entry] | None] = field(default_factory=list)
    chosen: list[list[Entry] | None] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """A finished job, or what there is of a running one."""

    output_ids: list[int]
    finish_reason: dict[str, Any] | None
    """None while it runs."""
    hidden: list[torch.Tensor]
    """The prompt's states [T, H], then one [H] for each id that was fed."""
    input_logprobs: Logprobs
    output_logprobs: Logprobs
    retractions: int = 0
    """How often it was put back from the running to the waiting ones."""


def note_prompt(job: Job, notes: Logprobs, logits: torch.Tensor) -> None:
    """Add the prompt of a job from its start position on, from logits [T, V]; the first has nothing in front of it."""
    start = job.logprob_start
    notes.tokens.append((None, job.prompt[start]))
    notes.top.append(None)
    notes.chosen.append(None)
    note(job, notes, logits[start:-1].log_softmax(-1), job.prompt[start + 1 :])


def note(job: Job, notes: Logprobs, lines: torch.Tensor, tokens: list[int]) -> None:
    """Add consecutive positions: lines [n, V] of log-probabilities and the n ids that came there."""
    if not tokens:
        return
    values = lines.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
    notes.tokens.extend(zip(values, tokens, strict=True))
    if job.top_logprobs > 0:
        top, ids = lines.topk(job.top_logprobs, dim=-1)
        for pair in zip(top.tolist(), ids.tolist(), strict=True):
            notes.top.append(list(zip(*pair, strict=True)))
    if job.token_ids_logprob:
        wanted = job.token_ids_logprob
        for line in lines[:, torch.tensor(wanted)].tolist():
            notes.chosen.append(list(zip(line, wanted, strict=True)))
