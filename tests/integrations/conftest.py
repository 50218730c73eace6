"""A Scout that holds nothing yet, and one whose catalogue has the workshop's functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrations.workshop import FUNCTIONS
from toolscout import Scout


@pytest.fixture
def scout(tmp_path: Path) -> Iterator[Scout]:
    with Scout.open(tmp_path / "tools.db") as opened:
        yield opened


@pytest.fixture(scope="session")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scout]:
    with Scout.open(tmp_path_factory.mktemp("stocked") / "tools.db") as opened:
        opened.add(FUNCTIONS)
        yield opened
