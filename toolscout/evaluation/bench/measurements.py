"""What one child process of the benchmark measures: indexing, serving, or how good approximate search is."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from toolscout.core.answer import Allowed
from toolscout.core.arrays import Doubles, Floats
from toolscout.core.tool import name_of, split_words
from toolscout.errors import BadModel
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.scout import DEFAULT_RETRIEVER, Progress, Scout
from toolscout.stores.base import Store

Values = dict[str, float]
OpenScout = Callable[[], Scout]

K = 5
ALLOWED_SHARE = 0.05
LOOKUPS = 300
_WARM_UP = 10
_SEED = 7
_TIE = 2e-6  # a cosine is given to six digits


class Parts(NamedTuple):
    """What answers together in the default retriever."""

    hybrid: Hybrid
    words: Bm25
    dense: Dense
    encoder: TextEncoder


def parts_of(scout: Scout) -> Parts:
    """The parts of a Scout over words and vectors; the benchmark times no other."""
    hybrid = scout.retriever
    if isinstance(hybrid, Hybrid) and len(hybrid.parts) == 2:
        words, dense = hybrid.parts
        if isinstance(words, Bm25) and isinstance(dense, Dense):
            return Parts(hybrid, words, dense, dense.encoder)
    raise BadModel("the benchmark times the default retriever only: hybrid over bm25 and dense")


def memory_mb() -> Values:
    """Resident memory of this process, now and at its highest, and how much of it is not files; empty elsewhere."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    kilobytes = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    names = {"rss_mb": "VmRSS", "peak_mb": "VmHWM", "anon_mb": "RssAnon"}
    return {name: round(int(kilobytes[key][0]) / 1000, 1) for name, key in names.items() if key in kilobytes}


def file_sizes_mb(path: Path) -> Values:
    """The store with its log, and the folder of built indexes beside it."""
    store = [path, path.with_name(path.name + "-wal")]
    index = path.with_name(path.name + ".index").rglob("*")
    return {"store_mb": _megabytes(store), "index_mb": _megabytes(index)}


def _megabytes(paths: Iterable[Path]) -> float:
    return round(sum(path.stat().st_size for path in paths if path.is_file()) / 1e6, 2)


def index(open_scout: OpenScout, source: str, request: str, progress: Progress | None = None) -> Values:
    """Add a source to an empty store, asking at once; then add it again."""
    with open_scout() as scout:
        started = time.perf_counter()
        scout.add(source, wait=False)
        answer = scout.search(request, K)
        first_answer_s = time.perf_counter() - started
        if not answer.considered:
            raise BadModel(f"the first request found nothing in {source}; name another")
        while not scout.wait(1.0):
            if progress:
                progress("embedding", scout.count() - scout.words_only(), scout.count())
        index_s = time.perf_counter() - started
        memory = memory_mb()
    started = time.perf_counter()
    with open_scout() as scout:
        again = scout.add(source)
        again_s = time.perf_counter() - started
    return {
        "first_answer_s": first_answer_s,
        "index_s": index_s,
        "again_s": again_s,
        "again_embedded": again.embedded,
        **memory,
    }


def opening(path: Path, request: str, repeats: int) -> Values:
    """What opening a catalogue takes whose index is kept beside it: with vectors, by words alone, and by the command.

    `command_s`: a process of its own, `toolscout search`, from its start to its end.
    """
    values = Values()
    for name, label in ((DEFAULT_RETRIEVER, "open_s"), ("bm25", "words_open_s")):
        _open_and_close(path, name)  # keeps the index where it is not kept yet
        values[label] = median(_seconds(partial(_open_and_close, path, name), repeats))
    command = [sys.executable, "-m", "toolscout", "--store", str(path), "search", request]
    values["command_s"] = median(_seconds(partial(subprocess.run, command, capture_output=True), repeats))
    return values | memory_mb()


def _open_and_close(path: Path, retriever: str) -> None:
    Scout.open(path, retriever).close()


def _seconds(action: Callable[[], object], repeats: int) -> Iterator[float]:
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        yield time.perf_counter() - started


class Stopwatch:
    """Adds up the time that is spent inside some methods of some objects."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.spent: defaultdict[str, float] = defaultdict(float)

    def watch(self, owner: object, name: str, label: str) -> None:
        """Time a method from now on."""
        method = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self.spent[label] += time.perf_counter() - started

        setattr(owner, name, timed)


def watched(scout: Scout) -> Stopwatch:
    """A stopwatch on the parts of a Scout over words and vectors."""
    watch, parts = Stopwatch(), parts_of(scout)
    watch.watch(scout, "search", "total")
    watch.watch(parts.hybrid, "rank", "retriever")
    watch.watch(parts.hybrid, "explain", "explain")
    watch.watch(parts.words, "rank", "words")
    watch.watch(parts.dense, "rank", "dense")
    watch.watch(parts.encoder, "encode_request", "encoder")
    return watch


def queries(scout: Scout, watch: Stopwatch, requests: Sequence[str], repeats: int) -> Values:
    """Times of a request end to end and in parts: medians over the requests, then over the repeats."""
    for request in requests[:_WARM_UP]:
        scout.search(request, K)
    rounds = []
    for _ in range(repeats):
        parts = []
        for request in requests:
            watch.spent.clear()
            scout.search(request, K)
            parts.append(_apart(watch.spent))
        one = {f"{name}_ms": float(np.median([part[name] for part in parts])) for name in parts[0]}
        p50, p95 = np.percentile([part["total"] for part in parts], [50, 95])
        rounds.append(one | {"p50_ms": float(p50), "p95_ms": float(p95)})
    found = {name: float(np.median([one[name] for one in rounds])) for name in rounds[0]}
    del found["total_ms"]
    return found


def _apart(spent: defaultdict[str, float]) -> Values:
    """Milliseconds of each part. `searches` is what both searches and fusion add to the encoder's time.

    Words are searched while the encoder works, so the parts add up to more than the whole.
    """
    total, searched = spent["total"], spent["retriever"]
    parts = {
        "total": total,
        "encoder": spent["encoder"],
        "words": spent["words"],
        "vectors": spent["dense"] - spent["encoder"],
        "fusion": searched - max(spent["words"], spent["dense"]),
        "searches": searched - spent["encoder"],
        "explain": spent["explain"],
        "other": total - searched - spent["explain"],
    }
    return {name: seconds * 1000 for name, seconds in parts.items()}


def lookups(scout: Scout, repeats: int) -> Values:
    """Requests that are nothing but a tool's name, or its id; and how many of them found the tool first."""
    ids = random.Random(_SEED).sample(scout.store.ids(), min(LOOKUPS, scout.count()))
    found: Values = {}
    for kind, texts in (("name", [name_of(tool_id) for tool_id in ids]), ("id", ids)):
        times: list[list[float]] = []
        first = 0
        for _ in range(repeats):
            times.append([])
            for tool_id, text in zip(ids, texts, strict=True):
                started = time.perf_counter()
                answer = scout.search(text, K)
                times[-1].append((time.perf_counter() - started) * 1000)
                first += any(_is(hit.tool_id, tool_id, kind) for hit in answer.considered[:1])
        found[f"{kind}_p50_ms"] = float(np.median([np.median(one) for one in times]))
        found[f"{kind}_first"] = first / (repeats * len(ids))
    return found


def _is(found: str, tool_id: str, kind: str) -> bool:
    """Whether a lookup found its tool. Tools that share a name, however it is written, are equally right."""
    same = [[word.lower() for word in split_words(name_of(one))] for one in (found, tool_id)]
    return found == tool_id or (kind == "name" and same[0] == same[1])


def callers(scout: Scout, requests: Sequence[str], repeats: int) -> Values:
    """A caller allowed some tools, by namespaces and by ids, against one allowed all; each request is encoded anew."""
    who: dict[str, Allowed | None] = {"all": None, **restricted(scout.store)}
    found: Values = {"share": ALLOWED_SHARE}
    for name, allowed in who.items():
        if allowed is not None:
            started = time.perf_counter()
            scout.search(requests[0], K, allowed)
            found[f"{name}_first_ms"] = (time.perf_counter() - started) * 1000
    rounds: dict[str, list[float]] = {name: [] for name in who}
    for _ in range(repeats):
        for name, allowed in who.items():
            times = []
            for request in requests:
                started = time.perf_counter()
                scout.search(request, K, allowed)
                times.append((time.perf_counter() - started) * 1000)
            rounds[name].append(float(np.median(times)))
    return found | {f"{name}_p50_ms": float(np.median(values)) for name, values in rounds.items()}


def restricted(store: Store) -> dict[str, Allowed]:
    """Two callers that may see a twentieth of the tools: whole namespaces, and single tools."""
    rng = random.Random(_SEED)
    wanted = max(1, round(ALLOWED_SHARE * store.count()))
    sizes = list(store.namespaces().items())
    rng.shuffle(sizes)
    chosen: list[str] = []
    seen = 0
    for namespace, size in sizes:
        if seen >= wanted:
            break
        if seen + size <= wanted * 1.2 or not chosen:  # a single huge namespace would be another experiment
            chosen.append(namespace)
            seen += size
    return {"namespaces": Allowed.of(chosen), "ids": Allowed.of(ids=rng.sample(store.ids(), wanted))}


def recall(scout: Scout, requests: Sequence[str], k: int = 10) -> Values:
    """Recall@k of the vector search that serves, against every vector in the store compared one by one.

    A tool found counts when no k tools are nearer, so that ties do not.
    """
    parts = parts_of(scout)
    vectors = np.stack([parts.encoder.encode_request(request) for request in requests])
    last = _kth_best(scout.store, parts.encoder.fingerprint, vectors, k)
    found = 0
    for vector, worst in zip(vectors, last, strict=True):
        nearest = parts.dense.rank_encoded([""], vector[None], k)[0]
        found += sum(cosine >= worst - _TIE for _, cosine in nearest.pairs)
    return {f"recall@{k}": found / (k * len(requests)), "requests": len(requests)}


def _kth_best(store: Store, fingerprint: str, requests: Floats, k: int) -> Doubles:
    """The k-th best cosine of each request over all tools; tools of equal text count each."""
    copies = Counter(change.digest for change in store.changes(0) if change.digest)
    best = np.full((len(requests), k), -np.inf)
    cursor = 0
    while True:
        batch = store.vectors_after(fingerprint, cursor)
        if not batch.digests:
            worst: Doubles = best.min(axis=1)
            return worst
        cursor = batch.cursor
        often = np.array([min(copies[digest], k) for digest in batch.digests])
        scores = np.repeat(requests @ batch.vectors.T, often, axis=1)
        best = np.concatenate([best, scores], axis=1)
        best = np.partition(best, best.shape[1] - k, axis=1)[:, -k:]
