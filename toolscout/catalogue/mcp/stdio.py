"""The stdio transport: starts an MCP server as a program; messages are lines on its standard input and output.

It replaces the SDK's own to add limits: a line is read in linear time and refused beyond a size, a server that sends
without end is slowed down, and only the end of its standard error is kept. Closing the connection ends the program: its
input is closed, then its process group gets SIGTERM, then SIGKILL.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, aclosing, asynccontextmanager, suppress
from subprocess import PIPE
from typing import Any

import anyio
import anyio.lowlevel
import mcp_types as types
from anyio.abc import AsyncResource, ByteReceiveStream, ByteSendStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage

from toolscout.catalogue.mcp.messages import (
    LARGE,
    MAX_MESSAGE_BYTES,
    Throttle,
    loads_in_thread,
    parse_message,
    refusal,
    trim_message,
)

# Seconds to wait: for the last messages to be written, for the server to end by itself, after SIGTERM, after SIGKILL.
_FLUSH, _GRACE, _FORCE, _REAP = 0.5, 2.0, 2.0, 2.0
_POLL = 0.01
# Seconds between two reads of standard error, so that a server that writes without end does not keep us busy.
_ERRORS_PAUSE = 0.005
_END_BYTES = 512  # kept of both ends of a line that is too long
_ID = rb'"id"\s*:\s*(-?\d{1,15}|"[^"\\]{1,200}")\s*'
_JSONRPC = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID_FIRST = re.compile(rb"\s*\{\s*" + _JSONRPC + rb",\s*" + _ID + rb",")
_ID_LAST = (re.compile(_JSONRPC + rb",\s*" + _ID + rb"\}\s*$"), re.compile(_ID + rb",\s*" + _JSONRPC + rb"\}\s*$"))
Guarding = Callable[[int], AbstractContextManager[None]]
_GONE = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)


class Tail:
    """The last bytes that a server wrote to its standard error."""

    def __init__(self, most: int) -> None:
        """Keep at most so many bytes."""
        self._most = most
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        """Append bytes."""
        self._kept += data
        if len(self._kept) > 2 * self._most:
            del self._kept[: -self._most]

    def text(self) -> str:
        """Return the kept bytes as text."""
        return bytes(self._kept[-self._most :]).decode(errors="replace")


@asynccontextmanager
async def connect(
    command: tuple[str, ...],
    env: Mapping[str, str],
    cwd: str | None,
    errors: Tail,
    guard: Guarding | None = None,
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Any], MemoryObjectSendStream[Any]]]:
    """Start the program and yield the streams of incoming and outgoing messages; the program ends with the block.

    Its environment is `env` and a few harmless variables of this process. `errors` collects its standard error. `guard`
    is entered with the id of the process, which leads a process group of its own, and left when it has ended.
    """
    process = await anyio.open_process(
        command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env={**get_default_environment(), **env},
        cwd=cwd,
        start_new_session=True,
    )
    # No await before the task group is entered: a cancellation in between would leave the process running.
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    arriving, incoming = anyio.create_memory_object_stream[SessionMessage](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    written, errors_read = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, process.stdout, arriving)
        tasks.start_soon(_write, process.stdin, leaving, arriving, written)
        tasks.start_soon(_read_errors, process.stderr, errors, errors_read)
        guarded = ExitStack()
        try:
            if guard is not None:
                guarded.enter_context(guard(process.pid))
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True), guarded:
                incoming.close()  # _read then discards what comes, so that the server never waits to write
                outgoing.close()
                with anyio.move_on_after(_FLUSH):
                    await written.wait()
                await _stop(process, errors_read)
                for stream in (arriving, leaving):
                    stream.close()
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()


async def _read(stdout: ByteReceiveStream, arriving: MemoryObjectSendStream[SessionMessage]) -> None:
    throttle = Throttle()
    with suppress(*_GONE):
        async with arriving, aclosing(_lines(stdout, throttle)) as lines:
            async for line in lines:
                message = await _message(line, throttle)
                if message is None:
                    await anyio.lowlevel.checkpoint()  # let other tasks run, however many such lines come
                else:
                    await arriving.send(SessionMessage(message))
    with suppress(*_GONE):  # a server that cannot write may neither read nor end: discard the rest
        while True:
            await stdout.receive()


async def _lines(stdout: ByteReceiveStream, throttle: Throttle) -> AsyncGenerator[bytes | CutLine, None]:
    """Yield the lines that are not blank. Each byte is searched once for a line end, so that the time is linear."""
    kept, cut = bytearray(), None
    async for chunk in stdout:
        await throttle.spend(size=len(chunk))
        *ends, rest = chunk.split(b"\n")
        for piece in ends:
            await throttle.spend(messages=1)  # blank lines too: each takes time
            if cut is not None:
                cut.add(piece)
                yield cut
            elif len(kept) + len(piece) > MAX_MESSAGE_BYTES:
                yield CutLine(bytes(kept) + piece)
            elif line := (bytes(kept) + piece).strip():
                yield line
            kept, cut = bytearray(), None
        if cut is not None:
            cut.add(rest)
        elif len(kept) + len(rest) > MAX_MESSAGE_BYTES:
            cut = CutLine(bytes(kept) + rest)
            kept = bytearray()
        else:
            kept += rest


class CutLine:
    """The beginning and end of a line that is too long; one of them usually holds the id of the answered request."""

    def __init__(self, data: bytes) -> None:
        """Keep both ends of the line so far."""
        self._first = data[:_END_BYTES]
        self._last = data[-_END_BYTES:]

    def add(self, data: bytes) -> None:
        """Append bytes."""
        self._last = (self._last + data[-_END_BYTES:])[-_END_BYTES:]

    def refusal(self, problem: str) -> types.JSONRPCMessage | None:
        """Return a JSON-RPC error as the answer to the line's request; None where its id cannot be found."""
        found = _ID_FIRST.match(self._first) or next(filter(None, (end.search(self._last) for end in _ID_LAST)), None)
        if found is None:
            return None
        text = found.group(1).decode(errors="replace")
        return refusal(text[1:-1] if text.startswith('"') else int(text), problem)


async def _message(line: bytes | CutLine, throttle: Throttle) -> types.JSONRPCMessage | None:
    """Return the message of a line; None for any other line: some servers print greetings and logs to stdout."""
    if isinstance(line, CutLine):
        return line.refusal(f"it has more than {MAX_MESSAGE_BYTES // 2**20} MiB")
    try:
        value = await loads_in_thread(line, throttle)
    except ValueError as error:
        return CutLine(line).refusal(str(error)[:200])
    return parse_message(trim_message(value) if len(line) > LARGE else value)


async def _write(
    stdin: ByteSendStream,
    leaving: MemoryObjectReceiveStream[SessionMessage],
    arriving: MemoryObjectSendStream[SessionMessage],
    written: anyio.Event,
) -> None:
    try:
        async with leaving:
            async for item in leaving:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await stdin.send(text.encode() + b"\n")
    except _GONE:  # the server may still run, but gets no requests: end the incoming stream, as no answer will come
        arriving.close()
    finally:
        written.set()


async def _read_errors(stderr: ByteReceiveStream, errors: Tail, errors_read: anyio.Event) -> None:
    with suppress(*_GONE):
        async for chunk in stderr:
            errors.add(chunk)
            await anyio.sleep(_ERRORS_PAUSE)
    errors_read.set()


async def _stop(process: Process, errors_read: anyio.Event) -> None:
    """Close the input of the process and wait; then end its process group with SIGTERM, then SIGKILL."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    await _close(process.stdin)
    if not await _ends_within(process, _GRACE):
        if os.name == "posix":
            await terminate_posix_process_tree(process, _FORCE)
        else:
            process.kill()
        await _ends_within(process, _REAP)
    with anyio.move_on_after(_FLUSH):  # the last lines of its standard error say why it ended
        await errors_read.wait()
    await _close(process.stdout)
    await _close(process.stderr)
    # A child process of the server may hold a pipe open; asyncio would then never close its transport.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with suppress(PermissionError):
            transport.close()


async def _close(stream: AsyncResource) -> None:
    with suppress(*_GONE):
        await stream.aclose()


async def _ends_within(process: Process, seconds: float) -> bool:
    """Wait for the process to end, and return whether it did. wait() would also wait for pipes that a child holds."""
    deadline = anyio.current_time() + seconds
    while process.returncode is None:
        if anyio.current_time() >= deadline:
            return False
        await anyio.sleep(_POLL)
    return True
