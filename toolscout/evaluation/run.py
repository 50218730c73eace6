"""Evaluates a retriever on one split of a dataset, through Scout: what is measured is what is served."""

from __future__ import annotations

import hashlib
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import numpy as np

from toolscout import metrics
from toolscout.answer import Verdict
from toolscout.dataset import Dataset, Kind
from toolscout.errors import BadDataset, BadModel
from toolscout.evaluation._vectors import cached_vectors, encoder_of
from toolscout.evaluation.row import Row, provenance, variant_of
from toolscout.retrievers.base import Options, Retriever, load_model, method
from toolscout.scout import Progress, Scout
from toolscout.stores.sqlite import SqliteStore

CUTOFFS = (1, 3, 5, 10)
MEASURES = tuple(f"{kind}@{k}" for kind in ("recall", "ndcg", "comp") for k in CUTOFFS)
# Over the gold tools that training on the sibling split could not have seen, and over the others.
NEW_TOOL_MEASURES = tuple(f"{kind}@{k}" for kind in ("new_recall", "known_recall") for k in CUTOFFS)
DATA_FOLDER = "TOOLSCOUT_DATA"
_BUNDLED = Path(__file__).resolve().parent.parent / "bundled"
_UNSEEN_TOOLS = "unseen_tool."


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and what came of it. One that failed has no ranking, and its error."""

    request_id: str
    scene: str
    kind: Kind
    gold: tuple[str, ...]
    ranking: tuple[str, ...] | None
    fit: float
    verdict: Verdict | None
    seconds: float
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The line that is written beside the row; see row.py."""
        places = {tool_id: rank for rank, tool_id in reversed(list(enumerate(self.ranking or (), 1)))}
        ranks = None if self.ranking is None else sorted(places[tool_id] for tool_id in self.gold if tool_id in places)
        return {
            "id": self.request_id,
            "scene": hashlib.blake2b(self.scene.encode(errors="replace"), digest_size=6).hexdigest(),
            "kind": self.kind,
            "gold": len(self.gold),
            "ranks": ranks,
            "fit": round(self.fit, 4),
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The row, and every request that it sums up."""

    row: Row
    asked: tuple[Asked, ...]


def find_dataset(name: str) -> Path:
    """The folder of a dataset: "bundled", a path, or the name of a folder in $TOOLSCOUT_DATA."""
    if name == "bundled":
        return _BUNDLED
    home = os.environ.get(DATA_FOLDER, "")
    for folder in (Path(name), *([Path(home) / name] if home else [])):
        if folder.is_dir():
            return folder
    where = f"in {home}" if home else f"and {DATA_FOLDER} names no folder of datasets"
    raise BadDataset(f'there is no dataset {name!r}, neither here nor {where}; give a BEIR folder, or "bundled"')


def load_split(folder: Path, split: str) -> Dataset:
    """A dataset with one split; for one of unseen tools also that which tells which tools were seen."""
    train = _UNSEEN_TOOLS + "train"
    siblings = split.startswith(_UNSEEN_TOOLS) and split != train and (folder / "qrels" / f"{train}.tsv").is_file()
    return Dataset.load(folder, [split, train] if siblings else [split])


def open_retriever(name: str, settings: Sequence[str] = ()) -> tuple[Retriever, str]:
    """An empty retriever by a method's name, with options as "key=value", or out of a model folder; and its variant."""
    if Path(name).is_dir():
        if settings:
            raise BadModel(f"{name} is a model folder and has its options in it; leave --option out")
        loaded = load_model(Path(name))
        loaded.remove(loaded.ids())  # it may have been saved with another catalogue
        variant = variant_of(loaded.options)
        return loaded, "_".join([Path(name).resolve().name, *([] if variant == "default" else [variant])])
    made = method(name)()
    if settings:
        options = _with_settings(made.options, name, settings)
        made = cast(Callable[[Options], Retriever], type(made))(options)
    return made, variant_of(made.options)


def evaluate(
    dataset: Dataset,
    split: str,
    retriever: Retriever,
    *,
    variant: str = "",
    command: str = "",
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Index the tools, ask every request of the split, and sum up. Vectors come from the cache where it has them."""
    encoder = encoder_of(retriever)
    asked, index_s, cached = _asked(dataset, split, retriever, cache, progress)
    row = Row(
        dataset=dataset.name,
        digest=dataset.digest(split),
        split=split,
        retriever=retriever.name,
        variant=variant or variant_of(retriever.options),
        options=asdict(retriever.options),
        seed=getattr(retriever.options, "seed", None),
        metrics=measured(dataset, split, asked),
        timing=_timing(asked, index_s, cached),
        params=getattr(encoder, "parameters", 0),
        encoder=encoder.fingerprint if encoder else None,
        requests=len(asked),
        failed=sum(one.ranking is None for one in asked),
        **provenance(command),
    )
    return Evaluation(row, tuple(asked))


def _asked(
    dataset: Dataset, split: str, retriever: Retriever, cache: Path | None, progress: Progress | None
) -> tuple[list[Asked], float, bool]:
    """Every request asked, the seconds that indexing took, and whether vectors were known before."""
    goldless = [pair for pair in dataset.goldless(split) if dataset.kind(pair[0]) != "use"]
    requests = dataset.split(split).requests + goldless
    encoder = encoder_of(retriever)
    digests = [tool.digest() for tool in dataset.tools] if encoder else []
    with (
        tempfile.TemporaryDirectory(prefix="toolscout-evaluate-") as folder,
        SqliteStore(Path(folder) / "store.db") as store,
        Scout(store, retriever) as scout,
    ):
        with cached_vectors(store, encoder.fingerprint if encoder else "", digests, cache) as cached:
            started = time.perf_counter()
            store.add(dataset.tools, dataset.name)
            scout.refresh()
            scout.embed(progress)
            index_s = time.perf_counter() - started
        asked = []
        for number, (request_id, text) in enumerate(requests, 1):
            asked.append(_ask(scout, dataset, split, request_id, text))
            if progress:
                progress("asking", number, len(requests))
    return asked, index_s, bool(cached)


def command_line(dataset: str, split: str, retriever: str, settings: Sequence[str]) -> str:
    """The command that makes the row again, without the paths of one machine."""
    words = ["toolscout", "evaluate", Path(dataset).name, "--split", split, "--retriever", Path(retriever).name]
    return shlex.join(words + [word for setting in settings for word in ("--option", setting)])


def measured(dataset: Dataset, split: str, asked: Sequence[Asked]) -> dict[str, float]:
    """Means over the requests with gold, and how the verdict does over all."""
    answerable = [one for one in asked if one.gold]
    rankings, golds = [one.ranking for one in answerable], [one.gold for one in answerable]
    found = metrics.evaluate(rankings, golds, MEASURES)
    train = _UNSEEN_TOOLS + "train"
    if split.startswith(_UNSEEN_TOOLS) and split != train and train in dataset.splits:
        found |= metrics.evaluate(rankings, golds, NEW_TOOL_MEASURES, dataset.new_tools(train, split))
    return {name: round(value, 6) for name, value in (found | _fit_measures(asked)).items()}


def _fit_measures(asked: Sequence[Asked]) -> dict[str, float]:
    """How often the verdict is right, by kind of request, and how well `fit` tells the kinds apart."""

    def right(kinds: Sequence[Kind], verdict: Verdict) -> float:
        return float(np.mean([one.verdict == verdict for one in asked if one.kind in kinds]))

    def auroc(kinds: Sequence[Kind]) -> float:
        chosen = [one for one in asked if one.kind == "use" or one.kind in kinds]
        return metrics.auroc([one.kind == "use" for one in chosen], [one.fit for one in chosen])

    found = {"fit_use": right(["use"], "use")}
    kinds: list[Kind] = [kind for kind in ("nothing_fits", "no_tool") if any(one.kind == kind for one in asked)]
    if kinds:
        found |= {"fit_nothing": right(kinds, "nothing_fits"), "fit_auroc": auroc(kinds)}
    for kind in kinds:
        found |= {f"fit_nothing.{kind}": right([kind], "nothing_fits"), f"fit_auroc.{kind}": auroc([kind])}
    return found


def _ask(scout: Scout, dataset: Dataset, split: str, request_id: str, text: str) -> Asked:
    gold = dataset.qrels[split].get(request_id, ())
    about = (request_id, dataset.scene(request_id), dataset.kind(request_id), gold)
    started = time.perf_counter()
    try:
        answer = scout.search(text, max(CUTOFFS))
    except Exception as error:  # whatever a method does on one request, the others are still asked
        wrong = 0.0 if gold else 1.0
        return Asked(*about, None, wrong, None, time.perf_counter() - started, f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - started
    ranking = tuple(hit.tool_id for hit in answer.considered)
    return Asked(*about, ranking, answer.fit or 0.0, answer.verdict, seconds)


def _timing(asked: Sequence[Asked], index_s: float, cached: bool) -> dict[str, float | bool | None]:
    p50, p95 = np.percentile([one.seconds * 1000 for one in asked], [50, 95])
    return {
        "fit_s": None,
        "index_s": round(index_s, 3),
        "index_cached": cached,
        "query_p50_ms": round(float(p50), 3),
        "query_p95_ms": round(float(p95), 3),
    }


def _with_settings(default: Options, name: str, settings: Sequence[str]) -> Options:
    """Options with some values set, each checked for its name and type."""
    types: Mapping[str, Any] = get_type_hints(type(default))
    known = {field.name: types[field.name] for field in fields(default)}
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or key not in known:
            shown = ", ".join(f"{field}={getattr(default, field)}" for field in known) or "none"
            raise BadModel(f"{setting!r:.80} is no option of {name}; give key=value with one of: {shown}")
        values[key] = _parsed(text, known[key], setting)
    return type(default)(**{**asdict(default), **values})


def _parsed(text: str, kind: Any, setting: str) -> Any:
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() in words:
            return words[text.lower()]
    elif get_origin(kind) is Literal:
        if text in get_args(kind):
            return text
        raise BadModel(f"{setting!r:.80}: the value must be one of {', '.join(map(str, get_args(kind)))}")
    elif kind in (int, float, str):
        with suppress(ValueError):
            return kind(text)
    raise BadModel(f"{setting!r:.80}: the value must be of type {getattr(kind, '__name__', kind)}")
