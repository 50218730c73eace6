"""HTTP connections to an MCP server, only to allowed addresses."""

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
    """Return a transport to the host of a URL; the SDK follows no redirect to another host.

    A host that `addresses` names (None: this one) may have any address, and is reached through the proxy that the
    environment sets for it. Any other must have a public address, and is reached without a proxy, since a proxy would
    resolve the name itself.
    """
    parts = urlsplit(url)
    if addresses is None or addresses.names(parts.hostname or "", parts.port or _PORTS.get(parts.scheme)):
        return httpx2.AsyncHTTPTransport(proxy=_proxy(parts.scheme, parts.netloc.rpartition("@")[2]))
    transport = httpx2.AsyncHTTPTransport()
    context, backend = httpx2.create_ssl_context(), _CheckedBackend(addresses)
    transport._pool = httpcore2.AsyncConnectionPool(ssl_context=context, network_backend=backend)
    return transport


def _proxy(scheme: str, place: str) -> str | None:
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(place):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


class _CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Resolves a host once, checks all its addresses, and connects to one of them, so that none can change between."""

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
