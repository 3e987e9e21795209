"""The HTTP side: routes, faults, and the ways in which a server ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from ray_jobs.target.embedded import info, replies, streaming
from ray_jobs.target.embedded.chat import Template
from ray_jobs.target.embedded.chat_endpoint import Chat
from ray_jobs.target.embedded.control import Control
from ray_jobs.target.embedded.engine import Engine, EngineError
from ray_jobs.target.embedded.faults import Faults, spoil
from ray_jobs.target.embedded.jobs import Job, Outcome
from ray_jobs.target.embedded.protocol import Call, Limits, decode_json, parse_call
from ray_jobs.target.embedded.refusals import Deadly, Refusal, refusal
from ray_jobs.target.embedded.replies import Settings
from ray_jobs.target.embedded.sampling import SamplingParams
from ray_jobs.target.embedded.streaming import generate_events, send_events

logger = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_BODY_BYTES = 1 << 30
_ERROR_TEXT = {
    "error_503": (503, {"error": {"message": "The request queue is full."}}),
    "error_429": (429, {"error": {"message": "Rate limit exceeded."}}),
}


def exit_process(reason: str) -> None:
    """End this process at once, as the real server does; connections are reset by the kernel."""
    print(f"the server dies: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


class Server:
    """The handlers over one engine; `die` ends the process and is replaced in tests."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        faults: Faults | None = None,
        die: Callable[[str], None] = exit_process,
    ) -> None:
        self.settings, self.engine, self.faults, self.die = settings, engine, faults or Faults(), die
        self.calls = 0
        model = engine.model
        self.limits = Limits(
            vocab_size=model.vocab_size,
            context_length=model.context_length,
            max_input_length=info.max_input_length(engine),
            hidden_states=settings.hidden_states,
        )

    def application(self) -> web.Application:
        """The aiohttp application with all routes."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_fastapi_errors])
        for method in ("POST", "PUT"):
            app.router.add_route(method, "/generate", self.generate)
        app.router.add_post("/abort_request", self.abort)
        for path in ("/health", "/ready", "/ping"):
            app.router.add_get(path, self.health)
        app.router.add_get("/health_generate", self.health_generate)
        app.router.add_get("/", _root)
        for path in ("/model_info", "/get_model_info"):
            app.router.add_get(path, self._telling(info.model_info))
        for path in ("/server_info", "/get_server_info"):
            app.router.add_get(path, self._telling(info.server_info))
        app.router.add_get("/v1/loads", self._telling(info.loads))
        app.router.add_get("/get_load", self._telling(info.load_of_old))
        app.router.add_get("/v1/models", self._telling(info.models))
        app.router.add_get("/v1/models/{name:.+}", self.model_card)
        Control(self.engine).add_routes(app.router)
        Chat(self.engine, Template.of(self.engine), self.limits, self._run).add_routes(app.router)
        return app

    def _telling(self, make: Callable[[Settings, Engine], Any]) -> Handler:
        async def handler(_request: web.Request) -> web.Response:
            return web.json_response(make(self.settings, self.engine))

        return handler

    async def model_card(self, request: web.Request) -> web.Response:
        """What /v1/models says of one model, if it is the one that is served."""
        name = request.match_info["name"]
        if name != self.settings.model_path:
            error = {"message": f"The model '{name}' does not exist", "type": "invalid_request_error"}
            return web.json_response({"error": {**error, "param": "model", "code": "model_not_found"}}, status=404)
        return web.json_response(info.model_card(self.settings, self.engine))

    async def health(self, _request: web.Request) -> web.Response:
        """200 while the engine can generate, which it cannot while paused."""
        return web.Response(status=200 if self.engine.alive and not self.engine.paused else 503)

    async def health_generate(self, _request: web.Request) -> web.Response:
        """200 once one more token has really been generated."""
        if self.engine.paused:
            return web.Response(status=503)
        job = Job(f"HEALTH_CHECK_{time.monotonic_ns()}", [0], SamplingParams(max_new_tokens=1, temperature=0), 0)
        try:
            await self._run([job])
        except EngineError:
            return web.Response(status=503)
        return web.Response()

    async def abort(self, request: web.Request) -> web.Response:
        """End one job (`rid`) or all (`abort_all`); also unknown ones are answered with 200."""
        try:
            body = decode_json(await request.read())
        except Refusal as refused:
            return web.json_response(refused.body, status=refused.status)
        if body.get("abort_all"):
            self.engine.abort()
        elif isinstance(body.get("rid"), str):
            self.engine.abort(body["rid"])
        return web.Response()

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """One /generate call, with the fault that is due for it."""
        self.calls += 1
        started = time.monotonic()
        fault = self.faults.of_call(self.calls)
        raw = await request.read()
        early = await self._early_fault(fault, request)
        if early is not None:
            return early
        stream = False
        try:
            body = decode_json(raw)
            stream = bool(body.get("stream"))
            call = self._parse(body)
            if stream:
                return await send_events(request, generate_events(self.engine, call, started, fault))
            outcomes = await self._run(call.jobs)
        except Refusal as refused:
            if stream and isinstance(refused.body.get("error"), dict):
                return await send_events(request, streaming.refused(refused))
            return web.json_response(refused.body, status=refused.status)
        except Deadly as deadly:
            _reset(request)
            self.die(str(deadly))
            raise ConnectionResetError(str(deadly)) from None
        except EngineError as error:
            return web.json_response({"error": {"message": str(error)}}, status=500)
        return await self._reply(call, outcomes, started, fault)

    def _parse(self, body: dict[str, Any]) -> Call:
        call = parse_call(body, self.limits, self.engine.vocabulary.encode)
        for job in call.jobs:
            if self.engine.knows(job.rid):
                raise refusal(f"Duplicate request ID detected: {job.rid}")
        return call

    async def _run(self, jobs: list[Job]) -> list[Outcome]:
        """Run jobs to their end; a client that goes away takes its jobs along."""
        futures = [asyncio.wrap_future(future) for future in self.engine.submit(jobs)]
        try:
            return list(await asyncio.gather(*futures))
        except asyncio.CancelledError:
            for job in jobs:
                self.engine.abort(job.rid)
            raise

    async def _reply(
        self, call: Call, outcomes: list[Outcome], started: float, fault: str | None
    ) -> web.StreamResponse:
        if any(job.hidden for job in call.jobs):
            # megabytes of numbers: in a thread, so that other calls are answered meanwhile
            text = await asyncio.to_thread(self._encode, call, outcomes, started, fault)
        else:
            text = self._encode(call, outcomes, started, fault)
        if fault == "malformed":
            text = text[: len(text) // 2]
        return web.Response(text=text, content_type="application/json")

    def _encode(self, call: Call, outcomes: list[Outcome], started: float, fault: str | None) -> str:
        answers = replies.answer(call, outcomes, self.engine.vocabulary, started)
        spoil(answers, fault)
        return json.dumps(answers[0] if call.single else answers, separators=(",", ":"))

    async def _early_fault(self, fault: str | None, request: web.Request) -> web.StreamResponse | None:
        """Do what goes wrong before the request is looked at."""
        if self.faults.latency_s:
            await asyncio.sleep(self.faults.latency_s)
        if fault == "die":
            self.die(f"fault: call {self.calls}")
        if fault == "stall":
            await asyncio.sleep(self.faults.stall_s)
        if fault in ("die", "stall", "reset"):
            _reset(request)
            raise ConnectionResetError(f"fault: {fault}")
        if fault == "error_500":
            return web.Response(status=500, text="Internal Server Error")
        if fault in _ERROR_TEXT:
            status, body = _ERROR_TEXT[fault]
            return web.json_response(body, status=status)
        return None


def _reset(request: web.Request) -> None:
    """Close the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()


async def _root(_request: web.Request) -> web.Response:
    return web.json_response("SGLang is running")


@web.middleware
async def _fastapi_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Unknown paths and methods are answered as FastAPI does."""
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        headers = {"Allow": ", ".join(sorted(error.allowed_methods))}
        return web.json_response({"detail": "Method Not Allowed"}, status=405, headers=headers)
    except web.HTTPNotFound:
        return web.json_response({"detail": "Not Found"}, status=404)
