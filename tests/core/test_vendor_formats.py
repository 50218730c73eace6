"""Vendors' shapes against their documented formats, names that lead back, budgets."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from toolscout.core import vendor_formats
from toolscout.core.json_schema import object_schema
from toolscout.core.tool import Tool, tool_id
from toolscout.core.vendor_formats import (
    FORMATS,
    LEVELS,
    Format,
    Level,
    WireNames,
    call_arguments,
    estimate_tokens,
    render,
    to_wire,
)
from toolscout.errors import BadRequest, UnknownTool

# The documented formats. What is forbidden at the top of a schema, arrays' items and the patterns of property keys are
# documented by the interfaces' own error messages.
NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
FORBIDDEN_AT_TOP = {"not": {"anyOf": [{"required": [key]} for key in ("oneOf", "anyOf", "allOf", "enum", "not")]}}
OPENAI_PARAMETERS = {
    "type": "object",
    "required": ["type", "properties"],
    "properties": {"type": {"const": "object"}, "properties": {"type": "object"}},
    **FORBIDDEN_AT_TOP,
}
OPENAI_FIELDS: dict[str, Any] = {"name": NAME, "description": {"type": "string", "maxLength": 1024}}
VENDORS: dict[Format, dict[str, Any]] = {
    "openai": {
        "type": "object",
        "required": ["type", "function"],
        "additionalProperties": False,
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": False,
                "properties": {
                    **OPENAI_FIELDS,
                    "parameters": OPENAI_PARAMETERS,
                    "strict": {"type": ["boolean", "null"]},
                },
            },
        },
    },
    "openai-responses": {
        "type": "object",
        "required": ["type", "name", "parameters", "strict"],
        "additionalProperties": False,
        "properties": {
            "type": {"const": "function"},
            **OPENAI_FIELDS,
            "parameters": {"anyOf": [{"type": "null"}, OPENAI_PARAMETERS]},
            "strict": {"type": ["boolean", "null"]},
        },
    },
    "anthropic": {
        "type": "object",
        "required": ["name", "input_schema"],
        "additionalProperties": False,
        "properties": {
            "name": NAME,
            "description": {"type": "string"},
            "input_schema": {
                "type": "object",
                "required": ["type"],
                "properties": {
                    "type": {"const": "object"},
                    "properties": {"type": "object", "propertyNames": {"pattern": "^[a-zA-Z0-9_.-]{1,64}$"}},
                },
                **FORBIDDEN_AT_TOP,
            },
        },
    },
    "mcp": {
        "type": "object",
        "required": ["name", "inputSchema"],
        "additionalProperties": False,
        "properties": {
            "name": NAME,
            "title": {"type": "string"},
            "description": {"type": "string"},
            "inputSchema": {"type": "object", "required": ["type"], "properties": {"type": {"const": "object"}}},
            "outputSchema": {"type": "object", "required": ["type"], "properties": {"type": {"const": "object"}}},
            "annotations": {"type": "object"},
            "_meta": {"type": "object"},
        },
    },
}
VALIDATORS = {format: Draft202012Validator(schema) for format, schema in VENDORS.items()}
METASCHEMA = Draft202012Validator(Draft202012Validator.META_SCHEMA)


def parameters_of(shape: dict[str, Any]) -> Any:
    function = shape.get("function", shape)
    return next((function[key] for key in ("parameters", "input_schema", "inputSchema") if function.get(key)), {})


def arrays_without_items(node: Any) -> bool:
    if isinstance(node, dict):
        kind = node.get("type")
        bare = (kind == "array" or (isinstance(kind, list) and "array" in kind)) and "items" not in node
        return bare or any(arrays_without_items(value) for value in node.values())
    return isinstance(node, list) and any(map(arrays_without_items, node))


def check(tool: Tool, format: Format, level: Level) -> dict[str, Any]:
    shape = to_wire(tool, format, level)
    assert not list(VALIDATORS[format].iter_errors(shape))
    json.dumps(shape, ensure_ascii=False, allow_nan=False).encode()
    return shape


@pytest.fixture(scope="module")
def published(shared_data: Path) -> list[Tool]:
    """Every twentieth tool of real MCP servers, and some operations of real APIs."""
    tools = []
    for path, step in (("mcp_tools/tools.jsonl.gz", 20), ("openapi_ops/operations.jsonl.gz", 1200)):
        with gzip.open(shared_data / path) as lines:
            tools += [Tool.from_record(json.loads(line)) for number, line in enumerate(lines) if number % step == 0]
    return tools


@pytest.mark.parametrize("format", FORMATS)
def test_published_tools_take_every_documented_shape(published: list[Tool], format: Format) -> None:
    for number, tool in enumerate(published):
        for level in LEVELS:
            shape = check(tool, format, level)
            if format.startswith("openai"):
                assert not arrays_without_items(parameters_of(shape).get("properties"))
            elif format == "anthropic" and level == "full" and number % 3 == 0:  # slow
                assert METASCHEMA.is_valid(parameters_of(shape))
    names = WireNames(tool.id for tool in published)
    assert [names.tool_id(names.name(tool.id)) for tool in published] == [tool.id for tool in published]


def test_published_tools_are_mcp_tools_to_the_official_library(published: list[Tool]) -> None:
    types = pytest.importorskip("mcp.types")
    for tool in published:
        read = types.Tool.model_validate(to_wire(tool, "mcp"))
        assert (read.description or "", read.title or "") == (tool.description, tool.title)


names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=90) | st.sampled_from(
    ["a", "a_", "_a", "a__b", "b", "a__b__c", "a-b", "A", "b_00000000", "x" * 64, "é", "a b", "a/b", "%2F"]
)
keys = st.text(max_size=8) | st.sampled_from(["filter[id]", "$top", "type", "a"])
parameters = st.sampled_from(
    [
        {"type": "string", "description": "Text. More text.", "default": "\ud800"},
        {"type": "array"},
        {"type": "any", "maximum": float("inf")},
        {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": float("nan")},
        {"enum": [str(i) for i in range(50)]},
    ]
)
schemas = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "array", ["object", "null"]]),
        "properties": st.dictionaries(keys, parameters, max_size=4),
        "required": st.lists(keys, max_size=2),
        "oneOf": st.lists(st.builds(lambda key: {"required": [key]}, keys), max_size=2),
        "allOf": st.lists(st.builds(lambda key, one: {"properties": {key: one}}, keys, parameters), max_size=2),
    },
)
tools = st.builds(
    Tool,
    namespace=names,
    name=names,
    description=st.text() | st.just("Long. " * 500),
    title=st.text(max_size=5),
    input_schema=schemas,
    output_schema=st.none() | schemas,
    annotations=st.sampled_from([{}, {"readOnlyHint": True}]),
    meta=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=1),
)


@settings(max_examples=20, deadline=None)
@given(tools)
def test_any_tool_takes_every_documented_shape(tool: Tool) -> None:
    for format in FORMATS:
        for level in LEVELS:
            assert METASCHEMA.is_valid(parameters_of(check(tool, format, level)))


def test_the_shapes_in_full() -> None:
    schema = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
    meta = {"category": "Mail"}
    tool = Tool(
        "mail", "send", "Send a mail.", "Send", input_schema=schema, annotations={"readOnlyHint": False}, meta=meta
    )
    function = {"name": "mail__send", "description": "Send a mail.", "parameters": schema}
    assert to_wire(tool, "openai") == {"type": "function", "function": function}
    assert to_wire(tool, "openai-responses") == {"type": "function", **function, "strict": False}
    plain = {"name": "mail__send", "description": "Send a mail."}
    assert to_wire(tool, "anthropic") == {**plain, "input_schema": schema}
    extras = {"title": "Send", "inputSchema": schema, "annotations": {"readOnlyHint": False}, "_meta": meta}
    assert to_wire(tool, "mcp") == {**plain, **extras}
    output = {"type": "object", "properties": {"id": {"type": "string"}}}
    assert to_wire(Tool("a", "b", output_schema=output), "mcp")["outputSchema"] == output
    assert "outputSchema" not in to_wire(Tool("a", "b", output_schema={"type": "array"}), "mcp")


def test_openai_descriptions_are_cut_on_the_wire_alone() -> None:
    tool = Tool("a", "b", "word " * 1000)
    cut = to_wire(tool, "openai")["function"]["description"]
    assert len(cut) <= 1024
    assert cut == tool.description[: len(cut) - 1] + "…"
    assert to_wire(tool, "anthropic")["description"] == tool.description
    assert to_wire(Tool("a", "b", "x" * 1024), "openai-responses")["description"] == "x" * 1024


def test_arguments_come_back_under_the_names_the_tool_knows() -> None:
    properties = {"filter[id]": {"type": "string"}, "$top": {"type": "integer"}, "ok": {}}
    tool = Tool("api", "list", input_schema={"type": "object", "properties": properties, "required": ["$top"]})
    shown = to_wire(tool, "anthropic")["input_schema"]
    assert (list(shown["properties"]), shown["required"]) == (["filter_id", "top", "ok"], ["top"])
    call = {"filter_id": "7", "top": 3, "ok": None, "extra": 1}
    assert call_arguments(tool, call) == {"filter[id]": "7", "$top": 3, "ok": None, "extra": 1}
    assert call_arguments(tool, {"filter[id]": "7"}) == {"filter[id]": "7"}


@pytest.mark.parametrize(
    ("namespace", "name", "expected"),
    [
        ("github", "search_issues", "github__search_issues"),
        ("git-hub", "a__b" + "x" * 51, "git-hub__a__b" + "x" * 51),
    ],
)
def test_names_that_fit_are_kept(namespace: str, name: str, expected: str) -> None:
    assert vendor_formats.wire_name(tool_id(namespace, name)) == expected


@pytest.mark.parametrize(
    ("namespace", "name", "start"),
    [
        ("Exa Search", "web_search", "Exa_Search__web_search_"),
        ("a__b", "c", "a__b__c_"),
        ("a_", "b", "a__b_"),
        ("a", "_b", "a__b_"),
        ("a/b", "c", "a_b__c_"),
        ("a", "b_0123abcd", "a__b_0123abcd_"),
        ("天気", "予報", ""),
        ("s" * 80, "get_the_weather", "s" * 38 + "__get_the_weather_"),
        ("ns", "t" * 80, "t" * 55 + "_"),
    ],
)
def test_names_that_do_not_fit_keep_what_they_can_and_get_a_hash(namespace: str, name: str, start: str) -> None:
    made = vendor_formats.wire_name(tool_id(namespace, name))
    assert made.startswith(start)
    assert len(made.removeprefix(start)) == 8
    assert int(made.removeprefix(start), 16) >= 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.builds(tool_id, names, names), unique=True, max_size=40))
def test_names_never_collide_and_lead_back(ids: list[str]) -> None:
    made = WireNames(ids)
    shown = [made.name(one) for one in ids]
    assert len(set(shown)) == len(ids)
    assert [made.tool_id(name) for name in shown] == ids
    assert all(Draft202012Validator(NAME).is_valid(name) and "\n" not in name for name in shown)
    assert [WireNames([one]).name(one) for one in ids] == shown, "a name must not depend on the other tools"


def test_a_crafted_name_cannot_pose_as_a_hashed_one() -> None:
    victim = tool_id("bank", "pay é")
    namespace, _, name = vendor_formats.wire_name(victim).partition("__")
    made = WireNames([victim, tool_id(namespace, name)])
    assert made.tool_id(vendor_formats.wire_name(victim)) == victim


def test_even_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = vendor_formats._hashed
    monkeypatch.setattr(vendor_formats, "_hashed", lambda one, size: "same_00000000" if size == 4 else whole(one, size))
    made = WireNames(["a b/c", "a?b/c", "a/c"])
    assert [made.tool_id(made.name(one)) for one in ("a b/c", "a?b/c")] == ["a b/c", "a?b/c"]
    assert len(made.name("a b/c")) <= 64


def test_names_are_the_same_in_every_process() -> None:
    script = (
        "from toolscout.core.vendor_formats import wire_name; import sys; sys.stdout.write(wire_name('Exa Search/q'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == vendor_formats.wire_name("Exa Search/q")


def test_unknown_names_are_refused() -> None:
    made = WireNames(["a/b"])
    with pytest.raises(UnknownTool, match="no tool was offered under the name 'a__c'"):
        made.tool_id("a__c")
    with pytest.raises(UnknownTool, match="a/c is not among the 1 tools"):
        made.name("a/c")


RICH = [
    Tool(
        "mail",
        f"send_{number}",
        "Send a mail to someone. It is sent at once, and cannot be called back.",
        input_schema={
            "type": "object",
            "properties": {
                "to": {"type": "string", "description": "Who gets the mail: an address."},
                "cc": {"type": "array", "items": {"type": "string"}, "description": "Who gets a copy."},
                "when": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "When"},
            },
            "required": ["to"],
        },
    )
    for number in range(5)
]


@pytest.mark.parametrize("format", FORMATS)
def test_the_richest_level_that_fits_is_chosen(format: Format) -> None:
    costs = {level: estimate_tokens([to_wire(tool, format, level) for tool in RICH]) for level in LEVELS}
    assert list(costs.values()) == sorted(costs.values(), reverse=True)
    for level in get_args(Level):
        found = render(RICH, format, costs[level])
        assert (found.level, found.tokens) == (level, costs[level])
        assert found.payload == [to_wire(tool, format, level) for tool in RICH]
    assert render(RICH, format, costs["slim"] - 1).level == "signatures"
    assert render(RICH, format).level == render(RICH, format, 10**6).level == "full"
    needed = costs["names"]
    message = f"5 tools take {needed} tokens even as bare names and the budget is {needed - 1}; raise it to {needed}"
    with pytest.raises(BadRequest, match=message):
        render(RICH, format, needed - 1)


def test_what_each_level_says() -> None:
    slim, signatures, names = (to_wire(RICH[0], "openai", level)["function"] for level in LEVELS[1:])
    assert slim["description"] == "Send a mail to someone."
    assert slim["parameters"]["properties"]["to"] == {"type": "string"}
    assert signatures["description"] == "send_0(to: string, cc?: string[], when?: string|null)"
    assert signatures["parameters"] == {"type": "object", "properties": {}, "additionalProperties": True}
    assert names == {"name": "mail__send_0"}
    assert to_wire(RICH[0], "openai-responses", "names")["parameters"] is None
    assert to_wire(RICH[0], "anthropic", "names") == {"name": "mail__send_0", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One. Two.", "One."),
        ("Use it, e.g. so. Two.", "Use it, e.g. so."),
        ("版本 3.5 可用。第二句。", "版本 3.5 可用。"),
        ("A title\n\nAnd more", "A title"),
        ("Over two\nlines. Two.", "Over two lines."),
        ("x" * 500, "x" * 199 + "…"),
    ],
)
def test_first_sentences(text: str, first: str) -> None:
    assert vendor_formats.first_sentence(text) == first


# The largest count among OpenAI's o200k_base and cl100k_base and the tokenizer that Anthropic published with Claude 2.
COUNTED = [
    (38, "Send a mail to someone. It is sent at once, and cannot be called back."),
    (53, "SendsHTTPRequestsToTheConfiguredEndpointURL with fooBarBaz_quxQuux-42 and id 7f3a9c0d1e"),
    (46, "获取指定城市的天气预报，包括温度、湿度和风速。"),
    (41, "Получает прогноз погоды для заданного города."),
    (43, "지정한 도시의 날씨 예보를 가져옵니다."),
    (34, "Sends 🎉🚀 to every user 😀!!!"),
    (56, 'GET /v2/users/{user_id}/repos?per_page=100&sort=updated -> [{"id": 1, "name": "x"}]'),
    (53, "Args:\n    city (str): The city.\n    days (int): 1-14.\n\nReturns:\n    dict: The forecast."),
]


@pytest.mark.parametrize(("tokens", "description"), COUNTED)
def test_estimates_lie_above_what_tokenizers_count_and_not_by_much(tokens: int, description: str) -> None:
    payload = [{"name": "mail__send", "description": description, "input_schema": {"type": "object"}}]
    assert tokens <= estimate_tokens(payload) <= 2.1 * tokens


def test_odd_calls_of_render() -> None:
    assert len(render([RICH[0], RICH[0]], "mcp").payload) == 1
    assert render([], "openai", 0).payload == []
    with pytest.raises(
        BadRequest, match="unknown format 'gemini'; use one of openai, openai-responses, anthropic, mcp"
    ):
        render(RICH, "gemini")  # type: ignore[arg-type]


def test_the_record_is_left_alone() -> None:
    before = json.dumps(RICH[0].to_record())
    for format in FORMATS:
        render(RICH, format, 400)
        shape = to_wire(RICH[0], format)
        parameters_of(shape)["properties"].clear()
    object_schema(RICH[0].input_schema)["properties"].clear()
    assert json.dumps(RICH[0].to_record()) == before
