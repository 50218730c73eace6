"""Tool: its id, its record, and the document that is searched."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolscout.core.tool import (
    MAX_DOCUMENT_CHARS,
    MAX_NAME_CHARS,
    Origin,
    Tool,
    clean_text,
    name_of,
    namespace_of,
    split_words,
    tool_id,
)
from toolscout.errors import BadTool


@pytest.mark.parametrize(
    ("identifier", "words"),
    [
        ("searchIssues", "search Issues"),
        ("search_issues", "search issues"),
        ("search-issues", "search issues"),
        ("SearchIssuesV2", "Search Issues V 2"),
        ("getHTTPCode404", "get HTTP Code 404"),
        ("HTTPServer", "HTTP Server"),
        ("parseXML", "parse XML"),
        ("OAuth2Token", "O Auth 2 Token"),
        ("a1b2", "a 1 b 2"),
        ("__init__", "init"),
        ("v1/users/{id}", "v 1 users id"),
        ("größeMessen", "größe Messen"),
        ("PokéMCP", "Poké MCP"),
        ("ÉcoleNationale", "École Nationale"),
        ("ŁódźWeather", "Łódź Weather"),
        ("天気予報", "天気予報"),
        ("get天気", "get 天気"),
        ("получитьПогоду", "получитьПогоду"),
        ("", ""),
        ("--__--", ""),
    ],
)
def test_identifiers_are_split_where_words_meet(identifier: str, words: str) -> None:
    assert " ".join(split_words(identifier)) == words


@given(st.text(st.characters(exclude_categories=["M"])))
def test_splitting_loses_no_letter_and_no_digit(identifier: str) -> None:
    assert "".join(split_words(identifier)) == re.sub(r"[\W_]", "", identifier)


def lines(**fields: Any) -> list[str]:
    return Tool("ns", "tool", **fields).document().split("\n")


def schema_lines(properties: dict[str, Any], **rest: Any) -> list[str]:
    found = lines(input_schema={"type": "object", "properties": properties, **rest})
    assert found.pop(0) == "ns tool"
    return found


def test_the_document_in_full() -> None:
    tool = Tool(
        "Git-Hub",
        "searchIssues_v2",
        "Finds issues.\nFast.",
        "Issue search",
        service="Hosts code.",
        input_schema={
            "type": "object",
            "properties": {
                "repoName": {"type": "string", "description": "Where to look."},
                "state": {"type": "string", "enum": ["open", "closed", 3, None, True]},
                "page": {"type": "integer", "title": "Page", "description": "page"},
            },
        },
    )
    assert tool.document().split("\n") == [
        "Git-Hub searchIssues_v2",
        "git hub search issues v 2",
        "Issue search",
        "Finds issues. Fast.",
        "Hosts code.",
        "repoName repo name Where to look.",
        "state open closed 3",
        "page",
    ]


def test_the_document_does_not_say_the_same_twice() -> None:
    assert lines() == ["ns tool"]
    assert lines(title="TOOL", service="x", description="x") == ["ns tool", "x"]


def test_parameters_are_found_however_deep() -> None:
    deep = {"type": "object", "properties": {"zipCode": {"description": "Postal code."}}}
    assert schema_lines({"address": deep}) == ["address", "zipCode zip code Postal code."]
    assert schema_lines({"stops": {"type": "array", "items": deep}}) == ["stops", "zipCode zip code Postal code."]
    assert schema_lines({"by": {"additionalProperties": deep}}) == ["by", "zipCode zip code Postal code."]
    for key in ("anyOf", "oneOf", "allOf", "prefixItems", "items"):
        assert schema_lines({"x": {key: [deep, {"enum": ["red"]}]}}) == ["x", "zipCode zip code Postal code.", "red"]
    assert schema_lines({"tags": {"items": {"enum": ["a", "b"], "description": "A tag."}}}) == ["tags", "A tag. a b"]
    assert schema_lines({}, then={"properties": {"why": {}}}) == ["why"]
    assert schema_lines({"kind": {"const": "circle"}}) == ["kind circle"]


def test_definitions_are_followed_once_and_cycles_end() -> None:
    node = {
        "description": "A node.",
        "properties": {
            "label": {"enum": ["leaf"]},
            "next": {"$ref": "#/$defs/Node"},
            "colour": {"$ref": "#/$defs/C d"},
        },
    }
    definitions = {"Node": node, "C d": {"enum": ["red", "green"]}}
    properties = {"root": {"$ref": "#/$defs/Node"}, "tint": {"anyOf": [{"$ref": "#/$defs/C%20d"}, {"type": "null"}]}}
    expected = ["root", "A node.", "label leaf", "next", "colour", "red green", "tint", "red green"]
    assert schema_lines(properties, **{"$defs": definitions}) == expected
    assert schema_lines({"a": {"$ref": "#/definitions/D"}}, definitions={"D": {"enum": ["x"]}}) == ["a", "x"]
    nowhere = {"a": {"$ref": "#/$defs/None"}, "b": {"$ref": "http://x.org/y"}, "c": {"$ref": "#"}, "d": {"$ref": 7}}
    assert schema_lines(nowhere) == ["a", "b", "c", "d"]


@pytest.mark.timing
def test_no_schema_takes_long() -> None:
    count = 60
    branches = [{"$ref": f"#/$defs/D{number}"} for number in range(count)]
    entangled = {"$defs": {f"D{number}": {"anyOf": branches} for number in range(count)}, "anyOf": branches}
    shared: dict[str, Any] = {"properties": {"leaf": {}}}
    for _ in range(11):
        shared = {"anyOf": [shared] * 12}
    wide = {"properties": {f"parameter{number}": {"description": "word " * 50} for number in range(50_000)}}
    long = {"properties": {"e": {"enum": ["x" * 1_000_000] * 10, "description": "y" * 10_000_000}}}
    for schema in (entangled, shared, wide, long):
        started = time.process_time()
        assert len(Tool("n", "t", input_schema=schema).document()) <= MAX_DOCUMENT_CHARS + len("\nn t")
        assert time.process_time() - started < 1.5


@pytest.mark.timing
def test_a_description_of_megabytes_is_cut_in_the_document_alone() -> None:
    tool = Tool("ns", "tool", "naïve wörds\x1b[31m " * 800_000, title="t" * 10_000_000)
    started = time.process_time()
    document = tool.document()
    assert time.process_time() - started < 1
    assert len(document) <= MAX_DOCUMENT_CHARS
    assert document.startswith("ns tool\n")
    assert len(tool.description) > 10_000_000


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        ("a\tb\r\nc", "a b c"),
        ("  two   spaces  ", "two spaces"),
        ("red \x1b[1;31mtext\x1b[0m here", "red text here"),
        ("\x1b]0;title\x07shown", "shown"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("\x1b]0;open\nnext line", "next line"),
        ("\x1b(Bplain\x1bc", "plain"),
        ("c1\x9b31m", "c1 31m"),
        ("nul\x00bell\x07del\x7f", "nul bell del"),
        ("zero\u200bwidth\ufeff", "zero width"),
        ("left\u202eright\u2066iso\u061c", "left right iso"),
        ("hidden\U000e0041\U000e0042tags", "hidden tags"),
        ("lone\ud800surrogate", "lone surrogate"),
        ("non\xa0breaking", "non breaking"),
        ("naïve 天気 🎉", "naïve 天気 🎉"),
        ("", ""),
    ],
)
def test_text_is_cleaned(dirty: str, clean: str) -> None:
    assert clean_text(dirty) == clean


@given(st.text() | st.text(st.sampled_from("\x1b\x9b[]();:m0K\x07\\ ab\n\u202e")))
def test_clean_text_is_one_line_that_no_terminal_obeys(text: str) -> None:
    cleaned = clean_text(text)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", cleaned)
    assert cleaned == " ".join(cleaned.split()) == clean_text(cleaned)


words = st.text("abcABC", min_size=1, max_size=6)
schemas = st.recursive(
    st.fixed_dictionaries(
        {"type": st.just("string")}, optional={"description": words, "enum": st.lists(words, max_size=2)}
    ),
    lambda inner: (
        st.builds(
            lambda properties: {"type": "object", "properties": properties}, st.dictionaries(words, inner, max_size=3)
        )
        | st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda branches: {"anyOf": branches}, st.lists(inner, max_size=2))
    ),
    max_leaves=6,
)


def said(node: Any) -> set[str]:
    """Every parameter name, description and enum value of a schema, found by going through it blindly."""
    found: set[str] = set()
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "properties":
                found |= value.keys()
                value = list(value.values())
            found |= {value} if key == "description" else set(value) if key == "enum" else said(value)
    elif isinstance(node, list):
        for item in node:
            found |= said(item)
    return found


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(words, schemas, max_size=3), words, words)
def test_the_document_says_everything_and_no_json(properties: dict[str, Any], name: str, description: str) -> None:
    schema = {"type": "object", "properties": properties}
    document = Tool("ns", name, description, input_schema=schema).document()
    assert re.fullmatch(r"[a-zA-Z \n]*", document)
    told = set(document.lower().split())
    assert {word.lower() for word in said(schema) | {name, description}} <= told


def test_the_digest_is_that_of_the_searched_text() -> None:
    tool = Tool("ns", "tool", "Text.", tags=("a",), meta={"x": 1})
    assert tool.digest() == Tool("ns", "tool", "Text.", examples=("b",)).digest()
    assert tool.digest() == Tool("ns", "tool", " Text.\n").digest()
    assert tool.digest() != Tool("ns", "tool", "Other text.").digest()
    assert tool.content_digest() != Tool("ns", "tool", "Text.", tags=("b",), meta={"x": 1}).content_digest()


def test_the_order_of_keys_is_of_no_consequence() -> None:
    parameter = {"type": "string", "description": "A.", "enum": ["x"]}
    record = {"name": "t", "namespace": "n", "description": "d", "_meta": {"b": 1, "a": 2}}
    record["inputSchema"] = {"type": "object", "properties": {"p": parameter}, "required": ["p"]}
    turned = json.loads(json.dumps(record), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    one, two = Tool.from_record(record), Tool.from_record(turned)
    assert list(record) != list(turned)
    assert one == two
    assert (one.digest(), one.content_digest()) == (two.digest(), two.content_digest())


def test_digests_are_the_same_in_every_process() -> None:
    record = {
        "name": "naïve",
        "namespace": "n",
        "inputSchema": {"properties": {"a": {"enum": ["x", 1]}}},
        "tags": ["b", "a"],
    }
    script = (
        "import json, sys; from toolscout.core.tool import Tool; tool = Tool.from_record(json.loads(sys.argv[1]));"
        "sys.stdout.write(tool.digest() + ' ' + tool.content_digest())"
    )
    found = set()
    for seed in ("0", "1"):
        command = [sys.executable, "-c", script, json.dumps(record)]
        done = subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    tool = Tool.from_record(record)
    assert found == {f"{tool.digest()} {tool.content_digest()}"}


names = st.text(st.sampled_from("ab/%25F ."), min_size=1, max_size=6).map(str.strip).filter(bool)


@given(st.lists(st.tuples(names, names), unique=True))
def test_ids_are_unique_and_lead_back(pairs: list[tuple[str, str]]) -> None:
    ids = [tool_id(*pair) for pair in pairs]
    assert len(set(ids)) == len(pairs)
    assert [(namespace_of(one), name_of(one)) for one in ids] == pairs
    assert [Tool(*pair).id for pair in pairs] == ids


identifiers = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
texts = st.text(max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(texts, json_values, max_size=3)
origins = st.builds(Origin, kind=st.sampled_from(["mcp", "http", "function"]), target=texts, details=objects)
tools = st.builds(
    Tool,
    namespace=identifiers,
    name=identifiers,
    description=texts,
    title=texts,
    service=texts,
    input_schema=objects,
    output_schema=st.none() | objects,
    annotations=objects,
    tags=st.lists(texts, max_size=2).map(tuple),
    aliases=st.lists(texts, max_size=2).map(tuple),
    examples=st.lists(texts, max_size=2).map(tuple),
    origin=st.none() | origins,
    meta=objects,
)


@settings(max_examples=100, deadline=None)
@given(tools)
def test_any_tool_survives_its_record(tool: Tool) -> None:
    again = Tool.from_record(json.loads(json.dumps(tool.to_record())))
    assert again == tool
    assert hash(again) == hash(tool)
    assert (again.id, again.digest(), again.content_digest()) == (tool.id, tool.digest(), tool.content_digest())


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("name namespace description title inputSchema tags origin _meta service".split()), json_values
    )
)
def test_any_record_makes_a_tool_or_is_refused(record: dict[str, Any]) -> None:
    try:
        tool = Tool.from_record(record)
    except BadTool:
        return
    assert tool.document()
    assert Tool.from_record(tool.to_record()).content_digest() == tool.content_digest()


def test_records_of_other_spellings_are_read() -> None:
    schema = {"type": "object", "properties": {"q": {}}}
    for key in ("inputSchema", "input_schema", "parameters"):
        assert Tool.from_record({"name": "t", key: schema}).input_schema == schema
    assert Tool.from_record({"name": "t"}).id == "default/t"
    assert Tool.from_record({"name": "t"}, "given").id == "given/t"
    assert Tool.from_record({"name": "t", "namespace": "own"}, "given").id == "own/t"
    assert Tool.from_record({"name": "t", "_meta": {"server_description": "S."}}).service == "S."
    assert Tool.from_record({"name": "t", "tags": "one"}).tags == ("one",)
    assert Tool.from_record({"name": "t"}).input_schema == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "must be a JSON object, got list"),
        ({}, "a tool needs a name"),
        ({"name": " "}, "a tool needs a name"),
        ({"name": 5}, "a tool needs a name"),
        ({"name": "a\nb"}, "control characters"),
        ({"name": "a\x1b[0m"}, "control characters"),
        ({"name": " a"}, "outer spaces"),
        ({"name": "a\ud800"}, "control characters"),
        ({"name": "a", "namespace": "b\u202e"}, "control characters"),
        ({"name": "x" * (MAX_NAME_CHARS + 1)}, "longer than 1000 characters"),
        ({"name": "a", "namespace": ["b"]}, "a tool needs a namespace"),
        ({"name": "a", "description": ["b"]}, "tool default/a: description must be text, got list"),
        ({"name": "a", "title": 7}, "title must be text"),
        ({"name": "a", "inputSchema": []}, "inputSchema must be a JSON object, got list"),
        ({"name": "a", "outputSchema": "x"}, "outputSchema must be a JSON object or absent"),
        ({"name": "a", "origin": {"kind": "ftp", "target": "x"}}, "an origin needs kind"),
        ({"name": "a", "origin": {"kind": "mcp"}}, "an origin needs kind"),
        ({"name": "a", "origin": {"kind": "mcp", "target": "x", "details": 1}}, "an origin needs kind"),
    ],
)
def test_bad_records_are_refused(record: Any, message: str) -> None:
    with pytest.raises(BadTool, match=message):
        Tool.from_record(record)
