"""Holds back a tool whose server changed its definition, until a person approves the change.

The first definition of a tool is accepted. When later anything differs that a model or a person sees, or that decides
what a call does, the tool is neither found nor called. A person approves the digest of exactly the definition that was
shown, whatever the server sends a moment later. The record belongs to the store.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from toolscout.core.tool import Tool, escaped_text
from toolscout.stores.approvals import ApprovalRows, Approvals

# Characters stored of a tool's definition, to show what changed; and of each field of a longer definition.
MAX_SAID_CHARS = 200_000
MAX_FIELD_CHARS = 20_000
# Tools of one namespace in the record, and characters stored for them. New tools are left out when it is full.
MAX_NAMESPACE_TOOLS = 50_000
MAX_NAMESPACE_CHARS = 256 * 1024 * 1024
DIGEST_CHARS = 12  # of a digest, as people see and type it

# The version of the digest rule, written before each digest. Version 1 left out some fields and wrote no prefix.
_RULE = "2:"
_ABSENT = object()
_log = logging.getLogger("toolscout.gateway")


@dataclass(frozen=True, slots=True)
class Held:
    """A tool that waits for approval: the changed parts of its definition, as approved before and as they are now.

    `waiting` is the digest of the whole present definition. Invisible characters are written as escapes.
    """

    tool_id: str
    before: str
    now: str
    waiting: str

    @property
    def digest(self) -> str:
        """Return the part of the digest that people see and type."""
        return self.waiting.removeprefix(_RULE)[:DIGEST_CHARS]


class Quarantine:
    """Decides by the record of approved tools which may be shown. Several processes may use one record at once."""

    def __init__(self, record: Approvals) -> None:
        """Use this record, which is closed with the quarantine."""
        self._record = record

    def admitted(self, tools: Iterable[Tool], suspicious: Container[str] = ()) -> list[Tool]:
        """Return the tools that may be shown: those unchanged since their approval, and new ones, now approved.

        New tools whose id is in `suspicious` are held back instead.
        """
        admitted_tools: list[Tool] = []
        quotas: dict[str, _NamespaceQuota] = {}
        with self._record.changing() as rows:
            for tool in tools:
                if self._admit(rows, tool, quotas, tool.id in suspicious):
                    admitted_tools.append(tool)
        for namespace in sorted(name for name, quota in quotas.items() if quota.exceeded):
            _log.warning("%s: the record of its tools is full; new ones are left out", namespace)
        return admitted_tools

    def _admit(self, rows: ApprovalRows, tool: Tool, quotas: dict[str, _NamespaceQuota], suspicious: bool) -> bool:
        """Record a tool's definition and return whether it may be shown."""
        fields = _reviewed_fields(tool)
        digest = self._digest(fields)
        state = rows.state(tool.id)
        approved, waiting = state or (None, None)
        if approved == digest:
            if waiting is not None:
                rows.forget_waiting(tool.id)
            return True
        if waiting == digest:
            return False
        if tool.namespace not in quotas:
            quotas[tool.namespace] = _NamespaceQuota(*rows.size(tool.namespace))
        text = quotas[tool.namespace].stored_text(fields, new=state is None)
        if state is None:
            if text is not None:
                if suspicious:
                    rows.hold(tool.id, digest, text)
                else:
                    rows.accept(tool.id, digest, text)
            return text is not None and not suspicious
        if approved == _first_digest(tool):  # approved under version 1 of the rule
            rows.accept(tool.id, digest, text)
            return True
        rows.hold(tool.id, digest, text)
        return False

    def _digest(self, fields: dict[str, Any]) -> str:
        text = json.dumps(fields, sort_keys=True, default=dict)
        return _RULE + hashlib.blake2b(text.encode(), digest_size=16, key=self._record.key).hexdigest()

    def held(self) -> list[Held]:
        """Return the tools that wait for approval, sorted by id."""
        with self._record.reading() as rows:
            found = rows.held()
        return [
            Held(tool_id, *_differences(_stored_fields(said), _stored_fields(says)), waiting)
            for tool_id, said, says, waiting in found
        ]

    def approve(self, shown: Iterable[Held]) -> list[str]:
        """Approve these definitions; return the ids of tools that have changed again since, which stay held."""
        with self._record.changing(approving=True) as rows:
            return [one.tool_id for one in shown if not rows.approve(one.tool_id, one.waiting)]

    def stamp(self) -> int:
        """Return a value that changes when any process approves something."""
        return self._record.stamp()

    def close(self) -> None:
        """Close the record."""
        self._record.close()


class _NamespaceQuota:
    """Limits what one namespace stores in the record, so that a server with endless new tools cannot fill the disk."""

    def __init__(self, tools: int, chars: int) -> None:
        self._tools = tools
        self._chars = chars
        self.exceeded = False

    def stored_text(self, fields: dict[str, Any], new: bool) -> str | None:
        """Return the text to store for a tool's definition; None for a new tool beyond the limits."""
        text = json.dumps(fields, sort_keys=True, default=dict)
        if len(text) > MAX_SAID_CHARS:
            text = _shortened(fields, MAX_FIELD_CHARS)
        full = self._chars + len(text) > MAX_NAMESPACE_CHARS
        if new and (full or self._tools >= MAX_NAMESPACE_TOOLS):
            self.exceeded = True
            return None
        self._tools += new
        self._chars += len(text)
        return _shortened(fields, 100) if full else text


def _shortened(fields: dict[str, Any], most: int) -> str:
    """Return the fields as JSON; a long one is cut, with a hash that shows whether its rest has changed."""
    shortened: dict[str, Any] = {}
    for key, value in fields.items():
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=dict)
        rest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()
        shortened[key] = value if len(text) <= most else f"{text[:most]}… ({len(text):,} characters, together {rest})"
    return json.dumps(shortened, sort_keys=True, default=dict)


def _reviewed_fields(tool: Tool) -> dict[str, Any]:
    """Return all fields of a tool that are shown, and what its source, not our configuration, decides about calls."""
    record = tool.to_record()
    origin = record.pop("origin", None)
    if origin and origin["kind"] == "http":
        record["calls"] = origin
    elif origin and origin["kind"] == "mcp":
        record["calls"] = origin["details"].get("tool")
    return record


def _first_digest(tool: Tool) -> str:
    """Return the digest of a tool under version 1 of the rule."""
    fields = [tool.name, tool.title, tool.description, tool.input_schema, tool.output_schema, tool.annotations]
    text = json.dumps(fields, sort_keys=True, default=dict)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _stored_fields(text: str) -> dict[str, Any]:
    """Return the fields in a stored text; older records hold the description alone."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) and "description" in value else {"description": text}


def _differences(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, str]:
    """Return the differing fields of two definitions as two texts; every field counts, as any can mislead a model."""
    changes = list(_changes(before, now, ""))
    if not changes:
        return "", "what differs is too long to be kept"
    if [path for path, _, _ in changes] == ["description"]:
        return _text(changes[0][1]), _text(changes[0][2])
    old, new = ([f"{escaped_text(path)}: {_text(pair[side])}" for path, *pair in changes] for side in (0, 1))
    return "\n".join(old), "\n".join(new)


def _changes(before: Any, now: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from _changes(before.get(key, _ABSENT), now.get(key, _ABSENT), f"{path}.{key}" if path else key)
    elif _text(before) != _text(now):  # True is not 1
        yield path, before, now


def _text(value: Any) -> str:
    if value is _ABSENT:
        return "-"
    return escaped_text(value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False))
