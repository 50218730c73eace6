"""Calls a reranker during a search, within its deadline. If it fails, the search goes on, and a note says why."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from toolscout.core.answer import Cost
from toolscout.core.scope import Endpoints
from toolscout.errors import EndpointError, NotYet, ToolscoutError
from toolscout.models.rerankers.base import Judgement, Reranker, run_until

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

    def score(
        self, request: str, documents: Sequence[str], endpoints: Endpoints = "ask", counted: bool = True
    ) -> RerankedScores:
        """Score documents. With endpoints="skip" nothing is sent anywhere; with "wait" there is no deadline.

        `counted`: whether notes say how many documents there are, which a caller who may not see all must not learn.
        """
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
        limit = seconds if time.monotonic() >= began + seconds else None
        if scores.count(None) == len(scores):
            self._fail(_note(scores, limit, counted=False), seconds)
        else:
            self._failures = 0
        notes = (_note(scores, limit, counted),) if None in scores else ()
        return RerankedScores(scores, notes, outcome.cost)

    def _fail(self, why: str, seconds: float) -> None:
        """Count a call that scored nothing: then the reranker is not called for a while."""
        self._failures += 1
        if self._failures > (_PATIENCE if seconds == math.inf else 0):
            self._rests, self._why = time.monotonic() + _REST, why

    def _outcome(self, request: str, documents: Sequence[str], deadline: float) -> Judgement | Exception:
        """What the reranker says, or its error; nothing is scored where it goes on beyond the deadline."""
        found: list[Judgement] = []
        try:
            run_until(deadline + _GRACE, lambda: found.append(self.reranker.judge(request, documents, deadline)))
            judged = found[0] if found else Judgement([None] * len(documents))
            if len(judged.scores) != len(documents):
                raise ValueError(f"{len(judged.scores)} scores for {len(documents)} documents")
        except Exception as error:  # a search must not fail because of the reranker
            late = isinstance(error, EndpointError) and time.monotonic() >= deadline
            return Judgement([None] * len(documents)) if late else error
        return judged


def _failed(none: list[float | None], why: str) -> RerankedScores:
    return RerankedScores(none, (f"{NOT_RERANKED}: {why}",), Cost(failed=1, problem=why))


def _note(scores: Sequence[float | None], seconds: float | None, counted: bool) -> str:
    """What to say where scores are missing: `seconds` were not enough, or None were."""
    missing, count = scores.count(None), len(scores)
    if seconds is None:
        few = f"{missing} of {count} tools" if counted else "some tools"
        return f"the reranker gave no usable score to {few}; these keep their place"
    done = f"scored {count - missing} of {count} tools" if counted else "did not score all tools"
    return f"the reranker {done} in {seconds * 1000:g} ms; the others keep their place"


def _reason(error: Exception) -> str:
    return (error.public or str(error)) if isinstance(error, ToolscoutError) else f"{type(error).__name__}: {error}"
