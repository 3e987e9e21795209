"""Values that rows hold as text: JSON, Python literals, and objects pasted into prose."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]
Message = dict[str, Any]


class RowError(ValueError):
    """This row gives no prompt; the text is the reason."""


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_LITERAL_ERRORS = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


def parse_json(text: str, what: str) -> Any:
    """The value of a JSON text, NaN and Infinity refused. Raises RowError, which names `what`."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise RowError(f"{what} is not JSON: {error}") from error


def parse_loose(text: str, what: str) -> Any:
    """The value of a JSON text, or of the Python literal that some sets write instead. Raises RowError as above."""
    try:
        return parse_json(text, what)
    except RowError as refused:
        try:
            with warnings.catch_warnings():
                # A backslash that Python does not know is the row's own text, not a fault of this program.
                warnings.simplefilter("ignore")
                return json.loads(json.dumps(ast.literal_eval(text.strip()), allow_nan=False))
        except _LITERAL_ERRORS:
            raise refused from None


def pasted_values(text: str, begin: re.Pattern[str], what: str) -> Iterator[tuple[int, int, Any]]:
    """(start, stop, value) of the JSON values in prose, each where `begin` matches outside the one before it.

    Raises RowError where a value begins and is broken.
    """
    at = 0
    while match := begin.search(text, at):
        try:
            value, at = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError) as error:
            raise RowError(f"{what} is not JSON: {error}") from error
        yield match.start(), at, value


def check_storable(value: Any) -> None:
    """Raises RowError where the value could not be hashed, or written as UTF-8 JSON and read by any reader."""
    try:
        # Nested once more than it ever is in a file, so that no later dump meets the limit first.
        json.dumps([[[value]]], ensure_ascii=False, allow_nan=False, sort_keys=True).encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowError("not Unicode text: half a surrogate pair") from error
    except (TypeError, ValueError) as error:
        raise RowError(f"not JSON: {error}") from error
