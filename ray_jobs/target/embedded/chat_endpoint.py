"""/v1/chat/completions, the way out: answers and chunks of a server without a reasoning parser.

The thought stays in `content`, with its tags or without them where these are special ids; `reasoning_content` is null
and calls of tools are text. A client that only reads `reasoning_content` learns nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from aiohttp import web

from ray_jobs.target.embedded import replies
from ray_jobs.target.embedded.chat import PATH, ChatCall, Template, parse_chat
from ray_jobs.target.embedded.engine import Engine, EngineError
from ray_jobs.target.embedded.jobs import Entry, Job, Outcome
from ray_jobs.target.embedded.protocol import Limits, decode_json
from ray_jobs.target.embedded.refusals import Refusal, openai_error
from ray_jobs.target.embedded.streaming import DONE, dumps, send_events, watch
from ray_jobs.target.embedded.vocabulary import GrowingText, Vocabulary


class Chat:
    """The handler of chats; `run` runs jobs to their end."""

    def __init__(
        self,
        engine: Engine,
        template: Template,
        limits: Limits,
        run: Callable[[list[Job]], Awaitable[list[Outcome]]],
    ) -> None:
        self.engine, self.template, self.limits, self.run = engine, template, limits, run

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Add the path of this handler."""
        router.add_post(PATH, self.complete)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """One call."""
        started = time.monotonic()
        try:
            asked = parse_chat(decode_json(await request.read(), PATH), self.limits, self.template)
            for job in asked.call.jobs:
                if self.engine.knows(job.rid):
                    message = f"Duplicate request ID detected: {job.rid}"
                    raise Refusal(400, openai_error(message, "BadRequestError"))
            if asked.stream:
                return await send_events(request, chunks(self.engine, asked))
            outcomes = await self.run(asked.call.jobs)
        except Refusal as refused:
            return web.json_response(refused.body, status=refused.status)
        except EngineError as error:
            body = {**openai_error(str(error), "InternalServerError"), "code": 500}
            return web.json_response(body, status=500)
        body = completion(asked, outcomes, self.engine.vocabulary, started)
        return web.Response(text=dumps(body), content_type="application/json")


def completion(asked: ChatCall, outcomes: list[Outcome], vocabulary: Vocabulary, started: float) -> dict[str, Any]:
    """The body of a whole answer."""
    made = replies.answer(asked.call, outcomes, vocabulary, started)
    body: dict[str, Any] = {
        **_head(asked, "chat.completion"),
        "choices": [
            _choice(asked, index, reply, outcome, vocabulary)
            for index, (reply, outcome) in enumerate(zip(made, outcomes, strict=True))
        ],
        "usage": _usage(asked, [len(outcome.output_ids) for outcome in outcomes]),
        "metadata": {name: made[0]["meta_info"][name] for name in ("weight_version", "weight_versions")},
    }
    extra: dict[str, Any] = {}
    if asked.input_ids_ext:
        extra["input_ids"] = asked.call.jobs[0].prompt
    if asked.output_ids_ext:
        extra["output_ids"] = [outcome.output_ids for outcome in outcomes]
    return {**body, "sglext": extra} if extra else body


def _head(asked: ChatCall, kind: str) -> dict[str, Any]:
    return {"id": asked.call.jobs[0].rid, "object": kind, "created": int(time.time()), "model": asked.model}


def _choice(
    asked: ChatCall, index: int, reply: dict[str, Any], outcome: Outcome, vocabulary: Vocabulary
) -> dict[str, Any]:
    reason = reply["meta_info"]["finish_reason"]
    choice: dict[str, Any] = {
        "index": index,
        "message": {"role": "assistant", "content": reply["text"], "reasoning_content": None},
        "logprobs": _logprobs(outcome, vocabulary, 0) if asked.logprobs else None,
        "finish_reason": reason["type"],
        "matched_stop": reason.get("matched"),
    }
    if asked.token_ids:
        choice |= {"prompt_token_ids": asked.call.jobs[index].prompt, "response_token_ids": outcome.output_ids}
    if asked.meta_info:
        choice["meta_info"] = reply["meta_info"]
    return choice


def _usage(asked: ChatCall, counts: list[int]) -> dict[str, Any]:
    """Counts of a call: copies share their prompt."""
    prompt, made = asked.call.prompt_tokens[0], sum(counts)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + made,
        "completion_tokens": made,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


def _logprobs(outcome: Outcome, vocabulary: Vocabulary, start: int) -> dict[str, Any]:
    """Log-probabilities of the ids from `start` on."""

    def one(entry: Entry) -> dict[str, Any]:
        text = vocabulary.token_text(entry[1])
        return {"token": text, "bytes": list(text.encode()), "logprob": entry[0]}

    notes = outcome.output_logprobs
    content: list[dict[str, Any]] = []
    for place in range(start, len(notes.tokens)):
        likeliest = notes.top[place] if place < len(notes.top) else None
        content.append({**one(notes.tokens[place]), "top_logprobs": [one(entry) for entry in likeliest or ()]})
    return {"content": content}


async def chunks(engine: Engine, asked: ChatCall) -> AsyncGenerator[str, None]:
    """The chunks of a streamed answer: role, pieces of content, how each choice ended, counts if wanted."""
    head = _head(asked, "chat.completion.chunk")
    pieces = [_Pieces(engine.vocabulary, job, asked.logprobs) for job in asked.call.jobs]

    def chunk(index: int, delta: dict[str, Any], **more: Any) -> str:
        fields = {"logprobs": None, "finish_reason": None, "matched_stop": None, **more}
        choice = {"index": index, "delta": {"reasoning_content": None, **delta}, **fields}
        return dumps({**head, "id": asked.call.jobs[index].rid, "choices": [choice]})

    async with contextlib.aclosing(watch(engine, asked.call.jobs)) as watched:
        async for index, outcome in watched:
            if pieces[index].outcome is None:
                yield chunk(index, {"role": "assistant", "content": ""})
            new, logprobs = pieces[index].take(outcome)
            if new:
                yield chunk(index, {"content": new}, logprobs=logprobs)
    ends = [piece.outcome for piece in pieces if piece.outcome is not None]
    for index, outcome in enumerate(ends):
        reason = outcome.finish_reason or {}
        yield chunk(index, {}, finish_reason=reason.get("type"), matched_stop=reason.get("matched"))
    if asked.usage:
        usage = _usage(asked, [len(outcome.output_ids) for outcome in ends])
        yield dumps({**head, "choices": [], "usage": usage})
    yield DONE


class _Pieces:
    """What of one choice has been sent."""

    def __init__(self, vocabulary: Vocabulary, job: Job, logprobs: bool) -> None:
        self.vocabulary, self.job, self.logprobs = vocabulary, job, logprobs
        self.outcome: Outcome | None = None
        self._growing = GrowingText(vocabulary, job.params)
        self._sent = self._noted = 0

    def take(self, outcome: Outcome) -> tuple[str, dict[str, Any] | None]:
        """The text that is new with this outcome, and the log-probabilities of the ids that came with it."""
        self.outcome = outcome
        if outcome.finish_reason is None:
            text = self._growing.of(outcome.output_ids)
        else:
            text = self.vocabulary.text(outcome.output_ids, outcome.finish_reason, self.job.params)
        new = text[self._sent :]
        if not new:
            return "", None
        logprobs = _logprobs(outcome, self.vocabulary, self._noted) if self.logprobs else None
        self._sent, self._noted = len(text), len(outcome.output_ids)
        return new, logprobs
