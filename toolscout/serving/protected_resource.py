"""How clients learn where to sign in: protected-resource metadata (RFC 9728), and the challenge that points there."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Scope, Send

if TYPE_CHECKING:
    from toolscout.serving.sign_in import SignIn

WELL_KNOWN = "/.well-known/oauth-protected-resource"
PATHS = (WELL_KNOWN, f"{WELL_KNOWN}/mcp")
"""The metadata of a server at the root of its host, and of one at /mcp."""
_FETCHES = 4  # issuers that are asked at a time; whoever waits for one holds no thread


class KeyFetches:
    """Reads issuers' keys that a token needs, without keeping the event loop waiting."""

    def __init__(self, sign_in: SignIn | None) -> None:
        """Take what checks tokens; None reads nothing."""
        self._sign_in = sign_in
        self._limiter: anyio.CapacityLimiter | None = None

    async def ready(self, key: str | None) -> None:
        """Return when Access.caller can judge what a caller sent: at once, or when an issuer was asked."""
        if self._sign_in is None or key is None or not self._sign_in.reads(key):
            return
        missing = self._sign_in.must_fetch(key)
        if missing is not None:
            issuer, kid = missing
            self._limiter = self._limiter or anyio.CapacityLimiter(_FETCHES)
            await anyio.to_thread.run_sync(issuer.fetch, kid, limiter=self._limiter)


def metadata(sign_in: SignIn, scope: Scope) -> Response:
    """Return the response to a request for the metadata."""
    resource = _origin(scope) + scope["path"].removeprefix(WELL_KNOWN)
    return JSONResponse(sign_in.document(resource), headers={"Cache-Control": "no-store"})


def challenging(sign_in: SignIn | None, scope: Scope, send: Send, path: str) -> Send:
    """Wrap `send` so that a challenge (WWW-Authenticate) names the metadata of the server at `path`."""
    if sign_in is None:
        return send
    # Where the server is known under another address than the one asked, its metadata is there too.
    parts = urlsplit(sign_in.resource)
    origin = f"{parts.scheme}://{parts.netloc}" if sign_in.resource else _origin(scope)
    scopes = " ".join(sign_in.rules.scopes)

    async def challenge(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] in (401, 403):
            headers = MutableHeaders(scope=message)
            challenge = headers.get("www-authenticate", "")
            if challenge.startswith("Bearer"):
                named = [f'resource_metadata="{origin}{WELL_KNOWN}{path}"']
                named += [f'scope="{scopes}"'] if scopes and "scope=" not in challenge else []
                first, _, rest = challenge.partition(" ")
                headers["www-authenticate"] = f"{first} {', '.join([*filter(None, [rest]), *named])}"
        await send(message)

    return challenge


def _origin(scope: Scope) -> str:
    return f"{scope.get('scheme', 'http')}://{Headers(scope=scope).get('host', '')}"
