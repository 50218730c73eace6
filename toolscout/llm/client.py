"""Asks an HTTP endpoint with JSON: key from the environment, rate limit, deadline, retries with back-off.

The API key is read from the environment for each request; no object, error or file here keeps it.
"""

from __future__ import annotations

import copy
import math
import os
import random
import re
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

from toolscout.errors import BadCompletion, EndpointError, NotYet
from toolscout.llm import replies
from toolscout.llm.hosts import key_in_the_open
from toolscout.llm.http import HttpReply, RateLimiter, post
from toolscout.llm.options import MOST, ConnectionOptions

_AGAIN = frozenset([408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529])


def _never(reply: HttpReply, payload: Mapping[str, Any]) -> bool:
    return False


class EndpointClient:
    """Sends JSON to the paths under one base URL. Safe to use from several threads.

    url: the base URL. model: the name of the model that is asked for. kind: what an answer is, such as "completion".
    field: the name of the list that every answer has.
    """

    def __init__(self, url: str, model: str, options: ConnectionOptions, kind: str, field: str) -> None:
        """Nothing is sent yet; url and options have been checked."""
        self.url, self.model, self.options, self._kind, self._field = url, model, options, kind, field
        self._gate = RateLimiter(options.requests_per_minute)
        self._seconds = self._ends = math.inf

    def within(self, seconds: float) -> EndpointClient:
        """The same client with a deadline in this many seconds, for replies, rate limit and retries."""
        hurried = copy.copy(self)
        hurried._seconds, hurried._ends = seconds, time.monotonic() + seconds
        return hurried

    @property
    def timed(self) -> bool:
        """Whether it has a deadline."""
        return self._ends < math.inf

    def left(self) -> float:
        """The seconds until its deadline."""
        return self._ends - time.monotonic()

    def ask(
        self,
        path: str,
        make_payload: Callable[[], dict[str, Any]],
        adapted: Callable[[HttpReply, Mapping[str, Any]], bool] = _never,
    ) -> dict[str, Any]:
        """The JSON object that the endpoint answers, with retries as far as the options and the deadline allow.

        `make_payload` makes what is sent, anew for each try. `adapted` looks at each reply and tells whether to send
        at once again what make_payload makes then. Raises EndpointError where the endpoint cannot be reached or
        refuses, BadCompletion where it refuses this payload or its answer is too large.
        """
        tries, why, status = 0, "", None
        while True:
            if not self._gate.wait(self._ends):
                raise self.late(why)
            payload = make_payload()
            try:
                reply = self._post(path, payload)
            except TimeoutError:
                if self.left() <= 0:
                    raise self.late() from None
                why, status = f"gave no answer within {self.options.timeout:g} seconds", None
            except OSError as error:
                why, status = f"cannot be reached ({error.strerror or error or type(error).__name__})", None
            else:
                status = reply.status
                if adapted(reply, payload):
                    continue
                found = self._read(reply)
                if not isinstance(found, str):
                    return found
                why = found
                if reply.wait is not None:
                    self._rest(reply.wait, why, status)
            pause = min(MOST, self.options.backoff * 2.0 ** min(tries, 60)) * random.uniform(0.5, 1.5)
            tries += 1
            if tries > self.options.retries or pause >= self.left():
                break
            time.sleep(pause)
        counted = f" {tries} times" if tries > 1 else ""
        raise EndpointError(f"{self.url} {why}{counted}; {_advice(status)}", status)

    def late(self, why: str = "") -> EndpointError:
        """The error for a deadline that has passed, or that passes before the next request may be sent."""
        if self.left() <= 0:
            return EndpointError(f"{self.url} gave no answer within {self._seconds:.3g} seconds; {_advice(None)}")
        why = why or "was asked as often as it may be for now (requests_per_minute, or it asked for a rest)"
        return NotYet(f"{self.url} {why}, and its next turn is too late; try again then, or raise timeout")

    def _post(self, path: str, payload: dict[str, Any]) -> HttpReply:
        key = self._key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            seconds = max(0.001, min(self.options.timeout, self.left()))
            return post(f"{self.url}{path}", payload, headers, seconds)
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
            raise BadCompletion(f"{self.url} answered with {error}; that is no {self._kind}") from None

    def _key(self) -> str:
        """The key in the environment now; raises EndpointError where it is malformed or would go over plain http."""
        key = os.environ.get(self.options.key_variable, "").strip()
        if not re.fullmatch(r"[!-~]*", key):
            raise EndpointError(f"the key in {self.options.key_variable} has blanks or odd signs; copy it there anew")
        if problem := key_in_the_open(self.url, self.options.key_variable):
            raise EndpointError(problem)
        return key

    def scrubbed(self, text: str, shortest: int = 1) -> str:
        """A text of the server, with the key replaced where the server echoed it."""
        key = os.environ.get(self.options.key_variable, "").strip()
        return text.replace(key, "[key]") if len(key) >= shortest else text

    def _rest(self, seconds: float, why: str, status: int) -> None:
        if seconds <= self.options.longest_wait:
            self._gate.shut(seconds)
        if seconds > min(self.options.longest_wait, self.left()):
            raise EndpointError(f"{self.url} {why} and asks to wait {seconds:.0f} seconds; try again then", status)

    def _read(self, reply: HttpReply) -> dict[str, Any] | str:
        """The JSON of a reply, or the reason to retry; raises where a retry would not help."""
        said = replies.message(reply.body, self.scrubbed)
        variable, status = self.options.key_variable, reply.status
        if 200 <= status < 300:
            found = replies.parsed(reply.body, self._field)
            return found if found is not None else f"answered with something that is no {self._kind} ({said})"
        if status in _AGAIN and "insufficient_quota" not in said:
            return f"answered {status} ({said})"
        if status in (400, 413, 422):
            raise BadCompletion(f"{self.url} refuses what it was asked ({status}: {said}); shorten or change it")
        if status in (401, 403):
            advice = f"check the key in {variable}" if self._key() else f"put its key into {variable}"
            raise EndpointError(f"{self.url} refuses access ({status}: {said}); {advice}", status)
        if status == 404:
            raise EndpointError(
                f"{self.url} has no model {self.model!r}, or is not a base URL such as https://host/v1 "
                f"(404: {said}); check both",
                status,
            )
        if 300 <= status < 400:
            where = replies.shortened(reply.location, self.scrubbed)
            raise EndpointError(f"{self.url} sends on to {where}; name that one", status)
        raise EndpointError(f"{self.url} answered {status} ({said}); {_advice(status)}", status)


def _advice(status: int | None) -> str:
    if status == 429:
        return "ask less often (requests_per_minute, concurrency), or see what the account allows"
    if status is None:
        return "check that it runs and that the URL is right, or raise timeout"
    return "try again later, or see what its log says"
