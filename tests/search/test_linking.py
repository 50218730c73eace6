"""A search graph is built while searches and changes go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.toys import HashedWords, catalogue
from toolscout import scout as scout_module
from toolscout.core.tool import Tool
from toolscout.index.vector_graph import VectorGraph
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense, DenseOptions
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.scout import Scout

LION = Tool("zoo", "feed_lion", "Gives the lion its dinner.")
IN_TIME_S = 20.0


class Gate:
    """Holds up the building of a graph: `begun` tells of it, and it goes on once `open` is set."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made, build = Gate(), VectorGraph.over

    def held(count: int, copies: Any, stopped: Callable[[], bool] = lambda: False) -> VectorGraph | None:
        made.begun.set()
        while not made.open.wait(0.01):
            if stopped():
                return None
        return build(count, copies, stopped)

    monkeypatch.setattr(VectorGraph, "over", held)
    yield made
    made.open.set()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of 80 tools without an index; servers over it look often whether one lacks a graph."""
    monkeypatch.setattr(scout_module, "_SAVED_EVERY_S", 0.05)
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", HashedWords.load)
    store = tmp_path / "tools.db"
    with Scout.open(store) as scout:
        scout.add(catalogue(80), label="tests")
    return store


def linked() -> Dense:
    """An index that gets a graph from 50 tools on."""
    return Dense(DenseOptions(graph_above=50), HashedWords())


def has_graph(index: Dense) -> bool:
    return index._table.has_graph


def first(index: Retriever, text: str) -> str:
    return index.search([text], 1)[0][0].tool_id


def soon(condition: Callable[[], bool]) -> bool:
    """Wait until something is so; False where it takes too long."""
    until = time.monotonic() + IN_TIME_S
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_searches_and_changes_go_on(gate: Gate) -> None:
    index, tools = linked(), catalogue(80)
    index.add(tools)
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(index.optimise()))
    thread.start()
    assert gate.begun.wait(IN_TIME_S)
    assert first(index, tools[5].document()) == tools[5].id
    index.add([LION])
    index.remove([tools[5].id])
    assert first(index, LION.document()) == LION.id
    gate.open.set()
    thread.join(IN_TIME_S)
    assert (done, has_graph(index)) == ([True], True)
    assert first(index, LION.document()) == LION.id
    assert tools[5].id not in [hit.tool_id for hit in index.search([tools[5].document()], 80)[0]]
    assert len(index) == 80
    assert not index.optimise()  # there is one


def test_it_is_given_up_when_asked(gate: Gate) -> None:
    index = linked()
    index.add(catalogue(80))
    assert not index.optimise(lambda: True)
    assert not has_graph(index)
    gate.open.set()
    assert index.optimise()


def test_an_index_that_was_written_anew_meanwhile_gets_one_later(gate: Gate) -> None:
    index = linked()
    index.add(catalogue(80))
    thread = threading.Thread(target=index.optimise)
    thread.start()
    assert gate.begun.wait(IN_TIME_S)
    index.remove(index.ids())
    index.add(catalogue(70, seed=3))
    gate.open.set()
    thread.join(IN_TIME_S)
    assert not has_graph(index)
    assert len(index) == 70
    assert index.optimise()
    assert has_graph(index)


def test_servers_get_one_without_being_asked(tools: Path, gate: Gate) -> None:
    """As where another process has added the tools, or an older version has built the index."""
    dense = Dense(DenseOptions(graph_above=50))
    with Scout.open(tools, Hybrid(parts=[Bm25(), dense])) as server:
        server.follow()
        assert gate.begun.wait(IN_TIME_S)
        with Scout.open(tools) as other:
            other.add([LION], label="more")
        assert soon(lambda: first(server.retriever, LION.document()) == LION.id)
        assert not has_graph(dense)
        gate.open.set()
        assert soon(lambda: has_graph(dense))
        assert first(server.retriever, LION.document()) == LION.id


def test_closing_does_not_wait_for_it(tools: Path, gate: Gate) -> None:
    dense = Dense(DenseOptions(graph_above=50))
    with Scout.open(tools, dense) as server:
        server.follow()
        assert gate.begun.wait(IN_TIME_S)
    assert not has_graph(dense)
