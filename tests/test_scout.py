"""Scout: tools in, the right tools out, live and honest."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tests.toys import HashedWords, catalogue
from toolscout import Allowed, Example, Scout, Tool
from toolscout.core.answer import ExactName, Level, MatchedWords, PastRequest, Similarity
from toolscout.errors import BadRequest, MissingEncoder, UnknownTool
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.scout import Search

LION = Tool("zoo", "feed_lion", "Gives the lion its dinner of fresh meat")
FORECAST = Tool("weather", "get_forecast", "Tells how warm and how wet the coming days will be")


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> HashedWords:
    """The toy encoder in place of the real one."""
    toy = HashedWords()
    monkeypatch.setattr("toolscout.retrievers.dense.Encoder.load", lambda folder=None: toy)
    return toy


@pytest.fixture
def no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(folder: Path | None = None) -> None:
        raise MissingEncoder("run: toolscout encoder export")

    monkeypatch.setattr("toolscout.retrievers.dense.Encoder.load", missing)


def test_tools_in_the_right_tools_out(tmp_path: Path, encoder: HashedWords) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        added = scout.add([*catalogue(50), LION, FORECAST])
        assert (added.report.added, added.embedded, added.problems) == (52, 52, ())
        answer = scout.search("gives the lion its dinner", k=3)
        assert answer.verdict == "use"
        assert answer.hits[0].tool_id == LION.id
        assert len(answer.hits) == 3
        assert answer.hits == answer.considered
        assert (answer.searched, answer.version, answer.words_only, answer.notes) == (52, 1, 0, ())
        kinds = {type(reason) for reason in answer.hits[0].reasons}
        assert kinds == {MatchedWords, Similarity}
        assert scout.tools(answer)[0] == LION
        assert json.loads(json.dumps(answer.to_dict()))["hits"][0]["tool_id"] == LION.id


def test_an_answer_is_rendered_for_each_vendor(tmp_path: Path, encoder: HashedWords) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([LION, FORECAST])
        answer = scout.search("gives the lion its dinner", k=1)
        assert scout.render(answer, "openai").payload[0]["function"]["name"] == "zoo__feed_lion"
        assert scout.render(answer, "anthropic").payload[0]["name"] == "zoo__feed_lion"


def test_nothing_fits_keeps_what_was_considered(tmp_path: Path, encoder: HashedWords) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(50), LION])
        answer = scout.search("qwzx vbnm plok")
        assert answer.verdict == "nothing_fits"
        assert answer.hits == ()
        assert len(answer.considered) == 5
        assert answer.fit is not None
        assert answer.fit < 0.5


def test_an_empty_catalogue_says_what_to_do(tmp_path: Path, encoder: HashedWords) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        answer = scout.search("anything")
        assert (answer.verdict, answer.hits, answer.considered, answer.searched) == ("nothing_fits", (), (), 0)
        assert "toolscout add" in answer.notes[0]


@pytest.mark.parametrize("text", ["", "   ", "\x1b[31m\x00\n"])
def test_an_empty_request_is_refused(tmp_path: Path, encoder: HashedWords, text: str) -> None:
    with Scout.open(tmp_path / "tools.db") as scout, pytest.raises(BadRequest, match="empty"):
        scout.search(text)


@pytest.mark.parametrize("k", [0, -3])
def test_k_below_one_is_refused(tmp_path: Path, encoder: HashedWords, k: int) -> None:
    with Scout.open(tmp_path / "tools.db") as scout, pytest.raises(BadRequest, match="at least 1"):
        scout.search("anything", k=k)


def test_a_request_of_a_megabyte_is_answered(tmp_path: Path, encoder: HashedWords) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([LION])
        assert scout.search("gives the lion its dinner " * 40_000, k=9).considered[0].tool_id == LION.id


def test_nothing_is_embedded_twice(tmp_path: Path, encoder: HashedWords) -> None:
    tools = catalogue(40)
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add(tools)
        assert encoder.encoded == 40
        again = scout.add(tools)
        assert (again.report.unchanged, again.embedded) == (40, 0)
        scout.add([Tool("a", "renamed", tools[0].description), tools[0]])
    with Scout.open(tmp_path / "tools.db") as scout:
        assert scout.search("search issue").words_only == 0
    assert encoder.encoded == 41


def test_a_change_of_description_is_embedded_and_found(tmp_path: Path, encoder: HashedWords) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(30), LION], options=None)
        scout.add([Tool("zoo", "feed_lion", "Brushes the grey elephant")])
        answer = scout.search("brushes the grey elephant")
        assert (answer.hits[0].tool_id, answer.version, answer.searched) == (LION.id, 2, 31)


def test_remove_is_seen_at_once_and_refuses_the_unknown(tmp_path: Path, encoder: HashedWords) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(30), LION])
        with pytest.raises(UnknownTool):
            scout.remove([LION.id, "no/such"])
        assert scout.search("gives the lion its dinner").hits[0].tool_id == LION.id
        assert scout.remove(LION.id) == 1
        assert LION.id not in {hit.tool_id for hit in scout.search("gives the lion its dinner", k=30).considered}
        assert scout.count() == 30


def test_words_answer_without_an_encoder_and_say_so(tmp_path: Path, no_encoder: None) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        assert scout.add([*catalogue(30), LION]).embedded == 0
        answer = scout.search("gives the lion its dinner")
        assert (answer.verdict, answer.hits[0].tool_id, answer.words_only) == ("use", LION.id, 31)
        assert "toolscout doctor" in answer.notes[0]


def test_words_answer_while_the_catalogue_is_being_embedded(tmp_path: Path, encoder: HashedWords) -> None:
    release = threading.Event()
    original = encoder.encode_documents

    def slow(texts: Sequence[str]) -> Iterator[Any]:
        for batch in original(texts):
            release.wait(20)
            yield batch

    encoder.encode_documents = slow  # type: ignore[method-assign]
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(600), LION], wait=False)
        answer = scout.search("gives the lion its dinner")
        assert answer.hits[0].tool_id == LION.id
        assert answer.words_only == 601
        assert "601 of 601 tools are not embedded yet" in answer.notes[0]
        release.set()
        assert scout.wait(30)
        assert scout.search("gives the lion its dinner").words_only == 0


def test_an_error_of_the_background_is_raised_by_wait(tmp_path: Path, encoder: HashedWords) -> None:
    def broken(texts: Sequence[str]) -> Iterator[Any]:
        raise OSError("the encoder broke")
        yield

    encoder.encode_documents = broken  # type: ignore[method-assign]
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([LION], wait=False)
        with pytest.raises(OSError, match="the encoder broke"):
            scout.wait(10)
        assert scout.search("gives the lion its dinner").hits[0].tool_id == LION.id


def test_callers_see_only_what_they_may(tmp_path: Path, encoder: HashedWords) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(70), LION, FORECAST])
        allowed = Allowed.of(["space1"], [FORECAST.id, "space1/list_file_1", "no/such"])
        answer = scout.search("feed_lion gives the lion its dinner", k=40, allowed=allowed)
        full = scout.search("feed_lion gives the lion its dinner", k=72).considered
        assert [h.tool_id for h in answer.considered] == [h.tool_id for h in full if allowed.permits(h.tool_id)]
        assert answer.searched == len(answer.considered) == 11
        scout.store.grant("bob", Allowed.of(["zoo"]))
        assert [hit.tool_id for hit in scout.search("lion dinner", allowed="bob").considered] == [LION.id]
        assert scout.search("lion dinner", allowed="stranger").considered == ()


def test_an_exact_name_always_fits(tmp_path: Path, encoder: HashedWords) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(30), LION])
        answer = scout.search("feed_lion")
        assert (answer.verdict, answer.fit, answer.hits[0].tool_id) == ("use", 1.0, LION.id)
        assert ExactName("feed_lion") in answer.hits[0].reasons


def test_feedback_is_kept(tmp_path: Path, encoder: HashedWords) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([LION])
        scout.feedback(Example("the cat is hungry", used=(LION.id,)))
        assert [example.used for _, example in scout.store.feedback()] == [(LION.id,)]


def test_feedback_improves_the_next_search_at_once_everywhere_and_for_good(
    tmp_path: Path, encoder: HashedWords
) -> None:
    request, path = "somebody roars because of hunger", tmp_path / "tools.db"
    with Scout.open(path, "memory") as scout, Scout.open(path, "memory") as other:
        scout.add([*catalogue(50), LION, FORECAST])
        assert scout.search(request).considered[0].tool_id != LION.id
        scout.feedback(Example(request, used=(LION.id,), source="agent"))
        for one in (scout, other):
            answer = one.search("somebody roars out of hunger")
            assert (answer.verdict, answer.hits[0].tool_id) == ("use", LION.id)
            assert any(isinstance(reason, PastRequest) for reason in answer.hits[0].reasons)
    with Scout.open(path, "memory") as scout:
        assert scout.search(request).hits[0].tool_id == LION.id
        scout.feedback(Example(request, rejected=(LION.id,), source="agent"))
        assert scout.search(request).considered[0].tool_id != LION.id


def test_a_warm_up_takes_in_what_others_have_added(tmp_path: Path, encoder: HashedWords) -> None:
    path = tmp_path / "tools.db"
    with Scout.open(path) as early, Scout.open(path) as late:
        assert early.count() == 0
        late.add([LION])
        early.warm_up()
        assert early.retriever.ids() == [LION.id]


def test_another_process_sees_new_tools_without_reopening(tmp_path: Path, encoder: HashedWords) -> None:
    path = tmp_path / "tools.db"
    with Scout.open(path) as reader:
        assert reader.search("lion dinner").searched == 0
        code = """
            import sys
            from toolscout.stores.sqlite.store import SqliteStore
            from toolscout.core.tool import Tool
            with SqliteStore(sys.argv[1]) as store:
                store.add([Tool("zoo", "feed_lion", "Gives the lion its dinner of fresh meat")])
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(path)], check=True)
        answer = reader.search("gives the lion its dinner")
        assert (answer.hits[0].tool_id, answer.words_only) == (LION.id, 1)
        with Scout.open(path) as other:
            assert other.embed() == 1
        assert reader.search("gives the lion its dinner").words_only == 0


def test_a_kept_index_opens_and_follows_what_came_later(
    tmp_path: Path, encoder: HashedWords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolscout.search.index_snapshot.WORTH_KEEPING", 10)
    path = tmp_path / "tools.db"
    with Scout.open(path) as scout:
        scout.add([*catalogue(60), LION])
        wanted = scout.search("search issue mail", k=20).considered
    assert (tmp_path / "tools.db.index" / "hybrid" / "current.json").exists()
    with Scout.open(path, "bm25") as words:  # another retriever knows nothing of that index
        words.store.add([FORECAST])
        words.store.remove(["space0/create_issue_0"])
    built = Hybrid.add
    monkeypatch.setattr(Hybrid, "add", lambda self, tools, vectors=None: built(self, _few(tools), vectors))
    with Scout.open(path) as scout:
        assert scout.count() == 61
        assert scout.embed() == 1
        assert scout.search("how warm and how wet").considered[0].tool_id == FORECAST.id
        found = [hit.tool_id for hit in scout.search("search issue mail", k=70).considered]
        assert "space0/create_issue_0" not in found
        assert {hit.tool_id for hit in wanted[:5]} <= set(found)


def _few(tools: Sequence[Any]) -> Sequence[Any]:
    assert len(tools) < 5, "the kept index was built again"
    return tools


@pytest.mark.parametrize("damage", ["pointer", "folder", "store"])
def test_a_kept_index_that_does_not_fit_is_built_again(
    tmp_path: Path, encoder: HashedWords, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr("toolscout.search.index_snapshot.WORTH_KEEPING", 10)
    path = tmp_path / "tools.db"
    with Scout.open(path) as scout:
        scout.add([*catalogue(60), LION])
    folder = tmp_path / "tools.db.index" / "hybrid"
    if damage == "pointer":
        (folder / "current.json").write_text("{ not json")
    elif damage == "folder":
        for file in folder.rglob("rows.json"):
            file.write_text("nonsense")
    else:
        for file in tmp_path.glob("tools.db*"):
            if file.is_file():
                file.unlink()
    with Scout.open(path) as scout:
        if damage == "store":
            assert scout.count() == 0
            scout.add([LION])
            assert len(scout.search("gives the lion its dinner", k=50).considered) == 1
        else:
            assert scout.search("gives the lion its dinner").hits[0].tool_id == LION.id


def test_a_model_folder_opens_over_any_catalogue(tmp_path: Path, encoder: HashedWords) -> None:
    model = Hybrid(parts=[Bm25(), Dense(encoder=encoder)])
    model.add(catalogue(20))
    model.save(tmp_path / "model")
    with Scout.open(tmp_path / "tools.db", tmp_path / "model") as scout:
        scout.add([LION])
        assert [hit.tool_id for hit in scout.search("search issue", k=50).considered] == [LION.id]


def test_searching_from_many_threads_while_tools_come_and_go(tmp_path: Path, encoder: HashedWords) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(100), LION])
        errors: list[BaseException] = []
        stop = threading.Event()

        def search() -> None:
            try:
                while not stop.is_set():
                    assert scout.search("gives the lion its dinner", k=3).considered[0].tool_id == LION.id
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=search) for _ in range(3)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            scout.add([FORECAST])
            scout.remove(FORECAST.id)
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []


def test_searches_together_answer_as_each_alone_and_have_their_own_errors(tmp_path: Path, encoder: HashedWords) -> None:
    with Scout.open(tmp_path / "tools.db", "memory") as scout:
        scout.add([*catalogue(70), LION, FORECAST])
        scout.feedback(Example("supper for the king of beasts", (LION.id,), tenant="zoo"))
        scout.store.grant("bob", Allowed.of(["zoo"]))
        searches = [
            Search("gives the lion its dinner"),
            Search("gives the lion its dinner", k=2, allowed="bob"),
            Search("  "),
            Search("supper for the king of beasts", tenant="zoo"),
            Search("supper for the king of beasts", tenant="bank"),
            Search("how warm will it be", level="strict"),
            Search("how warm will it be", level="lenient", needed=True),
            Search("how warm will it be", level=cast("Level", "any")),
            Search("search issue", k=0),
            Search("search issue", allowed=Allowed.of(["space1"])),
            Search("search issue " * 2_000, k=3),
        ]
        found = scout.search_together(searches)
        for search, answer in zip(searches, found, strict=True):
            about = {key: value for key, value in asdict(search).items() if key not in ("text", "allowed")}
            alone = partial(scout.search, search.text, allowed=search.allowed, **about)
            if isinstance(answer, Exception):
                with pytest.raises(BadRequest, match=re.escape(str(answer))):
                    alone()
            else:
                assert answer == alone()
        assert sum(isinstance(answer, BadRequest) for answer in found) == 3
        assert scout.search_together([]) == []
