"""Which targets a process may call. Its own configuration says so; a catalogue never does.

A catalogue may hold a tool whose origin names any command line, function or address. Calling it would run that, so a
process calls only what whoever started it has allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from toolscout.core.tool import Origin, Tool, clean_text, tool_id
from toolscout.errors import BadRequest

_PORTS = {"http": 80, "https": 443}
# What stands before a target of one namespace. A command line may begin with an assignment, but hardly with such a one.
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
        """Read what was allowed; BadRequest for what allows nothing."""
        self._allowed = [text.strip() for text in allowed]
        for text in self._allowed:
            target = text.partition("=")[2] if _NAMESPACE.match(text) else text
            if not target or target == "*" or (is_address(target) and place_of(target) is None):
                raise BadRequest(
                    f"{text!r:.80} names no target; give an address (https://host/path), the command line of an MCP "
                    "server, module:function or module:*, each with NAMESPACE= before it if you like"
                )

    def permit(self, tool: Tool) -> bool:
        """Whether a tool may be called where its origin says."""
        origin, own = tool.origin, f"{tool.namespace}="
        if origin is None:
            return False
        exact = {text.removeprefix(own) for text in self._allowed}
        if origin.kind != "function" and is_address(origin.target):
            return any(_lies_under(origin.target, address) for address in exact)
        if origin.kind == "mcp":
            # What a relative path runs depends on the folder it is started in, which only a configuration may choose.
            return origin.target in exact and not origin.details.get("cwd")
        module, _, name = origin.target.rpartition(":")
        if origin.kind != "function" or name.rpartition(".")[2] != tool.name:
            return False
        return origin.target in exact or (name == tool.name and f"{module}:*" in exact)

    def names(self, tool: Tool) -> bool:
        """Whether the very target of a tool was allowed, not just the module that it is in."""
        target = tool.origin.target if tool.origin else ""
        return target in {text.removeprefix(f"{tool.namespace}=") for text in self._allowed}


def is_address(target: str) -> bool:
    """Whether a target is an address on a network, not a command line or a function."""
    return target.lower().startswith(("http://", "https://"))


def place_of(address: str) -> Place | None:
    """Where an address leads; None for one that is malformed or names a user, whose host is easily misread."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not host or parts.username is not None or "\\" in address:
        return None
    return Place(parts.scheme, host.rstrip(".").lower(), port or _PORTS[parts.scheme])


def climbs(path: str) -> bool:
    """Whether a path has a segment "." or "..", however encoded: a server may read it as another path."""
    plain = path
    for _ in range(3):  # some servers decode twice
        plain = unquote(plain)
    # Some servers leave out what stands behind a semicolon: "..;x" is ".." to them.
    segments = (segment.partition(";")[0] for segment in plain.replace("\\", "/").split("/"))
    return not {".", ".."}.isdisjoint(segments)


def calls_itself(tool: Tool, origin: Origin) -> bool:
    """Whether the tool that an MCP server would run is the one of this id: permissions were checked for the id."""
    name = origin.details.get("tool") or tool.name
    return isinstance(name, str) and tool.id in {tool_id(tool.namespace, one) for one in (name, clean_text(name))}


def _lies_under(target: str, allowed: str) -> bool:
    place = place_of(target)
    if place is None or place != place_of(allowed):
        return False
    path, base = urlsplit(target).path.rstrip("/"), urlsplit(allowed).path.rstrip("/")
    return (path == base or path.startswith(f"{base}/")) and not climbs(path)
