"""The interface of language models: conversations in, completions out, in batches, with token counts and costs."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

from toolscout.core.answer import Cost
from toolscout.core.argument_checks import repaired, value_problems
from toolscout.errors import BadCompletion, BadRequest, LanguageModelError

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length"]
_PLACES = 20  # the most brackets of an answer at which JSON is looked for
_THOUGHT = re.compile(r"<(/?)(?:thinking|think|reasoning)(?:\s[^<>]{0,200})?>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. `action` is the id of a tool, or Finish, where the content is one; "" for text.

    A model that generates tool ids reads such a turn as the id's tokens; any other model reads the content.
    """

    role: Role
    content: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """The text that a model wrote, with token counts and cost.

    prompt_tokens: the tokens of the conversation, the same for each of its n completions.
    finish: "length" where the text was cut off.
    cost: this completion's share of the cost, so that costs add up; None where the prices are not known.
    cached: whether it came from the cache.
    repairs: with a schema, what was corrected in the JSON.
    refused: with a schema, why a first answer did not fit, where the model was asked a second time.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    finish: Finish
    cost: float | None = None
    cached: bool = False
    repairs: tuple[str, ...] = ()
    refused: str = ""


Conversation = Sequence[Message]
Schema = Mapping[str, Any]
Schemas = Schema | Sequence[Schema | None] | None
"""One schema for all conversations of a call, or one (or None) for each of them."""
Outcome = list[Completion] | BadCompletion


class LanguageModel(ABC):
    """A language model that completes conversations; several threads may use it at once."""

    name: str

    @property
    def parameters(self) -> int:
        """The number of parameters; 0 where it is not known, or the model runs on another machine."""
        return 0

    @abstractmethod
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
        """Give back n completions of each conversation, each cut before the first `stop` string.

        With a `schema`, one for all conversations or one for each, every text is JSON that fits it. Where some
        conversation has no usable completion, raises BadCompletion once the others are done, with their completions as
        `results`; `complete_each` returns these instead.
        """


def complete_each(model: LanguageModel, conversations: Sequence[Conversation], **settings: Any) -> list[Outcome]:
    """For each conversation, its completions or a BadCompletion that says why it has none.

    Reasoning that a model writes before its answer, such as <think>…</think>, is removed.
    """
    try:
        return [_spoken(outcome) for outcome in model.complete(conversations, **settings)]
    except BadCompletion as error:
        if error.results is None or len(error.results) != len(conversations):
            return [error for _ in conversations]
        return [_spoken(outcome) for outcome in cast(list[Outcome], list(error.results))]
    except LanguageModelError as error:
        if error.results is not None:
            error.results = [_spoken(one) if isinstance(one, list) else one for one in error.results]
        raise


def _spoken(outcome: Outcome) -> Outcome:
    if isinstance(outcome, BadCompletion):
        return outcome
    texts = [spoken(one.text) for one in outcome]
    if any(one.text for one in outcome) and not any(texts):
        return no_answer(outcome[0].finish == "length")
    return [one if text == one.text else replace(one, text=text) for one, text in zip(outcome, texts, strict=True)]


def no_answer(cut_off: bool) -> BadCompletion:
    """The error for a model that wrote its reasoning and no answer."""
    if cut_off:
        return BadCompletion("the model used up max_tokens before it wrote a word of its answer; raise max_tokens")
    return BadCompletion("the model wrote down its thoughts and no answer; ask it again, or raise max_tokens")


def spoken(text: str) -> str:
    """An answer without the model's reasoning in <think> or similar tags; "" where there is nothing else.

    Only a tag at the start of a line opens reasoning. Tags elsewhere, and in JSON after the reasoning, are kept.
    """
    if not _THOUGHT.search(text) or _is_json(text):
        return text
    parts, end, thinking, thought = list[str](), 0, False, False
    for number, tag in enumerate(_THOUGHT.finditer(text)):
        if not tag[1]:
            if not thinking and _begins_line(text, end, tag.start()):
                parts.append(text[end : tag.start()])
                thinking = thought = True
        # Where the prompt itself opened the reasoning, the answer has the closing tag alone.
        elif thinking or thought or (number == 0 and text[tag.end() : tag.end() + 1] in ("", "\n", "\r")):
            parts = parts if thinking else []
            end, thinking, thought = tag.end(), False, True
            rest = text[end : end + 100].lstrip()
            if rest.startswith(("{", "[", "```")):
                return text[end:].strip()
    if not thought:
        return text
    return "".join([*parts, "" if thinking else text[end:]]).strip()


def _begins_line(text: str, least: int, place: int) -> bool:
    before = text[max(least, place - 100) : place].rstrip(" \t")
    return not before or before.endswith("\n")


def _is_json(text: str) -> bool:
    """Whether the whole text is JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def settled(outcomes: Sequence[Outcome]) -> list[list[Completion]]:
    """The completions of all conversations; raises BadCompletion, with all outcomes, where some have none."""
    failed = [outcome for outcome in outcomes if isinstance(outcome, BadCompletion)]
    if failed:
        count = f" ({len(failed)} of {len(outcomes)} conversations failed)" if len(outcomes) > 1 else ""
        raise BadCompletion(f"{failed[0]}{count}", results=outcomes)
    return [outcome for outcome in outcomes if not isinstance(outcome, BadCompletion)]


@dataclass(slots=True)
class Usage:
    """Totals of tokens and costs over completions."""

    conversations: int = 0
    completions: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None

    def add(self, results: Iterable[Sequence[Completion]]) -> None:
        """Add what `complete` returned; a cached completion adds tokens, but no cost."""
        for completions in results:
            self.conversations += bool(completions)
            self.completions += len(completions)
            self.cached += sum(one.cached for one in completions)
            self.prompt_tokens += max((one.prompt_tokens for one in completions), default=0)
            self.completion_tokens += sum(one.completion_tokens for one in completions)
            for one in completions:
                if one.cost is not None:
                    self.cost = (self.cost or 0.0) + (0.0 if one.cached else one.cost)

    def as_cost(self) -> Cost:
        """The totals as the cost of a search."""
        return Cost(
            calls=self.conversations,
            cached=self.cached,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            price=self.cost,
        )

    def row(self) -> dict[str, int | float | None]:
        """The totals under the names of the columns of results."""
        return {
            "llm_calls": self.conversations,
            "llm_cached": self.cached,
            "llm_prompt_tokens": self.prompt_tokens,
            "llm_completion_tokens": self.completion_tokens,
            "llm_cost": None if self.cost is None else round(self.cost, 6),
        }


def check_call(
    conversations: Sequence[Conversation], n: int, temperature: float, max_tokens: int, stop: Sequence[str]
) -> None:
    """Raise BadRequest for arguments of `complete` that no model accepts."""
    if n < 1 or max_tokens < 1:
        raise BadRequest(f"n is {n} and max_tokens is {max_tokens}; both have to be 1 or more")
    if not 0 <= temperature <= 100:
        raise BadRequest(f"the temperature is {temperature}; it has to be 0 (the likeliest words) or above")
    if isinstance(stop, str) or not all(stop):
        raise BadRequest("stop is a list of strings, none of them empty")
    for conversation in conversations:
        if not conversation:
            raise BadRequest("a conversation has no message; begin it with a system or user message")
        for message in conversation:
            if not isinstance(message, Message):
                raise BadRequest(f"a conversation is of llm.Message(role, content), got {type(message).__name__}")
            if message.role not in get_args(Role):
                raise BadRequest(f"{message.role!r} is no role; use one of: {', '.join(get_args(Role))}")


def each_schema(schema: Schemas, count: int) -> list[Schema | None]:
    """The schema of each of `count` conversations; raises BadRequest where their number differs."""
    if schema is None or isinstance(schema, Mapping):
        return [schema] * count
    if len(schema) != count:
        raise BadRequest(f"there are {len(schema)} schemas for {count} conversations; give one for all, or one each")
    return list(schema)


def cut(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there was one."""
    places = [place for place in (text.find(word) for word in stop) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)


def fitted(text: str, schema: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The JSON in a model's answer, made to fit the schema, and a list of the repairs; raises BadCompletion."""
    value, repairs = _parsed(text), list[str]()
    if isinstance(value, dict) and value_problems(value, schema):
        value, repairs = repaired(value, schema)
    found = value_problems(value, schema)
    if found:
        raise BadCompletion(f"the model's JSON does not fit: {'; '.join(found[:5])}")
    return json.dumps(value, ensure_ascii=False), tuple(repairs)


def _parsed(text: str) -> Any:
    """The first JSON value of an answer, which may have words or a code fence around it; raises BadCompletion."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        decoder = json.JSONDecoder(parse_constant=_refuse)
        for place in [place for place, sign in enumerate(text) if sign in "{["][:_PLACES]:
            try:
                return decoder.raw_decode(text, place)[0]
            except (ValueError, RecursionError):
                continue
    shown = " ".join(text.split())[:120]
    raise BadCompletion(f"the model did not answer with JSON but with: {shown or 'nothing'}")


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")
