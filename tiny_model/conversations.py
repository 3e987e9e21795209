"""Every kind of conversation that the model `tiny` learns, drawn at random, and the side that it never sees."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable

from tiny_model import functions, lists, numbers, talk, words
from tiny_model.conversation import Conversation, Turn, conversation
from tiny_model.lexicon import SYSTEMS

_SINGLE: dict[str, Callable[[random.Random], Turn]] = {
    "plus": numbers.plus,
    "minus": numbers.minus,
    "times": numbers.times,
    "algebra": numbers.algebra,
    "units": numbers.units,
    "duplicates": lists.duplicates,
    "sort": lists.sort_numbers,
    "extreme": lists.extreme,
    "total": lists.total,
    "parity": lists.parity,
    "count": lists.count,
    "backwards": words.backwards,
    "spelling": words.spelling,
    "letters": words.letters,
    "first_letters": words.first_letters,
    "weekday": words.weekday,
    "greeting": talk.greeting,
    "unknown": talk.unknown,
    "who_are_you": talk.who_are_you,
}
_SEVERAL: dict[str, Callable[[random.Random], list[Turn]]] = {
    "sums_after": talk.sums_after,
    "lists_after": talk.lists_after,
    "names_after": talk.names_after,
}

KINDS: tuple[str, ...] = (*_SINGLE, *_SEVERAL, "restaurants", "call", "result")
"""All kinds, in a fixed order."""

WEIGHTS: dict[str, float] = {
    "duplicates": 2.5,
    "lists_after": 2.0,
    "count": 2.0,
    "letters": 2.0,
    "backwards": 1.5,
    "first_letters": 1.5,
    "algebra": 1.5,
    "parity": 1.5,
    "result": 1.5,
    "sums_after": 1.2,
    "call": 1.2,
    "greeting": 0.3,
    "unknown": 0.4,
    "who_are_you": 0.1,
    "names_after": 0.3,
    "restaurants": 0.6,
}
"""How often a kind is drawn for training; 1.0 where nothing is said. Harder kinds get more."""

HELD_OUT_SHARE = 0.1


def draw(rng: random.Random, kind: str) -> Conversation:
    """One conversation of a kind, now and then with a system text."""
    system = rng.choice(SYSTEMS) if rng.random() < 0.25 else None
    if kind in _SINGLE:
        return conversation(kind, [_SINGLE[kind](rng)], system=system)
    if kind in _SEVERAL:
        return conversation(kind, _SEVERAL[kind](rng), system=system)
    if kind == "restaurants":
        return functions.call(rng, kind, functions.RESTAURANTS, system)
    if kind == "call":
        return functions.call(rng, kind, rng.choice(functions.FUNCTIONS[1:]), system)
    if kind == "result":
        return functions.result(rng, kind, system)
    raise ValueError(f"no kind {kind!r}: one of {', '.join(KINDS)}")


def draw_any(rng: random.Random) -> Conversation:
    """One conversation of any kind, by weight."""
    (kind,) = rng.choices(KINDS, [WEIGHTS.get(kind, 1.0) for kind in KINDS])
    return draw(rng, kind)


def is_held_out(conversation: Conversation) -> bool:
    """Whether training never sees these questions, in whatever company: a tenth of all, by a hash of their text."""
    text = json.dumps(conversation.spoken, ensure_ascii=False)
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")
    return number < HELD_OUT_SHARE * 2**64
