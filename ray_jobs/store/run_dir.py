"""The run folder (design 4.1): where everything of one run lies, and who may write there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray_jobs.core import log
from ray_jobs.core.errors import ConfigError
from ray_jobs.core.files import read_json, write_atomic, write_json
from ray_jobs.store.lock import RunLock
from ray_jobs.store.sample_set import SampleSet


class RunDir:
    """Paths and small files of one run; creating the object touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def samples(self) -> SampleSet:
        """The run's data set."""
        return SampleSet(self.path)

    @property
    def greedy(self) -> SampleSet:
        """Held-out prompts answered at temperature 0."""
        return SampleSet(self.path / "evaluation" / "greedy")

    @property
    def checkpoints(self) -> Path:
        """Ray Train's folder."""
        return self.path / "checkpoints"

    @property
    def export(self) -> Path:
        """The drafter as servers load it."""
        return self.path / "export"

    @property
    def metrics(self) -> Path:
        """One JSON line every few training steps."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """Accepted lengths."""
        return self.path / "evaluation" / "summary.json"

    def complete(self, stage: str) -> dict[str, Any] | None:
        """What the stage's COMPLETE file says, or None if the stage is not done."""
        return read_json(self.path / f"COMPLETE.{stage}.json")

    def set_complete(self, stage: str, facts: dict[str, Any]) -> None:
        """Write the stage's COMPLETE file: the last act of a stage, after its audit."""
        write_json(self.path / f"COMPLETE.{stage}.json", facts)

    def reopen(self, stage: str) -> None:
        """Take the COMPLETE file away: the stage has new work."""
        (self.path / f"COMPLETE.{stage}.json").unlink(missing_ok=True)

    def write_status(self, **facts: Any) -> None:
        """Replace status.json."""
        write_json(self.path / "status.json", facts)

    def update_status(self, **facts: Any) -> None:
        """Change some keys of status.json."""
        self.write_status(**{**(read_json(self.path / "status.json") or {}), **facts})

    def check_fingerprint(self, facts: dict[str, Any]) -> None:
        """Write fingerprint.json, or compare with the one that is there.

        Raises:
            ConfigError: the run holds rows of another meaning.
        """
        path = self.path / "fingerprint.json"
        old = read_json(path)
        if old is None:
            write_json(path, facts)
            return
        differing = sorted(k for k in old.keys() | facts.keys() if old.get(k) != facts.get(k))
        if differing:
            shown = "; ".join(f"{k}: {old.get(k)!r} -> {facts.get(k)!r}" for k in differing)
            raise ConfigError(
                "run.name",
                self.path.name,
                f"holds rows made with other settings ({shown})",
                "Choose another run.name, or set them back.",
            )

    @contextmanager
    def open(self, config_yaml: str, provenance: dict[str, Any]) -> Iterator[int]:
        """Lock the run for one command; yields the attempt's number, counted from 1.

        Raises:
            ConfigError: the folder cannot be written, or another driver works on the run.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            action = "Set run.root or $EAGLE_RAY_RUNS to a folder that can be written."
            raise ConfigError("run.root", self.path.parent, f"cannot be written ({error.strerror})", action) from None
        with RunLock(self.path / "LOCK"):
            attempt = self._next_attempt()
            handler = log.to_file(self.path / "logs" / f"attempt_{attempt}" / "driver.log")
            write_atomic(self.path / "config.yaml", config_yaml)
            write_json(self.path / "provenance.json", provenance)
            try:
                yield attempt
            finally:
                log.close_file(handler)

    def _next_attempt(self) -> int:
        """One more than the attempts before; makes its log folder and points `latest` to it."""
        logs = self.path / "logs"
        logs.mkdir(exist_ok=True)
        numbers = [int(p.name.split("_")[1]) for p in logs.glob("attempt_*") if p.name.split("_")[1].isdigit()]
        attempt = max(numbers, default=0) + 1
        (logs / f"attempt_{attempt}").mkdir()
        link = logs / f".latest.{attempt}"
        link.unlink(missing_ok=True)
        link.symlink_to(f"attempt_{attempt}")
        os.replace(link, logs / "latest")
        return attempt
