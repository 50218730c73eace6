"""Finds tools that plausibly go together in one request, by schemas, namespaces and similarity; chosen by hash."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Floats
from toolscout.core.tool import Tool, split_words
from toolscout.search.progress import Progress
from toolscout.synth.hash_draw import chance, drawn, favoured
from toolscout.synth.options import KINDS
from toolscout.synth.progress import each, named

PARTNERS = 12
"""The most partners of each kind per tool."""
_COMMON = 200  # a field that more tools have is ignored
_ROWS = 512
_LARGE = 1_000  # in a namespace of more tools, cosines are computed for many tools at once
_ROUNDING = 1e-5  # the most by which two computations of the same cosine differ
_SCENES = 2_000
_DEPTH = 4
_FLAGS = ("bool", "boolean", "null", "none")


@dataclass(frozen=True, slots=True)
class Combination:
    """The tools of one request, the one it is written for first; `kind` is why they go together, "" for one tool."""

    tools: tuple[str, ...]
    kind: str


class Partners:
    """For each tool, the tools that go with it, by kind, best first."""

    def __init__(self, tools: Sequence[Tool], vectors: Floats | None = None) -> None:
        """Read the input and output fields of tools; `vectors` are those of their documents, where there are any."""
        self._tools = {tool.id: tool for tool in tools}
        self._digests = {tool.id: tool.digest() for tool in tools}
        self._rows = {tool.id: row for row, tool in enumerate(tools)}
        self._vectors = vectors
        self._near: dict[str, list[str]] = {}
        self._nearest_at_home: dict[str, list[str]] = {}
        self._found: dict[tuple[str, str], list[str]] = {}
        self._takes = {tool.id: _fields(tool.input_schema) for tool in tools}
        self._gives = {tool.id: _given(tool) for tool in tools}
        self._taking, self._giving = _index(self._takes), _index(self._gives)
        self._home: dict[str, list[str]] = defaultdict(list)
        for tool in tools:
            self._home[tool.namespace].append(tool.id)

    def of(self, tool_id: str, kind: str) -> list[str]:
        """The partners of a tool, of one kind; a tool with the same document is not a partner."""
        if (tool_id, kind) not in self._found:
            found = {
                "namespace": self._namesakes,
                "chain": self._chained,
                "shared": self._sharing,
                "meaning": self._alike,
            }[kind](tool_id)
            digest = self._digests[tool_id]
            others = (other for other in found if other != tool_id and self._digests[other] != digest)
            self._found[tool_id, kind] = list(islice(others, PARTNERS))
        return self._found[tool_id, kind]

    def prepare(self, tool_ids: Iterable[str], kinds: Iterable[str] = KINDS, progress: Progress | None = None) -> None:
        """Compute the similarities that partners of these kinds need, for many tools at once."""
        if self._vectors is None:
            return
        ids, kinds = list(dict.fromkeys(tool_ids)), set(kinds)
        if "meaning" in kinds:
            self._compare_all([tool_id for tool_id in ids if tool_id not in self._near], self._vectors, progress)
        if "namespace" in kinds:
            large = [one for one in ids if len(self._neighbours(one)) > _LARGE and one not in self._nearest_at_home]
            self._compare_at_home(large, self._vectors, progress)

    def _compare_all(self, ids: Sequence[str], vectors: Floats, progress: Progress | None) -> None:
        names, most = list(self._tools), min(4 * PARTNERS, len(self._tools))
        for start in range(0, len(ids), _ROWS):
            few = ids[start : start + _ROWS]
            scores = vectors[[self._rows[tool_id] for tool_id in few]] @ vectors.T
            for tool_id, cosines in zip(few, scores, strict=True):
                places = _at_least(_greatest(cosines, most), cosines)
                self._near[tool_id] = [names[place] for place in _best_first(places, cosines[places], most)]
            if progress:
                progress("comparing meanings", start + len(few), len(ids))

    def _compare_at_home(self, ids: Sequence[str], vectors: Floats, progress: Progress | None) -> None:
        homes: dict[str, list[str]] = defaultdict(list)
        for tool_id in ids:
            homes[self._tools[tool_id].namespace].append(tool_id)
        done = 0
        for home, inside in homes.items():
            others = self._home[home]
            rows = vectors[[self._rows[other] for other in others]]
            for start in range(0, len(inside), _ROWS):
                few = inside[start : start + _ROWS]
                own = vectors[[self._rows[tool_id] for tool_id in few]]
                for tool_id, vector, cosines in zip(few, own, own @ rows.T, strict=True):
                    # Computed again in a fixed way: the last digits of a product depend on its shape.
                    places = _at_least(_greatest(cosines, PARTNERS + 1) - _ROUNDING, cosines)
                    exact = (rows[places].astype(np.float64) * vector).sum(axis=1)
                    order = _best_first(places, exact.astype(np.float32), PARTNERS + 1)
                    self._nearest_at_home[tool_id] = [others[place] for place in order]
                done += len(few)
                if progress:
                    progress("comparing namesakes", done, len(ids))

    def _alike(self, tool_id: str) -> list[str]:
        """Similar tools of other namespaces."""
        self.prepare([tool_id], ["meaning"])
        home = self._tools[tool_id].namespace
        return [other for other in self._near.get(tool_id, ()) if self._tools[other].namespace != home]

    def _neighbours(self, tool_id: str) -> list[str]:
        return self._home[self._tools[tool_id].namespace]

    def _namesakes(self, tool_id: str) -> list[str]:
        others = self._neighbours(tool_id)
        if self._vectors is None or len(others) <= PARTNERS:
            return others
        if len(others) > _LARGE:
            self.prepare([tool_id], ["namespace"])
            return self._nearest_at_home[tool_id]
        own = self._vectors[self._rows[tool_id]]
        cosines = self._vectors[[self._rows[other] for other in others]] @ own
        return [others[place] for place in _best_first(np.arange(len(others)), cosines, PARTNERS + 1)]

    def _chained(self, tool_id: str) -> list[str]:
        scores: dict[str, float] = defaultdict(float)
        _score(scores, self._gives[tool_id], self._taking, len(self._tools))
        _score(scores, self._takes[tool_id], self._giving, len(self._tools))
        return _best(scores)

    def _sharing(self, tool_id: str) -> list[str]:
        home = self._tools[tool_id].namespace
        scores: dict[str, float] = defaultdict(float)
        _score(scores, self._takes[tool_id], self._taking, len(self._tools))
        return _best({i: score for i, score in scores.items() if self._tools[i].namespace != home})


def kind_shares(
    partners: Partners, golds: Iterable[Sequence[str]], progress: Progress | None = None
) -> dict[str, float]:
    """For each kind, how often it finds tools that known requests use together, as a share; empty without any."""
    scenes = sorted({tuple(sorted(set(gold))) for gold in golds})
    scenes = sorted((scene for scene in scenes if len(scene) > 1), key=lambda scene: chance(*scene))[:_SCENES]
    progress = named("known requests", progress)
    partners.prepare((tool_id for scene in scenes for tool_id in scene), progress=progress)
    counts = Counter[str]()
    for scene in each(scenes, "finding partners", progress):
        for tool_id in scene:
            for kind in KINDS:
                counts[kind] += len(set(partners.of(tool_id, kind)) & set(scene))
    return {kind: round(counts[kind] / counts.total(), 4) for kind in KINDS if counts[kind]}


def combined(
    partners: Partners, anchor: str, sizes: Mapping[str, float], kinds: Mapping[str, float], *key: object
) -> Combination:
    """A tool with partners, their number and kinds chosen by these shares; alone where it has no partners."""
    size = int(drawn(sizes, *key, anchor, "size"))
    chosen, first = [anchor], ""
    for number in range(1, size):
        wanted = drawn(kinds, *key, anchor, "kind", number)
        for kind in [wanted, *(other for other in kinds if other != wanted and kinds[other])]:
            others = [other for other in partners.of(anchor, kind) if other not in chosen]
            if others:
                chosen.append(favoured(others, *key, anchor, "partner", number))
                first = first or kind
                break
    return Combination(tuple(chosen), first)


def _fields(schema: Mapping[str, Any]) -> frozenset[str]:
    """The names, in words, of the values in a schema, without booleans and objects."""
    found: set[str] = set()
    _walk(schema, found, 0)
    return frozenset(found)


def _walk(schema: object, found: set[str], depth: int) -> None:
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return
    properties = schema.get("properties")
    for name, inner in properties.items() if isinstance(properties, Mapping) else ():
        if isinstance(inner, Mapping) and isinstance(inner.get("properties"), Mapping):
            _walk(inner, found, depth + 1)
        elif not (isinstance(inner, Mapping) and inner.get("type") in _FLAGS):
            found.add(_field(str(name)))
            _walk(inner.get("items") if isinstance(inner, Mapping) else None, found, depth + 1)
    _walk(schema.get("items"), found, depth + 1)


def _given(tool: Tool) -> frozenset[str]:
    """The fields that a tool returns, by its output schema, or by the sample answer that some catalogues have."""
    found = set(_fields(tool.output_schema or {}))
    _sampled(tool.meta.get("return_schema"), found, 0)
    return frozenset(found)


def _sampled(value: object, found: set[str], depth: int) -> None:
    if depth > _DEPTH:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(inner, Mapping):
                _sampled(inner, found, depth + 1)
            elif inner not in _FLAGS:
                found.add(_field(str(name)))
                _sampled(inner, found, depth + 1)
    elif isinstance(value, list):
        for inner in value[:1]:
            _sampled(inner, found, depth + 1)


def _field(name: str) -> str:
    return " ".join(split_words(name)).lower() or name.lower()


def _index(fields: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for tool_id, names in fields.items():
        for name in names:
            found[name].append(tool_id)
    return found


def _score(scores: dict[str, float], names: Iterable[str], index: Mapping[str, Sequence[str]], total: int) -> None:
    """Add to the scores of tools that share fields; a field counts more the fewer tools have it."""
    for name in sorted(names):
        others = index.get(name, ())
        if len(others) <= _COMMON:
            for other in others:
                scores[other] += math.log(1 + total / len(others))


def _greatest(cosines: Floats, count: int) -> float:
    """The `count`-th greatest cosine."""
    place = len(cosines) - count
    return float(np.partition(cosines, place)[place])


def _at_least(bound: float, cosines: Floats) -> NDArray[np.intp]:
    return np.flatnonzero(cosines >= bound)


def _best_first(places: NDArray[np.intp], cosines: Floats, count: int) -> list[int]:
    """The `count` places with the greatest cosines, best first; ties in the order given."""
    found: list[int] = places[np.argsort(-cosines, kind="stable")[:count]].tolist()
    return found


def _best(scores: Mapping[str, float]) -> list[str]:
    return sorted(scores, key=lambda tool_id: (-scores[tool_id], tool_id))[: PARTNERS + 1]
