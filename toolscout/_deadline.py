"""A time for a whole exchange over HTTP, from connecting to the last byte, with the standard library."""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.request
from contextlib import suppress
from functools import partial
from typing import Any


class Deadline:
    """Shuts a connection when its time is over: the timeout of a socket begins anew with every byte."""

    def __init__(self, seconds: float) -> None:
        """Time runs from now on, until `close`."""
        self.passed = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._end)
        self._timer.daemon = True
        self._timer.start()

    def watch(self, connected: socket.socket) -> None:
        """Shut this one then, in place of any before it: a redirect opens another."""
        with self._lock:
            if self.passed:
                raise TimeoutError
            if self._socket is not None:
                self._socket.close()
            self._socket = connected.dup()  # a handle of our own: TLS takes over the other one

    def close(self) -> None:
        """All is there."""
        self._timer.cancel()
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _end(self) -> None:
        with self._lock:
            self.passed = True
            if self._socket is not None:
                with suppress(OSError):  # the server was faster
                    self._socket.shutdown(socket.SHUT_RDWR)


class _Plain(http.client.HTTPConnection):
    deadline: Deadline

    def connect(self) -> None:
        super().connect()
        self.deadline.watch(self.sock)


class _Tls(http.client.HTTPSConnection, _Plain):
    """In this order `connect` of _Plain comes before TLS begins: a slow handshake is ended too."""


class Timed(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections that a deadline ends."""

    def __init__(self, deadline: Deadline) -> None:
        """One deadline for all that is opened."""
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> Any:
        """Without TLS."""
        return self.do_open(partial(self._connection, _Plain), req)

    def https_open(self, req: urllib.request.Request) -> Any:
        """With TLS."""
        return self.do_open(partial(self._connection, _Tls), req)

    def _connection(self, kind: type[_Plain], host: str, **settings: Any) -> _Plain:
        made = kind(host, **settings)
        made.deadline = self._deadline
        return made
