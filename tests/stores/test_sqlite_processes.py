"""Several processes on one file: killed in the middle of a write, reading beside a writer, opening at once."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from tests.stores.store_helpers import (
    follow,
    fork,
    hear,
    killed_between_adding_and_removing,
    made,
    tool,
    tools,
    wait,
)
from toolscout.errors import StoreError
from toolscout.stores.sqlite import tools as sqlite_catalogue
from toolscout.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow

KILLS = 40
BATCH = 150


def add_until_killed(path: Path, acknowledge: int) -> None:
    """Each commit changes every tool, removes one and adds one; its number is told once it is safe."""
    sqlite_catalogue.CHUNK = 20  # in this process alone
    with SqliteStore(path) as store:
        store._files._writer.execute("PRAGMA cache_size = 8")  # half-done changes reach the log on disk
        store._files._writer.execute("PRAGMA wal_autocheckpoint = 20")
        while True:
            number = store.version() + 1
            store.add(batch(number), "killed", sync=True)
            os.write(acknowledge, number.to_bytes(4, "big"))


def batch(number: int) -> list:
    return [*tools(BATCH, f"commit {number} " + "x" * 300), *tools(1, f"commit {number}", f"only{number}")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_9_in_the_middle_of_an_add(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    chance = random.Random(7)
    committed, followed, unfinished = 0, (0, {}), 0
    for turn in range(KILLS):
        reading, writing = os.pipe()
        child = fork(lambda writing=writing: add_until_killed(path, writing))
        os.close(writing)
        if turn % 2:  # else the kill may hit while the file is being made or opened
            os.read(reading, 4)
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        assert wait(child) == -signal.SIGKILL
        unfinished += (tmp_path / "store.db-wal").exists()
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
        committed = max(committed, int.from_bytes(told[-4:], "big"))
        with SqliteStore(path) as store:
            store.check()
            version = store.version()
            assert version >= committed  # what add() said was done is done
            committed = version
            if version:
                assert list(store.tools()) == sorted(batch(version), key=lambda tool: tool.id)
            digests = {tool.id: tool.digest() for tool in store.tools()}
            followed = (version, follow(followed[1], store.changes(followed[0])))
            assert followed[1] == follow({}, store.changes(0)) == digests
    assert committed >= KILLS / 2
    assert unfinished >= KILLS / 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_9_between_adding_and_removing_leaves_neither(path: Path) -> None:
    made(path, 3)
    killed_between_adding_and_removing(lambda: SqliteStore(path), sqlite_catalogue)
    with SqliteStore(path) as store:
        store.check()
        assert (list(store.tools()), store.version()) == (tools(3), 1)
        done = store.add([tool("fresh")], "made", remove=["mail/tool_0000"])
        assert (done.added, done.removed, done.version) == (1, 1, 2)


def read_along(path: Path, tell: int, milestones: list[int]) -> None:
    """Follow a growing catalogue through one open store; every state seen must be a committed one."""
    with SqliteStore(path) as store:
        version, stamp = store.version(), store.stamp()
        known = follow({}, store.changes(0))
        assert version == 1
        os.write(tell, b"!")
        while milestones:
            if (moved := store.stamp()) == stamp:
                time.sleep(0.001)
                continue
            stamp, changes = moved, list(store.changes(version))
            known = follow(known, changes)
            version = max([version, *(change.version for change in changes)])
            assert len({tool.description for tool in store.tools("mail")}) == 1
            assert len(known) == 49 + version
            if version >= milestones[0]:
                os.write(tell, b"!")
                del milestones[0]
        assert known == {tool.id: tool.digest() for tool in store.tools()}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_processes_read_while_one_writes(tmp_path: Path) -> None:
    path, milestones = tmp_path / "store.db", [10, 20, 30]
    with SqliteStore(path) as store:
        store.add(tools(50, "commit 1"))
    told, tell = os.pipe()
    children = [fork(lambda: read_along(path, tell, list(milestones))) for _ in range(2)]
    hear(told, 2)
    with SqliteStore(path) as store:
        for number in range(2, 31):
            store.add([*tools(50, f"commit {number}"), *tools(1, namespace=f"only{number}")])
            if number in milestones:
                hear(told, 2)  # both have seen it, in the store they opened at the start
        assert [wait(child) for child in children] == [0, 0]
    os.close(told)
    os.close(tell)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_many_processes_make_the_same_store_and_write_to_it(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    def work(number: int) -> None:
        with SqliteStore(path) as store:
            for turn in range(5):
                store.add(tools(3, f"turn {turn}", f"n{number}"), f"s{number}")

    children = [fork(lambda number=number: work(number)) for number in range(6)]
    assert [wait(child) for child in children] == [0] * 6
    with SqliteStore(path) as store:
        store.check()
        assert store.version() == 30
        assert store.count() == 18


def test_another_process_keeps_writing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with SqliteStore(path) as store:
        store.add(tools(2))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with SqliteStore(path, timeout=0.1) as store:
        assert store.count() == 2  # readers do not care
        with pytest.raises(StoreError, match="another process is writing"):
            store.add(tools(3))
        other.execute("COMMIT")
        assert store.add(tools(3)).added == 1
    other.close()
