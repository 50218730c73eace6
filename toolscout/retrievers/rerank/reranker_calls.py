"""Calls a reranker during a search, within its deadline. If it fails, the search goes on, and a note says why."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from toolscout.core.answer import Cost
from toolscout.core.scope import Endpoints
from toolscout.errors import NotYet, ToolscoutError
from toolscout.models.rerankers.base import Judgement, Reranker

NOT_RERANKED = "the tools were not reranked"
# Seconds that a reranker is not called after it scored nothing, so that not every search waits for it.
_REST = 30.0
_PATIENCE = 3  # failures in a row after which that is so where there is no deadline
_GRACE = 0.05  # seconds after the deadline in which a reranker may still hand over what it has


class RerankedScores(NamedTuple):
    """The score of each document, None where there is none; notes for the user; the cost of a language model."""

    scores: list[float | None]
    notes: tuple[str, ...] = ()
    cost: Cost | None = None


class RerankerCalls:
    """A reranker and the time that a search waits for it. Safe to use from several threads."""

    def __init__(self, reranker: Reranker, deadline_ms: float = 0.0) -> None:
        """`deadline_ms`: for one request; 0 for what the reranker asks for."""
        self.reranker = reranker
        self._seconds = (deadline_ms or reranker.deadline_ms) / 1000
        self._failures, self._rests, self._why = 0, -math.inf, ""

    def score(self, request: str, documents: Sequence[str], endpoints: Endpoints = "ask") -> RerankedScores:
        """Score documents. With endpoints="skip" nothing is sent anywhere; with "wait" there is no deadline."""
        none: list[float | None] = [None] * len(documents)
        if not documents or (endpoints == "skip" and self.reranker.remote):
            return RerankedScores(none)
        began, seconds = time.monotonic(), math.inf if endpoints == "wait" else self._seconds
        if began < self._rests:
            return _failed(none, self._why)
        outcome = self._outcome(request, documents, began + seconds)
        if isinstance(outcome, Exception):
            why = _reason(outcome)
            if not isinstance(outcome, NotYet):  # a rate limit is no failure
                self._fail(why, seconds)
            return _failed(none, why)
        scores = [None if one is None or not math.isfinite(one) else float(one) for one in outcome.scores]
        missing, note = scores.count(None), ""
        if missing:
            late = time.monotonic() >= began + seconds
            note = _late_note(scores, seconds) if late else _unusable_note(scores)
        if missing == len(scores):
            self._fail(note, seconds)
        else:
            self._failures = 0
        return RerankedScores(scores, (note,) if note else (), outcome.cost)

    def _fail(self, why: str, seconds: float) -> None:
        """Count a call that scored nothing: then the reranker is not called for a while."""
        self._failures += 1
        if self._failures > (_PATIENCE if seconds == math.inf else 0):
            self._rests, self._why = time.monotonic() + _REST, why

    def _outcome(self, request: str, documents: Sequence[str], deadline: float) -> Judgement | Exception:
        """What the reranker says, or its error; nothing is scored where it goes on beyond the deadline."""
        found: list[Judgement | Exception] = []

        def work() -> None:
            try:
                judged = self.reranker.judge(request, documents, deadline)
                if len(judged.scores) != len(documents):
                    raise ValueError(f"{len(judged.scores)} scores for {len(documents)} documents")
                found.append(judged)
            except Exception as error:  # a search must not fail because of the reranker
                found.append(error)

        if deadline == math.inf:
            work()
            return found[0]
        # A thread of its own, which may be left behind and does not keep the process from ending.
        thread = threading.Thread(target=work, name="toolscout-rerank", daemon=True)
        thread.start()
        thread.join(max(0.0, deadline - time.monotonic()) + _GRACE)
        return found[0] if found else Judgement([None] * len(documents))


def _failed(none: list[float | None], why: str) -> RerankedScores:
    return RerankedScores(none, (f"{NOT_RERANKED}: {why}",), Cost(failed=1, problem=why))


def _late_note(scores: Sequence[float | None], seconds: float) -> str:
    scored = len(scores) - scores.count(None)
    took = f"{seconds * 1000:g} ms"
    return f"the reranker scored {scored} of {len(scores)} tools in {took}; the others keep their place"


def _unusable_note(scores: Sequence[float | None]) -> str:
    return f"the reranker gave no usable score to {scores.count(None)} of {len(scores)} tools; these keep their place"


def _reason(error: Exception) -> str:
    return (error.public or str(error)) if isinstance(error, ToolscoutError) else f"{type(error).__name__}: {error}"
