"""The contract of a reranker: a request and a few documents in, a score for each document out."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from toolscout.core.answer import Cost


class Judgement(NamedTuple):
    """The score of each document, None for those that were not scored, and the cost of a language model, if any."""

    scores: list[float | None]
    cost: Cost | None = None


class Reranker(ABC):
    """Scores documents for a request. Scores have no fixed range; higher is better. Several threads may use it.

    name: what people call it.
    fingerprint: identifies the model and its settings.
    remote: whether texts are sent to another program, which may not answer.
    visible_only: whether it may be given only documents that the caller may see, because they leave this process, or
        because the score of one document depends on the others.
    deadline_ms: how long a search waits for it, unless the user says otherwise.
    parameters: the number of the model's parameters, 0 where it is not known.
    folder: where the model's files are; None without a folder.
    """

    name: str
    fingerprint: str
    remote: bool = False
    visible_only: bool = False
    deadline_ms: float = 300.0
    parameters: int = 0
    folder: Path | None = None

    @abstractmethod
    def score(self, request: str, documents: Sequence[str], deadline: float = math.inf) -> list[float | None]:
        """The score of each document; None for one that was not scored by the deadline, a time of time.monotonic().

        Raises a ToolscoutError where it cannot score at all.
        """

    def judge(self, request: str, documents: Sequence[str], deadline: float = math.inf) -> Judgement:
        """As `score`, with the cost."""
        return Judgement(self.score(request, documents, deadline))


def run_until(deadline: float, work: Callable[[], None]) -> None:
    """Run work until the deadline, a time of time.monotonic(); work that goes on is left behind. Raises its error."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    if deadline == math.inf:
        work()
        return
    # A daemon: work that never ends does not keep the process from ending.
    thread = threading.Thread(target=run, name="toolscout-rerank", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
