"""Builds the HTTP request of a tool call (path, query, headers, cookies, body as OpenAPI says) and sends it."""

from __future__ import annotations

import http.client
import json
import re
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from toolscout.core import tracing
from toolscout.core.addresses import Addresses
from toolscout.core.http_deadline import Deadline, opener
from toolscout.core.targets import climbs
from toolscout.core.tool import Origin
from toolscout.errors import BadRequest

MAX_BYTES = 4 * 1024 * 1024
_JOINED = {"csv": ",", "ssv": " ", "tsv": "\t", "pipes": "|", "spaceDelimited": " ", "pipeDelimited": "|"}
_METHODS = ("GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE")
_BODIED = ("POST", "PUT", "PATCH")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE_BREAK = re.compile(r"[\r\n\x00]")
_SENDER_HEADERS = frozenset("host connection content-length transfer-encoding te trailer upgrade expect".split())


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request to send. Its repr leaves out headers and body, which may hold secrets."""

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False, default_factory=dict)
    body: bytes | None = field(repr=False, default=None)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The response; `text` is its body as text, or a note about a binary body."""

    status: int
    reason: str
    text: str


def request(origin: Origin, arguments: Mapping[str, Any], base: str, headers: Mapping[str, str]) -> HttpRequest:
    """Return the request that calls the operation `origin` at the base URL; BadRequest where it cannot be built."""
    details = origin.details
    places, renamed = details.get("in", {}), details.get("renamed", {})
    if not _is_url(base):
        # A base URL from the options may hold a password, so it is not quoted; the stored one holds none.
        shown = "no address" if not base else base if base == origin.target else "what was given is no http(s) URL"
        raise BadRequest(f"it is not known where this is served ({shown}); give its base URL")
    path, sent = str(details.get("path", "")), dict(headers)
    query: list[tuple[str, str]] = []
    cookies: list[str] = []
    body: dict[str, Any] = {}
    for key, value in arguments.items():
        name, place = renamed.get(key, key), places.get(key, "query")
        style = details.get("style", {}).get(key, {})
        if place == "path":
            path = path.replace(f"{{{name}}}", _segment(name, value))
        elif place == "query":
            query += _query(name, value, style)
        elif place == "header":
            # The model may overwrite neither configured headers nor those that the HTTP client sets.
            if _plain(name) not in {*map(_plain, headers), *_SENDER_HEADERS}:
                sent[name] = _header(name, _joined(value))
        elif place == "cookie":
            if "cookie" not in map(_plain, headers):
                cookies.append(f"{quote(name, safe='')}={quote(_joined(value), safe='')}")
        else:
            body[key if key == details.get("whole_body") else name] = value
    method = str(details.get("method", "GET")).upper()
    if method not in _METHODS:
        raise BadRequest("this operation has no HTTP method that is known; add its document again")
    data, kind = _body(body, details) if body else (b"" if method in _BODIED else None, "")
    sent |= {"Content-Type": kind} if kind else {}
    sent |= {"Cookie": "; ".join(cookies)} if cookies else {}
    # Without the slash a path such as "@elsewhere.example/" would change the host.
    path = "/" + path.removeprefix("/") if path else ""
    if climbs(path):
        raise BadRequest("the path, with these arguments, leaves the address where this is served; give other values")
    url = base.rstrip("/") + quote(path, safe="/%:@!$&'()*+,;=~-._") + (f"?{urlencode(query)}" if query else "")
    return HttpRequest(method, url, sent, data)


def send(made: HttpRequest, timeout: float, addresses: Addresses | None = None) -> HttpResponse:
    """Send a request and return the response, error statuses included.

    `timeout`: seconds for the whole exchange. `addresses`: hosts that may have private addresses, redirects included;
    None: only the host of the request. Raises BadRequest where no response comes in time.
    """
    deadline = Deadline(timeout)
    try:
        with _opened(made, deadline, addresses or Addresses.of_url(made.url), timeout) as answer:
            found = HttpResponse(answer.status, str(answer.reason), _read(answer))
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if deadline.passed or isinstance(reason, TimeoutError):
            raise BadRequest(_late(timeout)) from None
        # The error quotes the malformed address or header, which may be a secret: say less.
        if isinstance(reason, ValueError | http.client.InvalidURL):
            raise BadRequest("the address or a header is malformed; check --target and --header") from None
        raise BadRequest(f"the server cannot be reached: {reason}") from None
    finally:
        deadline.close()
    if deadline.passed:  # a connection that the deadline shut looks like a complete response
        raise BadRequest(_late(timeout))
    return found


def _opened(made: HttpRequest, deadline: Deadline, addresses: Addresses, timeout: float) -> Any:
    """Return the open response, which the caller reads and closes. No header is sent on after a redirect."""
    asked = urllib.request.Request(made.url, data=made.body, method=made.method)
    sent = {"Accept": "application/json, */*", "User-Agent": "toolscout", **tracing.outgoing(), **made.headers}
    for name, value in sent.items():
        asked.add_unredirected_header(name, value)
    try:
        return opener(deadline, addresses).open(asked, timeout=timeout)
    except urllib.error.HTTPError as error:
        return error


def _late(timeout: float) -> str:
    return f"the server did not answer within {timeout:g} s"


def _read(answer: Any) -> str:
    found = answer.read(MAX_BYTES + 1)
    cut = ""
    if len(found) > MAX_BYTES:
        cut = "\n(the rest of the response was not read)"
    elif getattr(answer, "length", None):  # fewer bytes came than Content-Length says
        cut = "\n(the response ended before it was whole)"
    found, kind = found[:MAX_BYTES], answer.headers.get_content_type()
    if kind.startswith(("image/", "audio/", "video/")) or kind in ("application/octet-stream", "application/zip"):
        return f"({len(found):,} bytes of {kind}){cut}"
    try:
        return str(found.decode(answer.headers.get_content_charset() or "utf-8", errors="replace")) + cut
    except LookupError:  # an unknown charset
        return str(found.decode(errors="replace")) + cut


def _is_url(base: str) -> bool:
    try:
        parts = urlsplit(base)
    except ValueError:  # not passed on: it quotes the address
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _joined(value: Any, between: str = ",") -> str:
    if isinstance(value, Mapping):
        return between.join(part for pair in value.items() for part in map(_text, pair))
    return between.join(map(_text, value)) if isinstance(value, list | tuple) else _text(value)


def _segment(name: str, value: Any) -> str:
    text = _joined(value)
    if text in ("", ".", ".."):
        raise BadRequest(f"{name} stands in the path and may not be {text!r}; give another value")
    return quote(text, safe=",")


def _plain(name: str) -> str:
    """Return a header's name as servers compare it; some read an underscore as a hyphen."""
    return name.strip().lower().replace("_", "-")


def _header(name: str, text: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise BadRequest(f"{name!r:.80} is no name of a header; its document is malformed")
    if _LINE_BREAK.search(text) or not text.isascii():
        raise BadRequest(f"{name} is sent as a header and may hold plain characters of one line only")
    return text


def _query(name: str, value: Any, style: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the query pairs of a parameter: lists repeated, objects spread out, or joined where `style` says so."""
    form = style.get("collectionFormat") or style.get("style", "form")
    if isinstance(value, Mapping) and form == "deepObject":
        yield from ((f"{name}[{key}]", _text(item)) for key, item in value.items())
    elif isinstance(value, list | tuple | Mapping) and (form in _JOINED or style.get("explode") is False):
        yield name, _joined(value, _JOINED.get(form, ","))
    elif isinstance(value, Mapping):
        yield from ((str(key), _text(item)) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((name, _text(item)) for item in value)
    elif value is not None:
        yield name, _text(value)


def _body(fields: Mapping[str, Any], details: Mapping[str, Any]) -> tuple[bytes, str]:
    kind, whole = str(details.get("content_type", "application/json")), str(details.get("whole_body", ""))
    content = fields[whole] if whole in fields else dict(fields)
    if "json" in kind.lower():
        return json.dumps(content, default=str).encode(), kind
    if "urlencoded" in kind and isinstance(content, Mapping):
        return urlencode([pair for key, value in content.items() for pair in _query(key, value, {})]).encode(), kind
    if "multipart" in kind and isinstance(content, Mapping):
        return _multipart(content)
    return _text(content).encode(), kind


def _multipart(content: Mapping[str, Any]) -> tuple[bytes, str]:
    boundary = secrets.token_hex(16)
    lines: list[str] = []
    for name, value in content.items():
        safe = _LINE_BREAK.sub(" ", name).replace('"', "%22")
        lines += [f"--{boundary}", f'Content-Disposition: form-data; name="{safe}"', "", _text(value)]
    return "\r\n".join([*lines, f"--{boundary}--", ""]).encode(), f"multipart/form-data; boundary={boundary}"
