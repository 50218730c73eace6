"""What every retriever keeps. A test class inherits `Contract` and gives it a fixture `make`.

    class TestMine(Contract):
        @pytest.fixture
        def make(self) -> Callable[[], Retriever]:
            return Mine

`make()` is a fresh retriever without tools, each time the same. One that uses vectors gets the encoder `HashedWords`.
"""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.toys import WORDS, HashedWords, catalogue, examples
from toolscout.core.answer import Allowed, ExactName, Hit, in_order
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Tool
from toolscout.errors import BadModel, BadRequest
from toolscout.index.exact_names import ExactNames
from toolscout.retrievers.base import Pairs, Retriever
from toolscout.retrievers.document_index import document_vectors
from toolscout.retrievers.model_folder import read_model
from toolscout.retrievers.provenance import TrainingSet

Make = Callable[[], Retriever]
REQUESTS = ["search the issue", "delete a mail event", "weather report", ""]
SOME = Allowed.of(["space1", "space4"], ["space0/create_issue_0", "no/such"])
LION = Tool("zoo", "feed_lion", "gives the lion its dinner")
# Those whose language model is too tiny in tests to know what a new tool is for: it is found, but may not be the first.
UNKNOWING = ("toolweaver",)


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.tool_id for hit in hits]


def same(found: Pairs, wanted: Pairs) -> bool:
    """Whether two rankings are the same; what is read in a batch may differ by a trifle."""
    scores = [[score for _, score in pairs] for pairs in (found, wanted)]
    return [i for i, _ in found] == [i for i, _ in wanted] and scores[0] == pytest.approx(scores[1], abs=1e-3)


def finds(retriever: Retriever, request: str, tool_id: str) -> bool:
    return tool_id in ids(retriever.search([request], 60 if retriever.name in UNKNOWING else 1)[0])


def reopened(retriever: Retriever, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Retriever:
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", HashedWords.load)
    retriever.save(folder)
    return type(retriever).load(folder)


def held(owner: object) -> Iterator[object]:
    """All that an object holds on to, however deep."""
    seen, queue = {id(owner)}, [owner]
    while queue:
        for one in gc.get_referents(queue.pop()):
            if id(one) not in seen and not isinstance(one, type | ModuleType | FunctionType | BuiltinFunctionType):
                seen.add(id(one))
                queue.append(one)
                yield one


class ClosedContract:
    """The contract of a retriever that takes only the tools of its training: here those of catalogue(60)."""

    @pytest.fixture
    def retriever(self, make: Make) -> Retriever:
        return make()

    # Requests.

    def test_an_empty_index_answers_with_nothing(self, retriever: Retriever) -> None:
        assert retriever.search(["anything", "at all"], 5) == [[], []]
        assert retriever.search([], 5) == []
        assert (len(retriever), retriever.ids(), retriever.pending()) == (0, [], 0)

    @pytest.mark.parametrize("k", [0, -1])
    def test_k_below_one_is_refused(self, retriever: Retriever, k: int) -> None:
        with pytest.raises(BadRequest, match="at least 1"):
            retriever.search(["anything"], k)

    def test_k_beyond_the_catalogue_gives_each_tool_once(self, retriever: Retriever) -> None:
        retriever.add(catalogue(20))
        found = ids(retriever.search(["search issue event mail"], 1000)[0])
        assert len(found) == len(set(found)) <= 20

    def test_the_best_do_not_depend_on_k(self, retriever: Retriever) -> None:
        retriever.add(catalogue(60))
        for request in REQUESTS:
            full = retriever.search([request], 60)[0]
            for k in (1, 3, 8):
                assert ids(retriever.search([request], k)[0]) == ids(full)[:k]

    def test_a_batch_answers_as_single_requests_do(self, retriever: Retriever) -> None:
        retriever.add(catalogue(60))
        alone = [retriever.rank([request], 5)[0] for request in REQUESTS]
        for one, other in zip(retriever.rank([*REQUESTS, *REQUESTS], 5), alone * 2, strict=True):
            assert (one.request, one.scope) == (other.request, EVERYTHING)
            assert same(one.pairs, other.pairs)
        assert [ids(hits) for hits in retriever.search(REQUESTS, 5)] == [
            ids(retriever.search([request], 5)[0]) for request in REQUESTS
        ]

    def test_nothing_is_kept_of_a_request(self, retriever: Retriever) -> None:
        retriever.add(catalogue(60))
        request = "klaatu barada, mail the weather report to every user"
        before = self.full(retriever, request)
        vectors = {HashedWords().encode_request(request).tobytes()}
        for one in held(retriever):
            assert not (isinstance(one, str) and request in one)
            assert not (isinstance(one, np.ndarray) and one.tobytes() in vectors)
        for other in REQUESTS:
            self.full(retriever, other)
        assert same(self.full(retriever, request), before)

    def full(self, retriever: Retriever, request: str) -> Pairs:
        """The ranking of a request after which all was asked of it that can be."""
        (ranking,) = retriever.rank([request], 60)
        retriever.as_many([ranking])
        retriever.hits(ranking, 60)
        retriever.extend(ranking, 60, Scope(SOME))
        return ranking.pairs

    # Rankings.

    def test_each_id_gets_one_tuple_of_reasons(self, retriever: Retriever) -> None:
        retriever.add(catalogue(60))
        for ranking in retriever.rank([*REQUESTS, "get_weather_28"], 5):
            asked = [*(tool.id for tool in catalogue(60)[::7]), "no/such"]
            reasons = retriever.explain(ranking, asked)
            assert [type(why) for why in reasons] == [tuple] * len(asked)
            assert reasons[-1] == ()
            assert retriever.explain(ranking, asked[::-1]) == reasons[::-1]
            assert retriever.explain(ranking, []) == []
            assert all(hit.reasons == in_order(hit.reasons) for hit in retriever.hits(ranking, 5))

    def test_a_ranking_is_extended_as_a_new_one_would_be(self, retriever: Retriever) -> None:
        retriever.add(catalogue(60))
        seen = replace(Scope(tenant="ann"), visible=SOME)
        others = [EVERYTHING, Scope(SOME), Scope(SOME, tenant="ann"), seen, replace(seen, allowed=SOME)]
        for request in [*REQUESTS, "get_weather_28", "call create_issue_0 or get_weather_28 with mail"]:
            for scope in (EVERYTHING, seen):
                (ranking,) = retriever.rank([request], 3, scope)
                for k, other in [(k, other) for k in (1, 9, 60) for other in [*others, Scope(Allowed())]]:
                    fresh = retriever.rank([request], k, other)[0].pairs
                    assert same(retriever.extend(ranking, k, other), fresh)

    def test_what_was_ranked_is_not_encoded_again(self, retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
        def again(*_: object) -> Any:
            raise AssertionError("encoded again")

        retriever.add(catalogue(60))
        (ranking,) = retriever.rank(["mail the weather report"], 3)
        reasons = retriever.explain(ranking, ranking.ids())  # the first to need a vector may make it
        for encodes in ("encode", "encode_request", "encode_documents"):
            monkeypatch.setattr(HashedWords, encodes, again)
        assert retriever.explain(ranking, ranking.ids()) == reasons
        retriever.extend(ranking, 60, EVERYTHING)
        retriever.hits(ranking, 3)
        retriever.as_many([ranking])

    def test_how_many_tools_are_needed_is_said_of_each_ranking_or_of_none(self, retriever: Retriever) -> None:
        retriever.add(catalogue(60))
        found = retriever.as_many(retriever.rank(REQUESTS, 3, Scope(SOME)))
        assert (found is None) == (retriever.as_many([]) is None)
        assert found is None or [all(SOME.permits(i) for i, _ in pairs) for pairs in found] == [True] * len(REQUESTS)

    # Callers.

    def test_a_caller_allowed_nothing_finds_nothing(self, retriever: Retriever) -> None:
        retriever.add(catalogue(30))
        assert retriever.search(["search issue_10 get_weather_8"], 5, Scope(Allowed()))[0] == []

    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(
        count=st.integers(2, 60),
        words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=6),
        spaces=st.sets(st.integers(0, 6)),
        single=st.sets(st.integers(0, 59), max_size=8),
        k=st.integers(1, 70),
    )
    def test_a_restricted_caller_gets_the_full_ranking_without_the_rest(
        self, retriever: Retriever, count: int, words: list[str], spaces: set[int], single: set[int], k: int
    ) -> None:
        retriever.remove(retriever.ids())
        tools = catalogue(60)[:count]
        retriever.add(tools)
        allowed = Allowed.of({f"space{n}" for n in spaces}, {tools[n].id for n in single if n < count} | {"no/such"})
        request = " ".join(words)
        full = [hit for hit in retriever.search([request], count)[0] if allowed.permits(hit.tool_id)]
        assert ids(retriever.search([request], k, Scope(allowed))[0]) == ids(full)[:k]

    # Tools.

    def test_removing_leaves_the_ranking_of_the_rest(self, retriever: Retriever, make: Make) -> None:
        tools = catalogue(40)
        retriever.add(tools)
        gone = ids(retriever.search(["search issue"], 3)[0])
        retriever.remove([*gone, "never/there"])
        after = ids(retriever.search(["search issue"], 40)[0])
        assert not set(gone) & set(after)
        fresh = make()
        fresh.add([tool for tool in tools if tool.id not in gone])
        assert set(after) == set(ids(fresh.search(["search issue"], 40)[0]))
        assert (len(retriever), sorted(retriever.ids())) == (len(fresh), sorted(fresh.ids()))

    def test_tools_wait_for_their_vectors_where_vectors_are_needed(self, retriever: Retriever, make: Make) -> None:
        tools, wanted = catalogue(30), make()
        wanted.add(tools)
        retriever.add(tools, {})
        assert sorted(retriever.ids()) == sorted(wanted.ids())
        assert retriever.pending() in (0, 30)
        assert retriever.pending(Scope(Allowed())) == 0
        retriever.take_vectors(document_vectors(HashedWords(), tools))
        retriever.optimise()
        assert (retriever.pending(), len(retriever)) == (0, 30)
        for request in REQUESTS:
            assert same(retriever.rank([request], 30)[0].pairs, wanted.rank([request], 30)[0].pairs)
        near = retriever.best_similarities(HashedWords().encode(REQUESTS))
        assert len(near) == (0 if retriever.encoder is None else len(REQUESTS))

    def test_searches_go_on_while_tools_come_and_go(self, retriever: Retriever) -> None:
        tools, request, wrong, over = catalogue(60), "mail the weather report", list[str](), threading.Event()
        retriever.add(tools[:50])
        lasting = set(ids(retriever.search([request], 60)[0]))

        def ask() -> None:
            while not over.is_set():
                try:
                    found = ids(retriever.search([request], 60)[0])
                    if not all(found) or len(set(found)) != len(found) or not lasting <= set(found):
                        wrong.append(f"{lasting - set(found)} not in {found}")
                except Exception as error:
                    wrong.append(repr(error))

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for thread in asking:
            thread.start()
        for tool in tools[50:]:
            retriever.add([tool])
            assert tool.id in ids(retriever.search([tool.name], 60)[0])
            retriever.remove([tool.id])
            assert tool.id not in ids(retriever.search([tool.name], 60)[0])
        over.set()
        for thread in asking:
            thread.join()
        assert wrong == []

    # Learning and files.

    def test_feedback_is_taken_whether_it_is_of_use_or_not(self, retriever: Retriever) -> None:
        retriever.add(catalogue(60))
        retriever.learn([])
        retriever.learn(examples(5))
        assert len(retriever.search(["search issue"], 5)[0]) == 5

    def test_only_what_can_be_trained_is(self, retriever: Retriever, tmp_path: Path) -> None:
        if not retriever.trainable:
            with pytest.raises(BadModel, match="nothing to train"):
                retriever.fit(list[TrainingSet](), tmp_path)

    @pytest.mark.parametrize("damage", ["nothing", "model.json", "format", "options"])
    def test_a_folder_that_is_no_model_says_so(self, retriever: Retriever, tmp_path: Path, damage: str) -> None:
        content = {
            "model.json": "{ not json",
            "format": json.dumps({"format": 99, "method": retriever.name}),
            "options": json.dumps({"format": 1, "method": retriever.name, "options": {"nonsense": 1}, "parts": {}}),
        }
        if damage in content:
            (tmp_path / "model.json").write_text(content[damage])
        with pytest.raises(BadModel):
            type(retriever).load(tmp_path)


class Contract(ClosedContract):
    """The whole contract, of a retriever that takes any tool."""

    def test_scores_fall_and_ties_break_by_id(self, retriever: Retriever) -> None:
        alike = [Tool(namespace, "alike", "find a lion") for namespace in ("zoo", "ant", "mid")]
        retriever.add([*alike, *catalogue(30)])
        hits = retriever.search(["find a lion with mail"], 30)[0]
        assert [(-hit.score, hit.tool_id) for hit in hits] == sorted((-hit.score, hit.tool_id) for hit in hits)

    def test_tools_come_go_and_change_live(self, retriever: Retriever) -> None:
        retriever.add(catalogue(30))
        retriever.add([LION])
        assert finds(retriever, LION.description, LION.id)
        retriever.add([replace(LION, description="brushes an elephant")])
        assert len(retriever) == 31
        assert finds(retriever, "brushes an elephant", LION.id)
        assert ids(retriever.search(["zoo"], 40)[0]).count(LION.id) == 1
        retriever.remove([LION.id, "never/there"])
        assert LION.id not in ids(retriever.search(["brushes an elephant"], 40)[0])
        assert len(retriever) == 30

    # Names.

    @pytest.mark.parametrize(
        "request_text",
        [
            "get_weather_8",
            "please call get_weather_8 for me, then mail the report to every user",
            "use space1/get_weather_8 on the issue",
            "getWeather8",
            "the get-weather-8 one",
            "`get_weather_8` delete mail event order price note",
        ],
    )
    def test_an_exact_name_comes_first(self, retriever: Retriever, request_text: str) -> None:
        retriever.add([*catalogue(60), Tool("space1", "get_weather_8", "unrelated words entirely")])
        hit = retriever.search([request_text], 3)[0][0]
        assert hit.tool_id.endswith("/get_weather_8")
        assert any(isinstance(reason, ExactName) for reason in hit.reasons)

    def test_named_tools_keep_their_order_whatever_k_is(self, retriever: Retriever) -> None:
        namesakes = [Tool(f"space{n}", "get_weather_8", f"{WORDS[n]} {WORDS[-1 - n]}") for n in range(7)]
        retriever.add([*catalogue(60), *namesakes])
        for request in ("call get_weather_8 to list the note", "get_weather_8"):
            full = ids(retriever.search([request], 70)[0])
            assert set(full[:7]) == {tool.id for tool in namesakes}
            assert [ids(retriever.search([request], k)[0]) for k in (1, 2, 5)] == [full[:1], full[:2], full[:5]]

    def test_an_alias_comes_first_until_its_tool_is_gone(self, retriever: Retriever) -> None:
        retriever.add([*catalogue(60), Tool("space1", "obscure", "nothing to see", aliases=("daily standup", "dsu"))])
        for request in ("post to the daily standup about the mail event", "dsu", "Daily Standup!"):
            assert ids(retriever.search([request], 3)[0])[0] == "space1/obscure"
        retriever.remove(["space1/obscure"])
        assert "space1/obscure" not in ids(retriever.search(["daily standup"], 60)[0])

    def test_a_plain_word_is_not_a_name(self, retriever: Retriever) -> None:
        tools = [Tool("misc", "search", "misc stuff"), Tool("mail", "find_mail", "search all mail for a text")]
        retriever.add([*tools, *catalogue(9)])
        hits = retriever.search(["search all mail for a text from Bob"], 2)[0]
        assert not any(isinstance(reason, ExactName) for hit in hits for reason in hit.reasons)
        assert ids(retriever.search(["search"], 1)[0]) == ["misc/search"]

    def test_a_tool_that_is_not_allowed_has_no_name(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        """A request that names it is ranked, scored and explained as if nothing were called so."""
        hidden = Tool("vault", "get_weather_8", "mail the report", aliases=("daily standup",))
        alike = Tool("space0", "getWeather8", "unrelated")
        scope = Scope(Allowed.of([f"space{n}" for n in range(4)]))
        requests = [
            "get_weather_8",
            "vault/get_weather_8",
            "call get_weather_8 and mail the note",
            "a daily standup, mail it",
        ]
        found, add = [], ExactNames.add
        for nameless in (False, True):
            if nameless:
                monkeypatch.setattr(
                    ExactNames, "add", lambda self, i, few=(): None if i == hidden.id else add(self, i, few)
                )
            retriever = make()
            retriever.add([*catalogue(60)[:30], hidden, alike])
            found.append([retriever.search([request], 20, scope)[0] for request in requests])
        assert found[0] == found[1]
        for hits in (found[0][0], found[0][2]):  # nor does it take the place of one that is called alike
            assert ids(hits)[0] == alike.id
            assert any(isinstance(reason, ExactName) for reason in hits[0].reasons)

    # Files.

    def test_a_saved_index_answers_the_same_and_lives_on(
        self, retriever: Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        retriever.add([*catalogue(50), Tool("zoo", "obscure", "nothing", aliases=("daily standup",))])
        retriever.remove(["space3/create_issue_10"])
        loaded = reopened(retriever, tmp_path / "model", monkeypatch)
        assert read_model(tmp_path / "model")["method"] == retriever.name
        assert (loaded.options, sorted(loaded.ids())) == (retriever.options, sorted(retriever.ids()))
        requests = ["search the issue", "daily standup", "get_weather_8", "create issue"]
        assert [ids(hits) for hits in loaded.search(requests, 60)] == [
            ids(hits) for hits in retriever.search(requests, 60)
        ]
        loaded.add([LION])
        assert finds(loaded, LION.description, LION.id)
        assert LION.id not in ids(retriever.search([LION.description], 60)[0])
        assert not [path for path in (tmp_path / "model").rglob("*") if path.suffix in (".pkl", ".pickle", ".pt")]
