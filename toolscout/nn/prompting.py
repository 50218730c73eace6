"""A request as a language model is asked it, cut to a length, and two requests as one; turns that may name tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from toolscout.nn.language import Base, Content


class Spoken(Protocol):
    """A turn of a conversation. `action`: the tool's id, or Finish, that the content is."""

    @property
    def role(self) -> str:
        """Who speaks."""

    @property
    def content(self) -> str:
        """What is said."""

    @property
    def action(self) -> str:
        """The tool that it names, or nothing."""


def contents(turns: Iterable[Spoken], written: Callable[[str], Sequence[int] | None]) -> list[tuple[str, Content]]:
    """Turns as (role, content): an action as the tokens that it is written with, as text where it has none."""
    return [(turn.role, (written(turn.action) if turn.action else None) or turn.content) for turn in turns]


class Prompter:
    """Turns texts into prompts of at most `limit` tokens, the chat's own markup not counted."""

    def __init__(self, base: Base, limit: int) -> None:
        """For one language model."""
        self._base, self._limit = base, limit
        one, other = (base.chat([("user", text)]) for text in ("a", "b"))
        self._before = next(i for i, (x, y) in enumerate(zip(one, other, strict=True)) if x != y)
        self._after = one[self._before + 1 :]

    def ask(self, text: str) -> list[int]:
        """One text as what a user says, the assistant to answer next."""
        tokens = self._base.chat([("user", text)])
        most = self._before + self._limit
        return tokens if len(tokens) <= most + len(self._after) else [*tokens[:most], *self._after]

    def both(self, first: Sequence[int], second: Sequence[int]) -> list[int]:
        """Two prompts as one: the second's text behind the first's."""
        end = len(first) - len(self._after)
        text = [*first[:end], *second[self._before : len(second) - len(self._after)]]
        return [*text[: self._before + self._limit], *self._after]
