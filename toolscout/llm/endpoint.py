"""A client of OpenAI-compatible endpoints (POST …/chat/completions), with the standard library alone.

The API key is read from the environment for each request; no object, error or file here keeps it.
"""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, NamedTuple

from toolscout.errors import BadCompletion, BadRequest, LanguageModelError, NotCached
from toolscout.llm import replies
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
    no_answer,
    settled,
)
from toolscout.llm.cache import Cache, digest
from toolscout.llm.client import EndpointClient
from toolscout.llm.hosts import key_in_the_open
from toolscout.llm.http import HttpReply
from toolscout.llm.options import EndpointOptions, check, checked_url

_GRACE = 0.2  # seconds after the deadline in which a request may still report its error
_KEY_CHARS = 12  # a shorter key is a placeholder, which may be a word of any text, and is not removed from answers
_SENT_STOPS = 4  # some servers refuse more; the text is cut here as well
# Parameters that some servers do not support. Without response_format, the schema is put into the prompt; without n,
# completions are requested one by one.
_OPTIONAL = ("response_format", "temperature", "stop", "n")
_NOT_KNOWN = re.compile(r"support|unknown|unrecogni|permitted|not allowed|unexpected|invalid param", re.IGNORECASE)


class _Call(NamedTuple):
    """The settings of a completion."""

    n: int
    temperature: float
    max_tokens: int
    stop: tuple[str, ...]
    schema: Schema | None


class Endpoint(LanguageModel):
    """A model behind an OpenAI-compatible endpoint. Safe to use from several threads."""

    def __init__(self, url: str, model: str, options: EndpointOptions | None = None) -> None:
        """Name the base URL (what stands before /chat/completions) and the model.

        Raises BadRequest where a key would go over plain http to another machine.
        """
        self.options = options or EndpointOptions()
        self.url, self.name = checked_url(url), model
        check(self.options, model)
        if not self.options.offline and (problem := key_in_the_open(self.url, self.options.key_variable)):
            raise BadRequest(problem)
        self._cache = Cache(self.options.cache, read_only=self.options.offline) if self.options.cache else None
        self._client = EndpointClient(self.url, model, self.options, "completion", "choices")
        self._left_out: set[str] = set()  # of what may be sent, what this server refused

    def within(self, seconds: float) -> Endpoint:
        """The same endpoint with a deadline in this many seconds, for replies, rate limit and retries."""
        hurried = copy.copy(self)
        hurried._client = self._client.within(seconds)
        return hurried

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
        """n completions of each conversation, with several conversations in parallel.

        Raises EndpointError where the endpoint cannot be reached or refuses, NotCached where an answer is missing
        offline, and, once the others are done, BadCompletion where an answer is not usable. Each error has all outcomes
        so far as `results`. An answer is in the cache before the next request of its thread is sent.
        """
        check_call(conversations, n, temperature, max_tokens, stop)
        schemas = each_schema(schema, len(conversations))
        call = _Call(n, float(temperature), max_tokens, tuple(stop), None)
        stopped = threading.Event()  # set by an error that all requests would meet, so that no more are sent

        def work(conversation: Conversation, wanted: Schema | None) -> Outcome | LanguageModelError | None:
            if stopped.is_set():
                return None
            try:
                return self._outcome(conversation, call._replace(schema=wanted))
            except LanguageModelError as error:
                stopped.set()
                return error
            except BaseException:
                stopped.set()
                raise

        timed = self._client.timed
        pool = ThreadPoolExecutor(max_workers=self.options.concurrency)
        try:
            pairs = zip(conversations, schemas, strict=True)
            waiting = [pool.submit(work, conversation, wanted) for conversation, wanted in pairs]
            # A DNS lookup, or a wait for a locked file, cannot be interrupted: its thread is left behind.
            late = wait(waiting, max(0.0, self._client.left()) + _GRACE if timed else None).not_done
            return _settled([self._client.late() if one in late else one.result() for one in waiting])
        finally:
            pool.shutdown(wait=not timed, cancel_futures=True)

    def _outcome(self, conversation: Conversation, call: _Call) -> Outcome:
        messages = [[message.role, message.content] for message in conversation]
        key = digest(self.url, self.name, messages, *call)
        cached = None if self._cache is None else self._cache.get(key)
        if cached is not None:
            return cached
        if self.options.offline:
            raise NotCached(
                f"{self.options.cache} holds no completion for: {conversation[-1].content[:80]}; run once without "
                "offline, with the same model and settings, to record it"
            )
        try:
            found = self._completions(conversation, call)
        except BadCompletion as error:
            return error
        if self._cache is not None:
            self._cache.put(key, found)
        return found

    def _completions(self, conversation: Conversation, call: _Call) -> list[Completion]:
        found: list[Completion] = []
        while len(found) < call.n:  # some servers give one, whatever n is
            found += self._request(conversation, call._replace(n=call.n - len(found)))
        return [one if call.schema is None else self._fitted(one, conversation, call) for one in found[: call.n]]

    def _fitted(self, one: Completion, conversation: Conversation, call: _Call) -> Completion:
        """A completion that fits the schema; where it does not, the model is asked once more with the reason."""
        schema = call.schema or {}
        try:
            return _fitting(one, schema)
        except BadCompletion as error:
            if one.finish == "length":
                raise BadCompletion(f"the JSON was cut off after {call.max_tokens} tokens; raise max_tokens") from None
            why = str(error)
        feedback = f"{why}. Answer again, with nothing but JSON that fits this JSON Schema: {json.dumps(schema)}"
        longer = [*conversation, Message("assistant", one.text or "(nothing)"), Message("user", feedback)]
        second = self._request(longer, call._replace(n=1))[0]
        return _after(one, _fitting(second, schema), why)

    def _request(self, conversation: Conversation, call: _Call) -> list[Completion]:
        """Send one request; gives back at least one completion and at most n."""
        try:
            reply = self._client.ask("/chat/completions", lambda: self._payload(conversation, call), self._adapted)
            choices = replies.choices(reply, self._client.scrubbed)[: call.n]
        except BadCompletion as error:
            raise BadCompletion(self._client.scrubbed(str(error))) from None
        if call.schema is None and all(choice.length and not choice.text for choice in choices):
            raise no_answer(choices[0].cut_off)
        texts = [cut(self._client.scrubbed(choice.text, _KEY_CHARS), call.stop) for choice in choices]
        read, written = replies.tokens(reply, [message.content for message in conversation], choices)
        return [
            Completion(
                text,
                read,
                count,
                "length" if choice.cut_off and not stopped else "stop",
                self._cost(read / len(choices), count),
            )
            for (text, stopped), choice, count in zip(texts, choices, written, strict=True)
        ]

    def _cost(self, read: float, written: int) -> float | None:
        prices = self.options.input_price, self.options.output_price
        return None if prices[0] is None or prices[1] is None else (read * prices[0] + written * prices[1]) / 1e6

    def _adapted(self, reply: HttpReply, payload: Mapping[str, Any]) -> bool:
        """Whether the server refused an optional parameter, which is then left out from now on."""
        if reply.status not in (400, 422):
            return False
        said, parameter = replies.message(reply.body), replies.parameter(reply.body)
        if "max_tokens" in payload and "max_completion_tokens" in said:
            self._left_out.add("max_tokens")
            return True
        if not _NOT_KNOWN.search(said):
            return False
        for name in _OPTIONAL:
            if name in payload and (parameter == name or re.search(rf"['\"`]{name}\b|\b{name}['\"`]", said)):
                self._left_out.add(name)
                return True
        return False

    def _payload(self, conversation: Conversation, call: _Call) -> dict[str, Any]:
        # Most servers refuse a tool result without the call before it, so it is sent as a user's message.
        messages = [
            {"role": "user", "content": f"Result of the tool:\n{message.content}"}
            if message.role == "tool"
            else {"role": message.role, "content": message.content}
            for message in conversation
        ]
        limit = "max_completion_tokens" if "max_tokens" in self._left_out else "max_tokens"
        payload: dict[str, Any] = {"model": self.name, "messages": messages, limit: call.max_tokens}
        optional: dict[str, Any] = {"temperature": call.temperature}
        if call.n > 1:
            optional["n"] = call.n
        if call.stop:
            optional["stop"] = list(call.stop[:_SENT_STOPS])
        if call.schema is not None:
            described = {"name": "answer", "schema": call.schema}
            optional["response_format"] = {"type": "json_schema", "json_schema": described}
            if "response_format" in self._left_out:
                words = "Answer with nothing but JSON that fits this JSON Schema: "
                messages.insert(0, {"role": "system", "content": words + json.dumps(call.schema)})
        return payload | {name: value for name, value in optional.items() if name not in self._left_out}


def _settled(outcomes: Sequence[Outcome | LanguageModelError | None]) -> list[list[Completion]]:
    """As `settled`; raises first an error that stopped the whole call."""
    for one in outcomes:
        if isinstance(one, LanguageModelError) and not isinstance(one, BadCompletion):
            one.results = outcomes
            raise one
    return settled([one for one in outcomes if isinstance(one, list | BadCompletion)])


def _fitting(one: Completion, schema: Schema) -> Completion:
    """A completion with its text made to fit the schema, and the repairs; raises BadCompletion."""
    text, repairs = fitted(one.text, schema)
    return replace(one, text=text, repairs=repairs)


def _after(failed: Completion, one: Completion, why: str) -> Completion:
    """A completion with the tokens and cost of the failed one before it added, and the reason of that failure."""
    return replace(
        one,
        prompt_tokens=one.prompt_tokens + failed.prompt_tokens,
        completion_tokens=one.completion_tokens + failed.completion_tokens,
        cost=None if one.cost is None or failed.cost is None else one.cost + failed.cost,
        refused=why,
    )
