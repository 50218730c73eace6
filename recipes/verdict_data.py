"""Makes the labelled rows of the verdict model: requests put to catalogues, and whether a tool there serves them.

The labels of retrieval suffice. A request of a labelled set is "use" in a catalogue with its gold tools, and "nothing
fits" in one from which they were taken out. Talk is "no tool" in any catalogue. Catalogues have 1 to 10 tools, 20 to
200, or all tools of a set. Texts that the need head or the encoder was trained on are left out: they are too easy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from toolscout.core.answer import Allowed, Hit, Reranked
from toolscout.core.arrays import Floats
from toolscout.core.scope import Scope
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset, request_digest
from toolscout.data.locate import find_dataset
from toolscout.data.no_tool_prompts import read_prompts
from toolscout.evaluation import leakage
from toolscout.evaluation.vector_cache import request_vectors, tool_vectors
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.need_head import NeedHead
from toolscout.models.rerankers.base import Reranker
from toolscout.papers.precomputed_encoder import PrecomputedEncoder
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.rerank.added_scores import reordered
from toolscout.search import encoder_fit, request_language, similarity_baseline
from toolscout.search.catalogue_fit import FitOptions
from toolscout.search.verdict import Evidence, evidence_of

VERSION = 1
"""Raise it with every change of how rows are made: rows that are cached under another version are made again."""
USE, NOTHING_FITS, NO_TOOL = 0, 1, 2
SMALL, MIDDLE, WHOLE = 0, 1, 2
SIZES = ("1 to 10 tools", "20 to 200 tools", "all tools of the set")
# The labelled sets, each with the sources of talk that are left out of training with it, so that the talk it is tested
# on is of a style never seen. apibench is not among them: many of its models do the same, so that another one serves
# where a request's own is taken out.
TALK_OF = {
    "bundled": ("bundled",),
    "clinc150": ("clinc150", "clinc150_oos"),
    "hwu64": ("hwu64",),
    "banking77": ("TopicalChat_opening",),
    "toollens": ("GPTeacher_roleplay", "own"),
    "toolbench-g3": ("mt_bench_101", "mt_bench"),
    "toolbench": ("mt_bench_101", "mt_bench"),
    "simpletoolquestions": ("arena_hard_v2", "arena_hard_v0.1", "arena-bench-v1"),
    "tldr": ("IFEval", "self_instruct_user"),
    "nl2bash": ("hh_harmless_test",),
    "nestools": ("TopicalChat_opening",),
    "ultratool": ("hh_harmless_test",),
}
# Sets that share requests or tools: none is trained on while another is tested.
KIN = (frozenset(("toolbench-g3", "toolbench", "toollens")), frozenset(("tldr", "nl2bash")))
REQUESTS, TALK = 150, 100
MOST_TOOLS = 4_000
FEW, SOME = (1, 2, 3, 5, 8, 10), (20, 60, 200)
# Tools similar to the gold tools may serve a request as well. Where the gold is taken out, so is this share of the set,
# the most similar tools, but no more than so many.
ALIKE, MOST_ALIKE = 0.05, 100
# This share of the small catalogues holds tools similar to the gold.
RELATED = 1 / 3
_CHARS = 1_000  # the encoder reads no more of a text
LOOKED_AT, RERANKED = 5, 10
"""How many tools the evidence is read from, and how many a reranker scores."""


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """Some tools of a dataset, requests with their gold, and requests that nothing serves."""

    name: str
    split: str
    tools: list[Tool]
    served: list[tuple[str, frozenset[str]]]
    hopeless: list[str]


@dataclass(slots=True)
class Rows:
    """Labelled rows as parallel lists: evidence, the right kind, the catalogue's size, and the set or talk source."""

    evidence: list[Evidence] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    source: list[str] = field(default_factory=list)

    def add(self, evidence: Evidence | None, kind: int, size: int, source: str) -> None:
        """Add one row; one without evidence (no tool was found) is passed over."""
        if evidence is not None:
            self.evidence.append(evidence)
            self.kind.append(kind)
            self.size.append(size)
            self.source.append(source)


def seen_by(encoder: TextEncoder) -> set[str]:
    """Return the digests of the texts that the encoder or its need head was trained on."""
    splits = leakage.encoder_history(encoder).splits
    return {digest for one in splits if one.role == "train" for digest in one.requests}


def labelled_set(name: str, split: str, seen: set[str]) -> LabelledSet:
    """Return some requests of a split, their gold tools, and other tools of the set up to MOST_TOOLS in all."""
    random = np.random.default_rng(0)
    data = Dataset.load(find_dataset(name), [split])
    pairs = zip(data.split(split).requests, data.split(split).gold, strict=True)
    served = [(text[:_CHARS], frozenset(gold)) for (_, text), gold in pairs if request_digest(text) not in seen]
    most = len(served) if name == "bundled" else REQUESTS  # all bundled requests are measured
    served = [served[at] for at in random.permutation(len(served))[:most]]
    hopeless = [text for one, text in data.goldless(split) if data.kind(one) == "nothing_fits"]
    needed = frozenset[str]().union(*(gold for _, gold in served))
    others = [at for at, tool in enumerate(data.tools) if tool.id not in needed]
    kept = set(random.permutation(others)[: max(0, MOST_TOOLS - len(needed))].tolist())
    tools = [tool for at, tool in enumerate(data.tools) if tool.id in needed or at in kept]
    return LabelledSet(name, split, tools, served, hopeless)


def talk(seen: set[str], prompt_split: str = "dev", bundled_split: str = "dev") -> dict[str, list[str]]:
    """Return texts that need no tool, by source, in random order."""
    found: dict[str, list[str]] = {}
    for prompt in read_prompts(find_dataset("no_tool"), prompt_split):
        found.setdefault(prompt.source, []).append(prompt.text)
    for name in ("clinc150", "hwu64"):
        lines = (find_dataset(name) / "no_tool.jsonl").read_text(encoding="utf-8").splitlines()
        found[name] = [json.loads(line)["text"] for line in lines]
    found["own"] = [text for text, need in encoder_fit.need_texts() if not need]
    bundled = Dataset.load(find_dataset("bundled"), [bundled_split])
    found["bundled"] = [text for one, text in bundled.goldless(bundled_split) if bundled.kind(one) == "no_tool"]
    random = np.random.default_rng(0)
    kept = {
        name: [text[:_CHARS] for text in texts if request_digest(text) not in seen] for name, texts in found.items()
    }
    return {name: [texts[at] for at in random.permutation(len(texts))] for name, texts in kept.items() if texts}


def talk_for(name: str, every: dict[str, list[str]], catalogues: Catalogues) -> list[tuple[str, str]]:
    """Return (source, text) of the talk for one set: of the sources that are left out with it, and of all others.

    Half of the latter is the talk most similar to the tools: it is about what they do, so fit cannot tell it.
    """
    random = np.random.default_rng(len(name))
    own = [(source, text) for source in TALK_OF[name] for text in every.get(source, [])]
    rest = [(source, text) for source, texts in every.items() if source not in TALK_OF[name] for text in texts[:TALK]]
    near = np.argsort(-catalogues.nearness([text for _, text in rest]))[: TALK // 2].tolist()
    others = [at for at in random.permutation(len(rest)).tolist() if at not in near][: TALK // 2]
    return [*(own[at] for at in random.permutation(len(own))[:TALK]), *(rest[at] for at in near + others)]


class _CachingEncoder(PrecomputedEncoder):
    """Caches the vectors of requests, also of those whose spelling the hybrid corrects."""

    def encode(self, texts: Sequence[str]) -> Floats:
        """Return the unit vectors of several requests."""
        new = [text for text in dict.fromkeys(texts) if text not in self._requests]
        if new:
            self._requests.update(zip(new, self._encoder.encode(new), strict=True))
        vectors: Floats = np.stack([self._requests[text] for text in texts])
        return vectors

    def encode_request(self, text: str) -> Floats:
        """Return the unit vector of one request."""
        return self.encode([text])[0]


class Catalogues:
    """Puts requests to catalogues made of one set's tools, and collects the same evidence that Scout would."""

    def __init__(
        self,
        source: LabelledSet,
        encoder: TextEncoder,
        head: NeedHead | None,
        options: FitOptions,
        reranker: Reranker | None = None,
    ) -> None:
        """Encode all tools and the background requests; `head` None: need is not known.

        With a reranker every question gives two rows: one of the search alone, and one of the reranked hits.
        """
        self._source, self._head, self._options, self._reranker = source, head, options, reranker
        self._rows = tool_vectors(source.tools, encoder)
        self._known = {tool.digest(): row for tool, row in zip(source.tools, self._rows, strict=True)}
        self._places = {tool.id: at for at, tool in enumerate(source.tools)}
        self._background = request_vectors(similarity_baseline.texts(), encoder) @ self._rows.T
        self._base = encoder
        self._made: Retriever | None = None
        self._vectors: dict[str, Floats] = {}
        self.rows = Rows()

    def encode(self, texts: Sequence[str]) -> None:
        """Encode requests before they are put to several catalogues."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if missing:
            self._vectors |= dict(zip(missing, request_vectors(missing, self._base), strict=True))

    def nearness(self, texts: Sequence[str]) -> Floats:
        """Return the best cosine of each request to a tool of the set."""
        self.encode(texts)
        found: Floats = (np.stack([self._vectors[text] for text in texts]) @ self._rows.T).max(axis=1)
        return found

    def put(self, places: Sequence[int], asked: Sequence[tuple[str, int, str, frozenset[str]]], size: int) -> None:
        """Put requests to a catalogue of some tools, by position; asked: (text, kind, source, tools to leave out)."""
        scope = Scope(None if len(places) == len(self._source.tools) else Allowed.of(ids=self.ids(places)))
        baseline = self._baseline(places)
        most = RERANKED + max((len(out) for *_, out in asked), default=0)
        found = self._index().search([text for text, *_ in asked], most, scope)
        needs = self._needs([text for text, *_ in asked])
        for (text, kind, source, out), hits, need in zip(asked, found, needs, strict=True):
            left = [hit for hit in hits if hit.tool_id not in out][:RERANKED]
            for ranked in (left, *self._reranked(text, left)):
                evidence = evidence_of(ranked[:LOOKED_AT], need, baseline, len(places) - len(out), self._options)
                self.rows.add(evidence, kind, size, source)

    def _reranked(self, text: str, hits: Sequence[Hit]) -> Iterator[list[Hit]]:
        """Yield the hits in the reranker's order, with its scores; nothing without a reranker or hits."""
        if self._reranker is None or not hits:
            return
        tools = [self._source.tools[self._places[hit.tool_id]] for hit in hits]
        scores = self._reranker.score(text, [tool.document() for tool in tools])
        given = {hit.tool_id: Reranked(score) for hit, score in zip(hits, scores, strict=True) if score is not None}
        order = reordered([(hit.tool_id, hit.score) for hit in hits], scores, 1.0).order
        by_id = {hit.tool_id: hit for hit in hits}
        yield [replace(by_id[one], reasons=(*by_id[one].reasons, given[one])) for one in order if one in given]

    def _index(self) -> Retriever:
        """Return one index of all tools, of which each catalogue searches its own: many indexes would take too long."""
        if self._made is None:
            self._made = Hybrid(parts=[Bm25(), Dense(encoder=_CachingEncoder(self._base, self._vectors, {}))])
            self._made.add(self._source.tools, self._known)
        return self._made

    def _baseline(self, places: Sequence[int]) -> float:
        best = self._background[:, list(places)].max(axis=1)
        return round(float(np.quantile(best, similarity_baseline.QUANTILE)), 4)

    def _needs(self, texts: Sequence[str]) -> list[float | None]:
        if self._head is None:
            return [None] * len(texts)
        found = self._head.probabilities(np.stack([self._vectors[text] for text in texts]), texts).tolist()
        known = [request_language.knows(self._head.languages, text) for text in texts]
        return [need if told else None for need, told in zip(found, known, strict=True)]

    def alike(self, gold: frozenset[str]) -> tuple[list[int], list[int]]:
        """Return the positions of the gold tools with those most similar to them, and of the next most similar ones."""
        near = (self._rows @ self._rows[self.places(gold)].T).max(axis=1)
        near[self.places(gold)] = 2.0
        order = np.argsort(-near)
        same = len(gold) + min(MOST_ALIKE, round(ALIKE * len(order)))
        return order[:same].tolist(), order[same : same + max(30, len(order) // 10)].tolist()

    def ids(self, places: Sequence[int]) -> frozenset[str]:
        """Return the ids of the tools at these positions."""
        return frozenset(self._source.tools[at].id for at in places)

    def places(self, ids: frozenset[str]) -> list[int]:
        """Return the positions of these tools."""
        return [self._places[one] for one in ids]


def gathered(source: LabelledSet, every: dict[str, list[str]], catalogues: Catalogues) -> Rows:
    """Return all rows of one set."""
    random = np.random.default_rng(1)
    spoken = talk_for(source.name, every, catalogues)
    catalogues.encode([*(text for text, _ in source.served), *source.hopeless, *(text for _, text in spoken)])
    for places, asked in _small(source, spoken, catalogues, random):
        catalogues.put(places, asked, SMALL)
    for places, asked in _middle(source, spoken, catalogues, random):
        catalogues.put(places, asked, MIDDLE)
    nothing = frozenset[str]()
    whole = [(text, USE, source.name, nothing) for text, _ in source.served]
    for text, gold in source.served:
        whole.append((text, NOTHING_FITS, source.name, catalogues.ids(catalogues.alike(gold)[0])))
    whole += [(text, NOTHING_FITS, source.name, nothing) for text in source.hopeless]
    whole += [(text, NO_TOOL, kind, nothing) for kind, text in spoken]
    catalogues.put(range(len(source.tools)), whole, WHOLE)
    return catalogues.rows


_Questions = list[tuple[str, int, str, frozenset[str]]]


def _small(
    source: LabelledSet, spoken: Sequence[tuple[str, str]], catalogues: Catalogues, random: np.random.Generator
) -> Iterator[tuple[list[int], _Questions]]:
    """Yield two catalogues of 1 to 10 tools for each request: with its gold, and without, which gets talk as well."""
    nothing = frozenset[str]()
    for number, (text, gold) in enumerate(source.served):
        own = catalogues.places(gold)
        fitting = [size for size in FEW if len(own) <= size <= len(source.tools) - len(own)]
        if not fitting:
            continue
        size = int(random.choice(fitting))
        alike, related = catalogues.alike(gold)
        pool = related if random.random() < RELATED else list(range(len(source.tools)))
        others = [at for at in random.permutation(pool).tolist() if at not in alike][:size]
        yield [*own, *others[: size - len(own)]], [(text, USE, source.name, nothing)]
        asked: _Questions = [(text, NOTHING_FITS, source.name, nothing)]
        asked += [(said, NO_TOOL, kind, nothing) for kind, said in spoken[number :: len(source.served)]]
        yield others, asked


def _middle(
    source: LabelledSet, spoken: Sequence[tuple[str, str]], catalogues: Catalogues, random: np.random.Generator
) -> Iterator[tuple[list[int], _Questions]]:
    """Yield catalogues of 20 to 200 tools: half of each are the gold tools of some requests."""
    nothing = frozenset[str]()
    for size in (one for one in SOME * 2 if one <= len(source.tools)):
        kept: dict[int, None] = {}
        for at in random.permutation(len(source.served)).tolist():
            more = catalogues.places(source.served[at][1])
            if len({*kept, *more}) <= size // 2:
                kept |= dict.fromkeys(more)
        others = [at for at in random.permutation(len(source.tools)).tolist() if at not in kept]
        places = [*kept, *others[: size - len(kept)]]
        there = {source.tools[at].id for at in places}
        asked: _Questions = []
        for text, gold in source.served:
            if gold <= there or not gold & there:
                out = nothing if gold <= there else catalogues.ids(catalogues.alike(gold)[0]) & there
                asked.append((text, USE if gold <= there else NOTHING_FITS, source.name, out))
        few = [asked[at] for at in random.permutation(len(asked)).tolist()]
        some = [one for kind in (USE, NOTHING_FITS) for one in [one for one in few if one[1] == kind][:40]]
        heard = [spoken[at] for at in random.permutation(len(spoken)).tolist()[:50]]
        yield places, some + [(text, NO_TOOL, kind, nothing) for kind, text in heard]


def arrays_of(rows: Rows) -> dict[str, Floats]:
    """Return rows as arrays that numpy saves."""
    columns = {
        name: np.array([np.nan if (value := getattr(one, name)) is None else value for one in rows.evidence])
        for name in Evidence.__slots__
    }
    return columns | {
        "kind": np.array(rows.kind),
        "size": np.array(rows.size),
        "source": np.array(rows.source),
    }


def rows_of(arrays: dict[str, Floats]) -> Rows:
    """Return the rows that `arrays_of` was given."""
    columns = [arrays[name].tolist() for name in Evidence.__slots__]
    found = Rows(kind=arrays["kind"].tolist(), size=arrays["size"].tolist(), source=list(map(str, arrays["source"])))
    for need, fit, following, fifth, words, tools, score in zip(*columns, strict=True):
        known = None if np.isnan(need) else need
        found.evidence.append(
            Evidence(known, fit, following, fifth, words, int(tools), None if np.isnan(score) else score)
        )
    return found


def save(path: Path, rows: Rows) -> None:
    """Write rows to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, allow_pickle=False, **arrays_of(rows))


def load(path: Path) -> Rows:
    """Read what `save` wrote."""
    with np.load(path) as file:
        return rows_of({name: file[name] for name in file.files})


def is_kin(one: str, other: str) -> bool:
    """Return whether two sets have requests or tools in common."""
    return one == other or any(one in group and other in group for group in KIN)
