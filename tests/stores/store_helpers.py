"""What the tests of stores share."""

from __future__ import annotations

import gc
import os
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from toolscout.core.tool import Tool
from toolscout.stores import Change, Store
from toolscout.stores.sqlite.store import SqliteStore


def tool(name: str, description: str = "", namespace: str = "mail") -> Tool:
    return Tool(namespace, name, description or f"Does {name}.")


def tools(count: int, description: str = "", namespace: str = "mail") -> list[Tool]:
    return [tool(f"tool_{number:04}", description, namespace) for number in range(count)]


def made(path: Path, count: int = 5) -> Path:
    """A file with a few tools in it."""
    with SqliteStore(path) as store:
        store.add(tools(count), "made")
    return path


def follow(known: dict[str, str], changes: Iterable[Change]) -> dict[str, str]:
    """What an index does: tool id -> digest, brought up to date."""
    known = dict(known)
    for change in changes:
        if change.kind == "removed":
            known.pop(change.tool_id, None)
        else:
            known[change.tool_id] = change.digest
    return known


def fork(work: Callable[[], None]) -> int:
    """Run `work` in a process of its own, which starts in a millisecond. No store may be open here meanwhile."""
    gc.collect()  # what other tests left must not be taken apart by a child that lacks its threads
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside numpy's idle threads
        pid = os.fork()
    if pid:
        return pid
    gc.disable()
    code = 1
    try:
        signal.alarm(60)  # no orphan outlives a failed test
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def killed_between_adding_and_removing(open_store: Callable[[], Store], catalogue: ModuleType) -> None:
    """Kill a process that has added tools and is about to remove others in the same call of `add`.

    catalogue: the store's module whose function `_remove` removes tools.
    """
    telling, told = os.pipe()

    def hang(*_: object) -> int:
        os.write(told, b"!")
        time.sleep(60)
        return 0

    def change() -> None:
        catalogue._remove = hang
        with open_store() as store:
            store.add([tool("fresh"), tool("tool_0001", "changed")], "made", remove=["mail/tool_0000"])

    child = fork(change)
    hear(telling)
    os.kill(child, signal.SIGKILL)
    assert wait(child) == -signal.SIGKILL
    os.close(telling)
    os.close(told)


def wait(pid: int) -> int:
    """The exit code of a forked process; negative when a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def hear(pipe: int, count: int = 1) -> None:
    """Wait until another process has written this many bytes."""
    for _ in range(count):
        assert select.select([pipe], [], [], 50)[0], "the other process says nothing"
        assert os.read(pipe, 1)
