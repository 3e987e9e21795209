"""Prompt files to prompts/: read, normalise, pick, render to ids."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ray_jobs.config.schema import DataConfig, SourceConfig
from ray_jobs.core.errors import ConfigError
from ray_jobs.store.sample_set import SampleSet, write_dropped
from ray_jobs.text.chat import Chat, PromptError
from ray_jobs.text.prompts import Dropped, Prompt, UniqueCounts, read_source, row_id, unique

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Picked:
    """The prompts of a run, in the order to ask, and what was left out."""

    rows: list[tuple[Prompt, int]]
    """Prompt and the number of its sample."""
    dropped: list[dict[str, Any]]
    duplicates: int
    by_source: dict[str, int]


def sources_of(data: DataConfig) -> list[SourceConfig]:
    """The files to read: the user's own, or else the experiment's."""
    if not data.files:
        return data.sources
    return [SourceConfig(name=Path(path).stem.replace("*", "all"), path=path) for path in data.files]


def pick(data: DataConfig) -> Picked:
    """Read the sources in turn, one prompt each, up to the limit: a larger limit later is a superset.

    Raises:
        ConfigError: a file is missing, or there is no usable prompt in all of them.
    """
    dropped: list[dict[str, Any]] = []
    counts = UniqueCounts()
    in_turn = _in_turn([_usable(source, dropped) for source in sources_of(data)])
    picked = list(islice(unique(in_turn, data.duplicates, counts), data.limit))
    if not picked:
        action = f"Look at the reasons: {Counter(d['reason'] for d in dropped).most_common(3)}."
        raise ConfigError("data.files", [s.path for s in sources_of(data)], "no usable prompt in them", action)
    each = data.samples_per_prompt
    rows = [(prompt, copy * each + k) for prompt, copy in picked for k in range(each)]
    return Picked(rows, dropped, counts.duplicates, dict(Counter(prompt.source for prompt, _ in picked)))


def _in_turn(streams: list[Iterator[Prompt]]) -> Iterator[Prompt]:
    """One of each stream in turn, until all are empty."""
    while streams:
        for stream in list(streams):
            prompt = next(stream, None)
            if prompt is None:
                streams.remove(stream)
            else:
                yield prompt


def _usable(source: SourceConfig, dropped: list[dict[str, Any]]) -> Iterator[Prompt]:
    """The prompts of one source, up to its own limit; what is none goes to `dropped`."""

    def prompts() -> Iterator[Prompt]:
        for item in read_source(source.path, name=source.name):
            if isinstance(item, Dropped):
                dropped.append(asdict(item))
            else:
                yield item

    return islice(prompts(), source.rows)


def add_to(store: SampleSet, picked: Picked, chat: Chat) -> int:
    """Render the prompts that `store` has not yet, and append them; returns how many were new."""
    write_dropped(store.prompts, picked.dropped)
    known = set(store.prompt_ids_of_rows())
    new = [(p, k) for p, k in picked.rows if row_id(p.prompt_id, 0, k) not in known]
    return store.add_prompts([_row(prompt, sample, chat) for prompt, sample in new])


def _row(prompt: Prompt, sample: int, chat: Chat) -> dict[str, Any]:
    """One row of prompts/; a conversation that the template refuses has null ids and the template's message."""
    ids, error = None, None
    try:
        ids = chat.render_ids(prompt.messages, prompt.tools)
    except PromptError as refused:
        error = str(refused)
    return {
        "row_id": row_id(prompt.prompt_id, 0, sample),
        "prompt_id": prompt.prompt_id,
        "turn": 0,
        "sample": sample,
        "source": prompt.source,
        "messages": json.dumps(prompt.messages, ensure_ascii=False, sort_keys=True),
        "tools": None if prompt.tools is None else json.dumps(prompt.tools, ensure_ascii=False, sort_keys=True),
        "prompt_ids": ids,
        "error": error,
    }
