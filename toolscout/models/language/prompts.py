"""A request as a language model is asked it, cut to a length, and two requests as one; turns that may name tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from toolscout.errors import BadModel
from toolscout.models.language.base import Base, Content


class ChatTurn(Protocol):
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


def contents(turns: Iterable[ChatTurn], written: Callable[[str], Sequence[int] | None]) -> list[tuple[str, Content]]:
    """Turns as (role, content): an action as the tokens that it is written with, as text where it has none."""
    return [(turn.role, (written(turn.action) if turn.action else None) or turn.content) for turn in turns]


class Prompter:
    """Turns texts into prompts of at most `limit` tokens, the chat's own markup not counted."""

    def __init__(self, base: Base, limit: int, behind: int = 0) -> None:
        """For one language model, into whose context a prompt fits together with so many tokens `behind` it."""
        self._base = base
        one, other = (base.chat([("user", text)]) for text in ("a", "b"))
        self._before = next(i for i, (x, y) in enumerate(zip(one, other, strict=True)) if x != y)
        self._after = one[self._before + 1 :]
        self.limit = min(limit, self._room(behind))
        """The most tokens of a text that are read."""
        if self.limit < 1:
            raise BadModel(
                f"{base.name} reads {base.architecture.context:,} tokens: too few for a request, the markup of a chat "
                f"and the {behind:,} tokens of what is written; choose another base model, or shorter ids"
            )

    def _room(self, behind: int) -> int:
        return self._base.architecture.context - self._before - len(self._after) - behind

    def ask(self, text: str) -> list[int]:
        """One text as what a user says, the assistant to answer next."""
        tokens = self._base.chat([("user", text)])
        return self._cut(tokens, self.limit)

    def both(self, first: Sequence[int], second: Sequence[int]) -> list[int]:
        """Two prompts as one: the second's text behind the first's."""
        end = len(first) - len(self._after)
        text = [*first[:end], *second[self._before : len(second) - len(self._after)]]
        return [*text[: self._before + self.limit], *self._after]

    def fitted(self, prompt: Sequence[int], behind: int) -> list[int]:
        """A prompt, cut further where it does not fit into the context together with so many tokens behind it."""
        return self._cut(prompt, max(0, self._room(behind)))

    def _cut(self, prompt: Sequence[int], limit: int) -> list[int]:
        most = self._before + limit
        return list(prompt if len(prompt) <= most + len(self._after) else [*prompt[:most], *self._after])
