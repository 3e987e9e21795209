"""Text from models and files, made safe to look at: nothing in it may act, hide, reorder its surroundings or overflow.

Escaping alone is not enough: a bidi override turns the rest of the page round, a NUL is dropped by browsers, a lone
surrogate cannot be written as UTF-8.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup, escape

# joiners have a place in emoji and in many scripts; they show nothing and reorder nothing
_KEPT = frozenset("\n\t\u200c\u200d")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
MOST_MARKS = 4
"""Combining marks on one character; more of them are piled up to cover other lines."""


@dataclass(frozen=True)
class Excerpt:
    """The beginning and the end of a text, and the number of characters between them that are left out."""

    head: str
    left_out: int = 0
    tail: str = ""


def excerpt(text: str, n_head: int, n_tail: int = 0) -> Excerpt:
    """At most `n_head` characters from the start and `n_tail` from the end of `text`; all of it if it fits."""
    if len(text) <= n_head + n_tail:
        return Excerpt(text)
    return Excerpt(text[:n_head], len(text) - n_head - n_tail, text[len(text) - n_tail :])


def visible(text: object) -> Markup:
    """Escaped HTML of a text, with every character that controls or hides shown by its number."""
    shown = Markup("")
    for hidden, group in groupby(_thinned(str(text)), key=_is_hidden):
        run = "".join(group)
        if hidden:
            codes = " ".join(f"U+{ord(char):04X}" for char in run)
            shown += Markup('<span class="ctl">{}</span>').format(codes)
        else:
            shown += escape(run)
    return shown


def _is_hidden(char: str) -> bool:
    return char not in _KEPT and unicodedata.category(char) in _HIDDEN


def _thinned(text: str) -> Iterator[str]:
    """The characters without combining marks beyond MOST_MARKS in a row."""
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        if marks <= MOST_MARKS:
            yield char
