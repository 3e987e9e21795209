"""Tools as valid JSON schema, calls in OpenAI's form, results with the id of their call."""

from __future__ import annotations

import json

import pytest
from form_cases import calling, prompt, reason, result, tool, user, xlam
from jsonschema import Draft202012Validator

SCHEMAS = {
    "str": {"type": "string"},
    "String": {"type": "string"},
    "int, optional": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "dict": {"type": "object"},
    "Dict[str, int]": {"type": "object"},
    "list": {"type": "array"},
    "List[int]": {"type": "array", "items": {"type": "integer"}},
    "typing.List[List[float]]": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    "Tuple[float, float]": {"type": "array", "items": {"type": "number"}},
    "Tuple[int, str]": {"type": "array"},
    "Set[Any]": {"type": "array", "items": {}},
    "Union[int, str]": {"type": ["integer", "string"]},
    "Optional[str]": {"type": "string"},
    "int | None": {"type": ["integer", "null"]},
    "str or List[str]": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "Any": {},
    "any or int": {},
}


@pytest.mark.parametrize(("name", "schema"), SCHEMAS.items(), ids=SCHEMAS.keys())
def test_type_names(tmp_path, name, schema):
    made = prompt(tmp_path, xlam([{"name": "f", "parameters": {"a": {"type": name}}}]))
    assert made.tools is not None
    assert made.tools[0]["function"]["parameters"]["properties"] == {"a": schema}
    Draft202012Validator.check_schema(made.tools[0]["function"]["parameters"])


def test_bare_parameters_say_what_is_required(tmp_path):
    bare = {
        "type": {"type": "str", "description": "d"},
        "properties": {"type": "int, optional"},
        "items": {"type": "Optional[int]"},
        "c": {"type": "int", "default": 3},
        "d": {"type": "int, default 3"},
    }
    made = prompt(tmp_path, xlam([{"name": "f", "description": "x", "parameters": bare}]))
    properties = {
        "type": {"type": "string", "description": "d"},
        "properties": {"type": "integer"},
        "items": {"type": "integer"},
        "c": {"type": "integer", "default": 3},
        "d": {"type": "integer"},
    }
    expected = tool("f", properties, required=["type"])
    expected["function"]["description"] = "x"
    assert made.tools == [expected]


MENDED = {
    "nulls of other rows": (
        {"type": "object", "properties": {"a": {"type": "string", "enum": None}, "b": None}, "required": None},
        {"type": "object", "properties": {"a": {"type": "string"}}},
    ),
    "required in the property": (
        {
            "type": "dict",
            "properties": {"a": {"type": "str", "required": True}, "b": {"type": "int", "required": False}},
        },
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]},
    ),
    "a word for a property": ({"properties": {"a": "string"}}, {"properties": {"a": {"type": "string"}}}),
    "a list of items": (
        {"type": "array", "items": [{"type": "int"}]},
        {"type": "array", "prefixItems": [{"type": "integer"}]},
    ),
    "items that say more": (
        {"properties": {"a": {"type": "list", "items": {"type": "dict", "properties": {"b": {"type": "float"}}}}}},
        {"properties": {"a": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "number"}}}}}},
    ),
    "items said twice": (
        {"properties": {"a": {"items": {"type": "str"}, "type": "List[int]"}}},
        {"properties": {"a": {"items": {"type": "string"}, "type": "array"}}},
    ),
    "good schema": (
        s := {
            "type": "object",
            "properties": {
                "a": {"enum": ["x", None]},
                "b": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/c"}]},
                "d": True,
            },
            "required": ["a"],
            "additionalProperties": False,
            "$defs": {"c": {"type": "string", "minLength": 1, "x-own": 3}},
        },
        s,
    ),
    "nothing": ({}, {}),
}


@pytest.mark.parametrize(("given", "expected"), MENDED.values(), ids=MENDED.keys())
def test_schemas(tmp_path, given, expected):
    made = prompt(tmp_path, {"prompt": "q", "tools": [{"name": "f", "parameters": given, "strict": None}]})
    assert made.tools == [{"type": "function", "function": {"name": "f", "parameters": expected}}]
    Draft202012Validator.check_schema(expected)
    again = prompt(tmp_path, {"prompt": "q", "tools": made.tools})
    assert again.prompt_id == made.prompt_id


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"a": {"type": "Callable[[int], int]"}}, "tool f, properties.a: unknown type 'Callable[[int], int]'"),
        ({"a": {"type": "List[int"}}, "tool f, properties.a: unknown type 'List[int'"),
        ({"a": {"type": 3}}, "tool f, properties.a: type is not a name"),
        ([], "tool f: not a schema"),
        ({"type": "object", "properties": []}, "tool f, properties: not an object of schemas"),
        ({"type": "object", "required": "a"}, "tool f, required: not a list of names"),
        ({"properties": {"a": {"enum": "x"}}}, "tool f, properties.a, enum: not a list"),
        ({"properties": {"a": {"minimum": "0"}}}, "tool f, properties.a, minimum: not a number"),
        ({"properties": {"a": {"minLength": True}}}, "tool f, properties.a, minLength: not a count"),
        ({"properties": {"a": {"description": ["x"]}}}, "tool f, properties.a, description: not a text"),
        ({"anyOf": []}, "tool f, anyOf: not a list of schemas"),
    ],
)
def test_schemas_without_a_safe_meaning_drop_the_row(tmp_path, given, expected):
    row = {"prompt": "q", "tools": [{"name": "f", "parameters": given}]}
    assert reason(tmp_path, row) == expected


def called(calls: object, *results: dict) -> dict:
    return {"messages": [user("q"), {"role": "assistant", "content": None, "tool_calls": calls}, *results, user("r")]}


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ({"function": {"name": "f", "arguments": '{"a":1}'}}, '{"a":1}'),
        ({"function": {"name": "f", "arguments": {"a": 1}}}, '{"a": 1}'),
        ({"type": "function", "function": {"name": "f", "arguments": '"{\\"a\\":1}"'}}, '{"a": 1}'),
        ({"name": "f", "arguments": "{'a': True}"}, '{"a": true}'),
        ({"name": "f", "arguments": ""}, "{}"),
        ({"name": "f"}, "{}"),
        ({"index": 0, "id": None, "name": "f", "arguments": None}, "{}"),
    ],
)
def test_calls_become_openais(tmp_path, call, arguments):
    for calls in ([call], json.dumps([call])):
        assert prompt(tmp_path, called(calls)).messages[1] == calling(("f", arguments))


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([{"name": "f", "arguments": '{"a":'}], "arguments of f is not JSON"),
        ([{"name": "f", "arguments": '{"a": NaN}'}], "arguments of f is not JSON"),
        ([{"name": "f", "arguments": {"a": float("inf")}}], "not JSON: "),
        ([{"name": "f", "arguments": "3"}], "arguments of f are not an object"),
        ([{"name": "f", "arguments": [1]}], "arguments of f are not an object"),
        ([{"function": {"name": " ", "arguments": "{}"}}], "a tool call has no name"),
        ([{"function": "f"}], "a tool call has no name"),
        (["f"], "tool_calls are not a list of objects"),
        ({"name": "f"}, "tool_calls are not a list of objects"),
        ("[{", "tool_calls is not JSON"),
    ],
)
def test_broken_calls_drop_the_row(tmp_path, calls, expected):
    assert reason(tmp_path, called(calls)).startswith(expected)


def test_the_older_form_of_a_call(tmp_path):
    row = {
        "messages": [
            user("q"),
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "4"},
        ]
    }
    made = prompt(tmp_path, row)
    assert made.messages[1:] == [calling(("f", "{}")), result("f", 0, "4") | {"name": "f"}]


F, G = {"name": "f"}, {"name": "g"}


def test_ids_of_calls_and_results(tmp_path):
    def ids(*calls: dict, results: list) -> list:
        tools = [{"role": "tool", "content": "x", **({"tool_call_id": r} if r else {})} for r in results]
        made = prompt(tmp_path, called(list(calls), *tools)).messages
        return [[c["id"] for c in made[1]["tool_calls"]], [m["tool_call_id"] for m in made[2:-1]]]

    assert ids(F, G, results=[None, None]) == [["functions.f:0", "functions.g:1"]] * 2
    assert ids(F, G, results=["b", "a"]) == [["b", "a"]] * 2
    assert ids(F | {"id": 1}, G | {"id": 2}, results=[2, None]) == [["1", "2"], ["2", "1"]]
    assert ids(F, G, results=[None]) == [["functions.f:0", "functions.g:1"], ["functions.f:0"]]
    assert ids(F, results=[]) == [["functions.f:0"], []]


def test_results_without_a_call_drop_the_row(tmp_path):
    one = {"role": "tool", "content": "x"}
    assert reason(tmp_path, called([F], one, one)) == "orphan tool result: more results than calls"
    wrong = called([F | {"id": "a"}], one | {"tool_call_id": "b"})
    assert reason(tmp_path, wrong) == "orphan tool result: no call b before it"
    assert reason(tmp_path, {"messages": [one, user("q")]}) == "orphan tool result: no assistant turn before it"
