"""Tool calls of one tool segment: name, raw arguments, parsed arguments, index."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ray_jobs.text.markers import Markers

Decode = Callable[[list[int]], str]

_KIMI_ID = re.compile(r"\s*(?:functions\.)?(?P<name>.+?)(?::(?P<index>\d+))?\s*", re.DOTALL)


def read_calls(ids: Sequence[int], markers: Markers, decode: Decode, *, first: int = 0) -> list[dict[str, Any]]:
    """The calls of one segment as `{"index", "name", "arguments", "parsed"}`.

    `arguments` is the raw text; `parsed` is null where that is not JSON, `name` is null where none can be read.
    `index` is the model's own where the id carries one (`functions.NAME:3`), else counted from `first`.
    """
    calls = []
    for body in _bodies(ids, markers):
        index = first + len(calls)
        if markers.call_format == "id_arguments":
            calls.append(_id_arguments(body, markers, decode, index))
        elif markers.call_format == "json":
            calls.append(_json(decode(body), index))
        else:
            calls.append(_call(index, None, decode(body)))
    return calls


def _bodies(ids: Sequence[int], markers: Markers) -> Iterator[list[int]]:
    """Ids of each call without its begin and end; the whole section's inside where no call begins in it."""
    begins = [at for at, token in enumerate(ids) if token in markers.call_begin]
    if not begins:
        outer = markers.section_begin + markers.section_end
        inside = [token for token in ids if token not in outer]
        if inside:
            yield inside
        return
    for begin, limit in zip(begins, [*begins[1:], len(ids)], strict=True):
        ends = markers.call_end + markers.section_end
        stop = next((at for at in range(begin + 1, limit) if ids[at] in ends), limit)
        yield list(ids[begin + 1 : stop])


def _id_arguments(body: list[int], markers: Markers, decode: Decode, index: int) -> dict[str, Any]:
    """Kimi: `functions.NAME:IDX`, the argument marker, JSON."""
    cut = next((at for at, token in enumerate(body) if token in markers.call_argument), None)
    if cut is None:
        return _call(index, None, decode(body))
    raw = decode(body[cut + 1 :])
    match = _KIMI_ID.fullmatch(decode(body[:cut]))
    if match is None:
        return _call(index, None, raw, _parse(raw))
    number = match["index"]
    return _call(index if number is None else int(number), match["name"], raw, _parse(raw))


def _json(text: str, index: int) -> dict[str, Any]:
    """Qwen: one JSON object with `name` and `arguments`; without both, the text is kept whole."""
    whole = _parse(text)
    if not isinstance(whole, dict) or not isinstance(whole.get("name"), str) or "arguments" not in whole:
        return _call(index, None, text)
    arguments = whole["arguments"]
    if isinstance(arguments, str):
        return _call(index, whole["name"], arguments, _parse(arguments))
    return _call(index, whole["name"], _raw_value(text, "arguments", arguments), arguments)


def _raw_value(text: str, key: str, value: Any) -> str:
    """The slice of a JSON text that holds `value` under `key`, as it was written; re-written where it hides."""
    for match in re.finditer(rf'"{key}"\s*:\s*', text):
        try:
            found, stop = json.JSONDecoder().raw_decode(text, match.end())
        except ValueError:
            continue
        if found == value:
            return text[match.end() : stop]
    return json.dumps(value, ensure_ascii=False)


def _call(index: int, name: str | None, arguments: str, parsed: Any = None) -> dict[str, Any]:
    return {"index": index, "name": name, "arguments": arguments, "parsed": parsed}


def _parse(text: str) -> Any:
    """The JSON value of a text, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
