"""Prompt files as numbered rows: JSON lines, JSON arrays and Parquet, streamed wherever the format allows."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ray_jobs.core.errors import ConfigError

_BATCH_ROWS = 256

Numbered = tuple[int, dict[str, Any] | str]
"""(line or row number from 1, the row or the reason why there is none)."""


def find_files(path_or_glob: str | Path) -> list[Path]:
    """The files that a path or glob names, sorted. Raises ConfigError if there is none, or one of no known type."""
    text = str(path_or_glob)
    # A name with brackets in it is a file first and a glob second.
    names = [text] if Path(text).is_file() else sorted(n for n in glob.glob(text, recursive=True) if Path(n).is_file())
    if not names:
        raise _refused(text, "no such file", "Name an existing .jsonl, .json or .parquet file, or a glob of them.")
    for name in names:
        if Path(name).suffix.lower() not in _READERS:
            raise _refused(name, "must be a .jsonl, .json or .parquet file", "Convert it, or narrow the glob.")
    return [Path(name) for name in names]


def read_rows(path: Path) -> Iterator[Numbered]:
    """Rows of one file with their numbers; a row that cannot be read comes as the reason."""
    return _READERS[path.suffix.lower()](path)


def _read_lines(path: Path) -> Iterator[Numbered]:
    """One JSON object a line; blank lines are none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield number, _parse_line(line.strip())


def _parse_line(line: bytes) -> dict[str, Any] | str:
    try:
        return _checked(json.loads(line.decode("utf-8")))
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    except ValueError as error:
        return f"not JSON: {error}"
    except RecursionError:
        return "not JSON: nested too deeply"


def _checked(value: Any) -> dict[str, Any] | str:
    """The row, if it is an object whose text can be stored: half a surrogate pair cannot be written as UTF-8."""
    if not isinstance(value, dict):
        return "not a JSON object"
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return "not Unicode text: half a surrogate pair"
    except RecursionError:
        return "not JSON: nested too deeply"
    return value


def _read_json(path: Path) -> Iterator[Numbered]:
    """A JSON array, read whole (number = place in the array); anything else is taken as JSON lines."""
    with path.open("rb") as file:
        start = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start != b"[":
        yield from _read_lines(path)
        return
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"not a JSON array ({error})", "Repair it, or write one object a line.") from error
    for number, row in enumerate(rows, start=1):
        yield number, _checked(row)


def _read_parquet(path: Path) -> Iterator[Numbered]:
    """Rows in batches. Fields that are null are left out: Arrow adds the fields of all other rows as nulls."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise _refused(path, f"not a Parquet file ({error})", "Write it again.") from error
    with file:
        number = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            for at in range(batch.num_rows):
                number += 1
                yield number, _parquet_row(batch.slice(at, 1))


def _parquet_row(one: Any) -> dict[str, Any] | str:
    """The row of a batch of one; Arrow holds bytes that are no text, and dates that Python does not know."""
    try:
        return _without_nulls(one.to_pylist()[0])
    except (ValueError, OverflowError) as error:
        return f"not readable: {error}"


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _refused(path: object, rule: str, action: str) -> ConfigError:
    return ConfigError("data.files", path, rule, action)


_READERS: dict[str, Callable[[Path], Iterator[Numbered]]] = {
    ".jsonl": _read_lines,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
