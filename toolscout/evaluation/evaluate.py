"""Evaluates a retriever on one split of a dataset, through Scout, as it is served."""

from __future__ import annotations

import os
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from toolscout.core.answer import Allowed, Cost, Level
from toolscout.core.expansion import Expansion, with_expansion
from toolscout.core.scope import Scope
from toolscout.core.tool import Tool, text_digest
from toolscout.data.dataset import Dataset, Kind
from toolscout.evaluation import leakage
from toolscout.evaluation.candidates import Candidates, restricted_variant
from toolscout.evaluation.fit_record import FitRecord
from toolscout.evaluation.measures import check_names, compute_measures, depth_of
from toolscout.evaluation.request_result import DEPTH, RequestResult
from toolscout.evaluation.row import Row, provenance
from toolscout.evaluation.vector_cache import cached_vectors, encoder_of
from toolscout.models.language.base import DEVICE_VARIABLE
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.base import seen_by as seen_by_parts
from toolscout.retrievers.model_folder import trained_on
from toolscout.retrievers.opening import variant_of
from toolscout.retrievers.provenance import TrainedOn
from toolscout.scout import Progress, Scout, checked_request
from toolscout.stores.sqlite.store import SqliteStore

_DROPPED = "drop-seen"
_BATCH = 256  # requests that a GPU ranks at once
_SET_BATCH = 64


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an evaluation: the row, the result of each request, the new gold tools, and the ranking depth."""

    row: Row
    asked: tuple[RequestResult, ...]
    new_tools: frozenset[str] | None = None
    depth: int = DEPTH

    def lines(self, rankings: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the line to write for each request; with `rankings` also the ids of the tools returned."""
        return (one.to_dict(self.new_tools, self.depth, rankings) for one in self.asked)


def load_splits(folder: Path, splits: Sequence[str]) -> Dataset:
    """Load a dataset with these splits; for a split of unseen tools also the split that says which tools were seen."""
    siblings = [train for split in splits if (train := leakage.sibling(split)) is not None]
    there = [name for name in siblings if any((folder / "qrels" / f"{name}.tsv{end}").is_file() for end in ("", ".gz"))]
    return Dataset.load(folder, list(dict.fromkeys([*splits, *there])))


def load_split(folder: Path, split: str) -> Dataset:
    """Load a dataset with one split, as load_splits does."""
    return load_splits(folder, [split])


def seen_by(name: str, retriever: Retriever) -> TrainedOn:
    """Return what a retriever opened by `name` was trained on, its parts and its encoder included."""
    seen = trained_on(Path(name)) if Path(name).is_dir() else seen_by_parts(retriever)
    return seen | leakage.encoder_history(encoder_of(retriever)) | leakage.reranker_history(retriever.reranker)


def evaluate(
    dataset: Dataset,
    split: str,
    retriever: Retriever,
    *,
    variant: str = "",
    command: str = "",
    measures: Sequence[str] = (),
    seen: TrainedOn | None = None,
    drop_seen: bool = False,
    fitted: FitRecord | None = None,
    expansions: Mapping[str, Expansion] | None = None,
    level: Level | None = None,
    among: Candidates | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Index the tools, search for every request of the split, and return the measures. Vectors are cached.

    `variant` and `command` go into the row. `measures` are added to the default ones. `seen` is what the retriever was
    trained and selected on, `fitted` how it was trained, `expansions` what is stored beside the tools, by tool id,
    `level` the level of the verdicts (None: balanced), `cache` another file for cached vectors. All tools are indexed;
    `among` are those that are ranked (None: all). Raises BadRequest for a name that is no measure, BadDataset for gold
    tools outside `among`, and Leak for a split that shares requests with `seen`, unless `drop_seen` leaves those
    requests out.
    """
    names, encoder, fitted = check_names(measures), encoder_of(retriever), fitted or FitRecord()
    seen = (seen or TrainedOn()) | leakage.encoder_history(encoder) | leakage.reranker_history(retriever.reranker)
    digest, dropped = dataset.digest(split), leakage.seen_ids(dataset, split, seen)
    if among is not None:
        among.refuse_outside(dataset, split)
        digest = among.digest(digest)
    if not drop_seen:
        leakage.refuse_seen(dataset, split, seen, droppable=True)
    dataset = leakage.without(dataset, split, dropped)
    new_tools, depth = leakage.new_tools(dataset, split, seen), depth_of(names)
    run = _run(dataset, split, retriever, depth, expansions or {}, level, among, cache, progress)
    asked, found, reranker = run.asked, compute_measures(run.asked, names, new_tools), retriever.reranker
    options = _recorded_options(retriever)
    row = Row(
        dataset=dataset.name,
        digest=digest,
        split=split,
        retriever=retriever.name,
        variant=_variant(variant or variant_of(retriever.options), level, bool(dropped), among),
        options=options,
        seed=options.get("seed", fitted.seed),
        metrics=found.metrics,
        intervals=found.intervals,
        timing=_timing(run, fitted) | (run.cost.to_dict() if run.cost else {}),
        params=(encoder.parameters if encoder else 0) + retriever.language_parameters,
        encoder=encoder.fingerprint if encoder else None,
        reranker=reranker.fingerprint if reranker else None,
        requests=len(asked),
        failed=sum(bool(one.error) for one in asked),
        dropped=len(dropped),
        new_tools=None if new_tools is None else len(new_tools),
        among=among.to_dict() if among else None,
        **provenance(command),
    )
    return Evaluation(row, tuple(asked), new_tools, depth)


def _variant(named: str, level: Level | None, dropped: bool, among: Candidates | None) -> str:
    """The variant of a row: what was ranked, how the retriever was set, the level of verdicts, and what was left out.

    What was ranked comes first, as the name of a model may end with its seed.
    """
    parts = [*([] if named == "default" else [named]), *([level] if level else []), *([_DROPPED] if dropped else [])]
    return restricted_variant("_".join(parts) or "default", among.names if among else ())


def _recorded_options(retriever: Retriever) -> dict[str, Any]:
    """The options for a row: a reranker by its name and an encoder without the path that it has on this machine."""
    options = asdict(retriever.options)
    if "reranker" in options and retriever.reranker is not None:
        options["reranker"] = retriever.reranker.name
    if options.get("encoder"):
        options["encoder"] = _without_path(options["encoder"])
    return options


def _without_path(name: str) -> str:
    """The name of a model as PLACE?SETTINGS; of a folder only the last part, since the rest is private."""
    place, mark, settings = name.partition("?")
    if "://" in place or "/" not in place:
        return name
    chat = "chat:" if place.startswith("chat:") else ""
    return chat + place.rstrip("/").rpartition("/")[2] + mark + settings


def _shown_setting(setting: str) -> str:
    """A setting KEY=VALUE as a row records it: a model's folder only by its name."""
    key, mark, value = setting.partition("=")
    return f"{key}{mark}{_without_path(value)}" if key.rpartition(".")[2] in ("encoder", "reranker") else setting


class _Run(NamedTuple):
    """All results, the seconds of indexing, whether vectors came from the cache, and the cost of language models.

    `alone`: requests were searched one at a time, so that their times are meaningful.
    """

    asked: list[RequestResult]
    index_s: float
    cached: bool
    cost: Cost | None
    alone: bool


def _run(
    dataset: Dataset,
    split: str,
    retriever: Retriever,
    depth: int,
    expansions: Mapping[str, Expansion],
    level: Level | None,
    among: Candidates | None,
    cache: Path | None,
    progress: Progress | None,
) -> _Run:
    """Index the tools and search for every request."""
    allowed = among.allowed if among else None
    goldless = [pair for pair in dataset.goldless(split) if dataset.kind(pair[0]) != "use"]
    requests = dataset.split(split).requests + goldless
    encoder = encoder_of(retriever)
    digests = [_digest(tool, expansions.get(tool.id)) for tool in dataset.tools] if encoder else []
    # A model may have been saved with another catalogue; tools that are in both stay.
    retriever.remove(sorted(set(retriever.ids()) - {tool.id for tool in dataset.tools}))
    with (
        tempfile.TemporaryDirectory(prefix="toolscout-evaluate-") as folder,
        SqliteStore(Path(folder) / "store.db") as store,
        Scout(store, retriever, level=level) as scout,
    ):
        with cached_vectors(store, encoder.fingerprint if encoder else "", digests, cache) as cached:
            started = time.perf_counter()
            store.add(dataset.tools, dataset.name)
            if expansions:
                store.set_expansions(expansions)
            scout.refresh()
            scout.embed(progress)
            index_s = time.perf_counter() - started
        size = _BATCH if _ranks_in_batches(retriever) else 1
        asked: list[RequestResult] = []
        costs: list[Cost | None] = []
        for start in range(0, len(requests), size):
            for one, cost in _search(scout, dataset, split, requests[start : start + size], depth, allowed):
                asked.append(one)
                costs.append(cost)
            if progress:
                progress("asking", len(asked), len(requests))
        asked = _with_sets(asked, [text for _, text in requests], retriever, Scope(allowed), progress)
    return _Run(asked, index_s, bool(cached), Cost.total(costs), size == 1)


def _digest(tool: Tool, expansion: Expansion | None) -> str:
    """The digest under which a store caches the vector of a tool with this expansion."""
    if expansion is None or not expansion.searched():
        return tool.digest()
    return text_digest(with_expansion(tool.document(), expansion.searched()))


def command_line(
    dataset: str,
    split: str,
    retriever: str,
    settings: Sequence[str] = (),
    measures: Sequence[str] = (),
    drop_seen: bool = False,
    no_tool: str = "",
    parts: Sequence[str] = (),
    encoder: str | None = None,
    level: Level | None = None,
    among: Sequence[str] = (),
) -> str:
    """Return the `toolscout evaluate` command that repeats the measurement, without paths of this machine."""
    words = ["toolscout", "evaluate", Path(dataset).name, "--split", split, "--retriever", Path(retriever).name]
    words += [word for part in parts for word in ("--part", Path(part).name)]
    words += [word for setting in settings for word in ("--option", _shown_setting(setting))]
    words += ["--encoder", _without_path(encoder)] if encoder else []
    words += [word for name in measures for word in ("--measure", name)]
    words += ["--no-tool", no_tool] if no_tool else []
    words += ["--level", level] if level else []
    words += [word for name in among for word in ("--among", Path(name).name)]
    return shlex.join([*words, *(["--drop-seen"] if drop_seen else [])])


def _search(
    scout: Scout,
    dataset: Dataset,
    split: str,
    requests: Sequence[tuple[str, str]],
    depth: int,
    allowed: Allowed | None,
) -> list[tuple[RequestResult, Cost | None]]:
    """Search for some requests (id, text) in a batch; where that fails, one after the other."""
    started = time.perf_counter()
    try:
        answers = scout.search_many([text for _, text in requests], depth, allowed, endpoints="wait")
    except Exception as error:  # an error on one request must not stop the others
        if len(requests) > 1:
            return [found for one in requests for found in _search(scout, dataset, split, [one], depth, allowed)]
        about = _request_facts(dataset, split, requests[0][0])
        wrong, seconds = 0.0 if about[3] else 1.0, time.perf_counter() - started
        return [(RequestResult(*about, None, wrong, None, seconds, f"{type(error).__name__}: {error}"), None)]
    seconds = (time.perf_counter() - started) / len(requests)
    found = []
    for (request_id, _), answer in zip(requests, answers, strict=True):
        ranking = tuple(hit.tool_id for hit in answer.considered)
        about = _request_facts(dataset, split, request_id)
        one = RequestResult(*about, ranking, answer.fit or 0.0, answer.verdict, seconds, need=answer.need)
        found.append((one, answer.cost))
    return found


def _with_sets(
    asked: Sequence[RequestResult],
    texts: Sequence[str],
    retriever: Retriever,
    scope: Scope,
    progress: Progress | None = None,
) -> list[RequestResult]:
    """Return the results with the tools of `Scout.search(k="auto")`, where the retriever can tell how many are needed.

    `texts` are those of the requests. They are ranked in batches, which is far faster with a language model; a request
    that fails counts as having returned nothing.
    """
    if retriever.as_many([]) is None:
        return list(asked)
    results: list[RequestResult] = []
    for start in range(0, len(asked), _SET_BATCH):
        batch = asked[start : start + _SET_BATCH]
        for one, found in zip(batch, _search_sets(retriever, texts[start : start + _SET_BATCH], scope), strict=True):
            error = one.error or (found if isinstance(found, str) else "")
            results.append(replace(one, returned=() if isinstance(found, str) else found, error=error))
        if progress:
            progress("asking for sets", len(results), len(asked))
    return results


def _search_sets(retriever: Retriever, texts: Sequence[str], scope: Scope) -> list[tuple[str, ...] | str]:
    """Return the tools that k="auto" gives for each request, or its error as a text."""
    try:
        sets = retriever.as_many(retriever.rank(list(map(checked_request, texts)), 1, scope)) or []
        return [tuple(tool_id for tool_id, _ in pairs) for pairs in sets]
    except Exception as error:  # an error on one request must not stop the others
        if len(texts) == 1:
            return [f"{type(error).__name__}: {error}"]
        return [found for text in texts for found in _search_sets(retriever, [text], scope)]


def _request_facts(dataset: Dataset, split: str, request_id: str) -> tuple[str, str, Kind, tuple[str, ...]]:
    """Return id, scene, kind and gold tools of a request: the first fields of RequestResult."""
    gold = dataset.qrels[split].get(request_id, ())
    return request_id, dataset.scene(request_id), dataset.kind(request_id), gold


def _ranks_in_batches(retriever: Retriever) -> bool:
    """Return whether a GPU ranks requests in batches; the time of a single request is unknown then."""
    return bool(os.environ.get(DEVICE_VARIABLE)) and (retriever.rewrites or retriever.language_parameters > 0)


def _timing(run: _Run, fitted: FitRecord) -> dict[str, float | bool | str | None]:
    """Return the times of training, indexing and requests, and the cost of language models."""
    p50, p95 = np.percentile([one.seconds * 1000 for one in run.asked], [50, 95])
    return {
        "fit_s": fitted.seconds,
        "fit_device": fitted.device,
        "fit_params": fitted.parameters,
        "index_s": round(run.index_s, 3),
        "index_cached": run.cached,
        "query_p50_ms": round(float(p50), 3) if run.alone else None,
        "query_p95_ms": round(float(p95), 3) if run.alone else None,
    }
