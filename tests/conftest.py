"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of published datasets, named by TOOLSCOUT_DATA; tests on it skip where it is absent."""
    folder = os.environ.get("TOOLSCOUT_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("TOOLSCOUT_DATA does not name a folder of datasets")
    return Path(folder)
