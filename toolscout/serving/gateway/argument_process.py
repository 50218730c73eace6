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
_START = 30.0  # seconds that the process may take to start
_NOT_CHECKED = "the arguments could not be checked; try again, with less or simpler values if this comes again"
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
        self._process_lock = anyio.Lock()
        self._caller_locks: weakref.WeakValueDictionary[str, anyio.Lock] = weakref.WeakValueDictionary()
        self._threads = anyio.CapacityLimiter(4)  # one talks to the process; others may still read from a killed one
        self._running: list[_Process] = []
        weakref.finalize(self, _end_all, self._running)

    def close(self) -> None:
        """End the process. It also ends with this object and with this program."""
        _end_all(self._running)

    async def problems(self, caller: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with a call's arguments, or why they could not be checked; [] where they fit.

        Raises BadRequest where too many checks of the caller wait.
        """
        return (await self._check_in_turn(caller, arguments, schema, repair=False))[1]

    async def repaired(
        self, caller: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        """Repair the arguments of one of the gateway's own tools; return them and what is still wrong with them.

        Raises BadRequest where too many checks of the caller wait.
        """
        with suppress(ValueError, RecursionError):
            if len(_json_bytes(arguments)) <= _SMALL:
                # Our own schemas have no patterns or branches: such small arguments take a few milliseconds at most.
                better, _ = repaired(arguments, schema)
                return better, problems(better, schema)
        return await self._check_in_turn(caller, arguments, schema, repair=True)

    async def _check_in_turn(
        self, caller: str, arguments: Mapping[str, Any], schema: Mapping[str, Any], repair: bool
    ) -> tuple[dict[str, Any], list[str]]:
        caller_lock = self._caller_locks.setdefault(caller, anyio.Lock())
        if caller_lock.statistics().tasks_waiting >= QUEUED:
            raise _too_many()
        try:
            with anyio.fail_after(self._wait) as waiting:
                async with caller_lock, self._process_lock:
                    waiting.deadline = math.inf
                    return await self._check(arguments, schema, repair)
        except TimeoutError:
            raise _too_many() from None

    async def _check(
        self, arguments: Mapping[str, Any], schema: Mapping[str, Any], repair: bool
    ) -> tuple[dict[str, Any], list[str]]:
        try:
            given_json, schema_json = await anyio.to_thread.run_sync(
                lambda: (_json_bytes(arguments), _json_bytes(schema)), limiter=self._threads
            )
        except (ValueError, RecursionError):
            return {}, ["the arguments hold a number of too many digits, or lists within lists too deep to be read"]
        if len(given_json) > MAX_BYTES:
            return {}, [f"the arguments are too large: {len(given_json):,} bytes of JSON, where {MAX_BYTES:,} are read"]
        if len(schema_json) > MAX_SCHEMA_BYTES:
            return {}, ["the tool's inputSchema is too large to check arguments against it"]
        answer = await self._send(
            b'{"repair": %s, "arguments": %s, "schema": %s}\n' % (_json_bytes(repair), given_json, schema_json)
        )
        return answer.get("arguments") or {}, answer["problems"]

    async def _send(self, request: bytes) -> dict[str, Any]:
        """Send one line to the process and return its answer; kill the process if it is late or this is cancelled."""
        answer: dict[str, Any] | None = None
        late = False
        try:
            process = await self._running_process()
            try:
                with anyio.fail_after(self._deadline):
                    answer = json.loads(await self._in_thread(_exchange_lines, process, request))
            except TimeoutError:
                late = True
        except (OSError, ValueError, TimeoutError) as error:
            _log.warning("arguments could not be checked: %s", error or type(error).__name__)
        finally:
            if answer is None:  # also when cancelled: the next check must not read this answer
                self._kill()
        if late:
            _log.warning("a check of arguments was ended after %g s", self._deadline)
            seconds = f"{self._deadline:g} s"
            return {"problems": [f"the arguments could not be checked within {seconds}: send less, or simpler values"]}
        return answer or {"problems": [_NOT_CHECKED]}

    async def _running_process(self) -> _Process:
        """Return the process; start it where there is none or it has ended."""
        if self._running and self._running[0].poll() is not None:
            self._kill()
        if not self._running:
            await anyio.to_thread.run_sync(_start, self._command, self._running, limiter=self._threads)
            with anyio.fail_after(_START):
                if not await self._in_thread(_exchange_lines, self._running[0], b""):
                    raise OSError("the process that checks them does not start")
        return self._running[0]

    async def _in_thread(self, work: Any, *arguments: Any) -> Any:
        return await anyio.to_thread.run_sync(work, *arguments, abandon_on_cancel=True, limiter=self._threads)

    def _kill(self) -> None:
        while self._running:
            process = self._running.pop()
            process.kill()
            threading.Thread(target=_end, args=(process,), name="toolscout-check-end", daemon=True).start()


def _command(seconds: float) -> list[str]:
    # The worker gets our sys.path, as this package may run from a folder that is not installed.
    code = f"import sys; sys.path[:] = {sys.path!r}; from toolscout.serving.gateway.argument_worker import main; main()"
    return [sys.executable, "-I", "-c", code, str(seconds)]


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _start(command: list[str], running: list[_Process]) -> None:
    pipe = subprocess.PIPE
    running.append(
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True)
    )


def _exchange_lines(process: _Process, request: bytes) -> bytes:
    """Send a line (b"": none) and return the next line of the process; b"" where it has ended."""
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
