"""What a run was: target, settings, software and times, as pairs of a name and a text."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from ray_jobs.config.schema import Config
from ray_jobs.core.files import read_json, read_json_lines
from ray_jobs.evaluation.tally import Tally
from ray_jobs.store.run_dir import RunDir

STAGES = ("generate", "train", "export", "evaluate")
MOST_SERVERS = 8

Pairs = list[tuple[str, str]]


def run_facts(cfg: Config, run_dir: RunDir, counted: Tally) -> dict[str, Pairs]:
    """Groups of pairs, in the order in which the page shows them; `-` where the run does not say."""
    return {
        "Target": _target(cfg, run_dir),
        "Run": _run(cfg, run_dir, counted),
        "Drafter": _drafter(run_dir),
        "Time": _times(run_dir, counted),
        "Software": _software(run_dir),
    }


def _target(cfg: Config, run_dir: RunDir) -> Pairs:
    made = read_json(run_dir.path / "fingerprint.json") or {}
    thinking = {None: "the template's default", True: "on", False: "off"}[cfg.target.thinking]
    return [
        ("model", cfg.target.model),
        ("revision", cfg.target.revision or "-"),
        ("markers family", cfg.target.markers),
        ("thinking switch", thinking),
        ("template hash", made.get("template") or "-"),
        ("tokenizer hash", made.get("tokenizer") or "-"),
        ("context length", f"{made['context_length']:,} ids" if made.get("context_length") else "-"),
        ("sampling", _listed(made.get("sampling") or {})),
    ]


def _run(cfg: Config, run_dir: RunDir, counted: Tally) -> Pairs:
    servers = [f"{name} ({version}): {rows:,} rows" for (name, version), rows in counted.servers.most_common()]
    more = f"; {len(servers) - MOST_SERVERS} more" if len(servers) > MOST_SERVERS else ""
    return [
        ("replicas", f"{cfg.replicas.n_replicas} ({cfg.replicas.kind.value}), {cfg.replicas.slots} slots each"),
        ("who answered", "; ".join(servers[:MOST_SERVERS]) + more or "-"),
        ("seed", str(cfg.run.seed)),
        ("held-out share of the prompts", f"{cfg.data.held_out_share:g}"),
        ("attempts (commands on this run)", str(n_attempts(run_dir))),
        ("folder", str(run_dir.path)),
    ]


def _drafter(run_dir: RunDir) -> Pairs:
    trained, exported = run_dir.complete("train") or {}, run_dir.complete("export") or {}
    rows = f"{trained['rows']:,} rows, {trained['tokens']:,} ids" if trained else "-"
    covered = f"{trained['coverage']:.2%} of the trained ids" if "coverage" in trained else "-"
    size = f"{exported['parameters']:,} parameters, {exported['bytes'] / 1e6:,.1f} MB" if exported else "-"
    return [
        ("trained on", rows),
        ("optimiser steps", f"{trained['n_steps']:,}" if trained else "-"),
        ("draft vocabulary covers", covered),
        ("export", size),
        ("weights sha256", exported.get("sha256", "-")),
        ("serve it", exported.get("serve") or "-"),
    ]


def n_attempts(run_dir: RunDir) -> int:
    """Commands that opened the run so far."""
    return len(list((run_dir.path / "logs").glob("attempt_*")))


def _times(run_dir: RunDir, counted: Tally) -> Pairs:
    """When things happened; seconds of training come from its log, which has not every step."""
    return [
        ("first request", _moment(counted.first_s)),
        ("last answer", _moment(counted.last_s)),
        ("generating, pauses included", _span(counted.first_s, counted.last_s)),
        ("output ids a second, pauses included", _rate(counted)),
        ("training, about", _training_time(run_dir)),
        ("greedy answers of the evaluation", _greedy_time(run_dir)),
    ]


def _rate(counted: Tally) -> str:
    if counted.first_s is None or counted.last_s is None:
        return "-"
    return f"{counted.lengths['output'].sum() / max(counted.last_s - counted.first_s, 1e-3):,.1f}"


def _training_time(run_dir: RunDir) -> str:
    records = list(read_json_lines(run_dir.metrics)) if run_dir.metrics.exists() else []
    if not records:
        return "-"
    mean_s = sum(r["tokens"] / max(r["tokens_per_s"], 1e-9) for r in records) / len(records)
    return duration(mean_s * (records[-1]["step"] + 1))


def _greedy_time(run_dir: RunDir) -> str:
    table = run_dir.greedy.sample_table(["started_at", "latency_s"])
    started_s = [moment.timestamp() for moment in table["started_at"].to_pylist()]
    ended_s = [start + took for start, took in zip(started_s, table["latency_s"].to_pylist(), strict=True)]
    return _span(min(started_s, default=None), max(ended_s, default=None))


def _software(run_dir: RunDir) -> Pairs:
    made: dict[str, Any] = read_json(run_dir.path / "provenance.json") or {}
    packages = {name: version for name, version in made.get("packages", {}).items() if version}
    return [
        ("python", made.get("python") or "-"),
        *packages.items(),
        ("platform", made.get("platform") or "-"),
        ("commit", made.get("commit") or "-"),
        ("last command", " ".join(made.get("command") or []) or "-"),
    ]


def duration(seconds: float) -> str:
    """A span as people say it: `48.2 s`, `12 min 5 s`, `31 h 7 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def _span(first_s: float | None, last_s: float | None) -> str:
    return "-" if first_s is None or last_s is None else duration(last_s - first_s)


def _moment(at_s: float | None) -> str:
    return "-" if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{k}={json.dumps(v)}" for k, v in values.items()) or "-"
