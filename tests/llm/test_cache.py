from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from toolscout.errors import CorruptStore, NewerStore, ReadOnlyStore, StoreError
from toolscout.llm.base import Completion
from toolscout.llm.cache import Cache, digest
from toolscout.stores.sqlite.store import SqliteStore

ONE = Completion("né\ud800", 3, 2, "length", 0.25, repairs=("n: read as 5",), refused="no JSON")


def test_what_is_put_comes_back_marked_also_after_closing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "cache.sqlite"
    cache = Cache(path)
    key = digest("a", 1)
    assert cache.get(key) is None
    cache.put(key, [ONE, ONE])
    cache.put(key, [])  # what is there stays
    cache.close()
    cache.close()
    again = Cache(path, read_only=True)
    marked = replace(ONE, cached=True)
    assert again.get(key) == [marked, marked]
    assert len(again) == 1
    with pytest.raises(ReadOnlyStore, match="make it writable"):
        again.put(digest("b"), [ONE])
    again.close()


def test_a_file_of_the_first_format_is_read_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    kept = '[{"text": "a", "prompt_tokens": 3, "completion_tokens": 2, "finish": "stop", "cost": 0.5, "cached": false}]'
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE completions (digest BLOB PRIMARY KEY, completions TEXT) WITHOUT ROWID")
        db.execute("INSERT INTO completions VALUES (?, ?)", (digest("a"), kept))
        db.execute("PRAGMA user_version = 1")
    db.close()
    for read_only in (True, False):
        cache = Cache(path, read_only=read_only)
        assert cache.get(digest("a")) == [Completion("a", 3, 2, "stop", 0.5, cached=True)]
        version = cache._db.execute("PRAGMA user_version").fetchone()
        assert version == (1 if read_only else 2,)  # an older toolscout could not read what is put from now on
        cache.close()


def test_every_part_of_a_question_counts() -> None:
    parts = ["http://x", "m", [["user", "hi"]], 1, 0.0, 256, ("s",), {"type": "object"}]
    seen = {digest(*parts)}
    for place in range(len(parts)):
        seen.add(digest(*[("other" if i == place else part) for i, part in enumerate(parts)]))
    assert len(seen) == len(parts) + 1
    assert digest(["a", "b"], "c") != digest(["a"], "b", "c")


def test_files_that_are_something_else_are_left_alone(tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_text("no database " * 100)
    with pytest.raises(CorruptStore, match="delete it or name another"):
        Cache(junk)
    assert junk.read_text() == "no database " * 100
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE tools (id TEXT)")
    db.close()
    with pytest.raises(StoreError, match="something else"):
        Cache(other)
    SqliteStore(tmp_path / "catalogue").close()
    before = (tmp_path / "catalogue").read_bytes()
    for read_only in (False, True):
        with pytest.raises(StoreError, match="something else; name another file"):
            Cache(tmp_path / "catalogue", read_only=read_only)
    assert (tmp_path / "catalogue").read_bytes() == before
    newer = tmp_path / "newer.sqlite"
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(NewerStore, match="upgrade"):
        Cache(newer)
    with sqlite3.connect(newer) as db:
        db.execute("CREATE TABLE completions (digest BLOB)")
        db.execute("CREATE TABLE more (digest BLOB)")
    db.close()
    with pytest.raises(NewerStore, match="upgrade"):
        Cache(newer)
    with pytest.raises(StoreError, match="record them first"):
        Cache(tmp_path / "absent", read_only=True)
    with pytest.raises(StoreError, match="name another file"):
        Cache(junk / "below")


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")
    cache.put(digest(1), [ONE])
    for damaged in ("[{", "[5]"):
        cache._db.execute("UPDATE completions SET completions = ?", (damaged,))
        with pytest.raises(CorruptStore, match="a record cannot be read"):
            cache.get(digest(1))
    cache.close()


def test_two_processes_fill_one_file(tmp_path: Path) -> None:
    code = """
import sys
from toolscout.llm.base import Completion
from toolscout.llm.cache import Cache, digest
cache = Cache(sys.argv[1])
for number in range(20):
    cache.put(digest("shared", number), [Completion(str(number), 1, 1, "stop")])
    cache.put(digest(sys.argv[2], number), [Completion(str(number), 1, 1, "stop")])
cache.close()
"""
    path = str(tmp_path / "cache")
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    running = [subprocess.Popen([sys.executable, "-c", code, path, name], env=environment) for name in "ab"]
    assert [process.wait(timeout=60) for process in running] == [0, 0]
    cache = Cache(path)
    assert len(cache) == 60
    assert cache.get(digest("b", 19)) == [Completion("19", 1, 1, "stop", cached=True)]
    cache.close()


def test_a_file_of_the_first_format_that_cannot_be_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.sqlite"
    Cache(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 1")
    db.close()
    monkeypatch.setattr("os.access", lambda place, how: False)
    cache = Cache(path)
    assert cache.get(digest("a")) is None
    assert cache._db.execute("PRAGMA user_version").fetchone() == (1,)
    cache.close()
