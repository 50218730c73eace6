"""Answers requests for resources, prompts and completions, for changes of resources, and for log messages.

A caller is given what a server offers besides tools where it may use all of the server's tools: no pattern says which
resources belong to which tools.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from toolscout.catalogue.poisoning import scan_result
from toolscout.core.tool import clean_text
from toolscout.errors import BadRequest, MissingExtra, ToolscoutError, UnknownTool
from toolscout.serving.access import Caller
from toolscout.serving.audit import Audit
from toolscout.serving.gateway.callers import Callers
from toolscout.serving.gateway.client_calls import LOG_LEVEL, ConnectedClient, Interruptions
from toolscout.serving.gateway.offers import (
    Found,
    Offers,
    find_resource,
    find_template,
    named_prompts,
    named_resources,
    named_templates,
)
from toolscout.serving.gateway.server_connection import OfferKind
from toolscout.serving.gateway.server_requests import ServerRequest, completion, prompt_getting, resource_reading
from toolscout.serving.gateway.sources import Backends
from toolscout.serving.gateway.subscribers import MAX_FOLLOWED, PROMPTS, RESOURCES, Subscribers

try:
    import anyio
    import anyio.to_thread
    import mcp_types as types
    from mcp import MCPError
    from mcp.server.lowlevel.server import Server
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    from toolscout.serving.problems import public_message
    from toolscout.serving.prometheus import Metrics
except ImportError:
    raise MissingExtra("serving", "serve") from None

_PAGE = 1_000  # resources, templates or prompts in one answer
_log = logging.getLogger("toolscout.gateway")


@dataclass(slots=True)
class _Asked:
    """A request: who sends it, and what the audit log says it is about, "" for nothing."""

    caller: Caller
    about: str = ""


class OfferRequests:
    """Handlers of the MCP server for all that is not tools."""

    def __init__(
        self,
        backends: Backends,
        callers: Callers,
        interruptions: Interruptions,
        subscribers: Subscribers,
        audit: Audit,
        metrics: Metrics,
        start: float,
    ) -> None:
        """`start`: seconds that a list waits for the servers to start."""
        self._backends, self._callers = backends, callers
        self._interruptions, self._subscribers = interruptions, subscribers
        self._audit, self._metrics, self._start = audit, metrics, start
        self._local: dict[int, ConnectedClient] = {}  # by id(): connections that are not over HTTP
        backends.offers_listener = self._offers_changed
        backends.update_listener = self._resource_updated

    def add_to(self, server: Server[Any]) -> None:
        """Register the handlers."""
        paginated = types.PaginatedRequestParams
        server.add_request_handler("resources/list", paginated, self._list_resources)
        server.add_request_handler("resources/templates/list", paginated, self._list_templates)
        server.add_request_handler("resources/read", types.ReadResourceRequestParams, self._read)
        server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self._subscribe)
        server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe)
        server.add_request_handler("prompts/list", paginated, self._list_prompts)
        server.add_request_handler("prompts/get", types.GetPromptRequestParams, self._get_prompt)
        server.add_request_handler("completion/complete", types.CompleteRequestParams, self._complete)
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_log_level)
        server.add_request_handler("subscriptions/listen", types.SubscriptionsListenRequestParams, self._listen)
        notified = types.NotificationParams
        server.add_notification_handler("notifications/initialized", notified, self._connected)
        server.add_notification_handler("notifications/roots/list_changed", notified, self._roots_changed)

    async def _list_resources(self, ctx: Any, params: types.PaginatedRequestParams) -> types.ListResourcesResult:
        async with self._answering(ctx, "resources") as asked:
            found, after = _page(named_resources(await self._visible(asked.caller)), params.cursor)
            return types.ListResourcesResult(resources=found, next_cursor=after)

    async def _list_templates(
        self, ctx: Any, params: types.PaginatedRequestParams
    ) -> types.ListResourceTemplatesResult:
        async with self._answering(ctx, "templates") as asked:
            found, after = _page(named_templates(await self._visible(asked.caller)), params.cursor)
            return types.ListResourceTemplatesResult(resource_templates=found, next_cursor=after)

    async def _list_prompts(self, ctx: Any, params: types.PaginatedRequestParams) -> types.ListPromptsResult:
        async with self._answering(ctx, "prompts") as asked:
            named = named_prompts(await self._visible(asked.caller))
            found, after = _page([prompt for _, prompt in named.values()], params.cursor)
            return types.ListPromptsResult(prompts=found, next_cursor=after)

    async def _read(
        self, ctx: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult | types.InputRequiredResult:
        async with self._answering(ctx, "read") as asked:
            caller = asked.caller
            server, uri = await self._find(caller, params.uri)
            asked.about = server
            result = await self._asked(ctx, params, caller, server, resource_reading(uri))
            if isinstance(result, types.InputRequiredResult):
                return result
            texts = [one.text for one in result.contents if isinstance(one, types.TextResourceContents)]
            contents = [
                one.model_copy(update={"uri": params.uri}) if one.uri == uri else one for one in result.contents
            ]
            marked: types.ReadResourceResult = await _marked(result, f"{server}: a resource", texts)
            return marked.model_copy(update={"contents": contents})

    async def _get_prompt(
        self, ctx: Any, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        async with self._answering(ctx, "prompt") as asked:
            caller = asked.caller
            server, name = await self._find_prompt(caller, params.name)
            asked.about = f"{server}/{name}"
            result = await self._asked(ctx, params, caller, server, prompt_getting(name, params.arguments))
            if isinstance(result, types.InputRequiredResult):
                return result
            texts = [one.content.text for one in result.messages if isinstance(one.content, types.TextContent)]
            marked: types.GetPromptResult = await _marked(result, f"{server}: the prompt {name}", texts)
            return marked

    async def _asked(
        self, ctx: Any, params: types.InputResponseRequestParams, caller: Caller, server: str, request: ServerRequest
    ) -> Any:
        """Return a server's result, or the questions that it has to the client first."""
        return await self._interruptions.run(
            ctx, params, caller.identity, lambda call: self._backends.request(server, request, call)
        )

    async def _complete(self, ctx: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
        async with self._answering(ctx, "complete") as asked:
            caller = asked.caller
            ref: types.PromptReference | types.ResourceTemplateReference
            if isinstance(params.ref, types.PromptReference):
                server, name = await self._find_prompt(caller, params.ref.name)
                ref = params.ref.model_copy(update={"name": name})
            else:
                visible, template = await self._visible(caller), params.ref.uri
                server, uri = await self._callers.in_thread(lambda: find_template(visible, template))
                ref = params.ref.model_copy(update={"uri": uri})
            if not self._backends.offers()[server].completes:
                return types.CompleteResult(completion=types.Completion(values=[]))
            request = completion(params.model_copy(update={"ref": ref}))
            nothing = types.InputResponseRequestParams()
            result: types.CompleteResult = await self._asked(ctx, nothing, caller, server, request)
            return result

    async def _subscribe(self, ctx: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
        async with self._answering(ctx, "subscribe") as asked:
            caller = asked.caller
            found = await self._find(caller, params.uri)
            if self._subscribers.count(caller.identity) >= MAX_FOLLOWED:
                raise BadRequest(f"{MAX_FOLLOWED:,} resources are followed already; unsubscribe from some")
            self._subscribers.follow(id(ctx.session._connection), caller.identity, {params.uri: found})
            return types.EmptyResult()

    async def _unsubscribe(self, ctx: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        async with self._answering(ctx, "unsubscribe") as asked:
            self._subscribers.unfollow(id(ctx.session._connection), await self._find(asked.caller, params.uri))
            return types.EmptyResult()

    async def _listen(
        self, ctx: Any, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        stream = object()
        async with self._answering(ctx, "listen") as asked:
            caller = asked.caller
            known_as: dict[str, Found] = {}
            room = MAX_FOLLOWED - self._subscribers.count(caller.identity)
            for uri in (params.notifications.resource_subscriptions or [])[: max(0, room)]:
                try:
                    known_as[uri] = await self._find(caller, uri)
                except MCPError:  # it never changes, as far as this caller can tell
                    _log.debug("nobody has a resource that a client follows")
            self._subscribers.follow(stream, caller.identity, known_as)
        try:
            return await self._subscribers.listen(ctx, params, caller.identity, self._callers.key(ctx))
        finally:
            self._subscribers.unfollow(stream)

    async def _set_log_level(self, ctx: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        async with self._answering(ctx, "level"):
            ctx.session._connection.state[LOG_LEVEL] = params.level
            if (level := self._subscribers.log_level()) is not None:
                self._backends.set_log_level(level)
            return types.EmptyResult()

    async def _connected(self, ctx: Any, _: types.NotificationParams) -> None:
        """Remember the client of a gateway over stdio, and tell the servers that it can be asked for its roots."""
        if ctx.request is not None or ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return
        client = ConnectedClient(ctx)
        self._local[id(client.connection)] = client
        client.connection.exit_stack.callback(self._disconnected, id(client.connection))
        self._backends.connected = client if len(self._local) == 1 else None
        known = ctx.session.client_capabilities
        if known is not None and known.roots is not None:
            self._backends.roots_changed()

    def _disconnected(self, connection: int) -> None:
        self._local.pop(connection, None)
        self._backends.connected = next(iter(self._local.values())) if len(self._local) == 1 else None

    async def _roots_changed(self, ctx: Any, _: types.NotificationParams) -> None:
        if id(ctx.session._connection) in self._local and len(self._local) == 1:
            self._backends.roots_changed()

    async def _offers_changed(self, server: str, kinds: Collection[OfferKind]) -> None:
        concerned = await self._concerned(server)
        for kind in kinds:
            await self._subscribers.tell(RESOURCES if kind == "resources" else PROMPTS, concerned)

    async def _resource_updated(self, server: str, uri: str) -> None:
        await self._subscribers.tell_update(Found(server, uri), await self._concerned(server))

    async def _concerned(self, server: str) -> set[str]:
        """Return the identities of connected callers that may know what a server offers."""

        def concerned() -> set[str]:
            found = set()
            for who, key in self._subscribers.callers().items():
                try:
                    if self._callers.access.sees_all_of(self._callers.access.caller(key), server):
                        found.add(who)
                except ToolscoutError as error:  # the key was revoked
                    _log.debug("a caller is not told any more: %s", error)
            return found

        return await anyio.to_thread.run_sync(concerned)

    async def _visible(self, caller: Caller) -> dict[str, Offers]:
        """Return what the servers offer of which the caller may use everything."""

        def visible() -> dict[str, Offers]:
            offers = self._backends.offers()
            return {name: known for name, known in offers.items() if self._callers.access.sees_all_of(caller, name)}

        return await self._callers.in_thread(visible)

    async def _find(self, caller: Caller, uri: str) -> Found:
        """Return whose resource it is. Raises MCPError where that cannot be told, or it is nobody's."""
        visible = await self._visible(caller)
        try:
            return await self._callers.in_thread(lambda: find_resource(visible, uri))
        except (UnknownTool, BadRequest) as error:
            raise MCPError(types.INVALID_PARAMS, public_message(error)) from None

    async def _find_prompt(self, caller: Caller, name: str) -> Found:
        visible = await self._visible(caller)
        found = (await self._callers.in_thread(lambda: named_prompts(visible))).get(name)
        if found is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {clean_text(name)[:200]!r}")
        return found[0]

    @asynccontextmanager
    async def _answering(self, ctx: Any, action: str) -> AsyncIterator[_Asked]:
        """Find out who asks, count and record the request, and turn errors into those of the protocol."""
        began, ok, asked = time.perf_counter(), False, None
        try:
            await self._backends.ready(self._start)
            asked = _Asked(await self._callers.caller(ctx))
            self._subscribers.track(ctx, asked.caller.identity, self._callers.key(ctx))
            yield asked
            ok = True
        except ToolscoutError as error:
            raise MCPError(types.INVALID_REQUEST, public_message(error)) from None
        finally:
            seconds = time.perf_counter() - began
            self._metrics.observe(f"mcp {action}", 200 if ok else 500, seconds)
            if asked is not None and asked.about:
                self._audit.record(asked.caller, action, asked.about, ok=ok, ms=1000 * seconds)


def _page(found: list[Any], cursor: str | None) -> tuple[list[Any], str | None]:
    """Return a page of a list and the cursor of the next one. Raises MCPError for a cursor of nobody's."""
    if cursor is not None and not cursor.isdecimal():
        raise MCPError(types.INVALID_PARAMS, "this cursor is not one of the gateway's")
    at = int(cursor or 0)
    return found[at : at + _PAGE], str(at + _PAGE) if at + _PAGE < len(found) else None


async def _marked(result: Any, what: str, texts: list[str]) -> Any:
    """Return a result, with a mark in its `_meta` where its text looks like instructions to a model."""
    found = await anyio.to_thread.run_sync(scan_result, "\n".join(texts), what) if texts else []
    if not (rules := list(dict.fromkeys(one.rule for one in found if one.level != "low"))):
        return result
    _log.warning("%s looks like instructions to the model (%s)", what, ", ".join(rules))
    return result.model_copy(update={"meta": {**(result.meta or {}), "toolscout/findings": rules}})
