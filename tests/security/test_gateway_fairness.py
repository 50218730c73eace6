"""One caller of the gateway does not take its searches from another."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.security.live_server import connected, message
from tests.security.test_connections import ACCEPT, gateway
from toolscout.serving.access import Access
from toolscout.serving.limits import ServeOptions

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def searched(port: int, key: str) -> bool:
    """Whether a search over the newest protocol is answered."""
    params = {"name": "search_tools", "arguments": {"query": "feed the lion"}, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    routing = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call", "mcp_name": "search_tools"}
    with connected(port) as one:
        one.sendall(
            message("POST", "/mcp", body, Authorization=f"Bearer {key}", Connection="close", **ACCEPT, **routing)
        )
        found = b""
        while part := one.recv(65536):
            found += part
    return b"zoo/feed_lion" in found


@pytest.mark.timing
def test_searches_of_one_key_do_not_starve_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = Access.search

    def slowly(self: Access, *args: Any) -> Any:
        time.sleep(0.02)
        return search(self, *args)

    monkeypatch.setattr(Access, "search", slowly)
    with gateway(tmp_path, ServeOptions(rate=0), "a", "b") as (port, (a, b)):
        over = threading.Event()

        def flood() -> None:
            while not over.is_set():
                searched(port, a)

        threads = [threading.Thread(target=flood) for _ in range(80)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        took = []
        for _ in range(10):
            began = time.perf_counter()
            assert searched(port, b)
            took.append(time.perf_counter() - began)
        over.set()
        for thread in threads:
            thread.join()
    assert sorted(took)[8] < 1
