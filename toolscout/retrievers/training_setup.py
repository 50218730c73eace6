"""Turns the arguments of `toolscout train` into datasets and an untrained retriever."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path

from toolscout.data.dataset import Dataset
from toolscout.data.locate import DATA_FOLDER, find_dataset
from toolscout.errors import BadDataset, BadModel, Leak
from toolscout.retrievers import opening
from toolscout.retrievers.base import FitReport, Retriever
from toolscout.retrievers.model_folder import MODEL_FILE, read_model
from toolscout.retrievers.provenance import Role, SeenSplit, TrainedOn, TrainingSet
from toolscout.retrievers.registry import available, method

DEFAULT_PARTS = ("bm25", "memory", "dense")
_NO_TOOL = "no_tool"
# Names that an interrupted training leaves: checkpoints, encoded texts, a fine-tuned model, parts of a hybrid.
_INTERRUPTED = re.compile(r"training|encoded|generator|\d+-\w+")


def check_out(folder: Path) -> None:
    """Raise BadModel unless the folder is new, empty, or holds an interrupted training, which is then continued."""
    if (folder / MODEL_FILE).exists():
        raise BadModel(f"{folder} already holds a model; name a new folder, or remove this one")
    if folder.exists() and not folder.is_dir():
        raise BadModel(f"{folder} is not a folder; name a new one")
    held = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    if held and not any(_INTERRUPTED.fullmatch(name) for name in held):
        raise BadModel(f"{folder} holds something else ({held[0]}); name a new folder")


def training_sets(texts: Sequence[str]) -> list[TrainingSet]:
    """Read several training sets. Raises Leak if any train split shares requests with any dev split.

    What a model that wrote or filtered the requests of a set was trained on counts as trained on, too.
    """
    sets = [_training_set(text) for text in texts]
    splits = [split for one in sets for split in _splits_of(one)]
    seen = [*splits, *(split for one in sets for split in one.history.splits)]
    for train, dev in product(_with_role("train", seen), _with_role("dev", splits)):
        shared = train.requests & dev.requests
        if shared:
            both = f"{train.dataset}:{train.split} and {dev.dataset}:{dev.split}"
            raise Leak(f"{both} share {len(shared):,} requests; select on others than you train on")
    return sets


def _with_role(role: Role, splits: Sequence[SeenSplit]) -> list[SeenSplit]:
    return [split for split in splits if split.role == role]


def _splits_of(one: TrainingSet) -> list[SeenSplit]:
    """The splits of a set as in TrainedOn, without digests, which are slow to compute."""
    data = one.dataset
    roles: list[tuple[Role, str]] = [("train", one.train), ("dev", one.dev)]
    return [SeenSplit(data.name, "", split, role, data.request_digests(split)) for role, split in roles if split]


def _training_set(text: str) -> TrainingSet:
    """Read DATA, DATA:FAMILY, DATA:TRAIN or DATA:TRAIN:DEV."""
    name, *splits = text.split(":") if not Path(text).is_dir() else [text]
    if len(splits) > 2 or (splits and not splits[0]):
        raise BadDataset(f"{text!r} cannot be read; write DATA, DATA:TRAIN or DATA:TRAIN:DEV")
    folder = find_dataset(name)
    there = Dataset.split_names(folder)
    if not splits:
        splits = ["train", "dev" if "dev" in there else ""]
    elif len(splits) == 1 and f"{splits[0]}.train" in there:
        family = splits[0]
        splits = [f"{family}.train", f"{family}.dev" if f"{family}.dev" in there else ""]
    train, dev = (*splits, "")[:2]
    loaded = Dataset.load(folder, [split for split in (train, dev) if split])
    return TrainingSet(loaded, train, dev, TrainedOn.load(folder))  # present if a model wrote the requests


def with_prompts(
    retriever: str, parts: Sequence[str], settings: Sequence[str], given: str | None
) -> tuple[list[str], str]:
    """The settings plus a folder of prompts that need no tool, for methods that learn from those; and a note.

    `given`: a folder, the name of one in $TOOLSCOUT_DATA, or "none"; None takes that called no_tool, if there is one.
    """
    names = [retriever] if retriever != "hybrid" else [part for part in parts or DEFAULT_PARTS if part in available()]
    keys = [f"{name}.{_NO_TOOL}" if retriever == "hybrid" else _NO_TOOL for name in names if _takes_prompts(name)]
    set_already = [key for key in keys if any(setting.partition("=")[0] == key for setting in settings)]
    if given is not None and not keys:
        raise BadModel(f"{retriever} does not learn whether a request needs a tool; leave --no-tool out")
    if given is not None and set_already:
        raise BadModel(f"--no-tool and --option {set_already[0]} say the same twice; leave one of them out")
    if given == "none" or not keys or set_already:
        return list(settings), ""
    home = os.environ.get(DATA_FOLDER, "")
    usual = Path(home, _NO_TOOL) if home else None
    if given is not None:
        folder = find_dataset(given)
    elif usual is not None and usual.is_dir():
        folder = usual
    else:
        return list(settings), (
            "there are no prompts to learn from, so the model will not tell whether a tool is needed; name some with "
            "--no-tool FOLDER"
        )
    note = "" if given else f"prompts that need no tool are those of {folder}; --no-tool none trains without"
    return [*settings, *(f"{key}={folder.resolve()}" for key in keys)], note


def _takes_prompts(name: str) -> bool:
    return name in available() and _has_option(name, _NO_TOOL)


def _has_option(name: str, option: str) -> bool:
    return any(field.name == option for field in fields(method(name)().options))


def seed_settings(retriever: str, parts: Sequence[str], seed: int) -> list[str]:
    """The settings that give a method, or for hybrid all parts that are trained, this seed.

    Raises BadModel where nothing of it takes a seed.
    """
    names = [retriever] if retriever != "hybrid" else [part for part in parts or DEFAULT_PARTS if part in available()]
    seeded = [name for name in names if name in available() and _has_option(name, "seed")]
    if not seeded:
        raise BadModel(f"{retriever} has no seed: it is trained the same way each time; leave --seeds out")
    return [f"{name}.seed={seed}" if retriever == "hybrid" else f"seed={seed}" for name in seeded]


def runs(
    retriever: str, parts: Sequence[str], out: Path, sweeps: Sequence[str], seeds: Sequence[int]
) -> dict[Path, list[str]]:
    """Return the runs of sweeps over options and seeds: the folder of each, as OUT-rate=0.001-s0, and its settings.

    A sweep is KEY=VALUE,VALUE,…; several are combined. Raises BadModel where one has no value, or several the same key.
    """
    choices: list[list[tuple[str, list[str]]]] = []
    for sweep in sweeps:
        key, equals, listed = sweep.partition("=")
        values = list(dict.fromkeys(filter(None, listed.split(","))))
        if not key or not equals or not values:
            raise BadModel(f"{sweep!r:.80} is no sweep; write KEY=VALUE,VALUE,…, as rate=1e-4,3e-4")
        choices.append([(f"{key}={value}", [f"{key}={value}"]) for value in values])
    if len({sweep.partition("=")[0] for sweep in sweeps}) < len(sweeps):
        raise BadModel("an option is swept twice; name all of its values at once, as rate=1e-4,3e-4")
    if seeds:
        choices.append([(f"s{seed}", seed_settings(retriever, parts, seed)) for seed in seeds])
    if not choices:
        return {out: []}
    found, base = {}, out if out.name else out.resolve()
    for chosen in product(*choices):
        name = "-".join([base.name, *(name.replace("/", "_") for name, _ in chosen)])
        found[base.with_name(name)] = [setting for _, settings in chosen for setting in settings]
    return found


def is_trained(folder: Path) -> bool:
    """Return whether a folder has a trained model in it."""
    return (folder / MODEL_FILE).exists()


def fit_report(folder: Path) -> FitReport | None:
    """Return how the model in a folder was trained; None where there is none, or one without a training of its own."""
    fit = read_model(folder).get("fit") if is_trained(folder) else None
    return FitReport(fit["seconds"], fit["device"], fit["parameters"], fit.get("dev", {})) if fit else None


def trained(
    sets: Sequence[TrainingSet], retriever: str, parts: Sequence[str], settings: Sequence[str], out: Path
) -> FitReport:
    """Train a retriever and leave it in a folder."""
    return made(retriever, parts, settings).fit(sets, out)


def made(retriever: str, parts: Sequence[str], settings: Sequence[str]) -> Retriever:
    """An untrained retriever with these options; for hybrid, rewrite and rerank, of these parts."""
    found = opening.made(retriever, parts or (DEFAULT_PARTS if retriever == "hybrid" else ()), settings)
    if not found.trainable:
        raise BadModel(f"{retriever} learns nothing: it can be used as it is")
    return found
