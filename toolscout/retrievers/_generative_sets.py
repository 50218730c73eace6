"""Sets of tools that a language model writes: as many as a request needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolscout.answer import Allowed, Hit
from toolscout.nn.decoding import Reading, sets
from toolscout.retrievers._atomic import Aware
from toolscout.retrievers._reading import flattened, included
from toolscout.retrievers._showing import Caller
from toolscout.retrievers.base import hits_of

if TYPE_CHECKING:
    from toolscout.retrievers._generative import Generative

_SETS = 8  # sets that are followed at once
Written = list[tuple[tuple[str, ...], float]]
"""The sets of one request with the logs of their chances, the likeliest first."""


def written(retriever: Generative, reading: Reading) -> list[Written]:
    """Sets of tools for each request; whether any is needed is not asked here (see `need`)."""
    from toolscout.retrievers._generative import NO_TOOL, STOP

    stop, plain = retriever.token(STOP), reading.plain if isinstance(reading, Aware) else None
    found = sets(reading, retriever._scoring(), retriever._trie, stop, width=_SETS, plain=plain)
    return [[one for one in few if one[0] and NO_TOOL not in one[0]] for few in found]


def as_many(retriever: Generative, requests: Sequence[str], allowed: Allowed | None) -> list[list[Hit]]:
    """What each request names, and what a caller may see of its likeliest set."""
    found: list[Written] = [[] for _ in requests]
    if len(retriever) and requests:
        reading = retriever._aware(retriever.reading(requests), requests)
        with retriever._lock:
            found = written(retriever, reading)
    hits, most = [], len(retriever) + retriever.without_id()
    for request, few in zip(requests, found, strict=True):
        chance = dict(included([], few, allowed))
        tools = sorted(chance.keys() & set(few[0][0] if few else ()), key=lambda one: (-chance[one], one))
        pairs = [(tool_id, flattened(chance[tool_id])) for tool_id in tools]
        best = retriever._named_first(request, pairs, most, allowed)
        hits.append(hits_of(best, retriever.why_for(Caller(allowed), request, [i for i, _ in best])))
    return hits
