"""hybrid: fuses the rankings of the retrievers it is handed, by their scores or by their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

from toolscout.answer import Allowed, Example, Hit, Reason
from toolscout.errors import BadModel, MissingEncoder
from toolscout.retrievers._names import EXACT_BONUS
from toolscout.retrievers.base import (
    Embedded,
    Options,
    Pairs,
    Ranker,
    Retriever,
    Speller,
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

_HELPERS = ThreadPoolExecutor(thread_name_prefix="toolscout-hybrid")


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
        self._spelt: tuple[str, str] | None = None
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
        self._spelt = None
        for part in self.parts:
            part.add(tools, vectors)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools from every part."""
        self._spelt = None
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
        return [self.fuse(request, ranked, k, allowed) for request, ranked in zip(requests, rankings, strict=True)]

    def fuse(self, request: str, rankings: list[Pairs], k: int, allowed: Allowed | None = None) -> list[Hit]:
        """The answer to one request, given the full ranking of each part."""
        scores = self._fused(rankings)
        if allowed is not None:
            scores = {tool_id: score for tool_id, score in scores.items() if allowed.permits(tool_id)}
        if len(scores) < k:
            self._extend(scores, request, k, allowed)
        best = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
        reasons: list[dict[Reason, None]] = [{} for _ in best]
        for part in self.parts[: len(rankings)]:
            text = request if part is self.parts[0] else self._corrected(request)
            for known, why in zip(reasons, _why(part, text, [tool_id for tool_id, _ in best]), strict=True):
                known.update(dict.fromkeys(why))
        return [Hit(tool_id, score, tuple(why)) for (tool_id, score), why in zip(best, reasons, strict=True)]

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

    def _rankings(self, requests: Sequence[str]) -> list[list[Pairs]]:
        """For each request the full ranking of each part, all parts at work at once.

        A bare name is looked up by the first part alone: no other knows better, and none is as fast.
        """
        first = self.parts[0]
        others = [i for i, request in enumerate(requests) if not (isinstance(first, Ranker) and first.is_name(request))]
        asked = [self._corrected(requests[i]) for i in others]
        depth = self.options.depth
        beside = [_HELPERS.submit(_rank, part, asked, depth) for part in self.parts[1:-1] if asked]
        lead = _HELPERS.submit(_rank, first, requests, depth) if asked and len(self.parts) > 1 else None
        last = [_rank(self.parts[-1], asked, depth)] if lead else []
        rankings = [[ranking] for ranking in (lead.result() if lead else _rank(first, requests, depth))]
        for searched in [*(future.result() for future in beside), *last]:
            for i, ranking in zip(others, searched, strict=True):
                rankings[i].append(ranking)
        return rankings

    def _corrected(self, request: str) -> str:
        """The request as the parts behind the first get it: spelt right, where the first part knows how."""
        first = self.parts[0]
        if not isinstance(first, Speller):
            return request
        last = self._spelt
        if last is None or last[0] != request:
            last = self._spelt = (request, first.corrected(request))
        return last[1]

    def _fused(self, rankings: Sequence[Pairs]) -> dict[str, float]:
        scores = {tool_id: 0.0 for ranking in rankings for tool_id, _ in ranking}
        named: set[str] = set()
        for part, ranking in zip(self.parts, rankings, strict=False):  # a bare name has the first ranking alone
            named |= {tool_id for tool_id, score in ranking if score >= EXACT_BONUS}
            if self.options.fusion == "rrf":
                for rank, (tool_id, _) in enumerate(ranking, 1):
                    scores[tool_id] += 1 / (self.options.constant + rank)
            else:
                self._add_scores(part, ranking, scores)
        for tool_id in named:
            scores[tool_id] += EXACT_BONUS
        return scores

    def _add_scores(self, part: Retriever, ranking: Pairs, scores: dict[str, float]) -> None:
        """Scores relative to the best. A tool that is missing because the ranking is cut, or because it still waits
        for its vector, is credited with the last score: all that is known of its own."""
        own = {tool_id: score % EXACT_BONUS if score > 0 else 0.0 for tool_id, score in ranking}
        best = max(own.values(), default=0.0)
        if best > 0:
            partial = len(ranking) >= self.options.depth or (isinstance(part, Embedded) and part.waiting() > 0)
            last = min(own.values()) if partial else 0.0
            for tool_id in scores:
                scores[tool_id] += own.get(tool_id, last) / best

    def _extend(self, scores: dict[str, float], request: str, k: int, allowed: Allowed | None) -> None:
        """Give what comes below the fused tools scores below theirs, until there are k."""
        position = 0
        for part in reversed(self.parts):
            if len(scores) < k:
                text = request if part is self.parts[0] else self._corrected(request)
                for tool_id, _ in _rank(part, [text], k, allowed)[0]:
                    if tool_id not in scores:
                        position += 1
                        scores[tool_id] = -float(position)


def _rank(part: Retriever, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
    if isinstance(part, Ranker):
        return part.rank(requests, k, allowed)
    return [[(hit.tool_id, hit.score) for hit in hits] for hits in part.search(requests, k, allowed)]


def _why(part: Retriever, request: str, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
    return part.why(request, ids) if isinstance(part, Ranker) else [() for _ in ids]
