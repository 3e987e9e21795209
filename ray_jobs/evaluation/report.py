"""report.html: one file that says what a run did and how good its drafter is; nothing in it comes from elsewhere.

What is not done yet has a sentence instead of its figures, so the page can be written at any time. Text of models and
files passes `printable.visible`, everything else the template's own escaping.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ray_jobs.config.schema import Config
from ray_jobs.core.files import read_json, read_json_lines, write_atomic
from ray_jobs.evaluation import examples, tally
from ray_jobs.evaluation.printable import excerpt, visible
from ray_jobs.evaluation.run_facts import STAGES, run_facts
from ray_jobs.evaluation.table import KINDS
from ray_jobs.store.run_dir import RunDir

if TYPE_CHECKING:
    from ray_jobs.evaluation.plots import Plot

QUANTILES = (0, 5, 25, 50, 75, 95, 99, 100)
MOST_REASONS = 20
ERROR_CHARS = 300
CONFIG_CHARS = 20_000
CURVE_ROWS = 12


def report_path(run_dir: RunDir) -> Path:
    """Where the page of a run is."""
    return run_dir.path / "report.html"


def write(cfg: Config, run_dir: RunDir, decode: Callable[[list[int]], str]) -> Path:
    """Write report.html from what the run's folder holds now; `decode` is that of the target's tokenizer."""
    path = report_path(run_dir)
    write_atomic(path, render(page(cfg, run_dir, decode)))
    return path


def page(cfg: Config, run_dir: RunDir, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    """All that the page shows; reads the data set once."""
    counted = tally.count(run_dir.samples)
    chosen = counted.candidates.choose()
    return {
        "name": cfg.run.name,
        "written": datetime.now(UTC),
        "stages": {stage: run_dir.complete(stage) is not None for stage in STAGES},
        "groups": run_facts(cfg, run_dir, counted),
        "config": _config(run_dir),
        "markers": cfg.target.markers,
        "tally": counted,
        "lengths": _quantiles(counted.lengths),
        "histograms": _histograms(counted.lengths),
        "errors": tally.error_classes(run_dir.samples),
        "dropped": tally.dropped_reasons(run_dir.samples),
        "training": _training(run_dir),
        "acceptance": _acceptance(run_dir),
        "examples": examples.read(chosen, decode),
        "constants": {
            "rule": examples.RULE,
            "head": examples.HEAD_CHARS,
            "tail": examples.TAIL_CHARS,
            "segments": examples.MOST_SEGMENTS,
            "error": ERROR_CHARS,
            "reasons": MOST_REASONS,
            "quantiles": QUANTILES,
        },
    }


def render(content: dict[str, Any]) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "v": visible,
        "cut": lambda text, n: visible(_shortened(str(text), n)),
        "n": lambda value: f"{value:,}",
        "fixed": lambda value, digits=3: "-" if value is None else f"{value:,.{digits}f}",
        "share": lambda part, whole: f"{100 * part / whole:.1f} %" if whole else "-",
        "time": lambda moment: moment.strftime("%Y-%m-%d %H:%M:%S UTC"),
    }
    return environment.get_template("report.html.jinja").render(content)


def _shortened(text: str, most: int) -> str:
    cut = excerpt(text, most)
    return f"{cut.head} ... ({cut.left_out:,} more characters)" if cut.left_out else text


def _config(run_dir: RunDir) -> str | None:
    path = run_dir.path / "config.yaml"
    return _shortened(path.read_text(encoding="utf-8"), CONFIG_CHARS) if path.exists() else None


def _quantiles(lengths: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """One line a part of a row: rows that have it, ids in all, mean and quantiles."""
    return [
        {
            "name": name,
            "rows": len(values),
            "ids": int(values.sum()),
            "mean": float(values.mean()) if len(values) else None,
            "quantiles": [int(q) for q in np.percentile(values, QUANTILES, method="nearest")] if len(values) else None,
        }
        for name, values in lengths.items()
    ]


def _histograms(lengths: dict[str, np.ndarray]) -> list[Plot]:
    from ray_jobs.evaluation import plots

    captions = {
        "reasoning": "Reasoning, rows whose thought was opened, without its markers",
        "content": "Content, all rows",
        "output": "Output, all rows, markers and stop id included",
    }
    return [plots.histogram(name, lengths[name], said) for name, said in captions.items() if len(lengths[name])]


def _training(run_dir: RunDir) -> dict[str, Any] | None:
    """Curves and figures of the training, or None before its first logged step."""
    from ray_jobs.evaluation import plots

    records = list(read_json_lines(run_dir.metrics)) if run_dir.metrics.exists() else []
    if not records:
        return None
    held_out = any(record.get("held_out") for record in records)
    squares = "; squares: held-out rows at the end of an epoch" if held_out else ""
    return {
        "facts": run_dir.complete("train"),
        "last": records[-1],
        "rows": plots.thinned(records, CURVE_ROWS),
        "plots": [
            plots.loss_curve(records, f"Line: training loss{squares}"),
            plots.accuracy_curves(records, "Accuracy of each draft step; the number at a line's end is its step"),
        ],
    }


def _acceptance(run_dir: RunDir) -> dict[str, Any] | None:
    """Figures by number of draft tokens, the headline's first, or None before the evaluate stage is done."""
    done = run_dir.complete("evaluate")
    if done is None:
        return None
    summary = done["summary"]
    each = summary["offline_by_draft_tokens"]
    head = str(summary["draft_tokens"])
    columns = [head, *sorted((k for k in each if k != head), key=int)]
    figures = {int(k): each[k] for k in columns}
    return {
        "head": summary["draft_tokens"],
        "figures": figures,
        "sources": sorted(summary["offline"]["by_source"]),
        "kinds": [kind for kind in KINDS if any(kind in f["by_segment"] for f in figures.values())],
        "most": max(figures),
        "serve": (run_dir.complete("export") or {}).get("serve"),
        "sampling": read_json(run_dir.greedy.path / "sampling.json"),
    }
