"""Calls a language model during a search. If it fails, the search goes on, and the reason is reported."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic as _now
from typing import NamedTuple, cast

from toolscout.core.answer import Cost
from toolscout.core.scope import Endpoints
from toolscout.core.targets import is_address
from toolscout.errors import EndpointError, LanguageModelError, NotYet, ToolscoutError
from toolscout.llm import EndpointOptions, LanguageModel, open_llm
from toolscout.llm.base import Completion, Conversation, Usage, complete_each
from toolscout.llm.endpoint import Endpoint
from toolscout.llm.hosts import not_named
from toolscout.llm.options import check, checked_url

# Seconds that a model is not called after a failure, so that not every search waits for it.
_REST = 30.0
_AT_ONCE = 256  # conversations in one batch to an endpoint
_RETRIES, _PATIENCE = 1, 3


class WrittenText(NamedTuple):
    """What a model wrote, or the reason why it wrote nothing."""

    text: str
    problem: str = ""
    cost: Cost = Cost()


class QueryWriter:
    """A language model, opened on first use. Safe to use from several threads.

    An endpoint has `timeout` seconds for all calls of one search (a WritingSession), retries and pauses included. For
    a batch of more than `concurrency` conversations, it has that time for each round of `concurrency` calls.

    An endpoint that a model folder names, not the user, is called only if its host is in $TOOLSCOUT_LLM_HOSTS:
    otherwise the author of the folder could collect the user's requests and key.
    """

    def __init__(
        self,
        spec: str,
        model: str = "",
        *,
        cache: str = "",
        offline: bool = False,
        timeout: float = 20.0,
        concurrency: int = 8,
        requests_per_minute: float | None = None,
        prices: tuple[float, float] | None = None,
        seed: int = 0,
        from_folder: bool = False,
    ) -> None:
        """`spec` and `model` are as for `open_llm`; `from_folder`: they come from a model folder, not from the user.

        The options of an endpoint are checked here. Raises BadRequest for bad ones.
        """
        self._in_a_row = 0
        self._spec, self._model, self._seed = spec, model, seed
        self._llm: LanguageModel | None = None
        self._patient: LanguageModel | None = None  # the same endpoint with more retries, for endpoints="wait"
        self._lock = threading.Lock()
        self._rests, self._why = -math.inf, ""
        self.timeout, self.concurrency = timeout, concurrency
        self._refusal = ""  # why an endpoint may not be called
        if is_address(spec):
            read, written = prices or (None, None)
            self._asked = EndpointOptions(
                cache=cache or None,
                offline=offline,
                timeout=timeout,
                concurrency=concurrency,
                requests_per_minute=requests_per_minute,
                retries=_RETRIES,
                longest_wait=timeout,
                input_price=read,
                output_price=written,
            )
            check(self._asked, model)
            if from_folder and (refusal := not_named(checked_url(spec))):
                self._refusal = refusal
                return
            self._llm = open_llm(spec, model=model, options=self._asked)

    def session(self, endpoints: Endpoints = "ask") -> WritingSession:
        """Start the calls of one search, which share its time limit."""
        return WritingSession(self, endpoints)

    def use(self, llm: LanguageModel) -> None:
        """Use this model from now on."""
        self._llm, self._patient, self._rests = llm, llm, -math.inf

    def point(self, folder: Path) -> None:
        """Use the fine-tuned model in this folder from now on."""
        self._spec, self._llm, self._patient = str(folder), None, None

    @property
    def parameters(self) -> int:
        """How many parameters the model has; 0 for an endpoint or before it is opened."""
        return self._llm.parameters if self._llm is not None else 0

    @property
    def is_endpoint(self) -> bool:
        """Whether the model is behind a URL."""
        return is_address(self._spec)

    @property
    def spec(self) -> str:
        """The model as it was named."""
        return self._spec

    def problem(self) -> str:
        """Why the model cannot be opened; empty where it can."""
        try:
            self.opened(patient=False)
        except Exception as error:  # any error counts, as in a call
            return _reason(error)
        return ""

    def resting(self) -> str:
        """Why the model is not called at the moment, after a failure; empty if it can be called."""
        return self._why if _now() < self._rests else ""

    def count(self, answered: bool, fault: Exception | None, patient: bool) -> None:
        """Record how a call went: after failures, the model is not called for a while."""
        with self._lock:
            if answered or fault is None:
                self._in_a_row = 0
            elif not isinstance(fault, NotYet):  # a rate limit is no failure
                self._why = _reason(fault)
                self._in_a_row += 1
                if self._in_a_row > (_PATIENCE if patient else 0):
                    self._rests = _now() + _REST

    def opened(self, patient: bool) -> LanguageModel:
        """Open the model if needed and return it; `patient`: an endpoint with the usual number of retries."""
        with self._lock:
            if self._llm is None and self.is_endpoint:
                raise EndpointError(self._refusal)
            if self._llm is None:
                self._llm = open_llm(self._spec, seed=self._seed)
            if not patient or not self.is_endpoint:
                return self._llm
            if self._patient is None:
                usual = EndpointOptions()
                asked = replace(self._asked, retries=usual.retries, longest_wait=usual.longest_wait)
                self._patient = open_llm(self._spec, model=self._model, options=asked)
            return self._patient


class WritingSession:
    """The calls of one search. They share the timeout of an endpoint, unless endpoints="wait"."""

    def __init__(self, author: QueryWriter, endpoints: Endpoints) -> None:
        """Start the clock."""
        self._author, self._endpoints = author, endpoints
        self._began, self._seconds = _now(), 0.0

    def write(self, conversations: Sequence[Conversation], temperature: float, max_tokens: int) -> list[WrittenText]:
        """A text for each conversation, in one batch where the model is on this machine."""
        author = self._author
        if self._endpoints == "skip" and author.is_endpoint:
            return [WrittenText("", "the endpoint is not asked for this")] * len(conversations)
        size = _AT_ONCE if author.is_endpoint else max(1, len(conversations))
        turns = math.ceil(len(conversations) / max(1, author.concurrency))
        self._seconds = max(self._seconds, author.timeout * turns)
        found: list[WrittenText] = []
        for start in range(0, len(conversations), size):
            found += self._batch(conversations[start : start + size], temperature, max_tokens)
        return found

    def _batch(self, conversations: Sequence[Conversation], temperature: float, max_tokens: int) -> list[WrittenText]:
        """A text for each conversation; those skipped because another one failed are tried again."""
        found: dict[int, WrittenText] = {}
        while left := [place for place in range(len(conversations)) if place not in found]:
            if why := self._author.resting() or self._late():
                found |= dict.fromkeys(left, _failed(why))
                break
            outcomes = self._outcomes([conversations[place] for place in left], temperature, max_tokens)
            for place, one in zip(left, outcomes, strict=True):
                if one is not None:
                    found[place] = _failed(_reason(one)) if isinstance(one, Exception) else _written(one)
        return [found[place] for place in range(len(conversations))]

    def _hurried(self) -> bool:
        """Whether the time limit applies."""
        return self._author.is_endpoint and self._endpoints != "wait"

    def _left(self) -> float:
        return self._seconds - (_now() - self._began)

    def _late(self) -> str:
        """The reason if the time is over; empty otherwise."""
        over = f"{self._author.spec} took longer than {self._seconds:g} seconds in all; raise timeout"
        return over if self._hurried() and self._left() <= 0 else ""

    def _outcomes(
        self, conversations: Sequence[Conversation], temperature: float, max_tokens: int
    ) -> Sequence[list[Completion] | Exception | None]:
        """For each conversation: its completions, an exception, or None if it was skipped after a failure."""
        outcomes: Sequence[list[Completion] | Exception | None]
        fault: Exception | None = None
        try:
            llm = self._author.opened(self._endpoints == "wait")
            if isinstance(llm, Endpoint) and self._hurried():
                llm = llm.within(self._left())
            outcomes = complete_each(llm, conversations, temperature=temperature, max_tokens=max_tokens)
        except Exception as error:  # a search must not fail because of the model
            fault, outcomes = error, [error] * len(conversations)
            results = (isinstance(error, LanguageModelError) and error.results) or ()
            if any(results) and len(results) == len(outcomes):
                outcomes = cast(Sequence[list[Completion] | Exception | None], results)
        answered = any(isinstance(one, list) for one in outcomes)
        self._author.count(answered, fault, self._endpoints == "wait")
        return outcomes


def _failed(why: str) -> WrittenText:
    return WrittenText("", why, Cost(failed=1, problem=why))


def _written(completions: list[Completion]) -> WrittenText:
    usage = Usage()
    usage.add([completions])
    return WrittenText(completions[0].text, cost=usage.as_cost())


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ToolscoutError) else f"{type(error).__name__}: {error}"
