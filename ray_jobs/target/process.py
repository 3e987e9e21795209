"""One server as a child process: command line, start, watch, stop. Knows nothing of Ray."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray_jobs.core.errors import StageError, TargetError
from ray_jobs.target.client import Client
from ray_jobs.target.wire import Limits

LOG_TAIL_LINES = 15


@dataclass(frozen=True)
class ServerCommand:
    """What to start: `module` under `python`, with SGLang's argument names."""

    python: str
    module: str
    model_path: str
    engine_args: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    stdin_guard: bool = False
    """The server ends itself when its standard input closes, that is when this process dies in any way."""

    def line(self, host: str, port: int) -> list[str]:
        """The argument vector."""
        words = [self.python, "-m", self.module, "--model-path", self.model_path]
        words += ["--host", host, "--port", str(port)]
        for key, value in self.engine_args.items():
            flag = "--" + key.replace("_", "-").lstrip("-")
            if value is True:
                words.append(flag)
            elif value not in (False, None):
                words += [flag, *(str(v) for v in (value if isinstance(value, list) else [value]))]
        return [*words, "--exit-with-parent"] if self.stdin_guard else words


class ServerProcess:
    """A started server. The child stays in this process's group: a session of its own would survive a killed worker."""

    def __init__(self, command: ServerCommand, log_path: Path, host: str = "127.0.0.1") -> None:
        self.log_path = log_path
        self.port = free_port(host)
        self.address = f"http://{host}:{self.port}"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(log_path, "ab") as log:
            self._child = subprocess.Popen(
                command.line(host, self.port),
                stdin=subprocess.PIPE if command.stdin_guard else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**_own_environment(), **command.env},
            )

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._child.pid

    def exit_code(self) -> int | None:
        """Exit code, or None while it runs."""
        return self._child.poll()

    def wait_ready(self, timeout_s: float, stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait until the server generates an id.

        Raises:
            StageError: it ended or the time is over; with the last lines of its log.
        """
        client = Client(Limits(vocab_size=1, context_length=2))
        deadline = time.monotonic() + timeout_s
        problem = "it did not listen"
        while time.monotonic() < deadline and not stopped():
            code = self.exit_code()
            if code is not None:
                raise StageError(f"the server ended with exit code {code} while starting.{self.log_tail()}")
            try:
                client.probe(self.address, deadline_s=max(1.0, deadline - time.monotonic()))
                return
            except TargetError as error:
                problem = str(error)
            time.sleep(0.2)
        raise StageError(f"the server was not ready within {timeout_s:.0f} s ({problem}).{self.log_tail()}")

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM, wait, SIGKILL."""
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait(10)
        if self._child.stdin is not None:
            self._child.stdin.close()

    def log_tail(self) -> str:
        """The last lines of the log, indented, with its path."""
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        except OSError:
            lines = []
        return f" Log: {self.log_path}" + "".join(f"\n    {line}" for line in lines)


def _own_environment() -> dict[str, str]:
    """This process's environment as a server may have it: Ray's one-thread limit is meant for its own workers."""
    return {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody has now; a server that loses the race ends at once and is started again."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def embedded_command(model_path: str, engine_args: dict[str, Any], env: dict[str, str]) -> ServerCommand:
    """Our own server on this interpreter."""
    return ServerCommand(sys.executable, "ray_jobs.target.embedded", model_path, engine_args, env, stdin_guard=True)


def sglang_command(
    python: str | None, model_path: str, engine_args: dict[str, Any], env: dict[str, str]
) -> ServerCommand:
    """A stock SGLang server on the interpreter of its environment."""
    return ServerCommand(python or sys.executable, "sglang.launch_server", model_path, engine_args, env)
