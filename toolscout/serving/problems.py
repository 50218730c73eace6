"""Every error as a problem document (RFC 9457): what went wrong, and what to do next."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response

from toolscout import errors
from toolscout.errors import ToolscoutError

MEDIA_TYPE = "application/problem+json"
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
# The first kind that an error is of counts; what is none of these could be mended by asking for something else.
_STATUS: tuple[tuple[type[ToolscoutError], int], ...] = (
    (errors.Unauthorized, 401),
    (errors.Forbidden, 403),
    (errors.UnknownTool, 404),
    (errors.DuplicateTool, 409),
    (errors.NeedsTraining, 409),
    (errors.DiskFull, 507),
    (errors.StoreError, 503),
    (errors.LanguageModelError, 502),
    (errors.MissingExtra, 501),
    (errors.MissingEncoder, 501),
)


class Problem(Exception):
    """An error that has a status of its own."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None, code: str = "") -> None:
        """`code` names the kind for programs; the status' own name where it is empty."""
        super().__init__(detail)
        self.status, self.detail, self.headers, self.code = status, detail, dict(headers or {}), code


def of(error: Exception) -> Problem:
    """The problem that an error of this package is."""
    if isinstance(error, Problem):
        return error
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 422)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return Problem(status, str(error), headers, _CAPITAL.sub("_", type(error).__name__).lower())


def response(problem: Problem) -> Response:
    """The document as it is sent."""
    title = HTTPStatus(problem.status).phrase
    code = problem.code or title.lower().replace(" ", "_")
    record = {"type": "about:blank", "title": title, "status": problem.status, "detail": problem.detail, "code": code}
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **problem.headers}
    return Response(json.dumps(record), problem.status, headers, MEDIA_TYPE)
