"""The process that kills servers of the gateway whose time is over: lines of `PID DEADLINE` in, nothing out.

`Watchdog` starts it. It needs nothing of this package, so that it starts at once. A deadline is a time of
time.monotonic, and 0 where the server ended by itself. When its input is closed, which happens also where the gateway
was killed, it kills the servers that are left and ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

GRACE = 0.4
"""Seconds that servers have to end by themselves after their gateway: their input is closed as well."""


def main() -> None:
    """Follow the lines until the input ends."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # those are for the gateway
        signal.signal(name, signal.SIG_IGN)
    source, rest, deadlines = sys.stdin.fileno(), b"", dict[int, float]()
    while True:
        left = max(0.0, min(deadlines.values()) - time.monotonic()) if deadlines else None
        if select.select([source], [], [], left)[0]:
            data = os.read(source, 1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                group, deadline = line.split()
                deadlines[int(group)] = float(deadline)
        deadlines = {pid: deadline for pid, deadline in deadlines.items() if deadline}
        for pid in [pid for pid, deadline in deadlines.items() if deadline <= time.monotonic()]:
            kill(pid)
            del deadlines[pid]
    if deadlines:
        time.sleep(GRACE)
    for pid in deadlines:
        kill(pid)


def kill(group: int) -> None:
    """Kill a server and its child processes; each server leads a process group of its own."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    main()
