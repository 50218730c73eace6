"""A store whose vectors are of another encoder is embedded by whoever serves it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.serving.gateways import gateway
from tests.toys import HashedWords
from toolscout import Scout, Tool
from toolscout.serving.catalogue_writes import Writes
from toolscout.serving.request_bodies import Changes

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


class Slow(HashedWords):
    """Embeds documents once it is told to."""

    fingerprint = "slow"

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def encode_documents(self, texts: Sequence[str]) -> Iterator[Any]:
        assert self.goes_on.wait(30)
        yield from super().encode_documents(texts)


def test_a_change_does_not_wait_for_another_encoder(path: Path) -> None:
    with Scout.open(path) as scout:
        scout.embed()
    slow = Slow()
    with Scout.open(path, encoder=slow) as scout:
        assert scout.switching
        writes = Writes(scout)
        counts = writes.apply(Changes((Tool("calendar", "add_event", "Puts an event into the calendar."),)))
        assert (counts["added"], scout.switching) == (1, True)
        assert scout.search("add_event").considered[0].tool_id == "calendar/add_event"
        slow.goes_on.set()
        until = time.monotonic() + 20
        while (scout.switching or scout.not_embedded()) and time.monotonic() < until:
            time.sleep(0.02)
        writes.close()
        assert not scout.switching
        assert scout.not_embedded() == 0


def test_over_mcp(path: Path) -> None:
    async def main() -> None:
        async with gateway(path, retriever="hybrid") as made:
            with anyio.fail_after(20):
                while made.access.scout.not_embedded():
                    await anyio.sleep(0.02)

    anyio.run(main)
