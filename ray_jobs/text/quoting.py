"""Keeps quoted marker texts ordinary: control ids of a prompt may come from the chat template only.

Tokenizers turn a special token's text into its id wherever it stands, so a user who writes `<|im_end|>` would end
the turn. Quoted texts travel through the template as private-use characters, and the text is then tokenised in
pieces that are cut inside each quoted marker, so that no piece holds one whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

# Plane 15 is private use: no text means anything by it, and byte-level tokenizers pass it through.
_PRIVATE = range(0xF0000, 0xFFFFE)


def control_texts(tokenizer: Any, marker_texts: Iterable[str]) -> tuple[str, ...]:
    """Texts that the tokenizer maps to control ids, longest first.

    Added tokens that are no special ones count too (`<tool_call>` is one in some families), but not those that are
    plain words or white space: these are vocabulary.
    """
    found = set(marker_texts)
    for token in tokenizer.added_tokens_decoder.values():
        text = str(token)
        if text.strip() and (token.special or not text.strip().isalnum()):
            found.add(text)
    return tuple(sorted(found, key=lambda text: (-len(text), text)))


class Quoter:
    """Finds, hides and restores the control texts of one tokenizer."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    def hide(self, value: Any) -> tuple[Any, dict[str, str]]:
        """The same JSON-like value with quoted control texts hidden, and {private character: control text}."""
        strings = list(_strings(value))
        quoted = {m for text in strings for m in (self._pattern.findall(text) if self._pattern else ())}
        if not quoted:
            return value, {}
        taken = {char for text in strings for char in text if ord(char) in _PRIVATE}
        free = (chr(code) for code in _PRIVATE if chr(code) not in taken)
        names = dict(zip(sorted(quoted), free, strict=False))
        return self._replace(value, names), {char: text for text, char in names.items()}

    def _replace(self, value: Any, names: dict[str, str]) -> Any:
        if isinstance(value, str):
            assert self._pattern is not None
            return self._pattern.sub(lambda match: names[match[0]], value)
        if isinstance(value, list):
            return [self._replace(item, names) for item in value]
        if isinstance(value, dict):
            return {self._replace(key, names): self._replace(item, names) for key, item in value.items()}
        return value


@dataclass(frozen=True, slots=True)
class Pieces:
    """A rendered text in pieces that may be tokenised one by one."""

    pieces: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole text, with the quoted markers as their author wrote them."""
        return "".join(self.pieces)


def restore(hidden: str, names: dict[str, str]) -> Pieces:
    """Put the control texts back, each cut after its first character."""
    pieces, last = [], ""
    for part in re.split(f"([{''.join(names)}])", hidden) if names else [hidden]:
        if part in names:
            pieces.append(last + names[part][0])
            last = names[part][1:]
        else:
            last += part
    return Pieces((*pieces, last))


def _strings(value: Any) -> Iterator[str]:
    """Every string of a JSON-like value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
