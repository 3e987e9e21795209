"""The Ray Data callable: a block of prompts in, the block of its finished rows out.

Why it looks as it does: one call takes one block and returns one table in input order, so a task that Ray runs
again gives the same rows; many calls run at once on one asyncio loop, so a slow row holds only its own block;
no row is ever raised, and a row that is not returned is not committed and alone is asked again.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from ray_jobs.cluster.registry import Lease
from ray_jobs.core.errors import EagleRayError, Fatal, LocalFault, ReplicaDown, Retryable, TargetError
from ray_jobs.core.files import JsonLines, read_json_lines
from ray_jobs.core.records import Request
from ray_jobs.core.schemas import SAMPLES
from ray_jobs.generation.limiter import Limiter
from ray_jobs.generation.rows import Answer, from_record, sample_row, to_record
from ray_jobs.store.sample_set import SampleSet
from ray_jobs.target import wire
from ray_jobs.target.client import Client
from ray_jobs.text.chat import Chat

log = logging.getLogger(__name__)

SYNC_S = 0.3


@dataclass(frozen=True)
class Settings:
    """Everything a client actor needs; small, because Ray keeps constructor arguments for restarts."""

    folder: str
    attempt: int
    model: str
    location: str
    revision: str | None
    trust_remote_code: bool
    thinking: bool | None
    markers_family: str
    limits: wire.Limits
    sampling: dict[str, Any]
    attempts: int
    least_tokens_per_s: float
    slots: int
    """Requests in flight of one client, at most."""


class Generate:
    """One client actor; its calls share the limiter, the threads, the journal and the outcome file."""

    def __init__(self, settings: Settings, registry: Any) -> None:
        self._set = settings
        self._registry = registry
        self._client = Client(settings.limits)
        self._chat = Chat.load(
            settings.location,
            revision=settings.revision,
            trust_remote_code=settings.trust_remote_code,
            thinking=settings.thinking,
            markers_family=settings.markers_family,
        )
        # asyncio's own pool has 6 threads on 2 cores
        self._threads = ThreadPoolExecutor(settings.slots, thread_name_prefix="request")
        # its own, because a finished row must not wait for a thread that is free only after the next long answer
        self._disk = ThreadPoolExecutor(2, thread_name_prefix="journal")
        self._limiter = Limiter()
        self._name = f"{settings.attempt}-{ray.get_runtime_context().get_actor_id() or os.getpid()}-{os.getpid()}"
        store = SampleSet(Path(settings.folder))
        self._journal = JsonLines(store.journal / f"{self._name}.jsonl")
        self._outcomes = JsonLines(store.outcomes / f"{self._name}.jsonl")
        self._known = {r["row_id"]: r for r in _own_attempt(store, settings.attempt)}
        self._counters = dict.fromkeys(("ok", "failed", "tokens", "retries", "replayed"), 0.0)
        self._fatal: str | None = None
        self._sync: asyncio.Task[None] | None = None

    async def __call__(self, block: pa.Table) -> pa.Table:
        """Rows of PROMPTS (with `journaled`, an answer's JSON or null) to rows of SAMPLES; fewer when some failed."""
        if self._sync is None:
            self._sync = asyncio.create_task(self._keep_in_touch())
        rows = await asyncio.gather(*[self._row(prompt) for prompt in block.to_pylist()])
        return pa.Table.from_pylist([row for row in rows if row is not None], SAMPLES)

    async def _row(self, prompt: dict[str, Any]) -> dict[str, Any] | None:
        sampling = wire.fit_sampling(self._set.sampling, len(prompt["prompt_ids"]), self._set.limits)
        request = Request(prompt["row_id"], prompt["prompt_ids"], sampling)
        try:
            answer = self._replayed(prompt, request) or await self._ask(request)
            row = self._sample_row(prompt, answer)
        except (Fatal, LocalFault) as error:
            # not this row's fault, so it is left out, and the driver stops the run when it hears of it
            self._fatal = self._fatal or str(error)
            return None
        except TargetError as error:
            self._note_failure(request, error)
            return None
        except Exception as error:
            # a row that no rule foresaw must not take its block, and the rows of it that are done, with it
            log.exception("row %s", request.row_id)
            self._note_failure(request, error)
            return None
        self._counters["ok"] += 1
        self._counters["tokens"] += len(answer.reply.output_ids)
        return row

    def _sample_row(self, prompt: dict[str, Any], answer: Answer) -> dict[str, Any]:
        return sample_row(
            prompt,
            answer,
            self._chat.markers,
            self._chat.decode,
            model=self._set.model,
            template_hash=self._chat.template_hash,
        )

    def _replayed(self, prompt: dict[str, Any], request: Request) -> Answer | None:
        """The answer of an earlier try whose block was not committed, if it is to the same request."""
        record = self._known.get(request.row_id)
        if record is None and prompt["journaled"]:
            record = json.loads(prompt["journaled"])
        if record is None or record["request"] != wire.request_hash(request):
            return None
        self._counters["replayed"] += 1
        return from_record(record)

    async def _ask(self, request: Request) -> Answer:
        """Ask until there is an answer or the attempts are used up; the answer is in the journal on return."""
        loop = asyncio.get_running_loop()
        deadline_s = 60 + request.sampling["max_new_tokens"] / self._set.least_tokens_per_s
        used = _Attempts(self._set.attempts)
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type((Retryable, ReplicaDown)),
            stop=used.are_up,
            wait=wait_random_exponential(multiplier=0.5, max=20),
            reraise=True,
        ):
            with attempt:
                with self._limiter.holding(await self._limiter.acquire()) as lease:
                    started_s, clock = time.time(), time.monotonic()
                    try:
                        reply = await loop.run_in_executor(
                            self._threads, partial(self._client.generate, lease.address, request, deadline_s=deadline_s)
                        )
                    except TargetError as error:
                        self._note_retry(lease, error)
                        raise
                    latency_s = time.monotonic() - clock
                answer = Answer(
                    reply, request.sampling, lease.replica, lease.version, used.count + 1, started_s, latency_s
                )
                await loop.run_in_executor(self._disk, self._write_journal, request, answer)
                return answer
        raise AssertionError("tenacity returns or raises")

    def _note_retry(self, lease: Lease, error: TargetError) -> None:
        """Count a failed try; a replica that is gone is taken out of use before anything else is asked of it."""
        self._counters["retries"] += 1
        if isinstance(error, ReplicaDown):
            self._limiter.lost(lease)
            self._registry.down.remote(lease.replica, lease.generation, str(error))

    def _write_journal(self, request: Request, answer: Answer) -> None:
        try:
            self._journal.append(to_record(request.row_id, wire.request_hash(request), answer))
        except OSError as error:
            raise _local_fault(error, self._journal.path) from None

    def _note_failure(self, request: Request, error: Exception) -> None:
        """Write a final failure down before anything else can happen to it."""
        record = {
            "row_id": request.row_id,
            "error_class": type(error).__name__,
            "error": str(error),
            "attempts": self._set.attempts if isinstance(error, Retryable) else 1,
            "last_reply": error.raw if isinstance(error, TargetError) else None,
        }
        try:
            self._outcomes.append(record)
        except OSError as fault:
            self._fatal = self._fatal or str(_local_fault(fault, self._outcomes.path))
            return
        self._counters["failed"] += 1

    async def _keep_in_touch(self) -> None:
        """Renew the leases and deliver the counters, a few times a second."""
        node_id = ray.get_runtime_context().get_node_id()
        while True:
            counters = {**self._counters, "in_flight": float(self._limiter.in_flight)}
            try:
                leases, stop = await self._registry.sync.remote(
                    self._name, node_id, self._set.slots, counters, self._fatal
                )
                self._limiter.renew(leases)
            except RayError as error:
                stop = f"the replica registry does not answer: {error}"
            self._fatal = self._fatal or stop
            if self._fatal:
                self._limiter.close(Fatal(self._fatal))
            await asyncio.sleep(SYNC_S)


class _Attempts:
    """Counts tries that used one up: waiting for a busy or paused server, or for a lost replica, does not."""

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0

    def are_up(self, state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome else None
        free = isinstance(error, ReplicaDown) or (isinstance(error, Retryable) and error.wait)
        self.count += not free
        return self.count >= self.most


def _own_attempt(store: SampleSet, attempt: int) -> list[dict[str, Any]]:
    """Answers that an earlier life of this attempt's clients wrote down: Ray restarts actors and their blocks."""
    return [record for file in store.journal.glob(f"{attempt}-*.jsonl") for record in read_json_lines(file)]


def _local_fault(error: OSError, path: Path) -> EagleRayError:
    reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
    return LocalFault(f"cannot write {path}: {reason}. Free space and run the same command again")
