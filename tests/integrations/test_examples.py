"""The examples run, offline, and what they send to the vendors is what the vendors' own SDKs describe."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from toolscout import Scout
from toolscout.serving import vendor_tool_search

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = [
    ("langchain_agent", "langchain", "a firm reminder for invoice 1017"),
    ("openai_agents", "agents", "Attic is yours on Friday for 2 h"),
    ("anthropic_tool_search", "anthropic", "ai: Good news: parcel 4711 arrives tomorrow."),
    ("openai_tool_search", "openai", "ai: Done: get well soon, see you in 2 days."),
]


def wanted(name: str) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed; run: make test-integrations")


@pytest.mark.parametrize(("example", "library", "said"), RUNS, ids=[run[0] for run in RUNS])
def test_it_runs(
    example: str, library: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted(library)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
    assert said in capsys.readouterr().out


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"office", *(run[0] for run in RUNS)}


def valid(kind: Any, value: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind).validate_python(value)


def test_anthropics_sdk_knows_these_shapes(stocked: Scout) -> None:
    wanted("anthropic")
    from anthropic import types

    for tool in vendor_tool_search.anthropic_tools(stocked.store.tools()):
        assert valid(types.ToolParam, tool) == tool
    use = {"type": "tool_use", "id": "toolu_1", "input": {"query": "feed the lion fresh meat"}}
    result = vendor_tool_search.anthropic_result(stocked, use, 2)
    for block in result["content"]:
        assert valid(types.ToolReferenceBlockParam, block) == block
    assert valid(types.ToolResultBlockParam, result)["tool_use_id"] == "toolu_1"


def test_openais_sdk_knows_these_shapes(stocked: Scout) -> None:
    wanted("openai")
    from openai.types import responses
    from openai.types.responses.response_tool_search_output_item_param_param import (
        ResponseToolSearchOutputItemParamParam,
    )

    search = vendor_tool_search.openai_tool()
    assert valid(responses.ToolSearchToolParam, search) == search
    call = {"type": "tool_search_call", "call_id": "call_1", "arguments": {"query": "feed the lion fresh meat"}}
    output = vendor_tool_search.openai_output(stocked, call, 2)
    assert valid(ResponseToolSearchOutputItemParamParam, output)["call_id"] == "call_1"
    for tool in output["tools"]:
        assert valid(responses.FunctionToolParam, tool) == tool
