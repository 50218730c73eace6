"""The span of a search: verdict, need, fit, tools searched and saved, and the milliseconds of its parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from statistics import fmean
from weakref import WeakKeyDictionary

from toolscout.core import tracing, vendor_formats
from toolscout.core.answer import Answer
from toolscout.core.tool import Tool
from toolscout.errors import UnknownTool
from toolscout.stores.base import Store

_SAMPLE = 50  # tools whose tokens are counted, to estimate those of all
_FRESH_S = 300.0  # for so long


class SearchSpan:
    """A search that nobody traces: it records nothing."""

    def timed(self, _part: str) -> AbstractContextManager[None]:
        """Measure the block as a part of the search."""
        return nullcontext()

    def answered(self, _answers: Sequence[Answer], _store: Store) -> None:
        """Record the answers."""


_NOT_TRACED = SearchSpan()


class _Traced(SearchSpan):
    def __init__(self, span: tracing.Span) -> None:
        self._span = span
        self._began = time.perf_counter()

    @contextmanager
    def _measured(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._span.set(**{f"toolscout.ms.{part}": round(1000 * (time.perf_counter() - began), 3)})

    def timed(self, part: str) -> AbstractContextManager[None]:
        """Measure the block as a part of the search."""
        return self._measured(part)

    def answered(self, answers: Sequence[Answer], store: Store) -> None:
        """Record what was found: of several requests that are searched together, each as an event."""
        seconds = (time.perf_counter() - self._began) / max(1, len(answers))
        self._span.set(toolscout__requests=len(answers))
        for answer in answers:
            tracing.record(
                "toolscout.search.duration",
                seconds,
                "s",
                "Duration of searches, by verdict.",
                toolscout__verdict=answer.verdict,
            )
        if len(answers) == 1:
            (answer,) = answers
            each = _tokens_each(store)
            self._span.set(
                toolscout__verdict=answer.verdict,
                toolscout__need=answer.need,
                toolscout__fit=answer.fit,
                toolscout__use=answer.use,
                toolscout__hits=len(answer.hits),
                toolscout__tools_searched=answer.searched,
                toolscout__tokens_saved=round(each * (answer.searched - len(answer.hits))),
            )
            self._span.content("gen_ai.retrieval.query.text", answer.request)
            self._span.content("gen_ai.retrieval.documents", [hit.tool_id for hit in answer.hits])


@contextmanager
def _traced(k: int | str) -> Iterator[SearchSpan]:
    about = {"gen_ai.operation.name": "retrieval", "toolscout.k": k}
    with tracing.span("retrieval tools", "internal", None, **about) as span:
        yield _Traced(span)


def search_span(k: int | str) -> AbstractContextManager[SearchSpan]:
    """Return the span of a search, for a with statement."""
    return _traced(k) if tracing.enabled() else nullcontext(_NOT_TRACED)


_counted: WeakKeyDictionary[Store, tuple[float, float]] = WeakKeyDictionary()
_lock = threading.Lock()


def _tokens_each(store: Store) -> float:
    """Return about how many tokens a tool of the store takes in a prompt, counted on a sample every few minutes."""
    with _lock:
        until, each = _counted.get(store, (0.0, 0.0))
        if time.monotonic() < until:
            return each
        ids = store.ids()
        sample = ids[:: max(1, len(ids) // _SAMPLE)][:_SAMPLE]
        tools: list[Tool] = []
        with suppress(UnknownTool):  # one was removed meanwhile
            tools = store.get(sample)
        each = fmean(vendor_formats.render([tool], "mcp").tokens for tool in tools) if tools else 0.0
        _counted[store] = (time.monotonic() + _FRESH_S, each)
        return each
