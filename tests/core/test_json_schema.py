"""Schemas made acceptable and small, checked by jsonschema."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from toolscout.core.json_schema import (
    object_schema,
    resolved,
    safe_keys,
    slim,
    sound,
    type_word,
    with_items,
    with_safe_keys,
)

NAMES = ["a", "b", "$c d", "$ref", "type"]
KEYWORDS = (
    "type properties required items prefixItems additionalProperties anyOf oneOf allOf not enum const $ref $defs title"
    " definitions description default examples minimum exclusiveMinimum multipleOf minLength pattern format if then"
    " patternProperties dependentRequired dependencies dependentSchemas uniqueItems $schema $id $anchor nullable x-own"
).split()
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=True)
    | st.sampled_from(
        ["object", "string", "array", "int", "any", "a", "#/$defs/a", "#", "#/properties/b", "http://x.org/s", "é"]
    )
)
junk = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS + NAMES), inner, max_size=4),
    max_leaves=25,
)
junk_schemas = st.dictionaries(st.sampled_from(KEYWORDS), junk, max_size=6)

leaves: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"type": "string", "description": "Text.", "minLength": 1},
        {"type": "integer", "minimum": 0, "default": 1},
        {"type": ["boolean", "null"], "title": "Flag"},
        {"enum": [1, 2, "x"]},
        {"enum": list(range(20))},
        {"const": "x"},
        {"type": "array", "uniqueItems": True},
        {"$ref": "#/$defs/D"},
    ]
)


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3)},
            optional={"required": st.just(["a"]), "additionalProperties": st.booleans() | inner, "not": inner},
        )
        | st.builds(lambda items: {"type": "array", "items": items, "maxItems": 3}, inner)
        | st.builds(
            lambda key, some: {key: some}, st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(inner, min_size=1)
        )
        | st.builds(lambda a, b: {"oneOf": [a], "anyOf": [b]}, inner, inner)
        | st.builds(lambda a, b: {"if": a, "then": b}, inner, inner)
    )


nested = st.recursive(leaves, _grown, max_leaves=8)
valid_schemas = st.builds(
    lambda properties, definition: {"type": "object", "properties": properties, "$defs": {"D": definition}},
    st.dictionaries(st.sampled_from("abc"), nested, max_size=3),
    leaves.filter(lambda leaf: "$ref" not in leaf)
    | st.just({"type": "object", "properties": {"a": {"$ref": "#/$defs/D"}}}),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


def is_valid(schema: Any) -> bool:
    return Draft202012Validator(Draft202012Validator.META_SCHEMA).is_valid(schema)


def references(node: Any) -> list[Any]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for value in node.values() for ref in references(value)]
    return [ref for value in node for ref in references(value)] if isinstance(node, list) else []


@settings(max_examples=80, deadline=None)
@given(junk_schemas)
def test_whatever_is_published_becomes_a_valid_schema(schema: dict[str, Any]) -> None:
    assert is_valid(sound(schema))
    top = object_schema(schema)
    for made in (top, with_items(top), with_safe_keys(top), slim(top), slim(sound(schema))):
        assert is_valid(made)
    assert top["type"] == "object"
    assert isinstance(top["properties"], dict)
    assert not top.keys() & {"anyOf", "oneOf", "allOf", "not", "enum", "$ref"}


@settings(max_examples=80, deadline=None)
@given(valid_schemas, st.dictionaries(st.sampled_from("abc"), values, max_size=3))
def test_valid_schemas_stay_as_they_are_and_slim_ones_accept_no_less(
    schema: dict[str, Any], call: dict[str, Any]
) -> None:
    assert is_valid(schema)
    assert sound(schema) == object_schema(schema) == with_safe_keys(schema) == schema
    small = slim(schema)
    assert is_valid(small)
    assert all(resolved(small, reference) is not None for reference in references(small))
    if Draft202012Validator(schema).is_valid(call):
        assert Draft202012Validator(small).is_valid(call)
        assert Draft202012Validator(with_items(schema)).is_valid(call)


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        ({"type": "any"}, {}),
        ({"type": "str"}, {"type": "string"}),
        ({"type": ["String", "null", "void"]}, {"type": ["string", "null"]}),
        ({"type": []}, {}),
        ({"required": True}, {}),
        ({"required": ["a", "a"]}, {}),
        ({"exclusiveMinimum": True, "minimum": 3}, {"minimum": 3}),
        ({"maximum": float("nan")}, {}),
        ({"properties": {"type": "object"}}, {"properties": {"type": {}}}),
        ({"properties": [{"name": "q"}]}, {}),
        ({"items": [{"type": "int"}]}, {"prefixItems": [{"type": "integer"}]}),
        ({"anyOf": []}, {}),
        ({"x-own": {"type": 5}, "default": {"type": 5}}, {"x-own": {"type": 5}, "default": {"type": 5}}),
    ],
)
def test_what_is_malformed_is_put_right(published: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sound(published) == expected


def test_the_top_becomes_an_object() -> None:
    assert object_schema({}) == {"type": "object", "properties": {}}
    assert object_schema({"type": "array", "items": {}})["type"] == "object"
    assert object_schema({"type": ["object", "null"], "properties": {"a": {}}}) == {
        "type": "object",
        "properties": {"a": {}},
    }
    kept = {"type": "object", "properties": {}, "additionalProperties": False, "description": "None needed."}
    assert object_schema(kept) == kept


def test_branches_at_the_top_are_moved_up() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string"}},
        "required": ["id"],
        "oneOf": [
            {"properties": {"mode": {"const": "x"}, "path": {"type": "string"}}, "required": ["mode", "path"]},
            {"properties": {"mode": {"const": "y"}, "url": {"type": "string"}}, "required": ["mode", "url"]},
        ],
    }
    assert object_schema(schema) == {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "mode": {"anyOf": [{"const": "x"}, {"const": "y"}]},
            "path": {"type": "string"},
            "url": {"type": "string"},
        },
        "required": ["id", "mode"],
    }
    either = {"type": "object", "properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert object_schema(either) == {"type": "object", "properties": {"a": {}, "b": {}}}
    both = {"allOf": [{"$ref": "#/definitions/A"}, {"properties": {"b": {}}, "required": ["b"]}]}
    both["definitions"] = {"A": {"properties": {"a": {"type": "string"}}, "required": ["a"]}}  # type: ignore[assignment]
    assert object_schema(both)["properties"] == {"a": {"type": "string"}, "b": {}}
    assert object_schema(both)["required"] == ["a", "b"]


@pytest.mark.timing
def test_a_reference_at_the_top_is_followed_and_cycles_end() -> None:
    named = {
        "$ref": "#/definitions/Args",
        "definitions": {"Args": {"type": "object", "properties": {"q": {"type": "string"}}}},
    }
    assert object_schema(named)["properties"] == {"q": {"type": "string"}}
    forked = {f"D{i}": {"allOf": [{"$ref": f"#/$defs/D{i + 1}"}] * 3} for i in range(60)}
    started = time.perf_counter()
    object_schema({"$ref": "#/$defs/D0", "$defs": {**forked, "D60": {"$ref": "#/$defs/D0"}}})
    assert time.perf_counter() - started < 1


def test_references_that_lead_nowhere_are_dropped() -> None:
    properties = {
        "a": {"$ref": "#/$defs/None"},
        "b": {"$ref": "http://x.org/b"},
        "c": {"$ref": "#/properties/d"},
        "d": {},
    }
    made = object_schema({"type": "object", "properties": properties})
    assert made["properties"] == {"a": {}, "b": {}, "c": {"$ref": "#/properties/d"}, "d": {}}


def test_local_references_are_read_as_pointers() -> None:
    root = {"$defs": {"a/b": {"x": [1, {"y": 2}]}, "c d": 3}}
    assert resolved(root, "#/$defs/a~1b/x/1/y") == 2
    assert resolved(root, "#/$defs/c%20d") == 3
    assert resolved(root, "#") is root
    assert [resolved(root, where) for where in ("#/$defs/q", "#anchor", "other.json#/a", 5, None)] == [None] * 5


def test_a_schema_of_endless_depth_is_cut() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"type": "array", "items": deep}
    assert is_valid(slim(with_items(object_schema({"type": "object", "properties": {"a": deep}}))))


def test_slim_keeps_names_types_and_what_is_required() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "title": "Args",
        "properties": {
            "description": {"type": "string", "description": "About.", "examples": ["x"], "default": "y"},
            "colour": {"type": "string", "enum": [f"c{i}" for i in range(30)]},
            "mode": {"type": "string", "enum": ["a", "b"]},
        },
        "required": ["description"],
    }
    assert slim(schema) == {
        "type": "object",
        "properties": {
            "description": {"type": "string"},
            "colour": {"type": "string", "description": "e.g. c0, c1, c2, c3, c4, c5, c6, c7, c8, c9"},
            "mode": {"type": "string", "enum": ["a", "b"]},
        },
        "required": ["description"],
    }


def test_arrays_are_given_items() -> None:
    made = with_items(
        {"properties": {"a": {"type": "array"}, "b": {"type": ["string", "array"]}, "c": {"items": {"type": "array"}}}}
    )
    assert made == {
        "properties": {
            "a": {"type": "array", "items": {}},
            "b": {"type": ["string", "array"], "items": {}},
            "c": {"items": {"type": "array", "items": {}}},
        }
    }


@given(
    st.lists(st.text(max_size=70) | st.sampled_from(["a b", "a_b", "a.b", "a[b]", "$a", "a"]), unique=True, max_size=8)
)
def test_property_keys_are_made_safe_without_collision(keys: list[str]) -> None:
    renamed = safe_keys(keys)
    assert list(renamed) == keys
    assert len(set(renamed.values())) == len(keys)
    pattern = Draft202012Validator({"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$"})
    assert all(pattern.is_valid(name) and "\n" not in name for name in renamed.values())
    assert all(renamed[key] == key for key in keys if pattern.is_valid(key) and "\n" not in key)


def test_renamed_keys_stay_required() -> None:
    made = with_safe_keys(
        {"type": "object", "properties": {"filter[id]": {"type": "string"}, "b": {}}, "required": ["filter[id]"]}
    )
    assert made == {
        "type": "object",
        "properties": {"filter_id": {"type": "string"}, "b": {}},
        "required": ["filter_id"],
    }


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["integer", "null"]}, "integer|null"),
        ({"type": "array", "items": {"type": "string"}}, "string[]"),
        ({"type": "array", "items": {"type": ["string", "null"]}}, "(string|null)[]"),
        ({"type": "array"}, "array"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string|null"),
        ({"anyOf": [{"type": "string"}, {}]}, "any"),
        ({"$ref": "#/$defs/D"}, "object"),
        ({"const": "x"}, "string"),
        (True, "any"),
    ],
)
def test_types_in_a_word(schema: Any, word: str) -> None:
    assert type_word(schema, {"$defs": {"D": {"properties": {}}}}) == word
