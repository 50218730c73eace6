"""Integers beyond floats, or beyond what Python writes, and enums of thousands of values: in schemas and arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from toolscout.core import argument_checks, json_schema
from toolscout.core.argument_checks import is_multiple, problems, repaired, value_problems
from toolscout.core.json_schema import canonical, object_schema, resolved, slim, sound
from toolscout.core.tool import Tool
from toolscout.core.vendor_formats import FORMATS, LEVELS, to_wire

HUGE = 10**400  # no float is so large
UNWRITABLE = 10**5000  # str and json refuse it
BOUNDS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]
COUNTS = "minLength maxLength minItems maxItems minProperties maxProperties minContains maxContains".split()


def with_one(node: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"n": node}}


@pytest.mark.parametrize("keyword", [*BOUNDS, *COUNTS])
@pytest.mark.parametrize("value", [HUGE, -HUGE, UNWRITABLE], ids=["huge", "negative", "unwritable"])
def test_a_bound_beyond_floats_is_dropped_like_other_malformed_ones(keyword: str, value: int) -> None:
    assert sound({"type": "number", keyword: value}) == {"type": "number"}
    assert problems({"n": 3}, with_one({keyword: value})) == []


def test_the_largest_float_is_a_bound() -> None:
    largest = int(1.7976931348623157e308)
    assert sound({"maximum": largest}) == {"maximum": largest}
    assert sound({"maximum": largest + 1}) == {}


@pytest.mark.parametrize("keyword", ["enum", "const", "default", "examples", "x-unknown"])
def test_values_that_json_can_hold_stay_and_others_go(keyword: str) -> None:
    def node(value: int) -> dict[str, Any]:
        return {"type": "integer", keyword: [1, value] if keyword in ("enum", "examples") else value}

    assert sound(with_one(node(HUGE))) == with_one(node(HUGE))
    assert sound(with_one(node(UNWRITABLE))) == with_one({"type": "integer"})
    assert sound({"anyOf": [node(UNWRITABLE)], "$defs": {"d": node(3)}}) == {
        "anyOf": [{"type": "integer"}],
        "$defs": {"d": node(3)},
    }


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("value", [HUGE, UNWRITABLE], ids=["huge", "unwritable"])
def test_a_tool_with_huge_integers_is_rendered(format: Any, value: int) -> None:
    nodes = {keyword: {keyword: value} for keyword in [*BOUNDS, *COUNTS, "default", "const"]}
    nodes |= {"few": {"enum": [value]}, "many": {"enum": [value, *range(20)]}}
    schema = {"type": "object", "properties": nodes}
    tool = Tool("post", "weigh", input_schema=schema, output_schema=schema)
    shown = [to_wire(tool, format, level) for level in LEVELS]
    written = json.dumps([*shown, object_schema(schema), slim(sound(schema))])
    assert json.loads(written)[-1]["properties"].keys() == nodes.keys()
    assert all("weigh" in json.dumps(one) for one in shown)
    # An integer that JSON can hold stays as a value, and no bound or count of such a size is left.
    assert ("1" + "0" * 400 in written) == (value == HUGE)
    assert not any(f'"{keyword}": 1000' in written for keyword in [*BOUNDS, *COUNTS])


def test_a_reference_into_a_list_may_have_any_number() -> None:
    assert resolved({"anyOf": [{}, {"type": "null"}]}, "#/anyOf/1") == {"type": "null"}
    assert resolved({"anyOf": [{}]}, f"#/anyOf/{'1' * 5000}") is None


@pytest.mark.parametrize(
    ("node", "told"),
    [
        ({"type": "number", "maximum": 5.5}, "must be at most 5.5, not 1000"),
        ({"type": "integer", "exclusiveMaximum": 5}, "must be less than 5, not 1000"),
        ({"type": "number", "multipleOf": 0.3}, "must be a multiple of 0.3, not 1000"),
        ({"type": "integer", "multipleOf": 7}, "must be a multiple of 7, not 1000"),
        ({"type": "string"}, "must be a string, not an integer 1000"),
        ({"enum": [1, 2]}, "must be one of 1, 2; not 1000"),
        ({"const": HUGE + 1}, "must be 1000"),
        ({"type": "number", "minimum": 5.5, "multipleOf": 0.5}, ""),
        ({"type": "number"}, ""),
        ({"enum": ["a", HUGE]}, ""),
        ({"const": HUGE}, ""),
    ],
)
def test_a_huge_argument_is_compared_as_the_integer_it_is(node: dict[str, Any], told: str) -> None:
    found = problems({"n": HUGE}, with_one(node))
    assert found == [] if not told else told in found[0]
    assert all(len(one) < 200 for one in found)
    better, _ = repaired({"n": HUGE}, with_one(node))
    assert better["n"] == (str(HUGE) if node == {"type": "string"} else HUGE)


def test_a_huge_negative_argument_is_below_its_bounds() -> None:
    (told,) = value_problems(-HUGE, {"type": "number", "minimum": -5.5})
    assert told.startswith("the object of arguments must be at least -5.5, not -1000")


def test_huge_integers_are_whole_numbers_of_small_steps() -> None:
    assert is_multiple(HUGE, 0.1)
    assert is_multiple(HUGE + 1, 0.5)
    assert not is_multiple(HUGE + 1, 1.5)
    assert not is_multiple(2.5, HUGE)
    assert all(is_multiple(cents / 100, 0.01) for cents in range(59_685_000, 59_686_000))
    assert not is_multiple(596_858.195, 0.01)


NODES: list[dict[str, Any]] = [
    {},
    {"type": "integer"},
    {"type": "number", "maximum": 5.5},
    {"type": "string"},
    {"type": "array", "items": {"type": "integer"}},
    {"enum": [1, "x"]},
    {"enum": [UNWRITABLE, UNWRITABLE + 1]},
    {"const": 3},
    {"anyOf": [{"type": "string"}, {"type": "integer"}]},
]


@pytest.mark.parametrize("node", NODES)
def test_an_argument_that_cannot_be_written_is_refused_with_a_reason(node: dict[str, Any]) -> None:
    for arguments_ in ({"n": UNWRITABLE}, {"n": [UNWRITABLE]}, {"n": {"m": UNWRITABLE}}):
        found = problems(arguments_, with_one(node))
        repaired(arguments_, with_one(node))
        if arguments_["n"] == UNWRITABLE:
            assert "too many digits" in found[0]
            assert repaired(arguments_, with_one({**node, "default": 1}))[0] == arguments_


def test_a_text_of_too_many_digits_is_no_number() -> None:
    schema = with_one({"type": "integer"})
    better, done = repaired({"n": "1" * 5000}, schema)
    assert (better, done) == ({"n": "1" * 5000}, [])
    assert problems(better, schema)[0].startswith('"n" must be an integer, not a string "111')
    assert repaired({"n": "1" * 400}, schema)[0] == {"n": int("1" * 400)}


@pytest.fixture
def canonised(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The values whose canonical form was asked for."""
    seen: list[Any] = []

    def counted(value: Any) -> str:
        seen.append(value)
        return canonical(value)

    for module in (json_schema, argument_checks):
        monkeypatch.setattr(module, "canonical", counted)
    return seen


def test_a_long_enum_is_read_once_for_all_items_of_an_array(canonised: list[Any]) -> None:
    values = [f"v_{number}" for number in range(300)]
    schema = with_one({"type": "array", "items": {"type": "string", "enum": values}})
    assert problems({"n": values}, schema) == []
    assert len(canonised) == 600  # each value of the enum, each item
    canonised.clear()
    better, done = repaired({"n": [value.upper() for value in values]}, schema)
    assert better == {"n": values}
    assert len(done) == 300
    assert len(canonised) <= 6 * 300
    (first, *rest) = problems({"n": ["a"] * 300}, schema)
    assert first.endswith(f'{", ".join(json.dumps(value) for value in values[:30])} … (300 in all); not "a"')
    assert rest[-1] == "and more: put these right first"


def test_values_spelled_alike_are_not_guessed() -> None:
    schema = with_one({"enum": ["north_west", "North-West", "south"]})
    assert repaired({"n": "NORTH WEST"}, schema) == ({"n": "NORTH WEST"}, [])
    assert repaired({"n": "SOUTH"}, schema)[0] == {"n": "south"}
