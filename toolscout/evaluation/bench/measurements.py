"""The measurements of one child process of the benchmark: indexing, opening, searching, recall of vector search."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from toolscout.core.answer import Allowed
from toolscout.core.arrays import Doubles, Floats
from toolscout.core.tool import Tool, name_of, split_words
from toolscout.errors import BadModel
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.hybrid.shared_encoder import SharedEncoder
from toolscout.scout import DEFAULT_RETRIEVER, Progress, Scout
from toolscout.stores.base import Store

Values = dict[str, float]
OpenScout = Callable[[], Scout]

K = 5
ALLOWED_SHARE = 0.05
LOOKUPS = 300
CHANGES, TOGETHER = 20, 100
_WARM_UP = 10
_SEED = 7
_ADDED = "toolscout-bench"
_COLD_PAUSE_S = 0.5
_COLD_SAMPLE = 50
_TIE = 2e-6  # cosines are rounded to six digits


class Parts(NamedTuple):
    """The default retriever and the parts of it that are timed."""

    hybrid: Hybrid
    words: Bm25
    dense: Dense
    encoder: TextEncoder


def parts_of(scout: Scout) -> Parts:
    """Return the parts of a Scout's default retriever; raises BadModel for any other retriever."""
    hybrid = scout.retriever
    if isinstance(hybrid, Hybrid) and len(hybrid.parts) == 2:
        words, dense = hybrid.parts
        if isinstance(words, Bm25) and isinstance(dense, Dense):
            return Parts(hybrid, words, dense, dense.encoder)
    raise BadModel("the benchmark times the default retriever only: hybrid over bm25 and dense")


def _forget_requests(scout: Scout) -> None:
    """Empty the cache of request vectors, so that requests measured before are encoded again."""
    encoder = parts_of(scout).encoder
    if isinstance(encoder, SharedEncoder):
        encoder.clear()


def memory_mb() -> Values:
    """Return this process's memory in MB: resident, peak resident, and anonymous; {} on systems other than Linux."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    kilobytes = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    names = {"rss_mb": "VmRSS", "peak_mb": "VmHWM", "anon_mb": "RssAnon"}
    return {name: round(int(kilobytes[key][0]) / 1000, 1) for name, key in names.items() if key in kilobytes}


def sizes_mb(store: Store) -> Values:
    """Return the sizes in MB of a store, and of the indexes of this machine that are built from it."""
    found = (path.stat() for path in store.index_folder().rglob("*") if path.is_file())
    files = {(one.st_dev, one.st_ino): one.st_size for one in found}  # a snapshot links files of the one before
    return {"store_mb": _megabytes(store.size()), "index_mb": _megabytes(sum(files.values()))}


def _megabytes(count: int) -> float:
    return round(count / 1e6, 2)


def index(open_scout: OpenScout, source: str, request: str, progress: Progress | None = None) -> Values:
    """Time adding a source to an empty store: until the first answer, until all is embedded, and adding it again.

    Raises BadModel where the first search finds nothing.
    """
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


def opening_times(path: str, request: str, repeats: int) -> Values:
    """Return the median seconds of opening a catalogue whose index is saved, and the memory that it takes.

    `open_s` is with the default retriever, `words_open_s` with bm25 alone, `command_s` a whole `toolscout search`
    process.
    """
    values = Values()
    for name, label in ((DEFAULT_RETRIEVER, "open_s"), ("bm25", "words_open_s")):
        _open_and_close(path, name)  # saves the index where it is not saved yet
        values[label] = median(_seconds(partial(_open_and_close, path, name), repeats))
    command = [sys.executable, "-m", "toolscout", "--store", path, "search", request]
    values["command_s"] = median(_seconds(partial(subprocess.run, command, capture_output=True), repeats))
    return values | memory_mb()


def cold_start(path: str, requests: Sequence[str]) -> Values:
    """Open a catalogue without an index of its own, and time it until it first answers and until its own index stands.

    Meanwhile the database answers: `searches` requests, `p50_ms` to `max_ms`, with a pause after each. `recall@10` is
    that of the database's index over vectors against exact search, where it has one.
    """
    started, times = time.perf_counter(), list[float]()
    with Scout.open(path, wait=False) as scout:
        scout.search(requests[0], K)
        answered = time.perf_counter()
        for request in cycle(requests):
            if not scout.searches_store:
                break
            began = time.perf_counter()
            scout.search(request, K)
            times.append((time.perf_counter() - began) * 1000)
            time.sleep(_COLD_PAUSE_S)
        built = time.perf_counter()
        search, encoder = scout.store.own_search(), parts_of(scout).encoder
        recall = search.recall(encoder.fingerprint, _COLD_SAMPLE, 10) if search is not None else None
    values = {"first_answer_s": answered - started, "own_index_s": built - started, "searches": float(len(times))}
    if times:
        p50, p95 = np.percentile(times, [50, 95])
        values |= {"p50_ms": float(p50), "p95_ms": float(p95), "max_ms": max(times)}
    return values | ({"recall@10": recall} if recall is not None else {})


def _open_and_close(path: str, retriever: str) -> None:
    Scout.open(path, retriever).close()


def _seconds(action: Callable[[], object], repeats: int) -> Iterator[float]:
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        yield time.perf_counter() - started


class Stopwatch:
    """Sums the seconds spent inside chosen methods, by label."""

    def __init__(self) -> None:
        """Start with no method."""
        self.spent: defaultdict[str, float] = defaultdict(float)

    def watch(self, owner: object, name: str, label: str) -> None:
        """Time method `name` of `owner` from now on; its seconds are added to `spent[label]`."""
        method = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self.spent[label] += time.perf_counter() - started

        setattr(owner, name, timed)


def watch_parts(scout: Scout) -> Stopwatch:
    """Return a stopwatch on the search of a Scout and on the parts of its default retriever."""
    watch, parts = Stopwatch(), parts_of(scout)
    watch.watch(scout, "search", "total")
    watch.watch(parts.hybrid, "rank", "retriever")
    watch.watch(parts.hybrid, "explain", "explain")
    watch.watch(parts.words, "rank", "words")
    watch.watch(parts.dense, "rank", "dense")
    watch.watch(parts.encoder, "encode_request", "encoder")
    return watch


def queries(scout: Scout, watch: Stopwatch, requests: Sequence[str], repeats: int) -> Values:
    """Return the milliseconds of a request, end to end and by part: medians over the requests, then over repeats.

    Every request is encoded in every repeat, as a new one would be.
    """
    for request in requests[:_WARM_UP]:
        scout.search(request, K)
    rounds = []
    for _ in range(repeats):
        _forget_requests(scout)
        parts = []
        for request in requests:
            watch.spent.clear()
            scout.search(request, K)
            parts.append(_part_times(watch.spent))
        one = {f"{name}_ms": float(np.median([part[name] for part in parts])) for name in parts[0]}
        p50, p95 = np.percentile([part["total"] for part in parts], [50, 95])
        rounds.append(one | {"p50_ms": float(p50), "p95_ms": float(p95)})
    found = {name: float(np.median([one[name] for one in rounds])) for name in rounds[0]}
    del found["total_ms"]
    return found


def _part_times(spent: defaultdict[str, float]) -> Values:
    """Return the milliseconds of each part. `searches` is what both searches and fusion add to the encoder's time.

    BM25 searches while the encoder works, so the parts add up to more than the total.
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
    """Search for tools by exact name and by id; return median milliseconds and the share that ranks the tool first."""
    ids = random.Random(_SEED).sample(scout.store.ids(), min(LOOKUPS, scout.count()))
    found: Values = {}
    for kind, texts in (("name", [name_of(tool_id) for tool_id in ids]), ("id", ids)):
        times: list[list[float]] = []
        first = 0
        for _ in range(repeats):
            _forget_requests(scout)
            times.append([])
            for tool_id, text in zip(ids, texts, strict=True):
                started = time.perf_counter()
                answer = scout.search(text, K)
                times[-1].append((time.perf_counter() - started) * 1000)
                first += any(_is_match(hit.tool_id, tool_id, kind) for hit in answer.considered[:1])
        found[f"{kind}_p50_ms"] = float(np.median([np.median(one) for one in times]))
        found[f"{kind}_first"] = first / (repeats * len(ids))
    return found


def _is_match(found: str, tool_id: str, kind: str) -> bool:
    """Return whether a lookup found its tool; by name, any tool whose name has the same words is right."""
    same = [[word.lower() for word in split_words(name_of(one))] for one in (found, tool_id)]
    return found == tool_id or (kind == "name" and same[0] == same[1])


def callers(scout: Scout, requests: Sequence[str], repeats: int) -> Values:
    """Return median milliseconds of callers allowed some tools, by namespaces and by ids, and of one allowed all.

    `…_first_ms` is the first search of a restricted caller.
    """
    who: dict[str, Allowed | None] = {"all": None, **restricted_callers(scout.store)}
    found: Values = {"share": ALLOWED_SHARE}
    for name, allowed in who.items():
        if allowed is not None:
            started = time.perf_counter()
            scout.search(requests[0], K, allowed)
            found[f"{name}_first_ms"] = (time.perf_counter() - started) * 1000
    rounds: dict[str, list[float]] = {name: [] for name in who}
    for _ in range(repeats):
        for name, allowed in who.items():
            _forget_requests(scout)
            times = []
            for request in requests:
                started = time.perf_counter()
                scout.search(request, K, allowed)
                times.append((time.perf_counter() - started) * 1000)
            rounds[name].append(float(np.median(times)))
    return found | {f"{name}_p50_ms": float(np.median(values)) for name, values in rounds.items()}


def restricted_callers(store: Store) -> dict[str, Allowed]:
    """Return two permissions of a twentieth of the tools: "namespaces" allows whole ones, "ids" single tools."""
    rng = random.Random(_SEED)
    wanted = max(1, round(ALLOWED_SHARE * store.count()))
    sizes = list(store.namespaces().items())
    rng.shuffle(sizes)
    chosen: list[str] = []
    seen = 0
    for namespace, size in sizes:
        if seen >= wanted:
            break
        if seen + size <= wanted * 1.2 or not chosen:  # one huge namespace would allow far too many tools
            chosen.append(namespace)
            seen += size
    return {"namespaces": Allowed.of(chosen), "ids": Allowed.of(ids=rng.sample(store.ids(), wanted))}


def changes(scout: Scout, repeats: int) -> Values:
    """Add tools and remove them again; the catalogue is the same in the end.

    `add_…_ms` is the time until a new tool is stored, embedded and first among what a search for its name finds,
    `remove_…_ms` until that search does not find it; `add_100_s` and `remove_100_s` are times of a hundred at once.
    `found` and `gone` are the shares of the tools for which a search said so.
    """
    adding, removing, together = list[float](), list[float](), (list[float](), list[float]())
    found = gone = 0
    for _ in range(repeats):
        *few, last = _new_tools(scout.store, CHANGES + 1)
        for new in few:
            started = time.perf_counter()
            scout.add([new], label=_ADDED)
            found += [hit.tool_id for hit in scout.search(new.name, K).considered[:1]] == [new.id]
            adding.append((time.perf_counter() - started) * 1000)
        for new in few:
            started = time.perf_counter()
            scout.remove(new.id)
            gone += new.id not in [hit.tool_id for hit in scout.search(new.name, K).considered]
            removing.append((time.perf_counter() - started) * 1000)
        many = [replace(last, name=f"{last.name}_{number}") for number in range(TOGETHER)]
        together[0].extend(_seconds(partial(scout.add, many, label=_ADDED), 1))
        together[1].extend(_seconds(partial(scout.remove, [one.id for one in many]), 1))
    values = Values()
    for name, times, several in (("add", adding, together[0]), ("remove", removing, together[1])):
        p50, p95 = np.percentile(times, [50, 95])
        values |= {f"{name}_p50_ms": float(p50), f"{name}_p95_ms": float(p95), f"{name}_{TOGETHER}_s": median(several)}
    return values | {"found": found / len(adding), "gone": gone / len(removing)}


def _new_tools(store: Store, count: int) -> list[Tool]:
    """Return copies of stored tools under new names, whose texts no tool has had before."""
    known = store.get(random.Random(_SEED).choices(store.ids(), k=count))
    version = store.version()
    return [
        replace(one, namespace=_ADDED, name=f"{one.name}_{version}_{number}", aliases=())
        for number, one in enumerate(known)
    ]


def recall(scout: Scout, requests: Sequence[str], k: int = 10) -> Values:
    """Return recall@k of the approximate vector search, against exact search over every vector in the store.

    A tool counts as right when its cosine reaches the k-th best, so that the order of ties does not matter.
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
    """Return the k-th best cosine of each request over all tools; each of several tools with one text counts."""
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
