"""The targets that a process may call, as its own configuration says.

The catalogue is not trusted: a tool's origin may name any command line, function or address, and calling the tool would
run it. So only targets that the operator allowed are called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from toolscout.core.tool import Origin, Tool, clean_text, tool_id
from toolscout.errors import BadRequest

_PORTS = {"http": 80, "https": 443}
# "NAMESPACE=" before a target. A command line may begin with an assignment too, but hardly with one of this form.
_NAMESPACE = re.compile(r"[^\s=:/]+(/[^\s=:/]+)*=(?=.)")


class Place(NamedTuple):
    """Where an address leads: scheme, host and port. Two addresses with the same place reach the same server."""

    scheme: str
    host: str
    port: int


class Targets:
    """The targets that may be called.

    - An address (`https://shop.example/v2`) allows every MCP server and HTTP service of the same scheme, host and port
      whose path lies under it.
    - The command line of an MCP server and `module:function` allow just that, written as the catalogue has it.
    - `module:*` allows the functions that are defined in a module or file; not what it imports.
    - `NAMESPACE=` before any of these allows it for the tools of that namespace alone, and without it for all.

    A function is called by a tool of its own name only.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """Take the allowed targets; BadRequest for text that names none."""
        self._allowed = [text.strip() for text in allowed]
        for text in self._allowed:
            target = text.partition("=")[2] if _NAMESPACE.match(text) else text
            if not target or target == "*" or (is_address(target) and place_of(target) is None):
                raise BadRequest(
                    f"{text!r:.80} names no target; give an address (https://host/path), the command line of an MCP "
                    "server, module:function or module:*, each with NAMESPACE= before it if you like"
                )

    def permit(self, tool: Tool) -> bool:
        """Return whether the target of a tool's origin is allowed."""
        origin, prefix = tool.origin, f"{tool.namespace}="
        if origin is None:
            return False
        exact = {text.removeprefix(prefix) for text in self._allowed}
        if origin.kind != "function" and is_address(origin.target):
            return any(_lies_under(origin.target, address) for address in exact)
        if origin.kind == "mcp":
            # A relative path runs another program in another folder, so the catalogue may not choose the folder.
            return origin.target in exact and not origin.details.get("cwd")
        module, _, name = origin.target.rpartition(":")
        if origin.kind != "function" or name.rpartition(".")[2] != tool.name:
            return False
        return origin.target in exact or (name == tool.name and f"{module}:*" in exact)

    def names(self, tool: Tool) -> bool:
        """Return whether the target of a tool was allowed by itself, not only by module:*."""
        target = tool.origin.target if tool.origin else ""
        return target in {text.removeprefix(f"{tool.namespace}=") for text in self._allowed}


def is_address(target: str) -> bool:
    """Return whether a target is an http(s) URL, not a command line or a function."""
    return target.lower().startswith(("http://", "https://"))


def place_of(address: str) -> Place | None:
    """Return scheme, host and port of a URL; None where it is malformed or names a user ("https://a@b/")."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not host or parts.username is not None or "\\" in address:
        return None
    return Place(parts.scheme, host.rstrip(".").lower(), port or _PORTS[parts.scheme])


def climbs(path: str) -> bool:
    """Return whether a path has a segment "." or "..", in any encoding, which could lead outside of the base path."""
    plain = path
    for _ in range(3):  # some servers decode twice
        plain = unquote(plain)
    # Some servers leave out what stands behind a semicolon: "..;x" is ".." to them.
    segments = (segment.partition(";")[0] for segment in plain.replace("\\", "/").split("/"))
    return not {".", ".."}.isdisjoint(segments)


def calls_itself(tool: Tool, origin: Origin) -> bool:
    """Return whether an MCP origin names the tool itself: permissions were checked for its id, not for another."""
    name = origin.details.get("tool") or tool.name
    return isinstance(name, str) and tool.id in {tool_id(tool.namespace, one) for one in (name, clean_text(name))}


def _lies_under(target: str, allowed: str) -> bool:
    place = place_of(target)
    if place is None or place != place_of(allowed):
        return False
    path, base = urlsplit(target).path.rstrip("/"), urlsplit(allowed).path.rstrip("/")
    return (path == base or path.startswith(f"{base}/")) and not climbs(path)
