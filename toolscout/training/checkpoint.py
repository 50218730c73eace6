"""Checkpoints as safetensors and JSON files; a complete one is on disk at all times, even while one is written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from toolscout.errors import BadModel

_STATE = "state.json"
_BEST = "best.safetensors"


class Checkpoints:
    """The folder of one training, with its last state and its best weights."""

    def __init__(self, folder: Path, identity: str) -> None:
        """`identity` identifies the data and options: only a training with the same ones can be resumed."""
        self.folder = folder
        self.identity = identity

    def exist(self) -> bool:
        """Whether a state was written."""
        return (self.folder / _STATE).is_file()

    def read(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """The last state and its tensors, None where there is none; raises BadModel where it cannot be resumed."""
        if not self.exist():
            return None
        try:
            record: dict[str, Any] = json.loads((self.folder / _STATE).read_text())
            same = record["identity"] == self.identity
            state = (record["state"], load_file(self.folder / record["file"])) if same else None
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise self._unreadable(error) from None
        if state is None:
            raise BadModel(
                f"{self.folder} holds a training on other data or with other options that was interrupted; "
                "train into another folder, or remove this one to begin again"
            )
        return state

    def _unreadable(self, error: Exception) -> BadModel:
        return BadModel(f"the checkpoint in {self.folder} cannot be read ({error}); remove it, train again")

    def write(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Write a state. The json names the file of tensors and is replaced last, in one step."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"state-{state['step']}.safetensors"
        _save(self.folder / name, tensors)
        beside = self.folder / f".{_STATE}"
        beside.write_text(json.dumps({"identity": self.identity, "file": name, "state": dict(state)}))
        os.replace(beside, self.folder / _STATE)
        for old in self.folder.glob("state-*.safetensors"):
            if old.name != name:
                old.unlink()

    def write_best(self, tensors: Mapping[str, Tensor]) -> None:
        """Write the best weights, in place of earlier ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _save(self.folder / _BEST, tensors)

    def read_best(self) -> dict[str, Tensor]:
        """The best weights; raises BadModel where there are none, as before the first validation."""
        try:
            return load_file(self.folder / _BEST)
        except (OSError, SafetensorError) as error:
            raise self._unreadable(error) from None

    def remove(self) -> None:
        """Remove the folder of a complete training."""
        (self.folder / _STATE).unlink(missing_ok=True)  # first: without it, nothing is resumed from the rest
        shutil.rmtree(self.folder, ignore_errors=True)


def _save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a temporary file and rename it, so that `path` is never incomplete."""
    beside = path.with_name(f".{path.name}")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, beside)
    os.replace(beside, path)
