"""OpenAI's Responses API with a tool search that runs here: the model searches, Scout answers with the tools.

Runs offline with the real SDK: `stand_in` answers in place of api.openai.com. For the real one leave http_client and
api_key out.

    pip install 'toolscout[serve]' 'openai>=3.49,<4'
    python examples/openai_tool_search.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import httpx2
import office
from openai import OpenAI

from toolscout import Scout
from toolscout.calling.dispatch import CallOptions, OriginCaller
from toolscout.core import vendor_formats
from toolscout.serving import vendor_tool_search

MODEL = "gpt-5.5"
REQUEST = "I have a cold and stay at home for two days, please report me sick."


def answer(client: OpenAI, scout: Scout, request: str) -> str:
    """Let the model search and call until it has an answer."""
    known = {vendor_formats.wire_name(tool.id): tool for tool in scout.store.tools()}
    tools: Any = [vendor_tool_search.openai_tool()]  # nothing else is sent: what is found is loaded from then on
    items: list[Any] = [{"role": "user", "content": request}]
    caller = OriginCaller(CallOptions(allow=("office:*",)))  # a catalogue does not say what may be run
    while True:
        said = client.responses.create(model=MODEL, tools=tools, input=items, store=False)
        results = []
        for item in said.output:
            items.append(item.model_dump(exclude_none=True))
            if item.type == "tool_search_call":
                found = vendor_tool_search.openai_output(scout, item.model_dump())
                print("search", json.dumps(item.arguments), "->", [tool["name"] for tool in found["tools"]])
                results.append(found)
            elif item.type == "function_call":
                done = caller.call([(known[item.name], json.loads(item.arguments))])[0]
                print(item.name, item.arguments, "->", done.observation)
                results.append({"type": "function_call_output", "call_id": item.call_id, "output": done.observation})
        if not results:
            return said.output_text
        items += results


def stand_in(request: httpx2.Request) -> httpx2.Response:
    """Searches with the user's words, calls the first tool that it is given, and repeats what that says."""
    given = json.loads(request.content)
    last = given["input"][-1]
    item: dict[str, Any] = {"id": "item_1", "status": "completed"}
    if last.get("role") == "user":
        search = {"type": "tool_search_call", "execution": "client", "call_id": "call_1"}
        item |= search | {"arguments": {"query": last["content"]}}
    elif last["type"] == "tool_search_output":
        call = {"type": "function_call", "call_id": "call_2", "name": last["tools"][0]["name"]}
        item |= call | {"arguments": json.dumps({"days": 2})}
    else:
        text = {"type": "output_text", "text": f"Done: {last['output']}.", "annotations": []}
        item |= {"type": "message", "role": "assistant", "content": [text]}
    response = {"id": "resp_1", "object": "response", "created_at": 0, "model": MODEL, "status": "completed"}
    rest = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": given["tools"]}
    return httpx2.Response(200, json={**response, **rest, "output": [item]})


def main() -> None:
    """Answer one request."""
    offline = httpx2.Client(transport=httpx2.MockTransport(stand_in))
    with tempfile.TemporaryDirectory() as folder, Scout.open(Path(folder) / "tools.db") as scout:
        scout.add(office)
        with OpenAI(api_key="offline", http_client=offline) as client:
            print("ai:", answer(client, scout, REQUEST))


if __name__ == "__main__":
    main()
