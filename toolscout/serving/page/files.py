"""The plain files of the page, and the headers that they are sent with."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

_SCRIPTS = (
    "page.js",
    "dom.js",
    "key.js",
    "tool.js",
    "find.js",
    "namespaces.js",
    "catalogue.js",
    "results.js",
    "live.js",
)
FILES = {"page.css": "text/css", **dict.fromkeys(_SCRIPTS, "text/javascript"), "icon.svg": "image/svg+xml"}
"""What the page of `toolscout serve` loads from /page/."""
GATEWAY_FILES = {name: FILES[name] for name in ("page.css", "dom.js", "key.js", "live.js", "icon.svg")} | {
    "gateway.js": "text/javascript"
}
"""What the page of the gateway loads: its live view alone."""
# Nothing from other sites, nothing inline; trusted types forbid scripts to turn text into HTML.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def file(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint that serves a file of static/."""
    data = (resources.files("toolscout.serving.page") / "static" / name).read_bytes()
    tag = f'"{hashlib.blake2b(data, digest_size=8).hexdigest()}"'
    headers = HEADERS | {"Cache-Control": "no-cache", "ETag": tag}

    async def endpoint(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers, media_type=media_type)

    return endpoint


def gateway_files() -> dict[str, Callable[[Request], Awaitable[Response]]]:
    """Return the endpoints of the gateway's page by path."""
    paths = {f"/page/{name}": file(name, media_type) for name, media_type in GATEWAY_FILES.items()}
    return {"/": file("gateway.html", "text/html"), **paths}
