"""Errors as problem documents (RFC 9457): what went wrong, and what to do next."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response

from toolscout import errors
from toolscout.errors import ToolscoutError

MEDIA_TYPE = "application/problem+json"
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
# The first class that an error is an instance of counts; any other error is 422: another request may succeed.
_STATUS: tuple[tuple[type[ToolscoutError], int], ...] = (
    (errors.Unauthorized, 401),
    (errors.Forbidden, 403),
    (errors.UnknownTool, 404),
    (errors.DuplicateTool, 409),
    (errors.NeedsTraining, 409),
    (errors.StoreUnavailable, 503),
    (errors.StoreError, 503),
    (errors.SignInUnavailable, 503),
    (errors.LanguageModelError, 502),
    (errors.MissingExtra, 501),
    (errors.MissingEncoder, 501),
)
# Errors whose messages are about what the caller sent. Messages of other errors may name a path, a command or an
# address of this machine: they are logged, and the caller gets a general text.
_ABOUT_REQUEST = (
    errors.BadRequest,
    errors.BadTool,
    errors.BadSource,
    errors.UnknownTool,
    errors.DuplicateTool,
    errors.Forbidden,
    errors.Unauthorized,
)
_UNSPOKEN = {
    409: "the retriever of this server cannot search some of its tools before it is trained",
    501: "this server lacks a part that this needs",
    502: "the language model of this server did not answer; ask again later",
    503: "the catalogue cannot be read or written now; ask again later",
}
_log = logging.getLogger("toolscout.serving")


class Problem(Exception):
    """An error with an HTTP status."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None, code: str = "") -> None:
        """Take the status and a text for people. `code` names the kind for programs; by default the status' name."""
        super().__init__(detail)
        self.status, self.detail, self.headers, self.code = status, detail, dict(headers or {}), code


def of(error: Exception) -> Problem:
    """Return the problem for an error of this package."""
    if isinstance(error, Problem):
        return error
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 422)
    return Problem(status, public_message(error), _headers(error), _CAPITAL.sub("_", type(error).__name__).lower())


def _headers(error: Exception) -> dict[str, str]:
    """Return the headers of an error: what a client without rights should do (RFC 6750), or when to ask again."""
    if isinstance(error, errors.SignInUnavailable):
        return {"Retry-After": str(error.retry_after)}
    if isinstance(error, errors.StoreUnavailable):
        return {"Retry-After": "1"}
    if isinstance(error, errors.DiskFull):  # a person has to make room
        return {"Retry-After": "30"}
    if isinstance(error, errors.InsufficientScope):
        return {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{" ".join(error.scopes)}"'}
    if isinstance(error, errors.InvalidToken):
        return {"WWW-Authenticate": 'Bearer error="invalid_token"'}
    return {"WWW-Authenticate": "Bearer"} if isinstance(error, errors.Unauthorized) else {}


def public_message(error: Exception) -> str:
    """Return the text of an error for a caller over a network, without paths, command lines or stores (see the log)."""
    if isinstance(error, ToolscoutError) and error.public:
        return error.public
    if isinstance(error, (Problem, *_ABOUT_REQUEST)):
        return str(error)
    _log.warning("a caller was refused: %s", error)
    if isinstance(error, errors.DiskFull):
        return "there is no room left to write; nothing that was saved before is lost; try again when there is room"
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 422)
    return f"{_UNSPOKEN.get(status, 'this cannot be done here')}; the log of the server says why"


def response(problem: Problem) -> Response:
    """Return the HTTP response for a problem."""
    title = HTTPStatus(problem.status).phrase
    code = problem.code or title.lower().replace(" ", "_")
    record = {"type": "about:blank", "title": title, "status": problem.status, "detail": problem.detail, "code": code}
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **problem.headers}
    return Response(json.dumps(record), problem.status, headers, MEDIA_TYPE)
