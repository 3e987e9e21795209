"""The table on the terminal that a pipeline ends with."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from ray_jobs.store.run_dir import RunDir

KINDS = ("reasoning", "content", "tool_call", "marker", "stop")
"""Segment kinds in which a verify step can begin, in the order in which people read them."""


def show(run_dir: RunDir, seconds: dict[str, float], console: Console | None = None) -> None:
    """Print stages, what they made and how long this command took for them."""
    table = Table(title=f"run {run_dir.path.name}", title_justify="left")
    for name, justify in (("stage", "left"), ("made", "left"), ("seconds", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for stage, line in lines(run_dir).items():
        table.add_row(stage, line, f"{seconds.get(stage, 0.0):.1f}")
    (console or Console()).print(table)


def lines(run_dir: RunDir) -> dict[str, str]:
    """One line a stage, from its COMPLETE file."""
    made = {stage: run_dir.complete(stage) for stage in ("generate", "train", "export", "evaluate")}
    return {stage: _LINES[stage](facts) if facts else "-" for stage, facts in made.items()}


def _generate(facts: dict[str, Any]) -> str:
    return f"{facts['rows']} prompts = {facts['ok']} ok + {facts['failed']} failed"


def _train(facts: dict[str, Any]) -> str:
    last = facts["last"]
    accuracy = last["accuracy"][0]
    return (
        f"{facts['rows']} rows, {facts['n_steps']} steps, loss {last['loss']:.3f}, first-token accuracy {accuracy:.2f}"
    )


def _export(facts: dict[str, Any]) -> str:
    return f"{facts['parameters'] / 1e6:.1f} M parameters, {facts['bytes'] / 1e6:.1f} MB"


def _evaluate(facts: dict[str, Any]) -> str:
    summary = facts["summary"]
    offline = summary["offline"]
    if offline["interval_95"] is None:
        return f"{offline['prompts']} held-out prompts, no answer longer than one token"
    low, high = offline["interval_95"]
    # a summary of an earlier version has no kinds; it is measured anew by the next evaluate
    kinds = offline.get("by_segment", {})
    in_order = {kind: kinds[kind] for kind in KINDS if kind in kinds}
    return (
        f"accepted length {offline['accepted_length']:.3f} [{low:.3f}, {high:.3f}] at {summary['draft_tokens']} "
        f"draft tokens, {offline['prompts']} held-out prompts ({_each(offline['by_source'])}); "
        f"by segment: {_each(in_order) or '-'}{_others(summary)}{_served(summary.get('served'))}"
    )


def _others(summary: dict[str, Any]) -> str:
    """The figure for each further number of draft tokens."""
    found = summary.get("offline_by_draft_tokens", {})
    lengths = {f"{k} draft tokens": found[k]["accepted_length"] for k in found if int(k) != summary["draft_tokens"]}
    return f"; at {_each(lengths)}" if lengths else ""


def _served(served: dict[str, Any] | None) -> str:
    """The figures of the real servers."""
    if served is None:
        return ""
    off, on = served["tokens_per_s"]["off"], served["tokens_per_s"]["on"]
    speeds = ", ".join(f"{off[n]:.0f} and {on[n]:.0f} at concurrency {n}" for n in off)
    return (
        f"; served: {served['accepted_length']:.3f} (offline on the same {served['prompts']} rows "
        f"{served['offline_accepted_length']:.3f}), {served['identical']} of {served['total']} outputs identical"
        f"{_ties(served)}, tokens/s without and with the drafter {speeds}"
    )


def _ties(served: dict[str, Any]) -> str:
    ties = served["ties"]
    elsewhere = served["total"] - served["identical"] - ties
    parts = [f"{ties} differ at a tie"] * bool(ties) + [f"{elsewhere} differ elsewhere"] * bool(elsewhere)
    return "".join(f", {part}" for part in parts)


def _each(figures: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in figures.items() if value is not None)


_LINES = {"generate": _generate, "train": _train, "export": _export, "evaluate": _evaluate}
