"""A real MCP server with all that is not tools, which asks its client: asking_server.py NAME [old] runs it over stdio.

It speaks both forms of the protocol; with "old" the older one alone.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
)
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

TEXT = {"text": {"type": "string"}}
ASKING: dict[str, Callable[[str], types.InputRequest]] = {
    "sample": lambda text: types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(
            messages=[types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))],
            max_tokens=10,
        )
    ),
    "elicit": lambda text: types.ElicitRequest(
        params=types.ElicitRequestFormParams(
            message=text, requested_schema={"type": "object", "properties": {"answer": {"type": "string"}}}
        )
    ),
    "roots": lambda _: types.ListRootsRequest(),
}
RESULTS: Mapping[str, Any] = {
    "sample": types.CreateMessageResult,
    "elicit": types.ElicitResult,
    "roots": types.ListRootsResult,
}


class AskingServer:
    """Its handlers; `server` is the server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bus = InMemorySubscriptionBus()
        self.names = ["first"]
        self.sessions: set[Any] = set()
        self.server: Server[Any] = Server(
            name,
            version="1",
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource,
            on_subscribe_resource=self.subscribe,
            on_unsubscribe_resource=self.unsubscribe,
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
            on_completion=self.complete,
            on_subscriptions_listen=ListenHandler(self.bus),
        )
        self.server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self.set_level)
        self.server.middleware.append(self.remember)
        self.followed: set[str] = set()

    async def remember(self, ctx: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        self.sessions.add(ctx.session._connection)
        return await call_next(ctx)

    def options(self) -> Any:
        return self.server.create_initialization_options(NotificationOptions(True, True, True))

    async def list_tools(self, ctx: Any, params: Any) -> types.ListToolsResult:
        about = {
            "sample": "Have the model of the client write something",
            "elicit": "Ask the user of the client a question",
            "roots": "List the folders of the client",
            "say": "Write a line to the log",
            "touch": "Change a resource",
            "grow": "Add a resource and a prompt",
        }
        schema = {"type": "object", "properties": TEXT}
        return types.ListToolsResult(
            tools=[types.Tool(name=name, description=text, input_schema=schema) for name, text in about.items()]
        )

    async def call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> Any:
        text = str((params.arguments or {}).get("text", ""))
        if params.name in ASKING:
            return await self.ask(ctx, params, text)
        if params.name == "say":
            note = types.LoggingMessageNotificationParams(level="warning", data=text, logger="speech")
            await ctx.session.send_notification(
                types.LoggingMessageNotification(params=note), related_request_id=ctx.request_id
            )
        elif params.name == "touch":
            await self.bus.publish(ResourceUpdated(text))
            if text in self.followed:
                for connection in self.sessions:
                    await connection.send_resource_updated(text)
        else:
            self.names.append(text)
            for event in (ResourcesListChanged(), PromptsListChanged()):
                await self.bus.publish(event)
            for connection in self.sessions:
                await connection.send_resource_list_changed()
                await connection.send_prompt_list_changed()
        return result(text)

    async def ask(self, ctx: Any, params: types.CallToolRequestParams, text: str) -> Any:
        request = ASKING[params.name](text)
        if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            related = ServerMessageMetadata(ctx.request_id)
            try:
                answer = await ctx.session.send_request(request, RESULTS[params.name], None, related)
            except MCPError as error:
                return result(f"refused: {error}")
        elif params.input_responses is None:
            return types.InputRequiredResult(input_requests={"one": request}, request_state="state of the server")
        else:
            assert params.request_state == "state of the server"
            answer = params.input_responses["one"]
        return result(answer.model_dump_json(by_alias=True, exclude_none=True, exclude={"meta"}))

    async def list_resources(self, ctx: Any, params: Any) -> types.ListResourcesResult:
        mine = [types.Resource(name=one, uri=f"note://{self.name}/{one}", mime_type="text/plain") for one in self.names]
        return types.ListResourcesResult(resources=[*mine, types.Resource(name="help", uri="shared://help")])

    async def list_templates(self, ctx: Any, params: Any) -> types.ListResourceTemplatesResult:
        page = types.ResourceTemplate(name="page", uri_template=f"note://{self.name}/pages/{{number}}")
        return types.ListResourceTemplatesResult(resource_templates=[page])

    async def read_resource(self, ctx: Any, params: types.ReadResourceRequestParams) -> Any:
        if params.uri.endswith("missing"):
            raise MCPError(-32002, f"no {params.uri}", {"uri": params.uri})
        content = types.TextResourceContents(uri=params.uri, text=f"{self.name} has {params.uri}")
        return types.ReadResourceResult(contents=[content])

    async def subscribe(self, ctx: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
        self.followed.add(params.uri)
        return types.EmptyResult()

    async def unsubscribe(self, ctx: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self.followed.discard(params.uri)
        return types.EmptyResult()

    async def list_prompts(self, ctx: Any, params: Any) -> types.ListPromptsResult:
        whom = [types.PromptArgument(name="whom", required=True)]
        return types.ListPromptsResult(prompts=[types.Prompt(name=one, arguments=whom) for one in self.names])

    async def get_prompt(self, ctx: Any, params: types.GetPromptRequestParams) -> Any:
        text = f"{params.name}: greet {(params.arguments or {})['whom']}"
        message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
        return types.GetPromptResult(messages=[message])

    async def complete(self, ctx: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
        of = params.ref.name if isinstance(params.ref, types.PromptReference) else params.ref.uri
        values = [f"{params.argument.value}…", of]
        return types.CompleteResult(completion=types.Completion(values=values))

    async def set_level(self, ctx: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        return types.EmptyResult()


def result(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


async def run(name: str, old: bool) -> None:
    made = AskingServer(name)
    async with stdio_server() as (incoming, outgoing):
        if old:
            serve = partial(serve_loop, made.server, lifespan_state={}, init_options=made.options())
            await serve(incoming, outgoing)
        else:
            await made.server.run(incoming, outgoing, made.options())


if __name__ == "__main__":
    anyio.run(run, sys.argv[1], "old" in sys.argv)
