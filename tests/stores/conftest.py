from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.store_helpers import MAKERS
from toolscout.stores import Store, kinds


@pytest.fixture(params=kinds())
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A fresh store of each kind found."""
    assert request.param in MAKERS, f"tell store_helpers.MAKERS how to make a {request.param} store"
    with MAKERS[request.param](tmp_path) as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test puts its store."""
    return tmp_path / "store.db"
