"""Folders of fine-tuned language models: generator.json names base model and task, adapter.npz has the adapter."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolscout.errors import BadModel

if TYPE_CHECKING:
    from toolscout.llm.local import Local
    from toolscout.models.language.base import Base
    from toolscout.models.language.lora import Adapter

FINETUNED_FILE = "generator.json"
_FORMAT = 1


def is_finetuned(folder: str | Path) -> bool:
    """Whether a folder has a fine-tuned model."""
    return bool(str(folder)) and (Path(folder) / FINETUNED_FILE).is_file()


def save_finetuned(folder: Path, base: Base, adapter: Adapter, about: Mapping[str, Any]) -> None:
    """Write a fine-tuned model. `about` goes into generator.json: its "task", and any other JSON values."""
    folder.mkdir(parents=True, exist_ok=True)
    adapter.save(folder)
    header = {"format": _FORMAT, "base": base.reference, "language": base.fingerprint}
    temporary = folder / f".{FINETUNED_FILE}"
    temporary.write_text(json.dumps({**about, **header}, indent=1))
    os.replace(temporary, folder / FINETUNED_FILE)  # last: a folder that has it is complete


def read_finetuned(folder: str | Path) -> dict[str, Any]:
    """The content of generator.json; raises BadModel where it cannot be read."""
    path = Path(folder) / FINETUNED_FILE
    try:
        record = json.loads(path.read_text())
        if not isinstance(record, dict) or not all(isinstance(record.get(name), str) for name in ("base", "language")):
            raise ValueError("it names no language model")
        if not isinstance(record.get("format"), int):
            raise ValueError("it names no format")
    except (OSError, ValueError) as error:
        raise BadModel(f"{path} cannot be read ({error}); train the model again") from None
    if record["format"] > _FORMAT:
        raise BadModel(f"{path} was written by a newer toolscout; upgrade: pip install -U toolscout")
    return record


def load_finetuned(folder: str | Path) -> tuple[Base, Adapter]:
    """The base model that it was trained from, and the adapter; raises BadModel where they do not fit."""
    from toolscout.models.language.base import find_base
    from toolscout.models.language.lora import Adapter

    record = read_finetuned(folder)
    base = find_base(Path(folder), record["base"], record["language"])
    adapter = Adapter.load(Path(folder))
    adapter.check(base.architecture)
    return base, adapter


def open_finetuned(folder: str | Path, *, batch: int | None = None, seed: int = 0) -> Local:
    """Open a fine-tuned model: on ONNX Runtime, or in torch on the device that $TOOLSCOUT_DEVICE names."""
    from toolscout.llm.local import Local

    opened = Local.of(*load_finetuned(folder), batch=batch, seed=seed)
    task = read_finetuned(folder).get("task")
    if isinstance(task, str) and task:
        opened.name = f"{opened.name}-{task}"
    return opened
