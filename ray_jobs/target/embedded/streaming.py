"""Server-sent events: jobs watched from the event loop, and the parts of an answer of /generate."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from aiohttp import web

from ray_jobs.target.embedded import replies
from ray_jobs.target.embedded.engine import Engine
from ray_jobs.target.embedded.faults import spoil
from ray_jobs.target.embedded.jobs import Job, Outcome
from ray_jobs.target.embedded.protocol import Call
from ray_jobs.target.embedded.refusals import Refusal, message_of
from ray_jobs.target.embedded.vocabulary import GrowingText

DONE = "[DONE]"


def dumps(value: Any) -> str:
    """JSON as the server writes it: no spaces, text unescaped."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


async def watch(engine: Engine, jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, Outcome], None]:
    """Run jobs; gives a job's index and what there is of it whenever it grew, and once when it is finished.

    Growth is given as often as the reader takes it: one that is slow gets several ids at once, as from a real server.
    Whoever stops reading ends the jobs.

    Raises:
        EngineError: the engine died.
    """
    loop, bell = asyncio.get_running_loop(), asyncio.Event()

    def ring() -> None:
        # the loop may be gone already when a server is closed
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(bell.set)

    running = dict(enumerate(engine.watch(jobs, ring)))
    seen = [0] * len(jobs)
    try:
        while running:
            await bell.wait()
            bell.clear()
            for index, job in list(running.items()):
                finished = job.future.done()
                outcome = job.future.result() if finished else job.so_far()
                if finished:
                    del running[index]
                elif len(outcome.output_ids) == seen[index] or engine.vocabulary.may_stop(
                    outcome.output_ids, job.job.params
                ):
                    continue
                seen[index] = len(outcome.output_ids)
                yield index, outcome
    finally:
        for job in running.values():
            engine.abort(job.job.rid)


async def generate_events(engine: Engine, call: Call, started: float, fault: str | None) -> AsyncGenerator[str, None]:
    """The events of a /generate call: text and ids so far in each, the fault in the last of a job."""
    texts = [GrowingText(engine.vocabulary, job.params) for job in call.jobs]
    first_ts: dict[int, float] = {}
    async with contextlib.aclosing(watch(engine, call.jobs)) as watched:
        async for index, outcome in watched:
            first = index not in first_ts
            sent_ts = first_ts.setdefault(index, time.time())
            if outcome.finish_reason is not None:
                reply = replies.whole(call, index, outcome, engine.vocabulary, started, sent_ts)
                spoil([reply], fault)
            else:
                reply = replies.part(call, index, outcome, texts[index].of(outcome.output_ids), engine.vocabulary)
                if first:
                    reply["meta_info"]["response_sent_to_client_ts"] = sent_ts
            event = dumps(reply if call.single else {**reply, "index": index})
            if fault == "malformed" and outcome.finish_reason is not None:
                yield event[: len(event) // 2]
                return
            yield event
    yield DONE


async def refused(refusal: Refusal) -> AsyncGenerator[str, None]:
    """The events of a call with `stream` that is refused for its values."""
    error = {"message": message_of(refusal), "type": "invalid_request_error", "code": refusal.status}
    yield dumps({"error": {**error, "retryable": False}})
    yield DONE


async def send_events(request: web.Request, events: AsyncGenerator[str, None]) -> web.StreamResponse:
    """Answer with events as they come; a client that goes away ends their making."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    async with contextlib.aclosing(events) as open_events:
        await response.prepare(request)
        async for event in open_events:
            await response.write(f"data: {event}\n\n".encode(errors="replace"))
    await response.write_eof()
    return response
