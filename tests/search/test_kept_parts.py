"""The index beside a store, for a retriever with options, with parts, or behind a reranker: opened again, not built."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.models.tiny_cross_encoder import cross_encoder
from tests.toys import HashedWords, catalogue
from toolscout.cli.common import retriever_to_open
from toolscout.cli.main import app
from toolscout.core.answer import Allowed, Answer, Reranked
from toolscout.core.tool import Tool
from toolscout.errors import BadModel
from toolscout.models.rerankers.base import Reranker
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25, Bm25Options
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.registry import load_model
from toolscout.retrievers.rerank.retriever import Rerank, RerankOptions
from toolscout.scout import Scout
from toolscout.search import index_snapshot
from toolscout.stores.sqlite.store import SqliteStore

LION = Tool("zoo", "feed_lion", "Gives the lion its dinner.")
REQUEST = "search issue mail"
SOME = Allowed.of(["space1", "zoo"])


class Longest(Reranker):
    """Long documents first."""

    name = fingerprint = "longest"

    def score(self, request: str, documents: Sequence[str], deadline: float = math.inf) -> list[float | None]:
        return [float(len(text)) for text in documents]


def reranked() -> Retriever:
    return Rerank(RerankOptions(deadline_ms=60_000), reranker=Longest())


class Built:
    """How many tools were put into an index of words and into one of vectors."""

    words = vectors = 0


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Built:
    counted, words, vectors = Built(), Bm25.add, Dense.add

    def add_words(index: Bm25, tools: Sequence[Any], given: Any = None) -> None:
        counted.words += len(tools)
        words(index, tools, given)

    def add_vectors(index: Dense, tools: Sequence[Any], given: Any = None) -> None:
        counted.vectors += len(tools)
        vectors(index, tools, given)

    monkeypatch.setattr(Bm25, "add", add_words)
    monkeypatch.setattr(Dense, "add", add_vectors)
    return counted


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose tools are embedded; every index is worth keeping."""
    encoder = HashedWords()
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", lambda *_, **__: encoder)
    monkeypatch.delenv("TOOLSCOUT_ENCODER", raising=False)
    monkeypatch.setattr(index_snapshot, "WORTH_KEEPING", 10)
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(80), LION])
    return tmp_path / "tools.db"


def answers(path: Path, retriever: Any) -> list[Answer]:
    with Scout.open(path, retriever) as scout:
        return [scout.search(REQUEST, k=30, allowed=allowed) for allowed in (None, SOME)]


def kept(path: Path) -> list[str]:
    return sorted(one.parent.name for one in path.with_name("tools.db.index").glob("*/current.json"))


def test_a_reranker_opens_the_index_of_its_part(path: Path, built: Built) -> None:
    Scout.open(path).close()
    built.words = built.vectors = 0
    found = answers(path, reranked)
    assert (built.words, built.vectors) == (0, 0)
    assert kept(path) == ["hybrid"]
    assert any(isinstance(reason, Reranked) for hit in found[0].hits for reason in hit.reasons)
    assert found == answers(path, reranked())  # an object, whose index is built
    assert built.words == 81


def test_what_a_reranker_has_indexed_serves_without_it(path: Path, built: Built) -> None:
    for file in sorted(path.with_name("tools.db.index").rglob("current.json")):
        file.unlink()
    answers(path, reranked)
    assert built.words == 81
    plain = answers(path, "hybrid")
    assert built.words == 81
    assert not any(isinstance(reason, Reranked) for hit in plain[0].hits for reason in hit.reasons)


def test_a_reranker_follows_changes_and_reads_the_new_text(path: Path) -> None:
    with Scout.open(path, reranked) as scout:
        scout.add([Tool("sky", "forecast", "How warm it is. " + "search issue mail " * 20)])
        assert scout.search(REQUEST).hits[0].tool_id == "sky/forecast"
        scout.add([Tool("sky", "forecast", "Nothing.")], replace=True)
        assert scout.search(REQUEST).hits[0].tool_id != "sky/forecast"
        scout.remove("sky/forecast")
        assert scout.search(REQUEST).hits
    assert answers(path, reranked) == answers(path, reranked())


def test_a_tool_that_another_process_removes_in_a_search_has_no_text(path: Path) -> None:
    with Scout.open(path, reranked) as scout, SqliteStore(path) as other:
        first = scout.search(REQUEST).hits[0].tool_id
        other.remove([first])
        assert isinstance(scout.retriever, Rerank)
        judged = scout.retriever.judged(REQUEST, [(first, 1.0), (LION.id, 0.5)])
        assert judged.scores == [None, float(len(LION.document()))]


def test_a_saved_reranker_holds_its_documents(path: Path, tmp_path: Path) -> None:
    folder = str(cross_encoder(tmp_path / "tiny"))
    with Scout.open(path, lambda: Rerank(RerankOptions(folder))) as scout:
        scout.retriever.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, Rerank)
    assert loaded._texts.get([LION.id, "no/such"]) == [LION.document(), None]


def test_options_have_an_index_of_their_own_that_is_opened_again(path: Path, built: Built) -> None:
    def make(names: float = 0.5) -> Retriever:
        return Hybrid(parts=[Bm25(Bm25Options(names=names)), Dense()])

    default = answers(path, make)
    built.words = built.vectors = 0
    assert answers(path, make) == default
    assert (built.words, kept(path)) == (0, ["hybrid"])  # these are the default options
    changed = answers(path, lambda: make(5.0))
    assert (built.words, built.vectors) == (81, 81)
    assert changed != default
    assert len(kept(path)) == 2
    assert answers(path, lambda: make(5.0)) == changed
    assert (built.words, built.vectors) == (81, 81)
    assert answers(path, lambda: Bm25(Bm25Options(names=5.0)))
    assert built.words == 162
    assert len(kept(path)) == 3


def test_few_indexes_with_options_are_kept_and_those_in_use_stay(path: Path, built: Built) -> None:
    for number in range(7):
        answers(path, lambda number=number: Bm25(Bm25Options(names=number)))
        answers(path, lambda: Bm25(Bm25Options(names=0.0)))
    assert len(kept(path)) == 1 + index_snapshot.VARIANTS_KEPT
    built.words = 0
    answers(path, lambda: Bm25(Bm25Options(names=0.0)))
    assert built.words == 0
    answers(path, lambda: Bm25(Bm25Options(names=1.0)))
    assert built.words == 81


class Other(Bm25):
    """A class that its name does not open."""


@pytest.mark.parametrize("kind", ["class", "trained"])
def test_what_options_do_not_describe_is_built(path: Path, built: Built, kind: str) -> None:
    def make() -> Retriever:
        made = Other() if kind == "class" else Bm25()
        made.fit_record = {"seconds": 1.0} if kind == "trained" else None
        return made

    answers(path, make)
    answers(path, make)
    assert built.words == 2 * 81
    assert kept(path) == ["hybrid"]


def test_a_function_that_fails_closes_the_store(path: Path) -> None:
    def make() -> Retriever:
        raise BadModel("no such part")

    with pytest.raises(BadModel, match="no such part"):
        Scout.open(path, make)


WORDS = (
    ("--rerank", "{}"),
    ("--rerank", "{}", "--option", "depth=50"),
    ("--retriever", "bm25", "--option", "names=2"),
    ("--retriever", "rerank", "--part", "bm25", "--option", "reranker={}", "--option", "first=3"),
    ("--retriever", "hybrid", "--part", "bm25", "--part", "memory"),
)


@pytest.mark.parametrize("words", WORDS)
def test_the_command_line_builds_nothing_at_the_second_start(
    path: Path, built: Built, words: tuple[str, ...], tmp_path: Path
) -> None:
    given = [word.format(cross_encoder(tmp_path / "tiny")) for word in words]
    asked = ["--store", str(path), "search", REQUEST, "--format", "json", *given]
    first = CliRunner().invoke(app, asked)
    assert first.exit_code == 0, first.stderr
    built.words = built.vectors = 0
    second = CliRunner().invoke(app, asked)
    assert (built.words, built.vectors) == (0, 0)
    assert json.loads(second.stdout) == json.loads(first.stdout)


def test_what_the_command_line_opens(tmp_path: Path) -> None:
    Bm25().save(tmp_path / "model")
    assert retriever_to_open(None, None) == "hybrid"
    assert callable(retriever_to_open("bm25", None, ["names=2"]))
    assert isinstance(retriever_to_open("hybrid", None, (), [str(tmp_path / "model"), "dense"]), Hybrid)
    assert isinstance(retriever_to_open("dense", None, ["encoder=default"]), Dense)
    assert isinstance(retriever_to_open("hybrid", None, ["dense.encoder=default"], ["bm25", "dense"]), Hybrid)
