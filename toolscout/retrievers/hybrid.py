"""hybrid: fuses the rankings of the retrievers it is handed, by their scores or by their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

from toolscout.answer import Allowed, ExactName, Example, Hit, Reason
from toolscout.errors import BadModel, MissingEncoder
from toolscout.retrievers._names import EXACT_BONUS
from toolscout.retrievers.base import (
    Embedded,
    Options,
    Retriever,
    TextEncoder,
    Vectors,
    check_k,
    load_model,
    method,
    read_model,
    read_options,
    write_model,
)
from toolscout.tool import Searchable


@dataclass(frozen=True, slots=True)
class HybridOptions(Options):
    """How rankings are fused.

    `fusion`: "scores" adds up each part's scores relative to its best one; "rrf" is reciprocal rank fusion with
    `constant`. `depth`: how far down each ranking is fused.
    """

    fusion: Literal["scores", "rrf"] = "scores"
    constant: int = 60
    depth: int = 100

    def __post_init__(self) -> None:
        """Refuse what cannot be fused."""
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
        if not self.parts:
            raise BadModel("hybrid needs at least one retriever to fuse; hand it some")

    def __len__(self) -> int:
        """How many tools at least one part can find."""
        return max(len(part) for part in self.parts)

    def ids(self) -> list[str]:
        """The ids of all tools that any part has."""
        return list(dict.fromkeys(tool_id for part in self.parts for tool_id in part.ids()))

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Hand tools to every part."""
        for part in self.parts:
            part.add(tools, vectors)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools from every part."""
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

    def waiting(self) -> int:
        """How many tools some part cannot find yet."""
        return max((part.waiting() for part in self._embedded()), default=0)

    def arrived(self, vectors: Vectors) -> None:
        """Hand vectors to the parts that wait for them."""
        for part in self._embedded():
            part.arrived(vectors)

    def build_graph(self) -> bool:
        """Prepare the parts that have many vectors."""
        built = [part.build_graph() for part in self._embedded()]
        return any(built)

    def _embedded(self) -> list[Embedded]:
        return [part for part in self.parts if isinstance(part, Embedded)]

    def search(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[list[Hit]]:
        """Fuse full rankings, keep what is allowed, and go on below them where that leaves fewer than k."""
        check_k(k)
        rankings = self._rankings(requests)
        return [self._answer(request, ranked, k, allowed) for request, ranked in zip(requests, rankings, strict=True)]

    def explain(self, request: str, hits: Sequence[Hit]) -> list[Hit]:
        """Every part adds its reasons."""
        explained = list(hits)
        for part in self.parts:
            explained = part.explain(request, explained)
        return explained

    def save(self, folder: Path) -> None:
        """Write each part into a folder of its own."""
        names = [f"{index}-{part.name}" for index, part in enumerate(self.parts)]
        write_model(folder, self, parts={name: part.name for name, part in zip(names, self.parts, strict=True)})
        for name, part in zip(names, self.parts, strict=True):
            part.save(folder / name)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open every part."""
        model = read_model(folder)
        parts = sorted(model["parts"], key=lambda name: int(name.partition("-")[0]))
        return cls(read_options(HybridOptions, model), [load_model(folder / name) for name in parts])

    def _rankings(self, requests: Sequence[str]) -> list[list[list[Hit]]]:
        """For each request the full ranking of each part. A bare name is looked up by the first part alone."""
        first = self.parts[0].search(requests, self.options.depth)
        rankings = [[ranking] for ranking in first]
        others = [i for i, ranking in enumerate(first) if not _is_name(requests[i], ranking)]
        for part in self.parts[1:]:
            searched = part.search([requests[i] for i in others], self.options.depth)
            for i, ranking in zip(others, searched, strict=True):
                rankings[i].append(ranking)
        return rankings

    def _answer(self, request: str, rankings: list[list[Hit]], k: int, allowed: Allowed | None) -> list[Hit]:
        scores = self._fused(rankings)
        if allowed is not None:
            scores = {tool_id: score for tool_id, score in scores.items() if allowed.permits(tool_id)}
        if len(scores) < k:
            rankings = rankings + self._below(request, scores, k, allowed)
        best = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
        reasons: dict[str, dict[Reason, None]] = {tool_id: {} for tool_id, _ in best}
        for ranking in rankings:
            for hit in ranking:
                if hit.tool_id in reasons:
                    reasons[hit.tool_id].update(dict.fromkeys(hit.reasons))
        return [Hit(tool_id, score, tuple(reasons[tool_id])) for tool_id, score in best]

    def _fused(self, rankings: Sequence[Sequence[Hit]]) -> dict[str, float]:
        scores = dict.fromkeys((hit.tool_id for ranking in rankings for hit in ranking), 0.0)
        for part, ranking in zip(self.parts, rankings, strict=False):  # a bare name has the first ranking alone
            if self.options.fusion == "rrf":
                for rank, hit in enumerate(ranking, 1):
                    scores[hit.tool_id] += 1 / (self.options.constant + rank)
            else:
                self._add_scores(part, ranking, scores)
        for tool_id in {hit.tool_id for ranking in rankings for hit in ranking if hit.score >= EXACT_BONUS}:
            scores[tool_id] += EXACT_BONUS
        return scores

    def _add_scores(self, part: Retriever, ranking: Sequence[Hit], scores: dict[str, float]) -> None:
        """Scores relative to the best. A tool that is missing because the ranking is cut, or because it still waits
        for its vector, is credited with the last score: all that is known of its own."""
        own = {hit.tool_id: hit.score % EXACT_BONUS if hit.score > 0 else 0.0 for hit in ranking}
        best = max(own.values(), default=0.0)
        if best > 0:
            partial = len(ranking) >= self.options.depth or (isinstance(part, Embedded) and part.waiting() > 0)
            last = min(own.values()) if partial else 0.0
            for tool_id in scores:
                scores[tool_id] += own.get(tool_id, last) / best

    def _below(self, request: str, scores: dict[str, float], k: int, allowed: Allowed | None) -> list[list[Hit]]:
        """Give what comes below the fused tools scores below theirs, until there are k."""
        rankings = []
        position = 0
        for part in reversed(self.parts):
            if len(scores) < k:
                ranking = part.search([request], k, allowed)[0]
                rankings.append(ranking)
                for hit in ranking:
                    if hit.tool_id not in scores:
                        position += 1
                        scores[hit.tool_id] = -float(position)
        return rankings


def _is_name(request: str, ranking: Sequence[Hit]) -> bool:
    """Whether the request is nothing but the name of the best hit."""
    return any(
        isinstance(reason, ExactName) and reason.name == request.strip()
        for hit in ranking[:1]
        for reason in hit.reasons
    )
