"""A store whose vectors are of another encoder is embedded by whoever serves it."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from tests.serving.gateways import gateway
from toolscout import Scout, Tool
from toolscout.serving.catalogue_writes import Writes

TOOLS = [Tool("mail", "send_email", "Sends an email."), Tool("weather", "forecast", "How warm it will be.")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Tools in a store, none of them with a vector of the encoder that is there."""
    found = tmp_path / "t.db"
    with Scout.open(found) as scout:
        scout.store.add(TOOLS, "elsewhere")
    return found


def test_over_http(path: Path) -> None:
    with Scout.open(path) as scout:
        assert scout.not_embedded() == 2
        writes, until = Writes(scout), time.monotonic() + 20
        while scout.not_embedded() and time.monotonic() < until:
            time.sleep(0.02)
        writes.close()
        assert scout.not_embedded() == 0


def test_over_mcp(path: Path) -> None:
    async def main() -> None:
        async with gateway(path, retriever="hybrid") as made:
            with anyio.fail_after(20):
                while made.access.scout.not_embedded():
                    await anyio.sleep(0.02)

    anyio.run(main)
