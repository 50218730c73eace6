"""hybrid: fuses the rankings of the retrievers it is handed, by their scores or by their ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from toolscout.answer import Allowed, Example, Hit, Reason
from toolscout.errors import BadDataset, BadModel, MissingEncoder
from toolscout.retrievers._fusion import (
    check_encoders,
    joined,
    learn_weights,
    load_parts,
    relative_scores,
    share_encoder,
)
from toolscout.retrievers._helpers import HELPERS
from toolscout.retrievers._kinds import keeps
from toolscout.retrievers._names import EXACT_BONUS
from toolscout.retrievers.base import (
    Embedded,
    FitProgress,
    FitReport,
    Floats,
    Foresighted,
    Gauged,
    Needing,
    Options,
    Pairs,
    Ranker,
    Retriever,
    Speller,
    TextEncoder,
    Trainable,
    TrainedOn,
    TrainingSet,
    Vectors,
    check_k,
    method,
    read_model,
    read_new,
    read_options,
    write_model,
    write_new,
)
from toolscout.tool import Searchable

# What a part counts where nothing was learned: vectors of the default encoder beside words, by runs/weights.py.
_USUAL = {"dense": 1.43}
_SPELT_KEPT = 7


@dataclass(frozen=True, slots=True)
class HybridOptions(Options):
    """How rankings are fused.

    `fusion`: "scores" adds up each part's scores relative to its best one; "rrf" is reciprocal rank fusion with
    `constant`. `depth`: how far down each ranking is fused. `weights`: what each part's scores count, the usual where
    there are none; `new_weights` and `new_bonus`: the same for tools that are new to a model that was trained.
    `fit` learns the three on dev.
    """

    fusion: Literal["scores", "rrf"] = "scores"
    constant: int = 60
    depth: int = 100
    weights: tuple[float, ...] = ()
    new_weights: tuple[float, ...] = ()
    new_bonus: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be fused."""
        object.__setattr__(self, "weights", tuple(self.weights))  # json has lists
        object.__setattr__(self, "new_weights", tuple(self.new_weights))
        if self.fusion not in ("scores", "rrf") or self.depth < 1 or self.constant < 0:
            raise BadModel(f"fusion must be scores or rrf, depth at least 1 and constant at least 0, got {self}")


class Hybrid:
    """Fusion of full rankings.

    Scores and ranks are those of the full catalogue, whoever asks: fusing the rankings of what one caller may see would
    change the order of the tools that are left. Below the fused depth, tools follow in the order of the last part (by
    default the one that ranks everything).
    """

    name: ClassVar[str] = "hybrid"

    def __init__(self, options: HybridOptions | None = None, parts: Sequence[Retriever] | None = None) -> None:
        """Fuse these parts; without any, words and vectors."""
        self.options = options or HybridOptions()
        self.parts = list(parts) if parts is not None else [method("bm25")(), method("dense")()]
        self._spelt: dict[str, str] = {}
        self._seen = TrainedOn()
        self._fit: dict[str, Any] | None = None
        self._new: set[str] = set()
        if not self.parts:
            raise BadModel("hybrid needs at least one retriever to fuse; hand it some")
        for weights in (self.options.weights, self.options.new_weights):
            if weights and len(weights) != len(self.parts):
                raise BadModel(f"hybrid has {len(weights)} weights for {len(self.parts)} parts; give one for each")

    def __len__(self) -> int:
        """How many tools at least one part can find."""
        return max(len(part) for part in self.parts)

    def ids(self) -> list[str]:
        """The ids of all tools that any part has."""
        return list(dict.fromkeys(tool_id for part in self.parts for tool_id in part.ids()))

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Hand tools to every part."""
        self._spelt = {}
        for part in self.parts:
            part.add(tools, vectors)
        if self._seen.tools:
            self._new.difference_update(tool.id for tool in tools)
            self._new |= {tool.id for tool in tools if tool.digest() not in self._seen.tools}

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools from every part."""
        self._spelt = {}
        self._new.difference_update(ids)
        for part in self.parts:
            part.remove(ids)

    def learn(self, examples: Sequence[Example]) -> None:
        """Hand feedback to every part."""
        for part in self.parts:
            part.learn(examples)

    def open_encoder(self) -> TextEncoder:
        """The encoder of the part that has one."""
        for part in self._embedded():
            return part.open_encoder()
        raise MissingEncoder("no part of this hybrid uses vectors")

    def waiting(self, allowed: Allowed | None = None) -> int:
        """How many tools some part cannot find yet."""
        return max((part.waiting(allowed) for part in self._embedded()), default=0)

    def arrived(self, vectors: Vectors) -> None:
        """Hand vectors to the parts that wait for them."""
        for part in self._embedded():
            part.arrived(vectors)

    def build_graph(self) -> bool:
        """Prepare the parts that have many vectors."""
        built = [part.build_graph() for part in self._embedded()]
        return any(built)

    def best_cosines(self, vectors: Floats, allowed: Allowed | None = None) -> Floats:
        """The best of the parts that say how similar their hits are."""
        found = [part.best_cosines(vectors, allowed) for part in self._gauged()]
        found = [cosines for cosines in found if len(cosines)]
        return np.max(found, axis=0) if found else np.empty(0, dtype=np.float32)

    @property
    def language_parameters(self) -> int:
        """Those of all parts that have a language model."""
        return sum(getattr(part, "language_parameters", 0) for part in self.parts)

    def rank_ahead(self, requests: Sequence[str], k: int) -> None:
        """Have the parts that can rank all requests together."""
        for part in self.parts:
            if isinstance(part, Foresighted):
                part.rank_ahead([self._asked(part, request) for request in requests], max(k, self.options.depth))

    def moved(self) -> int:
        """What has moved in any part."""
        return sum(getattr(part, "moved", int)() for part in self.parts)  # asked per request: no isinstance, it is slow

    def request_vector(self, request: str) -> Floats:
        """The unit vector of a request, spelt right, as the part that has an encoder searched it."""
        for part in self.parts:
            asked = self._asked(part, request)
            if keeps(part, Embedded):
                return part.request_vector(asked)
        raise MissingEncoder("no part of this hybrid uses vectors")

    def need(self, requests: Sequence[str]) -> list[float] | None:
        """What the first part that can tell says; None where no part can."""
        for part in self.parts:
            asked = [self._asked(part, text) for text in requests]
            found = part.need(asked) if keeps(part, Needing) else None
            if found is not None:
                return found
        return None

    def _embedded(self) -> list[Embedded]:
        return [part for part in self.parts if keeps(part, Embedded)]

    def _gauged(self) -> list[Gauged]:
        return [part for part in self.parts if keeps(part, Gauged)]

    def search(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[list[Hit]]:
        """Fuse full rankings, keep what is allowed, and go on below them where that leaves fewer than k."""
        check_k(k)
        rankings = self.rankings(requests)
        return [self.fuse(request, ranked, k, allowed) for request, ranked in zip(requests, rankings, strict=True)]

    def rank(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """What search ranks, without reasons."""
        check_k(k)
        rankings = self.rankings(requests)
        return [self._best(request, ranked, k, allowed) for request, ranked in zip(requests, rankings, strict=True)]

    def fuse(self, request: str, rankings: list[Pairs], k: int, allowed: Allowed | None = None) -> list[Hit]:
        """The answer to one request, given the full ranking of each part."""
        best = self._best(request, rankings, k, allowed)
        # Who may not see the tool that a request names is answered as if there were none: by all parts.
        named = bool(best) and best[0][1] >= EXACT_BONUS
        reasons = self._reasons(request, [i for i, _ in best], self.parts[: len(rankings)] if named else self.parts)
        return [Hit(tool_id, score, why) for (tool_id, score), why in zip(best, reasons, strict=True)]

    def _best(self, request: str, rankings: list[Pairs], k: int, allowed: Allowed | None) -> Pairs:
        scores = self._fused(rankings)
        if allowed is not None:
            scores = {tool_id: score for tool_id, score in scores.items() if allowed.permits(tool_id)}
        if len(scores) < k:
            self._extend(scores, request, k, allowed)
        return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]

    def why(self, request: str, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        """The reasons of all parts; of the first alone where the request is nothing but a name."""
        return self._reasons(request, ids, self.parts[:1] if self.is_name(request) else self.parts)

    def _reasons(self, request: str, ids: Sequence[str], parts: Sequence[Retriever]) -> list[tuple[Reason, ...]]:
        reasons: list[dict[Reason, None]] = [{} for _ in ids]
        for part in parts:
            for known, why in zip(reasons, _why(part, self._asked(part, request), ids), strict=True):
                known.update(dict.fromkeys(why))
        return [tuple(why) for why in reasons]

    def is_name(self, request: str) -> bool:
        """Whether the request is nothing but the name of a tool."""
        first = self.parts[0]
        return keeps(first, Ranker) and first.is_name(request)

    def explain(self, request: str, hits: Sequence[Hit]) -> list[Hit]:
        """Every part adds its reasons."""
        explained = list(hits)
        for part in self.parts:
            explained = part.explain(request, explained)
        return explained

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Train the parts that can learn and have not yet, then learn on dev what each of them counts."""
        if not any(one.dev for one in data):
            raise BadDataset(
                "hybrid learns its weights on dev splits, and no dataset has one; name one: DATA:TRAIN:DEV"
            )
        started = time.perf_counter()
        report = FitReport(0.0, "cpu", 0, {})
        untrained = [pair for pair in zip(self._names(), self.parts, strict=True) if not _learned(pair[1])]
        self.remove(self.ids())  # vectors of tools can be made again, those of what was learned cannot
        check_encoders(self.parts, [part for _, part in untrained])
        share_encoder(self.parts)
        # The part that trains an encoder goes first, since the others use it.
        for name, part in sorted(untrained, key=lambda pair: not getattr(pair[1], "trains_encoder", False)):
            if isinstance(part, Trainable):
                report = joined(report, part.fit(data, folder / name, progress))
                share_encoder(self.parts)
        seen = TrainedOn.of(data)
        for part in self.parts:
            seen |= getattr(part, "_seen", TrainedOn())
        self._seen = seen
        weighed = time.perf_counter()
        fusion = learn_weights(self.parts, self.rankings, data, seen.tools, self.options.depth, progress)
        self.options = replace(self.options, fusion="scores", **asdict(fusion.weights))
        own = FitReport(time.perf_counter() - weighed, "cpu", fusion.count, fusion.dev)
        self._fit = asdict(own)  # what its parts took stands with them
        self.remove(self.ids())
        self.save(folder)
        return replace(joined(report, own), seconds=time.perf_counter() - started)

    def _names(self) -> list[str]:
        return [f"{index}-{part.name}" for index, part in enumerate(self.parts)]

    def save(self, folder: Path) -> None:
        """Write each part into a folder of its own."""
        names = self._names()
        for name, part in zip(names, self.parts, strict=True):
            part.save(folder / name)
        if self._seen.splits:
            self._seen.save(folder)
        write_new(folder, self._new)
        parts = {name: part.name for name, part in zip(names, self.parts, strict=True)}
        write_model(folder, self, parts=parts, **({"fit": self._fit} if self._fit else {}))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open every part; those that have no encoder of their own use that of the one that has."""
        model = read_model(folder)
        names = sorted(model["parts"], key=lambda name: int(name.partition("-")[0]))
        loaded = cls(read_options(HybridOptions, model), load_parts([folder / name for name in names]))
        loaded._seen, loaded._fit = TrainedOn.load(folder), model.get("fit")
        loaded._new = read_new(folder)
        return loaded

    def rankings(self, requests: Sequence[str]) -> list[list[Pairs]]:
        """For each request the full ranking of each part, all parts at work at once.

        A bare name is looked up by the first part alone: no other knows better, and none is as fast.
        """
        first = self.parts[0]
        others = [i for i, request in enumerate(requests) if not self.is_name(request)]
        asked = [self._corrected(requests[i]) for i in others]
        depth = self.options.depth
        beside = [HELPERS.submit(_rank, part, asked, depth) for part in self.parts[1:-1] if asked]
        lead = HELPERS.submit(_rank, first, requests, depth) if asked and len(self.parts) > 1 else None
        last = [_rank(self.parts[-1], asked, depth)] if lead else []
        rankings = [[ranking] for ranking in (lead.result() if lead else _rank(first, requests, depth))]
        for searched in [*(future.result() for future in beside), *last]:
            for i, ranking in zip(others, searched, strict=True):
                rankings[i].append(ranking)
        return rankings

    def _asked(self, part: Retriever, request: str) -> str:
        """The request as a part gets it."""
        return request if part is self.parts[0] else self._corrected(request)

    def _corrected(self, request: str) -> str:
        """The request as the parts behind the first get it: spelt right, where the first part knows how."""
        first = self.parts[0]
        if not keeps(first, Speller):
            return request
        kept = self._spelt
        if request not in kept:
            # Another dict, not a changed one: other threads read it meanwhile, and ask for theirs several times too.
            kept = self._spelt = {**dict(list(kept.items())[-_SPELT_KEPT:]), request: first.corrected(request)}
        return kept[request]

    def _fused(self, rankings: Sequence[Pairs]) -> dict[str, float]:
        bonus = self.options.new_bonus
        scores = {i: bonus if bonus and i in self._new else 0.0 for ranking in rankings for i, _ in ranking}
        named: set[str] = set()
        for index, ranking in enumerate(rankings):  # a bare name has the first ranking alone
            named |= {tool_id for tool_id, score in ranking if score >= EXACT_BONUS}
            if self.options.fusion == "rrf":
                for rank, (tool_id, _) in enumerate(ranking, 1):
                    scores[tool_id] += 1 / (self.options.constant + rank)
            else:
                self._add_scores(index, ranking, scores)
        for tool_id in named:
            scores[tool_id] += EXACT_BONUS
        return scores

    def _add_scores(self, index: int, ranking: Pairs, scores: dict[str, float]) -> None:
        """Scores relative to the best, by what the part counts."""
        relative = relative_scores(self.parts[index], ranking, self.options.depth)
        if relative is None:
            return
        own, last = relative
        weight = self.options.weights[index] if self.options.weights else _USUAL.get(self.parts[index].name, 1.0)
        new_weight = self.options.new_weights[index] if self.options.new_weights else weight
        new, relative_to = self._new, own.get
        for tool_id, score in scores.items():
            scores[tool_id] = score + (new_weight if tool_id in new else weight) * relative_to(tool_id, last)

    def _extend(self, scores: dict[str, float], request: str, k: int, allowed: Allowed | None) -> None:
        """Give what comes below the fused tools scores below theirs, until there are k."""
        position = 0
        for part in reversed(self.parts):
            if len(scores) < k:
                for tool_id, _ in _rank(part, [self._asked(part, request)], k, allowed)[0]:
                    if tool_id not in scores:
                        position += 1
                        scores[tool_id] = -float(position)


def _learned(part: Retriever) -> bool:
    return bool(getattr(part, "_fit", None))


def _rank(part: Retriever, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
    if keeps(part, Ranker):
        return part.rank(requests, k, allowed)
    return [[(hit.tool_id, hit.score) for hit in hits] for hits in part.search(requests, k, allowed)]


def _why(part: Retriever, request: str, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
    return part.why(request, ids) if keeps(part, Ranker) else [() for _ in ids]
