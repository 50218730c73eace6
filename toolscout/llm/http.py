"""One JSON request over HTTP, with the standard library; how long to wait before the next; how often one may ask."""

from __future__ import annotations

import email.utils
import http.client
import json
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolscout.core.http_deadline import Deadline, Timed
from toolscout.llm.hosts import is_loopback

MAX_BYTES = 8_000_000  # of an answer
_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What a server answered; `wait`: the seconds it asks to be left alone."""

    status: int
    body: bytes
    wait: float | None = None
    location: str = ""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would carry the key to another host."""

    def redirect_request(self, *_: Any) -> None:
        """No."""


def post(url: str, payload: Mapping[str, Any], headers: Mapping[str, str], timeout: float) -> HttpReply:
    """Send JSON and read the whole reply, whatever its status.

    Raises TimeoutError when it is not all there after `timeout` seconds, OSError when the server cannot be reached or
    hangs up, ValueError when the reply is too large.
    """
    body = json.dumps(payload).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers}, method="POST")
    deadline = Deadline(timeout)
    try:
        reply = _exchange(request, deadline, timeout)
    except OSError:
        if not deadline.passed:
            raise
    finally:
        deadline.close()
    if deadline.passed:  # also where what came looks whole: a shut connection reads as one that has ended
        raise TimeoutError("the reply came too slowly")
    return reply


def _exchange(request: urllib.request.Request, deadline: Deadline, timeout: float) -> HttpReply:
    # A proxy would be handed what is meant for this machine, the key in plain text included.
    direct = [urllib.request.ProxyHandler({})] if is_loopback(request.full_url) else []
    try:
        response: Any = urllib.request.build_opener(_NoRedirects, Timed(deadline), *direct).open(
            request, timeout=timeout
        )
    except urllib.error.HTTPError as error:  # a reply all the same
        response = error
    except urllib.error.URLError as error:
        if isinstance(error.reason, OSError):
            raise error.reason from None
        raise ConnectionError(str(error.reason)) from None
    except http.client.HTTPException as error:
        raise ConnectionError(type(error).__name__) from None
    with response:
        received = bytearray()
        try:
            while chunk := response.read1(_CHUNK):
                received += chunk
                if len(received) > MAX_BYTES:
                    raise ValueError(f"more than {MAX_BYTES // 1_000_000} MB")
        except http.client.HTTPException as error:
            raise ConnectionError(type(error).__name__) from None
        expected = response.headers.get("Content-Length", "")
        if expected.isdecimal() and len(received) < int(expected):
            raise ConnectionError("the reply broke off")
        wait = _seconds(response.headers.get("Retry-After"))
        return HttpReply(int(response.status), bytes(received), wait, response.headers.get("Location", ""))


def _seconds(value: str | None) -> float | None:
    """The header Retry-After: seconds, or a date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


class RateLimiter:
    """Lets requests pass, so many a minute at most and evenly; shut for all while a server asks for silence."""

    def __init__(self, per_minute: float | None) -> None:
        """None: no limit of our own."""
        self._every = 60.0 / per_minute if per_minute else 0.0
        self._lock = threading.Lock()
        self._next = 0.0

    def shut(self, seconds: float) -> None:
        """Let nothing pass for a while."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)

    def wait(self, until: float = math.inf) -> bool:
        """Return when the next request may go; at once, and False, where that is after `until` (of time.monotonic)."""
        with self._lock:
            mine = max(self._next, time.monotonic())
            if mine > until:  # the turn is left to others
                return False
            self._next = mine + self._every
        # Not before its turn, even where the gate was shut meanwhile for longer: that request is then told again.
        time.sleep(max(0.0, mine - time.monotonic()))
        return True
