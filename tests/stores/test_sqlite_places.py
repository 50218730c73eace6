"""The SQLite file in places where it cannot be written: read-only folders, files of other users, full disks."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.stores.store_helpers import fork, hear, made, tools, wait
from toolscout.errors import DiskFull, ReadOnlyStore, StoreError
from toolscout.stores.sqlite import schema
from toolscout.stores.sqlite import tools as sqlite_catalogue
from toolscout.stores.sqlite.store import SqliteStore

NOBODY = 65534


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
    with without_privileges(), pytest.raises(StoreError, match="may read"):
        SqliteStore(path)
    open_folder.chmod(0o700)
    if os.geteuid() == 0:
        with without_privileges(), pytest.raises(StoreError, match="Permission denied"):
            SqliteStore(path)


def test_a_read_only_store_of_older_texts_still_answers(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(open_folder / "store.db")
    close_door(open_folder)
    monkeypatch.setattr(sqlite_catalogue, "DOCUMENT_VERSION", 1000)
    with without_privileges(), SqliteStore(path) as store:
        assert len(list(store.documents(0))) == 5


def test_a_read_only_store_of_an_older_format(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(open_folder / "store.db")
    close_door(open_folder)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("SELECT 1",)))
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
    hear(told)
    with without_privileges(), SqliteStore(path) as store:
        assert store.count() == 6
        stamp = store.stamp()
        os.write(there, b"!")
        hear(told)
        assert store.count() == 7
        assert store.stamp() != stamp
        os.write(there, b"!")
        hear(told)  # the log has been merged and is gone
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
    monkeypatch.setattr(sqlite_catalogue, "DOCUMENT_VERSION", 1000)
    with SqliteStore(path) as store:
        assert len(list(store.documents(0))) == 300
