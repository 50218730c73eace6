"""A language model that writes for a search: whatever it meets, the search goes on, and the reason is kept."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic as _now
from typing import NamedTuple

from toolscout.errors import LanguageModelError, ToolscoutError
from toolscout.llm import LanguageModel, Options, open_llm
from toolscout.llm.base import Conversation, Usage, complete_each

# A model that is not there is left alone for a while: no search is to wait for it each time.
_REST = 30.0
_AT_ONCE = 256  # conversations of one call to an endpoint: a fault in one of them may take the others along
_RETRIES, _PATIENCE = 1, 3


class Written(NamedTuple):
    """What a model wrote, or why it wrote nothing."""

    text: str
    problem: str = ""


def is_url(spec: str) -> bool:
    """Whether it names an endpoint."""
    return spec.lower().startswith(("http://", "https://"))


class Author:
    """Opens its model when it is first needed. Safe to use from several threads."""

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
    ) -> None:
        """Name the model as `open_llm` takes it. An endpoint is checked here, so that nobody waits for a wrong name."""
        self._usage, self._failed, self._in_a_row, self._patience = Usage(), 0, 0, 0
        self._spec, self._model, self._seed = spec, model, seed
        self._llm: LanguageModel | None = None
        self._lock = threading.Lock()
        self._rests, self._why = -math.inf, ""
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
            self._llm = open_llm(spec, model=model, options=self._asked)

    def wait_longer(self) -> None:
        """Rather wait for a model than go on without it, unless it is really not there: for evaluations."""
        self._patience = _PATIENCE
        if is_url(self._spec):
            usual = Options()
            asked = replace(self._asked, retries=usual.retries, longest_wait=usual.longest_wait)
            self._llm = open_llm(self._spec, model=self._model, options=asked)

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
        size = _AT_ONCE if is_url(self._spec) else max(1, len(conversations))
        found: list[Written] = []
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
        if _now() < self._rests:
            return [Written("", self._why)] * len(conversations)
        try:
            llm = self._opened()
            outcomes = complete_each(llm, conversations, temperature=temperature, max_tokens=max_tokens)
        except Exception as error:  # whatever a model does, the search is answered
            self._why = _told(error)
            self._in_a_row += 1
            if self._in_a_row > self._patience:
                self._rests = _now() + _REST
            return [Written("", self._why)] * len(conversations)
        with self._lock:
            self._in_a_row = 0
            self._usage.add([one for one in outcomes if not isinstance(one, LanguageModelError)])
        return [
            Written("", str(one)) if isinstance(one, LanguageModelError) else Written(one[0].text) for one in outcomes
        ]

    def _opened(self) -> LanguageModel:
        with self._lock:
            if self._llm is None:
                self._llm = open_llm(self._spec, seed=self._seed)
            return self._llm


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, ToolscoutError) else f"{type(error).__name__}: {error}"
