"""A generator: a language model that was taught to write certain texts, as a folder of what training changed.

`generator.json` says which base it belongs to and what it was taught; the adapter lies beside it.
"""

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
    """Whether a folder holds a generator."""
    return bool(str(folder)) and (Path(folder) / FINETUNED_FILE).is_file()


def save_finetuned(folder: Path, base: Base, adapter: Adapter, about: Mapping[str, Any]) -> None:
    """Write a generator. `about`: its "task", and all else that is to be known of it, as JSON can hold it."""
    folder.mkdir(parents=True, exist_ok=True)
    adapter.save(folder)
    own = {"format": _FORMAT, "base": base.reference, "language": base.fingerprint}
    beside = folder / f".{FINETUNED_FILE}"
    beside.write_text(json.dumps({**about, **own}, indent=1))
    os.replace(beside, folder / FINETUNED_FILE)  # last: a folder that has it is complete


def read_finetuned(folder: str | Path) -> dict[str, Any]:
    """What is known of a generator."""
    path = Path(folder) / FINETUNED_FILE
    try:
        record = json.loads(path.read_text())
        if not isinstance(record, dict) or not all(isinstance(record.get(name), str) for name in ("base", "language")):
            raise ValueError("it names no language model")
        if not isinstance(record.get("format"), int):
            raise ValueError("it names no format")
    except (OSError, ValueError) as error:
        raise BadModel(f"{path} cannot be read ({error}); train the generator again") from None
    if record["format"] > _FORMAT:
        raise BadModel(f"{path} was written by a newer toolscout; upgrade: pip install -U toolscout")
    return record


def load_finetuned(folder: str | Path) -> tuple[Base, Adapter]:
    """A generator's base, which must be the one that it was trained from, and what training changed."""
    from toolscout.models.language.base import find_base
    from toolscout.models.language.lora import Adapter

    record = read_finetuned(folder)
    base = find_base(Path(folder), record["base"], record["language"])
    adapter = Adapter.load(Path(folder))
    adapter.check(base.architecture)
    return base, adapter


def open_finetuned(folder: str | Path, *, batch: int | None = None, seed: int = 0) -> Local:
    """Open a generator: on ONNX Runtime, or in torch on the device that $TOOLSCOUT_DEVICE names."""
    from toolscout.llm.local import Local

    opened = Local.of(*load_finetuned(folder), batch=batch, seed=seed)
    task = read_finetuned(folder).get("task")
    if isinstance(task, str) and task:
        opened.name = f"{opened.name}-{task}"
    return opened
