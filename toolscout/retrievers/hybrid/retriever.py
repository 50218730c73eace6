"""hybrid: fuses the rankings of the retrievers it is handed, by their scores or by their ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from toolscout.core.answer import Allowed, Example, Hit, Reason
from toolscout.core.arrays import Floats
from toolscout.core.tool import Searchable
from toolscout.errors import BadDataset, BadModel, MissingEncoder
from toolscout.index.exact_names import EXACT_BONUS
from toolscout.index.worker_threads import HELPERS
from toolscout.retrievers import showing
from toolscout.retrievers.base import (
    Embedded,
    FitProgress,
    FitReport,
    Foresighted,
    Gauged,
    Options,
    Pairs,
    Retriever,
    Speller,
    TextEncoder,
    Trainable,
    TrainedOn,
    TrainingSet,
    Vectors,
    check_k,
    hits_of,
    read_model,
    read_new,
    read_options,
    write_model,
    write_new,
)
from toolscout.retrievers.hybrid.fusion import (
    check_encoders,
    joined,
    learn_weights,
    load_parts,
    relative_scores,
    share_encoder,
)
from toolscout.retrievers.kinds import keeps
from toolscout.retrievers.registry import method
from toolscout.retrievers.showing import Caller, Costs, Reasons, Told

# What a part counts where nothing was learned: vectors of the default encoder beside words, by
# recipes/hybrid_weights.py.
_USUAL = {"dense": 1.56}
_SPELT_KEPT = 7
_TRIFLE = 1e-6


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

    Tools are ordered as in the full catalogue, whoever asks: fusing the rankings of what one caller may see would
    change the order of the tools that are left. The scores that such a caller gets are relative to the best of its own
    tools. Below the fused depth, tools follow in the order of the last part (by default the one that ranks everything).
    """

    name: ClassVar[str] = "hybrid"

    def __init__(self, options: HybridOptions | None = None, parts: Sequence[Retriever] | None = None) -> None:
        """Fuse these parts; without any, words and vectors."""
        self.options = options or HybridOptions()
        self.parts = list(parts) if parts is not None else [method("bm25")(), method("dense")()]
        self._spelt: dict[tuple[str, Allowed | None], str] = {}
        self._seen = TrainedOn()
        self._fit: dict[str, Any] | None = None
        self._new: set[str] = set()
        if not self.parts:
            raise BadModel("hybrid needs at least one retriever to fuse; hand it some")
        for weights in (self.options.weights, self.options.new_weights):
            if weights and len(weights) != len(self.parts):
                raise BadModel(f"hybrid has {len(weights)} weights for {len(self.parts)} parts; give one for each")
        if any(map(showing.tells, self.parts)):  # of the object: one over words and vectors alone has nothing to tell
            self.told = self._told

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
        found = [part.best_cosines(vectors, allowed) for part in self.parts if keeps(part, Gauged)]
        found = [cosines for cosines in found if len(cosines)]
        return np.max(found, axis=0) if found else np.empty(0, dtype=np.float32)

    @property
    def language_parameters(self) -> int:
        """Those of all parts that have a language model."""
        return sum(getattr(part, "language_parameters", 0) for part in self.parts)

    def wait_longer(self) -> None:
        """Have the parts rather wait for their language models than go on without them."""
        showing.wait_longer(self.parts)

    def take_costs(self) -> Costs:
        """What the language models of all parts were asked since this was last called."""
        return showing.take_costs(self.parts)

    def _told(self, request: str, allowed: Allowed | None = None) -> Told:
        """What the parts asked for a request that was searched just now, and why they did not."""
        return showing.all_told(showing.told(part, self._asked(part, request, allowed), allowed) for part in self.parts)

    def rank_ahead(self, requests: Sequence[str], k: int) -> None:
        """Have the parts that can rank all requests together."""
        for part in self.parts:
            if isinstance(part, Foresighted):
                asked = [self._asked(part, request, None) for request in requests]
                part.rank_ahead(asked, max(k, self.options.depth))

    def moved(self) -> int:
        """What has moved in any part."""
        return sum(getattr(part, "moved", int)() for part in self.parts)  # asked per request: no isinstance, it is slow

    def request_vector(self, request: str) -> Floats:
        """The unit vector of a request, spelt right, as the part that has an encoder searched it."""
        return self.request_vector_for(Caller(), request)

    def request_vector_for(self, caller: Caller, request: str) -> Floats:
        """The same of a request as it was searched for a caller."""
        for part in self.parts:
            asked = self._asked(part, request, caller.sees)
            if keeps(part, Embedded):
                return showing.request_vector(part, caller, asked)
        raise MissingEncoder("no part of this hybrid uses vectors")

    def need(self, requests: Sequence[str]) -> list[float] | None:
        """What the first part that can tell says; None where no part can."""
        return self.need_for(Caller(), requests)

    def need_for(self, caller: Caller, requests: Sequence[str]) -> list[float] | None:
        """The same of requests as they were searched for a caller."""
        for part in self.parts:
            found = showing.need(part, caller, [self._asked(part, text, caller.sees) for text in requests])
            if found is not None:
                return found
        return None

    def _embedded(self) -> list[Embedded]:
        return [part for part in self.parts if keeps(part, Embedded)]

    def search(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[list[Hit]]:
        """Fuse full rankings, keep what is allowed, and go on below them where that leaves fewer than k."""
        check_k(k)
        caller = Caller(allowed)
        ranked = zip(requests, self.rankings(requests, caller), strict=True)
        return [self._fuse(caller, request, rankings, k, allowed) for request, rankings in ranked]

    def rank(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """What search ranks, without reasons."""
        return self.rank_for(Caller(allowed), requests, k, allowed)

    def rank_for(self, caller: Caller, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """The same for a caller: what is ranked may be more than what a model is shown."""
        check_k(k)
        ranked = zip(requests, self.rankings(requests, caller), strict=True)
        return [self._best(caller, request, rankings, k, allowed) for request, rankings in ranked]

    def _fuse(self, caller: Caller, request: str, rankings: list[Pairs], k: int, allowed: Allowed | None) -> list[Hit]:
        """The answer to one request, given the full ranking of each part that was asked."""
        best = self._best(caller, request, rankings, k, allowed)
        return hits_of(best, self._reasons(caller, request, [i for i, _ in best], self.parts[: len(rankings)]))

    def _best(self, caller: Caller, request: str, rankings: list[Pairs], k: int, allowed: Allowed | None) -> Pairs:
        scores = self._fused(rankings)
        if allowed is not None:
            scores = {tool_id: score for tool_id, score in scores.items() if allowed.permits(tool_id)}
        below = self._extend(scores, caller.later(), request, k, allowed)
        best = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
        return best if allowed is None else self._own_scores(best, rankings, below, allowed)

    def _own_scores(
        self, best: Pairs, rankings: Sequence[Pairs], below: Mapping[int, Pairs], allowed: Allowed
    ) -> Pairs:
        """The same tools in the same order, with scores as if there were no others than those allowed.

        Relative to the best tool of all, low scores would say that a better one exists; places below the fused depth,
        how many. Where the order is another than these scores would give, a score is a trifle below the one before.
        """
        own = []
        for index in range(len(self.parts)):
            ranking = rankings[index] if index < len(rankings) else []
            seen = {i: score for i, score in ranking if allowed.permits(i)} | dict(below.get(index, ()))
            own.append(sorted(seen.items(), key=lambda pair: (-pair[1], pair[0])))
        scores, shown = self._fused(own, allowed), Pairs()
        last, least = "", math.inf
        for tool_id, _ in best:
            in_order = (-least, last) < (-scores[tool_id], tool_id)  # ties are in the order of ids
            last, least = tool_id, scores[tool_id] if in_order else least - _TRIFLE
            shown.append((tool_id, least))
        return shown

    def why(self, request: str, ids: Sequence[str]) -> Reasons:
        """The reasons of all parts; of the first alone where the request is nothing but a name."""
        return self.why_for(Caller(), request, ids)

    def why_for(self, caller: Caller, request: str, ids: Sequence[str]) -> Reasons:
        """The same for a caller for whom they were ranked."""
        return self._reasons(caller, request, ids, self.parts[:1] if self.is_name_for(caller, request) else self.parts)

    def _reasons(self, caller: Caller, request: str, ids: Sequence[str], parts: Sequence[Retriever]) -> Reasons:
        reasons: list[dict[Reason, None]] = [{} for _ in ids]
        for part in parts:
            found = showing.why(part, caller, self._asked(part, request, caller.sees), ids)
            for known, few in zip(reasons, found, strict=True):
                known.update(dict.fromkeys(few))
        return [tuple(few) for few in reasons]

    def is_name(self, request: str) -> bool:
        """Whether the request is nothing but the name of a tool."""
        return self.is_name_for(Caller(), request)

    def is_name_for(self, caller: Caller, request: str) -> bool:
        """Whether the request is nothing but the name of a tool that the caller sees."""
        return showing.is_name(self.parts[0], caller, request)

    def explain(self, request: str, hits: Sequence[Hit]) -> list[Hit]:
        """Every part adds its reasons."""
        return self.explain_for(Caller(), request, hits)

    def explain_for(self, caller: Caller, request: str, hits: Sequence[Hit]) -> list[Hit]:
        """The same for a caller."""
        explained = list(hits)
        for part in self.parts:
            explained = showing.explain(part, caller, request, explained)
        return explained

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Train the parts that can learn and have not yet, then learn on dev what each of them counts."""
        if not any(one.dev for one in data):
            raise BadDataset(
                "hybrid learns its weights on dev splits, and no dataset has one; name one: DATA:TRAIN:DEV"
            )
        started = time.perf_counter()
        report = FitReport(0.0, "cpu", 0, {})
        untrained = [pair for pair in zip(self._names(), self.parts, strict=True) if not getattr(pair[1], "_fit", None)]
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
        try:
            names = sorted(model.get("parts", {}), key=lambda name: int(name.partition("-")[0]))
        except ValueError as error:
            raise BadModel(f"{folder} does not say what its parts are ({error}); build the index again") from None
        loaded = cls(read_options(HybridOptions, model), load_parts([folder / name for name in names]))
        loaded._seen, loaded._fit = TrainedOn.load(folder), model.get("fit")
        loaded._new = read_new(folder)
        return loaded

    def rankings(self, requests: Sequence[str], caller: Caller | None = None) -> list[list[Pairs]]:
        """For each request the full ranking of each part, all parts at work at once.

        The bare name of a tool that the caller sees is looked up by the first part alone: no other knows better, and
        none is as fast.
        """
        first, caller = self.parts[0], caller or Caller()
        others = [i for i, request in enumerate(requests) if not self.is_name_for(caller, request)]
        asked = [self._corrected(requests[i], caller.sees) for i in others]
        depth = self.options.depth
        beside = [HELPERS.submit(showing.rank, part, caller, asked, depth) for part in self.parts[1:-1] if asked]
        lead = HELPERS.submit(showing.rank, first, caller, requests, depth) if asked and len(self.parts) > 1 else None
        last = [showing.rank(self.parts[-1], caller, asked, depth)] if lead else []
        rankings = [[ranking] for ranking in (lead.result() if lead else showing.rank(first, caller, requests, depth))]
        for searched in [*(future.result() for future in beside), *last]:
            for i, ranking in zip(others, searched, strict=True):
                rankings[i].append(ranking)
        return rankings

    def _asked(self, part: Retriever, request: str, sees: Allowed | None) -> str:
        """The request as a part gets it from one who sees these tools."""
        return request if part is self.parts[0] else self._corrected(request, sees)

    def _corrected(self, request: str, sees: Allowed | None) -> str:
        """The request as the parts behind the first get it: spelt right, where the first part knows how."""
        first = self.parts[0]
        if not keeps(first, Speller):
            return request
        kept, key = self._spelt, (request, sees)
        if key not in kept:
            # Another dict, not a changed one: other threads read it meanwhile, and ask for theirs several times too.
            kept = self._spelt = {**dict(list(kept.items())[-_SPELT_KEPT:]), key: first.corrected(request, sees)}
        return kept[key]

    def _fused(self, rankings: Sequence[Pairs], allowed: Allowed | None = None) -> dict[str, float]:
        """What the rankings of the parts, of all tools or of those allowed, add up to."""
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
        """Scores relative to the best, by what the part counts."""
        relative = relative_scores(self.parts[index], ranking, self.options.depth, allowed)
        if relative is None:
            return
        own, last = relative
        weight = self.options.weights[index] if self.options.weights else _USUAL.get(self.parts[index].name, 1.0)
        new_weight = self.options.new_weights[index] if self.options.new_weights else weight
        new, relative_to = self._new, own.get
        for tool_id, score in scores.items():
            scores[tool_id] = score + (new_weight if tool_id in new else weight) * relative_to(tool_id, last)

    def _extend(
        self, scores: dict[str, float], caller: Caller, request: str, k: int, allowed: Allowed | None
    ) -> dict[int, Pairs]:
        """Give what comes below the fused tools scores below theirs, until there are k; the rankings of the parts."""
        position, found = 0, dict[int, Pairs]()
        for index, part in reversed(list(enumerate(self.parts))):
            if len(scores) < k:
                asked = self._asked(part, request, caller.sees)
                found[index] = showing.rank(part, caller, [asked], k, allowed)[0]
                for tool_id, _ in found[index]:
                    if tool_id not in scores:
                        position += 1
                        scores[tool_id] = -float(position)
        return found
