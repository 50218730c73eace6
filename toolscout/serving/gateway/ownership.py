"""Several gateways over one store: exactly one of them runs each stdio server, and the others forward calls to it.

Who runs a server holds its lease (toolscout/stores/base.py). A gateway stops the server STOP_SECONDS before another
could hold the lease, and its watchdog kills the server where that was not enough. A gateway that takes a lease whose
last holder did not release it waits HANDOVER_SECONDS before it starts the server, so that the other one has ended.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from typing import Any
from urllib.parse import urlsplit

from toolscout.catalogue.mcp.client import McpServer, guarded, http
from toolscout.core.tool import clean_text
from toolscout.errors import BadRequest, MissingExtra, StoreError
from toolscout.serving.gateway.client_calls import CallsInFlight, ClientCall, Clock
from toolscout.serving.gateway.server_connection import Backend, BackendDown
from toolscout.serving.gateway.server_requests import tool_call
from toolscout.serving.gateway.watchdog import Watchdog
from toolscout.stores.base import Lease, Leases

try:
    import anyio
    import anyio.to_thread
    import httpx2
    import mcp_types as types
    from mcp import Client, MCPError
    from mcp_types.version import LATEST_MODERN_VERSION

    from toolscout.catalogue.mcp.messages import Guard
except ImportError:
    raise MissingExtra("serving", "serve") from None

FORWARDED = "x-toolscout-forwarded"
"""The header of a call that another gateway forwards: it is not forwarded again."""
NOT_OWNER = -32018
"""The code of the JSON-RPC error for a forwarded call of a server that this gateway does not run."""
STOP_SECONDS = 1.0
HANDOVER_SECONDS = 0.75
_TRY_SECONDS = (0.5, 0.9)  # between two attempts to take a lease
_LOOK_SECONDS = 0.1  # between two looks at a lease that is held
_MOVING_SECONDS = 10.0  # that a call waits for a server whose owner changes
_MOVING_PAUSE = 0.25
_CONNECT_SECONDS = 2.0  # to connect to another gateway
_ANSWER_SECONDS = 10.0  # that another gateway may take longer than the server behind it
_REFUSED_NOW = (429, 503)  # the other gateway did not take the call, and may take it a little later
_REFUSED = (401, 403, 408, 413, 421, 431)
_log = logging.getLogger("toolscout.gateway")


@dataclass(frozen=True, slots=True)
class Peers:
    """How gateways reach each other. `url`: the own address, "" for none; `hosts`: patterns of the others' hosts.

    A call is forwarded with its caller's key. The address comes from the store, which does not decide who gets a key:
    the operator does, by naming the hosts. Without any, only the own host is one.
    """

    url: str = ""
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise BadRequest where the address is none."""
        parts = urlsplit(self.url)
        if self.url and (parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc):
            raise BadRequest(f"--advertise {self.url!r:.80} is no address, such as http://gateway-1:8722/mcp")

    @property
    def host(self) -> str:
        """Return the host of the own address; "" for none."""
        return urlsplit(self.url).hostname or ""

    def permits(self, url: str) -> bool:
        """Return whether calls and keys may be sent to this address."""
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:
            return False
        patterns = self.hosts or ((self.host,) if self.host else ())
        return parts.scheme in ("http", "https") and any(fnmatch(host, pattern.lower()) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that runs a server, as it says itself. `id` is its own, `url` where it is reached, "" for nowhere."""

    id: str
    process: str
    url: str

    def __str__(self) -> str:
        """Return what people are told."""
        return f"{self.process} at {self.url}" if self.url else self.process

    @classmethod
    def of(cls, holder: str) -> Owner:
        """Read what was stored with a lease."""
        try:
            record = json.loads(holder)
            return cls(*(clean_text(str(record[key]))[:500] for key in ("id", "process", "url")))
        except (ValueError, LookupError, TypeError):
            return cls("", "an unknown process", "")


@dataclass(frozen=True, slots=True)
class CallerHeaders:
    """What goes with a call that may be forwarded: the caller's key, and whether it was forwarded already."""

    key: str | None = field(default=None, repr=False)
    forwarded: bool = False


class _NotTaken(Exception):
    """Raised where another gateway has certainly not called the tool. The message follows the words "the server X"."""


class Ownership:
    """Runs the stdio servers of this gateway whose leases it holds, and forwards calls of the others."""

    def __init__(self, leases: Leases, identity: str, peers: Peers, timeout: float) -> None:
        """Take the leases of a store and its id. `timeout`: seconds of a call without a sign of progress."""
        self._leases, self._identity, self._peers, self._timeout = leases, identity, peers, timeout
        self._me = Owner(secrets.token_hex(8), f"{socket.gethostname()} (process {os.getpid()})", peers.url)
        self._held: set[str] = set()
        self._owners: dict[str, Owner] = {}  # by server: its owner, as last seen
        self._names: dict[str, str] = {}
        self._watchdog = Watchdog()
        self._threads = anyio.CapacityLimiter(8)  # of its own: a store that stalls must not keep leases from being seen

    def owners(self) -> dict[str, str]:
        """Return by server which process runs it, as last seen."""
        return {name: "this process" if name in self._held else str(owner) for name, owner in self._owners.items()}

    def holds(self, name: str) -> bool:
        """Return whether this process runs a server."""
        return name in self._held

    def close(self) -> None:
        """End the watchdog."""
        self._watchdog.close()

    async def run(self, backend: Backend, taken: Callable[[], None], lost: Callable[[], None]) -> None:
        """Run a server whenever its lease can be taken, until cancelled; then stop it and release the lease.

        `taken` and `lost` are called when this process begins and ceases to be the one that runs it.
        """
        name, holder = await self._lease_name(backend), json.dumps(asdict(self._me))
        while True:
            lease: Lease | None = None
            try:
                # Not cancelled halfway: a lease that nobody knows of would be held until this process ends.
                with anyio.CancelScope(shield=True):
                    lease = await anyio.to_thread.run_sync(self._leases.take, name, holder, limiter=self._threads)
                await anyio.lowlevel.checkpoint_if_cancelled()
                if lease is None:
                    await self._note_owner(backend)
                else:
                    self._note(backend, self._me)
                    taken()
                    backend.start_again()
                    await anyio.sleep(HANDOVER_SECONDS if lease.inherited else 0)
                    await self._run_while_held(backend, lease)
                    self._owners.pop(backend.name, None)
                    _log.warning("%s: the lease was lost, and the server was stopped", backend.name)
            except StoreError as error:
                _log.debug("%s: %s", backend.name, error)
                if backend.name not in self._owners:
                    backend.problem = "is run by no gateway that is known, as the database does not answer"
            finally:
                if lease is not None:
                    self._held.discard(backend.name)
                    lost()
                    with anyio.CancelScope(shield=True):
                        await anyio.to_thread.run_sync(lease.release, limiter=self._threads)
            backend.tried.set()
            await anyio.sleep(random.uniform(*_TRY_SECONDS))

    async def _run_while_held(self, backend: Backend, lease: Lease) -> None:
        """Run a server; stop it in time when the lease is being lost."""
        backend.guard = lambda pid: self._watchdog.guarding(pid, lease)
        if not _is_held(lease):
            return
        self._held.add(backend.name)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.run)
            while _is_held(lease):
                await anyio.sleep(_LOOK_SECONDS)
            self._held.discard(backend.name)
            backend.mark_down("was stopped, as the database does not answer")
            tasks.cancel_scope.cancel()

    async def _note_owner(self, backend: Backend) -> Owner | None:
        """Ask the store who runs a server, and say so in `problem` where it cannot be reached."""
        name = await self._lease_name(backend)
        holder = await anyio.to_thread.run_sync(self._leases.holder, name, limiter=self._threads)
        if backend.name in self._held:
            return self._me
        owner = None if holder is None else Owner.of(holder)
        self._note(backend, owner)
        backend.problem = self._obstacle(owner)
        return owner

    def _note(self, backend: Backend, owner: Owner | None) -> None:
        if owner is None:
            self._owners.pop(backend.name, None)
        elif self._owners.get(backend.name) != owner:
            self._owners[backend.name] = owner
            _log.info("%s: run by %s", backend.name, "this process" if owner == self._me else owner)

    def _obstacle(self, owner: Owner | None) -> str:
        """Return why calls cannot be forwarded to an owner, to follow the server's name; "" where they can."""
        if owner is None:
            return "is run by no gateway at the moment, and is being taken over"
        if owner == self._me:
            return "is being started"
        if not owner.url:
            return f"is run by {owner}, which gives no address; start each gateway with --advertise URL"
        if not self._peers.permits(owner.url):
            return f"is run by {owner}, whose host is not named here; start each gateway with --peer HOST"
        return ""

    async def _lease_name(self, backend: Backend) -> str:
        if backend.name not in self._names:
            self._names[backend.name] = await anyio.to_thread.run_sync(lease_name, backend.server, self._identity)
        return self._names[backend.name]

    async def call(
        self, backend: Backend, tool_id: str, arguments: dict[str, Any], headers: CallerHeaders, call: ClientCall
    ) -> types.CallToolResult:
        """Call a tool here, or at the gateway that runs its server; that one checks the caller's key itself.

        While the owner changes, the call waits. It is sent again only where it was certainly not executed. Raises what
        Backend.call raises, and MCPError with NOT_OWNER for a forwarded call of a server that is not run here.
        """
        deadline, fresh = anyio.current_time() + _MOVING_SECONDS, False
        while True:
            if backend.name in self._held:
                return await backend.call(tool_id, arguments, call)
            if headers.forwarded:
                raise MCPError(NOT_OWNER, f"the server {backend.name} is not run by this gateway; nothing was called")
            owner = None if fresh else self._owners.get(backend.name)
            try:
                if owner is None or owner == self._me:
                    owner = await self._note_owner(backend)
                problem = self._obstacle(owner)
                if owner is not None and owner != self._me:
                    if problem:
                        raise BackendDown(f"the server {backend.name} {problem}")
                    return await self._forward(backend, owner, tool_id, arguments, headers, call)
            except StoreError:
                problem = "cannot be reached while the database does not answer"
            except _NotTaken as error:
                problem = str(error)
            if anyio.current_time() >= deadline:
                raise BackendDown(f"the server {backend.name} {problem}. Nothing was called; try again")
            fresh = True
            await anyio.sleep(_MOVING_PAUSE)

    async def _forward(
        self,
        backend: Backend,
        owner: Owner,
        tool_id: str,
        arguments: dict[str, Any],
        headers: CallerHeaders,
        call: ClientCall,
    ) -> types.CallToolResult:
        """Call a tool through another gateway. Raises _NotTaken where it has certainly not been called."""
        sent = {FORWARDED: "1"} | ({"Authorization": f"Bearer {headers.key}"} if headers.key else {})
        server = McpServer(url=owner.url, name=backend.name, headers=sent)
        refusals: list[int] = []
        link = guarded(http(server, _CONNECT_SECONDS, refusals, True), Guard())
        gone = False
        longest = self._timeout + _ANSWER_SECONDS
        in_flight = CallsInFlight("", lambda: None)
        call.clock = clock = Clock(longest)
        with clock.scope as scope, in_flight.working_on(call):

            async def watch() -> None:
                """End the call when its gateway runs the server no more: a machine that vanished does not say so."""
                nonlocal gone
                while self._owners.get(backend.name) == owner:
                    await anyio.sleep(_LOOK_SECONDS)
                gone = True
                scope.cancel()

            try:
                callbacks = in_flight.callbacks(call.capabilities)
                async with (
                    Client(link, cache=None, mode=LATEST_MODERN_VERSION, **callbacks) as client,
                    anyio.create_task_group() as tasks,
                ):
                    tasks.start_soon(watch)
                    request = tool_call("call_tool", {"name": tool_id, "arguments": arguments})
                    result: types.CallToolResult = await request.send(client, call)
                    tasks.cancel_scope.cancel()
                return result
            except Exception as error:
                raise self._failure(backend, owner, error, refusals[-1] if refusals else 0) from None
        if gone:
            raise BackendDown(_interrupted(backend, owner))
        raise BackendDown(f"{owner.process}, which runs the server {backend.name}, did not answer within {longest:g} s")

    def _failure(self, backend: Backend, owner: Owner, error: Exception, status: int) -> Exception:
        """Return the error to raise for one that a forwarded call met; `status` of the answer where it was an error."""
        leaves = list(_leaves(error))
        if any(isinstance(leaf, (httpx2.ConnectError, httpx2.ConnectTimeout)) for leaf in leaves):
            return _NotTaken(f"is run by {owner}, which cannot be reached")
        if status in _REFUSED_NOW:
            return _NotTaken(f"is run by {owner}, which takes no more calls now")
        if status in _REFUSED:
            hint = "; give it --allow-host" if status == 421 else ""
            return BackendDown(f"{owner}, which runs the server {backend.name}, refused the call with {status}{hint}")
        for leaf in leaves:
            if isinstance(leaf, MCPError) and leaf.code == NOT_OWNER:
                return _NotTaken("is being taken over by another process")
            if isinstance(leaf, MCPError) and leaf.code != types.CONNECTION_CLOSED:
                return leaf
        _log.warning("%s: the call at %s failed: %s", backend.name, owner, leaves[0])
        return BackendDown(_interrupted(backend, owner))


def lease_name(server: McpServer, identity: str) -> str:
    """Return the name of a server's lease: equal for equal names, commands, environments and folders.

    The digest is salted and slow to compute, since an environment may hold secrets that could be guessed.
    """
    content = json.dumps([server.command, sorted(server.env.items()), server.cwd]).encode()
    digest = hashlib.scrypt(content, salt=identity.encode(), n=1 << 14, r=8, p=1, dklen=16)
    return f"server {clean_text(server.name)} {digest.hex()}"


def headers_of(headers: Mapping[str, str], key: str | None) -> CallerHeaders:
    """Return what goes with a call, from the headers of its request."""
    return CallerHeaders(key, headers.get(FORWARDED) is not None)


def _is_held(lease: Lease) -> bool:
    return lease.until - time.monotonic() > STOP_SECONDS


def _interrupted(backend: Backend, owner: Owner) -> str:
    return (
        f"{owner.process}, which ran the server {backend.name}, ended during the call, which may have been executed; "
        "it is not made again by itself"
    )


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors inside exception groups."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error
