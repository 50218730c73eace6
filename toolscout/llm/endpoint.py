"""Any OpenAI-compatible endpoint (POST …/chat/completions), with the standard library alone.

The key is read from the environment when it is sent, and kept nowhere: no object, error or file here holds it.
"""

from __future__ import annotations

import json
import os
import random
import re
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from toolscout.errors import BadCompletion, BadRequest, EndpointError, NotCached, ToolscoutError
from toolscout.llm import _replies
from toolscout.llm._http import Gate, Reply, post
from toolscout.llm.base import (
    Completion,
    Conversation,
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
from toolscout.llm.cache import Cache, digest

KEY_VARIABLE = "OPENAI_API_KEY"
_AGAIN = frozenset([408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529])
_MOST = 1e6  # seconds, requests or money: what is beyond is a slip
_KEY_CHARS = 12  # what is shorter is a placeholder, as local servers take, and may be a word of any text
_SENT_STOPS = 4  # more are refused by some; the text is cut here as well
# What some servers do not know; without the first they are told the schema in words, n is asked for one by one.
_OPTIONAL = ("response_format", "temperature", "stop", "n")
_NOT_KNOWN = re.compile(r"support|unknown|unrecogni|permitted|not allowed|unexpected|invalid param", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Options:
    """How an endpoint is asked.

    `key_variable` names the environment variable that holds the key (unset: none is sent). `cache` is the file that
    keeps completions; `offline` answers from it alone. Prices are per million tokens. `timeout` is for one request;
    the n-th retry comes after about `backoff` * 2 ** n seconds, or when the server says, if that is within
    `longest_wait`.
    """

    key_variable: str = KEY_VARIABLE
    cache: str | Path | None = None
    offline: bool = False
    input_price: float | None = None
    output_price: float | None = None
    concurrency: int = 8
    requests_per_minute: float | None = None
    timeout: float = 60.0
    retries: int = 5
    backoff: float = 0.5
    longest_wait: float = 60.0


class _Call(NamedTuple):
    """What is asked of a conversation."""

    n: int
    temperature: float
    max_tokens: int
    stop: tuple[str, ...]
    schema: Schema | None


class Endpoint:
    """A model behind an OpenAI-compatible endpoint. Safe to use from several threads."""

    def __init__(self, url: str, model: str, options: Options | None = None) -> None:
        """Name the base URL (what stands before /chat/completions) and the model."""
        self.options = options or Options()
        self.url, self.name = _checked_url(url), model
        _check(self.options, model)
        self._cache = Cache(self.options.cache, read_only=self.options.offline) if self.options.cache else None
        self._gate = Gate(self.options.requests_per_minute)
        self._left_out: set[str] = set()  # of what may be sent, what this server refused

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
        """n completions of each conversation, several conversations at a time.

        Raises EndpointError when the endpoint cannot be reached or refuses, NotCached offline, and BadCompletion, once
        the others are done, where an answer is of no use. Every answer is in the cache before the next is asked for.
        """
        check_call(conversations, n, temperature, max_tokens, stop)
        schemas = each_schema(schema, len(conversations))
        call = _Call(n, float(temperature), max_tokens, tuple(stop), None)
        stopped = threading.Event()  # once one met a fault that all would meet, nobody else is asked

        def work(conversation: Conversation, wanted: Schema | None) -> Outcome:
            if stopped.is_set():
                raise CancelledError
            try:
                return self._outcome(conversation, call._replace(schema=wanted))
            except ToolscoutError:
                stopped.set()
                raise

        pool = ThreadPoolExecutor(max_workers=self.options.concurrency)
        try:
            pairs = zip(conversations, schemas, strict=True)
            waiting = [pool.submit(work, conversation, wanted) for conversation, wanted in pairs]
            return settled([one.result() for one in waiting])
        finally:
            pool.shutdown(cancel_futures=True)

    def _outcome(self, conversation: Conversation, call: _Call) -> Outcome:
        messages = [[message.role, message.content] for message in conversation]
        key = digest(self.url, self.name, messages, *call)
        kept = None if self._cache is None else self._cache.get(key)
        if kept is not None:
            return kept
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
        while len(found) < call.n:  # some servers give one, however many are asked for
            found += self._asked(conversation, call._replace(n=call.n - len(found)))
        return [one if call.schema is None else self._fitted(one, conversation, call) for one in found[: call.n]]

    def _fitted(self, one: Completion, conversation: Conversation, call: _Call) -> Completion:
        """A completion whose text fits the schema; a model that failed is told why and asked once more."""
        schema = call.schema or {}
        try:
            return _fitting(one, schema)
        except BadCompletion as error:
            if one.finish == "length":
                raise BadCompletion(f"the JSON was cut off after {call.max_tokens} tokens; raise max_tokens") from None
            why = str(error)
        told = f"{why}. Answer again, with nothing but JSON that fits this JSON Schema: {json.dumps(schema)}"
        retold = [*conversation, Message("assistant", one.text), Message("user", told)]
        second = self._asked(retold, call._replace(n=1))[0]
        return _after(one, _fitting(second, schema), why)

    def _asked(self, conversation: Conversation, call: _Call) -> list[Completion]:
        """The completions of one request: one or more, at most as many as asked for."""
        try:
            reply = self._reply(conversation, call)
            choices = _replies.choices(reply)[: call.n]
        except BadCompletion as error:
            raise BadCompletion(self._scrubbed(str(error))) from None
        texts = [cut(self._scrubbed(text, _KEY_CHARS), call.stop) for text, _ in choices]
        read, written = _replies.tokens(reply, [message.content for message in conversation], choices)
        return [
            Completion(
                text,
                read,
                count,
                "length" if cut_off and not stopped else "stop",
                self._cost(read / len(choices), count),
            )
            for (text, stopped), (_, cut_off), count in zip(texts, choices, written, strict=True)
        ]

    def _cost(self, read: float, written: int) -> float | None:
        prices = self.options.input_price, self.options.output_price
        return None if prices[0] is None or prices[1] is None else (read * prices[0] + written * prices[1]) / 1e6

    def _reply(self, conversation: Conversation, call: _Call) -> dict[str, Any]:
        """What the endpoint answers, after as many tries as it takes and is allowed."""
        tries, why, status = 0, "", None
        while tries <= self.options.retries:
            self._gate.wait()
            payload = self._payload(conversation, call)
            try:
                reply = self._post(payload)
            except TimeoutError:
                why, status = f"gave no answer within {self.options.timeout:g} seconds", None
            except OSError as error:
                why, status = f"cannot be reached ({error.strerror or error or type(error).__name__})", None
            else:
                status = reply.status
                if self._adapted(reply, payload):
                    continue
                found = self._read(reply)
                if not isinstance(found, str):
                    return found
                why = found
                if reply.wait is not None:
                    self._rest(reply.wait, why, status)
            if tries < self.options.retries:
                time.sleep(min(_MOST, self.options.backoff * 2.0 ** min(tries, 60)) * random.uniform(0.5, 1.5))
            tries += 1
        counted = f" {tries} times" if tries > 1 else ""
        raise EndpointError(f"{self.url} {why}{counted}; {_advice(status)}", status)

    def _post(self, payload: dict[str, Any]) -> Reply:
        key = self._key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            return post(f"{self.url}/chat/completions", payload, headers, self.options.timeout)
        except ssl.SSLCertVerificationError as error:
            raise EndpointError(
                f"{self.url} cannot be trusted ({error.verify_message}); check its host, or name the certificate that "
                "vouches for it in SSL_CERT_FILE"
            ) from None
        except OSError:  # some are ValueErrors too
            raise
        except UnicodeError as error:
            raise EndpointError(f"{self.url} cannot be looked up ({error}); check its host") from None
        except ValueError as error:
            raise BadCompletion(f"{self.url} answered with {error}; that is no completion") from None

    def _key(self) -> str:
        key = os.environ.get(self.options.key_variable, "").strip()
        if not re.fullmatch(r"[!-~]*", key):
            raise EndpointError(f"the key in {self.options.key_variable} has blanks or odd signs; copy it there anew")
        return key

    def _scrubbed(self, text: str, shortest: int = 1) -> str:
        """What a server says, without the key that it may have echoed."""
        key = os.environ.get(self.options.key_variable, "").strip()
        return text.replace(key, "[key]") if len(key) >= shortest else text

    def _rest(self, seconds: float, why: str, status: int) -> None:
        if seconds > self.options.longest_wait:
            raise EndpointError(
                f"{self.url} {why} and asks to wait {seconds:.0f} seconds; try again then",
                status,
            )
        self._gate.shut(seconds)

    def _read(self, reply: Reply) -> dict[str, Any] | str:
        """The reply's JSON, or in words why to try again."""
        said = _replies.message(reply.body, self._scrubbed)
        variable, status = self.options.key_variable, reply.status
        if 200 <= status < 300:
            found = _replies.parsed(reply.body)
            return found if found is not None else f"answered with something that is no completion ({said})"
        if status in _AGAIN and "insufficient_quota" not in said:
            return f"answered {status} ({said})"
        if status in (400, 413, 422):
            raise BadCompletion(f"{self.url} refuses what it was asked ({status}: {said}); shorten or change it")
        if status in (401, 403):
            advice = f"check the key in {variable}" if self._key() else f"put its key into {variable}"
            raise EndpointError(f"{self.url} refuses access ({status}: {said}); {advice}", status)
        if status == 404:
            raise EndpointError(
                f"{self.url} has no model {self.name!r}, or is not a base URL such as https://host/v1 "
                f"(404: {said}); check both",
                status,
            )
        if 300 <= status < 400:
            raise EndpointError(f"{self.url} sends on to {self._scrubbed(reply.location)}; name that one", status)
        raise EndpointError(f"{self.url} answered {status} ({said}); {_advice(status)}", status)

    def _adapted(self, reply: Reply, payload: Mapping[str, Any]) -> bool:
        """Whether the server refused something that it can be asked without; from now on it is."""
        if reply.status not in (400, 422):
            return False
        said, parameter = _replies.message(reply.body), _replies.parameter(reply.body)
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
        # A result without a call that it answers is refused by most: it is told as a user's message.
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


def _fitting(one: Completion, schema: Schema) -> Completion:
    """A completion with its text made to fit the schema, and what that took; or BadCompletion."""
    text, repairs = fitted(one.text, schema)
    return replace(one, text=text, repairs=repairs)


def _after(failed: Completion, one: Completion, why: str) -> Completion:
    """A completion with the tokens and cost of the one that failed before it, and the reason why that did."""
    return replace(
        one,
        prompt_tokens=one.prompt_tokens + failed.prompt_tokens,
        completion_tokens=one.completion_tokens + failed.completion_tokens,
        cost=None if one.cost is None or failed.cost is None else one.cost + failed.cost,
        refused=why,
    )


def _advice(status: int | None) -> str:
    if status == 429:
        return "ask less often (requests_per_minute, concurrency), or see what the account allows"
    if status is None:
        return "check that it runs and that the URL is right, or raise timeout"
    return "try again later, or see what its log says"


def _checked_url(url: str) -> str:
    if not re.fullmatch(r"[!-~]*", url):  # HTTP carries no others
        raise BadRequest(
            "an endpoint's URL has no blanks and no letters beyond ASCII; write a host's as xn--…, others as %C3%B6"
        )
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # an address in brackets, or a port, that is none
        usable = False
    if not usable:
        raise BadRequest("an endpoint is a base URL such as https://host/v1, http://host:8000/v1 or http://[::1]/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadRequest(f"the URL of an endpoint holds no user, key or query; a key belongs into {KEY_VARIABLE}")
    return parts.geturl().rstrip("/").removesuffix("/chat/completions")


def _check(options: Options, model: str) -> None:
    if not model:
        raise BadRequest("an endpoint needs the name of a model; give it as model")
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", options.key_variable):
        raise BadRequest(f"key_variable is the name of an environment variable such as {KEY_VARIABLE}, never a key")
    if options.offline and not options.cache:
        raise BadRequest("offline answers from a cache; name its file as cache")
    if (options.input_price is None) != (options.output_price is None):
        raise BadRequest("give the price of input and of output tokens, or neither")
    rate = 1.0 if options.requests_per_minute is None else options.requests_per_minute
    positive = (options.concurrency, options.timeout, rate)
    if not all(0 < one <= _MOST for one in positive):
        raise BadRequest("concurrency, timeout and requests_per_minute have to be above 0, and at most a million")
    others = (
        options.retries,
        options.backoff,
        options.longest_wait,
        options.input_price or 0,
        options.output_price or 0,
    )
    if not all(0 <= one <= _MOST for one in others):
        raise BadRequest("retries, backoff, longest_wait and prices have to be 0 or more, and at most a million")
