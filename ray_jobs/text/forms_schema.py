"""Parameters of tools as valid JSON schema: foreign type names, bare parameter lists and null fields are mended."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ray_jobs.text.forms_json import RowError

_TYPES = {
    "string": ("string", "str", "text", "char", "date", "time", "datetime", "timestamp", "uuid"),
    "integer": ("integer", "int", "long", "int32", "int64"),
    "number": ("number", "float", "double", "decimal", "float32", "float64"),
    "boolean": ("boolean", "bool"),
    "array": ("array", "list", "tuple", "set", "sequence", "iterable", "arraylist"),
    "object": ("object", "dict", "dictionary", "map", "mapping", "hashmap", "json"),
    "null": ("null", "none", "nonetype"),
    "": ("any",),
}
_NAMED = {name: kind for kind, names in _TYPES.items() for name in names}
_GENERIC = re.compile(r"(?:typing\.)?(\w+)\s*[\[<](.*)[\]>]", re.DOTALL)

_SUBSCHEMAS = ("additionalProperties", "not", "contains", "propertyNames", "if", "then", "else", "contentSchema")
_UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")
_NAMED_SUBSCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED_SUBSCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_TEXTS = ("description", "title", "format", "pattern", "$ref", "contentEncoding", "contentMediaType")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("Length", "Items", "Properties", "Contains")
_FLAGS = ("uniqueItems", "deprecated", "readOnly", "writeOnly")
_BOOKKEEPING = ("$schema", "$id", "$anchor", "$comment", "$vocabulary", "$dynamicRef", "$dynamicAnchor")
"""Keys of a schema that stands in a file of its own."""


def read_parameters(value: Any, tool: str) -> Any:
    """The parameters of a tool as JSON schema; `{name: {"type": ...}}` alone becomes an object's properties.

    Raises RowError where a part of it has no safe meaning.
    """
    if isinstance(value, dict) and _is_bare(value):
        optional = [name for name, of in value.items() if "default" in of or _is_optional(of.get("type"))]
        required = [name for name in value if name not in optional]
        value = {"type": "object", "properties": value, **({"required": required} if required else {})}
    return _schema(value, f"tool {tool}")


def _is_bare(value: dict[str, Any]) -> bool:
    """Whether it maps parameter names to their descriptions; a schema has a type, or properties of its own."""
    inner = value.get("properties")
    own = isinstance(inner, dict) and not isinstance(inner.get("type"), str)
    own = own or value.keys() <= {"additionalProperties", "patternProperties", "$defs"}
    return not own and all(isinstance(of, dict) for of in value.values())


def _schema(value: Any, where: str) -> Any:
    """One schema, read key by key; null fields are another row's and are left out."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        value = {"type": value}
    if not isinstance(value, dict):
        raise RowError(f"{where}: not a schema")
    made: dict[str, Any] = {}
    required = _required(value, where)
    for key, item in value.items():
        if item is None or key in _BOOKKEEPING:
            continue
        if key == "type":
            # A word such as `List[int]` says more than the type, but never against what is written out beside it.
            made |= {word: said for word, said in _type(item, where).items() if word == key or not value.get(word)}
        elif key != "required":
            made[key] = _READ[key](item, f"{where}, {key}") if key in _READ else item
        elif required:
            made[key] = required
    if isinstance(made.get("items"), list):
        made["prefixItems"] = made.pop("items")
    return made | ({"required": required} if required else {})


def _required(value: dict[str, Any], where: str) -> list[str]:
    """The names that must be given: the list, and properties that say `required: true` of themselves."""
    listed = value.get("required")
    if listed is None or isinstance(listed, bool):
        listed = []
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise RowError(f"{where}, required: not a list of names")
    properties = value.get("properties")
    inner = properties.items() if isinstance(properties, dict) else ()
    marked = [name for name, of in inner if isinstance(of, dict) and of.get("required") is True]
    return list(dict.fromkeys([*listed, *marked]))


def _type(value: Any, where: str) -> dict[str, Any]:
    """The keywords that a type name stands for. Raises RowError for a name that means nothing here."""
    if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
        return _any_of([_named(name, where) for name in value])
    if not isinstance(value, str):
        raise RowError(f"{where}: type is not a name")
    return _named(value, where)


def _named(name: str, where: str) -> dict[str, Any]:
    """`str`, `str, optional`, `List[int]`, `int | None`, `Union[int, str]`, `Optional[str]` as keywords."""
    base = _split(name, ",")[0].strip()
    several = [part for bar in _split(base, "|") for part in re.split(r"\s+or\s+", bar.strip())]
    if len(several) > 1:
        return _any_of([_named(part, where) for part in several])
    kind = _NAMED.get(base.lower().removeprefix("typing."))
    if kind is not None:
        return {"type": kind} if kind else {}
    generic = _GENERIC.fullmatch(base)
    if generic is None:
        raise RowError(f"{where}: unknown type {name!r}")
    return _of_generic(generic[1].lower(), _split(generic[2], ","), where, name)


def _of_generic(outer: str, inner: list[str], where: str, name: str) -> dict[str, Any]:
    if outer in ("optional", "union"):
        return _any_of([_named(part, where) for part in inner])
    kind = _NAMED.get(outer)
    if kind == "object":
        return {"type": "object"}
    if kind != "array":
        raise RowError(f"{where}: unknown type {name!r}")
    items = [_named(part, where) for part in inner if part.strip() not in ("", "...")]
    return {"type": "array", "items": items[0]} if items and items.count(items[0]) == len(items) else {"type": "array"}


def _any_of(choices: list[dict[str, Any]]) -> dict[str, Any]:
    different = [choice for at, choice in enumerate(choices) if choice not in choices[:at]]
    if {} in different:
        return {}
    if len(different) == 1:
        return different[0]
    if all(choice.keys() == {"type"} and isinstance(choice["type"], str) for choice in different):
        return {"type": [choice["type"] for choice in different]}
    return {"anyOf": different}


def _split(text: str, mark: str) -> list[str]:
    """Cut at the marks that stand outside brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "[(<") - (char in "])>")
        if char == mark and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _is_optional(type_name: Any) -> bool:
    """Whether a type says `optional` of itself."""
    if not isinstance(type_name, str):
        return False
    extra = [part.strip().lower() for part in _split(type_name, ",")[1:]]
    return type_name.strip().lower().startswith(("optional[", "typing.optional[")) or any(
        part.startswith(("optional", "default")) for part in extra
    )


def _of_kind(kind: type | tuple[type, ...], words: str, least: float | None = None) -> Callable[[Any, str], Any]:
    def read(value: Any, where: str) -> Any:
        wrong_bool = isinstance(value, bool) and kind is not bool
        if not isinstance(value, kind) or wrong_bool or (least is not None and value < least):
            raise RowError(f"{where}: not {words}")
        return value

    return read


def _named_schemas(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RowError(f"{where}: not an object of schemas")
    return {name: _schema(of, f"{where}.{name}") for name, of in value.items() if of is not None}


def _schemas(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise RowError(f"{where}: not a list of schemas")
    return [_schema(of, where) for of in value]


def _dependent(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RowError(f"{where}: not an object of lists of names")
    return {name: _required({"required": of}, where) for name, of in value.items()}


def _items(value: Any, where: str) -> Any:
    return _schemas(value, where) if isinstance(value, list) else _schema(value, where)


_READ: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys((*_SUBSCHEMAS, *_UNEVALUATED), _schema),
    **dict.fromkeys(_NAMED_SUBSCHEMAS, _named_schemas),
    **dict.fromkeys(_LISTED_SUBSCHEMAS, _schemas),
    **dict.fromkeys(_TEXTS, _of_kind(str, "a text")),
    **dict.fromkeys(_NUMBERS, _of_kind((int, float), "a number")),
    **dict.fromkeys([f"{end}{of}" for end in ("min", "max") for of in _COUNTS], _of_kind(int, "a count", 0)),
    "multipleOf": _of_kind((int, float), "a number above 0", 1e-300),
    "dependentRequired": _dependent,
    "dependencies": _dependent,
    **dict.fromkeys(_FLAGS, _of_kind(bool, "true or false")),
    "items": _items,
    "enum": _of_kind(list, "a list"),
    "examples": _of_kind(list, "a list"),
}
