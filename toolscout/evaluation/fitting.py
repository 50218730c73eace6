"""What `toolscout train` is told, made into datasets and an untrained retriever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from toolscout.dataset import Dataset
from toolscout.errors import BadModel, Leak
from toolscout.evaluation.run import find_dataset
from toolscout.evaluation.settings import with_settings
from toolscout.retrievers.base import MODEL_FILE, Retriever, Trainable, TrainingSet, available, load_model, method

DEFAULT_PARTS = ("bm25", "memory", "dense")


def check_out(folder: Path) -> None:
    """Refuse a folder that holds something else; one with an interrupted training is gone on with."""
    if (folder / MODEL_FILE).exists():
        raise BadModel(f"{folder} already holds a model; name a new folder, or remove this one")
    if folder.exists() and not folder.is_dir():
        raise BadModel(f"{folder} is not a folder; name a new one")


def training_set(text: str) -> TrainingSet:
    """Read DATA, DATA:FAMILY, DATA:TRAIN or DATA:TRAIN:DEV."""
    name, *splits = text.split(":") if not Path(text).is_dir() else [text]
    folder = find_dataset(name)
    there = Dataset.split_names(folder)
    if not splits:
        splits = ["train", "dev" if "dev" in there else ""]
    elif len(splits) == 1 and f"{splits[0]}.train" in there:
        family = splits[0]
        splits = [f"{family}.train", f"{family}.dev" if f"{family}.dev" in there else ""]
    train, dev = (*splits, "")[:2]
    made = TrainingSet(Dataset.load(folder, [split for split in (train, dev) if split]), train, dev)
    shared = made.dataset.request_digests(train) & made.dataset.request_digests(dev) if dev else ()
    if shared:
        raise Leak(f"{name}: {train} and {dev} share {len(shared):,} requests; select on others than you train on")
    return made


def made(retriever: str, parts: Sequence[str], settings: Sequence[str]) -> Trainable:
    """An untrained retriever with these options; for hybrid, of these parts."""
    if retriever not in available():
        raise BadModel(f"there is no retriever called {retriever!r}; choose one of {', '.join(sorted(available()))}")
    if retriever != "hybrid":
        if parts:
            raise BadModel(f"{retriever} has no parts; leave --part out, or train hybrid")
        found = _made(retriever, settings)
    else:
        found = _hybrid(parts or DEFAULT_PARTS, settings)
    if not isinstance(found, Trainable):
        raise BadModel(f"{retriever} learns nothing: it can be used as it is")
    return found


def _hybrid(parts: Sequence[str], settings: Sequence[str]) -> Retriever:
    own = [setting for setting in settings if "." not in setting.partition("=")[0]]
    theirs: dict[str, list[str]] = {}
    for setting in settings:
        name, dot, rest = setting.partition(".")
        if setting not in own and dot:
            theirs.setdefault(name, []).append(rest)
    unknown = set(theirs) - {part for part in parts if part in available()}
    if unknown:
        raise BadModel(f"no part is called {', '.join(sorted(unknown))}; the parts are: {', '.join(parts)}")
    opened = [load_model(Path(p)) if Path(p).is_dir() else _made(p, theirs.get(p, [])) for p in parts]
    kind = cast(Callable[..., Retriever], method("hybrid"))
    default = cast(Any, method("hybrid"))().options if own else None
    return kind(with_settings(default, "hybrid", own) if default else None, opened)


def _made(name: str, settings: Sequence[str]) -> Retriever:
    empty = method(name)()
    if not settings:
        return empty
    return cast(Callable[..., Retriever], type(empty))(with_settings(empty.options, name, settings))
