"""Arguments held against schemas; jsonschema says who is right."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from toolscout.core.argument_checks import problems, repaired, value_problems
from toolscout.core.json_schema import sound

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "days": {"type": "integer", "minimum": 1, "maximum": 14, "default": 3},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "hourly": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"$ref": "#/$defs/place"},
    },
    "required": ["city"],
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
            "required": ["lat", "lon"],
            "additionalProperties": False,
        }
    },
}

leaves: st.SearchStrategy[Any] = st.sampled_from(
    [
        {},
        True,
        {"type": "string", "minLength": 1, "maxLength": 2},
        {"type": "string", "pattern": "^x+$"},
        {"type": "integer", "minimum": 0, "exclusiveMaximum": 3},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5, "multipleOf": 0.5},
        {"type": ["boolean", "null"]},
        {"type": "integer", "default": 1},
        {"enum": [1, "x", None, True, [1]]},
        {"const": "x"},
        {"const": 0},
        {"$ref": "#/$defs/D"},
        {"$ref": "#/$defs/nowhere"},
        {"type": "array", "uniqueItems": True},
    ]
)


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3)},
            optional={
                "required": st.just(["a"]),
                "additionalProperties": st.booleans() | inner,
                "patternProperties": st.just({"^c": {"type": "string"}}),
                "maxProperties": st.just(2),
            },
        )
        | st.builds(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 2}, inner)
        | st.builds(lambda a, b: {"prefixItems": [a], "items": b}, inner, inner)
        | st.builds(
            lambda key, some: {key: some},
            st.sampled_from(["anyOf", "oneOf", "allOf"]),
            st.lists(inner, min_size=1, max_size=3),
        )
        | st.builds(lambda a: {"not": a}, inner)
    )


nested = st.recursive(leaves, _grown, max_leaves=8)
schemas = st.builds(
    lambda properties, required, definition, extra: {
        "type": "object",
        "properties": properties,
        "required": required,
        "$defs": {"D": definition},
        **extra,
    },
    st.dictionaries(st.sampled_from("abc"), nested, max_size=3),
    st.sampled_from([[], ["a"], ["a", "b"]]),
    leaves.filter(lambda leaf: leaf is True or "$ref" not in leaf)
    | st.just({"type": "object", "properties": {"a": {"$ref": "#/$defs/D"}}}),
    st.sampled_from([{}, {}, {"additionalProperties": False}, {"minProperties": 1}]),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from([0.0, 0.5, 1.0, 2.2, "", "x", "xx", "X", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
calls = st.dictionaries(st.sampled_from(["a", "b", "c", "A"]), values, max_size=3)


def valid(value: Any, schema: Any) -> bool:
    return bool(Draft202012Validator(_without_dangling(schema, schema)).is_valid(value))


def _without_dangling(node: Any, root: Any) -> Any:
    if isinstance(node, dict):
        return {k: _without_dangling(v, root) for k, v in node.items() if v != "#/$defs/nowhere"}
    return [_without_dangling(item, root) for item in node] if isinstance(node, list) else node


@settings(max_examples=150, deadline=None)
@given(schemas, calls)
def test_problems_are_found_exactly_where_jsonschema_finds_some(schema: dict[str, Any], call: dict[str, Any]) -> None:
    assert (problems(call, schema) == []) == valid(call, schema)


@settings(max_examples=150, deadline=None)
@given(schemas, calls)
def test_a_repair_never_harms_says_what_it_did_and_is_done_once(schema: dict[str, Any], call: dict[str, Any]) -> None:
    before = copy.deepcopy(call)
    better, done = repaired(call, schema)
    assert call == before
    if not done:
        assert better == call
    if valid(call, schema):
        assert valid(better, schema)
    if valid(better, schema):
        assert repaired(better, schema) == (better, [])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, ['"city" is required (a string): add it']),
        ({"city": 5}, ['"city" must be a string, not an integer 5']),
        ({"city": ""}, ['"city" must have at least 1 characters, not 0']),
        ({"city": "x", "days": 0}, ['"days" must be at least 1, not 0']),
        ({"city": "x", "days": True}, ['"days" must be an integer, not a boolean true']),
        ({"city": "x", "unit": "kelvin"}, ['"unit" must be one of "celsius", "fahrenheit"; not "kelvin"']),
        ({"city": "x", "tags": ["a", None]}, ['"tags[1]" must be a string, not null']),
        ({"city": "x", "place": {"lat": 1.0}}, ['"place.lon" is required (a number): add it']),
        (
            {"city": "x", "place": {"lat": 1, "lon": 2, "alt": 3}},
            ['"place.alt" is not known: leave it out (known: "lat", "lon")'],
        ),
        ({"city": "x", "place": {"lat": float("nan"), "lon": 2}}, ['"place.lat" must be a finite number']),
    ],
)
def test_messages_name_the_argument_and_what_to_do(value: dict[str, Any], said: list[str]) -> None:
    assert problems(value, WEATHER) == said


def test_arguments_that_are_no_object_are_named() -> None:
    assert problems(["x"], WEATHER) == ["the arguments must be one JSON object, not an array"]  # type: ignore[arg-type]
    assert value_problems(3, {"type": "integer"}) == []
    assert value_problems("3", {"type": "int"})  # the type's published spelling counts


@pytest.mark.parametrize(
    ("given", "name", "wanted"),
    [
        ({"days": "5"}, "days", 5),
        ({"days": " 5.0 "}, "days", 5),
        ({"days": "five"}, "days", "five"),
        ({"days": 5.5}, "days", 5.5),
        ({"city": 12}, "city", "12"),
        ({"unit": "Celsius"}, "unit", "celsius"),
        ({"unit": "kelvin"}, "unit", "kelvin"),
        ({"hourly": "True"}, "hourly", True),
        ({"hourly": "yes"}, "hourly", "yes"),
        ({"hourly": None}, "hourly", "absent"),
        ({"tags": "sunny"}, "tags", ["sunny"]),
        ({"tags": '["a", "b"]'}, "tags", ["a", "b"]),
        ({"tags": [1]}, "tags", ["1"]),
        ({"place": '{"lat": 1, "lon": "2"}'}, "place", {"lat": 1, "lon": 2}),
        ({"place": {"Lat": 1, "lon": 2, "alt": 3}}, "place", {"lat": 1, "lon": 2}),
        ({"City": "Lisbon"}, "city", "Lisbon"),
        ({"colour": "red"}, "colour", "absent"),
        ({}, "days", 3),
    ],
)
def test_harmless_faults_are_put_right(given: dict[str, Any], name: str, wanted: Any) -> None:
    better, done = repaired(given, WEATHER)
    assert better.get(name, "absent") == wanted
    assert type(better.get(name, "absent")) is type(wanted)
    changed = given.get(name, "absent") != wanted
    assert bool([line for line in done if name.lower() in line.lower()]) == changed


def test_branches_are_repaired_by_the_first_that_then_fits() -> None:
    schema = {"properties": {"n": {"anyOf": [{"type": "integer", "minimum": 10}, {"type": "number"}]}}}
    assert repaired({"n": "12"}, schema)[0] == {"n": 12}
    assert repaired({"n": "2.5"}, schema)[0] == {"n": 2.5}
    assert repaired({"n": "x"}, schema)[0] == {"n": "x"}


def test_nullable_takes_null() -> None:
    schema = {"properties": {"n": {"type": "integer", "nullable": True}}}
    assert problems({"n": None}, schema) == []
    assert repaired({"n": None}, schema) == ({"n": None}, [])


def test_a_bad_default_and_an_unreadable_pattern_do_nothing() -> None:
    schema = {"properties": {"n": {"type": "integer", "default": "many"}, "s": {"type": "string", "pattern": "(?<"}}}
    assert repaired({}, schema) == ({}, [])
    assert problems({"s": "x"}, schema) == []


@pytest.mark.timing
def test_references_that_fork_or_never_end_are_survived() -> None:
    steps = {str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)}
    ring = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    long = {"$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(3000)}, "$ref": "#/$defs/0"}
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    started = time.monotonic()
    for schema in ({"$defs": steps, "$ref": "#/$defs/0"}, ring, long):
        assert problems({"x": 1}, schema) == []
        assert repaired({"x": 1}, schema)[0] == {"x": 1}
    assert problems(deep, {"properties": {"a": {"$ref": "#"}}, "maxProperties": 1}) == []
    assert time.monotonic() - started < 2


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["type", "properties", "items", "anyOf", "enum", "required"]), values), calls)
def test_malformed_schemas_are_read_as_sound_ones(schema: dict[str, Any], call: dict[str, Any]) -> None:
    assert (problems(call, schema) == []) == valid(call, sound(schema))
    repaired(call, schema)
