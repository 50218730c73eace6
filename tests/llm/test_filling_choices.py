"""Choices of thousands of values, written by a model under a schema: each is looked at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.llm.test_filling import ENDS, VOCABULARY, followed, written
from toolscout.core.argument_checks import Checker
from toolscout.errors import BadCompletion
from toolscout.llm.constrained_json import grammar as grammar_module
from toolscout.llm.constrained_json.filling import Filling
from toolscout.llm.constrained_json.grammar import Grammar

VALUES = [f"v{number}" for number in range(400)]
HUGE, UNWRITABLE = 10**400, 10**5000


def with_one(node: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": node}, "required": ["a"]}


@pytest.mark.parametrize(
    ("node", "enums"),
    [
        ({"type": "string", "enum": VALUES}, 1),
        ({"type": "array", "items": {"enum": VALUES}, "minItems": 4}, 1),
        (with_one(with_one({"enum": VALUES})), 1),
        ({"anyOf": [{"enum": VALUES}, {"type": "array", "items": {"enum": VALUES}}]}, 2),
        ({"allOf": [{"enum": VALUES}, {"enum": VALUES[::-1]}]}, 1),
    ],
)
def test_each_value_of_an_enum_is_checked_once(node: Any, enums: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made, checked = list[Any](), list[Any]()

    class Counting(Checker):
        def __init__(self, schema: Any) -> None:
            made.append(schema)
            super().__init__(schema)

        def problems(self, value: Any, node: Any = None, path: str = "") -> list[str]:
            checked.append(value)
            return super().problems(value, node, path)

    monkeypatch.setattr(grammar_module, "Checker", Counting)
    written(with_one(node), seed=1)
    assert 1 <= len(made) <= enums  # one that was not come to is not read
    assert not any("enum" in schema for schema in made)
    assert len(checked) == len(made) * len(VALUES)


def test_a_long_enum_is_one_state_to_each_byte() -> None:
    grammar = Grammar({"enum": VALUES})
    states = grammar.start
    for byte in b'"v12':
        assert len(states) == 1
        states = grammar.step(states, byte)
    assert grammar.viable(states) == frozenset(b'"0123456789')
    assert grammar.step(grammar.step(states, ord("7")), ord('"')) == (None,)
    assert grammar.step(states, ord("x")) == ()


def test_any_value_of_a_long_enum_can_be_written() -> None:
    for value in ("v0", "v39", "v399"):
        assert followed(with_one({"enum": VALUES}), json.dumps({"a": value})) == {"a": value}
    numbers = with_one({"enum": [1, 12, 123, 2, 1.5, "1", None]})
    for one in (1, 12, 123, 2, 1.5, "1", None):
        assert followed(numbers, json.dumps({"a": one})) == {"a": one}


def test_values_that_the_rest_of_the_schema_forbids_are_not_written() -> None:
    choices = {"type": ["string", "integer"], "enum": ["ab", "abc", 3, 3.5, None]}
    schema = with_one({**choices, "maxLength": 2, "minimum": 4})
    assert {written(schema, seed)[0] for seed in range(20)} == {'{"a": "ab"}'}
    assert written(with_one({"const": "a", "enum": ["b", "a"]}), 1)[0] == '{"a": "a"}'
    for nothing in ({"const": "c", "enum": ["b", "a"]}, {"allOf": [{"enum": [1]}, {"enum": [True]}]}):
        with pytest.raises(BadCompletion, match="no JSON can fit"):
            Filling(VOCABULARY, with_one(nothing), ENDS)


def test_a_choice_that_is_cut_off_is_finished_where_only_one_is_left() -> None:
    filling = Filling(VOCABULARY, with_one({"enum": ["celsius", "fahrenheit"]}), ENDS)
    tokens = {text: token for token, text in VOCABULARY.bytes_of.items() if len(text) == 1}
    begun = [tokens[bytes([byte])] for byte in b'{"a": "']
    assert filling.text([*begun, tokens[b"f"]]) == ('{"a": "fahrenheit"}', False)
    with pytest.raises(BadCompletion, match="cut off"):
        filling.text(begun)


@pytest.mark.parametrize("keyword", ["minimum", "maximum", "exclusiveMinimum", "multipleOf", "default"])
@pytest.mark.parametrize("value", [HUGE, UNWRITABLE], ids=["huge", "unwritable"])
def test_bounds_beyond_floats_bind_nobody(keyword: str, value: int) -> None:
    assert followed(with_one({"type": "number", keyword: value}), '{"a": 3}') == {"a": 3}
    least = {"minLength": value, "minItems": value}
    assert followed(with_one({"type": "string", **least}), '{"a": "x"}') == {"a": "x"}


def test_a_huge_value_can_be_chosen() -> None:
    assert followed(with_one({"enum": [HUGE]}), f'{{"a": {HUGE}}}') == {"a": HUGE}
    assert followed(with_one({"type": "integer", "enum": [UNWRITABLE, 3]}), '{"a": 3}') == {"a": 3}
