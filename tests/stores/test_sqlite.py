"""The SQLite file itself: formats old and new, damage, read-only places, full disks."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.stores.store_helpers import made, tool, tools
from toolscout.core import tool as words
from toolscout.core.tool import Tool
from toolscout.errors import CorruptStore, NewerStore, StoreError
from toolscout.stores import open_store
from toolscout.stores.sqlite import schema
from toolscout.stores.sqlite import tools as sqlite_catalogue
from toolscout.stores.sqlite.store import SqliteStore

NOBODY = 65534


def run(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


# Opening


def test_one_file_with_a_log(path: Path) -> None:
    with SqliteStore(path) as store:
        store.add(tools(1))
        assert {each.name for each in path.parent.iterdir()} == {"store.db", "store.db-wal", "store.db-shm"}
    assert [each.name for each in path.parent.iterdir()] == ["store.db"]
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert db.execute("PRAGMA application_id").fetchone() == (schema.APPLICATION_ID,)
    assert db.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)
    db.close()


@pytest.mark.parametrize("name", ["a?b#c%20 d.db", "日本.db", "deep/er/store.db"])
def test_any_path(tmp_path: Path, name: str) -> None:
    with open_store(str(tmp_path / name)) as store:
        store.add(tools(1))
    assert (tmp_path / name).is_file()


def test_links_and_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "store.db")
    made(tmp_path / "link.db")
    monkeypatch.chdir(tmp_path / "real")
    with SqliteStore("store.db") as store:
        monkeypatch.chdir(tmp_path)
        assert store.count() == 5


def test_opening_twice_in_one_process_keeps_the_locks(path: Path) -> None:
    with SqliteStore(path) as store:
        store.add(tools(1))
        SqliteStore(path).close()

        # The last to leave deletes the log, and this other process is not the last.
        command = [sys.executable, "-c", f"from toolscout.stores import open_store; open_store({str(path)!r}).close()"]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
        assert (path.parent / "store.db-wal").exists()
        store.add(tools(2))
    with SqliteStore(path) as store:
        assert store.count() == 2


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        SqliteStore(tmp_path)


def test_a_file_where_a_folder_should_be(path: Path) -> None:
    path.write_text("")
    with pytest.raises(StoreError, match="choose another path"):
        SqliteStore(path / "store.db")


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with SqliteStore(made(path)) as store:
        assert store.count() == 5


def test_identity(path: Path) -> None:
    with SqliteStore(path) as store:
        first = store.identity()
        store.add(tools(1))
        assert len(first) == 32
    with SqliteStore(path) as store:
        assert store.identity() == first
    path.unlink()
    with SqliteStore(path) as store:
        assert store.identity() != first


# Formats


def test_a_newer_format(path: Path) -> None:
    run(made(path), "PRAGMA user_version = 99")
    with pytest.raises(NewerStore, match="pip install --upgrade toolscout"):
        SqliteStore(path)


def test_newer_texts(path: Path) -> None:
    run(made(path), "UPDATE catalogue SET document = 99")
    with pytest.raises(NewerStore, match="pip install --upgrade toolscout"):
        SqliteStore(path)


def test_format_1_opens(path: Path) -> None:
    db = sqlite3.connect(path)
    db.executescript((Path(__file__).parent / "format_1.sql").read_text())
    db.close()
    with SqliteStore(path) as store:
        store.check()
        assert [each.id for each in store.tools()] == ["mail/read_all", "mail/send"]
        assert store.get(["mail/send"])[0].aliases == ("post", "mail it")
        assert [(change.tool_id, change.kind) for change in store.changes(1)][-2:] == [
            ("mail/old", "removed"),
            ("mail/send", "changed"),
        ]
        assert store.version() >= 4
        assert store.identity()
        assert len(store.vectors("model-1", ["0123"])["0123"]) == 2
        assert store.permissions("ann").namespaces == {"mail"}
        assert [(example.used, example.id) for _, example in store.feedback()] == [(("mail/send",), "")]
        assert store.add([tool("new")], "made").added == 1


def test_a_migration_is_applied_once_and_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path)
    good = ("ALTER TABLE catalogue ADD COLUMN extra TEXT", "UPDATE catalogue SET extra = 'new'")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, (*good, "SELECT no such thing")))
    with pytest.raises(StoreError):
        SqliteStore(path)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS[:-1], good))
    for _ in range(2):  # would fail on the second time, or if half of the bad one had stayed
        with SqliteStore(path) as store:
            assert store.count() == 5


def test_texts_are_made_again_under_newer_rules(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path, 7)
    monkeypatch.setattr(words, "DOCUMENT_VERSION", 1000)
    monkeypatch.setattr(sqlite_catalogue, "DOCUMENT_VERSION", 1000)
    monkeypatch.setattr(sqlite_catalogue, "CHUNK", 3)
    monkeypatch.setattr(Tool, "document", lambda self: f"new text of {self.name}")
    with SqliteStore(path) as store:
        assert store.version() == 2
        assert [change.kind for change in store.changes(1)] == ["changed"] * 7
        for change, listing in store.documents(1):
            assert listing.text == f"new text of {listing.name}"
            assert change.digest == listing.text_digest == words.text_digest(listing.text)
        assert store.add(tools(7), "made").unchanged == 7
    with SqliteStore(path) as store:
        assert store.version() == 2


# Damage


@pytest.mark.parametrize("content", [b"not a database, just text of some length " * 40, b"\x00" * 5000, b"x"])
def test_not_a_database(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CorruptStore, match=r"store\.db"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_the_database_of_another_program(path: Path) -> None:
    run(path, "CREATE TABLE theirs (x)")
    with pytest.raises(CorruptStore, match="another program"):
        SqliteStore(path)
    run(path, "DROP TABLE theirs", "PRAGMA application_id = 5")
    with pytest.raises(CorruptStore, match="another program"):
        SqliteStore(path)


def use_everything(path: Path) -> None:
    with SqliteStore(path) as store:
        store.check()
        store.get(store.ids())
        list(store.tools())
        list(store.documents(0))
        store.namespaces()
        store.missing_vectors("m")
        store.vectors_after("m")
        list(store.feedback())
        store.add(tools(200, "after the damage"), "made")


def test_damage_is_named_wherever_it_is(path: Path) -> None:
    with SqliteStore(path) as store:
        store.add(tools(200), "made")
        digests = [digest for digest, _ in store.missing_vectors("m")]
        store.put_vectors("m", digests, np.ones((len(digests), 8), dtype=np.float32))
    whole, chance, noticed = path.read_bytes(), random.Random(3), 0
    for turn in range(60):
        damaged = bytearray(whole)
        if turn % 3 == 0:
            del damaged[chance.randrange(1, len(whole)) :]
        else:
            for _ in range(20):
                start = chance.randrange(len(whole) - 64)
                damaged[start : start + 64] = chance.randbytes(64)
        path.write_bytes(damaged)
        for beside in ("-wal", "-shm"):
            path.with_name(path.name + beside).unlink(missing_ok=True)
        try:
            use_everything(path)
        except StoreError as error:
            noticed += isinstance(error, CorruptStore)
    assert noticed > 50
