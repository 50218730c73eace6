"""The connection to an MCP server that is a program: messages are lines on its standard input and output.

As the SDK's own, with limits: a line is read in time linear in its length and refused beyond a size, a server that
sends without end is slowed, and of its standard error the last part is kept. The program is ended with the connection:
its input is closed, then its process group is asked to end, then killed.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
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
    loads_aside,
    message_of,
    reduced,
    refusal,
)

# Seconds: for what was accepted to be written, for the server to end by itself, after being asked to, and once killed.
_FLUSH, _GRACE, _FORCE, _REAP = 0.5, 2.0, 2.0, 2.0
_POLL = 0.01
# After each read of standard error: whoever writes it without end does not keep this process busy.
_ERRORS_PAUSE = 0.005
_ENDS_KEPT = 512
_ID = rb'"id"\s*:\s*(-?\d{1,15}|"[^"\\]{1,200}")\s*'
_JSONRPC = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID_FIRST = re.compile(rb"\s*\{\s*" + _JSONRPC + rb",\s*" + _ID + rb",")
_ID_LAST = (re.compile(_JSONRPC + rb",\s*" + _ID + rb"\}\s*$"), re.compile(_ID + rb",\s*" + _JSONRPC + rb"\}\s*$"))
_GONE = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)


class Tail:
    """The last bytes of what a server writes to its standard error."""

    def __init__(self, most: int) -> None:
        """Keep so many."""
        self._most = most
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        """Take what comes next."""
        self._kept += data
        if len(self._kept) > 2 * self._most:
            del self._kept[: -self._most]

    def text(self) -> str:
        """What is kept, as text."""
        return bytes(self._kept[-self._most :]).decode(errors="replace")


@asynccontextmanager
async def connected(
    command: tuple[str, ...], env: Mapping[str, str], cwd: str | None, errors: Tail
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Any], MemoryObjectSendStream[Any]]]:
    """Start the program, with a few harmless variables of this process and those given; it is gone afterwards."""
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
    written, quiet = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, process.stdout, arriving)
        tasks.start_soon(_write, process.stdin, leaving, arriving, written)
        tasks.start_soon(_keep_errors, process.stderr, errors, quiet)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                incoming.close()  # from now on the reader discards, so that no server waits for it
                outgoing.close()
                with anyio.move_on_after(_FLUSH):
                    await written.wait()
                await _stop(process, quiet)
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
                    await anyio.lowlevel.checkpoint()  # whatever comes next, others have their turn
                else:
                    await arriving.send(SessionMessage(message))
    with suppress(*_GONE):  # a server that cannot write does not read either, nor end
        while True:
            await stdout.receive()


async def _lines(stdout: ByteReceiveStream, throttle: Throttle) -> AsyncGenerator[bytes | CutLine, None]:
    """The lines that are not blank. Only what is new is searched for their end, so that the time is linear."""
    kept, cut = bytearray(), None
    async for chunk in stdout:
        await throttle.spend(size=len(chunk))
        *ends, rest = chunk.split(b"\n")
        for piece in ends:
            await throttle.spend(messages=1)  # blank lines too: someone has to look at each
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
    """A line that is too long: its beginning and its end, one of which says what it answers."""

    def __init__(self, data: bytes) -> None:
        """Keep the ends."""
        self._first = data[:_ENDS_KEPT]
        self._last = data[-_ENDS_KEPT:]

    def add(self, data: bytes) -> None:
        """Take what comes next."""
        self._last = (self._last + data[-_ENDS_KEPT:])[-_ENDS_KEPT:]

    def refused(self, problem: str) -> types.JSONRPCMessage | None:
        """The answer to whoever waits for this line; None where that cannot be told."""
        found = _ID_FIRST.match(self._first) or next(filter(None, (end.search(self._last) for end in _ID_LAST)), None)
        if found is None:
            return None
        text = found.group(1).decode(errors="replace")
        return refusal(text[1:-1] if text.startswith('"') else int(text), problem)


async def _message(line: bytes | CutLine, throttle: Throttle) -> types.JSONRPCMessage | None:
    """The message of a line; None for one that is none, as greetings and logs are that some servers write there."""
    if isinstance(line, CutLine):
        return line.refused(f"it has more than {MAX_MESSAGE_BYTES // 2**20} MiB")
    try:
        value = await loads_aside(line, throttle)
    except ValueError as error:
        return CutLine(line).refused(str(error)[:200])
    return message_of(reduced(value) if len(line) > LARGE else value)


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
    except _GONE:  # the server may still run: whoever waits for an answer learns that none comes
        arriving.close()
    finally:
        written.set()


async def _keep_errors(stderr: ByteReceiveStream, errors: Tail, quiet: anyio.Event) -> None:
    with suppress(*_GONE):
        async for chunk in stderr:
            errors.add(chunk)
            await anyio.sleep(_ERRORS_PAUSE)
    quiet.set()


async def _stop(process: Process, quiet: anyio.Event) -> None:
    """Close its input, wait, ask its process group to end, wait, kill it."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    await _close(process.stdin)
    if not await _ended(process, _GRACE):
        if os.name == "posix":
            await terminate_posix_process_tree(process, _FORCE)
        else:
            process.kill()
        await _ended(process, _REAP)
    with anyio.move_on_after(_FLUSH):  # its last words say why it ended
        await quiet.wait()
    await _close(process.stdout)
    await _close(process.stderr)
    # A child of the server's may hold a pipe open; asyncio's own transport would then never be closed.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with suppress(PermissionError):
            transport.close()


async def _close(stream: AsyncResource) -> None:
    with suppress(*_GONE):
        await stream.aclose()


async def _ended(process: Process, seconds: float) -> bool:
    """Whether it ends in time. Not by wait(), which also waits for pipes that a child of the server's may hold."""
    deadline = anyio.current_time() + seconds
    while process.returncode is None:
        if anyio.current_time() >= deadline:
            return False
        await anyio.sleep(_POLL)
    return True
