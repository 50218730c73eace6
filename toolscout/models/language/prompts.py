"""Builds chat prompts for a language model: from a request, from two requests, and from turns that name tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from toolscout.errors import BadModel
from toolscout.models.language.base import Base, Content


class ChatTurn(Protocol):
    """A turn of a conversation. `action` is the id of a tool, or Finish, where the content is that."""

    @property
    def role(self) -> str:
        """Who speaks."""

    @property
    def content(self) -> str:
        """What is said."""

    @property
    def action(self) -> str:
        """The tool that it names, or ""."""


def contents(turns: Iterable[ChatTurn], written: Callable[[str], Sequence[int] | None]) -> list[tuple[str, Content]]:
    """Turns as (role, content); `written` gives the tokens of an action, None for an action that is text."""
    return [(turn.role, (written(turn.action) if turn.action else None) or turn.content) for turn in turns]


class Prompter:
    """Turns texts into prompts of at most `limit` tokens, not counting the tokens of the chat format."""

    def __init__(self, base: Base, limit: int, behind: int = 0) -> None:
        """Make prompts that leave room for `behind` tokens after them in the context of `base`.

        Raises BadModel where the context has no room for a request.
        """
        self._base = base
        one, other = (base.chat([("user", text)]) for text in ("a", "b"))
        self._before = next(i for i, (x, y) in enumerate(zip(one, other, strict=True)) if x != y)
        self._after = one[self._before + 1 :]
        self.limit = min(limit, self._room(behind))
        """The most tokens of a text in a prompt."""
        if self.limit < 1:
            raise BadModel(
                f"{base.name} has a context of {base.architecture.context:,} tokens: too few for a request, the markup "
                f"of a chat and {behind:,} generated tokens; choose another base model, or shorter ids"
            )

    def _room(self, behind: int) -> int:
        return self._base.architecture.context - self._before - len(self._after) - behind

    def ask(self, text: str) -> list[int]:
        """A prompt in which the user says this text, with an open turn of the assistant at the end."""
        tokens = self._base.chat([("user", text)])
        return self._cut(tokens, self.limit)

    def join(self, first: Sequence[int], second: Sequence[int]) -> list[int]:
        """One prompt with the text of the first prompt, then that of the second."""
        end = len(first) - len(self._after)
        text = [*first[:end], *second[self._before : len(second) - len(self._after)]]
        return [*text[: self._before + self.limit], *self._after]

    def truncate(self, prompt: Sequence[int], behind: int) -> list[int]:
        """The prompt, its text cut so that `behind` tokens after it fit into the context."""
        return self._cut(prompt, max(0, self._room(behind)))

    def _cut(self, prompt: Sequence[int], limit: int) -> list[int]:
        most = self._before + limit
        return list(prompt if len(prompt) <= most + len(self._after) else [*prompt[:most], *self._after])
