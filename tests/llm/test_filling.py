"""Whatever a model would like to write, what comes out is JSON that fits; jsonschema says so."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.llm.language_toys import END, Follower, RandomWriter, toy_tokenizer
from toolscout.errors import BadCompletion
from toolscout.llm.constrained_json.filling import Filling, TokenVocabulary
from toolscout.llm.constrained_json.numbers import Numbers

TOKENIZER = toy_tokenizer()
VOCABULARY = TokenVocabulary(TOKENIZER)
SIZE = TOKENIZER.get_vocab_size()
ENDS = [TOKENIZER.token_to_id(END)]
STRUCTURE = [token for token, text in VOCABULARY.bytes_of.items() if set(text) & set(b'"}]')]
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
    },
    "required": ["city", "days"],
}


def written(schema: dict[str, Any], seed: int, most: int = 3000) -> tuple[str, bool]:
    filling = Filling(VOCABULARY, schema, ENDS)
    writer = RandomWriter(SIZE, favour=STRUCTURE)
    tokens = writer.write([[1]], most=most, temperature=1.0, end=ENDS, allow=filling.rows(), seed=seed)[0]
    return filling.text(tokens)


def followed(schema: dict[str, Any], text: str) -> Any:
    """What comes out when the model would like to write a text."""
    filling = Filling(VOCABULARY, schema, ENDS)
    tokens = Follower(TOKENIZER, [text]).write([[1]], most=500, end=ENDS, allow=filling.rows())[0]
    return json.loads(filling.text(tokens)[0])


texts = st.builds(
    lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
    st.integers(0, 3),
    st.integers(0, 9),
)
numbers = st.builds(
    lambda kind, low, width: {"type": kind, "minimum": low, "maximum": low + width},
    st.sampled_from(["integer", "number"]),
    st.integers(-2000, 2000),
    st.integers(0, 300),
) | st.sampled_from(
    [
        {"type": "integer", "exclusiveMinimum": 0, "multipleOf": 7},
        {"type": "number", "exclusiveMinimum": 0.25, "exclusiveMaximum": 0.26},
        {"type": "number", "minimum": -0.5, "multipleOf": 0.25, "maximum": 3},
    ]
)
others = st.sampled_from(
    [
        {"type": "boolean"},
        {"type": ["null", "integer"]},
        {"enum": ["a", "ab", 'a"b', 3, None, [1], "日"]},
        {"const": {"k": "v"}},
        {},
        {"$ref": "#/$defs/D"},
        {"type": "integer", "nullable": True},
    ]
)


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "ab", 'q"', "ß"])
    return (
        st.builds(
            lambda properties, required: {
                "type": "object",
                "properties": properties,
                "required": [name for name in properties if name in required],
                "additionalProperties": False,
            },
            st.dictionaries(names, inner, max_size=3),
            st.lists(names, max_size=2),
        )
        | st.builds(
            lambda items, least: {"type": "array", "items": items, "minItems": least, "maxItems": 3},
            inner,
            st.integers(0, 2),
        )
        | st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda one: {"allOf": [one]}, inner)
        | st.builds(lambda values: {"type": "object", "additionalProperties": values, "maxProperties": 2}, inner)
    )


@settings(max_examples=120, deadline=None)
@given(st.recursive(texts | numbers | others, _grown, max_leaves=6), texts | numbers, st.integers(0, 10**6))
def test_random_writers_cannot_leave_the_schema(inner: Any, definition: Any, seed: int) -> None:
    schema = {"type": "object", "properties": {"x": inner}, "required": ["x"], "$defs": {"D": definition}}
    text, whole = written(schema, seed)
    assert whole
    value = json.loads(text)
    if "nullable" not in json.dumps(schema):  # OpenAPI's word, which jsonschema does not know
        Draft202012Validator(schema).validate(value)


@settings(max_examples=150, deadline=None)
@given(numbers, st.integers(0, 10**6))
def test_every_beginning_of_a_number_can_be_ended(schema: dict[str, Any], seed: int) -> None:
    allowed, rng, text = Numbers.of(schema, whole=schema["type"] == "integer"), np.random.default_rng(seed), ""
    while True:
        following = [sign for sign in "0123456789-." if sign not in (text and "-") + "."[: "." in text]]
        following = [sign for sign in following if allowed.may_begin(text + sign)]
        if allowed.may_end(text) and (not following or rng.random() < 0.3):
            break
        assert following, text
        text += str(rng.choice(following))
    Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.parametrize(
    "value",
    [
        {"city": "Lisbon", "days": 3},
        {"city": "", "days": 14, "unit": "celsius"},
        {"city": 'say "hi"\\n', "days": 1, "tags": []},
        {"city": "日本 café", "days": 1, "unit": "fahrenheit", "tags": ["a", "and"]},
    ],
)
def test_a_model_that_knows_what_to_say_can_say_it(value: dict[str, Any]) -> None:
    assert followed(WEATHER, json.dumps(value, ensure_ascii=False)) == value


@pytest.mark.parametrize(
    ("schema", "wish", "wanted"),
    [
        ({"type": "integer", "maximum": 14}, "15", 1),  # 15 cannot be begun; 1 can stand
        ({"enum": ["celsius", "kelvin"]}, '"celsius"', "celsius"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, '"12"', "12"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "-12", -12),
        ({"type": "string", "maxLength": 3}, '"abcdef"', "abc"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": "array", "items": {"type": "number"}}, "[0.5, -1, 12.25]", [0.5, -1, 12.25]),
        ({"properties": {"a": {"type": "string"}, "b": {"$ref": "#"}}}, '{"b": {"a": "x"}}', {"b": {"a": "x"}}),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {"const": 1}, "b": {"const": 2}},
          "type": "object"}, '{"b": 2}', {"b": 2}),
    ],
)  # fmt: skip
def test_wishes_are_granted_as_far_as_the_schema_goes(schema: dict[str, Any], wish: str, wanted: Any) -> None:
    assert followed(schema, wish) == wanted


def test_what_was_cut_off_is_closed_but_nothing_is_made_up() -> None:
    filling = Filling(VOCABULARY, WEATHER, ENDS)

    def cut_off(text: str) -> tuple[str, bool]:
        tokens = [
            token for byte in text.encode() for token, piece in VOCABULARY.bytes_of.items() if piece == bytes([byte])
        ]
        return filling.text(tokens)

    assert cut_off('{"city": "x", "days": 3, "tags": ["a", "b') == (
        '{"city": "x", "days": 3, "tags": ["a", "b"]}',
        False,
    )
    assert cut_off('{"city": "x", "days": 3, "unit": "fahr')[0].endswith('"unit": "fahrenheit"}')
    assert cut_off('{"city": "x", "days": 3')[0] == '{"city": "x", "days": 3}'
    assert cut_off('{"city": "x", "days": 3, "tags": ["ab\\')[0].endswith('"tags": ["ab"]}')
    for missing in ("", '{"city": "x', '{"city": "x", "da', '{"city": "x", "days": '):
        with pytest.raises(BadCompletion, match="raise max_tokens"):
            cut_off(missing)


def test_rules_that_cannot_be_followed_while_writing_are_checked_at_the_end() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[0-9]{4}$"}}, "required": ["a"]}
    assert followed(schema, '{"a": "2024"}') == {"a": "2024"}
    with pytest.raises(BadCompletion, match=r"must match the pattern .*; ask again"):
        followed(schema, '{"a": "now"}')


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": []},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "string", "minLength": 2, "maxLength": 1},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
    ],
)
def test_a_schema_that_nothing_fits_is_refused_at_once(schema: dict[str, Any]) -> None:
    with pytest.raises(BadCompletion, match="no JSON can fit"):
        Filling(VOCABULARY, schema, ENDS)


def test_optional_parts_that_cannot_be_are_never_begun() -> None:
    schema = {"type": "object", "properties": {"a": False, "b": {"const": 1}}, "additionalProperties": False}
    assert {written(schema, seed)[0] for seed in range(8)} == {"{}", '{"b": 1}'}


def test_rows_are_kept_apart_and_may_be_asked_again() -> None:
    allow = Filling(VOCABULARY, WEATHER, ENDS).rows()
    opening = allow(0, [])
    token = int(opening[0])
    inside = allow(0, [token])
    assert np.array_equal(allow(1, []), opening)
    assert np.array_equal(allow(0, [token]), inside)
    assert np.array_equal(allow(0, []), opening)


def test_a_string_that_goes_round_and_round_is_closed() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"const": 1}}, "required": ["a", "b"]}
    found = followed(schema, '{"a": "' + "x, y, " * 50)
    assert found["a"].startswith("x, y, ")
    assert len(found["a"]) < 60
    assert followed(schema, '{"a": "10000000000", "b": 1}') == {"a": "10000000000", "b": 1}


def test_markup_is_no_text() -> None:
    assert ENDS[0] not in VOCABULARY.bytes_of
    assert VOCABULARY.bytes_of[TOKENIZER.token_to_id("Lisbon")] == b"Lisbon"


@pytest.mark.timing
def test_a_large_vocabulary_is_walked_quickly() -> None:
    words = ["".join(letters) for letters in itertools.product("aeinrst", repeat=5)]  # 16,807
    vocabulary = TokenVocabulary(toy_tokenizer([*words, '"', '",', '": "']))
    filling, started, steps = Filling(vocabulary, WEATHER, ENDS), time.monotonic(), 0
    for seed in range(3):
        tokens = RandomWriter(1).write([[1]], most=200, temperature=1.0, allow=filling.rows(), seed=seed)[0]
        filling.text(tokens)
        steps += len(tokens)
    assert (time.monotonic() - started) / steps < 0.02
