"""A job on its way through the engine, and small things that the engine counts and sorts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from ray_jobs.target.embedded.jobs import Job, Logprobs, Outcome
from ray_jobs.target.embedded.sampling import Row
from ray_jobs.target.embedded.vocabulary import Vocabulary


class RunningJob:
    """A job, what it has made so far, and the future of its outcome.

    The engine's thread only ever appends to its lists, so that `so_far` may be called from another one.
    """

    def __init__(self, job: Job, limit: int, vocabulary: Vocabulary, notify: Callable[[], None] | None) -> None:
        self.job, self.limit, self.notify = job, limit, notify
        self.future: Future[Outcome] = Future()
        # running from the start: a client that goes away must not cancel a future that the engine will set
        self.future.set_running_or_notify_cancel()
        self.aborted = False
        self.retractions = self.published = 0
        self.output_ids: list[int] = []
        self.hidden: list[torch.Tensor] = []
        self.input_logprobs, self.output_logprobs = Logprobs(), Logprobs()
        self.stop_ids = vocabulary.stop_ids(job.params)
        self.row = Row(job.params, job.seed, self.output_ids, self.stop_ids)

    @property
    def ids(self) -> list[int]:
        """What has to be in the cache before the next id can be made."""
        return self.job.prompt + self.output_ids if self.output_ids else self.job.prompt

    @property
    def need(self) -> int:
        """Tokens that its row may come to hold."""
        return len(self.job.prompt) + self.limit

    @property
    def wants_prompt_logits(self) -> bool:
        """Whether the prompt's own log-probabilities are still to be noted."""
        return self.job.logprobs and 0 <= self.job.logprob_start < len(self.job.prompt) and not self.retractions

    def so_far(self) -> Outcome:
        """What there is by now, without a reason to finish."""
        count = self.published
        output = self.output_logprobs
        return Outcome(
            self.output_ids[:count],
            None,
            self.hidden[:count],
            self.input_logprobs,
            Logprobs(output.tokens[:count], output.top[:count], output.chosen[:count]),
            self.retractions,
        )

    def outcome(self, reason: dict[str, Any]) -> Outcome:
        """All of it, finished for this reason."""
        hidden = self.hidden if self.output_ids else []
        return Outcome(self.output_ids, reason, hidden, self.input_logprobs, self.output_logprobs, self.retractions)


def aborted(message: str) -> dict[str, Any]:
    """The finish reason of a job that was told to end."""
    return {"type": "abort", "message": message, "status_code": None, "err_type": None}


def grouped(items: Sequence[Any], length: Any) -> list[list[Any]]:
    """Items of like lengths together, so that padding to the longest of a group adds a quarter at most."""
    groups: list[list[Any]] = []
    real = 0
    for item in sorted(items, key=length):
        size = length(item)
        if groups and (len(groups[-1]) + 1) * size <= 1.25 * (real + size) + 32:
            groups[-1].append(item)
            real += size
        else:
            groups.append([item])
            real = size
    return groups


class Rate:
    """Tokens a second over the latest second or so."""

    def __init__(self) -> None:
        self._since, self._tokens, self._value = time.monotonic(), 0, 0.0

    def count(self, tokens: int) -> None:
        """Add tokens made just now."""
        self._tokens += tokens
        passed = time.monotonic() - self._since
        if passed >= 1.0:
            self._value = self._tokens / passed
            self._since, self._tokens = time.monotonic(), 0

    def value(self) -> float:
        """Tokens a second."""
        return self._value
