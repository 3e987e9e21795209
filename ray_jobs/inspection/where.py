"""The language of `inspect.where`: a text to a tree, by recursive descent; knows no columns and runs nothing.

condition  = all { "or" all }
all        = one { "and" one }
one        = "not" one | value { sign value | ["not"] "in" (list | field) }
value      = number | text | true | false | null | field | "(" condition ")"
list       = "(" literal { "," literal } ")" or the same in [ ]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from ray_jobs.core.errors import ConfigError
from ray_jobs.core.schemas import SAMPLES
from ray_jobs.inspection.visible import one_line

FIELD = "inspect.where"
MOST_CHARS = 2000
MOST_NESTED = 32
SIGNS = ("==", "!=", "<=", ">=", "<", ">")
CONSTANTS = {"true": True, "false": False, "null": None}
WORDS = ("and", "or", "not", "in", *CONSTANTS)

_TOKEN = re.compile(
    r"""
    (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<sign>==|!=|<=|>=|[<>()\[\],-])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Literal:
    """A value that stands in the text; `at` counts characters from 0, here and below."""

    value: str | int | float | bool | None
    at: int


@dataclass(frozen=True)
class Field:
    """A column."""

    name: str
    at: int


@dataclass(frozen=True)
class Items:
    """The values at the right of `in`."""

    items: tuple[Literal, ...]
    at: int


@dataclass(frozen=True)
class Compare:
    """`left sign right`, where sign is one of SIGNS, `in` or `not in`."""

    sign: str
    left: Node
    right: Node
    at: int


@dataclass(frozen=True)
class Not:
    """The opposite."""

    inner: Node
    at: int


@dataclass(frozen=True)
class Joined:
    """Conditions joined by one word, `and` or `or`."""

    word: str
    parts: tuple[Node, ...]
    at: int


Node = Literal | Field | Items | Compare | Not | Joined


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int


def refuse(text: str, at: int, rule: str) -> NoReturn:
    """Raise the one line; `at` is shown counted from 1."""
    fields = ", ".join(SAMPLES.names)
    action = f"Write such as closed == 'never' and n_output_tokens > 100; the fields are {fields}."
    raise ConfigError(FIELD, one_line(text, 200), f"{rule}, at character {at + 1}", action)


def parse(text: str) -> Node:
    """The tree of a condition.

    Raises:
        ConfigError: with the position of what cannot be read, and the fields.
    """
    if len(text) > MOST_CHARS:
        refuse(text, MOST_CHARS, f"may have at most {MOST_CHARS} characters")
    parser = _Parser(text, list(_tokens(text)))
    tree = parser.as_condition(parser.condition())
    if parser.next.kind != "end":
        refuse(text, parser.next.at, f"cannot be read near {parser.next.text!r}")
    return tree


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        found = _TOKEN.match(text, at)
        if found is None:
            hint = (
                " (an equality is ==)" if text[at] == "=" else " (the quote is not closed)" if text[at] in "'\"" else ""
            )
            refuse(text, at, f"cannot be read near {text[at : at + 10]!r}{hint}")
        assert found.lastgroup is not None
        yield _Token(found.lastgroup, found[0], at)
        at = found.end()
    yield _Token("end", "the end", at)


class _Parser:
    """One method a rule of the grammar; `next` is the token to be read."""

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self._text, self._tokens, self._at, self._depth = text, tokens, 0, 0

    @property
    def next(self) -> _Token:
        """The token to be read."""
        return self._tokens[self._at]

    def _take(self, *texts: str) -> _Token | None:
        """The next token if it is one of these words or signs."""
        token = self.next
        if token.kind not in ("word", "sign") or token.text not in texts:
            return None
        self._at += 1
        return token

    def _need(self, text: str) -> None:
        if not self._take(text):
            refuse(self._text, self.next.at, f"needs {text!r}, not {self.next.text!r}")

    def condition(self) -> Node:
        """A whole condition, or what stands alone in parentheses."""
        return self._joined("or", lambda: self._joined("and", self._one))

    def _joined(self, word: str, part: Callable[[], Node]) -> Node:
        parts = [part()]
        at = self.next.at
        while self._take(word):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        return Joined(word, tuple(map(self.as_condition, parts)), at)

    def _one(self) -> Node:
        if token := self._take("not"):
            with self._deeper(token.at):
                return Not(self.as_condition(self._one()), token.at)
        return self._comparison()

    def _comparison(self) -> Node:
        """One comparison or a chain of them: `1 < n <= 3` is `1 < n and n <= 3`."""
        left, made = self._value(), []
        while (token := self._sign()) is not None:
            right = self._list_or_field() if token.text.endswith("in") else self._value()
            made.append(Compare(token.text, left, right, token.at))
            left = right
        if not made:
            return left
        return made[0] if len(made) == 1 else Joined("and", tuple(made), made[0].at)

    def _sign(self) -> _Token | None:
        """The next sign of a comparison, `not in` as one."""
        if token := self._take(*SIGNS, "in"):
            return token
        token = self._take("not")
        if token is None:
            return None
        self._need("in")
        return _Token("word", "not in", token.at)

    def _value(self) -> Node:
        if token := self._take("("):
            with self._deeper(token.at):
                inner = self.condition()
            self._need(")")
            return inner
        token = self.next
        if token.kind == "word" and token.text not in WORDS:
            self._at += 1
            return Field(token.text, token.at)
        return self._literal()

    def _literal(self) -> Literal:
        minus = self._take("-")
        token = self.next
        if token.kind == "number":
            self._at += 1
            number = float(token.text) if set(token.text) & set(".eE") else int(token.text)
            return Literal(-number if minus else number, (minus or token).at)
        if minus is None and token.kind == "text":
            self._at += 1
            return Literal(_unescaped(token.text), token.at)
        if minus is None and (word := self._take(*CONSTANTS)):
            return Literal(CONSTANTS[word.text], word.at)
        refuse(self._text, token.at, f"needs a value or a field, not {token.text!r}")

    def _list_or_field(self) -> Items | Field:
        token = self.next
        if token.kind == "word" and token.text not in WORDS:
            self._at += 1
            return Field(token.text, token.at)
        if not self._take("(", "["):
            refuse(self._text, token.at, "needs a field or a list such as ('never', 'absent') after in")
        closing = ")" if token.text == "(" else "]"
        items = [self._literal()]
        while self._take(",") and self.next.text != closing:
            items.append(self._literal())
        self._need(closing)
        return Items(tuple(items), token.at)

    def as_condition(self, node: Node) -> Node:
        """The node, if it is true or false of a row."""
        if isinstance(node, Field) or (isinstance(node, Literal) and not isinstance(node.value, bool)):
            refuse(self._text, node.at, "stands alone: compare it with something")
        return node

    @contextmanager
    def _deeper(self, at: int) -> Iterator[None]:
        """Python's own stack, and Arrow's, end somewhere; a hostile text would find out where."""
        self._depth += 1
        if self._depth > MOST_NESTED:
            refuse(self._text, at, f"is nested deeper than {MOST_NESTED}")
        yield
        self._depth -= 1


def _unescaped(quoted: str) -> str:
    """The text between quotes: a backslash keeps the next character from ending it, `\\n` and `\\t` are themselves."""
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), quoted[1:-1], flags=re.DOTALL)
