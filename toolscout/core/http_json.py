"""Reads a JSON document over HTTP: https or this machine, no redirects, bounded in size and time."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from toolscout.core.addresses import Addresses
from toolscout.core.http_deadline import Deadline, opener
from toolscout.core.targets import place_of
from toolscout.errors import ToolscoutError

MAX_BYTES = 1 << 20
SECONDS = 5.0
_LOOPBACK = frozenset(["127.0.0.1", "localhost", "::1"])


class FetchFailed(ToolscoutError):
    """A document that could not be read. `status`: the HTTP status of the answer, 0 where there was none.

    The message names the address without its query, and nothing that was sent or received.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        """Say what happened."""
        super().__init__(message)
        self.status = status


def is_secure(url: str) -> bool:
    """Return whether a URL is https, or http to this machine; others on the way could change what http carries."""
    place = place_of(url)
    return place is not None and not urlsplit(url).fragment and (place.scheme == "https" or place.host in _LOOPBACK)


def fetch_json(
    url: str,
    addresses: Addresses,
    *,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> Mapping[str, Any]:
    """Return the JSON object at a URL; with `form`, the answer to a POST of these fields.

    `addresses`: the hosts that may have private addresses. Raises FetchFailed where it cannot be read within `seconds`,
    is redirected, has more than MAX_BYTES, or is no JSON object.
    """
    shown = url.partition("?")[0]
    if not is_secure(url):
        raise FetchFailed(f"{shown} is not read: only https is, and http on this machine")
    asked = urllib.request.Request(url, data=None if form is None else urlencode(form).encode())
    for name, value in {"Accept": "application/json", "User-Agent": "toolscout", **(headers or {})}.items():
        asked.add_unredirected_header(name, value)
    deadline = Deadline(seconds)
    try:
        with opener(deadline, addresses, redirects=False).open(asked, timeout=seconds) as answer:
            body = answer.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise FetchFailed(f"{shown} answered {error.code}", error.code) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        late = deadline.passed or isinstance(reason, TimeoutError)
        why = f"did not answer within {seconds:g} s" if late else f"cannot be reached ({type(reason).__name__})"
        raise FetchFailed(f"{shown} {why}") from None
    finally:
        deadline.close()
    if deadline.passed:  # a connection that the deadline shut looks like a complete response
        raise FetchFailed(f"{shown} did not answer within {seconds:g} s")
    if len(body) > MAX_BYTES:
        raise FetchFailed(f"{shown} is larger than {MAX_BYTES // 1024:,} KiB")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FetchFailed(f"{shown} is no JSON object")
    return found
