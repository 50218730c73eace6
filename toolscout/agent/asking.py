"""Asks a language model in batches: turns in, texts or the reason why there is none out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolscout.conversations import Turn
from toolscout.errors import LanguageModelError
from toolscout.llm.base import Completion, Conversation, LanguageModel, Message, Usage, complete_each, settled

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model wrote; `failed` says why where it wrote nothing that can be used."""

    text: str
    failed: str = ""


def ask(
    llm: LanguageModel,
    conversations: Sequence[Sequence[Turn]],
    *,
    max_tokens: int,
    schemas: Sequence[Schema] | None = None,
    stop: Sequence[str] = (),
) -> list[Reply]:
    """A reply for each conversation. Those that share a schema, and all that have none, are one batch."""
    replies: list[Reply | None] = [None] * len(conversations)
    groups: dict[str, list[int]] = {}
    for at in range(len(conversations)):
        groups.setdefault(json.dumps(schemas[at], default=str) if schemas else "", []).append(at)
    for members in groups.values():
        batch = [[Message(turn.role, turn.content) for turn in conversations[at]] for at in members]
        schema = schemas[members[0]] if schemas else None
        for at, reply in zip(members, _asked(llm, batch, max_tokens, schema, stop), strict=True):
            replies[at] = reply
    return [reply for reply in replies if reply is not None]


def _asked(
    llm: LanguageModel, batch: list[list[Message]], max_tokens: int, schema: Schema | None, stop: Sequence[str]
) -> list[Reply]:
    try:
        outcomes = complete_each(llm, batch, max_tokens=max_tokens, schema=schema, stop=stop)
    except LanguageModelError as error:
        return [Reply("", str(error)) for _ in batch]
    return [_reply(outcome) for outcome in outcomes]


def _reply(outcome: Sequence[Completion] | LanguageModelError) -> Reply:
    if isinstance(outcome, LanguageModelError):
        return Reply("", str(outcome))
    return Reply(outcome[0].text.strip())


class Metered:
    """A language model whose use is added up."""

    def __init__(self, llm: LanguageModel) -> None:
        """Nothing is used yet."""
        self.name, self.usage = llm.name, Usage()
        self._llm = llm

    def complete(
        self,
        conversations: Sequence[Conversation],
        *,
        n: int = 1,
        temperature: float = 0.0,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        schema: Schema | None = None,
    ) -> list[list[Completion]]:
        """As the model itself."""
        settings: dict[str, Any] = {"n": n, "temperature": temperature, "max_tokens": max_tokens}
        outcomes = complete_each(self._llm, conversations, **settings, stop=stop, schema=schema)
        self.usage.add([one for one in outcomes if not isinstance(one, LanguageModelError)])
        return settled(outcomes)


def json_object(text: str) -> dict[str, Any] | None:
    """The first JSON object in a text: models like to put words or a fence around it."""
    decoder = json.JSONDecoder()
    for at in (at for at, sign in enumerate(text[:4_000]) if sign == "{"):
        try:
            found = decoder.raw_decode(text, at)[0]
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else None
    return None
