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


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The int8 encoder, exported once for all tests; they skip where the package with its weights is absent."""
    from toolscout.errors import MissingEncoder
    from toolscout.nn.export import export

    try:
        return export(out=tmp_path_factory.mktemp("encoders") / "int8")
    except MissingEncoder as error:
        pytest.skip(str(error))
