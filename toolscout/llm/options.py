"""The options of an endpoint, and checks of them and of its URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from toolscout.errors import BadRequest

KEY_VARIABLE = "OPENAI_API_KEY"
# Excludes hosts that urllib would decode, or that http.client would parse differently from urlsplit.
_PLACE = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]*)?", re.IGNORECASE)
MOST = 1e6  # the most seconds, requests or money: a higher value is taken for a mistake


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How requests are sent to an endpoint.

    key_variable: the environment variable with the API key; where it is not set, no key is sent.
    concurrency, requests_per_minute: the most requests at once, and the most per minute.
    timeout: seconds for one request.
    retries, backoff: the most retries; the n-th one comes after about backoff * 2 ** n seconds.
    longest_wait: the longest wait, in seconds, that a server may ask for before the request fails.
    """

    key_variable: str = KEY_VARIABLE
    concurrency: int = 8
    requests_per_minute: float | None = None
    timeout: float = 60.0
    retries: int = 5
    backoff: float = 0.5
    longest_wait: float = 60.0


@dataclass(frozen=True, slots=True)
class EndpointOptions(ConnectionOptions):
    """How completions are requested of an endpoint.

    cache, offline: the file that stores completions, and whether to answer from it alone.
    input_price, output_price: prices per million tokens.
    """

    cache: str | Path | None = None
    offline: bool = False
    input_price: float | None = None
    output_price: float | None = None


def checked_url(url: str) -> str:
    """The base URL of an endpoint, without the path of an API; raises BadRequest where it is not valid."""
    if not re.fullmatch(r"[!-~]*", url):  # HTTP carries no others
        raise BadRequest(
            "an endpoint's URL has no blanks and no letters beyond ASCII; write a host's as xn--…, others as %C3%B6"
        )
    try:
        parts = urlsplit(url)
        place = _PLACE.fullmatch(parts.netloc.rpartition("@")[2])
        usable = parts.scheme in ("http", "https") and place is not None and parts.port != 0
    except ValueError:  # an address in brackets, or a port, that is none
        usable = False
    if not usable:
        raise BadRequest("an endpoint is a base URL such as https://host/v1, http://host:8000/v1 or http://[::1]/v1")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise BadRequest(f"the URL of an endpoint holds no user, key or query; a key belongs into {KEY_VARIABLE}")
    base = parts.geturl().rstrip("/")
    for path in ("/chat/completions", "/embeddings", "/rerank"):
        base = base.removesuffix(path)
    return base


def check_connection(options: ConnectionOptions, model: str) -> None:
    """Raise BadRequest for options that are not valid, or without the name of a model."""
    if not model:
        raise BadRequest("an endpoint needs the name of a model; give it as model")
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", options.key_variable):
        raise BadRequest(f"key_variable is the name of an environment variable such as {KEY_VARIABLE}, never a key")
    rate = 1.0 if options.requests_per_minute is None else options.requests_per_minute
    if not all(0 < one <= MOST for one in (options.concurrency, options.timeout, rate)):
        raise BadRequest("concurrency, timeout and requests_per_minute have to be above 0, and at most a million")
    if not all(0 <= one <= MOST for one in (options.retries, options.backoff, options.longest_wait)):
        raise BadRequest("retries, backoff and longest_wait have to be 0 or more, and at most a million")


def check(options: EndpointOptions, model: str) -> None:
    """Raise BadRequest for options that are not valid, or without the name of a model."""
    check_connection(options, model)
    if options.offline and not options.cache:
        raise BadRequest("offline answers from a cache; name its file as cache")
    if (options.input_price is None) != (options.output_price is None):
        raise BadRequest("give the price of input and of output tokens, or neither")
    if not all(0 <= one <= MOST for one in (options.input_price or 0, options.output_price or 0)):
        raise BadRequest("prices have to be 0 or more, and at most a million")
