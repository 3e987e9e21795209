"""What did not become an answer: failed prompts by class, and rows of the prompt files by reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from ray_jobs.config.schema_inspect import InspectConfig
from ray_jobs.inspection.reading import Failure
from ray_jobs.inspection.view import line
from ray_jobs.inspection.visible import one_line, shorten, visible

IDS_SHOWN = 50
"""row_ids listed of one class, unless `inspect.max_chars=0` asks for everything."""


def show_failures(found: Sequence[Failure], settings: InspectConfig, console: Console) -> None:
    """Counts by class; of each class examples with error and last reply, and the row_ids."""
    classes: dict[str, list[Failure]] = defaultdict(list)
    for failure in sorted(found, key=lambda failure: failure.row_id):
        classes[failure.error_class].append(failure)
    for name, members in sorted(classes.items(), key=lambda item: (-len(item[1]), item[0])):
        line(console, "")
        line(console, f"== {one_line(name, 80)}: {len(members)} row(s); {_by_source(members)}", "bold")
        for failure in members[: settings.rows]:
            _example(failure, settings.max_chars, console)
        _ids(members, everything=settings.max_chars == 0, console=console)


def _by_source(members: Sequence[Failure]) -> str:
    counts = Counter(failure.source for failure in members)
    return ", ".join(f"{one_line(source, 40)} {count}" for source, count in sorted(counts.items()))


def _example(failure: Failure, max_chars: int, console: Console) -> None:
    head = f"  {failure.row_id}  source={failure.source}  attempts={failure.attempts}"
    line(console, one_line(head), "bold")
    _text("error", failure.error, max_chars, console)
    if failure.last_reply is None:
        line(console, "    last reply: none")
    else:
        _text("last reply", failure.last_reply, max_chars, console)


def _text(label: str, text: str, max_chars: int, console: Console) -> None:
    """A text from outside, on as many lines as it has, each below its label."""
    shown, cut = shorten(text, max_chars)
    first, *rest = visible(shown).split("\n")
    line(console, "\n".join([f"    {label}: {first}", *(f"      {part}" for part in rest)]))
    if cut:
        line(console, f"      ... {cut} more character(s), inspect.max_chars={max_chars}", "dim")


def _ids(members: Sequence[Failure], *, everything: bool, console: Console) -> None:
    shown = members if everything else members[:IDS_SHOWN]
    line(console, f"  row_ids: {' '.join(one_line(failure.row_id) for failure in shown)}")
    if len(members) > len(shown):
        line(console, f"    ... {len(members) - len(shown)} more; inspect.max_chars=0 lists them all", "dim")


def show_dropped(records: Sequence[dict[str, Any]], settings: InspectConfig, console: Console) -> None:
    """Counts by reason, with examples."""
    reasons: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        reasons[str(record.get("reason"))].append(record)
    for reason, members in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        line(console, "")
        shown, cut = shorten(reason, settings.max_chars)
        more = f" ... {cut} more character(s)" if cut else ""
        line(console, f"== {len(members)} row(s): {one_line(shown)}{more}", "bold")
        for record in members[: settings.rows]:
            line(console, f"  {one_line(str(record.get('file')))}:{record.get('line')}")
        if len(members) > settings.rows:
            line(console, f"  ... {len(members) - settings.rows} more, inspect.rows={settings.rows}", "dim")
