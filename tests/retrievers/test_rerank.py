"""rerank: what its scores do, what a deadline leaves in place, and rerankers that fail."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.made_up import dataset
from tests.llm.fake_endpoint import Answer, FakeEndpoint, chat, in_turn, refused
from tests.models.tiny_cross_encoder import cross_encoder
from tests.toys import HashedWords, catalogue
from toolscout.core.answer import Allowed, Reranked
from toolscout.core.answer import Answer as Found
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset, BadModel
from toolscout.evaluation.evaluate import evaluate
from toolscout.index.exact_names import EXACT_BONUS
from toolscout.models.rerankers.base import Reranker
from toolscout.retrievers.base import Pairs, Ranking, Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.opening import made
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.registry import load_model
from toolscout.retrievers.rerank.added_scores import reordered
from toolscout.retrievers.rerank.retriever import Rerank, RerankOptions
from toolscout.scout import Scout
from toolscout.search.catalogue_fit import find

REQUEST = "mail the weather report"
SOME = Allowed.of(["space1", "space4"])
FEW = RerankOptions(first=5, deadline_ms=60_000)
Judge = Callable[[str], float | None]


class ByRule(Reranker):
    """Scores a document by a function of its text; keeps what it was asked."""

    name = fingerprint = "by rule"

    def __init__(self, rule: Judge, visible_only: bool = False) -> None:
        self.rule, self.visible_only = rule, visible_only
        self.asked: list[tuple[str, list[str]]] = []

    def score(self, request: str, documents: Sequence[str], deadline: float = math.inf) -> list[float | None]:
        self.asked.append((request, list(documents)))
        return [self.rule(text) for text in documents]


def number(text: str) -> float:
    """The number at the end of the tool's name."""
    return float(text.split("\n")[0].rpartition("_")[2])


def reranking(rule: Judge = number, options: RerankOptions = FEW, **more: Any) -> tuple[Rerank, ByRule]:
    reranker = ByRule(rule, **more)
    retriever = Rerank(options, [Dense(encoder=HashedWords())], reranker)
    retriever.add(catalogue(60))
    return retriever, reranker


def alone(k: int = 60, scope: Scope = EVERYTHING, request: str = REQUEST) -> list[tuple[str, float]]:
    part = Dense(encoder=HashedWords())
    part.add(catalogue(60))
    return part.rank([request], k, scope)[0].pairs


def ids(pairs: Sequence[tuple[str, float]]) -> list[str]:
    return [tool_id for tool_id, _ in pairs]


# Scores


def test_scores_are_added_and_the_rest_keeps_its_order() -> None:
    retriever, reranker = reranking()
    (ranking,) = retriever.rank([REQUEST], 60)
    part = alone()
    first, values = np.array([score for _, score in part[:5]]), np.array([number(tool_id) for tool_id, _ in part[:5]])
    wanted = (first + first.mean() + first.std() * (values - values.mean()) / values.std()) / 2
    wanted += max(0.0, first.min() - wanted.min())
    best = sorted(zip(ids(part[:5]), wanted, strict=True), key=lambda pair: -pair[1])
    assert ids(ranking.pairs) == [*ids(best), *ids(part[5:])]
    assert [score for _, score in ranking.pairs] == pytest.approx([score for _, score in [*best, *part[5:]]], abs=1e-4)
    (asked,) = reranker.asked
    assert asked == (REQUEST, [{tool.id: tool for tool in catalogue(60)}[i].document() for i in ids(part[:5])])


def test_without_weight_nothing_changes() -> None:
    retriever, _ = reranking(options=replace(FEW, weight=0.0))
    (ranking,) = retriever.rank([REQUEST], 60)
    assert ranking.ids() == ids(alone())
    assert [score for _, score in ranking.pairs] == pytest.approx([score for _, score in alone()])


def test_with_a_large_weight_the_reranker_decides() -> None:
    retriever, _ = reranking(options=replace(FEW, weight=1e5))
    found = ids(retriever.rank([REQUEST], 5)[0].pairs)
    assert found == sorted(ids(alone(5)), key=lambda one: -number(one))


def test_scales_do_not_matter() -> None:
    one, _ = reranking()
    other, _ = reranking(lambda text: 1e6 + 1e-3 * number(text))
    assert ids(one.rank([REQUEST], 20)[0].pairs) == ids(other.rank([REQUEST], 20)[0].pairs)


@pytest.mark.parametrize(
    "pairs", [[], [("a", 0.5)], [("a", 0.5), ("b", 0.5)], [("a", 1000.5), ("b", 2.0), ("c", -3.0)]]
)
def test_lists_in_which_nothing_differs(pairs: list[tuple[str, float]]) -> None:
    found = reordered(pairs, [7.0] * len(pairs), 1.0)
    assert found.order == ids(pairs)
    assert all(map(math.isfinite, found.scores.values()))


def test_where_the_retriever_cannot_tell_the_reranker_can() -> None:
    assert reordered([("a", 0.5), ("b", 0.5), ("c", 0.5)], [1.0, 3.0, 2.0], 1.0).order == ["b", "c", "a"]


def test_tools_that_are_named_stay_first() -> None:
    retriever, _ = reranking(lambda text: -number(text), replace(FEW, weight=100.0))
    hits = retriever.search(["call create_issue_55 and mail the note"], 4)[0]
    assert hits[0].tool_id == "space6/create_issue_55"
    assert hits[0].score >= EXACT_BONUS


@pytest.mark.parametrize("request_text", ["create_issue_55", "", "  "])
def test_a_bare_name_or_nothing_is_not_reranked(request_text: str) -> None:
    retriever, reranker = reranking()
    retriever.search([request_text], 4)
    assert reranker.asked == []


def test_the_score_is_a_reason() -> None:
    retriever, _ = reranking()
    hits = retriever.search([REQUEST], 7)[0]
    reasons = [[reason.score for reason in hit.reasons if isinstance(reason, Reranked)] for hit in hits]
    assert reasons == [*([number(hit.tool_id)] for hit in hits[:5]), [], []]
    assert [reason.kind for reason in hits[0].reasons] == ["similarity", "reranked"]
    assert str(hits[0].reasons[1]) == f"reranked {number(hits[0].tool_id):.2f}"


# What has no score keeps its place


def unless(without: set[str], text: str) -> float | None:
    """None for these tools, else their number."""
    return None if text.split("\n")[0].replace(" ", "/") in without else number(text)


def test_what_is_not_scored_keeps_its_place() -> None:
    part = ids(alone(5))
    for missing in range(32):
        without = {part[n] for n in range(5) if missing & 1 << n}
        retriever, _ = reranking(partial(unless, without))
        (ranking,) = retriever.rank([REQUEST], 20)
        assert [one if one in without else "" for one in part] == [
            one if one in without else "" for one in ranking.ids()[:5]
        ]
        assert ids(alone())[5:20] == ranking.ids()[5:]
        ranks = [(-score, tool_id) for tool_id, score in ranking.pairs]
        assert ranks == sorted(ranks)
        assert bool(ranking.notes) == bool(without)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_scores_that_are_no_numbers(value: float) -> None:
    retriever, _ = reranking(lambda text: value if number(text) < 30 else number(text))
    (ranking,) = retriever.rank([REQUEST], 60)
    few = sum(number(tool_id) < 30 for tool_id in ids(alone(5)))
    assert few
    assert ranking.notes == (f"the reranker gave no usable score to {few} of 5 tools; these keep their place",)
    every, _ = reranking(lambda _: value)
    assert every.rank([REQUEST], 60)[0].pairs == alone()


class Slow(ByRule):
    """Scores so many documents by the deadline; all of them where there is none."""

    def __init__(self, count: int) -> None:
        super().__init__(number)
        self.count = count

    def score(self, request: str, documents: Sequence[str], deadline: float = math.inf) -> list[float | None]:
        if deadline == math.inf:
            return super().score(request, documents)
        time.sleep(max(0.0, deadline - time.monotonic()))
        return [number(text) if place < self.count else None for place, text in enumerate(documents)]


class Hanging(ByRule):
    """Never answers."""

    def score(self, request: str, documents: Sequence[str], deadline: float = math.inf) -> list[float | None]:
        time.sleep(60)
        raise AssertionError("nobody waits so long")


def test_a_deadline_is_kept_and_told() -> None:
    retriever = Rerank(RerankOptions(first=20, deadline_ms=50), [Dense(encoder=HashedWords())], Slow(7))
    retriever.add(catalogue(60))
    (ranking,) = retriever.rank([REQUEST], 20)
    assert ranking.notes == ("the reranker scored 7 of 20 tools in 50 ms; the others keep their place",)
    assert ranking.ids()[7:] == ids(alone(20))[7:]
    assert ranking.ids()[:7] != ids(alone(7))
    (patient,) = retriever.rank([REQUEST], 20, Scope(endpoints="wait"))
    assert patient.notes == ()


def test_a_reranker_that_hangs_is_left_and_not_asked_for_a_while() -> None:
    hanging = Hanging(number)
    retriever = Rerank(RerankOptions(first=5, deadline_ms=100), [Dense(encoder=HashedWords())], hanging)
    retriever.add(catalogue(60))
    began = time.monotonic()
    (ranking,) = retriever.rank([REQUEST], 60)
    assert time.monotonic() - began < 5
    assert ranking.pairs == alone()
    assert ranking.notes == ("the reranker scored 0 of 5 tools in 100 ms; the others keep their place",)
    began = time.monotonic()
    (again,) = retriever.rank([REQUEST], 60)
    assert time.monotonic() - began < 5
    why = "the reranker did not score all tools in 100 ms; the others keep their place"
    assert again.notes == (f"the tools were not reranked: {why}",)


@pytest.mark.parametrize(
    "error", [BadModel("it is broken; mend it"), RuntimeError("it is broken; mend it"), MemoryError()]
)
def test_a_reranker_that_raises(error: Exception) -> None:
    def fail(_: str) -> float:
        raise error

    retriever, reranker = reranking(fail)
    (ranking,) = retriever.rank([REQUEST], 60)
    assert ranking.pairs == alone()
    assert ranking.notes[0].startswith("the tools were not reranked: ")
    assert ranking.cost is not None
    assert (ranking.cost.failed, ranking.cost.calls) == (1, 0)
    retriever.rank([REQUEST], 60)
    assert len(reranker.asked) == 1


def test_a_reranker_that_gives_too_few_scores() -> None:
    class Few(ByRule):
        def score(self, request: str, documents: Sequence[str], deadline: float = math.inf) -> list[float | None]:
            return [1.0]

    retriever = Rerank(FEW, [Dense(encoder=HashedWords())], Few(number))
    retriever.add(catalogue(60))
    assert "1 scores for 5 documents" in retriever.rank([REQUEST], 60)[0].notes[0]


# Endpoints


def served(
    server: FakeEndpoint, folder: Path, request: str = "shall I see the weather forecast for Rome", **options: Any
) -> Found:
    tools = [Tool("weather", name, f"weather {name}") for name in ("forecast", "history", "alarm")]
    retriever = Rerank(RerankOptions(reranker=f"{server.url}?model=m&retries=0", **options), [Bm25()])
    with Scout.open(folder / "s.db", retriever) as scout:
        scout.store.add(tools, "tests")
        return scout.search(request)


def scored(request: dict[str, Any], _: int) -> Answer:
    """History is what everybody wants."""
    results = [
        {"index": place, "relevance_score": 0.9 if "history" in text else 0.1}
        for place, text in enumerate(request["documents"])
    ]
    return 200, {}, json.dumps({"results": results}).encode()


def test_an_endpoint_reorders(tmp_path: Path) -> None:
    with FakeEndpoint(scored) as server:
        answer = served(server, tmp_path, weight=10.0, deadline_ms=60_000)
    assert answer.considered[0].tool_id == "weather/history"
    assert answer.notes == ()


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (refused(429, "slow down", {"Retry-After": "60"}), "429"),
        (refused(500, "oops"), "500"),
        ((200, {}, b"<html>hello</html>"), "no list of scores"),
        (refused(401, "who are you"), "put its key into TOOLSCOUT_RERANK_KEY"),
    ],
)
def test_an_endpoint_that_fails_costs_nothing_but_a_note(tmp_path: Path, reply: Answer, says: str) -> None:
    with FakeEndpoint(in_turn(reply)) as server:
        answer = served(server, tmp_path)
    assert answer.considered[0].tool_id == "weather/forecast"
    (note,) = answer.notes
    assert note.startswith("the tools were not reranked: ")
    assert says in note


def test_an_endpoint_that_is_too_slow(tmp_path: Path) -> None:
    def slow(request: dict[str, Any], number: int) -> Answer:
        time.sleep(1)
        return scored(request, number)

    with FakeEndpoint(slow) as server:
        answer = served(server, tmp_path, deadline_ms=100)
    assert answer.notes == ("the reranker scored 0 of 3 tools in 100 ms; the others keep their place",)
    assert answer.considered[0].tool_id == "weather/forecast"


def test_half_of_the_results(tmp_path: Path) -> None:
    with FakeEndpoint(in_turn((200, {}, b'{"results": [{"index": 1, "relevance_score": 0.9}]}'))) as server:
        answer = served(server, tmp_path)
    assert answer.considered[0].tool_id == "weather/forecast"
    assert answer.notes == ("the reranker gave no usable score to 2 of 3 tools; these keep their place",)


def test_nothing_is_sent_to_warm_up(tmp_path: Path) -> None:
    with FakeEndpoint(scored) as server:
        retriever = Rerank(RerankOptions(reranker=f"{server.url}?model=m"), [Bm25()])
        with Scout.open(tmp_path / "s.db", retriever) as scout:
            scout.store.add([Tool("weather", "hello", "hello")], "tests")
            scout.warm_up()
    assert server.requests == []


def test_a_chat_model_reorders_and_has_a_cost(tmp_path: Path) -> None:
    with FakeEndpoint(in_turn(chat('{"ranking": [2]}'))) as server:
        retriever = Rerank(RerankOptions(reranker=f"chat:{server.url}?model=m", weight=10), [Bm25()])
        retriever.add([Tool("a", "one", "weather weather"), Tool("a", "two", "weather"), Tool("a", "no", "mail")])
        (ranking,) = retriever.rank(["weather"], 3)
    assert ranking.ids() == ["a/two", "a/one"]
    assert ranking.cost is not None
    assert ranking.cost.calls == 1


# Callers


@pytest.mark.parametrize("visible_only", [False, True])
def test_what_a_caller_may_not_see_is_not_shown_to_others(visible_only: bool) -> None:
    retriever, reranker = reranking(visible_only=visible_only)
    visible = {tool.document() for tool in catalogue(60) if SOME.permits(tool.id)}
    for scope in (Scope(SOME), Scope(SOME).of_all(), Scope(Allowed.of(ids=["space1/get_weather_8"]), SOME)):
        retriever.search([REQUEST], 60, scope)
    for _, documents in reranker.asked:
        assert len(documents) == 5
        assert (visible >= set(documents)) == visible_only


def test_visible_tools_are_reordered_among_their_own_places() -> None:
    retriever, _ = reranking(visible_only=True)
    mine = [one for one in ids(alone()) if SOME.permits(one)]
    (full,) = retriever.rank([REQUEST], 60, Scope(SOME).of_all())
    assert [SOME.permits(one) for one in full.ids()] == [SOME.permits(one) for one in ids(alone())]
    assert [one for one in full.ids() if not SOME.permits(one)] == [
        one for one in ids(alone()) if not SOME.permits(one)
    ]
    (own,) = retriever.rank([REQUEST], 60, Scope(SOME))
    assert own.ids() == [one for one in full.ids() if SOME.permits(one)]
    assert own.ids()[5:] == mine[5:]
    assert sorted(own.ids()[:5]) == sorted(mine[:5])
    assert own.ids()[:5] != mine[:5]


def test_a_restricted_caller_gets_the_scores_of_its_own_tools() -> None:
    retriever, _ = reranking()
    (own,) = retriever.rank([REQUEST], 10, Scope(SOME))
    part = alone(10, Scope(SOME))
    assert [score for _, score in own.pairs] == pytest.approx([score for _, score in part], abs=1e-4)
    hits = retriever.search([REQUEST], 10, Scope(SOME))[0]
    assert not any(isinstance(reason, Reranked) for hit in hits for reason in hit.reasons)


def test_a_note_does_not_tell_a_restricted_caller_how_many_tools_there_are() -> None:
    retriever, _ = reranking(partial(unless, {ids(alone())[0]}))
    (ranking,) = retriever.rank([REQUEST], 5, Scope(SOME))
    assert ranking.notes == ("the reranker gave no usable score to some tools; these keep their place",)


class SaysHowMany(Dense):
    """Says that each request needs the first three tools of its own ranking, of those that the caller may use."""

    def as_many(self, rankings: Sequence[Ranking]) -> list[Pairs]:
        return [self.extend(one, 3, one.scope) for one in rankings]


@pytest.mark.parametrize("allowed", [None, SOME])
@pytest.mark.parametrize("visible_only", [False, True])
def test_as_many_as_the_part_says_and_the_first_of_the_new_order(allowed: Allowed | None, visible_only: bool) -> None:
    reranker, scope = ByRule(number, visible_only), Scope(allowed)
    retriever = Rerank(replace(FEW, weight=1000, first=30), [SaysHowMany(encoder=HashedWords())], reranker)
    retriever.add(catalogue(60))
    (found,) = find(retriever, [REQUEST], "auto", scope)
    (expected,) = find(retriever, [REQUEST], 5, scope)
    assert found.count == 3
    assert [hit.tool_id for hit in found.hits] == [hit.tool_id for hit in expected.hits]
    (part,) = retriever.part.rank([REQUEST], 5, scope)
    assert [hit.tool_id for hit in found.hits[:3]] != ids(part.pairs[:3])


def test_a_part_that_cannot_say_how_many_is_refused() -> None:
    with pytest.raises(BadModel, match="rerank cannot say how many tools"):
        find(reranking()[0], [REQUEST], "auto", EVERYTHING)


def test_nothing_is_scored_twice_for_one_search() -> None:
    retriever, reranker = reranking()
    (ranking,) = retriever.rank([REQUEST], 3, Scope(SOME))
    retriever.extend(ranking, 60, Scope(SOME))
    retriever.hits(ranking, 60)
    retriever.as_many([ranking])
    assert len(reranker.asked) == 1


def test_it_may_be_a_part_itself() -> None:
    inner, reranker = reranking(options=replace(FEW, weight=1e5))
    hybrid = Hybrid(parts=[inner])
    assert ids(hybrid.rank([REQUEST], 60)[0].pairs)[:5] == sorted(ids(alone(5)), key=lambda one: -number(one))
    assert len(reranker.asked) == 1


# Options, files, learning


@pytest.mark.parametrize("options", [{"first": 0}, {"weight": -1.0}, {"weight": math.nan}, {"deadline_ms": -1.0}])
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(BadModel, match="first must be at least 1"):
        RerankOptions(**options)


def test_it_reranks_one_part() -> None:
    with pytest.raises(BadModel, match="one part, got 2"):
        Rerank(parts=[Bm25(), Bm25()])


def test_without_a_name_the_package_s_own_reranker_scores() -> None:
    retriever = made("rerank", ["bm25"])
    retriever.add(catalogue(9))
    (found,) = retriever.search([REQUEST], 5)
    assert any(isinstance(reason, Reranked) for hit in found for reason in hit.reasons)


def test_it_is_made_with_options_of_its_own_and_of_its_part(tmp_path: Path) -> None:
    folder = cross_encoder(tmp_path)
    settings = [f"reranker={folder}?max_tokens=64", "first=3", "bm25.fuzzy=false"]
    retriever: Any = made("rerank", ["bm25"], settings)
    assert (retriever.options.first, retriever.part.options.fuzzy) == (3, False)


def test_a_saved_model_whose_reranker_is_gone(tmp_path: Path) -> None:
    retriever = Rerank(RerankOptions(reranker=str(cross_encoder(tmp_path / "own"))), [Bm25()])
    retriever.add(catalogue(9))
    retriever.save(tmp_path / "saved")
    (tmp_path / "own").rename(tmp_path / "moved")
    with pytest.raises(BadModel, match="there is no reranker"):
        load_model(tmp_path / "saved")


def dev() -> Dataset:
    """The made-up requests in three splits."""
    made_up = dataset(requests=60)
    gold = made_up.qrels["test"]
    splits = {name: dict(list(gold.items())[n::3]) for n, name in enumerate(("train", "dev", "test"))}
    return Dataset("made-up", made_up.tools, made_up.requests, splits)


def test_a_weight_is_learned_on_dev(tmp_path: Path) -> None:
    data = dev()
    gold = {text: tools for (_, text), tools in zip(data.split("dev").requests, data.split("dev").gold, strict=True)}
    documents = {tool.document(): tool.id for tool in data.tools}

    class Knows(ByRule):
        def score(self, request: str, texts: Sequence[str], deadline: float = math.inf) -> list[float | None]:
            return [float(documents[text] in gold.get(request, ())) for text in texts]

    retriever = Rerank(RerankOptions(weight=0.5), [Bm25()], Knows(number))
    report = retriever.fit([TrainingSet(data)], tmp_path / "good")
    assert retriever.options.weight > 0
    assert report.dev["ndcg@5"] >= report.dev["ndcg@5, not reranked"]
    assert report.parameters == 1
    record = json.loads((tmp_path / "good" / "model.json").read_text())
    assert record["options"]["weight"] == retriever.options.weight
    assert {(one.split, one.role) for one in retriever.trained_on.splits} == {("dev", "dev")}
    assert retriever.ids() == []


def test_a_reranker_that_brings_nothing_gets_no_weight(tmp_path: Path) -> None:
    retriever = Rerank(RerankOptions(), [Bm25()], ByRule(lambda text: float(len(text) % 7)))
    found = retriever.fit([TrainingSet(dev())], tmp_path / "m").dev
    without = found["recall@5, not reranked"] + found["ndcg@5, not reranked"]
    assert found["recall@5"] + found["ndcg@5"] >= without
    retriever = Rerank(RerankOptions(), [Bm25()], ByRule(lambda _: 0.0))
    report = retriever.fit([TrainingSet(dev())], tmp_path / "n")
    assert retriever.options.weight == 0
    assert report.notes == ("on dev the reranker brings nothing, so its weight is 0: leave it out",)


def test_what_fails_cannot_be_weighed(tmp_path: Path) -> None:
    def fail(_: str) -> float:
        raise RuntimeError("it is broken")

    with pytest.raises(BadModel, match=r"the reranker fails, so its weight cannot be learned .*it is broken"):
        Rerank(RerankOptions(), [Bm25()], ByRule(fail)).fit([TrainingSet(dev())], tmp_path / "m")
    with pytest.raises(BadDataset, match="learns its weight on dev"):
        Rerank(RerankOptions(), [Bm25()], ByRule(number)).fit([TrainingSet(dev(), dev="")], tmp_path / "m")


def test_it_is_evaluated_without_a_deadline(tmp_path: Path) -> None:
    retriever: Retriever = Rerank(RerankOptions(deadline_ms=0.001), [Bm25()], ByRule(lambda text: float(len(text))))
    row = evaluate(dev(), "test", retriever, cache=tmp_path / "vectors.db").row
    assert (row.retriever, row.failed) == ("rerank", 0)
    assert "llm_failed" not in row.timing
