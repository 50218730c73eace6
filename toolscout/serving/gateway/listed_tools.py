"""Which tools a client is listed: search and call, pinned ones, those that its conversation uses, or all where few are.

A model's prompt cache stays valid as long as what was listed stays as it is: listed tools keep their order while they
exist, and new ones join at the end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolscout.core import vendor_formats
from toolscout.core.tool import Tool, clean_text
from toolscout.errors import MissingExtra, ToolscoutError, UnknownTool
from toolscout.serving.access import Access, Caller

try:
    import mcp_types as types
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
except ImportError:
    raise MissingExtra("serving", "serve") from None

MAX_EXPOSED = 8
"""Tools that are listed because a conversation uses them. None is taken out again, as that would end the cache."""
_MAX_CONVERSATIONS = 4_096  # whose list of tools is remembered
_log = logging.getLogger("toolscout.gateway")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Where a list belongs: to all clients of a caller, or to one connection of them. `key`: the caller's."""

    who: str
    key: str | None = field(default=None, compare=False, repr=False)
    connection: int | None = None


class ListedTools:
    """The lists of all conversations. Safe to use from many threads."""

    def __init__(
        self,
        access: Callable[[], Access],
        seen_by: Callable[[Caller], Caller],
        own: Mapping[str, types.Tool],
        pins: tuple[str, ...],
        pass_through: int,
        expose: bool,
    ) -> None:
        """`seen_by` takes away what servers hide from a caller; `own`: the gateway's own tools.

        `pins`, `pass_through`: as in GatewayOptions; `expose`: whether to list the tools that a conversation uses.
        """
        self._access, self._seen_by, self._own = access, seen_by, own
        self._pins, self._pass_through, self._expose = pins, pass_through, expose
        self._unchecked_pins = pins
        self._shown: dict[Conversation, dict[str, types.Tool]] = {}
        self._used: dict[Conversation, dict[str, None]] = {}
        self._lock = threading.Lock()

    def conversation(self, ctx: Any, who: str, key: str | None) -> Conversation:
        """Return to which list a request belongs; `who`: its caller's identity."""
        if not self._expose or ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return Conversation(who, key)
        connection = ctx.session._connection
        found = Conversation(who, key, id(connection))
        if found not in self._shown and found not in self._used:
            connection.exit_stack.callback(self.forget, found)
        return found

    def forget(self, conversation: Conversation) -> None:
        """Forget the list of a conversation that has ended."""
        with self._lock:
            self._shown.pop(conversation, None)
            self._used.pop(conversation, None)

    def known(self, conversation: Conversation) -> bool:
        """Return whether tools were listed to a conversation."""
        return conversation in self._shown

    def show(self, conversation: Conversation) -> dict[str, types.Tool]:
        """Return the tools to list by id: those listed before that still exist, in order, then new ones."""
        caller = self._seen_by(self._access().caller(conversation.key))
        with self._lock:
            before = self._shown.get(conversation, {})
            current = self._to_list(caller, before, self._used.get(conversation, {}))
            if len(self._shown) >= _MAX_CONVERSATIONS:
                oldest = next(iter(self._shown))
                self._shown.pop(oldest)
                self._used.pop(oldest, None)
            shown = {name: current[name] for name in before if name in current} | current
            self._shown[conversation] = shown
            return shown

    def use(self, conversation: Conversation, tool_id: str) -> bool:
        """Note that a conversation has used a tool; return whether its list grows by that."""
        if not self._expose:
            return False
        with self._lock:
            used = self._used.setdefault(conversation, {})
            if tool_id in used or tool_id in self._shown.get(conversation, {}) or len(used) >= MAX_EXPOSED:
                return False
            used[tool_id] = None
            return True

    def changed(self) -> list[Conversation]:
        """Return the conversations whose lists have changed since they were shown, and show them the new ones."""
        found = []
        for conversation, before in list(self._shown.items()):
            try:
                if self.show(conversation) != before:
                    found.append(conversation)
            except ToolscoutError as error:  # the key was revoked
                _log.debug("no list for a caller any more: %s", error)
        return found

    def tool_id(self, conversation: Conversation, name: str) -> str:
        """Return the id for a name: an id itself, or the name under which a tool is or could be listed."""
        if "/" in name:
            return name
        for tool_id, tool in self._shown.get(conversation, {}).items():
            if tool.name == name and tool_id not in self._own:
                return tool_id
        namespace, _, rest = name.partition("__")
        return f"{namespace}/{rest}"

    def check_pins(self) -> None:
        """Log once which pins name no tool, as a misspelt one would be missing silently."""
        unchecked, self._unchecked_pins = self._unchecked_pins, ()
        for pin in unchecked:
            if pin not in self._access().scout.store.ids(pin.partition("/")[0]):
                _log.warning("--pin %s: there is no such tool now; give its id, namespace/name", clean_text(pin)[:200])

    def _to_list(
        self, caller: Caller, before: Mapping[str, types.Tool], used: Mapping[str, None]
    ) -> dict[str, types.Tool]:
        """Return the tools to list for a caller, given those listed `before`: each of these stays while it exists."""
        access = self._access()
        few = access.count(caller) < self._pass_through
        tools = {tool.id: tool for tool in access.list(caller, limit=self._pass_through)} if few else {}
        for tool_id in (*self._pins, *(name for name in before if name not in self._own), *used):
            tool = tools.get(tool_id) or self._tool_or_none(caller, tool_id)
            if tool is not None:
                tools[tool_id] = tool
        with_own = not few or not self._own.keys().isdisjoint(before)
        return (dict(self._own) if with_own else {}) | {tool_id: _mcp_tool(tool) for tool_id, tool in tools.items()}

    def _tool_or_none(self, caller: Caller, tool_id: str) -> Tool | None:
        try:
            return self._access().describe(caller, tool_id)
        except UnknownTool:
            return None


def _mcp_tool(tool: Tool) -> types.Tool:
    try:
        return types.Tool.model_validate(vendor_formats.to_wire(tool, "mcp"))
    except ValueError:  # such as invalid annotations: list the tool without them
        return types.Tool.model_validate(vendor_formats.to_wire(tool, "mcp", "signatures"))
