"""A child process of the benchmark: measures one phase at one size, so that its memory can be measured too.

python -m toolscout.evaluation.bench.worker reads a BenchTask as JSON from stdin. Each line it writes is a JSON object:
{"progress": [stage, done, total]} on the way, {"values": {measurement: {…}}} at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from toolscout import catalogue
from toolscout.core.tool import Tool
from toolscout.errors import BadModel
from toolscout.evaluation.bench import measurements, synthetic_catalogue
from toolscout.evaluation.vector_cache import cache_path, copy_vectors, tool_vectors
from toolscout.scout import Scout
from toolscout.stores import open_store
from toolscout.stores.sqlite.store import SqliteStore

BenchValues = dict[str, measurements.Values]


@dataclass(frozen=True, slots=True)
class BenchTask:
    """The task of a child process. `store`: the path or URL of the catalogue.

    `source`: what is added, or the folder of datasets for a synthetic catalogue. `requests`: texts by the name of their
    request set. `cached`: take vectors from the cache.
    """

    phase: Literal["index", "vectors", "store", "graph", "link", "open", "cold", "serve", "change", "recall"]
    store: str
    source: str = ""
    tools: int = 0
    repeats: int = 1
    cached: bool = False
    requests: dict[str, list[str]] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the JSON that the child process reads."""
        return json.dumps(asdict(self))


def run(task: BenchTask) -> BenchValues:
    """Run one task and return its values by measurement; raises BadModel or MissingEncoder without the encoder."""
    path = task.store
    texts = next(iter(task.requests.values()), [])
    if task.phase == "index":
        return {"index": _index(task, path, texts[0])}
    if task.phase in _PREPARING:
        return {task.phase: _PREPARING[task.phase](task)}
    if task.phase == "open":
        return {"open": measurements.opening_times(path, texts[0], task.repeats)}
    if task.phase == "cold":
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TOOLSCOUT_CACHE"] = folder  # no index of an earlier process is found there
            return {"cold": measurements.cold_start(path, texts)}
    started = time.perf_counter()
    with _open(path) as scout:
        opened = time.perf_counter() - started
        if task.phase == "recall":
            return {"recall": measurements.recall(scout, texts)}
        if task.phase == "change":
            return {"change": measurements.changes(scout, task.repeats)}
        return _serve(task, scout, opened)


def _open(path: str) -> Scout:
    scout = Scout.open(path)
    measurements.parts_of(scout)  # raises where the encoder is missing: a benchmark of bm25 alone would mislead
    return scout


def _index(task: BenchTask, path: str, request: str) -> measurements.Values:
    with _open(path) as scout:
        fingerprint = measurements.parts_of(scout).encoder.fingerprint
    if task.cached:
        with SqliteStore(cache_path()) as known, open_store(path) as store:
            copy_vectors(known, store, fingerprint, (tool.digest() for tool in catalogue.read(task.source)))
    values = measurements.index(lambda: _open(path), task.source, request, _report)
    with SqliteStore(cache_path()) as known, open_store(path) as store:
        copy_vectors(store, known, fingerprint, (change.digest for change in store.changes(0)))
        return values | measurements.sizes_mb(store)


def _serve(task: BenchTask, scout: Scout, open_s: float) -> BenchValues:
    if scout.words_only():
        raise BadModel(
            f"{scout.words_only():,} tools have no vector of this encoder; remove {task.store}, measure again"
        )
    measured: BenchValues = {}
    _report("asking", 0, 0)
    watch = measurements.watch_parts(scout)
    for name, requests in task.requests.items():
        measured[f"query {name}"] = measurements.queries(scout, watch, requests, task.repeats)
    measured["memory"] = {"open_s": open_s, **measurements.memory_mb(), **measurements.sizes_mb(scout.store)}
    measured["lookup"] = measurements.lookups(scout, task.repeats)
    measured["caller"] = measurements.callers(scout, next(iter(task.requests.values())), task.repeats)
    return measured


def _put_vectors(task: BenchTask) -> measurements.Values:
    """Store the vectors of a synthetic catalogue before its tools, so that none is embedded."""
    base = _base(task)
    with _open(task.store) as scout:
        encoder = measurements.parts_of(scout).encoder
        rows = tool_vectors(base, encoder, progress=_report)
        tools, done = synthetic_catalogue.tools(base, task.tools), 0
        for batch in synthetic_catalogue.vectors(rows, task.tools):
            digests = [tool.digest() for tool in islice(tools, len(batch))]
            scout.store.put_vectors(encoder.fingerprint, digests, batch)
            done += len(batch)
            _report("perturbing", done, task.tools)
    return {}


def _store_tools(task: BenchTask) -> measurements.Values:
    """Add the tools of a synthetic catalogue in one step, and time it."""
    tools = _with_progress(synthetic_catalogue.tools(_base(task), task.tools), task.tools)
    with open_store(task.store) as store:
        started = time.perf_counter()
        store.add(tools, "perturbed")
        return {"store_s": time.perf_counter() - started}


def _build_graph(task: BenchTask) -> measurements.Values:
    """Time the index that the store's own search needs over its vectors; {} for a store that has no search."""
    with open_store(task.store) as store:
        search = store.own_search()
        if search is None:
            return {}
        _report("building the index of the database", 0, 0)
        started = time.perf_counter()
        for fingerprint in store.models():
            search.prepare(fingerprint)
        return {"hnsw_s": time.perf_counter() - started}


def _link(task: BenchTask) -> measurements.Values:
    """Time a process that has no index yet: until it has built one and answers, and until its vectors are linked."""
    request = next(iter(task.requests.values()))[0]
    with open_store(task.store) as store:
        shutil.rmtree(store.index_folder(), ignore_errors=True)  # what an interrupted process has left
    _report("indexing", 0, 0)
    started = time.perf_counter()
    with _open(task.store) as scout:
        scout.search(request, measurements.K)
        answered = time.perf_counter()
        embedded = scout.embed(_report)
        linked = time.perf_counter()
        values = {"own_index_s": answered - started, "link_s": linked - answered, "embedded": float(embedded)}
        return values | measurements.memory_mb() | measurements.sizes_mb(scout.store)


_PREPARING = {"vectors": _put_vectors, "store": _store_tools, "graph": _build_graph, "link": _link}


def _base(task: BenchTask) -> list[Tool]:
    return synthetic_catalogue.base_tools(Path(task.source))[: task.tools]


def _with_progress(tools: Iterator[Tool], total: int) -> Iterator[Tool]:
    for number, tool in enumerate(tools, 1):
        if number % 10_000 == 0:
            _report("storing", number, total)
        yield tool


def _report(stage: str, done: int, total: int) -> None:
    _write({"progress": [stage, done, total]})


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _write({"values": run(BenchTask(**json.load(sys.stdin)))})
