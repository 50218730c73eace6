"""The process that checks arguments against schemas for the gateway: one line of JSON in, one line of JSON out.

`ArgumentChecks` starts it and may kill it at any moment. It ends by itself when its standard input is closed, as
happens when the gateway ends.
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
    """Answer until the input ends. The first argument is the number of seconds after which a check ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the gateway, which ends this process
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _limit_memory()
    seconds = float(sys.argv[1])
    _write(b"ready")
    for line in sys.stdin.buffer:
        _alarm(seconds)  # ends the process also where the gateway was killed during a check
        answer = json.dumps(check_line(line)).encode()
        _alarm(0)
        _write(answer)


def check_line(line: bytes) -> dict[str, Any]:
    """Return what is wrong with the arguments of a request line, and the repaired ones where it asks for repair."""
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
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core dumps: arguments may be private


if __name__ == "__main__":
    main()
