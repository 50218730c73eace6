"""The process that holds arguments against schemas for the gateway: one line of JSON in, one line of JSON out.

It is started by `ArgumentChecks` and may be killed at any moment. It ends by itself when its standard input ends, which
it does when the gateway is gone.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from typing import Any

from toolscout.core.argument_checks import TOO_MUCH, problems, repaired

MEMORY = 1 << 30  # bytes of address space; a check of the largest arguments takes about a quarter of it


def main() -> None:
    """Answer until the input ends. The first argument: after how many seconds a single check ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the gateway, which ends this process
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _limit_memory()
    seconds = float(sys.argv[1])
    _write(b"ready")
    for line in sys.stdin.buffer:
        _alarm(seconds)  # where the gateway was killed in the middle of a check, nobody else would end it
        answer = json.dumps(checked(line)).encode()
        _alarm(0)
        _write(answer)


def checked(line: bytes) -> dict[str, Any]:
    """What is wrong with the arguments, and what they are after a repair where one was asked for."""
    try:
        request = json.loads(line)
        arguments, schema = request["arguments"], request["schema"]
        if request["repair"]:
            arguments, _ = repaired(arguments, schema)
        return {"problems": problems(arguments, schema), "arguments": arguments if request["repair"] else None}
    except (MemoryError, RecursionError):
        return {"problems": [TOO_MUCH], "arguments": None}


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _alarm(seconds: float) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory() -> None:
    with suppress(ImportError, OSError, ValueError):  # not every system knows these limits
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        memory = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # arguments are nobody else's business


if __name__ == "__main__":
    main()
