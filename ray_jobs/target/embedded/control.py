"""Pausing, continuing and flushing."""

from __future__ import annotations

import asyncio
import time

from aiohttp import web

from ray_jobs.target.embedded.engine import Engine
from ray_jobs.target.embedded.protocol import decode_json
from ray_jobs.target.embedded.refusals import Refusal, openai_error

PAUSE, CONTINUE = "/pause_generation", "/continue_generation"
MODES = ("abort", "retract", "in_place")
POLL_S = 0.02
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


class Control:
    """The handlers that steer an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Add the paths of these handlers."""
        router.add_post(PAUSE, self.pause)
        router.add_post(CONTINUE, self.resume)
        for method in ("GET", "POST"):
            router.add_route(method, "/flush_cache", self.flush)

    async def pause(self, request: web.Request) -> web.Response:
        """Stop generating in the `mode` of the body (default: abort); answered once it has stopped."""
        try:
            mode = decode_json(await request.read(), PAUSE).get("mode", "abort")
        except Refusal as refused:
            return web.json_response(refused.body, status=refused.status)
        if mode not in MODES:
            return web.json_response(_bad_mode(mode), status=400)
        await asyncio.to_thread(self.engine.pause, mode)
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, request: web.Request) -> web.Response:
        """Generate again; needs a body, be it an empty object."""
        try:
            decode_json(await request.read(), CONTINUE)
        except Refusal as refused:
            return web.json_response(refused.body, status=refused.status)
        self.engine.resume()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def flush(self, request: web.Request) -> web.Response:
        """Succeeds where nothing runs, after waiting up to `timeout` seconds; there is no cache of finished prompts."""
        try:
            timeout_s = float(request.query.get("timeout", 0))
        except ValueError:
            return web.json_response(openai_error("timeout: Input should be a valid number", "Bad Request"), status=400)
        deadline = time.monotonic() + timeout_s
        while not self.engine.idle:
            if time.monotonic() >= deadline:
                return web.Response(status=400, text="Flush cache failed.\n")
            await asyncio.sleep(POLL_S)
        return web.Response(text=FLUSHED)


def _bad_mode(mode: object) -> dict[str, object]:
    kind = "PauseGenerationReqInput"
    first = {
        "type": "is_instance_of",
        "loc": ("body", f"is-instance[{kind}]"),
        "msg": f"Input should be an instance of {kind}",
        "input": {"mode": mode},
        "ctx": {"class": kind},
    }
    expected = "'abort', 'retract' or 'in_place'"
    second = {
        "type": "literal_error",
        "loc": ("body", f"function-after[build_struct(), {kind}]", "mode"),
        "msg": f"Input should be {expected}",
        "input": mode,
        "ctx": {"expected": expected},
    }
    message = f"2 validation errors:\n  {first}\n  {second}\n\n  POST {PAUSE} {[first, second]}"
    return openai_error(message, "Bad Request")
