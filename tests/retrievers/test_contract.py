"""Every retriever that is found keeps the same contract."""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.retrievers import generators
from tests.retrievers.scenes import scenes
from tests.retrievers.towers import colt, masstool
from tests.toys import WORDS, HashedWords, catalogue, examples
from toolscout.core.answer import Allowed, ExactName, Hit
from toolscout.core.tool import Tool
from toolscout.errors import BadModel, BadRequest
from toolscout.index.exact_names import Names
from toolscout.papers.masstool.published import MasstoolPublished, MasstoolPublishedOptions
from toolscout.retrievers.base import Retriever, TrainingSet
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.centroid import Centroid
from toolscout.retrievers.colt import Colt
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid, HybridOptions
from toolscout.retrievers.masstool import Masstool
from toolscout.retrievers.memory import Memory
from toolscout.retrievers.registry import available, load_model, method
from toolscout.retrievers.rewrite.retriever import Rewrite, RewriteOptions

# Those that rank the tools they were trained on alone: here catalogue(60).
CLOSED = ("masstool_published",)
# Those whose language model is too tiny here to know what a new tool is for: it is found, but may not be the first.
UNKNOWING = ("toolweaver",)
EMBEDDED: dict[str, Callable[..., Retriever]] = {
    "dense": Dense,
    "memory": Memory,
    "centroid": Centroid,
    "masstool": Masstool,
    "colt": Colt,
}


@cache
def fitted(kind: type[Masstool | Colt]) -> Path:
    """A tower with every weight above 0, over scenes of catalogue(60)."""
    home = TemporaryDirectory()
    atexit.register(home.cleanup)
    folder = Path(home.name)
    made = masstool(epochs=1) if kind is Masstool else colt(epochs=1)
    made.fit([TrainingSet(scenes())], folder)
    weights = {"graph": 0.5, "new_bonus": 0.1}
    made.retune(weights | ({"kin": 0.5, "votes": 0.3} if kind is Masstool else {}))
    made.save(folder)
    return folder


def make(name: str) -> Retriever:
    if name in CLOSED:
        trained = MasstoolPublished(MasstoolPublishedOptions(epochs=1, device="cpu"), HashedWords())
        with TemporaryDirectory() as folder:
            trained.fit([TrainingSet(scenes())], Path(folder))
        trained.remove(trained.ids())
        return trained
    if name in EMBEDDED:
        return EMBEDDED[name](encoder=HashedWords())
    if name in ("toolgen", "toolweaver"):
        made = generators.empty(name)
        if name == "toolgen":  # dev has no use for either
            made.options = replace(made.options, similarity=50.0, new_bonus=1.0)
        return made
    if name.endswith("-trained"):
        kind = Masstool if name == "masstool-trained" else Colt
        return kind.load(fitted(kind), HashedWords())
    if name.endswith("-learned"):  # the contract holds whatever was learned
        made = EMBEDDED[name.removesuffix("-learned")](encoder=HashedWords())
        made.learn(examples(60))
        return made
    if name == "hybrid":  # a shallow depth, so that small catalogues reach below it
        return Hybrid(HybridOptions(depth=7), [Bm25(), Dense(encoder=HashedWords())])
    if name == "rewrite":  # by rules, which need no model
        part = Hybrid(HybridOptions(depth=7), [Bm25(), Dense(encoder=HashedWords())])
        return Rewrite(RewriteOptions(llm="rules", depth=7), [part])
    if name == "hybrid-rrf":
        return Hybrid(HybridOptions(fusion="rrf", depth=7), [Bm25(), Dense(encoder=HashedWords())])
    return method(name)()


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.tool_id for hit in hits]


def finds(retriever: Retriever, request: str, tool_id: str) -> bool:
    return tool_id in ids(retriever.search([request], 60 if retriever.name in UNKNOWING else 1)[0])


LEARNED = ["memory-learned", "centroid-learned", "masstool-learned", "masstool-trained", "colt-trained"]
OPEN = [*sorted(set(available()) - set(CLOSED)), "hybrid-rrf", *LEARNED]


@pytest.fixture(params=OPEN)
def retriever(request: pytest.FixtureRequest) -> Retriever:
    """One that takes any tool."""
    return make(request.param)


@pytest.fixture(params=[*OPEN, *CLOSED])
def any_retriever(request: pytest.FixtureRequest) -> Retriever:
    return make(request.param)


def test_a_retriever_is_found_by_its_file_name() -> None:
    assert {"bm25", "dense", "hybrid", "memory", "centroid"} <= set(available())
    assert method("bm25") is Bm25
    with pytest.raises(BadModel, match="bm25"):
        method("nonsense")


def test_every_retriever_keeps_the_protocol(any_retriever: Retriever) -> None:
    assert isinstance(any_retriever, Retriever)


def test_an_empty_index_answers_with_nothing(any_retriever: Retriever) -> None:
    assert any_retriever.search(["anything", "at all"], 5) == [[], []]
    assert any_retriever.search([], 5) == []
    assert len(any_retriever) == 0


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_refused(any_retriever: Retriever, k: int) -> None:
    with pytest.raises(BadRequest, match="at least 1"):
        any_retriever.search(["anything"], k)


def test_k_beyond_the_catalogue_gives_each_tool_once(any_retriever: Retriever) -> None:
    tools = catalogue(20)
    any_retriever.add(tools)
    found = ids(any_retriever.search(["search issue event mail"], 1000)[0])
    assert len(found) == len(set(found)) <= 20


def test_a_batch_answers_as_single_requests_do(any_retriever: Retriever) -> None:
    any_retriever.add(catalogue(60))
    requests = ["search the issue", "delete a mail event", "weather report", ""]
    batch = any_retriever.search(requests, 5)
    assert [ids(hits) for hits in batch] == [ids(any_retriever.search([request], 5)[0]) for request in requests]


def test_scores_fall_and_ties_break_by_id(retriever: Retriever) -> None:
    tools = [
        Tool("zoo", "alike", "find a lion"),
        Tool("ant", "alike", "find a lion"),
        Tool("mid", "alike", "find a lion"),
    ]
    retriever.add([*tools, *catalogue(30)])
    hits = retriever.search(["find a lion with mail"], 30)[0]
    assert [(-hit.score, hit.tool_id) for hit in hits] == sorted((-hit.score, hit.tool_id) for hit in hits)


def test_tools_come_go_and_change_live(retriever: Retriever) -> None:
    tools = catalogue(30)
    retriever.add(tools)
    retriever.add([Tool("zoo", "feed_lion", "gives the lion its dinner")])
    assert finds(retriever, "gives the lion its dinner", "zoo/feed_lion")
    retriever.add([Tool("zoo", "feed_lion", "brushes an elephant")])
    assert len(retriever) == 31
    assert finds(retriever, "brushes an elephant", "zoo/feed_lion")
    assert ids(retriever.search(["zoo"], 40)[0]).count("zoo/feed_lion") == 1
    retriever.remove(["zoo/feed_lion", "never/there"])
    assert "zoo/feed_lion" not in ids(retriever.search(["brushes an elephant"], 40)[0])
    assert len(retriever) == 30


def test_removing_leaves_the_ranking_of_the_rest(any_retriever: Retriever) -> None:
    tools = catalogue(40)
    any_retriever.add(tools)
    gone = ids(any_retriever.search(["search issue"], 3)[0])
    any_retriever.remove(gone)
    after = ids(any_retriever.search(["search issue"], 40)[0])
    assert not set(gone) & set(after)
    fresh = make(any_retriever.name)
    fresh.add([tool for tool in tools if tool.id not in gone])
    assert set(after) == set(ids(fresh.search(["search issue"], 40)[0]))


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
def test_an_exact_name_comes_first(retriever: Retriever, request_text: str) -> None:
    retriever.add([*catalogue(60), Tool("space1", "get_weather_8", "unrelated words entirely")])
    hit = retriever.search([request_text], 3)[0][0]
    assert hit.tool_id.endswith("/get_weather_8")
    assert any(isinstance(reason, ExactName) for reason in hit.reasons)


def test_an_alias_comes_first_until_its_tool_is_gone(retriever: Retriever) -> None:
    retriever.add([*catalogue(60), Tool("space1", "obscure", "nothing to see", aliases=("daily standup", "dsu"))])
    for request in ("post to the daily standup about the mail event", "dsu", "Daily Standup!"):
        assert ids(retriever.search([request], 3)[0])[0] == "space1/obscure"
    retriever.remove(["space1/obscure"])
    assert "space1/obscure" not in ids(retriever.search(["daily standup"], 60)[0])


def test_a_plain_word_is_not_a_name(retriever: Retriever) -> None:
    retriever.add(
        [Tool("misc", "search", "misc stuff"), Tool("mail", "find_mail", "search all mail for a text"), *catalogue(9)]
    )
    hits = retriever.search(["search all mail for a text from Bob"], 2)[0]
    assert not any(isinstance(reason, ExactName) for hit in hits for reason in hit.reasons)
    assert ids(retriever.search(["search"], 1)[0]) == ["misc/search"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(2, 60),
    seed=st.integers(0, 5),
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=6),
    spaces=st.sets(st.integers(0, 6)),
    single=st.sets(st.integers(0, 59), max_size=8),
    k=st.integers(1, 70),
)
def test_a_restricted_caller_gets_the_full_ranking_without_the_rest(
    retriever: Retriever, count: int, seed: int, words: list[str], spaces: set[int], single: set[int], k: int
) -> None:
    tools = catalogue(count, seed)
    retriever.remove([hit.id for hit in catalogue(60)])
    retriever.add(tools)
    allowed = Allowed.of({f"space{n}" for n in spaces}, {tools[n].id for n in single if n < count} | {"no/such"})
    request = " ".join(words)
    full = [hit for hit in retriever.search([request], count)[0] if allowed.permits(hit.tool_id)]
    assert ids(retriever.search([request], k, allowed)[0]) == ids(full)[:k]


@pytest.mark.parametrize("name", OPEN)
def test_a_tool_that_is_not_allowed_has_no_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that names it is ranked, scored and explained as if nothing were called so."""
    hidden = Tool("vault", "get_weather_8", "mail the report", aliases=("daily standup",))
    alike, allowed = Tool("space0", "getWeather8", "unrelated"), Allowed.of([f"space{n}" for n in range(4)])
    requests = [
        "get_weather_8",
        "vault/get_weather_8",
        "call get_weather_8 and mail the note",
        "a daily standup, mail it",
    ]
    found, add = [], Names.add
    for nameless in (False, True):
        if nameless:
            monkeypatch.setattr(Names, "add", lambda self, i, few=(): None if i == hidden.id else add(self, i, few))
        retriever = make(name)
        retriever.add([*catalogue(60)[:30], hidden, alike])
        found.append([retriever.search([request], 20, allowed)[0] for request in requests])
    assert found[0] == found[1]
    for hits in (found[0][0], found[0][2]):  # nor does it take the place of one that is called alike
        assert ids(hits)[0] == alike.id
        assert any(isinstance(reason, ExactName) for reason in hits[0].reasons)


def test_a_caller_allowed_nothing_finds_nothing(any_retriever: Retriever) -> None:
    any_retriever.add(catalogue(30))
    assert any_retriever.search(["search issue_10 get_weather_8"], 5, Allowed())[0] == []


def test_a_saved_index_answers_the_same_and_lives_on(
    retriever: Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", HashedWords.load)
    retriever.add([*catalogue(50), Tool("zoo", "obscure", "nothing", aliases=("daily standup",))])
    retriever.remove(["space3/create_issue_10"])
    retriever.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    requests = ["search the issue", "daily standup", "get_weather_8", "create issue"]
    assert [ids(hits) for hits in loaded.search(requests, 60)] == [ids(hits) for hits in retriever.search(requests, 60)]
    loaded.add([Tool("zoo", "feed_lion", "gives the lion its dinner")])
    assert finds(loaded, "gives the lion its dinner", "zoo/feed_lion")
    assert "zoo/feed_lion" not in ids(retriever.search(["gives the lion its dinner"], 60)[0])


@pytest.mark.parametrize("damage", ["nothing", "model.json", "format", "options"])
def test_a_folder_that_is_no_model_says_so(any_retriever: Retriever, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    content = {
        "model.json": "{ not json",
        "format": '{"format": 99, "method": "bm25"}',
        "options": json.dumps({"format": 1, "method": any_retriever.name, "options": {"nonsense": 1}, "parts": {}}),
    }
    if damage in content:
        (folder / "model.json").write_text(content[damage])
    with pytest.raises(BadModel):
        load_model(folder)
