"""rewrite as a part of hybrid or of another rewrite: what a model sees, what is told, what it costs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.evaluation.made_up import dataset
from tests.llm.fake_endpoint import FakeEndpoint, chat, refused
from tests.retrievers.test_rewrite import ANSWER, REQUEST, TOOLS, always
from tests.toys import HashedWords, catalogue
from toolscout.core.answer import Allowed, Answer, Cost, ExactName, RewrittenQuery, Similarity
from toolscout.core.scope import Endpoints, Scope
from toolscout.evaluation.evaluate import evaluate
from toolscout.llm.scripted import Scripted, ScriptedReply
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid, HybridOptions
from toolscout.retrievers.rewrite.retriever import Rewrite, RewriteOptions
from toolscout.scout import Scout
from toolscout.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow

ALLOWED = Allowed.of(["weather", "mail"])
HIDDEN = re.compile("hotel|railway|things to pack|plan of the week", re.I)  # of tools, not of the request
SEEN = "weather forecast for a city"


def writing(llm: Any = None, part: Retriever | None = None, **options: Any) -> Rewrite:
    return Rewrite(RewriteOptions(**{"examples": 0, **options}), [Bm25() if part is None else part], llm)


def dense() -> Dense:
    return Dense(encoder=HashedWords())


WAYS: dict[str, Callable[[Retriever], Retriever]] = {
    "plain": lambda inner: inner,
    "last": lambda inner: Hybrid(parts=[Bm25(), inner]),
    "first": lambda inner: Hybrid(parts=[inner, dense()]),
    "between": lambda inner: Hybrid(parts=[Bm25(), inner, dense()]),
    "alone": lambda inner: Hybrid(parts=[inner]),
    "hybrid of a hybrid": lambda inner: Hybrid(parts=[Bm25(), Hybrid(parts=[dense(), inner])]),
    "rewrite": lambda inner: writing(always("free rooms\nletters"), inner),
    "iterating": lambda inner: writing(Scripted(["free rooms", "letters"]), inner, form="iterate"),
    "rewrite of a hybrid": lambda inner: writing(always("free rooms"), Hybrid(parts=[Bm25(), inner])),
    "shallow": lambda inner: Hybrid(HybridOptions(depth=1), [Bm25(), inner]),
}


def nested(way: str, llm: Any = None, **options: Any) -> Retriever:
    found = WAYS[way](writing(llm, **options))
    found.add(TOOLS)
    return found


def answered(retriever: Retriever, folder: Path, request: str = REQUEST, allowed: Allowed | None = None) -> Answer:
    with SqliteStore(folder / "s.db") as store, Scout(store, retriever) as scout:
        store.add(TOOLS, "tests")
        scout.refresh()
        scout.embed()
        return scout.search(request, 5, allowed)


@pytest.mark.parametrize("form", ["describe", "iterate"])
@pytest.mark.parametrize("way", WAYS)
def test_no_prompt_shows_what_the_caller_may_not_see(way: str, form: Any) -> None:
    llm = always(lambda _: "letters to friends")
    retriever = nested(way, llm, form=form, examples=6)
    for _ in range(2):
        rankings = retriever.rank([REQUEST, "letters to people"], 5, Scope(ALLOWED))
        hits = retriever.search([REQUEST, "letters to people"], 5, Scope(ALLOWED))
        ids = {hit.tool_id for few in hits for hit in few}
        assert ids == {tool_id for ranking in rankings for tool_id in ranking.ids()}
        assert ids
        assert ids <= {"weather/get_forecast", "mail/send_email"}
    prompts = [" ".join(message.content for message in one) for one in llm.asked]
    assert prompts
    assert any(SEEN in prompt for prompt in prompts)
    assert not [prompt for prompt in prompts if HIDDEN.search(prompt.replace(REQUEST, ""))]
    retriever.search([REQUEST], 5)  # who may see all of them is shown all
    assert HIDDEN.search(" ".join(message.content for one in llm.asked[len(prompts) :] for message in one))


@pytest.mark.parametrize("way", ["last", "first", "between", "alone", "hybrid of a hybrid", "shallow"])
def test_the_model_is_asked_as_often_as_by_rewrite_alone(way: str) -> None:
    for said in (ANSWER, "none"):  # the second is a failure
        llm = always(said)
        retriever = nested(way, llm)
        ranking = retriever.rank([REQUEST], 5, Scope(ALLOWED))[0]
        assert len(llm.asked) == 1
        retriever.extend(ranking, 6, Scope(ALLOWED))
        retriever.hits(ranking, 5)
        assert len(llm.asked) == 1
        retriever.search([REQUEST], 5, Scope(ALLOWED))
        assert len(llm.asked) == 2


@pytest.mark.parametrize("way", ["rewrite", "iterating"])
def test_the_part_of_a_rewrite_is_asked_once_for_each_text(way: str) -> None:
    llm = always("none")
    ranking = nested(way, llm).rank([REQUEST], 5, Scope(ALLOWED))[0]
    assert len(llm.asked) == 3  # the request and two queries
    assert ranking.cost is not None
    assert ranking.cost.calls == 3 + (1 if way == "rewrite" else 2)


@pytest.mark.parametrize("depth", [2, 100])
@pytest.mark.parametrize("way", WAYS)
def test_a_ranking_that_is_extended_is_that_of_a_longer_one(way: str, depth: int) -> None:
    tools, request = catalogue(60), "search the issue of a user"

    def made() -> Retriever:
        found = WAYS[way](writing(always("delete the mail\nlist a report"), depth=depth))
        found.add(tools)
        return found

    few = Allowed.of(["space1", "space4"])
    for ranked, extended in ((None, None), (None, few), (few, few)):
        wanted = made().rank([request], 40, Scope(extended))[0]
        retriever = made()
        short = retriever.rank([request], 3, Scope(ranked))[0]
        assert retriever.extend(short, 40, Scope(extended)) == wanted.pairs


def test_who_may_see_all_gets_the_same_as_before() -> None:
    retriever = nested("last", always(ANSWER))
    assert isinstance(retriever, Hybrid)
    words, rewrite = Bm25(), writing(always(ANSWER))
    for one in (words, rewrite):
        one.add(TOOLS)
    expected = [
        [(hit.tool_id, hit.score) for hit in one.search([REQUEST], retriever.options.depth)[0]]
        for one in (words, rewrite)
    ]
    for scope in (Scope(), Scope(ALLOWED)):  # all are ranked, whoever asks
        assert [one.pairs for one in retriever.rankings([REQUEST], scope)[0]] == expected


@pytest.mark.parametrize("way", WAYS)
def test_rank_and_search_agree(way: str) -> None:
    for request in (REQUEST, "use make_list and send_email for my week", "trains/timetable", ""):
        for allowed in (None, ALLOWED):
            ranker, searcher = nested(way, always(ANSWER)), nested(way, always(ANSWER))
            hits = searcher.search([request], 6, Scope(allowed))[0]
            ranking = ranker.rank([request], 6, Scope(allowed))[0]
            ranker.put_named_first(ranking, 6)
            assert ranking.pairs == [(hit.tool_id, hit.score) for hit in hits]
            assert [hit.reasons for hit in ranker.hits(ranking, 6)] == [hit.reasons for hit in hits]


@pytest.mark.parametrize("way", WAYS)
def test_a_bare_name_is_not_rewritten(way: str) -> None:
    llm = always(ANSWER)
    hit = nested(way, llm).search(["trains/timetable"], 3)[0][0]
    assert hit.tool_id == "trains/timetable"
    assert any(isinstance(reason, ExactName) for reason in hit.reasons)
    assert llm.asked == []


@pytest.mark.parametrize("way", WAYS)
def test_the_bare_name_of_a_hidden_tool_is_rewritten_like_any_request(way: str) -> None:
    llm = always(ANSWER)
    nested(way, llm).search(["trains/timetable"], 3, Scope(ALLOWED))
    assert llm.asked


@pytest.mark.parametrize("way", WAYS)
def test_what_was_asked_is_said(way: str, tmp_path: Path) -> None:
    for allowed in (None, ALLOWED):
        answer = answered(nested(way, always(ANSWER)), tmp_path, allowed=allowed)
        assert set(ANSWER.splitlines()) <= set(answer.asked)
        by = {reason.query for hit in answer.considered for reason in hit.reasons if isinstance(reason, RewrittenQuery)}
        assert SEEN in by
        assert by <= set(answer.asked)


def test_a_hybrid_that_asks_nothing_has_nothing_to_tell() -> None:
    hybrid = Hybrid(parts=[Bm25()])
    hybrid.add(TOOLS)
    for endpoints in get_args(Endpoints):
        ranking = hybrid.rank([REQUEST], 5, Scope(endpoints=endpoints))[0]
        assert ranking.pairs
        assert (ranking.queries, ranking.notes, ranking.cost) == ((), (), None)


@pytest.mark.parametrize("way", ["last", "first", "hybrid of a hybrid", "rewrite", "rewrite of a hybrid"])
def test_a_failure_is_told_and_counted(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("toolscout.llm.client.time.sleep", lambda _: None)
    with FakeEndpoint(lambda *_: refused(500, "broken")) as fake:
        retriever: Any = WAYS[way](Rewrite(RewriteOptions(llm=fake.url, model="m"), [Bm25()]))
        answer = answered(retriever, tmp_path)
        assert answer.considered
        assert [note for note in answer.notes if "the request alone was searched" in note and "500" in note]
        assert len(answer.notes) == len(set(answer.notes))
        assert answer.cost is not None
        assert answer.cost.failed >= 1
        assert "500" in answer.cost.problem


@pytest.mark.parametrize("way", ["last", "rewrite"])
def test_an_evaluation_waits_and_says_what_it_cost(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("toolscout.llm.client.time.sleep", lambda _: None)
    data = dataset(requests=4)

    tries = Counter[str]()

    def limited(request: dict[str, Any], _: int) -> Any:
        """Refuse each conversation three times before it is answered."""
        text = str(request["messages"])
        tries[text] += 1
        return refused(429, "slow down") if tries[text] % 4 else chat("search the issue")

    with FakeEndpoint(limited) as fake:
        priced = RewriteOptions(llm=fake.url, model="m", examples=0, input_price=1.0, output_price=1.0)
        timing = evaluate(data, "test", WAYS[way](Rewrite(priced, [dense()]))).row.timing
    said = sum(tries.values()) // 4
    own = len(data.split("test")) + len(data.goldless("test")) if way == "rewrite" else 0
    assert timing["llm_failed"] == 0
    assert timing["llm_calls"] == timing["rewritten"] == own + said
    assert float(timing["llm_cost"] or 0) == pytest.approx(14e-6 * said)


def test_costs_of_several_are_added() -> None:
    one = Cost(calls=2, failed=1, problem="down")
    both = one + Cost(rewritten=1, calls=3, price=0.25, failed=1, problem="slow")
    assert both == Cost(rewritten=1, calls=5, price=0.25, failed=2, problem="slow")
    assert one + Cost() == one
    assert (Cost.total([None, one]), Cost.total([None])) == (one, None)


@pytest.mark.parametrize("way", ["last", "hybrid of a hybrid", "rewrite"])
def test_whether_it_fits_is_judged_by_vectors(way: str, tmp_path: Path) -> None:
    request = "knit quilted trousers for a city"
    plain = answered(Hybrid(parts=[Bm25(), dense()]), tmp_path, request)
    llm = Scripted([ScriptedReply("warm clothes", "")])
    answer = answered(WAYS[way](writing(llm, Hybrid(parts=[Bm25(), dense()]))), tmp_path, request)
    cosines = [one.cosine for hit in answer.considered for one in hit.reasons if isinstance(one, Similarity)]
    assert cosines
    assert answer.fit == pytest.approx(plain.fit, abs=0.02)
