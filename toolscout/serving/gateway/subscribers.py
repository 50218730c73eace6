"""Clients that are told of changes, each only of what concerns it.

Clients of the older protocol are told over their connection; those of the newest have opened a stream for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from toolscout.errors import MissingExtra
from toolscout.serving.gateway.offers import Found

try:
    import anyio
    import mcp_types as types
    from mcp.server.subscriptions import (
        InMemorySubscriptionBus,
        ListenHandler,
        PromptsListChanged,
        ResourcesListChanged,
        ResourceUpdated,
        ServerEvent,
        ToolsListChanged,
    )
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    from toolscout.serving.gateway.client_calls import LEVELS, LOG_LEVEL
except ImportError:
    raise MissingExtra("serving", "serve") from None

TOOLS, RESOURCES, PROMPTS = ToolsListChanged(), ResourcesListChanged(), PromptsListChanged()
MAX_FOLLOWED = 1_000
"""Resources that one caller may follow."""
_TELL_SECONDS = 1.0  # a client that does not read must not delay the others


class _Connection(NamedTuple):
    """A connection of the older protocol, and whose it is."""

    connection: Any
    who: str


class Subscribers:
    """The clients that are connected, by the identities of their callers, and the resources that they follow."""

    def __init__(self) -> None:
        """Begin without clients."""
        self.keys: dict[str, str | None] = {}  # by identity: the key by which its rights are found again
        self._buses: dict[str, tuple[InMemorySubscriptionBus, ListenHandler]] = {}
        self._connections: dict[int, _Connection] = {}
        # By resource: the streams and connections that follow it, each with whose it is and the URI that it knows.
        self._followed: defaultdict[Found, dict[object, tuple[str, str]]] = defaultdict(dict)

    def track(self, ctx: Any, who: str, key: str | None) -> None:
        """Remember a client, while its connection lasts, to tell it of changes; `who`: its caller's identity."""
        if ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return
        connection = ctx.session._connection
        self.keys[who] = key
        if id(connection) not in self._connections:
            self._connections[id(connection)] = _Connection(connection, who)
            connection.exit_stack.callback(self._forget, id(connection))

    async def listen(
        self, ctx: Any, params: types.SubscriptionsListenRequestParams, who: str, key: str | None
    ) -> types.SubscriptionsListenResult:
        """Serve a stream of changes to a client of the newest protocol until it ends."""
        self.keys[who] = key
        if who not in self._buses:
            bus = InMemorySubscriptionBus()
            self._buses[who] = (bus, ListenHandler(bus))
        return await self._buses[who][1](ctx, params)

    async def tell(self, event: ServerEvent, concerned: Collection[str], only: int | None = None) -> None:
        """Tell the clients of these callers that a list has changed. `only`: id() of the one connection concerned."""
        for who in concerned & self._buses.keys() if only is None else ():
            await self._buses[who][0].publish(event)
        for connection, who in list(self._connections.values()):
            if who in concerned and only in (None, id(connection)):
                with anyio.move_on_after(_TELL_SECONDS):
                    if event == TOOLS:
                        await connection.send_tool_list_changed()
                    elif event == PROMPTS:
                        await connection.send_prompt_list_changed()
                    else:
                        await connection.send_resource_list_changed()

    def follow(self, follower: object, who: str, known_as: Mapping[str, Found]) -> None:
        """Have a connection or stream told when these resources change, under the URIs it knows them by."""
        for uri, found in known_as.items():
            self._followed[found][follower] = (who, uri)

    def unfollow(self, follower: object, found: Found | None = None) -> None:
        """Stop that for one resource, or for all."""
        for one in [found] if found is not None else list(self._followed):
            if one in self._followed:
                self._followed[one].pop(follower, None)
                if not self._followed[one]:
                    del self._followed[one]

    def followed(self) -> dict[str, set[str]]:
        """Return by server the resources that anybody follows."""
        wanted: dict[str, set[str]] = {}
        for server, uri in self._followed:
            wanted.setdefault(server, set()).add(uri)
        return wanted

    def count(self, who: str) -> int:
        """Return how many resources a caller follows."""
        return sum(owner == who for followers in self._followed.values() for owner, _ in followers.values())

    async def tell_update(self, found: Found, concerned: Collection[str]) -> None:
        """Tell those callers' clients that a resource has changed, or one below it that they follow."""
        for above, followers in list(self._followed.items()):
            rest = found.name.removeprefix(above.name)
            if above.server != found.server or rest == found.name or (rest and above.name[-1:] != "/" != rest[0]):
                continue
            for follower, (who, uri) in list(followers.items()):
                if who not in concerned:
                    continue
                if isinstance(follower, int) and (known := self._connections.get(follower)) is not None:
                    with anyio.move_on_after(_TELL_SECONDS):
                        await known.connection.send_resource_updated(uri + rest)
                elif who in self._buses:
                    await self._buses[who][0].publish(ResourceUpdated(uri))

    def callers(self) -> dict[str, str | None]:
        """Return the identities of the callers that have clients, with their keys."""
        present = {one.who for one in self._connections.values()} | self._buses.keys()
        return {who: key for who, key in self.keys.items() if who in present}

    def log_level(self) -> types.LoggingLevel | None:
        """Return the least severe level of log messages that a client has asked for; None where none has."""
        set_levels = [one.connection.state.get(LOG_LEVEL) for one in self._connections.values()]
        return min(filter(None, set_levels), key=LEVELS.index, default=None)

    def _forget(self, connection: int) -> None:
        self._connections.pop(connection, None)
        self.unfollow(connection)
