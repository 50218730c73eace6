"""The result of a search: ranked hits with reasons, and an answer that says whether any tool should be used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import uuid4

from toolscout.core.tool import namespace_of

Verdict = Literal["use", "no_tool_needed", "nothing_fits"]
Level = Literal["lenient", "balanced", "strict"]
"""How sure the verdict must be before tools are offered: each level offers tools less often than the one before it."""
_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class ExactName:
    """The request names the tool, or an alias of it, exactly."""

    name: str
    kind: Literal["exact_name"] = "exact_name"

    def __str__(self) -> str:
        """As shown to a person."""
        return f"names {self.name}"


@dataclass(frozen=True, slots=True)
class MatchedWords:
    """Words of the request that occur in the tool's document, the rarest in the catalogue first.

    `share`: their part of the request, from 0 to 1, each word weighted by how rare it is in the catalogue.
    """

    words: tuple[str, ...]
    share: float
    kind: Literal["matched_words"] = "matched_words"

    def __str__(self) -> str:
        """As shown to a person."""
        return "words: " + ", ".join(self.words)


@dataclass(frozen=True, slots=True)
class Similarity:
    """Cosine between the request's vector and the tool's."""

    cosine: float
    kind: Literal["similarity"] = "similarity"

    def __str__(self) -> str:
        """As shown to a person."""
        return f"meaning {self.cosine:.2f}"


@dataclass(frozen=True, slots=True)
class PastRequest:
    """A similar past request used the tool: the nearest such request, and its cosine similarity to this one.

    `request` is empty where the past request belongs to a tenant, since others may not read it.
    """

    request: str
    cosine: float
    kind: Literal["past_request"] = "past_request"

    def __str__(self) -> str:
        """As shown to a person."""
        shown = _shown(self.request)
        return f"used for “{shown}” {self.cosine:.2f}" if shown else f"used for a request like it {self.cosine:.2f}"


@dataclass(frozen=True, slots=True)
class RewrittenQuery:
    """The tool was found by a rewritten query, which a language model or a rule made of the request."""

    query: str
    kind: Literal["asked"] = "asked"

    def __str__(self) -> str:
        """As shown to a person."""
        return f"asked “{_shown(self.query)}”"


@dataclass(frozen=True, slots=True)
class Reranked:
    """A reranker read the request and the tool's document together; its score has no fixed range, higher is better."""

    score: float
    kind: Literal["reranked"] = "reranked"

    def __str__(self) -> str:
        """As shown to a person."""
        return f"reranked {self.score:.2f}"


Reason = ExactName | MatchedWords | Similarity | PastRequest | RewrittenQuery | Reranked
_IN_ORDER: tuple[type[Reason], ...] = (ExactName, Similarity, Reranked, PastRequest, RewrittenQuery, MatchedWords)


def in_order(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Return the reasons sorted by kind for display; those of one kind keep their order."""
    return tuple(sorted(reasons, key=lambda reason: _IN_ORDER.index(type(reason))))


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


@dataclass(frozen=True, slots=True)
class Hit:
    """One ranked tool. `score` has no fixed range: it can be compared only with other scores of the same answer."""

    tool_id: str
    score: float
    reasons: tuple[Reason, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        reasons = [{slot: getattr(reason, slot) for slot in reason.__slots__} for reason in self.reasons]
        return {"tool_id": self.tool_id, "score": self.score, "reasons": reasons}


@dataclass(frozen=True, slots=True)
class Cost:
    """How much a search used language models.

    `rewritten`: number of requests that were rewritten into queries. `calls`: conversations that were answered,
    `cached` of them from a cache. `price`: in the endpoint's currency, None where it is not known. `failed`:
    conversations without an answer; `problem` says why the last of them failed.
    """

    rewritten: int = 0
    calls: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    price: float | None = None
    failed: int = 0
    problem: str = ""

    def __add__(self, other: Cost) -> Cost:
        """Return the sum of both."""
        prices = [price for price in (self.price, other.price) if price is not None]
        return Cost(
            self.rewritten + other.rewritten,
            self.calls + other.calls,
            self.cached + other.cached,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            sum(prices) if prices else None,
            self.failed + other.failed,
            other.problem or self.problem,
        )

    @classmethod
    def total(cls, costs: Iterable[Cost | None]) -> Cost | None:
        """Return the sum of the costs that are not None; None where all are."""
        known = [cost for cost in costs if cost is not None]
        return sum(known[1:], known[0]) if known else None

    def to_dict(self) -> dict[str, int | float | str | None]:
        """Return the cost under the names that result files use."""
        found: dict[str, int | float | str | None] = {
            "llm_calls": self.calls,
            "llm_cached": self.cached,
            "llm_prompt_tokens": self.prompt_tokens,
            "llm_completion_tokens": self.completion_tokens,
            "llm_cost": None if self.price is None else round(self.price, 6),
            "llm_failed": self.failed,
            "rewritten": self.rewritten,
        }
        return found | ({"llm_problem": self.problem} if self.failed else {})


SEARCHED_ALONE = "the request alone was searched"
"""Begins the note of an answer whose language model failed; a colon and the reason follow."""


OTHER_LANGUAGE = "the request is not in"
"""Begins the note of an answer whose need cannot be told, since the need head does not know the request's language."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request.

    `hits`: the tools to use, empty unless the verdict is "use". `considered`: the best ranked tools, whatever the
    verdict. `need` (tool need): how similar the request is to requests that need a tool. `fit` (catalogue fit): how
    well the best tools match, compared with what an unrelated request reaches. Both go from 0 to 1, are no
    probabilities, and are None where they cannot be computed. `use`: the probability that a tool should be used, by one
    model of need, fit and more (docs/verdicts.md); the verdict is "use" where it reaches the threshold of
    `verdict_level`. `use` and `verdict_level` are None where thresholds of `need` and `fit` decided: then `need` below
    its threshold gives "no_tool_needed", otherwise `fit` below its threshold gives "nothing_fits". `searched`: number
    of tools searched. `version`: the catalogue version. `words_only`: number of tools that only their words can find,
    having no vector yet. `asked`: the rewritten queries that were searched beside the request. `cost`: the use of
    language models, None without one.
    """

    request: str
    verdict: Verdict
    hits: tuple[Hit, ...]
    considered: tuple[Hit, ...]
    searched: int
    version: int
    need: float | None = None
    fit: float | None = None
    words_only: int = 0
    notes: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    cost: Cost | None = None
    use: float | None = None
    verdict_level: Level | None = None

    def groups(self) -> list[tuple[str, tuple[Hit, ...]]]:
        """Return the hits grouped by the rewritten query that found them; first, under "", those of the request."""
        found: dict[str, list[Hit]] = {"": [], **{query: [] for query in self.asked}}
        for hit in self.hits:
            query = next((reason.query for reason in hit.reasons if isinstance(reason, RewrittenQuery)), "")
            found.setdefault(query, []).append(hit)
        return [(query, tuple(hits)) for query, hits in found.items() if hits]

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "request": self.request,
            "asked": list(self.asked),
            "verdict": self.verdict,
            "need": self.need,
            "fit": self.fit,
            "hits": [hit.to_dict() for hit in self.hits],
            "considered": [hit.to_dict() for hit in self.considered],
            "searched": self.searched,
            "words_only": self.words_only,
            "version": self.version,
            "notes": list(self.notes),
            "cost": self.cost.to_dict() if self.cost else None,
            "use": self.use,
            "verdict_level": self.verdict_level,
        }


@dataclass(frozen=True, slots=True)
class Example:
    """Feedback on one request: the tools that it used, and those that were offered and rejected.

    A store keeps one example of each `id` in a tenant, so that one whose storing failed may be given again. What was
    stored before examples had ids has "" there.
    """

    request: str
    used: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    tenant: str = ""
    source: str = ""
    time: datetime = field(default_factory=lambda: datetime.now(UTC))
    id: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tools that one caller may see: whole namespaces, and single tools by id."""

    namespaces: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()

    @classmethod
    def of(cls, namespaces: Iterable[str] = (), ids: Iterable[str] = ()) -> Allowed:
        """Build one from any iterables."""
        return cls(frozenset(namespaces), frozenset(ids))

    def permits(self, tool_id: str) -> bool:
        """Whether the caller may see this tool."""
        return tool_id in self.ids or namespace_of(tool_id) in self.namespaces
