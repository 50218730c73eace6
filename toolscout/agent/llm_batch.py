"""Asks a language model in batches: turns in, texts or the reason why there is none out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolscout.data.conversations import Turn
from toolscout.errors import LanguageModelError
from toolscout.llm.base import (
    LanguageModel,
    Message,
    Schema,
    complete_each,
)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model wrote; `failed` says why where it wrote nothing that can be used. The rest as in Completion."""

    text: str
    failed: str = ""
    repairs: tuple[str, ...] = ()
    refused: str = ""


def ask(
    llm: LanguageModel,
    conversations: Sequence[Sequence[Turn]],
    *,
    max_tokens: int,
    schemas: Sequence[Schema] | None = None,
    stop: Sequence[str] = (),
) -> list[Reply]:
    """A reply for each conversation, in one batch; each may have a schema of its own."""
    if not conversations:
        return []
    batch = [[Message(turn.role, turn.content, turn.action) for turn in turns] for turns in conversations]
    try:
        outcomes: Sequence[object] = complete_each(llm, batch, max_tokens=max_tokens, schema=schemas, stop=stop)
    except LanguageModelError as error:
        outcomes = error.each(len(batch))
    return [_reply(outcome) for outcome in outcomes]


def _reply(outcome: object) -> Reply:
    if not isinstance(outcome, list):
        return Reply("", str(outcome))
    return Reply(outcome[0].text.strip(), repairs=outcome[0].repairs, refused=outcome[0].refused)


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
