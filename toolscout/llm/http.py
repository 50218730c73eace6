"""Sends one JSON request over HTTP with the standard library; and a rate limiter."""

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
    """The reply of a server; `wait` is its Retry-After in seconds, `location` the target of a redirect."""

    status: int
    body: bytes
    wait: float | None = None
    location: str = ""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which would send the key to another host."""

    def redirect_request(self, *_: Any) -> None:
        """Refuse every redirect."""


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
    if deadline.passed:  # even if the reply looks complete: a connection shut by the deadline reads like one that ended
        raise TimeoutError("the reply came too slowly")
    return reply


def _exchange(request: urllib.request.Request, deadline: Deadline, timeout: float) -> HttpReply:
    # No proxy for this machine's own addresses: it would get the request, and the key in plain text.
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
    """The seconds in a Retry-After header, which has seconds or a date; None where it has neither."""
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
    """Spaces requests evenly, at most `per_minute`; can be shut for a while when a server asks clients to wait."""

    def __init__(self, per_minute: float | None) -> None:
        """None sets no limit."""
        self._every = 60.0 / per_minute if per_minute else 0.0
        self._lock = threading.Lock()
        self._next = 0.0

    def shut(self, seconds: float) -> None:
        """Let no request pass for this many seconds."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)

    def wait(self, until: float = math.inf) -> bool:
        """Wait until the next request may be sent, and return True.

        Where that would be after `until` (a time of time.monotonic), return False at once.
        """
        with self._lock:
            slot = max(self._next, time.monotonic())
            if slot > until:  # the slot is left to others
                return False
            self._next = slot + self._every
        # A `shut` that comes while this sleeps does not delay it: the server will then answer with a wait again.
        time.sleep(max(0.0, slot - time.monotonic()))
        return True
