"""What the commands share: opening a run, and one function a stage. Layer 4.

A stage imports its parts when it runs: a wrong word on the command line is told before torch and Ray are loaded.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ray_jobs.config.load import as_yaml, check_trainable, runs_root
from ray_jobs.config.schema import Config
from ray_jobs.core import log as logs
from ray_jobs.core import provenance
from ray_jobs.core.errors import ConfigError, StageError
from ray_jobs.store.run_dir import RunDir

if TYPE_CHECKING:
    from ray_jobs.generation.ask import Counts
    from ray_jobs.generation.target_text import TargetText
    from ray_jobs.training.run import TrainResult

log = logging.getLogger(__name__)


@dataclass
class OpenRun:
    """A locked run and what its stages share."""

    cfg: Config
    folder: RunDir
    attempt: int
    _closing: ExitStack
    _text: TargetText | None = None
    _connected: bool = False

    @property
    def text(self) -> TargetText:
        """The target's tokenizer and sizes, loaded once."""
        from ray_jobs.generation.target_text import load_target_text

        if self._text is None:
            self._text = load_target_text(self.cfg)
        return self._text

    def check(self) -> None:
        """Refuse to go on with another target than the one that answered."""
        from ray_jobs.generation.target_text import fingerprint

        self.folder.check_fingerprint(fingerprint(self.cfg, self.text))

    def connect(self) -> AbstractContextManager[None]:
        """Ray: started by the first stage that has work for it, ended with the run."""
        from ray_jobs.cluster.connect import connected

        if not self._connected:
            self._closing.enter_context(connected(self.cfg.cluster))
            self._connected = True
        return nullcontext()


def run_dir(cfg: Config) -> RunDir:
    """The run's folder, untouched."""
    return RunDir(runs_root(cfg) / cfg.run.name)


@contextmanager
def open_run(cfg: Config) -> Iterator[OpenRun]:
    """Lock the run's folder for this command."""
    logs.to_console()
    folder = run_dir(cfg)
    with folder.open(as_yaml(cfg), provenance.collect()) as attempt, ExitStack() as closing:
        log.info("run %s, attempt %d", folder.path, attempt)
        try:
            yield OpenRun(cfg, folder, attempt, closing)
        except ConfigError:
            # refused: nothing has happened to the run
            raise
        except BaseException as error:
            folder.update_status(state="failed", error=str(error) or type(error).__name__)
            raise


def generate(run: OpenRun) -> Counts:
    """prompts -> samples/, failures/."""
    from ray_jobs.generation import run as generation

    return generation.run(run.cfg, run.folder, run.text, run.attempt, run.connect)


def train(run: OpenRun) -> TrainResult:
    """samples/ -> checkpoints/."""
    from ray_jobs.training import run as training

    check_trainable(run.cfg)
    run.check()
    return training.run(run.cfg, run.folder, run.connect)


def export(run: OpenRun) -> str:
    """The last checkpoint -> export/, verified; returns the line that serves it."""
    from ray_jobs.drafter.serving import serve_command, verify_export, write_export
    from ray_jobs.target.model_folder import locate
    from ray_jobs.training.checkpoint import read_drafter

    trained = run.folder.complete("train")
    if trained is None:
        raise StageError("there is no complete training. Run the train stage first.")
    line = partial(serve_command, locate(run.cfg.target.model), run.folder.export, run.cfg.evaluate.draft_tokens[0])
    done = run.folder.complete("export")
    if done is not None and done["checkpoint"] == trained["checkpoint"]:
        verify_export(run.folder.export)
        return line()
    saved = read_drafter(run.folder.path / trained["checkpoint"])
    write_export(run.folder.export, saved.state, saved.shape, saved.vocab)
    verify_export(run.folder.export)
    weights = run.folder.export / "model.safetensors"
    facts = {
        "checkpoint": trained["checkpoint"],
        "parameters": saved.shape.n_parameters,
        "bytes": os.path.getsize(weights),
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "serve": line(),
    }
    run.folder.set_complete("export", facts)
    return line()


def evaluate(run: OpenRun) -> dict[str, object]:
    """export/ -> evaluation/summary.json, and the run's report.html, which is written anew each time."""
    from ray_jobs.evaluation import report
    from ray_jobs.evaluation import run as evaluation

    run.check()
    summary = evaluation.run(run.cfg, run.folder, run.text, run.attempt, run.connect)
    report.write(run.cfg, run.folder, run.text.chat.decode)
    return summary
