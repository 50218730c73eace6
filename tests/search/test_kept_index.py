"""The index beside a store: it answers as one that is built, follows every change, and is only ever a cache."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.toys import HashedWords, catalogue
from toolscout.core.answer import Allowed, Answer
from toolscout.core.tool import Listing, Tool
from toolscout.index import saved_rows, vector_table
from toolscout.index.tool_table import ToolTable
from toolscout.index.vector_table import VectorTable
from toolscout.index.word_files import WordFiles
from toolscout.retrievers import bm25
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense, DenseOptions
from toolscout.scout import Scout
from toolscout.search import index_snapshot
from toolscout.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow

LION = Tool("zoo", "feed_lion", "Gives the lion its dinner.", aliases=("big cat supper",))
FORECAST = Tool("sky", "forecast", "How warm and how wet it will be.")
REQUESTS = ("search issue mail", "gives the lion its dinner", "serch the isue", "big cat supper", "zoo/feed_lion")
CALLERS = (None, Allowed.of(["space1", "zoo"]), Allowed.of(["space2"], ["space0/create_issue_0"]))
METHODS = ("hybrid", "bm25", "dense", "memory")


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every index is worth keeping, in tables, and the encoder needs no weights."""
    encoder = HashedWords()
    monkeypatch.setattr(
        "toolscout.models.encoders.onnx_encoder.Encoder.load", lambda folder=None, threads=None: encoder
    )
    monkeypatch.setattr(index_snapshot, "WORTH_KEEPING", 10)
    monkeypatch.setattr(saved_rows, "LISTED", 5)
    monkeypatch.setattr(vector_table, "_BESIDE", 5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tools.db"


def filled(path: Path, retriever: str = "hybrid", embed: bool = True) -> Path:
    """A store with its index beside it."""
    with Scout.open(path, retriever) as scout:
        if embed:
            scout.add([*catalogue(80), LION])
        else:
            scout.store.add([*catalogue(80), LION], "tests")
    Scout.open(path, retriever).close()
    assert pointer(path, retriever).exists()
    return path


def pointer(path: Path, retriever: str = "hybrid") -> Path:
    return index_snapshot.folder(path.with_name(f"{path.name}.index"), retriever) / "current.json"


def folder(path: Path, retriever: str = "hybrid") -> Path:
    return pointer(path, retriever).parent / str(json.loads(pointer(path, retriever).read_text())["folder"])


def answers(path: Path, retriever: str = "hybrid") -> list[Answer]:
    with Scout.open(path, retriever) as scout:
        return [scout.search(text, k=90, allowed=caller) for text in REQUESTS for caller in CALLERS]


def fresh(path: Path, retriever: str = "hybrid") -> list[Answer]:
    """The answers of an index that is built from the store alone."""
    target = path.with_name("fresh") / path.name
    shutil.rmtree(target.parent, ignore_errors=True)
    target.parent.mkdir()
    with SqliteStore(path):  # merges the log into the file
        pass
    shutil.copy(path, target)
    return answers(target, retriever)


class Reads:
    """How many documents were read from the store, and how many tools were put into an index."""

    documents = tools = 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counted, documents, add = Reads(), SqliteStore.documents, Bm25.add

    def listed(store: SqliteStore, since: int) -> Iterator[tuple[Any, Listing | None]]:
        for one in documents(store, since):
            counted.documents += 1
            yield one

    def added(index: Bm25, tools: Sequence[Any], vectors: Any = None) -> None:
        counted.tools += len(tools)
        add(index, tools, vectors)

    monkeypatch.setattr(SqliteStore, "documents", listed)
    monkeypatch.setattr(Bm25, "add", added)
    return counted


@pytest.mark.parametrize("embed", [True, False])
@pytest.mark.parametrize("retriever", METHODS)
def test_it_answers_as_one_that_is_built(path: Path, retriever: str, embed: bool) -> None:
    filled(path, retriever, embed)
    assert answers(path, retriever) == fresh(path, retriever)


@pytest.mark.parametrize("embed", [True, False])
def test_opening_reads_no_document_and_no_id(
    path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch, embed: bool
) -> None:
    filled(path, embed=embed)
    reads.documents = reads.tools = 0
    monkeypatch.setattr(ToolTable, "ids", None)
    monkeypatch.setattr(VectorTable, "_half", None)
    read, one = list[int](), ToolTable.id

    def counted(table: ToolTable, row: int) -> str:
        read.append(row)
        return one(table, row)

    monkeypatch.setattr(ToolTable, "id", counted)
    with Scout.open(path) as scout:
        assert (reads.documents, reads.tools, read) == (0, 0, [])
        assert scout.search("gives the lion its dinner").considered[0].tool_id == LION.id
        assert scout.count() == 81
        assert scout.words_only() == (0 if embed else 81)


def test_a_graph_is_kept_though_no_tool_has_changed_since_the_index_was_saved(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, build = list[int](), VectorTable.linked
    monkeypatch.setattr(VectorTable, "linked", lambda table, stopped: sizes.append(len(table)) or build(table, stopped))
    filled(path)  # with all vectors, and without a graph
    for _ in range(2):
        with Scout.open(path, lambda: Dense(DenseOptions(graph_above=50))) as scout:
            scout.embed()
    assert sizes == [81]


def test_words_alone_are_kept_where_nothing_is_embedded(path: Path, reads: Reads) -> None:
    with SqliteStore(path) as store:
        store.add([*catalogue(80), LION], "tests")
    first = answers(path, "bm25")
    assert reads.tools == 81
    assert answers(path, "bm25") == first
    assert reads.tools == 81


@pytest.mark.parametrize("retriever", METHODS)
def test_it_follows_what_another_process_adds(path: Path, reads: Reads, retriever: str) -> None:
    filled(path, retriever)
    reads.documents = 0
    code = """
        import sys
        from toolscout.stores.sqlite.store import SqliteStore
        from toolscout.core.tool import Tool
        with SqliteStore(sys.argv[1]) as store:
            store.add([Tool("sky", "forecast", "How warm and how wet it will be, and where to search mail.")], "tests")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(path)], check=True)
    assert answers(path, retriever) == fresh(path, retriever)
    assert reads.documents < 200


def test_what_is_removed_or_changed_is_not_found_any_more(path: Path) -> None:
    filled(path)
    with SqliteStore(path) as store:
        store.remove(["space0/create_issue_0", LION.id])
        changed = Tool("space1", catalogue(80)[1].name, "A purple elephant.")
        store.add([changed, FORECAST], "others", replace=True)
    for _ in range(2):
        with Scout.open(path) as scout:
            scout.embed()
            assert scout.count() == 80
            found = {hit.tool_id for hit in scout.search("search issue mail", k=90).considered}
            assert not found & {"space0/create_issue_0", LION.id}
            assert scout.search("purple elephant").considered[0].tool_id == changed.id
            assert scout.search("big cat supper").considered[0].tool_id != LION.id
            assert scout.search("sky/forecast").considered[0].tool_id == FORECAST.id


def test_what_came_since_is_written_back_beside_the_table(
    path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path)
    before = folder(path)
    table = next(before.rglob("ids.npy"))
    inode = table.stat().st_ino
    with SqliteStore(path) as store:
        store.add([FORECAST], "others")
        store.remove([catalogue(80)[5].id])
    monkeypatch.setattr(index_snapshot, "WORTH_RENEWING", 0.01)
    wanted = answers(path)
    after = folder(path)
    assert after != before
    assert (after / table.relative_to(before)).stat().st_ino == inode
    reads.documents = 0
    assert answers(path) == wanted
    assert reads.documents == 0


def test_many_changes_make_a_new_table(path: Path, reads: Reads) -> None:
    filled(path)
    more = catalogue(200)[80:]
    with Scout.open(path) as scout:
        scout.add(more)
        scout.remove([tool.id for tool in more[::3]])
    wanted = answers(path)
    reads.documents = 0
    assert answers(path) == wanted
    assert reads.documents <= 40


def test_where_many_documents_are_dead_words_count_as_in_a_built_index(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bm25, "_DEAD_KEPT", 0)
    filled(path, "bm25")
    gone = [tool.id for tool in catalogue(80)[:30]]
    with Scout.open(path, "bm25") as scout:
        scout.remove(gone)
    Scout.open(path, "bm25").close()  # keeps it without them
    assert answers(path, "bm25") == fresh(path, "bm25")


DAMAGES = ("empty", "half", "noise", "longer", "gone")


def damage(file: Path, how: str) -> None:
    good = file.read_bytes()
    file.unlink()  # what others have linked stays as it is
    if how == "half":
        file.write_bytes(good[: len(good) // 2])
    elif how == "noise":
        file.write_bytes(random.Random(0).randbytes(len(good)))
    elif how == "longer":
        file.write_bytes(good + b"x")
    elif how == "empty":
        file.write_bytes(b"")


@pytest.mark.slow
@pytest.mark.parametrize("how", DAMAGES)
def test_a_file_that_is_damaged_is_built_again(path: Path, reads: Reads, how: str) -> None:
    filled(path)
    wanted = answers(path)
    names = [file.relative_to(folder(path)) for file in sorted(folder(path).rglob("*")) if file.is_file()]
    assert len(names) > 30
    for name in {one.name.partition(".")[2] if len(one.name) > 36 else str(one): one for one in names}.values():
        file = folder(path) / name
        if not file.exists():  # the engine names its files anew
            file = next(folder(path).rglob(f"*{name.suffix}"))
        if not (how in ("empty", "half", "noise") and file.stat().st_size == 0):
            damage(file, how)
            reads.tools = 0
            with Scout.open(path) as scout:
                assert scout.search("gives the lion its dinner").considered[0].tool_id == LION.id
            assert reads.tools == 81, name
    assert answers(path) == wanted


@pytest.mark.parametrize("content", ["", "{ not json", "[]", '{"folder": "../../..", "state": {}}', "null"])
def test_a_pointer_that_says_nothing_is_written_again(path: Path, reads: Reads, content: str) -> None:
    filled(path)
    wanted = answers(path)
    pointer(path).write_text(content)
    assert answers(path) == wanted
    assert json.loads(pointer(path).read_text())["files"]


def test_a_store_out_of_an_older_backup_has_the_tools_it_had(path: Path, tmp_path: Path) -> None:
    filled(path)
    backup = tmp_path / "backup.db"
    shutil.copy(path, backup)
    with Scout.open(path) as scout:
        scout.add([FORECAST, *catalogue(120)[80:]])
    Scout.open(path).close()
    for file in tmp_path.glob("tools.db*"):
        if file.is_file():
            file.unlink()
    shutil.copy(backup, path)
    assert answers(path) == fresh(path)
    with Scout.open(path) as scout:
        assert scout.count() == 81


@pytest.mark.parametrize("asked", [True, False])
def test_a_store_out_of_a_backup_that_went_on_is_followed(path: Path, tmp_path: Path, asked: bool) -> None:
    filled(path)
    backup = tmp_path / "backup.db"
    shutil.copy(path, backup)
    with Scout.open(path) as scout:
        scout.add([FORECAST, *catalogue(120)[80:]])
    Scout.open(path).close()
    for file in tmp_path.glob("tools.db*"):
        if file.is_file():
            file.unlink()
    shutil.copy(backup, path)
    if asked:
        assert answers(path) == fresh(path)
    with SqliteStore(path) as store:  # to the version of what was kept, and beyond it
        for tool in catalogue(140)[120:]:
            store.add([tool], "others")
    assert answers(path) == fresh(path)
    with Scout.open(path) as scout:
        assert scout.count() == 101


def test_the_index_of_another_store_is_not_taken(path: Path, tmp_path: Path) -> None:
    filled(path)
    other = tmp_path / "other.db"
    with SqliteStore(other) as store:
        store.add([FORECAST, *catalogue(20)], "tests")
    shutil.copytree(tmp_path / "tools.db.index", tmp_path / "other.db.index")
    assert answers(other) == fresh(other)


def test_where_it_cannot_be_kept_words_answer_and_say_so(path: Path) -> None:
    path.with_name("tools.db.index").write_text("in the way")
    with SqliteStore(path) as store:
        store.add([*catalogue(80), LION], "tests")
    with Scout.open(path) as scout:
        answer = scout.search("gives the lion its dinner")
        assert answer.considered[0].tool_id == LION.id
        (note,) = [note for note in answer.notes if "cannot be kept" in note]
        assert str(path.parent) not in note


@pytest.mark.parametrize("part", ["bm25", "dense"])
def test_a_full_disk_leaves_what_was_kept(path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    filled(path)
    before = folder(path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with SqliteStore(path) as store:
        store.add(catalogue(120)[80:], "others")
    # The word index is saved in the first step, the vectors are in the second.
    monkeypatch.setattr(*{"bm25": (WordFiles, "save", full), "dense": (VectorTable, "save", full)}[part])
    with Scout.open(path) as scout:
        assert any("No space left on device" in note for note in scout.search("issue").notes)
        assert scout.count() == 121
    assert folder(path) == before
    assert [file.name for file in before.parent.iterdir() if file.is_dir()] == [before.name]


def test_those_who_may_read_the_store_may_read_its_index(path: Path) -> None:
    with SqliteStore(path) as store:
        store.add([*catalogue(80), LION], "tests")
    for mode, inside in ((0o640, 0o750), (0o600, 0o700), (0o664, 0o775)):
        path.chmod(mode)
        shutil.rmtree(path.with_name("tools.db.index"), ignore_errors=True)
        Scout.open(path).close()
        places = [path.with_name("tools.db.index"), folder(path), *folder(path).rglob("*"), pointer(path)]
        assert {place.stat().st_mode & 0o777 for place in places if place.is_file()} == {mode}
        assert {place.stat().st_mode & 0o777 for place in places if place.is_dir()} == {inside}


def test_processes_that_open_a_store_at_once_all_answer(path: Path) -> None:
    with SqliteStore(path) as store:
        store.add([*catalogue(80), LION], "tests")
    code = """
        import sys
        from tests.toys import HashedWords
        from toolscout.models.encoders import onnx_encoder
        from toolscout.scout import Scout
        from toolscout.search import index_snapshot
        index_snapshot.WORTH_KEEPING, index_snapshot.WORTH_RENEWING = 10, 0
        onnx_encoder.Encoder.load = HashedWords.load
        from toolscout.core.tool import Tool
        for number in range(5):
            with Scout.open(sys.argv[1]) as scout:
                scout.store.add([Tool("sky", f"cloud_{sys.argv[2]}_{number}", "It is cloudy.")], f"{sys.argv[2]}")
                scout.refresh()
                assert scout.search("gives the lion its dinner").considered[0].tool_id == "zoo/feed_lion"
                assert scout.search(f"sky/cloud_{sys.argv[2]}_{number}").considered[0].tool_id.startswith("sky/cloud")
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    running = [subprocess.Popen([*command, str(number)], stderr=subprocess.PIPE) for number in range(3)]
    errors = [process.communicate()[1].decode() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], errors
    with Scout.open(path) as scout:
        assert scout.count() == 96
    assert [one.considered for one in answers(path)] == [one.considered for one in fresh(path)]


def test_a_snapshot_that_is_open_stays_until_it_is_closed(path: Path) -> None:
    filled(path)
    opened = Scout.open(path)
    before = folder(path)
    with Scout.open(path) as scout:
        scout.add(catalogue(150)[80:])
    Scout.open(path).close()
    assert folder(path) != before
    assert before.exists()
    assert len(opened.search("search issue mail", k=200).considered) > 81  # it has followed too
    opened.close()
    del opened
    with Scout.open(path) as scout:
        scout.add(catalogue(220)[150:])
    assert not before.exists()


def test_searches_and_changes_go_on_while_a_snapshot_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    writing, may_go_on = threading.Event(), threading.Event()
    save = VectorTable.save

    def slow(table: VectorTable, target: Path) -> None:
        writing.set()
        assert may_go_on.wait(60)
        save(table, target)

    monkeypatch.setattr(VectorTable, "save", slow)
    with Scout.open(path) as scout, ThreadPoolExecutor(1) as pool:
        before = folder(path)
        added = pool.submit(scout.add, catalogue(150)[80:])
        try:
            assert writing.wait(60)
            assert scout.search("gives the lion its dinner").considered[0].tool_id == LION.id
            scout.store.add([Tool("sky", "count_clouds", "Counts the clouds.")], "others")
            scout.store.remove([LION.id])
            assert scout.search("sky/count_clouds").considered[0].tool_id == "sky/count_clouds"
            assert LION.id not in [hit.tool_id for hit in scout.search("gives the lion its dinner").considered]
            assert folder(path) == before
        finally:
            may_go_on.set()
        added.result(60)
        assert folder(path) != before
        state = json.loads(pointer(path).read_text())["state"]
        assert state["version"] < scout.store.version()
        running = [scout.search(text, k=90, allowed=caller).considered for text in REQUESTS for caller in CALLERS]
    # The snapshot has the state from when it was begun; what came later is followed.
    monkeypatch.setattr(VectorTable, "save", save)
    assert [one.considered for one in answers(path)] == running
    with Scout.open(path) as scout:
        assert scout.search("sky/count_clouds").considered[0].tool_id == "sky/count_clouds"
        assert scout.count() == 151


@pytest.mark.slow
def test_searches_go_on_while_the_index_is_kept_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_snapshot, "WORTH_RENEWING", 0)
    filled(path)
    wrong: list[str] = []
    over = threading.Event()
    with Scout.open(path) as scout:

        def ask() -> None:
            while not over.is_set():
                try:
                    found = scout.search("gives the lion its dinner", k=3).considered
                    if found[0].tool_id != LION.id:
                        wrong.append(str(found))
                except Exception as error:
                    wrong.append(repr(error))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for tool in catalogue(100)[80:]:
            scout.add([tool])
            scout.remove([tool.id])
        over.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[:3]
