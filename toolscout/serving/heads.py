"""How requests begin: a head has a bounded size and arrives in time, and what is no request is told so as a problem."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from toolscout.serving import problems
from toolscout.serving.problems import Problem

HEAD_BYTES = 1 << 16
HEAD_S = 10.0
CONNECTIONS = 1024


class Heads(HttpToolsProtocol):
    """One connection.

    The server beneath would wait for the end of a head for ever and keep all of it: a few hundred clients that send
    none would keep everyone else out.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        """As the server makes it."""
        super().__init__(*args, **named)
        self._late: asyncio.TimerHandle | None = None
        self._inside, self._bytes, self._turns = True, 0, 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a head from now on."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; Problem 431 where a head does not end."""
        if self._inside and self._late is None:
            self._wait()
        turns = self._turns
        super().data_received(data)
        if self._inside and turns == self._turns:  # all of it belongs to one head
            self._bytes += len(data)
            if self._bytes > HEAD_BYTES:
                self._refuse(Problem(431, f"the headers of a request may have {HEAD_BYTES:,} bytes; send less"))

    def on_headers_complete(self) -> None:
        """A head is complete; Problem 503 where too many are connected."""
        self._inside, self._bytes, self._turns = False, 0, self._turns + 1
        self._wait_no_more()
        crowded = len(self.connections) > CONNECTIONS or len(self.tasks) > CONNECTIONS
        self.app = _crowded if crowded else self.config.loaded_app
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is complete; the next may begin."""
        self._inside, self._bytes, self._turns = True, 0, self._turns + 1
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request."""
        self._refuse(Problem(400, "this is no HTTP request, or its method, address or headers are malformed"))

    def _wait(self) -> None:
        self._late = self.loop.call_later(HEAD_S, self._too_late)

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait()  # the one before is being answered still
        elif self._bytes:
            self._refuse(Problem(408, f"the headers did not arrive within {HEAD_S:g} s"))
        else:
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        self._wait_no_more()
        answer = problems.response(problem)
        headers = [*self.server_state.default_headers, *answer.raw_headers, (b"connection", b"close")]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[problem.status] + lines + b"\r\n" + bytes(answer.body))
        self.transport.close()


async def _crowded(scope: Scope, receive: Receive, send: Send) -> None:
    headers = {"Retry-After": "1", "Connection": "close"}
    await problems.response(Problem(503, "too many are connected; ask again in a second", headers))(
        scope, receive, send
    )
