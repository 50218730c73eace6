"""Finds a dataset by its name, and reads DATA:SPLIT."""

from __future__ import annotations

import os
from pathlib import Path

from toolscout.errors import BadDataset

DATA_FOLDER = "TOOLSCOUT_DATA"
_BUNDLED = Path(__file__).resolve().parent.parent / "bundled"


def find_dataset(name: str) -> Path:
    """Return the folder of a dataset: "bundled", a path, or a folder in $TOOLSCOUT_DATA; else BadDataset."""
    if name == "bundled":
        return _BUNDLED
    home = os.environ.get(DATA_FOLDER, "")
    for folder in (Path(name), *([Path(home) / name] if home else [])):
        if folder.is_dir():
            return folder
    where = f"neither here nor in {home}" if home else f"here, and {DATA_FOLDER} names no folder of datasets"
    raise BadDataset(f'there is no dataset {name!r} {where}; give a BEIR folder, or "bundled"')


def find_split(text: str) -> tuple[str, Path, str]:
    """Return the name, the folder and the split of DATA or DATA:SPLIT; the split is "" where none is named.

    Raises BadDataset where there is no such dataset.
    """
    try:
        return text, find_dataset(text), ""
    except BadDataset:
        name, _, split = text.rpartition(":")
        if not name or not split:
            raise
        return name, find_dataset(name), split
