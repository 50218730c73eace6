"""A packed index: a copy of the store opens it instead of building its own, and answers the same."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.toys import HashedWords, catalogue
from toolscout.cli.main import app
from toolscout.core.answer import Answer
from toolscout.core.tool import Tool
from toolscout.errors import BadModel
from toolscout.retrievers.bm25 import Bm25
from toolscout.scout import Scout
from toolscout.search import index_snapshot
from toolscout.search.index_snapshot import unpack
from toolscout.stores.sqlite.store import SqliteStore

LION = Tool("zoo", "feed_lion", "Gives the lion its dinner.")
REQUESTS = ("search issue mail", "gives the lion its dinner", "serch the isue", "zoo/feed_lion")


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every index is worth keeping, and the encoder needs no weights."""
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", HashedWords.load)
    monkeypatch.setattr(index_snapshot, "WORTH_KEEPING", 10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of 80 tools."""
    found = tmp_path / "tools.db"
    with Scout.open(found) as scout:
        scout.add(catalogue(80), label="tests")
    return found


@pytest.fixture
def copy(path: Path, tmp_path: Path) -> Path:
    """A copy of the store on another machine."""
    (tmp_path / "replica").mkdir()
    with SqliteStore(path):  # merges the log into the file
        pass
    return Path(shutil.copy(path, tmp_path / "replica" / "tools.db"))


@pytest.fixture
def indexed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tools were put into an index, each time."""
    found: list[int] = []
    add = Bm25.add

    def counting(index: Bm25, tools: Sequence[Any], vectors: Any = None) -> None:
        found.append(len(tools))
        add(index, tools, vectors)

    monkeypatch.setattr(Bm25, "add", counting)
    return found


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def answers(path: Path) -> list[Answer]:
    with Scout.open(path) as scout:
        return [scout.search(text, k=90) for text in REQUESTS]


def test_a_copy_opens_it_and_answers_the_same(path: Path, copy: Path, tmp_path: Path, indexed: list[int]) -> None:
    done = run("index", "pack", tmp_path / "packed.tar", "--store", path)
    assert (done.exit_code, "catalogue version 1" in done.stderr) == (0, True), done.output
    done = run("index", "fetch", tmp_path / "packed.tar", "--store", copy)
    assert (done.exit_code, done.stderr) == (0, "fetched: the index of catalogue version 1\n"), done.output
    expected = answers(path)
    indexed.clear()
    assert answers(copy) == expected
    assert sum(indexed) == 0


def test_changes_since_are_applied(path: Path, copy: Path, tmp_path: Path, indexed: list[int]) -> None:
    with Scout.open(path) as scout:
        assert scout.pack_index(tmp_path / "packed.tar") == 1
    for one in (path, copy):
        with Scout.open(one) as scout:
            scout.add([LION], label="more")
    shutil.rmtree(f"{copy}.index")
    done = run("index", "fetch", tmp_path / "packed.tar", "--store", copy)
    assert "1 later changes are applied" in done.stderr
    indexed.clear()
    found = answers(copy)
    assert sum(indexed) == 1
    assert found == answers(path)
    assert found[1].considered[0].tool_id == LION.id


def test_equal_indexes_give_equal_archives(path: Path, tmp_path: Path) -> None:
    with Scout.open(path) as scout:
        scout.pack_index(tmp_path / "one.tar")
        scout.pack_index(tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert sorted(one.name for one in tmp_path.glob("*.tar*")) == [
        *("one.tar", "one.tar.sha256", "two.tar", "two.tar.sha256")
    ]


def test_a_damaged_archive_changes_nothing(path: Path, copy: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.tar"
    with Scout.open(path) as scout:
        scout.pack_index(packed)
    whole = packed.read_bytes()
    packed.write_bytes(whole[:5_000] + b"x" + whole[5_001:])
    with SqliteStore(copy) as store, pytest.raises(BadModel, match="is damaged"):
        unpack(packed, store)
    assert not Path(f"{copy}.index").exists()


def test_an_archive_of_another_store_is_refused(path: Path, tmp_path: Path) -> None:
    with Scout.open(path) as scout:
        scout.add([LION], label="more")
        scout.pack_index(tmp_path / "packed.tar")
    with SqliteStore(tmp_path / "other.db") as other, pytest.raises(BadModel, match="of another catalogue"):
        unpack(tmp_path / "packed.tar", other)


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside"])
def test_no_file_is_written_elsewhere(path: Path, copy: Path, tmp_path: Path, name: str) -> None:
    packed = tmp_path / "packed.tar"
    with Scout.open(path) as scout:
        scout.pack_index(packed)
    with tarfile.open(packed, "a") as archive:
        member = tarfile.TarInfo(name)
        member.size = 3
        archive.addfile(member, io.BytesIO(b"bad"))
    Path(f"{packed}.sha256").write_text(index_snapshot._sha256(packed))
    with SqliteStore(copy) as store, pytest.raises(BadModel, match="leads out of the folder"):
        unpack(packed, store)
    assert not list(tmp_path.rglob("outside"))
    assert not list(Path(f"{copy}.index").rglob("model.json"))


def test_what_is_no_archive_is_told(copy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tar"
    for content in (b"", b"no archive", json.dumps({"name": "hybrid"}).encode()):
        other.write_bytes(content)
        Path(f"{other}.sha256").write_text(index_snapshot._sha256(other))
        done = run("index", "fetch", other, "--store", copy)
        assert (done.exit_code, "is no packed index" in done.stderr) == (2, True), done.output
    assert run("index", "fetch", tmp_path / "none.tar", "--store", copy).exit_code == 2


def test_a_small_catalogue_has_nothing_to_pack(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(f"{path}.index")
    monkeypatch.setattr(index_snapshot, "WORTH_KEEPING", 1_000)
    done = run("index", "pack", tmp_path / "packed.tar", "--store", path)
    assert (done.exit_code, "is built as it is opened" in done.stderr) == (2, True), done.output
