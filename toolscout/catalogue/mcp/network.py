"""Connections to an MCP server that is a URL: only to addresses that are allowed."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpcore2
import httpx2

from toolscout.core.addresses import Addresses

_PORTS = {"http": 80, "https": 443}


def transport_to(url: str, addresses: Addresses | None) -> httpx2.AsyncHTTPTransport:
    """A transport to the host of a URL. It is for this host: the SDK follows no redirect to another.

    A host that was named (None: this one) may be at any address, and is reached through the proxy that the environment
    names for it. Any other must be at a public address and is connected to directly, since a proxy would look its
    name up itself.
    """
    parts = urlsplit(url)
    if addresses is None or addresses.names(parts.hostname or "", parts.port or _PORTS.get(parts.scheme)):
        return httpx2.AsyncHTTPTransport(proxy=_proxy(parts.scheme, parts.netloc.rpartition("@")[2]))
    made = httpx2.AsyncHTTPTransport()
    context, checked = httpx2.create_ssl_context(), _Checked(addresses)
    made._pool = httpcore2.AsyncConnectionPool(ssl_context=context, network_backend=checked)
    return made


def _proxy(scheme: str, place: str) -> str | None:
    known = urllib.request.getproxies()
    proxy = known.get(scheme) or known.get("all")
    if not proxy or urllib.request.proxy_bypass(place):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


class _Checked(httpcore2.AsyncNetworkBackend):
    """Looks a name up once, checks all that is found, and connects to one of these very addresses."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            with anyio.fail_after(timeout):
                looked_up = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = self._addresses.checked(host, port, looked_up)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"{host} could not be looked up in time") from None
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from None
        last = httpcore2.ConnectError(f"{host} has no address")
        for *_, place in found:
            try:
                return await self._inner.connect_tcp(str(place[0]), port, timeout, local_address, socket_options)
            except httpcore2.ConnectError as problem:
                last = problem
        raise last

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)
