"""An index whose shards are built elsewhere answers as one that is built here."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from tests.index.test_vector_table import recall, scan, unit
from tests.toys import HashedWords, catalogue
from toolscout.core.tool import Listing, Tool
from toolscout.errors import DiskFull
from toolscout.index import vector_graph, word_files
from toolscout.index.builders import Builders, builders, built_by
from toolscout.index.vector_graph import VectorGraph
from toolscout.index.vector_table import VectorTable
from toolscout.retrievers import bm25
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense, DenseOptions
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.scout import Scout
from toolscout.search import index_snapshot

REQUESTS = ("search issue mail", "serch the isue", "list mails", "space3/list_issue_21", "найти письмо", "unheard")
RUSSIAN = [Tool("почта", f"письмо_{number}", f"Найти письмо номер {number} в ящике.") for number in range(60)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few documents and rows are worth a shard."""
    monkeypatch.setattr(bm25, "_LEAST_SHARD", 20)
    monkeypatch.setattr(vector_graph, "_LEAST_ROWS", 100)


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """Three shards of every index are built side by side."""
    with ThreadPoolExecutor(3) as executor, built_by(executor, 3):
        yield


def answers(index: Bm25 | Hybrid) -> list[list[tuple[str, float]]]:
    return [[(hit.tool_id, hit.score) for hit in index.search([text], 400)[0]] for text in REQUESTS]


def segments(index: Bm25) -> int:
    return int(index._committed.searcher.num_segments)


@pytest.mark.parametrize(("rows", "lengths"), [(99, [99]), (301, [100, 100, 101]), (0, [0]), (250, [125, 125])])
def test_rows_are_divided_evenly(rows: int, lengths: list[int]) -> None:
    with ThreadPoolExecutor(1) as executor:
        found = Builders(executor, 3).shards(rows, 100)
    assert [len(one) for one in found] == lengths
    assert [row for one in found for row in one] == list(range(rows))


def test_only_this_thread_and_only_in_the_block() -> None:
    with ThreadPoolExecutor(1) as executor:
        with built_by(executor, 3):
            assert builders() == Builders(executor, 3)
            assert executor.submit(builders).result() is None
        assert builders() is None


def test_words_are_ranked_alike(tmp_path: Path) -> None:
    here, there = Bm25(), Bm25()
    for tools in (catalogue(200), RUSSIAN):
        here.add(tools)
        with ThreadPoolExecutor(3) as executor, built_by(executor, 3):
            there.add(tools)
        assert answers(there) == answers(here)
    assert segments(here) < 4 <= segments(there)
    there.save(tmp_path)
    there = Bm25.load(tmp_path)
    assert answers(there) == answers(here)
    with ThreadPoolExecutor(3) as executor, built_by(executor, 3):
        for index in (here, there):
            index.add(catalogue(90, seed=5))  # they replace some of the first
            index.remove([tool.id for tool in catalogue(30)])
            index.add([Tool("zoo", "feed_lion", "Gives the lion its mail.")])
            index.settle()  # removed documents are counted until segments are merged
    assert answers(there) == answers(here)


def test_segments_are_merged_as_they_grow_many(elsewhere: None) -> None:
    index, whole = Bm25(), catalogue(1200)
    for start in range(0, 1200, 60):
        index.add(whole[start : start + 60])
    assert segments(index) < 30  # of the 60 shards
    with ThreadPoolExecutor(1) as executor, built_by(executor, 1):
        expected = Bm25()
        expected.add(whole)
    assert answers(index) == answers(expected)


def test_expansions_are_in_shards_too(elsewhere: None) -> None:
    tools = [Listing(one.id, one.namespace, one.name, (), one.document(), "") for one in catalogue(80)]
    expanded = Listing("zoo/pay", "zoo", "pay", (), "pay", "", "buy a ticket for the lion house")
    index = Bm25()
    index.add([*tools, expanded])
    assert [hit.tool_id for hit in index.search(["ticket to the lions"], 3)[0]] == ["zoo/pay"]


def test_a_full_memory_moves_them_to_disk(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    write, refused = word_files.replace_file, []

    def full(path: Path, content: object) -> None:
        if word_files.in_memory(str(path.parent)):
            refused.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)  # type: ignore[arg-type]

    monkeypatch.setattr(word_files, "in_memory", lambda folder: not folder.startswith("/tmp/"))
    monkeypatch.setattr(word_files, "replace_file", full)
    if not word_files.in_memory(Bm25()._files._folder):
        pytest.skip("this machine has no room in memory")
    index, expected = Bm25(), Bm25()
    index.add(catalogue(200))
    assert len(refused) == 1
    for start in range(0, 200, 10):  # too few for shards
        expected.add(catalogue(200)[start : start + 10])
    assert answers(index) == answers(expected)


def test_a_full_disk_loses_nothing(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Bm25()
    index.add(catalogue(200))
    before = answers(index)

    def full(path: Path, content: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(word_files, "replace_file", full)
        with pytest.raises(DiskFull, match="make room"):
            index.add(RUSSIAN)
    assert answers(index)[:4] == before[:4]
    index.add(RUSSIAN)
    assert len(answers(index)[4]) == 60


@pytest.mark.parametrize("shards", [1, 3, 7])
def test_graphs_find_nearly_all_and_what_comes_later_exactly(tmp_path: Path, shards: int) -> None:
    rows = unit(4000)
    table = VectorTable()
    table.append(rows[:3500])
    with ThreadPoolExecutor(shards) as executor, built_by(executor, shards):
        table = table.linked()
    table.save(tmp_path)
    assert len(vector_graph.files(tmp_path)) == shards
    loaded = VectorTable.load(tmp_path)
    for each in (table, loaded):
        each.append(rows[3500:])
        each.kill(3)
        assert recall(each, rows, unit(40, seed=9), later=3500, dead=[3]) > 0.99


def test_a_table_is_saved_over_one_of_more_graphs(tmp_path: Path) -> None:
    table, alone = VectorTable(), VectorTable()
    for one in (table, alone):
        one.append(unit(900))
    with ThreadPoolExecutor(3) as executor, built_by(executor, 3):
        table.linked().save(tmp_path / "three")
    alone.linked().save(tmp_path / "three")
    assert vector_graph.files(tmp_path / "three") == ["graph.0.usearch"]
    table.save(tmp_path / "three")
    assert vector_graph.files(tmp_path / "three") == []
    assert not VectorTable.load(tmp_path / "three").has_graph


def test_a_graph_that_is_missing_costs_time_alone(tmp_path: Path) -> None:
    table = VectorTable()
    table.append(unit(900))
    with ThreadPoolExecutor(3) as executor, built_by(executor, 3):
        table.linked().save(tmp_path)
    (tmp_path / vector_graph.files(tmp_path)[1]).unlink()
    loaded = VectorTable.load(tmp_path)
    for query in unit(20, seed=4):
        assert set(loaded.search(query, 5)[0].tolist()) >= scan(unit(900), query, 5, set())


def test_a_graph_of_an_older_version_is_built_anew(tmp_path: Path) -> None:
    table = VectorTable()
    table.append(unit(900))
    table.linked().save(tmp_path)
    (tmp_path / "graph.0.usearch").rename(tmp_path / "graph.usearch")
    loaded = VectorTable.load(tmp_path)
    assert not loaded.has_graph
    for query in unit(20, seed=4):
        assert set(loaded.search(query, 5)[0].tolist()) >= scan(unit(900), query, 5, set())
    loaded.linked().save(tmp_path)
    assert VectorTable.load(tmp_path).has_graph
    assert not (tmp_path / "graph.usearch").exists()


def test_near_duplicates_that_follow_each_other_are_found() -> None:
    """Such rows link to each other alone where they are added one after the other."""
    centres, random = unit(300, 64), np.random.default_rng(2)
    rows = np.repeat(centres, 60, axis=0) + 0.05 * random.standard_normal((18_000, 64)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    table = VectorTable()
    table.append(rows)
    linked = table.linked()
    graph = linked._graph
    assert graph is not None
    for shard in graph._shards:
        shard.expansion_search = 128
    assert recall(linked, rows, unit(60, 64, seed=8), later=len(rows)) > 0.94  # .915 in the order of the rows


def test_later_rows_go_beside_the_graphs_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = VectorTable()
    table.append(unit(900))
    with ThreadPoolExecutor(3) as executor, built_by(executor, 3):
        table.linked().save(tmp_path / "one")
    loaded = VectorTable.load(tmp_path / "one")
    loaded.append(unit(10, seed=1))
    monkeypatch.setattr(VectorGraph, "save", None)  # the files are linked
    loaded.save(tmp_path / "two")
    assert len(VectorTable.load(tmp_path / "two")) == 910
    assert len(vector_graph.files(tmp_path / "two")) == 3


@pytest.mark.slow
def test_other_processes_build_the_index_that_replicas_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_snapshot, "WORTH_KEEPING", 10)
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", HashedWords.load)

    def retriever() -> Hybrid:
        return Hybrid(parts=[Bm25(), Dense(DenseOptions(graph_above=100))])

    def found(scout: Scout) -> list[list[tuple[str, float]]]:
        return [[(hit.tool_id, hit.score) for hit in scout.search(text, k=50).hits] for text in REQUESTS]

    store = tmp_path / "tools.db"
    with Scout.open(store, retriever) as scout:
        scout.store.add(catalogue(600), "tests")
        scout.store.add(RUSSIAN, "more")
        encoder = scout.retriever.encoder
        assert encoder is not None
        digests, texts = zip(*scout.store.missing_vectors(encoder.fingerprint), strict=True)
        scout.store.put_vectors(encoder.fingerprint, digests, encoder.encode(texts))
    processes = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    with processes, built_by(processes, 2), Scout.open(store, retriever) as scout:
        scout.pack_index(tmp_path / "packed.tar")
        expected = found(scout)
        graphs: Sequence[object] = scout.retriever.parts[1]._table._graph._shards  # type: ignore[attr-defined]
        assert len(graphs) == 2
    with Scout.open(store, Hybrid(parts=[Bm25(), Dense(DenseOptions(graph_above=10_000))])) as scout:
        assert found(scout) == expected
