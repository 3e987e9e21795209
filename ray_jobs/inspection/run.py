"""What `python -m ray_jobs.inspect` does: find the run, say how it stands, show what was asked for."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.compute as pc
from rich.console import Console

from ray_jobs.config.schema import Config
from ray_jobs.config.schema_inspect import InspectConfig, InspectOrder, InspectShow, InspectStage
from ray_jobs.core.errors import ConfigError
from ray_jobs.core.files import read_json, read_json_lines
from ray_jobs.inspection import counts, faults, reading, view
from ray_jobs.inspection.decoder import Decoder
from ray_jobs.inspection.filters import to_filter
from ray_jobs.inspection.view import line
from ray_jobs.inspection.visible import one_line
from ray_jobs.store.run_dir import RunDir
from ray_jobs.store.sample_set import SampleSet

RUNS_NAMED = 10
PIPED_COLUMNS = 1000


@dataclass(frozen=True)
class State:
    """How a data set stands, in ids."""

    prompts: dict[str, str]
    """Source of each row_id to answer."""
    committed: set[str]
    failures: list[reading.Failure]

    @property
    def pending(self) -> list[str]:
        """row_ids that are neither answered nor failed."""
        failed = {failure.row_id for failure in self.failures}
        return [row_id for row_id in self.prompts if row_id not in self.committed and row_id not in failed]


def run(cfg: Config, run_dir: RunDir, console: Console | None = None) -> None:
    """Print what the section `inspect` asks for; writes nothing and takes no lock.

    Raises:
        ConfigError: no such run, no such row, or a filter that cannot be read.
    """
    console = console or make_console()
    settings = cfg.inspect
    where = None if settings.where is None else to_filter(settings.where)
    _check_there(run_dir)
    store = run_dir.greedy if settings.stage is InspectStage.greedy else run_dir.samples
    with reading.unchanged(store):
        state = read_state(store)
    line(console, _summary(run_dir, settings, state))
    if settings.show is InspectShow.rows:
        _rows(cfg, run_dir, store, where, state, console)
    elif settings.show is InspectShow.counts:
        _counts(store, settings, where, state, console)
    elif settings.show is InspectShow.failures:
        _failures(settings, state, console)
    else:
        _dropped(store, settings, console)


def make_console() -> Console:
    """Standard output, without markup, emoji codes or guesses at what a word is; wide where nobody looks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a terminal of another encoding must not end the command
        sys.stdout.reconfigure(errors="backslashreplace")
    width = None if sys.stdout.isatty() else PIPED_COLUMNS
    return Console(markup=False, emoji=False, highlight=False, width=width)


def read_state(store: SampleSet) -> State:
    """Samples first: a row that is answered meanwhile is then pending at most, never missing."""
    committed = set(reading.scan(store, ["row_id"], None)["row_id"].to_pylist())
    table = store.prompt_table(["row_id", "source"])
    prompts = dict(zip(table["row_id"].to_pylist(), table["source"].to_pylist(), strict=True))
    return State(prompts, committed, reading.failures(store, committed))


def _check_there(run_dir: RunDir) -> None:
    if run_dir.path.is_dir():
        return
    root = run_dir.path.parent
    names = sorted(path.parent.name for path in root.glob("*/config.yaml"))
    more = ", ..." if len(names) > RUNS_NAMED else ""
    there = f"Runs there: {', '.join(names[:RUNS_NAMED])}{more}." if names else "Set run.root or $EAGLE_RAY_RUNS."
    raise ConfigError("run.name", run_dir.path.name, f"there is no such run in {root}", there)


def _summary(run_dir: RunDir, settings: InspectConfig, state: State) -> str:
    """The first line of every view."""
    status = read_json(run_dir.path / "status.json") or {}
    stands = f"{status['stage']} is {status['state']}" if {"stage", "state"} <= status.keys() else "not started"
    name = run_dir.path.name if settings.stage is InspectStage.samples else f"{run_dir.path.name}, evaluation/greedy"
    numbers = f"{len(state.committed)} ok + {len(state.failures)} failed + {len(state.pending)} pending"
    return one_line(f"run {name}: {len(state.prompts)} prompts = {numbers}; {stands}")


def _rows(
    cfg: Config, run_dir: RunDir, store: SampleSet, where: pc.Expression | None, state: State, console: Console
) -> None:
    settings = cfg.inspect
    if settings.row_id is not None:
        begins = pc.starts_with(pc.field("row_id"), settings.row_id)  # type: ignore[reportAttributeAccessIssue]
        where = begins if where is None else where & begins
    found = reading.find(store, where, settings.order, settings.rows)
    if not found.places:
        line(console, _nothing(settings, state))
        return
    of = f" of {found.matches}" if found.matches > len(found.places) else ""
    order = "" if settings.order is InspectOrder.stored else f", {settings.order.value} first"
    kind = "row(s)" if where is None else "matching row(s)"
    line(console, f"{len(found.places)}{of} {kind}{order}")
    rows = view.RowView(settings, _decoder(cfg, run_dir), console)
    for row in reading.read_rows(store, found.places, view.columns(settings)):
        rows.show(row)


def _decoder(cfg: Config, run_dir: RunDir) -> Decoder:
    """The vocabulary of the model that made the rows, which need not be the configuration's."""
    made_by = read_json(run_dir.path / "fingerprint.json") or {}
    return Decoder(made_by.get("model", cfg.target.model), made_by.get("revision", cfg.target.revision))


def _nothing(settings: InspectConfig, state: State) -> str:
    """One line for why no row can be shown.

    Raises:
        ConfigError: the run has no such row_id.
    """
    if settings.row_id is not None:
        return _no_row(settings.row_id, settings, state)
    if state.committed:
        return f"no row matches inspect.where={one_line(settings.where or '', 200)}"
    if state.failures:
        return "no row was answered; inspect.show=failures says why"
    return "no row is committed yet"


def _no_row(row_id: str, settings: InspectConfig, state: State) -> str:
    failed = [failure for failure in state.failures if failure.row_id.startswith(row_id)]
    if any(known.startswith(row_id) for known in state.committed):
        return f"no row that begins with {one_line(row_id)} matches inspect.where={one_line(settings.where or '', 200)}"
    if failed:
        first = failed[0]
        see = f"inspect.show=failures inspect.row_id={first.row_id}"
        return one_line(f"row {first.row_id} failed: {first.error_class}; see {see}")
    for known in state.pending:
        if known.startswith(row_id):
            return f"row {known} is not answered yet"
    raise ConfigError("inspect.row_id", one_line(row_id, 80), "no row of this run begins so", "Leave it out to look.")


def _counts(
    store: SampleSet, settings: InspectConfig, where: pc.Expression | None, state: State, console: Console
) -> None:
    prompts: dict[str, Counter[str]] = {}
    if where is None:
        prompts["prompts"] = Counter(state.prompts.values())
        prompts["failed"] = Counter(failure.source for failure in state.failures)
        prompts["pending"] = Counter(state.prompts[row_id] for row_id in state.pending)
    else:
        line(console, f"rows that match inspect.where={one_line(settings.where or '', 200)}")
    line(console, "")
    counts.show(reading.scan(store, counts.COLUMNS, where), prompts, console)


def _failures(settings: InspectConfig, state: State, console: Console) -> None:
    begins = settings.row_id or ""
    found: Sequence[reading.Failure] = [f for f in state.failures if f.row_id.startswith(begins)]
    if state.failures and not found:
        raise ConfigError("inspect.row_id", one_line(begins, 80), "no failed row begins so", "Leave it out to see all.")
    if not found:
        line(console, "no prompt has failed")
    faults.show_failures(found, settings, console)


def _dropped(store: SampleSet, settings: InspectConfig, console: Console) -> None:
    path = store.prompts / "dropped.jsonl"
    records = list(read_json_lines(path)) if path.exists() else []
    line(console, f"{len(records)} row(s) of the prompt files were no prompts")
    faults.show_dropped(records, settings, console)
