"""A run folder with a bit of everything, and the view of it as plain text."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from ray_jobs.config.schema import Config, DataConfig, RunConfig, TargetConfig
from ray_jobs.config.schema_inspect import InspectConfig
from ray_jobs.inspection import run as inspection
from ray_jobs.store.run_dir import RunDir
from tests.sample_rows import TOKENIZER, Pieces, ask_only, commit, sample

CUT: Pieces = (("reasoning", "on and on " * 30),)
CALLS: Pieces = (
    ("reasoning", "look it up"),
    ("marker", "</think>"),
    ("content", "Let me see."),
    ("tool_call", '<|call|>weather{"city": "Paris"}<|end_call|>'),
    ("content", "Done."),
    ("stop", "<|im_end|>"),
    ("excess", "junk"),
)
ONE_CALL = [{"index": 0, "name": "weather", "arguments": '{"city": "Paris"}', "parsed": {"city": "Paris"}}]


def config(run: RunDir, **settings: Any) -> Config:
    """A tree for this run, with these settings of the section `inspect`."""
    return Config(
        run=RunConfig(name=run.path.name, root=str(run.path.parent)),
        data=DataConfig(files=["none.jsonl"]),
        target=TargetConfig(model="/no/such/model"),
        inspect=InspectConfig(**settings),
    )


def look(run: RunDir, *, colour: bool = False, **settings: Any) -> str:
    """What the command prints for these settings of the section `inspect`."""
    file = io.StringIO()
    console = Console(
        file=file,
        markup=False,
        emoji=False,
        highlight=False,
        width=inspection.PIPED_COLUMNS,
        force_terminal=colour,
        color_system="standard" if colour else None,
    )
    inspection.run(config(run, **settings), run, console)
    return file.getvalue()


def headers(said: str) -> list[int]:
    """The numbers of the rows that were shown, in order."""
    return [int(found, 16) for found in re.findall(r"^== ([0-9a-f]{32})-0-0 ", said, re.MULTILINE)]


def empty_run(tmp_path: Path) -> RunDir:
    """A folder, and the model that is said to answer, with its vocabulary."""
    run, model = RunDir(tmp_path / "runs" / "made"), tmp_path / "model"
    run.path.mkdir(parents=True)
    model.mkdir()
    TOKENIZER.save(str(model / "tokenizer.json"))
    (run.path / "fingerprint.json").write_text(json.dumps({"model": str(model), "revision": None}))
    return run


def full_run(tmp_path: Path) -> RunDir:
    """Six rows in two files, one failure of each of two classes, one prompt that is not answered."""
    run = empty_run(tmp_path)
    store = run.samples
    calls = json.dumps(ONE_CALL)
    commit(store, [sample(0), sample(1, CUT, closed="never", flags=["truncated"], finish_reason="length")], "a")
    commit(
        store,
        [
            sample(2, CALLS, tool_calls=calls, flags=["ids_after_stop"], source="tools"),
            sample(3, [("content", "No thought."), ("stop", "<|im_end|>")]),
            sample(4, CUT, closed="never", flags=["truncated", "repetition"], finish_reason="length", source="tools"),
            sample(5),
        ],
        "b",
    )
    ask_only(store, 6, prompt_ids=False)
    rejected = ask_only(store, 7, source="tools")
    ask_only(store, 8)
    store.outcomes.mkdir(parents=True)
    outcome = {"row_id": rejected, "error_class": "Rejected", "error": "too long", "attempts": 1, "last_reply": "{}"}
    (store.outcomes / "1-0.jsonl").write_text(json.dumps(outcome) + "\n")
    store.write_failures(set(store.committed()))
    run.write_status(stage="generate", state="running")
    return run
