"""Command-line words whose values are free text, written so that Hydra takes them whole."""

from __future__ import annotations

import re
from collections.abc import Iterable

FREE_TEXT = ("inspect.where",)
"""Keys whose values hold quotes, signs and spaces, which Hydra's grammar would take for its own."""


def quoted(words: Iterable[str]) -> list[str]:
    """The words, with the values of free-text keys in Hydra's quotes where they are not in quotes yet."""
    return [_quoted(word) for word in words]


def _quoted(word: str) -> str:
    key, sign, value = word.partition("=")
    if not sign or key not in FREE_TEXT or value in ("", "null") or _is_quoted(value):
        return word
    # Hydra reads a backslash as one only before a quote
    escaped = re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + ('\\"' if found[2] else ""), value)
    return f'{key}="{escaped}"'


def _is_quoted(value: str) -> bool:
    """One quoted text and nothing else: `'a' in b` is not, although it may begin and end with a quote."""
    return re.fullmatch(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", value, re.DOTALL) is not None
