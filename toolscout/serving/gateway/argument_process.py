"""Checks arguments against JSON schemas in a separate process, so that no check blocks the event loop.

`toolscout.core.argument_checks` limits the work of a check; this module limits its time and memory: a process that does
not answer in time is killed, and the arguments count as wrong.
"""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from toolscout.core.argument_checks import problems, repaired
from toolscout.errors import BadRequest, MissingExtra

try:
    import anyio
    import anyio.to_thread
except ImportError:
    raise MissingExtra("serving", "serve") from None

MAX_BYTES = 1 << 20  # of the arguments as JSON
MAX_SCHEMA_BYTES = 4 << 20
DEADLINE = 2.0  # seconds that one check may take
WAIT = 10.0  # seconds that a check may wait for its turn
QUEUED = 64  # checks of one caller that may wait
_SMALL = 4096  # up to so many bytes, arguments of the gateway's own tools are checked in this process
_START = 30.0
_UNDONE = "the arguments could not be checked; try again, with less or simpler values if this comes again"
_log = logging.getLogger("toolscout.gateway")
_Process = subprocess.Popen[bytes]


class ArgumentChecks:
    """Checks arguments, one check at a time, in one process that the first check starts.

    Each caller has at most one check in the queue for the process; its further checks wait for that one, so that a
    caller with many checks delays itself, not others.
    """

    def __init__(self, deadline: float = DEADLINE, wait: float = WAIT, command: Sequence[str] | None = None) -> None:
        """Take the limits in seconds. `command`: the worker program; by default argument_worker of this package."""
        self._deadline, self._wait = deadline, wait
        self._command = list(command or _command(2 * deadline))
        self._turn = anyio.Lock()
        self._turns: weakref.WeakValueDictionary[str, anyio.Lock] = weakref.WeakValueDictionary()
        self._threads = anyio.CapacityLimiter(4)  # one works; others may still wait for a process that was killed
        self._running: list[_Process] = []
        weakref.finalize(self, _end_all, self._running)

    def close(self) -> None:
        """End the process. It also ends with this object and with this program."""
        _end_all(self._running)

    async def problems(self, caller: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with a call's arguments, or why they could not be checked; [] where they fit.

        Raises BadRequest where too many checks of the caller wait.
        """
        return (await self._checked(caller, arguments, schema, repair=False))[1]

    async def repaired(
        self, caller: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        """Repair the arguments of one of the gateway's own tools; return them and what is still wrong with them."""
        with suppress(ValueError, RecursionError):
            if len(_line(arguments)) <= _SMALL:
                # Our own schemas have no patterns or branches: such small arguments take a few milliseconds at most.
                better, _ = repaired(arguments, schema)
                return better, problems(better, schema)
        return await self._checked(caller, arguments, schema, repair=True)

    async def _checked(
        self, caller: str, arguments: Mapping[str, Any], schema: Mapping[str, Any], repair: bool
    ) -> tuple[dict[str, Any], list[str]]:
        callers_lock = self._turns.setdefault(caller, anyio.Lock())
        if callers_lock.statistics().tasks_waiting >= QUEUED:
            raise _too_many()
        try:
            with anyio.fail_after(self._wait) as waiting:
                async with callers_lock, self._turn:
                    waiting.deadline = math.inf
                    return await self._asked(arguments, schema, repair)
        except TimeoutError:
            raise _too_many() from None

    async def _asked(
        self, arguments: Mapping[str, Any], schema: Mapping[str, Any], repair: bool
    ) -> tuple[dict[str, Any], list[str]]:
        try:
            given, against = await anyio.to_thread.run_sync(_lines, arguments, schema, limiter=self._threads)
        except (ValueError, RecursionError):
            return {}, ["the arguments hold a number of too many digits, or lists within lists too deep to be read"]
        if len(given) > MAX_BYTES:
            return {}, [f"the arguments are too large: {len(given):,} bytes of JSON, where {MAX_BYTES:,} are read"]
        if len(against) > MAX_SCHEMA_BYTES:
            return {}, ["the tool's inputSchema is too large to check arguments against it"]
        answer = await self._answered(
            b'{"repair": %s, "arguments": %s, "schema": %s}\n' % (_line(repair), given, against)
        )
        return answer.get("arguments") or {}, answer["problems"]

    async def _answered(self, request: bytes) -> dict[str, Any]:
        """Send one line to the process and return its answer; kill the process where it is late or we are cancelled."""
        answer: dict[str, Any] | None = None
        late = False
        try:
            process = await self._started()
            try:
                with anyio.fail_after(self._deadline):
                    answer = json.loads(await self._in_thread(_exchanged, process, request))
            except TimeoutError:
                late = True
        except (OSError, ValueError, TimeoutError) as error:
            _log.warning("arguments could not be checked: %s", error or type(error).__name__)
        finally:
            if answer is None:  # also when cancelled: the next check must not read this answer
                self._drop()
        if late:
            _log.warning("a check of arguments was ended after %g s", self._deadline)
            seconds = f"{self._deadline:g} s"
            return {"problems": [f"the arguments could not be checked within {seconds}: send less, or simpler values"]}
        return answer or {"problems": [_UNDONE]}

    async def _started(self) -> _Process:
        if self._running and self._running[0].poll() is not None:
            self._drop()
        if not self._running:
            await anyio.to_thread.run_sync(_start, self._command, self._running, limiter=self._threads)
            with anyio.fail_after(_START):
                if not await self._in_thread(_exchanged, self._running[0], b""):
                    raise OSError("the process that checks them does not start")
        return self._running[0]

    async def _in_thread(self, work: Any, *arguments: Any) -> Any:
        return await anyio.to_thread.run_sync(work, *arguments, abandon_on_cancel=True, limiter=self._threads)

    def _drop(self) -> None:
        while self._running:
            process = self._running.pop()
            process.kill()
            threading.Thread(target=_end, args=(process,), name="toolscout-check-end", daemon=True).start()


def _command(seconds: float) -> list[str]:
    # The worker gets our sys.path, as this package may run from a folder that is not installed.
    code = f"import sys; sys.path[:] = {sys.path!r}; from toolscout.serving.gateway.argument_worker import main; main()"
    return [sys.executable, "-I", "-c", code, str(seconds)]


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _lines(*values: Any) -> tuple[bytes, ...]:
    return tuple(map(_line, values))


def _start(command: list[str], running: list[_Process]) -> None:
    pipe = subprocess.PIPE
    running.append(
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True)
    )


def _exchanged(process: _Process, request: bytes) -> bytes:
    """Send a line and return the answer's line; b"" where the process has ended."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("there are no pipes")
    if request:
        process.stdin.write(request)
        process.stdin.flush()
    return process.stdout.readline()


def _end(process: _Process) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()


def _end_all(running: list[_Process]) -> None:
    while running:
        _end(running.pop())


def _too_many() -> BadRequest:
    return BadRequest("too many arguments wait to be checked; wait a second and call again")
