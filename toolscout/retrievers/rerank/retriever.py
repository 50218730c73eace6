"""rerank: a reranker scores the first tools of another retriever's ranking; its scores are added to theirs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from toolscout.core.answer import Cost, Reason, Reranked
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Listing, Searchable
from toolscout.errors import BadDataset, BadModel, BadRequest, MissingEncoder
from toolscout.index.document_texts import MAX_CHARS, DocumentTexts
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.rerankers.base import Reranker
from toolscout.models.rerankers.opening import open_reranker
from toolscout.retrievers.base import (
    FitProgress,
    FitReport,
    Options,
    Pairs,
    Ranking,
    ReadDocuments,
    Retriever,
    Vectors,
    check_k,
    falling,
)
from toolscout.retrievers.encoded_requests import Encoding, dev_sample
from toolscout.retrievers.model_folder import read_model, read_options, write_model
from toolscout.retrievers.over_one_part import OverOnePart
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.retrievers.registry import load_model
from toolscout.retrievers.rerank.added_scores import Reordered, reordered
from toolscout.retrievers.rerank.learned_weight import DEPTH, JudgedRequest, learned_weight
from toolscout.retrievers.rerank.reranker_calls import RerankedScores, RerankerCalls

_TEXTS = "texts"
_PATIENT = Scope(endpoints="wait")
_COPIED_AT_ONCE = 1_000
_MAY_FAIL = 10  # dev requests that a reranker may fail on, however few there are


@dataclass(frozen=True, slots=True)
class RerankOptions(Options):
    """Which reranker scores how many tools, and how much its scores count.

    reranker: the folder of a cross-encoder, the URL of an endpoint with ?model=NAME, or chat:MODEL; "default" for the
        one that comes with the package.
    first: how many tools of the ranking are scored.
    weight: of the reranker's scores beside the retriever's, both having the same spread; `fit` learns it on dev.
    deadline_ms: how long one request waits for scores; 0 for 300 ms for a cross-encoder, 1,000 for an endpoint and
        10,000 for a chat model. Tools that have no score by then keep their place.
    """

    reranker: str = ""
    first: int = 20
    weight: float = 1.0
    deadline_ms: float = 0.0

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        if self.first < 1 or not 0 <= self.weight < 1e6 or not 0 <= self.deadline_ms < 1e9:
            raise BadModel("first must be at least 1, weight and deadline_ms 0 or more")


class RerankedRanking(NamedTuple):
    """What is behind a reranked ranking.

    alone: the part's ranking, and `depth`, how long it is at most. changed: the tools that were to be scored, in their
    new order, with the added scores. scores: the reranker's, by tool id.
    """

    alone: Ranking
    depth: int
    changed: Reordered
    scores: Mapping[str, float]


class Rerank(OverOnePart):
    """Reorders the first tools of its one part's ranking; below them the part's order holds.

    For a caller with permissions, a cross-encoder on this machine scores the first tools of the full catalogue, and the
    others are taken out afterwards, so that the order is that of everybody. An endpoint or a chat model gets only tools
    that the caller may see: the first of these. In both cases such a caller gets the part's own scores, in the new
    order, since added scores would depend on hidden tools.
    """

    name: ClassVar[str] = "rerank"
    trainable: ClassVar[bool] = True
    options: RerankOptions

    def __init__(
        self,
        options: RerankOptions | None = None,
        parts: Sequence[Retriever] | None = None,
        reranker: Reranker | None = None,
        *,
        home: Path | None = None,
    ) -> None:
        """Rerank this part, a hybrid by default; `reranker`: one that is already open.

        `home`: the model folder, if the options come from one. An endpoint that it names is called only if its host is
        in $TOOLSCOUT_LLM_HOSTS. Raises BadModel or BadRequest where the reranker cannot be opened.
        """
        super().__init__(options or RerankOptions(), parts)
        if reranker is None and self.options.reranker:
            reranker = open_reranker(self.options.reranker, from_folder=home is not None)
        self._calls = RerankerCalls(reranker, self.options.deadline_ms) if reranker is not None else None
        self._texts = DocumentTexts()
        self._read: ReadDocuments | None = None

    @property
    def calls(self) -> RerankerCalls:
        """The reranker with its deadline. Raises BadModel where none was named and none is the default."""
        if self._calls is None:
            self._calls = RerankerCalls(open_reranker(), self.options.deadline_ms)
        return self._calls

    @property
    def index_part(self) -> Retriever | None:
        """That of its part."""
        return self.part.index_part

    def with_index(self, index: Retriever) -> Retriever:
        """Rerank `index` instead of the part that was the index."""
        self._parts = [self.part.with_index(index)]
        return self

    def read_documents(self, read: ReadDocuments) -> None:
        """Read the documents that are scored by this function; none are held here."""
        super().read_documents(read)
        self._read, self._texts = read, DocumentTexts()

    # Tools, which the part holds; their documents are held here, unless they are read elsewhere.

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Keep the documents of tools, and hand the tools to the part."""
        if self._read is None:
            self._texts.add(tools)
        self.part.add(tools, vectors)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools."""
        self.part.remove(ids)
        self._texts.remove(ids)

    def learned(self) -> int:
        """How many learned requests its part holds."""
        return self.part.learned()

    def as_many(self, rankings: Sequence[Ranking]) -> list[Pairs] | None:
        """As many tools as its part says that each request needs: the first of the reordered ranking."""
        sets = self.part.as_many([replace(one.evidence.alone, scope=one.scope) for one in rankings])
        if sets is None:
            return None
        few = zip(rankings, sets, strict=True)
        return [self._best(ranking.evidence, len(chosen), ranking.scope) for ranking, chosen in few]

    @property
    def reranker(self) -> Reranker:
        """The reranker. Raises BadModel where none was named and none is the default."""
        return self.calls.reranker

    @property
    def language_parameters(self) -> int:
        """How many parameters its part's language models have, and its own."""
        own = self._calls.reranker.parameters if self._calls is not None else 0
        return own + self.part.language_parameters

    # Search.

    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        """Reorder the first tools of the part's rankings."""
        check_k(k)
        depth = max(k, self.options.first) if scope.allowed is None else self.options.first
        rankings = self.ranked(requests, depth, scope)
        return [self._ranking(one, depth, k, scope) for one in rankings]

    def ranked(self, requests: Sequence[str], depth: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        """The part's full rankings."""
        rankings = self.part.rank(requests, depth, scope.of_all())
        for ranking in rankings:
            self.part.put_named_first(ranking, depth)
        return rankings

    def _ranking(self, alone: Ranking, depth: int, k: int, scope: Scope) -> Ranking:
        pairs = self._first(alone, scope)
        judged = self.judged(alone.request, pairs, scope)
        changed = reordered(pairs, judged.scores, self.options.weight)
        known = zip(pairs, judged.scores, strict=True)
        scores = {tool_id: score for (tool_id, _), score in known if score is not None}
        found = RerankedRanking(alone, depth, changed, scores)
        return Ranking(
            alone.request,
            scope,
            self._best(found, k, scope),
            vector=alone.vector,
            need=alone.need,
            queries=alone.queries,
            notes=tuple(dict.fromkeys([*alone.notes, *judged.notes])),
            cost=Cost.total([alone.cost, judged.cost]),
            named=alone.named,
            evidence=found,
        )

    def _first(self, alone: Ranking, scope: Scope) -> Pairs:
        """The tools that are scored, with the part's scores."""
        first, sees = self.options.first, scope.sees
        if sees is None or not self.calls.reranker.visible_only:
            return alone.pairs[:first]
        return self.part.extend(alone, first, replace(alone.scope, allowed=sees, visible=sees))

    def judged(self, request: str, pairs: Pairs, scope: Scope = EVERYTHING) -> RerankedScores:
        """The reranker's scores of these tools. A request that is empty or only a name needs none."""
        none: list[float | None] = [None] * len(pairs)
        if not request.strip() or self.names.is_name(request, scope.sees):
            return RerankedScores(none)
        read = self._read or self._texts.get
        texts = [text and text[:MAX_CHARS] for text in read([tool_id for tool_id, _ in pairs])]
        places = [place for place, text in enumerate(texts) if text is not None]  # others were removed meanwhile
        counted = scope.sees is None or self.calls.reranker.visible_only
        judged = self.calls.score(request, [text for text in texts if text is not None], scope.endpoints, counted)
        for place, score in zip(places, judged.scores, strict=True):
            none[place] = score
        return judged._replace(scores=none)

    def extend(self, ranking: Ranking, k: int, scope: Scope) -> Pairs:
        """The best k of the tools allowed, for a ranked request; for the same caller nothing is scored again."""
        if not scope.same_caller(ranking.scope):
            return super().extend(ranking, k, scope)
        return self._best(ranking.evidence, k, scope)

    def _best(self, found: RerankedRanking, k: int, scope: Scope) -> Pairs:
        """The part's ranking of the allowed tools, in which the reordered tools share the places that they had."""
        alone, count = found.alone, max(k, self.options.first)
        if scope.allowed is None and count <= found.depth:
            own = alone.pairs[:count]
        else:
            own = self.part.extend(alone, count, replace(scope, visible=scope.sees))
        ids, order = {tool_id for tool_id, _ in own}, found.changed.order
        if scope.allowed is not None or scope.sees is None:
            order = [tool_id for tool_id in order if tool_id in ids]
        moving, moved = iter(order), set(order)
        pairs = [(next(moving) if tool_id in moved else tool_id, score) for tool_id, score in own]
        if scope.sees is None:
            pairs = [(tool_id, found.changed.scores.get(tool_id, score)) for tool_id, score in pairs]
        return falling(pairs)[:k]

    def explain(self, ranking: Ranking, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        """The reasons of the part, and the reranker's score.

        A caller who may not see all tools is not told a score that others were scored for: it would tell how many.
        """
        found: RerankedRanking = ranking.evidence
        reasons, scores = self.part.explain(found.alone, ids), found.scores
        if ranking.scope.sees is not None and not self.calls.reranker.visible_only:
            return reasons
        return [
            (*why, Reranked(round(scores[tool_id], 6))) if tool_id in scores else why
            for tool_id, why in zip(ids, reasons, strict=True)
        ]

    # Training and files.

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Learn the weight on dev, for the part as it is: train that first, and name its folder as the part.

        Raises BadDataset where no dataset has a dev split, BadModel where the reranker fails on most requests.
        """
        if not any(one.dev for one in data):
            raise BadDataset("rerank learns its weight on dev, and no dataset has one; name one: DATA:TRAIN:DEV")
        started, judged = time.perf_counter(), list[JudgedRequest]()
        for one in data:
            if one.dev:
                judged += self._judged_dev(one, folder, progress)
        learned = learned_weight(judged)
        notes = () if learned.weight else ("on dev the reranker brings nothing, so its weight is 0: leave it out",)
        self.options = replace(self.options, weight=learned.weight)
        self.trained_on = TrainedOn(tuple(one for one in TrainedOn.of(data).splits if one.role == "dev"))
        report = FitReport(time.perf_counter() - started, "cpu", 1, learned.dev, notes)
        self.fit_record = asdict(report)
        self.remove(self.ids())
        self.save(folder)
        return report

    def _judged_dev(self, one: TrainingSet, folder: Path, progress: FitProgress | None) -> list[JudgedRequest]:
        """The dev requests of a set (a sample if there are many), ranked and scored among the set's own tools."""
        self.remove(self.ids())
        tools, encoding = one.dataset.tools, None
        with suppress(MissingEncoder):  # without an encoder only words are searched, as later in use
            if (encoder := self.encoder) is not None:
                encoding = Encoding(encoder, folder, progress)
        self.add(tools, encoding.documents(tools) if encoding is not None else {})
        split, first, found, failed = dev_sample(one.dataset.split(one.dev)), self.options.first, [], 0
        for (_, text), gold in zip(split.requests, split.gold, strict=True):
            (ranking,) = self.ranked([text], max(first, DEPTH), _PATIENT)
            pairs, below = ranking.pairs[:first], ranking.ids()[first:]
            judged = self.judged(text, pairs, _PATIENT)
            failed += judged.cost.failed if judged.cost else 0
            found.append(JudgedRequest(pairs, below, judged.scores, gold))
            if failed > max(_MAY_FAIL, len(split) // 2):
                raise BadModel(f"the reranker fails, so its weight cannot be learned ({judged.notes[-1]})")
            if progress:
                progress("reranking dev requests", len(found), len(split))
        if encoding is not None:
            encoding.done()
        return found

    def save(self, folder: Path) -> None:
        """Write the part and the documents into folders of their own; the reranker stays where it is."""
        name = f"0-{self.part.name}"
        self.part.save(folder / name)
        self._held_texts().save(folder / _TEXTS)
        if self.trained_on.splits:
            self.trained_on.save(folder)
        write_model(folder, self, parts={name: self.part.name})

    def _held_texts(self) -> DocumentTexts:
        """The documents of all tools; those that are read elsewhere are copied."""
        if self._read is None:
            return self._texts
        copied, ids = DocumentTexts(), self.ids()
        for start in range(0, len(ids), _COPIED_AT_ONCE):
            few = ids[start : start + _COPIED_AT_ONCE]
            texts = zip(few, self._read(few), strict=True)
            copied.add([Listing(one, "", "", (), text, "") for one, text in texts if text is not None])
        return copied

    @classmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        """Open a saved model. Raises BadModel where it, or the reranker that it names, cannot be opened."""
        model = read_model(folder)
        options = read_options(RerankOptions, model)
        parts = [load_model(folder / name, encoder) for name in model.get("parts", {})]
        try:
            loaded = cls(options, parts, home=folder)
        except BadRequest as error:
            raise BadModel(f"{folder} names a reranker that cannot be used: {error}") from None
        loaded.trained_on, loaded.fit_record = TrainedOn.load(folder), model.get("fit")
        loaded._texts = DocumentTexts.load(folder / _TEXTS)
        return loaded
