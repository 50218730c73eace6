"""Requests to the servers behind the gateway: a call, a resource, a prompt, a completion.

A server of the newest protocol may answer with questions to the client; the request is sent again with the answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolscout.catalogue.mcp.client import McpServer, with_client
from toolscout.core.tool import clean_text
from toolscout.errors import MissingExtra, ToolscoutError
from toolscout.serving.gateway.client_calls import CallsInFlight, ClientCall, Clock

try:
    import anyio
    import anyio.abc
    import mcp_types as types
    from mcp import Client, MCPError
    from mcp.client.session import ClientRequestContext
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS
    from pydantic import TypeAdapter
except ImportError:
    raise MissingExtra("serving", "serve") from None

_MAX_ROUNDS = 20
_PAUSES = (0.05, 0.1, 0.25)  # seconds before a request is sent again without having been asked anything

_TOOL_RESULTS: TypeAdapter[Any] = TypeAdapter(types.CallToolResult | types.InputRequiredResult)
_RESOURCE_RESULTS: TypeAdapter[Any] = TypeAdapter(types.ReadResourceResult | types.InputRequiredResult)
_PROMPT_RESULTS: TypeAdapter[Any] = TypeAdapter(types.GetPromptResult | types.InputRequiredResult)
_COMPLETIONS: TypeAdapter[Any] = TypeAdapter(types.CompleteResult)


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """A request to a server. `make` builds it from more parameters; `results` are those it may have."""

    make: Callable[[dict[str, Any]], types.ClientRequest]
    results: TypeAdapter[Any]

    async def send(self, client: Client, call: ClientCall) -> Any:
        """Send it for a client's call and return the result. Raises MCPError, ToolscoutError where it never ends."""
        more: dict[str, Any] = {}
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS and call.log_level is not None:
            more["_meta"] = {types.LOG_LEVEL_META_KEY: call.log_level}
        for sent in range(_MAX_ROUNDS):
            request = self.make(more)
            result = await client.session.send_request(request, self.results, progress_callback=call.report)
            if not isinstance(result, types.InputRequiredResult):
                return result
            more["requestState"] = result.request_state
            more["inputResponses"] = await _answers(client, result.input_requests or {})
            if not result.input_requests:
                await anyio.sleep(_PAUSES[min(sent, len(_PAUSES) - 1)])
        raise ToolscoutError(problem := "the server asks again and again, and never answers", public=problem)


async def send_alone(server: McpServer, request: ServerRequest, call: ClientCall, timeout: float) -> Any:
    """Send a request over a connection of its own, and return the result. Raises ToolscoutError where that fails."""
    in_flight = CallsInFlight(clean_text(server.name), lambda: None)

    async def send(client: Client, scope: anyio.CancelScope) -> Any:
        scope.deadline = math.inf
        call.clock = clock = Clock(timeout)
        with clock.scope:
            return await request.send(client, call)
        raise TimeoutError

    with in_flight.working_on(call):
        return await with_client(server, timeout, send, **in_flight.callbacks(call.capabilities))


async def _answers(client: Client, questions: Mapping[str, types.InputRequest]) -> dict[str, Any] | None:
    """Ask the client all questions at once. Raises MCPError where it answers one of them with an error."""
    answers: dict[str, Any] = {}
    errors: list[types.ErrorData] = []

    async def ask(key: str, question: types.InputRequest, tasks: anyio.abc.TaskGroup) -> None:
        context = ClientRequestContext(session=client.session, request_id=key)
        answer = await client.session.dispatch_input_request(context, question)
        if isinstance(answer, types.ErrorData):
            errors.append(answer)
            tasks.cancel_scope.cancel()
        else:
            answers[key] = answer

    async with anyio.create_task_group() as tasks:
        for key, question in questions.items():
            tasks.start_soon(ask, key, question, tasks)
    if errors:
        raise MCPError.from_error_data(errors[0])
    return answers or None


def tool_call(name: str, arguments: Mapping[str, Any]) -> ServerRequest:
    """Return the call of a tool. Its result is not checked against the tool's output schema, which may take long."""
    said = {"name": name, "arguments": dict(arguments)}
    return ServerRequest(
        lambda more: types.CallToolRequest(params=types.CallToolRequestParams.model_validate(said | more)),
        _TOOL_RESULTS,
    )


def resource_reading(uri: str) -> ServerRequest:
    """Return the reading of a resource."""
    return ServerRequest(
        lambda more: types.ReadResourceRequest(
            params=types.ReadResourceRequestParams.model_validate({"uri": uri} | more)
        ),
        _RESOURCE_RESULTS,
    )


def prompt_getting(name: str, arguments: Mapping[str, str] | None) -> ServerRequest:
    """Return the getting of a prompt."""
    said = {"name": name, "arguments": arguments}
    return ServerRequest(
        lambda more: types.GetPromptRequest(params=types.GetPromptRequestParams.model_validate(said | more)),
        _PROMPT_RESULTS,
    )


def completion(params: types.CompleteRequestParams) -> ServerRequest:
    """Return the completion of an argument."""
    said = params.model_dump(by_alias=True, exclude_none=True, exclude={"meta"})
    return ServerRequest(
        lambda more: types.CompleteRequest(params=types.CompleteRequestParams.model_validate(said | more)),
        _COMPLETIONS,
    )
