"""For whom tools are ranked: what is read into a request, and shown to a language model, is the caller's alone.

Who fuses rankings asks its parts for those of the full catalogue, whoever asks, so `allowed` does not reach them. But
the tools that a request names, the words that it misspells and the tools that a model is shown are those that the
caller may see: nothing that it gets says how a tool is called that it may not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from toolscout.core.answer import Allowed, Hit, Reason
from toolscout.core.arrays import Floats
from toolscout.retrievers.base import Embedded, Needing, Pairs, Ranker, Retriever
from toolscout.retrievers.kinds import keeps

Costs = dict[str, int | float | str | None]
Reasons = list[tuple[Reason, ...]]
Told = tuple[tuple[str, ...], tuple[str, ...]]
"""The queries that were searched beside a request, and notes on that."""


class Caller(NamedTuple):
    """Whom tools are ranked for: a request names none but those that this one `sees` (None: all), nor is a model shown
    others.

    `again`: a model that failed for a request is asked once more.
    """

    sees: Allowed | None = None
    again: bool = True

    def later(self) -> Caller:
        """The same one, further on in the same search: what failed just now is not tried again."""
        return self._replace(again=False)


class Showing(Protocol):
    """A retriever that finds names in requests, or shows tools to a language model: those that the caller sees."""

    def rank_for(self, caller: Caller, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """The best k tools of all, or of those allowed; a model sees what the caller does, whichever are ranked."""

    def why_for(self, caller: Caller, request: str, ids: Sequence[str]) -> Reasons:
        """The reasons for tools that were ranked for this caller just now."""


class Naming(Protocol):
    """A retriever that can tell whether a request is nothing but the name of a tool that the caller sees."""

    def is_name_for(self, caller: Caller, request: str) -> bool:
        """Whether it is."""


class Explaining(Protocol):
    """A retriever whose explanations depend on words that other tools have: those that the caller sees."""

    def explain_for(self, caller: Caller, request: str, hits: Sequence[Hit]) -> list[Hit]:
        """As `Retriever.explain`, for this caller."""


class Spelling(Protocol):
    """A retriever that corrects the spelling of requests by the words of tools: those that the caller sees."""

    def need_for(self, caller: Caller, requests: Sequence[str]) -> list[float] | None:
        """As `Needing.need`, of the requests as they are searched for this caller."""

    def request_vector_for(self, caller: Caller, request: str) -> Floats:
        """As `Embedded.request_vector`, of the request as it is searched for this caller."""


def rank(
    part: Retriever, caller: Caller, requests: Sequence[str], k: int, allowed: Allowed | None = None
) -> list[Pairs]:
    """What any part ranks for a caller."""
    if keeps(part, Showing):
        return part.rank_for(caller, requests, k, allowed)
    if keeps(part, Ranker):
        return part.rank(requests, k, allowed)
    return [[(hit.tool_id, hit.score) for hit in hits] for hits in part.search(requests, k, allowed)]


def why(part: Retriever, caller: Caller, request: str, ids: Sequence[str]) -> Reasons:
    """The reasons of any part; none where it has no reasons apart from its ranking."""
    if keeps(part, Showing):
        return part.why_for(caller, request, ids)
    return part.why(request, ids) if keeps(part, Ranker) else [() for _ in ids]


def is_name(part: Retriever, caller: Caller, request: str) -> bool:
    """Whether a request is nothing but the name of a tool that the caller sees.

    A part that knows of all tools alone is not asked for one who may not see them all.
    """
    if keeps(part, Naming):
        return part.is_name_for(caller, request)
    return caller.sees is None and keeps(part, Ranker) and part.is_name(request)


def explain(part: Retriever, caller: Caller, request: str, hits: Sequence[Hit]) -> list[Hit]:
    """The hits with every reason that any part finds for a caller."""
    return part.explain_for(caller, request, hits) if keeps(part, Explaining) else part.explain(request, hits)


def need(part: Retriever, caller: Caller, requests: Sequence[str]) -> list[float] | None:
    """How likely each request of a caller is to need a tool; None where the part cannot tell."""
    if keeps(part, Spelling):
        return part.need_for(caller, requests)
    return part.need(requests) if keeps(part, Needing) else None


def request_vector(part: Embedded, caller: Caller, request: str) -> Floats:
    """The unit vector of a request as any part with an encoder searches it for a caller."""
    return part.request_vector_for(caller, request) if keeps(part, Spelling) else part.request_vector(request)


def tells(part: Retriever) -> bool:
    """Whether it says what was asked beside a request."""
    return hasattr(part, "told")


def told(part: Retriever, request: str, allowed: Allowed | None) -> Told:
    """What a part says that was asked; nothing where it asks nothing."""
    found: Told = getattr(part, "told", lambda *_: ((), ()))(request, allowed)
    return found


def all_told(found: Iterable[Told]) -> Told:
    """What several say, each thing once."""
    queries: dict[str, None] = {}
    notes: dict[str, None] = {}
    for some_queries, some_notes in found:
        queries.update(dict.fromkeys(some_queries))
        notes.update(dict.fromkeys(some_notes))
    return tuple(queries), tuple(notes)


def wait_longer(parts: Iterable[Retriever]) -> None:
    """Have those with a language model rather wait for it than go on without it."""
    for part in parts:
        getattr(part, "wait_longer", lambda: None)()


def take_costs(parts: Iterable[Retriever]) -> Costs:
    """What the language models of all parts were asked since this was last called; nothing where there are none."""
    total: Costs = {}
    for part in parts:
        total = added(total, getattr(part, "take_costs", dict)())
    return total


def added(costs: Mapping[str, int | float | str | None], more: Mapping[str, int | float | str | None]) -> Costs:
    """Two costs as one: numbers are added up, and of what else is known the first is kept."""
    total = dict(costs)
    for name, value in more.items():
        known = total.get(name)
        if isinstance(known, int | float) and isinstance(value, int | float):
            total[name] = round(known + value, 6)
        elif known is None:
            total[name] = value
    return total
