"""The scheduler: one thread that admits, prefills, decodes and finishes; callers hand in jobs and hold futures."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from ray_jobs.target.embedded import sampling
from ray_jobs.target.embedded.jobs import Job, Logprobs, Outcome, note, note_prompt
from ray_jobs.target.embedded.model import SlotModel, Step
from ray_jobs.target.embedded.sampling import Row
from ray_jobs.target.embedded.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

PREFILL_TOKENS = 2048
"""New prompts are admitted up to this many tokens before the running rows get their next step."""


class EngineError(RuntimeError):
    """The engine's thread ended on an error; the server cannot generate any more."""


class _Sequence:
    """A job on its way through the engine."""

    def __init__(self, job: Job, limit: int, vocabulary: Vocabulary) -> None:
        self.job, self.limit = job, limit
        self.future: Future[Outcome] = Future()
        # running from the start: a client that goes away must not cancel a future that the engine will set
        self.future.set_running_or_notify_cancel()
        self.aborted = False
        self.output_ids: list[int] = []
        self.hidden: list[torch.Tensor] = []
        self.input_logprobs, self.output_logprobs = Logprobs(), Logprobs()
        self.stop_ids = vocabulary.stop_ids(job.params)
        self.row = Row(job.params, job.seed, self.output_ids, self.stop_ids)

    @property
    def need(self) -> int:
        """Tokens that its row may come to hold."""
        return len(self.job.prompt) + self.limit

    @property
    def wants_prompt_logits(self) -> bool:
        return self.job.logprobs and 0 <= self.job.logprob_start < len(self.job.prompt)


class Engine:
    """Continuous batching over a `SlotModel`; every method may be called from any thread."""

    def __init__(self, model: SlotModel, vocabulary: Vocabulary, *, max_running: int) -> None:
        self.model, self.vocabulary, self.max_running = model, vocabulary, max_running
        self.error: BaseException | None = None
        self.on_death: Callable[[str], None] | None = None
        """Called when the engine cannot go on; a server process ends itself, as the real one does."""
        self._wake = threading.Condition()
        self._stopping = False
        self._known: dict[str, _Sequence] = {}
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._rate = _Rate()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it can still generate."""
        return self.error is None and self._thread.is_alive()

    @property
    def max_request_tokens(self) -> int:
        """Prompt and answer of one request, together, at most."""
        return min(self.model.context_length, self.model.max_tokens) - 1

    def submit(self, jobs: Sequence[Job]) -> list[Future[Outcome]]:
        """Queue jobs, first come first served; each future ends exactly once.

        Raises:
            EngineError: the engine is dead.
        """
        sequences = [_Sequence(job, self._limit(job), self.vocabulary) for job in jobs]
        with self._wake:
            if not self.alive or self._stopping:
                raise EngineError(f"the engine is not running ({self.error})")
            for sequence in sequences:
                self._known[sequence.job.rid] = sequence
                self._waiting.append(sequence)
            self._wake.notify()
        return [sequence.future for sequence in sequences]

    def knows(self, rid: str) -> bool:
        """Whether a job with this request id is waiting or running."""
        return rid in self._known

    def abort(self, rid: str | None = None) -> None:
        """End one job, or all of them, with what they have; unknown ids are ignored."""
        with self._wake:
            for sequence in list(self._known.values()) if rid is None else [self._known.get(rid)]:
                if sequence is not None:
                    sequence.aborted = True

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread; unfinished jobs fail."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def load(self) -> dict[str, Any]:
        """Running and waiting jobs, tokens in use, tokens a second."""
        running, lengths = len(self._running), list(self.model.cache.lengths)
        return {
            "running": running,
            "waiting": len(self._waiting),
            "tokens": sum(lengths),
            "rate": self._rate.value() if running else 0.0,
        }

    def _limit(self, job: Job) -> int:
        """New tokens that a job may make: as asked for, cut to what fits behind its prompt."""
        room = max(self.max_request_tokens - len(job.prompt) - 1, 0)
        asked = job.params.max_new_tokens
        return room if asked is None else min(asked, room)

    @torch.inference_mode()
    def _loop(self) -> None:
        try:
            while self._has_work():
                self._drop_aborted()
                self._admit()
                if self._running:
                    self._decode()
            self._fail(EngineError("the server is stopping"))
        except BaseException as error:
            self.error = error
            logger.exception("the engine died")
            self._fail(EngineError(f"the engine died: {type(error).__name__}: {error}"))
            if self.on_death:
                self.on_death(f"the engine died: {error}")

    def _has_work(self) -> bool:
        """Wait for a job; False once the engine is to stop."""
        with self._wake:
            while not (self._waiting or self._running or self._stopping):
                self._wake.wait()
            return not self._stopping

    def _fail(self, error: EngineError) -> None:
        with self._wake:
            left, self._known = list(self._known.values()), {}
            self._waiting.clear()
            self._stopping = True
        for sequence in left:
            if not sequence.future.done():
                sequence.future.set_exception(error)

    def _drop_aborted(self) -> None:
        for row in reversed(range(len(self._running))):
            if self._running[row].aborted:
                self._finish_row(row, _aborted("Aborted"))
        with self._wake:
            dropped = [sequence for sequence in self._waiting if sequence.aborted]
            for sequence in dropped:
                self._waiting.remove(sequence)
        for sequence in dropped:
            self._finish(sequence, _aborted("Abort before prefill"))

    def _admit(self) -> None:
        """Prefill as many waiting jobs, in their order, as there are rows and room for."""
        for group in grouped(self._take_waiting(), lambda sequence: len(sequence.job.prompt)):
            hidden = any(sequence.job.hidden for sequence in group)
            every = [sequence.wants_prompt_logits for sequence in group]
            step = self.model.prefill([sequence.job.prompt for sequence in group], every, hidden=hidden)
            first = len(self._running)
            self._running.extend(group)
            self._after_prefill(group, every, step)
            self._finish_rows(range(first, len(self._running)))

    def _take_waiting(self) -> list[_Sequence]:
        taken: list[_Sequence] = []
        widest = max((sequence.need for sequence in self._running), default=0)
        tokens = 0
        with self._wake:
            while self._waiting and len(self._running) + len(taken) < self.max_running:
                head = self._waiting[0]
                # all rows are as wide as the widest: this product is what the cache can come to hold
                width = max(widest, head.need)
                rows = len(self._running) + len(taken) + 1
                tokens += len(head.job.prompt)
                if rows * width > self.model.max_tokens and rows > 1:
                    break
                if tokens > PREFILL_TOKENS and taken:
                    break
                widest = width
                taken.append(self._waiting.popleft())
        return taken

    def _after_prefill(self, group: list[_Sequence], every: list[bool], step: Step) -> None:
        last: list[int] = []
        line = 0
        for row, sequence in enumerate(group):
            length = len(sequence.job.prompt)
            if sequence.job.hidden and step.hidden is not None:
                sequence.hidden.append(step.hidden[row, :length].clone())
            if every[row]:
                note_prompt(sequence.job, sequence.input_logprobs, step.logits[line : line + length])
            line += length if every[row] else 1
            last.append(line - 1)
        lines = step.logits if len(last) == step.logits.shape[0] else step.logits[last]
        self._append(group, lines)

    def _decode(self) -> None:
        """One more token for every running row."""
        running = self._running
        hidden = any(sequence.job.hidden for sequence in running)
        step = self.model.decode([sequence.output_ids[-1] for sequence in running], hidden=hidden)
        for row, sequence in enumerate(running):
            if sequence.job.hidden and step.hidden is not None:
                sequence.hidden.append(step.hidden[row, 0].clone())
        self._append(running, step.logits)
        self._finish_rows(range(len(running)))

    def _append(self, sequences: list[_Sequence], logits: torch.Tensor) -> None:
        """Choose the next id of each sequence from its line of logits."""
        rows = [sequence.row for sequence in sequences]
        logits = sampling.edit(logits, rows)
        chosen = sampling.choose(logits, rows).tolist()
        noted = [row for row, sequence in enumerate(sequences) if sequence.job.logprobs]
        lines = sampling.scaled(logits[noted], [rows[row] for row in noted]) if noted else logits
        for line, row in enumerate(noted):
            if sequences[row].limit:
                note(sequences[row].job, sequences[row].output_logprobs, lines[line : line + 1], [chosen[row]])
        for sequence, token in zip(sequences, chosen, strict=True):
            if sequence.limit:
                sequence.output_ids.append(token)
        self._rate.count(len(sequences))

    def _finish_rows(self, rows: range) -> None:
        # from the back: removing a row moves the last one into its place, and that one has been looked at already
        for row in reversed(rows):
            reason = self._finish_reason(self._running[row])
            if reason is not None:
                self._finish_row(row, reason)

    def _finish_reason(self, sequence: _Sequence) -> dict[str, Any] | None:
        """Why a sequence ends here, or None; the length is looked at first, as the real server does."""
        if len(sequence.output_ids) >= sequence.limit:
            return {"type": "length", "length": sequence.limit}
        if sequence.output_ids[-1] in sequence.stop_ids:
            return {"type": "stop", "matched": sequence.output_ids[-1]}
        matched = self.vocabulary.stop_text(sequence.output_ids, sequence.job.params)
        return None if matched is None else {"type": "stop", "matched": matched}

    def _finish_row(self, row: int, reason: dict[str, Any]) -> None:
        self.model.cache.remove(row)
        sequence = self._running[row]
        last = self._running.pop()
        if last is not sequence:
            self._running[row] = last
        self._finish(sequence, reason)

    def _finish(self, sequence: _Sequence, reason: dict[str, Any]) -> None:
        with self._wake:
            self._known.pop(sequence.job.rid, None)
        sequence.future.set_result(
            Outcome(
                sequence.output_ids,
                reason,
                sequence.hidden if sequence.output_ids else [],
                sequence.input_logprobs,
                sequence.output_logprobs,
            )
        )


def _aborted(message: str) -> dict[str, Any]:
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


class _Rate:
    """Tokens a second over the latest second or so."""

    def __init__(self) -> None:
        self._since, self._tokens, self._value = time.monotonic(), 0, 0.0

    def count(self, tokens: int) -> None:
        self._tokens += tokens
        passed = time.monotonic() - self._since
        if passed >= 1.0:
            self._value = self._tokens / passed
            self._since, self._tokens = time.monotonic(), 0

    def value(self) -> float:
        return self._value
