"""Prompts from files: one record each, with an id that depends on nothing but what is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_jobs.core.errors import ConfigError
from ray_jobs.text.forms import FORMS, RowError, read_row
from ray_jobs.text.readers import find_files, read_rows


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation that ends where the target is to go on."""

    prompt_id: str
    source: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that gave no prompt: file, line (or row or array place, from 1) and reason."""

    file: str
    line: int
    reason: str


@dataclass(slots=True)
class UniqueCounts:
    """What `unique` has seen so far; `duplicates` are those beyond the first of equal prompts."""

    seen: int = 0
    duplicates: int = 0


def make_prompt_id(source: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
    """32 hex digits: a hash of source, messages and tools as canonical JSON, and of nothing else."""
    # Escaped ASCII with sorted keys: the same bytes in every process and for every order of keys.
    canonical = json.dumps(
        {"source": source, "messages": messages, "tools": tools}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:32]


def row_id(prompt_id: str, turn: int, sample: int) -> str:
    """Key of one generation."""
    return f"{prompt_id}-{turn}-{sample}"


def read_source(
    path_or_glob: str | Path, *, name: str | None = None, format: str = "auto"
) -> Iterator[Prompt | Dropped]:
    """Prompts of a file or glob, in file order, and every row that gave none.

    `name` is the source (default: each file's stem). `format` `auto` recognises the form row by row; a name of
    `forms.FORMS` takes that form only. JSON lines and Parquet are streamed.
    Raises ConfigError, before the first row, for a missing file, an unknown type or an unknown format.
    """
    if format not in ("auto", *FORMS):
        raise ConfigError("data.format", format, "no such form of prompts", f"Choose auto or {', '.join(FORMS)}.")
    return _read(find_files(path_or_glob), name, format)


def _read(files: list[Path], name: str | None, form: str) -> Iterator[Prompt | Dropped]:
    for file in files:
        source = name or file.stem
        for line, row in read_rows(file):
            if isinstance(row, str):
                yield Dropped(str(file), line, row)
                continue
            try:
                messages, tools = read_row(row, form)
            except RowError as error:
                yield Dropped(str(file), line, str(error))
            else:
                yield Prompt(make_prompt_id(source, messages, tools), source, messages, tools)


def unique(
    prompts: Iterable[Prompt], duplicates: str = "drop", counts: UniqueCounts | None = None
) -> Iterator[tuple[Prompt, int]]:
    """Each prompt with the number of equal ones before it; `drop` leaves out all but the first, `keep` none.

    With n samples a prompt, the k-th equal prompt (from 0) takes the sample numbers k * n to k * n + n - 1.
    """
    if duplicates not in ("drop", "keep"):
        raise ConfigError("data.duplicates", duplicates, "must be drop or keep", "Choose one of them.")
    counts = UniqueCounts() if counts is None else counts
    before: dict[str, int] = {}
    for prompt in prompts:
        k = before.get(prompt.prompt_id, 0)
        before[prompt.prompt_id] = k + 1
        counts.seen += 1
        counts.duplicates += k > 0
        if k == 0 or duplicates == "keep":
            yield prompt, k


def is_held_out(prompt_id: str, share: float) -> bool:
    """Whether a prompt is kept out of training: a pure function of its id; a larger share keeps those of a smaller."""
    # Hashed again, so that it is independent of whatever else is drawn from the id itself.
    digest = hashlib.sha256(f"held-out:{prompt_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2.0**64
