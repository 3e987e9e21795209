"""Starting and ending the server: as a process of its own, or in a thread of this one."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from aiohttp import web

from ray_jobs.core.errors import ConfigError
from ray_jobs.target.embedded.engine import Engine
from ray_jobs.target.embedded.faults import Faults
from ray_jobs.target.embedded.model import SlotModel
from ray_jobs.target.embedded.replies import Settings
from ray_jobs.target.embedded.server import Server, exit_process
from ray_jobs.target.embedded.vocabulary import Vocabulary
from ray_jobs.target.in_process import default_aux_layers

BACKLOG = 512


def start_engine(settings: Settings) -> Engine:
    """Load model and tokenizer and start the engine's thread.

    Raises:
        ConfigError: no model there, or settings that do not fit it.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    model = SlotModel(
        settings.model_path,
        dtype=settings.dtype,
        max_rows=settings.max_running_requests,
        max_tokens=settings.max_total_tokens,
        deterministic=settings.enable_deterministic_inference,
    )
    if settings.enable_return_aux_hidden_states:
        model.aux_layers = settings.aux_layers or default_aux_layers(model.n_layers)
        if not all(0 <= layer < model.n_layers for layer in model.aux_layers):
            rule = f"layers go from 0 to {model.n_layers - 1}"
            raise ConfigError("--aux-layers", list(model.aux_layers), rule, "Name layers of this model.")
    vocabulary = Vocabulary.load(settings.model_path, model.model)
    return Engine(model, vocabulary, max_running=settings.max_running_requests)


def bind(host: str, port: int) -> socket.socket:
    """Take the address before the model is loaded: a port in use should be known in the first second.

    Raises:
        ConfigError: the address is in use or not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((host, port))
    except OSError as error:
        taken.close()
        raise _refused(host, port, error) from None
    return taken


def _refused(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError("--port", port, f"{host} is in use there", "Choose another port, or 0 for a free one.")
    return ConfigError(
        "--host", host, f"cannot listen there ({error.strerror or error})", "Choose an address of this machine."
    )


def run(settings: Settings, faults: Faults) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    bound = bind(settings.host, settings.port)
    engine = start_engine(settings)
    # a process that only answers 500 would use up the attempts of every row; a dead one is started again
    engine.on_death = exit_process
    return asyncio.run(_serve(settings, Server(settings, engine, faults), bound))


async def _serve(settings: Settings, server: Server, bound: socket.socket) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner = await _listen(settings, server, bound)
    port = bound.getsockname()[1]
    model = server.engine.model.model
    print(
        f"ready: http://{settings.host}:{port} serves {settings.model_path} "
        f"({settings.dtype} weights, computes in {str(model.dtype).removeprefix('torch.')})",
        flush=True,
    )
    await stop.wait()
    await runner.cleanup()
    server.engine.close(timeout_s=0.5)
    return 0


async def _listen(settings: Settings, server: Server, bound: socket.socket) -> web.AppRunner:
    # handlers are cancelled when a client goes away: its generation would otherwise run on for nobody
    runner = web.AppRunner(server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.3)
    await runner.setup()
    try:
        await web.SockSite(runner, bound, backlog=BACKLOG).start()
    except OSError as error:
        raise _refused(settings.host, settings.port, error) from None
    return runner


@contextmanager
def running(settings: Settings, faults: Faults | None = None) -> Iterator[tuple[str, Server]]:
    """A server in a thread of this process, on a free port if `settings.port` is 0: its address and the server."""
    engine = start_engine(settings)
    server = Server(settings, engine, faults)
    try:
        with listening(server) as address:
            yield address, server
    finally:
        engine.close()


@contextmanager
def listening(server: Server) -> Iterator[str]:
    """Serve an engine that runs already from a thread of this process; gives the address."""
    settings = server.settings
    bound = bind(settings.host, settings.port)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="http", daemon=True)
    thread.start()

    def call(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(timeout=30)

    runner = call(_listen(settings, server, bound))
    try:
        yield f"http://{settings.host}:{bound.getsockname()[1]}"
    finally:
        call(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)


def exit_with_parent() -> None:
    """End this process when standard input closes: the parent holds its other end, also against kill -9."""

    def wait() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        os._exit(0)

    threading.Thread(target=wait, name="exit-with-parent", daemon=True).start()
