"""What a running stage shows: status.json for programs, a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any

import ray
from ray.exceptions import RayError
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ray_jobs.core.errors import StageError
from ray_jobs.store.run_dir import RunDir

PLAIN_EVERY_S = 10.0
WINDOW_S = 60.0


class Progress:
    """Polls the registry while the body of its `with` runs, and remembers a fault that must stop the run."""

    def __init__(
        self, run: RunDir, stage: str, registry: Any, done_before: dict[str, int], total: int, every_s: float
    ) -> None:
        self._run, self._stage, self._registry = run, stage, registry
        self._before, self._total, self._every_s = done_before, total, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._started = time.monotonic()
        self._rates: deque[tuple[float, float]] = deque()
        self._fault: str | None = None
        self._last: dict[str, Any] = {}
        self._console = Console(stderr=True)
        self._plain_at = self._started

    def __enter__(self) -> Progress:
        """Start watching."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop watching and write the last status."""
        self._stop.set()
        self._thread.join(timeout=30)
        self._poll()
        ended = "failed" if kind or self._fault else "running"
        self._run.write_status(**{**self._last, "state": ended})

    def raise_if_stopped(self) -> None:
        """Raise the fault that a client or the registry reported.

        Raises:
            StageError: there was one.
        """
        if self._fault:
            raise StageError(self._fault)

    def _watch(self) -> None:
        if not self._console.is_terminal:
            while not self._stop.wait(self._every_s):
                if self._poll() and time.monotonic() - self._plain_at >= PLAIN_EVERY_S:
                    self._plain_at = time.monotonic()
                    self._console.print(self._line(), soft_wrap=True)
            return
        with Live(self._line(), console=self._console, refresh_per_second=2, transient=True) as live:
            while not self._stop.wait(self._every_s):
                self._poll()
                live.update(self._line())

    def _poll(self) -> bool:
        try:
            snapshot: Any = ray.get(self._registry.snapshot.remote(), timeout=10)
        except RayError:
            # the registry goes away only with the run itself, whose own error is the one to show
            return False
        self._fault = self._fault or snapshot["fatal"]
        self._last = self._facts(snapshot)
        try:
            self._run.write_status(**self._last)
        except OSError as error:
            logging.getLogger(__name__).warning("status.json: %s", error)
        return True

    def _facts(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        counters, now = snapshot["counters"], time.monotonic()
        new = int(counters.get("ok", 0)), int(counters.get("failed", 0))
        ok = min(self._before["ok"] + new[0], self._total)
        failed = self._before["failed"] + new[1]
        tokens = counters.get("tokens", 0.0)
        self._rates.append((now, tokens))
        while now - self._rates[0][0] > WINDOW_S:
            self._rates.popleft()
        span = now - self._rates[0][0]
        open_rows = max(0, self._total - ok - failed)
        # short answers finish first, so this is too low early in a run
        eta = open_rows * (now - self._started) / sum(new) if sum(new) else None
        return {
            "stage": self._stage,
            "state": "running",
            "done": ok,
            "failed": failed,
            "total": self._total,
            "in_flight": int(counters.get("in_flight", 0)),
            "retries": int(counters.get("retries", 0)),
            "replayed": int(counters.get("replayed", 0)),
            "tokens": int(tokens),
            "tokens_per_s": round((tokens - self._rates[0][1]) / span, 1) if span > 0 else 0.0,
            "eta_s": None if eta is None else round(eta),
            "updated_at": time.time(),
            "replicas": {
                name: {k: state[k] for k in ("address", "healthy", "generation", "leased", "error")}
                for name, state in snapshot["replicas"].items()
            },
        }

    def _line(self) -> Text:
        s = self._last
        if not s:
            return Text(f"{self._stage}: starting")
        eta = "?" if s["eta_s"] is None else f"{s['eta_s']} s"
        sick = sum(not r["healthy"] for r in s["replicas"].values())
        down = f", {sick} replica(s) down" if sick else ""
        return Text(
            f"{self._stage}: {s['done']}/{s['total']} done, {s['failed']} failed, {s['in_flight']} in flight, "
            f"{s['tokens_per_s']:.0f} tokens/s, {eta} to go{down}"
        )
