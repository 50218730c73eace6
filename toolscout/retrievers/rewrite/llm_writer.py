"""A language model that writes for a search: whatever it meets, the search goes on, and the reason is kept."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic as _now
from typing import NamedTuple, cast

from toolscout.errors import EndpointError, LanguageModelError, NotYet, ToolscoutError
from toolscout.llm import LanguageModel, Options, open_llm
from toolscout.llm.base import Completion, Conversation, Usage, complete_each
from toolscout.llm.endpoint import Endpoint
from toolscout.llm.hosts import HOSTS_VARIABLE, host_of, is_named
from toolscout.llm.options import check, checked_url

# A model that is not there is left alone for a while: no search is to wait for it each time.
_REST = 30.0
_AT_ONCE = 256  # conversations of one call to an endpoint: what it answers is used once all of them are done
_RETRIES, _PATIENCE = 1, 3


class Written(NamedTuple):
    """What a model wrote, or why it wrote nothing."""

    text: str
    problem: str = ""


def is_url(spec: str) -> bool:
    """Whether it names an endpoint."""
    return spec.lower().startswith(("http://", "https://"))


class _Search(threading.local):
    """What holds for the search that a thread is at: since when, and how long it may take."""

    began: float | None = None
    seconds = 0.0


class Author:
    """Opens its model when it is first needed. Safe to use from several threads.

    An endpoint has `timeout` seconds for all that is written in one search: tries, pauses and turns that are waited for
    included. Where many conversations are written at once nobody sits and waits: it has as many times that as there
    are conversations for each of those that are asked at once.

    An endpoint that a model folder names, and not the user, is asked nothing until its host is in $TOOLSCOUT_LLM_HOSTS:
    the folder may come from a stranger, who would get the requests and the key.
    """

    def __init__(
        self,
        spec: str,
        model: str = "",
        *,
        cache: str = "",
        timeout: float = 20.0,
        concurrency: int = 8,
        requests_per_minute: float | None = None,
        prices: tuple[float, float] | None = None,
        seed: int = 0,
        from_folder: bool = False,
    ) -> None:
        """Name the model as `open_llm` takes it; `from_folder`: a model folder does, and not the user.

        An endpoint is checked here, so that nobody waits for a wrong name.
        """
        self._usage, self._failed, self._in_a_row, self._patience = Usage(), 0, 0, 0
        self._spec, self._model, self._seed = spec, model, seed
        self._llm: LanguageModel | None = None
        self._lock = threading.Lock()
        self._rests, self._why, self._quiet = -math.inf, "", False
        self._search, self._timeout, self._concurrency = _Search(), timeout, concurrency
        self._refusal = ""  # why an endpoint is not asked
        if is_url(spec):
            read, written = prices or (None, None)
            self._asked = Options(
                cache=cache or None,
                timeout=timeout,
                concurrency=concurrency,
                requests_per_minute=requests_per_minute,
                retries=_RETRIES,
                longest_wait=timeout,
                input_price=read,
                output_price=written,
            )
            check(self._asked, model)
            if from_folder and not is_named(url := checked_url(spec)):
                self._refusal = (
                    f"the model folder has requests sent to {host_of(url)}, which nobody here allowed; if you trust "
                    f"that host with requests and with your key, put {host_of(url)} into {HOSTS_VARIABLE}"
                )
                return
            self._llm = open_llm(spec, model=model, options=self._asked)

    def wait_longer(self) -> None:
        """Rather wait for a model than go on without it, unless it is really not there: for evaluations."""
        self._patience = _PATIENCE
        if is_url(self._spec) and not self._refusal:
            usual = Options()
            asked = replace(self._asked, retries=usual.retries, longest_wait=usual.longest_wait)
            self._llm = open_llm(self._spec, model=self._model, options=asked)

    @contextmanager
    def one_search(self) -> Iterator[None]:
        """All that this thread has written meanwhile is for one search, and shares its time."""
        search = self._search
        if search.began is not None:
            yield
            return
        search.began, search.seconds = _now(), 0.0
        try:
            yield
        finally:
            search.began = None

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Ask no endpoint meanwhile, whichever thread searches: for a search that nobody asked for, to warm up."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def use(self, llm: LanguageModel) -> None:
        """Write with this model from now on."""
        self._llm, self._rests = llm, -math.inf

    def point(self, folder: Path) -> None:
        """Write with the generator in this folder from now on."""
        self._spec, self._llm = str(folder), None

    @property
    def parameters(self) -> int:
        """How many numbers the model has, where it runs on this machine and is open."""
        return int(getattr(self._llm, "parameters", 0))

    def write(self, conversations: Sequence[Conversation], temperature: float, max_tokens: int) -> list[Written]:
        """A text for each conversation, in one batch where the model is on this machine."""
        if self._quiet and is_url(self._spec):
            return [Written("", "the endpoint is not asked for this")] * len(conversations)
        size = _AT_ONCE if is_url(self._spec) else max(1, len(conversations))
        found: list[Written] = []
        with self.one_search():
            turns = math.ceil(len(conversations) / max(1, self._concurrency))
            self._search.seconds = max(self._search.seconds, self._timeout * turns)
            for start in range(0, len(conversations), size):
                found += self._batch(conversations[start : start + size], temperature, max_tokens)
        problems = [one.problem for one in found if one.problem]
        with self._lock:
            self._failed += len(problems)
            self._why = problems[-1] if problems else self._why
        return found

    def take_costs(self) -> dict[str, int | float | str | None]:
        """What was used since this was last called, under the names that rows of results use."""
        with self._lock:
            found: dict[str, int | float | str | None] = {**self._usage.row(), "llm_failed": self._failed}
            found |= {"llm_problem": self._why} if self._failed else {}
            self._usage, self._failed = Usage(), 0
        return found

    def problem(self) -> str:
        """Why the model cannot be opened; empty where it can."""
        try:
            self._opened()
        except Exception as error:  # as when it is asked
            return _told(error)
        return ""

    def _batch(self, conversations: Sequence[Conversation], temperature: float, max_tokens: int) -> list[Written]:
        """A text for each; those that were not asked because one met a fault are asked again, while that helps."""
        found: dict[int, Written] = {}
        while left := [place for place in range(len(conversations)) if place not in found]:
            if why := self._resting():
                found |= dict.fromkeys(left, Written("", why))
                break
            outcomes = self._outcomes([conversations[place] for place in left], temperature, max_tokens)
            for place, one in zip(left, outcomes, strict=True):
                if one is not None:
                    found[place] = Written("", _told(one)) if isinstance(one, Exception) else Written(one[0].text)
        return [found[place] for place in range(len(conversations))]

    def _resting(self) -> str:
        """Why the model is not asked now; empty where it is."""
        if _now() < self._rests:
            return self._why
        over = f"{self._spec} took longer than {self._search.seconds:g} seconds in all; raise timeout"
        return over if self._hurried() and self._left() <= 0 else ""

    def _hurried(self) -> bool:
        """Whether a search is answered without the model rather than late."""
        return is_url(self._spec) and not self._patience

    def _left(self) -> float:
        began = self._search.began
        return self._search.seconds - (0.0 if began is None else _now() - began)

    def _outcomes(
        self, conversations: Sequence[Conversation], temperature: float, max_tokens: int
    ) -> Sequence[list[Completion] | Exception | None]:
        """What became of each: its completions, why it has none, or None where it was not asked after a fault."""
        outcomes: Sequence[list[Completion] | Exception | None]
        fault: Exception | None = None
        try:
            llm = self._opened()
            if isinstance(llm, Endpoint) and self._hurried():
                llm = llm.within(self._left())
            outcomes = complete_each(llm, conversations, temperature=temperature, max_tokens=max_tokens)
        except Exception as error:  # whatever a model does, the search is answered
            fault, outcomes = error, [error] * len(conversations)
            results = (isinstance(error, LanguageModelError) and error.results) or ()
            if any(results) and len(results) == len(outcomes):
                outcomes = cast(Sequence[list[Completion] | Exception | None], results)
        self._count([one for one in outcomes if isinstance(one, list)], fault)
        return outcomes

    def _count(self, answered: Sequence[list[Completion]], fault: Exception | None) -> None:
        """Add up what was used; a model that is not there rests."""
        with self._lock:
            self._usage.add(answered)
            if answered or fault is None:
                self._in_a_row = 0
            elif not isinstance(fault, NotYet):  # who has to wait for a turn is told so at once
                self._why = _told(fault)
                self._in_a_row += 1
                if self._in_a_row > self._patience:
                    self._rests = _now() + _REST

    def _opened(self) -> LanguageModel:
        with self._lock:
            if self._llm is None and is_url(self._spec):
                raise EndpointError(self._refusal)
            if self._llm is None:
                self._llm = open_llm(self._spec, seed=self._seed)
            return self._llm


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, ToolscoutError) else f"{type(error).__name__}: {error}"
