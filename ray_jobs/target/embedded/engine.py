"""The scheduler: one thread that admits, prefills, decodes and finishes; callers hand in jobs and hold futures."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from ray_jobs.target.embedded import sampling
from ray_jobs.target.embedded.jobs import Job, Outcome, note, note_prompt
from ray_jobs.target.embedded.model import SlotModel, Step
from ray_jobs.target.embedded.sequences import Rate, RunningJob, aborted, grouped
from ray_jobs.target.embedded.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

PREFILL_TOKENS = 2048
"""New prompts are admitted up to this many tokens before the running rows get their next step."""


class EngineError(RuntimeError):
    """The engine's thread ended on an error; the server cannot generate any more."""


class Engine:
    """Continuous batching over a `SlotModel`; every method may be called from any thread."""

    def __init__(self, model: SlotModel, vocabulary: Vocabulary, *, max_running: int) -> None:
        self.model, self.vocabulary, self.max_running = model, vocabulary, max_running
        self.error: BaseException | None = None
        self.on_death: Callable[[str], None] | None = None
        """Called when the engine cannot go on; a server process ends itself, as the real one does."""
        self._wake = threading.Condition()
        self._stopping = self._retracting = self._stirred = self._parked = False
        self.paused = False
        """Whether generation is paused: jobs are taken, and wait."""
        self._known: dict[str, RunningJob] = {}
        self._waiting: deque[RunningJob] = deque()
        self._running: list[RunningJob] = []
        self._rate, self._prefilled = Rate(), 0
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
        return [running.future for running in self.watch(jobs, None)]

    def watch(self, jobs: Sequence[Job], notify: Callable[[], None] | None) -> list[RunningJob]:
        """Queue jobs and look on: `notify` is called in the engine's thread whenever one of them grew or ended.

        Raises:
            EngineError: the engine is dead.
        """
        sequences = [RunningJob(job, self._limit(job), self.vocabulary, notify) for job in jobs]
        with self._wake:
            if not self.alive or self._stopping:
                raise EngineError(f"the engine is not running ({self.error})")
            for sequence in sequences:
                self._known[sequence.job.rid] = sequence
                self._waiting.append(sequence)
            self._wake.notify_all()
        return sequences

    def knows(self, rid: str) -> bool:
        """Whether a job with this request id is waiting or running."""
        return rid in self._known

    def abort(self, rid: str | None = None) -> None:
        """End one job, or all of them, with what they have; unknown ids are ignored.

        Also while paused: a client that goes away should not hold a row until somebody continues.
        """
        with self._wake:
            for sequence in list(self._known.values()) if rid is None else [self._known.get(rid)]:
                if sequence is not None:
                    sequence.aborted = True
            self._stir()

    def pause(self, mode: str, timeout_s: float = 60.0) -> None:
        """Stop generating, and wait until it has stopped; later jobs wait for `resume`.

        abort: what is waiting or running ends with what it has. retract: running jobs give up their rows and are run
        anew from what they have. in_place: running jobs keep their rows.
        """
        if mode == "abort":
            self.abort()
        with self._wake:
            self.paused = True
            self._retracting = mode == "retract"
            self._stir()
            self._wake.wait_for(lambda: self._stopping or (self._parked and not self._stirred), timeout_s)

    def resume(self) -> None:
        """Generate again after `pause`."""
        with self._wake:
            self.paused = False
            self._stir()

    @property
    def idle(self) -> bool:
        """Whether no job runs or could run: retracted and held ones have nothing in the cache."""
        return not self._running and (self.paused or not self._waiting)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread; unfinished jobs fail."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join(timeout_s)

    def load(self) -> dict[str, Any]:
        """Running and waiting jobs, tokens in use, waiting and ever prefilled, tokens a second."""
        running, lengths = len(self._running), list(self.model.cache.lengths)
        return {
            "running": running,
            "waiting": len(self._waiting),
            "waiting_tokens": sum(len(sequence.ids) for sequence in list(self._waiting)),
            "prefilled": self._prefilled,
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
                if self._retracting:
                    self._retract()
                if self.paused:
                    continue
                self._admit()
                if self._running:
                    self._decode()
                self._publish()
            self._fail(EngineError("the server is stopping"))
        except BaseException as error:
            self.error = error
            logger.exception("the engine died")
            self._fail(EngineError(f"the engine died: {type(error).__name__}: {error}"))
            if self.on_death:
                self.on_death(f"the engine died: {error}")

    def _stir(self) -> None:
        """Make the thread look at its jobs once, also while paused or idle; the lock is held."""
        self._stirred = True
        self._wake.notify_all()

    def _has_work(self) -> bool:
        """Wait for something to do; False once the engine is to stop."""
        with self._wake:
            while not (self._stopping or self._stirred or (not self.paused and (self._waiting or self._running))):
                self._parked = True
                self._wake.notify_all()
                self._wake.wait()
            self._parked = self._stirred = False
            return not self._stopping

    def _retract(self) -> None:
        """Put all running jobs back in front of the waiting ones."""
        with self._wake:
            for sequence in reversed(self._running):
                sequence.retractions += 1
                self._waiting.appendleft(sequence)
            self._retracting = False
        while self._running:
            self.model.cache.remove(len(self._running) - 1)
            self._running.pop()

    def _fail(self, error: EngineError) -> None:
        with self._wake:
            left, self._known = list(self._known.values()), {}
            self._waiting.clear()
            self._stopping = True
            self._wake.notify_all()
        for sequence in left:
            if not sequence.future.done():
                sequence.future.set_exception(error)
            if sequence.notify:
                sequence.notify()

    def _drop_aborted(self) -> None:
        for row in reversed(range(len(self._running))):
            if self._running[row].aborted:
                self._finish_row(row, aborted("Aborted"))
        with self._wake:
            dropped = [sequence for sequence in self._waiting if sequence.aborted]
            for sequence in dropped:
                self._waiting.remove(sequence)
        for sequence in dropped:
            self._finish(sequence, aborted("Abort before prefill"))

    def _admit(self) -> None:
        """Prefill as many waiting jobs, in their order, as there are rows and room for."""
        for group in grouped(self._take_waiting(), lambda sequence: len(sequence.ids)):
            hidden = any(sequence.job.hidden for sequence in group)
            every = [sequence.wants_prompt_logits for sequence in group]
            step = self.model.prefill([sequence.ids for sequence in group], every, hidden=hidden)
            self._prefilled += sum(len(sequence.ids) for sequence in group)
            first = len(self._running)
            self._running.extend(group)
            self._after_prefill(group, every, step)
            self._finish_rows(range(first, len(self._running)))

    def _take_waiting(self) -> list[RunningJob]:
        taken: list[RunningJob] = []
        widest = max((sequence.need for sequence in self._running), default=0)
        tokens = 0
        with self._wake:
            while self._waiting and len(self._running) + len(taken) < self.max_running:
                head = self._waiting[0]
                # all rows are as wide as the widest: this product is what the cache can come to hold
                width = max(widest, head.need)
                rows = len(self._running) + len(taken) + 1
                tokens += len(head.ids)
                if rows * width > self.model.max_tokens and rows > 1:
                    break
                if tokens > PREFILL_TOKENS and taken:
                    break
                widest = width
                taken.append(self._waiting.popleft())
        return taken

    def _after_prefill(self, group: list[RunningJob], every: list[bool], step: Step) -> None:
        last: list[int] = []
        line = 0
        for row, sequence in enumerate(group):
            length = len(sequence.ids)
            if sequence.job.hidden and step.hidden is not None:
                # of a retracted job only the last one is new
                states = step.hidden[row, length - 1] if sequence.hidden else step.hidden[row, :length]
                sequence.hidden.append(states.clone())
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
        if step.hidden is not None:
            for row, sequence in enumerate(running):
                if sequence.job.hidden:
                    sequence.hidden.append(step.hidden[row, 0].clone())
        self._append(running, step.logits)
        self._finish_rows(range(len(running)))

    def _append(self, sequences: list[RunningJob], logits: torch.Tensor) -> None:
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

    def _publish(self) -> None:
        """Show the lookers-on what their jobs have made: only here, where it is known that they go on."""
        watched = [sequence for sequence in self._running if sequence.notify]
        for sequence in watched:
            sequence.published = len(sequence.output_ids)
        for notify in {sequence.notify for sequence in watched if sequence.notify}:
            notify()

    def _finish_rows(self, rows: range) -> None:
        # from the back: removing a row moves later ones to the front, and these have been looked at already
        for row in reversed(rows):
            reason = self._finish_reason(self._running[row])
            if reason is not None:
                self._finish_row(row, reason)

    def _finish_reason(self, sequence: RunningJob) -> dict[str, Any] | None:
        """Why a sequence ends here, or None; the length is looked at first, as the real server does."""
        if len(sequence.output_ids) >= sequence.limit:
            return {"type": "length", "length": sequence.limit}
        if sequence.output_ids[-1] in sequence.stop_ids:
            return {"type": "stop", "matched": sequence.output_ids[-1]}
        matched = self.vocabulary.stop_text(sequence.output_ids, sequence.job.params)
        return None if matched is None else {"type": "stop", "matched": matched}

    def _finish_row(self, row: int, reason: dict[str, Any]) -> None:
        sequence = self._running[row]
        for source, target in self.model.cache.remove(row):
            self._running[target] = self._running[source]
        self._running.pop()
        self._finish(sequence, reason)

    def _finish(self, sequence: RunningJob, reason: dict[str, Any]) -> None:
        with self._wake:
            self._known.pop(sequence.job.rid, None)
        sequence.future.set_result(sequence.outcome(reason))
        if sequence.notify:
            sequence.notify()
