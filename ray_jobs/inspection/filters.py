"""The tree of `inspect.where` to an Arrow expression that reads only the columns it names.

Null-safe: each comparison is true or false, never null. With a null in it `==`, `<`, `in` and so on are false, and so
`!=` and `not in` are true.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ray_jobs.core.schemas import CLOSED, FLAGS, SAMPLES
from ray_jobs.inspection.where import Compare, Field, Items, Joined, Literal, Node, Not, parse, refuse

KNOWN = {"closed": CLOSED, "flags": FLAGS}
"""Columns whose every word is known: another one would match nothing, without a word."""

_arrow: Any = pc
"""pyarrow makes these functions when it is loaded, out of a checker's sight."""
_BETWEEN = "\x1f"
_ORDERS: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LISTS = ("list of texts", "list of numbers", "list of segments")


def to_filter(text: str) -> pc.Expression:
    """The condition as an Arrow expression over the columns of samples/.

    Raises:
        ConfigError: what cannot be read, no such field, or a comparison of two kinds.
    """
    return _Builder(text).condition(parse(text))


class _Builder:
    """Checks kinds and builds; `text` is what the errors show."""

    def __init__(self, text: str) -> None:
        self._text = text

    def condition(self, node: Node) -> pc.Expression:
        """A node that is true or false of a row."""
        if isinstance(node, Joined):
            parts = [self.condition(part) for part in node.parts]
            return _balanced(parts, operator.and_ if node.word == "and" else operator.or_)
        if isinstance(node, Not):
            return ~self.condition(node.inner)
        if isinstance(node, Compare):
            return self._compare(node)
        assert isinstance(node, Literal)
        return pc.scalar(node.value)

    def _compare(self, node: Compare) -> pc.Expression:
        if node.sign.startswith("not"):
            return ~self._compare(Compare("in", node.left, node.right, node.at))
        if node.sign == "!=":
            return ~self._compare(Compare("==", node.left, node.right, node.at))
        if isinstance(node.right, Items):
            equal = [self._compare(Compare("==", node.left, item, node.at)) for item in node.right.items]
            return _balanced(equal, operator.or_)
        if node.sign == "in":
            assert isinstance(node.right, Field)
            return self._holds(node.left, node.right)
        return self._order(node.sign, node.left, node.right, node.at)

    def _order(self, sign: str, left: Node, right: Node, at: int) -> pc.Expression:
        """== and the four orders, of two values of one kind."""
        kinds = [self._kind(side) for side in (left, right)]
        fields = [side for side in (left, right) if isinstance(side, Field)]
        if not fields:
            refuse(self._text, at, "compares two values: one side must be a field")
        if "null" in kinds:
            if sign != "==":
                refuse(self._text, at, "null can only be compared with == and !=")
            return pc.field(fields[0].name).is_null()
        for side, kind in zip((left, right), kinds, strict=True):
            if kind in _LISTS:
                refuse(self._text, side.at, f"this is a {kind}: ask whether a value is in it")
        literal = next((side for side in (left, right) if isinstance(side, Literal)), None)
        in_time = sorted(kinds) == ["text", "time"] and literal is not None and isinstance(literal.value, str)
        if kinds[0] != kinds[1] and not in_time:
            refuse(self._text, at, f"compares a {kinds[0]} with a {kinds[1]}")
        if sign == "==" and literal is not None:
            self._check_word(fields[0], literal)
        made = [self._operand(side, in_time) for side in (left, right)]
        return self._safe(_ORDERS[sign](*made), fields)

    def _holds(self, left: Node, right: Field) -> pc.Expression:
        """`value in field`: a part of a text, or an item of a list."""
        kind, value = self._kind(right), self._kind(left)
        needed = {"text": "text", "list of texts": "text", "list of numbers": "number"}.get(kind)
        if needed is None:
            refuse(self._text, right.at, f"{right.name} is a {kind}: nothing is in it")
        if not isinstance(left, Literal) or value != needed:
            refuse(self._text, left.at, f"{right.name} is a {kind}: a {needed} can be in it, not a {value}")
        self._check_word(right, left)
        field = pc.field(right.name)
        if kind == "text":
            return self._safe(_arrow.match_substring(field, str(left.value)), [right])
        # Arrow has no function for an item of a list; joined with a character that no item has, a text has it
        joined = _arrow.binary_join(field.cast(pa.list_(pa.string())), _BETWEEN)
        framed = _arrow.binary_join_element_wise(pc.scalar(""), joined, pc.scalar(""), _BETWEEN)
        return self._safe(_arrow.match_substring(framed, f"{_BETWEEN}{left.value}{_BETWEEN}"), [right])

    def _operand(self, side: Node, in_time: bool) -> Any:
        """A field, or a value; a time is a text such as '2025-01-31T12:00', in UTC unless it says otherwise."""
        if isinstance(side, Field):
            return pc.field(side.name)
        assert isinstance(side, Literal)
        if not in_time:
            return pc.scalar(side.value)
        try:
            moment = datetime.fromisoformat(str(side.value))
        except ValueError:
            refuse(self._text, side.at, "a time is compared with a text such as '2025-01-31' or '2025-01-31T12:00'")
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return pa.scalar(moment, pa.timestamp("us", tz="UTC"))

    def _kind(self, side: Node) -> str:
        """What may be compared with what; checks fields, known words and the size of numbers."""
        if isinstance(side, Field):
            if side.name not in SAMPLES.names:
                refuse(self._text, side.at, f"there is no field {side.name}")
            return _kind_of(SAMPLES.field(side.name).type)
        if not isinstance(side, Literal):
            refuse(self._text, side.at, "a condition cannot be compared")
        if isinstance(side.value, bool):
            refuse(self._text, side.at, "no field is true or false")
        if isinstance(side.value, int) and abs(side.value) >= 2**63:
            refuse(self._text, side.at, "the number is too large")
        return "null" if side.value is None else "text" if isinstance(side.value, str) else "number"

    def _check_word(self, field: Field, literal: Literal) -> None:
        words = KNOWN.get(field.name)
        if words is not None and literal.value not in words:
            refuse(self._text, literal.at, f"{field.name} has only the words {', '.join(words)}")

    def _safe(self, made: pc.Expression, fields: Sequence[Field]) -> pc.Expression:
        """False where a field that may be null is null."""
        valid = [pc.field(f.name).is_valid() for f in fields if SAMPLES.field(f.name).nullable]
        return _balanced([*valid, made], operator.and_)


def _kind_of(arrow: pa.DataType) -> str:
    if pa.types.is_list(arrow):
        inner = arrow.value_type
        return _LISTS[0] if pa.types.is_string(inner) else _LISTS[2] if pa.types.is_struct(inner) else _LISTS[1]
    return "text" if pa.types.is_string(arrow) else "time" if pa.types.is_timestamp(arrow) else "number"


def _balanced(parts: Sequence[pc.Expression], join: Callable[[Any, Any], pc.Expression]) -> pc.Expression:
    """The parts joined as a flat tree: Arrow walks an expression by recursion."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return join(_balanced(parts[:half], join), _balanced(parts[half:], join))
