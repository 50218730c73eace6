"""hybrid: fuses the rankings of the retrievers it is handed, by their scores or by their ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np

from toolscout.core.answer import Allowed, Cost, Example, Reason
from toolscout.core.arrays import Floats
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Searchable
from toolscout.errors import BadDataset, BadModel
from toolscout.index.exact_names import EXACT_BONUS, ExactNames
from toolscout.index.worker_threads import WORKER_THREADS
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import (
    FitProgress,
    FitReport,
    Options,
    Pairs,
    Ranking,
    Retriever,
    Vectors,
    check_k,
    falling,
    seen_by,
)
from toolscout.retrievers.hybrid.fusion import (
    check_encoders,
    joined,
    learn_weights,
    load_parts,
    relative_scores,
    share_encoder,
)
from toolscout.retrievers.hybrid.shared_encoder import SharedEncoder
from toolscout.retrievers.model_folder import read_model, read_new, read_options, write_model, write_new
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.retrievers.registry import method

# Default weights of parts by method, 1 for others; found by recipes/hybrid_weights.py.
_DEFAULT_WEIGHTS = {"dense": 1.32}


@dataclass(frozen=True, slots=True)
class HybridOptions(Options):
    """How rankings are fused.

    `fusion`: "scores" adds up each part's scores relative to its best one; "rrf" is reciprocal rank fusion with
    `constant`. `depth`: how many tools of each ranking are fused. `weights`: of the parts' scores, defaults if empty.
    `new_weights` and `new_bonus`: for tools that training has not seen. `fit` learns the last three on dev.
    """

    fusion: Literal["scores", "rrf"] = "scores"
    constant: int = 60
    depth: int = 100
    weights: tuple[float, ...] = ()
    new_weights: tuple[float, ...] = ()
    new_bonus: float = 0.0

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        object.__setattr__(self, "weights", tuple(self.weights))  # json has lists
        object.__setattr__(self, "new_weights", tuple(self.new_weights))
        if self.fusion not in ("scores", "rrf") or self.depth < 1 or self.constant < 0:
            raise BadModel(f"fusion must be scores or rrf, depth at least 1 and constant at least 0, got {self}")


class Hybrid(Retriever):
    """Fusion of full rankings.

    For a caller with permissions, tools are ordered as in the full catalogue: fusing only the tools that the caller may
    see would change their order. The scores such a caller gets are relative to the best of its own tools. Below the
    fused depth, tools follow in the order of the last part (by default `dense`, which ranks every tool).
    """

    name: ClassVar[str] = "hybrid"
    trainable: ClassVar[bool] = True
    options: HybridOptions

    def __init__(self, options: HybridOptions | None = None, parts: Sequence[Retriever] | None = None) -> None:
        """Fuse these parts; by default bm25 and dense."""
        super().__init__(options or HybridOptions())
        self._parts = list(parts) if parts is not None else [method("bm25")(), method("dense")()]
        self._new: set[str] = set()
        if not self._parts:
            raise BadModel("hybrid needs at least one retriever to fuse; hand it some")
        for weights in (self.options.weights, self.options.new_weights):
            if weights and len(weights) != len(self._parts):
                raise BadModel(f"hybrid has {len(weights)} weights for {len(self._parts)} parts; give one for each")

    @property
    def parts(self) -> Sequence[Retriever]:
        """The parts, in order."""
        return self._parts

    # Tools.

    @property
    def names(self) -> ExactNames:
        """The names that the first part knows."""
        return self._parts[0].names

    def __len__(self) -> int:
        """How many tools at least one part can find."""
        return max(len(part) for part in self._parts)

    def ids(self) -> list[str]:
        """The ids of all tools that any part has."""
        return list(dict.fromkeys(tool_id for part in self._parts for tool_id in part.ids()))

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Hand tools to every part."""
        for part in self._parts:
            part.add(tools, vectors)
        if self.trained_on.tools:
            self._new.difference_update(tool.id for tool in tools)
            self._new |= {tool.id for tool in tools if tool.digest() not in self.trained_on.tools}

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools from every part."""
        self._new.difference_update(ids)
        for part in self._parts:
            part.remove(ids)

    def learn(self, examples: Sequence[Example], vectors: Mapping[str, Floats] | None = None) -> None:
        """Hand feedback to every part."""
        for part in self._parts:
            part.learn(examples, vectors)

    @property
    def encoder(self) -> TextEncoder | None:
        """The encoder of the first part that has one."""
        return next((encoder for part in self._parts if (encoder := part.encoder) is not None), None)

    def use_encoder(self, encoder: TextEncoder) -> None:
        """Share this encoder among the parts; a request is encoded once for all of them."""
        super().use_encoder(SharedEncoder(encoder))

    def pending(self, scope: Scope = EVERYTHING) -> int:
        """How many tools are pending in some part."""
        return max(part.pending(scope) for part in self._parts)

    def without_id(self, scope: Scope = EVERYTHING) -> int:
        """How many tools some part has no id for."""
        return max(part.without_id(scope) for part in self._parts)

    def take_vectors(self, vectors: Vectors) -> None:
        """Hand vectors to every part."""
        for part in self._parts:
            part.take_vectors(vectors)

    def optimise(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Prepare the parts that have many vectors."""
        prepared = [part.optimise(stopped) for part in self._parts]
        return any(prepared)

    def best_similarities(self, vectors: Floats, scope: Scope = EVERYTHING) -> Floats:
        """The highest cosine over the parts that compare vectors."""
        found = [part.best_similarities(vectors, scope) for part in self._parts]
        found = [similarities for similarities in found if len(similarities)]
        return np.max(found, axis=0) if found else np.empty(0, dtype=np.float32)

    def changes(self) -> int:
        """The sum of the changes of the parts."""
        return sum(part.changes() for part in self._parts)

    # Search.

    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        """Fuse full rankings, keep the allowed tools, and add lower-ranked ones where fewer than k are left."""
        check_k(k)
        found = zip(requests, self.rankings(requests, scope), strict=True)
        return [self._fuse(request, rankings, k, scope) for request, rankings in found]

    @property
    def ranks_together(self) -> bool:
        """Whether all parts are quicker so."""
        return all(part.ranks_together for part in self._parts)

    def rankings(self, requests: Sequence[str], scope: Scope = EVERYTHING) -> list[list[Ranking]]:
        """For each request, the full ranking of each part; the parts work in parallel.

        A request that is only the name of a tool is ranked by the first part alone, which is exact and fastest. The
        other parts get the request with the spelling corrected by the first part.
        """
        first, scope, depth = self._parts[0], scope.of_all(), self.options.depth
        others = [i for i, request in enumerate(requests) if not self.names.is_name(request, scope.sees)]
        texts = [first.corrected(requests[i], scope) for i in others]
        beside = [WORKER_THREADS.submit(_rank, part, texts, depth, scope) for part in self._parts[1:-1] if texts]
        lead = WORKER_THREADS.submit(_rank, first, requests, depth, scope) if texts and len(self._parts) > 1 else None
        last = [_rank(self._parts[-1], texts, depth, scope)] if lead else []
        rankings = [[one] for one in (lead.result() if lead else _rank(first, requests, depth, scope))]
        for searched in [*(future.result() for future in beside), *last]:
            for i, ranking in zip(others, searched, strict=True):
                rankings[i].append(ranking)
        return rankings

    def _fuse(self, request: str, rankings: list[Ranking], k: int, scope: Scope) -> Ranking:
        """The fused ranking of one request, given the full rankings of the parts."""
        return Ranking(
            request,
            scope,
            self._best(request, rankings, k, scope),
            vector=next((one.vector for one in rankings if one.vector is not None), None),
            need=next((one.need for one in rankings if one.need is not None), None),
            queries=tuple(dict.fromkeys(query for one in rankings for query in one.queries)),
            notes=tuple(dict.fromkeys(note for one in rankings for note in one.notes)),
            cost=Cost.total(one.cost for one in rankings),
            named={tool_id: text for one in reversed(rankings) for tool_id, text in (one.named or {}).items()},
            evidence=rankings,
        )

    def extend(self, ranking: Ranking, k: int, scope: Scope) -> Pairs:
        """The best k of the tools allowed, for a ranked request; it is ranked again only for another caller."""
        if not scope.same_caller(ranking.scope):
            return super().extend(ranking, k, scope)
        return self._best(ranking.request, ranking.evidence, k, scope)

    def _best(self, request: str, rankings: list[Ranking], k: int, scope: Scope) -> Pairs:
        scores = self._fused([one.pairs for one in rankings])
        if scope.allowed is not None:
            scores = {tool_id: score for tool_id, score in scores.items() if scope.permits(tool_id)}
        below = self._below(scores, request, rankings, k, scope)
        best = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
        if scope.allowed is None:
            return best
        return self._own_scores(best, [one.pairs for one in rankings], below, scope.allowed)

    def _below(
        self, scores: dict[str, float], request: str, rankings: Sequence[Ranking], k: int, scope: Scope
    ) -> dict[int, Pairs]:
        """Add tools below the fused ones, with negative scores, until there are k. Returns the parts' rankings used."""
        position, found = 0, dict[int, Pairs]()
        for index, part in reversed(list(enumerate(self._parts))):
            if len(scores) < k:
                if index < len(rankings):
                    found[index] = part.extend(rankings[index], k, scope)
                else:  # a bare name, which the first part alone has looked up
                    found[index] = _rank(part, [self._parts[0].corrected(request, scope)], k, scope)[0].pairs
                for tool_id, _ in found[index]:
                    if tool_id not in scores:
                        position += 1
                        scores[tool_id] = -float(position)
        return found

    def _own_scores(
        self, best: Pairs, rankings: Sequence[Pairs], below: Mapping[int, Pairs], allowed: Allowed
    ) -> Pairs:
        """The same tools in the same order, with scores as if only the allowed tools existed.

        Scores relative to the best tool of all would reveal hidden tools. Where these scores contradict the order, a
        score is set slightly below the one before it.
        """
        own = []
        for index in range(len(self._parts)):
            ranking = rankings[index] if index < len(rankings) else []
            seen = {i: score for i, score in ranking if allowed.permits(i)} | dict(below.get(index, ()))
            own.append(sorted(seen.items(), key=lambda pair: (-pair[1], pair[0])))
        scores = self._fused(own, allowed)
        return falling((tool_id, scores[tool_id]) for tool_id, _ in best)

    def _fused(self, rankings: Sequence[Pairs], allowed: Allowed | None = None) -> dict[str, float]:
        """The fused score of every ranked tool. `allowed`: the tools that the rankings are restricted to."""
        bonus = self.options.new_bonus
        scores = {i: bonus if bonus and i in self._new else 0.0 for ranking in rankings for i, _ in ranking}
        named: set[str] = set()
        for index, ranking in enumerate(rankings):  # a bare name has the first ranking alone
            named |= {tool_id for tool_id, score in ranking if score >= EXACT_BONUS}
            if self.options.fusion == "rrf":
                for rank, (tool_id, _) in enumerate(ranking, 1):
                    scores[tool_id] += 1 / (self.options.constant + rank)
            else:
                self._add_scores(index, ranking, scores, allowed)
        for tool_id in named:
            scores[tool_id] += EXACT_BONUS
        return scores

    def _add_scores(self, index: int, ranking: Pairs, scores: dict[str, float], allowed: Allowed | None) -> None:
        """Add a part's relative scores, times its weight, to `scores`."""
        relative = relative_scores(self._parts[index], ranking, self.options.depth, allowed)
        if relative is None:
            return
        own, last = relative
        weight = (
            self.options.weights[index] if self.options.weights else _DEFAULT_WEIGHTS.get(self._parts[index].name, 1.0)
        )
        new_weight = self.options.new_weights[index] if self.options.new_weights else weight
        new, relative_to = self._new, own.get
        for tool_id, score in scores.items():
            scores[tool_id] = score + (new_weight if tool_id in new else weight) * relative_to(tool_id, last)

    def explain(self, ranking: Ranking, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        """The reasons of all parts that ranked the request, each once."""
        reasons: list[dict[Reason, None]] = [{} for _ in ids]
        for part, own in zip(self._parts, ranking.evidence, strict=False):
            for known, few in zip(reasons, part.explain(own, ids), strict=True):
                known.update(dict.fromkeys(few))
        return [tuple(few) for few in reasons]

    # Training and files.

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Train the parts that are trainable and untrained, then learn the fusion weights on dev.

        Raises BadDataset if no dataset has a dev split.
        """
        if not any(one.dev for one in data):
            raise BadDataset(
                "hybrid learns its weights on dev splits, and no dataset has one; name one: DATA:TRAIN:DEV"
            )
        started = time.perf_counter()
        report = FitReport(0.0, "cpu", 0, {})
        untrained = [pair for pair in zip(self._part_folders(), self._parts, strict=True) if pair[1].fit_record is None]
        self.remove(self.ids())  # tools can be encoded again with another encoder, learned requests cannot
        check_encoders(self._parts, [part for _, part in untrained])
        share_encoder(self._parts)
        # The part that trains an encoder goes first, since the others use it.
        for name, part in sorted(untrained, key=lambda pair: not pair[1].trains_encoder):
            if part.trainable:
                report = joined(report, part.fit(data, folder / name, progress))
                share_encoder(self._parts)
        seen = TrainedOn.of(data)
        for part in self._parts:
            seen |= seen_by(part)
        self.trained_on = seen
        weighed = time.perf_counter()
        fusion = learn_weights(self._parts, self._full, data, seen.tools, self.options.depth, progress)
        self.options = replace(self.options, fusion="scores", **asdict(fusion.weights))
        own = FitReport(time.perf_counter() - weighed, "cpu", fusion.count, fusion.dev)
        self.fit_record = asdict(own)  # the parts have their own records
        self.remove(self.ids())
        self.save(folder)
        return replace(joined(report, own), seconds=time.perf_counter() - started)

    def _full(self, requests: Sequence[str]) -> list[list[Pairs]]:
        return [[one.pairs for one in rankings] for rankings in self.rankings(requests)]

    def _part_folders(self) -> list[str]:
        return [f"{index}-{part.name}" for index, part in enumerate(self._parts)]

    def save(self, folder: Path) -> None:
        """Write each part into a folder of its own."""
        self.begin_save(folder)()

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Begin to save each part; what is returned finishes them."""
        names, new = self._part_folders(), self._new.copy()
        parts = [part.begin_save(folder / name) for name, part in zip(names, self._parts, strict=True)]

        def finish() -> None:
            for finish_part in parts:
                finish_part()
            if self.trained_on.splits:
                self.trained_on.save(folder)
            write_new(folder, new)
            write_model(folder, self, parts={name: part.name for name, part in zip(names, self._parts, strict=True)})

        return finish

    @classmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        """Open a saved hybrid; its parts share one encoder."""
        model = read_model(folder)
        try:
            names = sorted(model.get("parts", {}), key=lambda name: int(name.partition("-")[0]))
        except ValueError as error:
            raise BadModel(f"{folder} does not say what its parts are ({error}); build the index again") from None
        loaded = cls(read_options(HybridOptions, model), load_parts([folder / name for name in names], encoder))
        loaded.trained_on, loaded.fit_record = TrainedOn.load(folder), model.get("fit")
        loaded._new = read_new(folder)
        return loaded


def _rank(part: Retriever, requests: Sequence[str], k: int, scope: Scope) -> list[Ranking]:
    """Rank with a part, and put the tools that a request names first."""
    rankings = part.rank(requests, k, scope)
    for ranking in rankings:
        part.put_named_first(ranking, k)
    return rankings
