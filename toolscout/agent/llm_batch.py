"""Sends a batch of conversations to a language model and returns, for each, the text or why there is none."""

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
    """The text that a model wrote. `failed` says why there is none; `repairs` and `refused` are those of Completion.

    `tokens`: those of the conversation and of the text together.
    """

    text: str
    failed: str = ""
    repairs: tuple[str, ...] = ()
    refused: str = ""
    tokens: int = 0


def ask(
    llm: LanguageModel,
    conversations: Sequence[Sequence[Turn]],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    schemas: Sequence[Schema] | None = None,
    stop: Sequence[str] = (),
) -> list[Reply]:
    """Return a reply for each conversation, all sent in one batch. `schemas` holds a JSON Schema for each reply."""
    if not conversations:
        return []
    batch = [[Message(turn.role, turn.content, turn.action) for turn in turns] for turns in conversations]
    try:
        outcomes: Sequence[object] = complete_each(
            llm, batch, temperature=temperature, max_tokens=max_tokens, schema=schemas, stop=stop
        )
    except LanguageModelError as error:
        outcomes = error.each(len(batch))
    return [_reply(outcome) for outcome in outcomes]


def _reply(outcome: object) -> Reply:
    if not isinstance(outcome, list):
        return Reply("", str(outcome))
    (one,) = outcome
    tokens = one.prompt_tokens + one.completion_tokens
    return Reply(one.text.strip(), repairs=one.repairs, refused=one.refused, tokens=tokens)


def json_object(text: str) -> dict[str, Any] | None:
    """Return the first JSON object in a text, or None. Models often put words or a code fence around it."""
    decoder = json.JSONDecoder()
    for at in (at for at, sign in enumerate(text[:4_000]) if sign == "{"):
        try:
            found = decoder.raw_decode(text, at)[0]
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else None
    return None
