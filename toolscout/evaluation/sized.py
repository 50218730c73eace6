"""Asks the retrievers that can tell for as many tools as each request needs, as `Scout.search(k="auto")` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolscout.evaluation.request_result import RequestResult
from toolscout.retrievers.base import Retriever
from toolscout.scout import checked_request
from toolscout.search.progress import Progress

_AT_ONCE = 64


def with_sets(
    asked: Sequence[RequestResult], texts: Sequence[str], retriever: Retriever, progress: Progress | None = None
) -> list[RequestResult]:
    """The same requests, whose texts these are, with the tools returned; as they are where it cannot tell how many.

    They are asked together, since a language model is far faster so; one that fails returned nothing.
    """
    if retriever.as_many([]) is None:
        return list(asked)
    made: list[RequestResult] = []
    for start in range(0, len(asked), _AT_ONCE):
        few = asked[start : start + _AT_ONCE]
        for one, found in zip(few, _returned(retriever, texts[start : start + _AT_ONCE]), strict=True):
            error = one.error or (found if isinstance(found, str) else "")
            made.append(replace(one, returned=() if isinstance(found, str) else found, error=error))
        if progress:
            progress("asking for sets", len(made), len(asked))
    return made


def _returned(retriever: Retriever, texts: Sequence[str]) -> list[tuple[str, ...] | str]:
    """The tools for each request, or what went wrong with it."""
    try:
        sets = retriever.as_many(retriever.rank(list(map(checked_request, texts)), 1)) or []
        return [tuple(tool_id for tool_id, _ in pairs) for pairs in sets]
    except Exception as error:  # whatever a method does on one request, the others are still asked
        if len(texts) == 1:
            return [f"{type(error).__name__}: {error}"]
        return [found for text in texts for found in _returned(retriever, [text])]
