"""The SQLite file itself: formats old and new, damage, read-only places, full disks."""

from __future__ import annotations

import os
import random
import resource
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from store_helpers import fork, tool, tools, wait

from toolscout import tool as words
from toolscout.errors import CorruptStore, DiskFull, NewerStore, ReadOnlyStore, StoreError
from toolscout.stores import _sqlite_catalogue, _sqlite_schema, open_store
from toolscout.stores.sqlite import SqliteStore
from toolscout.tool import Tool

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def made(path: Path, count: int = 5) -> Path:
    with SqliteStore(path) as store:
        store.add(tools(count), "made")
    return path


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
    assert db.execute("PRAGMA application_id").fetchone() == (_sqlite_schema.APPLICATION_ID,)
    assert db.execute("PRAGMA user_version").fetchone() == (len(_sqlite_schema.MIGRATIONS),)
    db.close()


@pytest.mark.parametrize("name", ["a?b#c%20 d.db", "日本.db", "deep/er/store.db"])
def test_any_path(tmp_path: Path, name: str) -> None:
    with open_store(str(tmp_path / name)) as store:
        store.add(tools(1))
    assert (tmp_path / name).is_file()


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        SqliteStore(tmp_path)


def test_a_file_where_a_folder_should_be(path: Path) -> None:
    path.write_text("")
    with pytest.raises(StoreError, match="choose another path"):
        SqliteStore(path / "store.db")


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    assert SqliteStore(made(path)).count() == 5


def test_a_file_deleted_behind_our_back(path: Path) -> None:
    with SqliteStore(path):
        pass
    store = SqliteStore(path)
    store.close()
    path.unlink()
    with pytest.raises(StoreError, match="closed"):
        store.count()


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
        assert len(store.vectors("model-1", ["0123"])["0123"]) == 2
        assert store.permissions("ann").namespaces == {"mail"}
        assert [example.used for _, example in store.feedback()] == [("mail/send",)]
        assert store.add([tool("new")], "made").added == 1


def test_a_migration_is_applied_once_and_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path)
    good = ("ALTER TABLE catalogue ADD COLUMN extra TEXT", "UPDATE catalogue SET extra = 'new'")
    monkeypatch.setattr(_sqlite_schema, "MIGRATIONS", (*_sqlite_schema.MIGRATIONS, (*good, "SELECT no such thing")))
    with pytest.raises(StoreError):
        SqliteStore(path)
    monkeypatch.setattr(_sqlite_schema, "MIGRATIONS", (*_sqlite_schema.MIGRATIONS[:-1], good))
    for _ in range(2):  # would fail on the second time, or if half of the bad one had stayed
        assert SqliteStore(path).count() == 5


def test_texts_are_made_again_under_newer_rules(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path, 7)
    monkeypatch.setattr(words, "DOCUMENT_VERSION", 1000)
    monkeypatch.setattr(_sqlite_catalogue, "DOCUMENT_VERSION", 1000)
    monkeypatch.setattr(_sqlite_catalogue, "CHUNK", 3)
    monkeypatch.setattr(Tool, "document", lambda self: f"new text of {self.name}")
    with SqliteStore(path) as store:
        assert store.version() == 2
        assert [change.kind for change in store.changes(1)] == ["changed"] * 7
        for change, listing in store.documents(1):
            assert listing.text == f"new text of {listing.name}"
            assert change.digest == listing.text_digest == words.text_digest(listing.text)
        assert store.add(tools(7), "made").unchanged == 7
    assert SqliteStore(path).version() == 2


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


# Read-only places


@contextmanager
def without_privileges() -> Iterator[None]:
    """Permissions mean nothing to root: be somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody can reach, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def close_door(folder: Path) -> None:
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)


def test_a_read_only_folder(open_folder: Path) -> None:
    path = made(open_folder / "store.db")
    close_door(open_folder)
    with without_privileges(), SqliteStore(path) as store:
        assert [each.name for each in store.tools()] == [each.name for each in tools(5)]
        assert store.stamp() == store.stamp()
        store.check()
        for write in (
            lambda: store.add(tools(1)),
            lambda: store.remove(["mail/tool_0000"]),
            lambda: store.set_alias("mail/tool_0000", "x"),
            lambda: store.put_vectors("m", ["a"], np.ones((1, 2), dtype=np.float32)),
            store.prune_vectors,
        ):
            with pytest.raises(ReadOnlyStore, match="may only be read"):
                write()
        assert store.count() == 5
    assert [each.name for each in open_folder.iterdir()] == ["store.db"]


def test_a_read_only_file(open_folder: Path) -> None:
    path = made(open_folder / "store.db")
    path.chmod(0o444)
    open_folder.chmod(0o777)
    with without_privileges():
        with SqliteStore(path) as store, SqliteStore(path) as other:
            assert store.count() == other.count() == 5
            with pytest.raises(ReadOnlyStore):
                store.add(tools(1))
        assert [each.name for each in open_folder.iterdir()] == ["store.db"]


def test_nothing_can_be_made_in_a_read_only_folder(open_folder: Path) -> None:
    close_door(open_folder)
    with without_privileges():
        for name in ("store.db", "deeper/store.db"):
            with pytest.raises(ReadOnlyStore, match=r"choose another path"):
                SqliteStore(open_folder / name)


def test_a_file_that_may_not_be_read(open_folder: Path) -> None:
    path = made(open_folder / "store.db")
    path.chmod(0)
    with without_privileges(), pytest.raises(StoreError, match="Permission denied"):
        SqliteStore(path)
    open_folder.chmod(0o700)
    if os.geteuid() == 0:
        with without_privileges(), pytest.raises(StoreError, match="Permission denied"):
            SqliteStore(path)


def test_a_read_only_store_of_older_texts_still_answers(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(open_folder / "store.db")
    close_door(open_folder)
    monkeypatch.setattr(_sqlite_catalogue, "DOCUMENT_VERSION", 1000)
    with without_privileges(), SqliteStore(path) as store:
        assert len(list(store.documents(0))) == 5


def test_a_read_only_store_of_an_older_format(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(open_folder / "store.db")
    close_door(open_folder)
    monkeypatch.setattr(_sqlite_schema, "MIGRATIONS", (*_sqlite_schema.MIGRATIONS, ("SELECT 1",)))
    with without_privileges(), pytest.raises(ReadOnlyStore, match="older format"):
        SqliteStore(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_reading_what_another_user_is_writing(open_folder: Path) -> None:
    path = made(open_folder / "store.db")
    (here, there), (told, tell) = os.pipe(), os.pipe()

    def write() -> None:
        with SqliteStore(path) as store:
            store.add(tools(6), "made")
            os.write(tell, b"1")
            os.read(here, 1)
            store.add(tools(7), "made")
            os.write(tell, b"2")
            os.read(here, 1)
        os.write(tell, b"3")

    child = fork(write)
    os.read(told, 1)
    with without_privileges(), SqliteStore(path) as store:
        assert store.count() == 6
        stamp = store.stamp()
        os.write(there, b"!")
        os.read(told, 1)
        assert store.count() == 7
        assert store.stamp() != stamp
        os.write(there, b"!")
        os.read(told, 1)  # the log has been merged and is gone
        assert store.count() == 7
        with pytest.raises(ReadOnlyStore):
            store.add(tools(8))
    assert wait(child) == 0
    for end in (here, there, told, tell):
        os.close(end)


def test_a_copy_with_unfinished_changes_in_a_read_only_folder(open_folder: Path, path: Path) -> None:
    with SqliteStore(path) as store:
        store.add(tools(5))
        for name in ("store.db", "store.db-wal"):
            shutil.copy(path.with_name(name), open_folder / name)
    close_door(open_folder)
    with without_privileges(), pytest.raises(ReadOnlyStore, match="open it once where it may be written"):
        SqliteStore(open_folder / "store.db")


# Full disks


def still_whole(store: SqliteStore) -> None:
    store.check()
    assert store.ids() == [each.id for each in tools(5)]
    assert store.version() == 1


def test_no_room_for_more_pages(path: Path) -> None:
    with SqliteStore(made(path)) as store:
        writer = store._files._writer
        pages = writer.execute("PRAGMA page_count").fetchone()[0]
        writer.execute(f"PRAGMA max_page_count = {pages + 20}")
        with pytest.raises(DiskFull, match="make room"):
            store.add(tools(2000, "x" * 500), "made")
        still_whole(store)
        writer.execute("PRAGMA max_page_count = 1000000")
        assert store.add(tools(2000, "x" * 500), "made").added == 1995


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_limit_on_the_size_of_files(path: Path) -> None:
    def work() -> None:
        with SqliteStore(made(path)) as store:
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
            store._files._writer.execute("PRAGMA cache_size = 10")
            with pytest.raises(DiskFull, match="make room"):
                store.add(tools(2000, "x" * 500), "made")
            still_whole(store)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert store.add(tools(2000, "x" * 500), "made").added == 1995

    assert wait(fork(work)) == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "toolscout-test", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a small disk here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    with SqliteStore(made(small_disk / "store.db")) as store:
        with pytest.raises(DiskFull, match="make room"):
            store.add(tools(3000, "x" * 500), "made")
        still_whole(store)
        (small_disk / "ballast").write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 4096))
        with pytest.raises(DiskFull):
            store.add(tools(3000, "x" * 500), "made")
        still_whole(store)
    (small_disk / "more").write_bytes(b"x" * (shutil.disk_usage(small_disk).free))
    for _ in range(2):  # the second finds what the first could not finish
        with pytest.raises(DiskFull):
            SqliteStore(small_disk / "another.db")
    with SqliteStore(small_disk / "store.db") as store:  # not even room for a log
        still_whole(store)
        with pytest.raises(DiskFull, match="make room"):
            store.add(tools(6), "made")
    (small_disk / "ballast").unlink()
    (small_disk / "more").unlink()
    with SqliteStore(small_disk / "store.db") as store:
        assert store.add(tools(200, "x" * 500), "made").changed == 5


def test_a_full_disk_does_not_keep_older_texts_from_answering(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(small_disk / "store.db", 300)
    (small_disk / "ballast").write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 100_000))
    monkeypatch.setattr(_sqlite_catalogue, "DOCUMENT_VERSION", 1000)
    with SqliteStore(path) as store:
        assert len(list(store.documents(0))) == 300
