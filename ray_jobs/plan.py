"""`dry_run=true`: the stages, what is done and what is to do, and the bill; reads, and starts nothing. Layer 4."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ray_jobs import stages
from ray_jobs.config.estimate import Bill, estimate
from ray_jobs.config.schema import Config, FeatureMode
from ray_jobs.core.errors import ConfigError
from ray_jobs.core.files import read_json
from ray_jobs.evaluation.table import lines
from ray_jobs.generation import prompts
from ray_jobs.store.run_dir import RunDir


def show(cfg: Config, names: Sequence[str], console: Console | None = None) -> int:
    """Print the plan; exit code 0."""
    console = console or Console()
    folder = stages.run_dir(cfg)
    counted, note = _count(cfg)
    bill = estimate(cfg, counted)
    console.print(f"run {cfg.run.name} in {folder.path}", soft_wrap=True)
    console.print(f"prompts: {note}", soft_wrap=True)
    console.print(_stages(cfg, folder, names, bill))
    console.print(_bill(bill))
    if cfg.features.mode is FeatureMode.online and "train" in names:
        console.print(
            "train: features.mode=online is billed only; this version trains with features.mode=in_process.",
            soft_wrap=True,
        )
    return 0


def _count(cfg: Config) -> tuple[int | None, str]:
    """Usable prompts in the files, if they are here, and a line on where the number is from."""
    try:
        picked = prompts.pick(cfg.data)
    except ConfigError as error:
        return None, f"from the configuration; the files were not counted ({error})"
    counted = sum(picked.by_source.values())
    return counted, f"{counted} counted in the files, {len(picked.dropped)} row(s) dropped, {picked.duplicates} equal"


def _stages(cfg: Config, folder: RunDir, names: Sequence[str], bill: Bill) -> Table:
    table = Table(title="stages", title_justify="left")
    for column in ("stage", "done", "to do"):
        table.add_column(column)
    made = lines(folder)
    for name in names:
        done = made[name] if folder.complete(name) else _partly(folder, name)
        table.add_row(name, done, _to_do(cfg, folder, name, bill))
    return table


def _partly(folder: RunDir, name: str) -> str:
    """What an unfinished stage has so far."""
    if name == "generate" and folder.samples.checkpoint.is_dir():
        return f"{len(folder.samples.committed())} rows"
    if name == "train" and (folder.checkpoints / "checkpoint_manager_snapshot.json").exists():
        status = read_json(folder.path / "status.json") or {}
        return f"up to step {status.get('done', '?')}" if status.get("stage") == "train" else "begun"
    return "nothing"


def _to_do(cfg: Config, folder: RunDir, name: str, bill: Bill) -> str:
    if name == "generate":
        have = len(folder.samples.committed()) + folder.samples.failure_table(["row_id"]).num_rows
        return "?" if bill.rows is None else f"{max(0, bill.rows - have):,} rows"
    if folder.complete(name):
        return "nothing"
    return {
        "train": f"{_number(bill.train_tokens)} tokens, {cfg.train.epochs} epoch(s)",
        "export": "one folder",
        "evaluate": f"up to {cfg.evaluate.prompts} held-out prompts",
    }[name]


def _bill(bill: Bill) -> Table:
    table = Table(title="bill (estimates)", title_justify="left", show_header=False)
    features = "stored nowhere, streamed" if not bill.features_stored else "in memory of the training workers"
    rows = {
        "rows": _number(bill.rows),
        "output tokens": _number(bill.output_tokens),
        "training tokens": _number(bill.train_tokens),
        "samples/": _bytes(bill.sample_bytes),
        "features": f"{_bytes(bill.feature_bytes)} ({_number(bill.feature_bytes_per_token)} B a token; {features})",
        "GPUs": f"{bill.gpus} ({bill.generate_gpus} to generate, {bill.train_gpus} to train)",
        "hours": f"{_hours(bill.generate_hours)} to generate, {_hours(bill.train_hours)} to train",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _hours(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def _bytes(value: int | None) -> str:
    if value is None:
        return "?"
    size = float(value)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} PB"
