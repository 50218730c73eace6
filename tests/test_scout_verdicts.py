"""Scout says apart that no tool is needed and that none fits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.toys import Poems, catalogue
from toolscout import Example, Scout, Tool
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.errors import BadRequest, MissingEncoder
from toolscout.retrievers.base import Ranking
from toolscout.retrievers.bm25 import Bm25
from toolscout.search.catalogue_fit import FitOptions
from toolscout.search.tool_need import NeedOptions
from toolscout.stores.sqlite.store import SqliteStore

LION = Tool("zoo", "feed_lion", "Gives the lion its dinner of fresh meat")


@pytest.fixture
def no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(folder: Path | None = None) -> None:
        raise MissingEncoder("run: toolscout encoder export")

    monkeypatch.setattr("toolscout.retrievers.dense.Encoder.load", missing)


def test_three_verdicts(tmp_path: Path, poems: Poems) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(50), LION])
        use, talk, other = (
            scout.search(text) for text in ("give the lion its dinner", "poem lion dinner", "qwzx vbnm")
        )
        assert [one.verdict for one in (use, talk, other)] == ["use", "no_tool_needed", "nothing_fits"]
        for one in (use, talk, other):
            assert one.need is not None
            assert one.fit is not None
            assert (one.need < scout.need_options.threshold) == (one.verdict == "no_tool_needed")
        assert (talk.hits, talk.considered[0].tool_id) == ((), LION.id)
        assert talk.fit is not None
        assert talk.fit >= scout.fit_options.threshold  # it would fit: what is not needed is not offered all the same
        assert json.loads(json.dumps(talk.to_dict()))["verdict"] == "no_tool_needed"
        assert scout.need("poem lion dinner") == pytest.approx(talk.need)
        assert scout.need("give the lion its dinner") == pytest.approx(use.need)


def test_the_need_threshold_is_an_option(tmp_path: Path, poems: Poems) -> None:
    with Scout.open(tmp_path / "tools.db", need_options=NeedOptions(threshold=0.0)) as scout:
        scout.add([*catalogue(50), LION])
        assert scout.search("poem lion dinner").verdict == "use"
        scout.need_options = NeedOptions(threshold=1.0)
        assert scout.search("give the lion its dinner").verdict == "no_tool_needed"


def test_an_exact_name_needs_its_tool_whatever_the_forecast(tmp_path: Path, poems: Poems) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(30), Tool("art", "write_poem", "Makes verses")])
        answer = scout.search("write_poem about a poem")
        assert (answer.verdict, answer.need, answer.hits[0].tool_id) == ("use", 1.0, "art/write_poem")
        assert scout.need("write_poem") == 1.0


def test_a_request_that_used_a_tool_before_needs_one_again(tmp_path: Path, poems: Poems) -> None:
    with Scout.open(tmp_path / "tools.db", "memory") as scout:
        scout.add([*catalogue(30), LION])
        assert scout.search("poem for the hungry lion").verdict == "no_tool_needed"
        scout.feedback(Example("poem for the hungry lion", used=(LION.id,)))
        answer = scout.search("poem for the hungry lion")
        assert (answer.verdict, answer.hits[0].tool_id, answer.need) == ("use", LION.id, pytest.approx(1.0, abs=1e-5))


def test_words_alone_cannot_tell_what_is_needed(tmp_path: Path, no_encoder: None) -> None:
    for retriever in ("hybrid", "bm25"):
        with Scout.open(tmp_path / "tools.db", retriever) as scout:
            scout.add([*catalogue(30), LION])
            assert scout.search("poem lion dinner").need is None
            assert scout.need("poem lion dinner") is None
            assert scout.search("poem lion dinner").verdict == "use"


def test_an_empty_catalogue_can_still_say_that_no_tool_is_needed(tmp_path: Path, poems: Poems) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        answer = scout.search("poem")
        assert (answer.verdict, answer.considered) == ("no_tool_needed", ())
        assert "toolscout add" in answer.notes[0]
        assert scout.search("anything").verdict == "nothing_fits"


class Reversed(Bm25):
    """Ranks the best five the other way round: what fits best is the last of them."""

    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        rankings = super().rank(requests, max(k, 5), scope)
        for ranking in rankings:
            ranking.pairs = ranking.pairs[:5][::-1][:k] + ranking.pairs[5:k]
        return rankings


@pytest.mark.parametrize("retriever", [Bm25(), Reversed()])
def test_what_fits_does_not_depend_on_how_many_are_asked_for(retriever: Bm25, tmp_path: Path) -> None:
    options = FitOptions(words_alone=0.6)
    with Scout(SqliteStore(tmp_path / "tools.db"), retriever, options) as scout:
        scout.add([*catalogue(50), LION])
        for text in ("give the lion its dinner", "fresh weather", "qwzx vbnm"):
            whole = scout.search(text, 5)
            for k in (1, 2, 4, 9):
                answer = scout.search(text, k)
                assert (answer.verdict, answer.fit, answer.need) == (whole.verdict, whole.fit, whole.need)
                assert answer.considered[:5] == whole.considered[:k]
                assert len(answer.considered) <= k
        assert scout.search("give the lion its dinner", 1).verdict == "use"
        with pytest.raises(BadRequest, match="k must be at least 1, got 0"):
            scout.search("give the lion its dinner", 0)
