"""Text from models, files and servers made safe for a terminal: nothing in it may act, hide or reorder.

A terminal obeys escape sequences wherever they come from: they can recolour, overwrite or retitle, and some can type.
"""

from __future__ import annotations

import unicodedata

_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Controls, format characters (bidi among them), lone surrogates, line and paragraph separators."""
_KEPT = frozenset("\n\t\u200c\u200d")
"""Line ends and tabs; joiners, which emoji and many scripts need, and which show nothing."""


def visible(text: str) -> str:
    """The text with each character that controls or hides written as its escape, such as \\x1b."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(_escape(char) if _hides(char) else char for char in text)


def one_line(text: str, most: int | None = None) -> str:
    """The same for a field of one line: line ends are escaped as well; cut with three dots after `most` characters."""
    cut = text if most is None or len(text) <= most else f"{text[:most]}..."
    return visible(cut).replace("\n", "\\n").replace("\t", "\\t")


def shorten(text: str, max_chars: int) -> tuple[str, int]:
    """The beginning of a text and how many characters were cut off; 0 cuts nothing."""
    if max_chars == 0 or len(text) <= max_chars:
        return text, 0
    return text[:max_chars], len(text) - max_chars


def _hides(char: str) -> bool:
    return char not in _KEPT and unicodedata.category(char) in _ESCAPED


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
