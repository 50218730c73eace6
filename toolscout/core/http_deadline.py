"""HTTP with the standard library: one deadline for a whole exchange, connections to allowed addresses only."""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.request
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from toolscout.core.addresses import Addresses


class Deadline:
    """Shuts a connection after some seconds; a socket's own timeout starts again with every byte."""

    def __init__(self, seconds: float) -> None:
        """Start the clock; `close` stops it."""
        self.passed = False
        self._until = time.monotonic() + seconds
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._end)
        self._timer.daemon = True
        self._timer.start()

    def watch(self, connected: socket.socket) -> None:
        """Watch this socket instead of the one before, since a redirect opens another; TimeoutError if time is over."""
        with self._lock:
            if self.passed:
                raise TimeoutError
            if self._socket is not None:
                self._socket.close()
            self._socket = connected.dup()  # a duplicate, because TLS takes over the original

    def left(self) -> float:
        """Return the seconds left; TimeoutError where there are none."""
        seconds = self._until - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return min(seconds, threading.TIMEOUT_MAX)

    def close(self) -> None:
        """Stop the clock: the exchange is over."""
        self._timer.cancel()
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _end(self) -> None:
        with self._lock:
            self.passed = True
            if self._socket is not None:
                with suppress(OSError):  # the server has closed it already
                    self._socket.shutdown(socket.SHUT_RDWR)


class Timed(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """A urllib handler whose connections end at a deadline and go to allowed addresses only."""

    def __init__(self, deadline: Deadline, addresses: Addresses | None = None) -> None:
        """One deadline for all connections. `addresses` None: any address is allowed."""
        super().__init__()
        self._deadline = deadline
        self._addresses = addresses

    def http_open(self, req: urllib.request.Request) -> Any:
        """Open an http: URL."""
        return self.do_open(partial(self._connection, http.client.HTTPConnection, req), req)

    def https_open(self, req: urllib.request.Request) -> Any:
        """Open an https: URL."""
        return self.do_open(partial(self._connection, http.client.HTTPSConnection, req), req)

    def _connection(
        self, kind: type[http.client.HTTPConnection], req: urllib.request.Request, host: str, **settings: Any
    ) -> http.client.HTTPConnection:
        # Through a proxy the connection is to the proxy, which the environment of this process names.
        proxied = req.has_proxy() or getattr(req, "_tunnel_host", None) is not None
        made: Any = kind(host, **settings)
        made._create_connection = partial(self._connected, None if proxied else self._addresses)
        return made  # type: ignore[no-any-return]

    def _connected(self, addresses: Addresses | None, place: tuple[str, int], *settings: Any) -> socket.socket:
        """Return a socket connected to one of the checked addresses; TLS and the Host header still use the name."""
        found = addresses.resolve(*place) if addresses else socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
        error = OSError(f"{place[0]} has no address")
        for number, (family, kind, protocol, _, address) in enumerate(found):
            made = socket.socket(family, kind, protocol)
            try:
                # An address that does not answer must leave time to try the others.
                made.settimeout(self._deadline.left() / (len(found) - number))
                made.connect(address)
                made.settimeout(self._deadline.left())
                self._deadline.watch(made)
                return made
            except OSError as problem:
                made.close()
                error = problem
        raise error


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects of GET and HEAD only: urllib would turn any other method into a GET without its body."""

    def redirect_request(self, req: urllib.request.Request, fp: Any, *about: Any) -> urllib.request.Request | None:
        """Return the request to the new address, or None to take the redirect itself as the response."""
        if req.get_method() not in ("GET", "HEAD"):
            return None
        following = super().redirect_request(req, fp, *about)
        if following is not None:
            fp.close()  # urllib would read the body of the redirect to its end, however long it is
            following.remove_header("Proxy-authorization")  # the next host may be connected to without the proxy
        return following


class _Proxies(urllib.request.ProxyHandler):
    """Uses the proxies of the environment for hosts that the operator named.

    Other hosts are connected to directly: a proxy would resolve the name itself, so the address could not be checked.
    """

    def __init__(self, addresses: Addresses | None) -> None:
        super().__init__()
        self._addresses = addresses

    def proxy_open(self, req: urllib.request.Request, proxy: str, type: str) -> Any:
        parts = urlsplit(req.full_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if self._addresses is not None and not self._addresses.names(parts.hostname or "", port):
            return None
        return super().proxy_open(req, proxy, type)


def opener(deadline: Deadline, addresses: Addresses | None, *, redirects: bool = True) -> urllib.request.OpenerDirector:
    """Return an opener of http and https URLs that obeys a deadline and connects to allowed addresses only.

    Without `redirects` one is an HTTPError. The opener has no handler for other schemes: a redirect to ftp: would
    connect to any address.
    """
    made = urllib.request.OpenerDirector()
    for handler in (
        _Proxies(addresses),
        Timed(deadline, addresses),
        *([Redirects()] if redirects else []),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        made.add_handler(handler)
    return made
