"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import ipaddress
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.postgres import Postgres
    from tests.toys import Poems


def _stay_on_this_machine(event: str, details: tuple[Any, ...]) -> None:
    """Fail a test that connects, sends or looks a name up anywhere but on this machine."""
    if event in ("socket.connect", "socket.sendto") and isinstance(details[1], tuple):
        if not ipaddress.ip_address(details[1][0].partition("%")[0]).is_loopback:
            raise AssertionError(f"a test must not reach {details[1][0]}: only loopback addresses are asked")
    elif event == "socket.getaddrinfo":
        host = details[0].decode() if isinstance(details[0], bytes) else details[0]
        # An address is not looked up: nobody is asked, however it is written.
        if host and host.strip("0123456789abcdefxABCDEFX.:%") and host != "localhost":
            raise AssertionError(f"a test must not look {host} up: that asks another machine")


sys.addaudithook(_stay_on_this_machine)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a module that is slow as a whole unread where slow tests are not run: it may import torch."""
    if "not slow" not in config.getoption("markexpr") or collection_path.suffix != ".py":
        return None
    return True if "\npytestmark = pytest.mark.slow\n" in collection_path.read_text() else None


@pytest.fixture(autouse=True)
def _leave_old_objects_uncollected(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where a time is asserted, the collector does not look through the objects of all test modules."""
    if request.node.get_closest_marker("timing") is None:
        yield
        return
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of published datasets, named by TOOLSCOUT_DATA; tests on it skip where it is absent."""
    folder = os.environ.get("TOOLSCOUT_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("TOOLSCOUT_DATA does not name a folder of datasets")
    return Path(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server with pgvector, one for all tests of this process; they skip where it is not installed."""
    from tests.postgres import running

    with running() as server:
        yield server


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The int8 encoder, exported once for all tests; they skip where the package with its weights is absent."""
    from toolscout.errors import MissingEncoder
    from toolscout.models.encoders.export import export

    try:
        return export(out=tmp_path_factory.mktemp("encoders") / "int8")
    except MissingEncoder as error:
        pytest.skip(str(error))


@pytest.fixture
def poems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Poems:
    """The toy encoder whose head says that poems need no tool, in place of the default encoder."""
    from tests.toys import Poems

    toy = Poems(tmp_path / "encoder")
    monkeypatch.setattr("toolscout.retrievers.dense.Encoder.load", lambda folder=None: toy)
    return toy
