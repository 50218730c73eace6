"""Parts that show tools to a language model: those alone that the caller may see, though all tools are ranked.

Who fuses rankings asks its parts for those of the full catalogue, whoever asks, so `allowed` does not reach them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from toolscout.answer import Allowed, Reason
from toolscout.retrievers._kinds import keeps
from toolscout.retrievers.base import Pairs, Ranker, Retriever

Costs = dict[str, int | float | str | None]
Reasons = list[tuple[Reason, ...]]
Told = tuple[tuple[str, ...], tuple[str, ...]]
"""The queries that were searched beside a request, and notes on that."""


class Caller(NamedTuple):
    """Whom tools are ranked for: no model is shown others than those that this one `sees` (None: all).

    `again`: a model that failed for a request is asked once more.
    """

    sees: Allowed | None = None
    again: bool = True

    def later(self) -> Caller:
        """The same one, further on in the same search: what failed just now is not tried again."""
        return self._replace(again=False)


class Showing(Protocol):
    """A retriever that shows tools to a language model, or that may have a part which does."""

    def rank_for(self, caller: Caller, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """The best k tools of all, or of those allowed; a model sees what the caller does, whichever are ranked."""

    def why_for(self, caller: Caller, request: str, ids: Sequence[str]) -> Reasons:
        """The reasons for tools that were ranked for this caller just now."""


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
