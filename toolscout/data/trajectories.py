"""Recorded trajectories (messages of a user, an assistant and its tools), read from and written to .jsonl files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from toolscout.core.tool import Tool
from toolscout.data import beir_files as files
from toolscout.errors import BadDataset, ToolscoutError


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call: the tool's id and the arguments."""

    tool_id: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TrajectoryMessage:
    """One message. One of the assistant may hold calls; then its content is the thought before them."""

    role: Literal["user", "assistant", "tool"]
    content: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Messages and the tools that were available. `about`: all other fields, such as source and licence."""

    id: str
    tools: tuple[Tool, ...]
    messages: tuple[TrajectoryMessage, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """The JSON form that from_row reads. Calls use a tool's name, or its id where two here share the name."""
        names: dict[str, int] = {}
        for tool in self.tools:
            names[tool.name] = names.get(tool.name, 0) + 1
        shown = {tool.id: tool.name if names[tool.name] == 1 else tool.id for tool in self.tools}
        messages = []
        for said in self.messages:
            calls = [{"name": shown[call.tool_id], "arguments": dict(call.arguments)} for call in said.calls]
            messages.append({"role": said.role, "content": said.content} | ({"tool_calls": calls} if calls else {}))
        tools = [tool.to_record() for tool in self.tools]
        return {"id": self.id, **self.about, "tools": tools, "messages": messages}

    @classmethod
    def from_row(cls, row: Any, where: str) -> Trajectory:
        """Read a row; BadDataset names `where` and the wrong field."""
        if not isinstance(row, dict):
            raise BadDataset(f"{where}: a JSON object is needed, got {type(row).__name__}")
        tools, messages = known_tools(row.get("tools"), where), row.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadDataset(f"{where}: messages: a list of one message or more is needed, got {messages!r:.80}")
        ids = {key: tool.id for tool in tools for key in (tool.name, tool.id)}
        read = [_said(message, ids, f"{where}: messages[{at}]") for at, message in enumerate(messages)]
        about = {key: value for key, value in row.items() if key not in ("id", "tools", "messages")}
        return cls(str(row.get("id", "")), tools, tuple(read), about)


def known_tools(records: Any, where: str) -> tuple[Tool, ...]:
    """Read the list of tools of a row; BadDataset names the wrong one."""
    if not isinstance(records, list):
        raise BadDataset(f"{where}: tools: a list of tools is needed, got {type(records).__name__}")
    tools: dict[str, Tool] = {}
    for at, record in enumerate(records):
        try:
            tool = Tool.from_record(record)
        except ToolscoutError as error:
            raise BadDataset(f"{where}: tools[{at}]: {error}") from None
        tools[tool.id] = tool
    return tuple(tools.values())


def _said(message: Any, ids: Mapping[str, str], where: str) -> TrajectoryMessage:
    if not isinstance(message, dict):
        raise BadDataset(f"{where}: a JSON object is needed, got {type(message).__name__}")
    role, content, calls = message.get("role"), message.get("content") or "", message.get("tool_calls") or []
    if role not in ("user", "assistant", "tool"):
        raise BadDataset(f"{where}.role: user, assistant or tool is needed, got {role!r:.80}")
    if not isinstance(content, str):
        raise BadDataset(f"{where}.content: text is needed, got {type(content).__name__}")
    if not isinstance(calls, list) or (calls and role != "assistant"):
        raise BadDataset(f"{where}.tool_calls: a list is needed, and for the assistant only")
    read = [_call(call, ids, f"{where}.tool_calls[{at}]") for at, call in enumerate(calls)]
    return TrajectoryMessage(cast(Literal["user", "assistant", "tool"], role), content, tuple(read))


def _call(call: Any, ids: Mapping[str, str], where: str) -> Call:
    name, arguments = (call.get("name"), call.get("arguments", {})) if isinstance(call, dict) else (None, None)
    if not isinstance(name, str) or name not in ids:
        raise BadDataset(f"{where}.name: one of the row's {len(ids) // 2 or 'no'} tools is needed, got {name!r:.80}")
    if not isinstance(arguments, dict):
        raise BadDataset(f"{where}.arguments: a JSON object is needed, got {type(arguments).__name__}")
    return Call(ids[name], arguments)


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a .jsonl file (or .gz), one a line; BadDataset names the line and the field."""
    lines = list(files.lines(path))
    if not lines:
        raise BadDataset(f"{path} holds no trajectories; give a .jsonl file with one a line")
    for where, row in json_lines(path, lines):
        yield Trajectory.from_row(row, where)


def json_lines(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, Any]]:
    """Yield "FILE line N" and the JSON value of each line."""
    for number, text in lines:
        yield f"{path} line {number}", parsed(text, f"{path} line {number}: not JSON")


def parsed(text: str, wrong: str) -> Any:
    """Parse JSON; BadDataset with the message `wrong` where the text is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadDataset(f"{wrong} ({error})") from None


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> int:
    """Write trajectories, one a line, compressed where the name ends with .gz; return their number."""
    return write_records(path, (one.to_row() for one in trajectories))


def write_records(path: Path, records: Iterable[Mapping[str, Any]], one_array: bool = False) -> int:
    """Write records, one a line or as one JSON array, compressed where the name ends with .gz; return their number."""
    texts = [json.dumps(record, default=str) for record in records]
    whole = "[\n" + ",\n".join(texts) + "\n]\n" if one_array else "".join(text + "\n" for text in texts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(whole.encode(), mtime=0) if path.suffix == ".gz" else whole.encode())
    except OSError as error:
        raise ToolscoutError(f"{path} cannot be written ({error.strerror}); name another file") from None
    return len(texts)
