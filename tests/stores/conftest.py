from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.stores.contract", "tests.stores.store_model")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test puts its store."""
    return tmp_path / "store.db"
