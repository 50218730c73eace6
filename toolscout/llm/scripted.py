"""A language model that gives prepared answers, for tests and for examples without a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolscout.errors import BadCompletion, BadRequest
from toolscout.llm.base import (
    Completion,
    Conversation,
    LanguageModel,
    Message,
    Outcome,
    Schema,
    Schemas,
    check_call,
    cut,
    each_schema,
    fitted,
    settled,
)

Speech = str | Callable[[Conversation], str]


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """An answer to every conversation with the text `when` in a message; without `when`, it is given once, in order."""

    text: Speech
    when: str | None = None


class Scripted(LanguageModel):
    """Gives prepared answers. `asked` has every conversation it was given."""

    def __init__(self, lines: Iterable[Speech | ScriptedReply], *, name: str = "scripted") -> None:
        """Take the answers: those with `when` come first, whenever they match; the others are given in order, once."""
        replies = [line if isinstance(line, ScriptedReply) else ScriptedReply(line) for line in lines]
        self.name = name
        self.asked: list[list[Message]] = []
        self._matching = [line for line in replies if line.when is not None]
        self._in_turn = [line for line in replies if line.when is None][::-1]

    @classmethod
    def read(cls, path: str | Path) -> Scripted:
        """Read a file with a JSON object per line, {"text": …} or {"when": …, "text": …}; raises BadRequest."""
        try:
            records = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
            lines = [ScriptedReply(str(record["text"]), record.get("when")) for record in records]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadRequest(
                f'{path} is no script ({error}); write a line of JSON for each answer: {{"text": "…"}}, or '
                '{"when": "words of the request", "text": "…"}'
            ) from None
        return cls(lines)

    def complete(
        self,
        conversations: Sequence[Conversation],
        *,
        n: int = 1,
        temperature: float = 0.0,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        schema: Schemas = None,
    ) -> list[list[Completion]]:
        """The next n answers for each conversation; tokens are counted as words."""
        check_call(conversations, n, temperature, max_tokens, stop)
        schemas = each_schema(schema, len(conversations))
        self.asked += [list(conversation) for conversation in conversations]
        pairs = zip(conversations, schemas, strict=True)
        return settled([self._answers(conversation, n, max_tokens, stop, wanted) for conversation, wanted in pairs])

    def _answers(
        self, conversation: Conversation, n: int, max_tokens: int, stop: Sequence[str], schema: Schema | None
    ) -> Outcome:
        found: list[Completion] = []
        read = sum(len(message.content.split()) for message in conversation)
        for _ in range(n):
            try:
                text = self._line(conversation)
                text, repairs = (cut(text, stop)[0], ()) if schema is None else fitted(text, schema)
            except BadCompletion as error:
                return error
            words = len(text.split())
            if schema is None and words > max_tokens:
                found.append(Completion(" ".join(text.split()[:max_tokens]), read, max_tokens, "length", cost=0.0))
            else:
                found.append(Completion(text, read, words, "stop", cost=0.0, repairs=repairs))
        return found

    def _line(self, conversation: Conversation) -> str:
        matching = (
            line for line in self._matching if any(str(line.when) in message.content for message in conversation)
        )
        line = next(matching, None) or (self._in_turn.pop() if self._in_turn else None)
        if line is None:
            shown = conversation[-1].content[:80]
            raise BadCompletion(f"the script has no line left for: {shown}; add one to it")
        return line.text if isinstance(line.text, str) else line.text(conversation)
