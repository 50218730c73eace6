"""Anthropic's Messages API with a tool search that runs here: the model searches, Scout answers with tool references.

Runs offline with the real SDK: `stand_in` answers in place of api.anthropic.com. For the real one leave http_client and
api_key out.

    pip install 'toolscout[serve]' 'anthropic>=2.8,<3'
    python examples/anthropic_tool_search.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import httpx2
import office
from anthropic import Anthropic

from toolscout import Scout
from toolscout.calling.dispatch import CallOptions, OriginCaller
from toolscout.core import vendor_formats
from toolscout.serving import vendor_tool_search

MODEL = "claude-sonnet-4-6"
REQUEST = "Where is parcel 4711?"


def answer(client: Anthropic, scout: Scout, request: str) -> str:
    """Let the model search and call until it has an answer."""
    known = {vendor_formats.wire_name(tool.id): tool for tool in scout.store.tools()}
    tools: Any = vendor_tool_search.anthropic_tools(
        known.values()
    )  # deferred: they cost no tokens until they are found
    messages: list[Any] = [{"role": "user", "content": request}]
    caller = OriginCaller(CallOptions(allow=("office:*",)))  # a catalogue does not say what may be run
    while True:
        said = client.messages.create(model=MODEL, max_tokens=1000, tools=tools, messages=messages)
        messages.append(
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in said.content]}
        )
        results = []
        for block in said.content:
            if block.type != "tool_use":
                continue
            if block.name == vendor_tool_search.SEARCH_TOOL:
                result = vendor_tool_search.anthropic_result(scout, block.model_dump())
            else:
                tool = known[block.name]
                done = caller.call([(tool, vendor_formats.call_arguments(tool, block.input))])[0]
                result = {"type": "tool_result", "tool_use_id": block.id, "content": done.observation}
                result["is_error"] = not done.ok
            print(block.name, json.dumps(block.input), "->", json.dumps(result["content"]))
            results.append(result)
        if not results:
            return "".join(block.text for block in said.content if block.type == "text")
        messages.append({"role": "user", "content": results})


def stand_in(request: httpx2.Request) -> httpx2.Response:
    """Searches with the user's words, calls the first tool that it is given, and repeats what that says."""
    given = json.loads(request.content)
    last = given["messages"][-1]["content"]
    if isinstance(last, str):
        block = {"type": "tool_use", "id": "toolu_1", "name": vendor_tool_search.SEARCH_TOOL, "input": {"query": last}}
    elif isinstance(last[0]["content"], list):
        name = last[0]["content"][0]["tool_name"]
        assert any(tool["name"] == name and tool["defer_loading"] for tool in given["tools"][1:])
        block = {"type": "tool_use", "id": "toolu_2", "name": name, "input": {"number": "4711"}}
    else:
        block = {"type": "text", "text": f"Good news: {last[0]['content']}."}
    reason = "tool_use" if block["type"] == "tool_use" else "end_turn"
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": [block]}
    return httpx2.Response(200, json={**message, "stop_reason": reason, "stop_sequence": None, "usage": usage})


def main() -> None:
    """Answer one request."""
    offline = httpx2.Client(transport=httpx2.MockTransport(stand_in))
    with tempfile.TemporaryDirectory() as folder, Scout.open(Path(folder) / "tools.db") as scout:
        scout.add(office)
        with Anthropic(api_key="offline", http_client=offline) as client:
            print("ai:", answer(client, scout, REQUEST))


if __name__ == "__main__":
    main()
