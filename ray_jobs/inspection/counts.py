"""The table of `inspect.show=counts`: how many rows of each source are how, from small columns alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from rich.cells import cell_len
from rich.console import Console

from ray_jobs.core.schemas import CLOSED, FLAGS
from ray_jobs.inspection.view import line
from ray_jobs.inspection.visible import one_line

TOTAL = "all"
_TOKENS = {"prompt": "n_prompt_tokens", "output": "n_output_tokens", "reasoning": "n_reasoning_tokens"}
_LIGHT = ("row_id", "source", "closed", "flags", "finish_reason", *_TOKENS.values())

COLUMNS: dict[str, pc.Expression] = {
    **{name: pc.field(name) for name in _LIGHT},
    "has_calls": pc.field("tool_calls").is_valid(),
}
"""What the table is counted from; of `tool_calls` only whether it is null is kept."""

Line = tuple[str, Sequence[int]]
"""A label and one number a column of the table."""


def show(samples: pa.Table, prompts: Mapping[str, Counter[str]], console: Console) -> None:
    """Print the table; `prompts` has counts by source of what is no row of samples/ (prompts, failed, pending)."""
    sources = sorted({*samples["source"].to_pylist(), *(name for counts in prompts.values() for name in counts)})
    parts = [samples, *(samples.filter(pc.field("source") == name) for name in sources)]
    groups = [
        [[label, *(f"{value:,}" for value in values)] for label, values in group]
        for group in _groups(parts, prompts, sources)
    ]
    head = ["", TOTAL, *(one_line(name, 40) for name in sources)]
    cells = [head, *(row for group in groups for row in group)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    line(console, _aligned(head, widths), "bold")
    for group in groups:
        for row in group:
            line(console, _aligned(row, widths))
        if group is not groups[-1]:
            line(console, "")


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """The label at the left, numbers at the right of their columns; plain, so that a pipe gets the same."""
    label, *numbers = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
    return "  ".join([row[0] + label, *(gap + cell for gap, cell in zip(numbers, row[1:], strict=True))])


def _groups(
    parts: Sequence[pa.Table], prompts: Mapping[str, Counter[str]], sources: Sequence[str]
) -> Iterator[list[Line]]:
    """Lines that belong together; the first number is that of all sources."""
    made = {name: [counts.total(), *(counts[source] for source in sources)] for name, counts in prompts.items()}
    first = [("prompts", made["prompts"])] if made else []
    yield [*first, ("ok", [part.num_rows for part in parts]), *((n, v) for n, v in made.items() if n != "prompts")]
    yield [
        ("with a thought block", [sum(c != "absent" for c in part["closed"].to_pylist()) for part in parts]),
        ("reasoning not empty", [_count(part, pc.field("n_reasoning_tokens") > 0) for part in parts]),
        ("with tool calls", [_count(part, pc.field("has_calls")) for part in parts]),
    ]
    yield _words("closed", CLOSED, [Counter(part["closed"].to_pylist()) for part in parts])
    yield _words("flag", FLAGS, [Counter(_flat(part["flags"].to_pylist())) for part in parts])
    yield _words("finish", ("stop", "length"), [Counter(part["finish_reason"].to_pylist()) for part in parts])
    for name, column in _TOKENS.items():
        yield _tokens(name, [part[column] for part in parts])


def _count(part: pa.Table, condition: pc.Expression) -> int:
    return part.filter(condition).num_rows


def _flat(lists: Iterable[list[str]]) -> Iterator[str]:
    return (word for words in lists for word in words)


def _words(label: str, known: Sequence[str], counts: Sequence[Counter[str]]) -> list[Line]:
    """A line a word: all that are known, and others that the data has."""
    others = sorted({word for counter in counts for word in counter} - {*known})
    return [(f"{label} {one_line(word, 40)}", [counter[word] for counter in counts]) for word in (*known, *others)]


def _tokens(name: str, columns: Sequence[pa.ChunkedArray]) -> list[Line]:
    """Sum and quantiles of a column of counts; a quantile is the value of a row, the upper one of two."""
    lines: list[Line] = [(f"{name} tokens", [sum(column.to_pylist()) for column in columns])]
    for label, at in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
        lines.append((f"{name} tokens a row, {label}", [_quantile(column, at) for column in columns]))
    return lines


def _quantile(column: pa.ChunkedArray, at: float) -> int:
    values = sorted(column.to_pylist())
    return values[min(len(values) - 1, int(at * len(values)))] if values else 0
