"""masstool and colt as they are served: live tools, live requests, exact for every caller, the same when reopened."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.retrievers.scenes import recall, scenes
from tests.retrievers.towers import colt, masstool, reopened, with_new_tools, write_prompts
from tests.toys import WORDS, HashedWords, catalogue, examples
from toolscout.core.answer import Allowed, ExactName, Example, PastRequest, Similarity
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.errors import BadModel
from toolscout.models.tower import Tower
from toolscout.retrievers.base import Pairs
from toolscout.retrievers.colt import Colt
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.masstool import Masstool
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.tower.retriever import TowerRetriever

pytestmark = pytest.mark.slow

DATA = scenes()
TEST = [text for _, text in DATA.split("test").requests]
KINDS: dict[str, type[TowerRetriever]] = {"masstool": Masstool, "colt": Colt}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A masstool with detection, a colt, and a masstool that met new tools on dev."""
    home = tmp_path_factory.mktemp("towers")
    chat = write_prompts(home / "chat")
    masstool(no_tool=str(chat), epochs=4).fit([TrainingSet(DATA)], home / "masstool")
    colt().fit([TrainingSet(DATA)], home / "colt")
    masstool().fit([TrainingSet(with_new_tools())], home / "new")
    return {name: home / name for name in ("masstool", "colt", "new")}


def opened(folder: Path) -> TowerRetriever:
    return KINDS.get(folder.name, Masstool).load(folder, HashedWords())


def ids(retriever: TowerRetriever | Dense, request: str, k: int = 5) -> list[str]:
    return retriever.rank([request], k)[0].ids()


@pytest.mark.parametrize("name", ["masstool", "colt"])
def test_a_trained_model_finds_what_words_do_not_say(folders: dict[str, Path], name: str) -> None:
    untrained = (masstool if name == "masstool" else colt)()
    untrained.add(DATA.tools)
    trained = opened(folders[name])
    assert recall(trained, DATA, "test") > 0.9 > recall(untrained, DATA, "test") + 0.5
    assert len(trained) == len(DATA.tools)


@pytest.mark.parametrize("made", [masstool, colt])
def test_untrained_it_is_dense_retrieval(made: type[TowerRetriever]) -> None:
    untrained, dense = made(), Dense(encoder=HashedWords())
    for one in (untrained, dense):
        one.add(DATA.tools)
    assert [ids(untrained, text, 60) for text in TEST] == [dense.rank([text], 60)[0].ids() for text in TEST]
    assert untrained.need(TEST) is None


def test_untrained_it_remembers() -> None:
    made = masstool(votes=0.5)
    made.add(DATA.tools)
    gold = DATA.tools[17].id
    assert gold not in ids(made, "klaatu barada nikto")
    made.learn([Example("klaatu barada nikto", used=(gold,))])
    assert made.learned() == 1
    assert ids(made, "klaatu barada nikto", 1) == [gold]
    assert ids(made, "klaatu barada", 1) == [gold]


@pytest.mark.parametrize("name", ["masstool", "colt", "new"])
def test_a_new_tool_is_found_at_once(folders: dict[str, Path], name: str) -> None:
    made = opened(folders[name])
    made.add([Tool("zoo", "feed_lion", "gives the lion its dinner")])
    assert ids(made, "gives the lion its dinner", 1) == ["zoo/feed_lion"]
    made.remove(["zoo/feed_lion"])
    assert "zoo/feed_lion" not in ids(made, "gives the lion its dinner", 99)


@pytest.mark.parametrize("name", ["masstool", "colt"])
def test_an_edited_document_keeps_what_its_tool_gathered(folders: dict[str, Path], name: str, tmp_path: Path) -> None:
    made = reopened(opened(folders[name]), tmp_path)
    request, gold = TEST[0], DATA.split("test").gold[0][0]
    tool = next(tool for tool in DATA.tools if tool.id == gold)
    edited = replace(tool, description="brushes an elephant")
    made.add([edited])
    assert gold in ids(made, request)
    assert ids(made, "brushes an elephant", 1) == [gold]
    made.options = replace(made.options, added_bonus=0.0)
    made.add([replace(edited, name="unheard_of")])
    assert f"{tool.namespace}/unheard_of" not in ids(made, request)


def test_an_edited_document_is_not_new(folders: dict[str, Path]) -> None:
    made = opened(folders["masstool"])
    made.retune({"new_bonus": 0.1})
    made.add(DATA.tools)
    gold = DATA.split("train").gold[0][0]
    tool = next(tool for tool in DATA.tools if tool.id == gold)
    made.add([replace(tool, description="brushes an elephant"), Tool("zoo", "feed_lion")])
    assert "zoo/feed_lion" in made._added - made._new
    unused = next(tool for tool in DATA.tools if tool.digest() not in made.trained_on.tools)
    made.add([replace(unused, description="brushes another elephant")])
    assert unused.id in made._new - made._added  # it was there in training, under an older document
    assert gold not in made._new | made._added


def test_a_new_request_joins_the_pool_at_once(folders: dict[str, Path]) -> None:
    made = opened(folders["masstool"])
    *_, gold, wrong = reversed(ids(made, "klaatu barada nikto", 3))
    before, pooled = dict(made.rank(["klaatu barada nikto"], 60)[0].pairs), made.learned()
    made.learn([Example("klaatu barada nikto", used=(gold,), rejected=(wrong,), source="user")])
    after = dict(made.rank(["klaatu barada nikto"], 60)[0].pairs)
    assert made.learned() == pooled + 1
    assert after[gold] > before[gold]
    assert after[gold] - before[gold] > after[wrong] - before[wrong]
    assert ids(made, "klaatu barada nikto", 1) == [gold]
    made.forget()
    assert dict(made.rank(["klaatu barada nikto"], 60)[0].pairs) == before
    assert made.learned() == 0


def test_given_vectors_spare_encoding(folders: dict[str, Path]) -> None:
    made = opened(folders["masstool"])
    vector = HashedWords().encode_request("klaatu barada")
    made.learn([Example("said otherwise", used=(DATA.tools[17].id,))], {"said otherwise": vector})
    reasons = [r for hit in made.search(["klaatu barada"], 60)[0] for r in hit.reasons if isinstance(r, PastRequest)]
    assert [(reason.request, round(reason.cosine, 2)) for reason in reasons] == [("said otherwise", 1.0)]


def test_without_neighbours_it_is_a_plain_vector_search(folders: dict[str, Path]) -> None:
    """All of them too far, none in the pool, or none asked for: the products of what the tower makes of both sides."""
    far, none = opened(folders["masstool"]), opened(folders["masstool"])
    none.forget()
    request = "nothing like any of them"
    assert far._evidence(HashedWords().encode_request(request), EVERYTHING).recalled.neighbours == []
    tower = far.tower
    assert tower is not None
    vector = tower.request(HashedWords().encode_request(request))
    expected = {}
    for tool in DATA.tools:
        moved = tower.tool(HashedWords().encode_request(tool.document()))
        total = moved + far.options.graph * far._terms.get(tool.id, np.zeros_like(moved))
        expected[tool.id] = float(vector @ (total / np.linalg.norm(total)))
    for made in (far, none):
        found = made.rank([request], 60)[0].pairs
        assert dict(found) == pytest.approx(expected, abs=2e-3)  # tables are kept in half precision


def test_a_cosine_of_exactly_epsilon_is_near_enough(folders: dict[str, Path]) -> None:
    made = opened(folders["masstool"])
    made.forget()
    made.learn([Example("klaatu barada", used=(DATA.tools[17].id,))])
    vector = HashedWords().encode_request("klaatu nikto")
    cosine = made._pools.pools_for("").nearest(vector, 1, 1.0, -1.0, lambda entry: True)[0].cosine
    for epsilon, heard in ((cosine, 1), (float(np.nextafter(np.float32(cosine), np.float32(2))), 0)):
        made.options = replace(made.options, epsilon=epsilon)
        assert len(made._neighbours(vector, "", made._has_live_tool)) == heard


def by_hand(made: TowerRetriever, request: str) -> Pairs:
    """Every tool's score, one by one: cosine to the search vector, votes, bonus."""
    vector = HashedWords().encode_request(request)
    neighbours = made._neighbours(vector, "", made._has_live_tool)
    asked = made._attend(vector, neighbours, made.options.neighbour_weight)
    length = float(np.linalg.norm(asked.vector))
    all_new, all_added = (some >= set(made.ids()) for some in (made._new, made._added))
    pairs = []
    for tool_id in made.ids():
        row = made._rows.row(tool_id)
        assert row is not None
        compared = vector if tool_id in made._added else asked.vector
        score = float(made._table.rows(np.array([row]))[0] @ compared)
        for (entry, _), weight in zip(neighbours, asked.attention.tolist(), strict=True):
            score += made.options.votes * weight * entry.tools.get(tool_id, 0)
        score += made.options.new_bonus if tool_id in made._new and not all_new else 0.0
        score += made.options.added_bonus if tool_id in made._added and not all_added else 0.0
        pairs.append((tool_id, score / length))
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))


@settings(max_examples=50, deadline=None)
@given(
    bonus=st.sampled_from([0.0, 0.05, 0.5]),
    votes=st.sampled_from([0.0, 0.1, 1.6]),
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=5),
    scene=st.none() | st.integers(0, 11),
    spaces=st.none() | st.sets(st.integers(0, 6)),
    new=st.integers(0, 20),
    added=st.sampled_from([0, 5, 60]),
    k=st.integers(1, 60),
)
def test_scores_are_exact_whoever_asks_for_however_many(
    folders: dict[str, Path],
    bonus: float,
    votes: float,
    words: list[str],
    scene: int | None,
    spaces: set[int] | None,
    new: int,
    added: int,
    k: int,
) -> None:
    made = opened(folders["masstool"])
    made.retune({"new_bonus": bonus, "added_bonus": bonus / 2, "votes": votes})
    came_later = {tool.id for tool in DATA.tools[-added:]} if added else set()
    made._catalogue = frozenset(tool.id for tool in DATA.tools) - came_later
    made._terms = {tool_id: term for number, (tool_id, term) in enumerate(made._terms.items()) if number >= new}
    made._terms = {tool_id: term for tool_id, term in made._terms.items() if tool_id not in came_later}
    made.trained_on = replace(made.trained_on, tools=frozenset(t.digest() for t in DATA.tools if t.id in made._terms))
    made.add(DATA.tools)
    made.learn(examples(80))  # with tools that were rejected
    request = " ".join([*words, *([] if scene is None else [f"sceneszorp{scene}", f"scenesblik{scene}"])])
    allowed = None if spaces is None else Allowed.of({f"space{n}" for n in spaces}, [DATA.tools[0].id])
    expected = [pair for pair in by_hand(made, request) if allowed is None or allowed.permits(pair[0])]
    found = made.rank([request], k, Scope(allowed))[0].pairs
    assert [tool_id for tool_id, _ in found] == [tool_id for tool_id, _ in expected[:k]]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected[:k]], abs=1e-5)


def test_a_new_tool_that_was_rejected_leaves_its_place_to_the_next(folders: dict[str, Path]) -> None:
    """Only the best new tools are looked at; where votes bring one of them down, one more has to be."""
    made = opened(folders["masstool"])
    made.retune({"new_bonus": 0.5, "votes": 1.6})
    made._terms = {}
    made.trained_on = replace(made.trained_on, tools=frozenset(tool.digest() for tool in DATA.tools[:30]))
    made.add(DATA.tools)
    for number in range(8):
        request = f"klaatu{number} {WORDS[number]} {WORDS[-1 - number]}"
        first = ids(made, request, 1)
        assert set(first) <= made._new
        made.learn([Example(request, used=(DATA.tools[0].id,), rejected=tuple(first))])
        expected = [tool_id for tool_id, _ in by_hand(made, request)]
        assert expected[0] != first[0]
        assert all(ids(made, request, k) == expected[:k] for k in (1, 2, 3))


@pytest.mark.parametrize("name", ["masstool", "colt"])
def test_a_tool_that_came_after_training_is_scored_as_dense_scores_it(folders: dict[str, Path], name: str) -> None:
    """Nothing that was learned moves it: neither graph, nor maps, nor the neighbours in the search vector."""
    made, dense = opened(folders[name]), Dense(None, HashedWords())
    bonus = 0.25
    made.retune({"graph": 1.0, "added_bonus": bonus} | ({"neighbour_weight": 2.0} if name == "masstool" else {}))
    tools = [*DATA.tools, Tool("zoo", "feed_lion", "gives the lion its dinner"), Tool("zoo", "wash", "washes lions")]
    for one in (made, dense):
        one.add(tools)
    for request in (*TEST[:4], "who gives the lion its dinner", "klaatu"):
        (own,), (plain,) = made.rank([request], 99), dense.rank([request], 99)
        for tool_id in ("zoo/feed_lion", "zoo/wash"):
            score = dict(own.pairs)[tool_id] * own.evidence.length
            assert score == pytest.approx(dict(plain.pairs)[tool_id] + bonus, abs=1e-6)
        (reasons, *_) = made.explain(own, ["zoo/feed_lion"])
        assert reasons[0] == Similarity(round(dict(plain.pairs)["zoo/feed_lion"], 6))


def test_among_known_tools_that_nothing_lifts_an_added_tool_keeps_the_rank_that_dense_gives_it(
    folders: dict[str, Path],
) -> None:
    made, dense = opened(folders["masstool"]), Dense(None, HashedWords())
    made.retune({"graph": 0.0, "neighbour_weight": 0.0, "votes": 0.0}, Tower({}, "none"))
    made.forget()
    made._catalogue = frozenset(tool.id for tool in DATA.tools[:40])
    made.trained_on = replace(made.trained_on, tools=frozenset(tool.digest() for tool in DATA.tools[:40]))
    for bonus in (0.0, 0.1):  # a bonus brings it up, never down
        made.retune({"added_bonus": bonus})
        for one in (made, dense):
            one.add(DATA.tools)
        for request in TEST:
            expected, found = ids(dense, request, 60), ids(made, request, 60)
            if not bonus:
                assert found == expected
            first = [tool_id for tool_id in expected[:5] if tool_id in made._added]
            assert set(first) <= set(found[:5])


def test_feedback_lifts_an_added_tool(folders: dict[str, Path]) -> None:
    made = opened(folders["masstool"])
    made.retune({"votes": 0.5})
    made.add([*DATA.tools, Tool("zoo", "feed_lion", "gives the lion its dinner")])
    assert ids(made, TEST[0], 1) != ["zoo/feed_lion"]
    made.learn([Example(TEST[0], used=("zoo/feed_lion",), source=f"user {n}") for n in range(3)])
    assert "zoo/feed_lion" in ids(made, TEST[0], 3)


@pytest.mark.parametrize("name", ["masstool", "colt", "new"])
def test_a_reopened_model_ranks_the_same_and_lives_on(folders: dict[str, Path], name: str, tmp_path: Path) -> None:
    made = opened(folders[name])
    made.learn(examples(40))
    made.add([Tool("zoo", "feed_lion", "gives the lion its dinner")])
    made.remove([DATA.tools[5].id])
    again = reopened(made, tmp_path / "again")
    requests = [*TEST, "klaatu", "get_weather_8", ""]
    assert again.search(requests, 60) == made.search(requests, 60)
    assert again.need(requests) == made.need(requests)
    assert (again.options, again.learned(), sorted(again.ids())) == (made.options, made.learned(), sorted(made.ids()))
    for one in (made, again):
        one.add(DATA.tools)  # all at new rows, one of them back
        one.learn([Example("klaatu barada", used=(DATA.tools[17].id,), time=examples(1)[0].time)])
    assert again.search([*requests, "klaatu barada"], 60) == made.search([*requests, "klaatu barada"], 60)
    third = reopened(again, tmp_path / "again")  # over itself
    assert third.search(requests, 60) == again.search(requests, 60)


def test_it_says_why(folders: dict[str, Path]) -> None:
    made = opened(folders["masstool"])
    gold = set(DATA.split("test").gold[0])
    for hit in made.search([TEST[0]], 2)[0]:
        assert hit.tool_id in gold
        similar, past = hit.reasons
        assert isinstance(similar, Similarity)
        assert isinstance(past, PastRequest)
        assert past.request.startswith("sceneszorp0 scenesblik0")
        assert 0.4 < past.cosine <= 1
    row = made._rows.row(hit.tool_id)
    assert row is not None
    moved = made._request_vector(HashedWords().encode_request(TEST[0]))
    assert similar.cosine == pytest.approx(float(made._table.rows(np.array([row]))[0] @ moved), abs=1e-5)
    assert made.best_similarities(HashedWords().encode([TEST[0]]))[0] >= similar.cosine - 1e-5
    named = made.search([f"{TEST[0]} with {DATA.tools[40].name}"], 1)[0][0]
    assert (named.tool_id, isinstance(named.reasons[0], ExactName)) == (DATA.tools[40].id, True)


def test_a_tenants_request_is_heard_by_that_tenant(folders: dict[str, Path]) -> None:
    made = opened(folders["masstool"])
    before = made.search(["klaatu barada"], 60)
    made.learn([Example("klaatu barada nikto", used=(DATA.tools[17].id,), tenant="ann")])
    assert made.search(["klaatu barada"], 60) == before
    hits = made.search(["klaatu barada"], 60, Scope(tenant="ann"))[0]
    past = [reason for hit in hits for reason in hit.reasons if isinstance(reason, PastRequest)]
    assert [reason.request for reason in past] == ["klaatu barada nikto"]


def test_what_used_tools_that_are_gone_is_not_heard(folders: dict[str, Path]) -> None:
    made = opened(folders["masstool"])
    gone = DATA.split("test").gold[0]
    made.remove(gone)
    assert all(PastRequest not in map(type, hit.reasons) for hit in made.search([TEST[0]], 60)[0])
    made.add([tool for tool in DATA.tools if tool.id in gone])
    assert set(ids(made, TEST[0], 2)) == set(gone)


def test_threads_get_what_one_gets(folders: dict[str, Path]) -> None:
    made = opened(folders["masstool"])
    made.learn(examples(60))
    requests = [*TEST, *(example.request for example in examples(40, seed=3))]
    expected = [made.search([request], 5)[0] for request in requests]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda request: made.search([request], 5)[0], requests * 4))
    assert found == expected * 4
    assert made.search(requests, 5) == expected


def test_detection_tells_requests_from_chat(folders: dict[str, Path]) -> None:
    made = opened(folders["masstool"])
    needed, chat = made.need(TEST), made.need(["tell me a song", "write how you feel"])
    assert needed is not None
    assert chat is not None
    assert min(needed) > 0.5 > max(chat)
    assert made.need([]) == []
    assert [opened(folders[name]).need(TEST) for name in ("colt", "new")] == [None, None]


@pytest.mark.parametrize("damage", ["tower.npz", "need.npz", "terms.npy", "views.npy", "terms.json", "requests"])
def test_a_damaged_model_says_so(folders: dict[str, Path], tmp_path: Path, damage: str) -> None:
    model = shutil.copytree(folders["masstool"], tmp_path / "masstool")
    path = model / damage
    if damage == "requests":
        shutil.rmtree(path)
        with pytest.raises(BadModel, match="train"):
            opened(model)
        return
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(BadModel, match="train"):
            opened(model)
        path.write_bytes(whole)


def test_an_untrained_one_is_saved_without_a_tower(tmp_path: Path) -> None:
    made = masstool()
    made.add(DATA.tools)
    made.learn(examples(20))
    again = reopened(made, tmp_path)
    assert again.search(TEST, 5) == made.search(TEST, 5)
    assert not (tmp_path / "tower.npz").exists()


def test_a_tower_is_bound_to_its_encoder(folders: dict[str, Path]) -> None:
    assert colt().bound_to() is None
    made = opened(folders["colt"])
    made.remove(made.ids())
    assert (made.bound_to(), made.learned()) == ("hashed-words", 0)
    assert (masstool().trains_encoder, masstool(train_encoder=True).trains_encoder) == (False, True)


def test_without_a_graph_a_past_request_is_seen_as_itself() -> None:
    data = Dataset("d", catalogue(5), {"a": "one two"}, {"train": {"a": (catalogue(5)[0].id,)}})
    made = masstool(layers=0)
    made.add(data.tools)
    made.learn([Example("one two", used=(data.tools[0].id,))])
    heard = made._pools.pools_for("")
    entry = heard.nearest(HashedWords().encode_request("one two"), 1, 1.0, -1.0, lambda entry: True)[0].entry
    np.testing.assert_array_equal(made._view(entry), np.stack([made._pools.vector(entry)] * 2))
