"""toolgen, and what toolweaver shares with it: a language model that writes tools, those that came later too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.retrievers import generators
from tests.retrievers.generators import STRANGE, VARIANTS, fitted, made, opened
from tests.retrievers.scenes import recall, scenes
from tests.retrievers.towers import CHAT, write_prompts
from tests.toys import HashedWords, catalogue
from toolscout.core.answer import Allowed, ExactName, Hit
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Tool
from toolscout.data.conversations import ConversationBuilder
from toolscout.errors import BadDataset, BadModel, NeedsTraining
from toolscout.retrievers.generative.dev_weights import BONUSES, SIMILARITIES
from toolscout.retrievers.model_folder import read_model, trained_on
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.toolgen import Toolgen, ToolgenOptions

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="training needs the extra 'train'")
pytest.importorskip("onnx", reason="serving a language model needs the extra 'encoder'")

DATA = scenes()
REQUESTS = [text for _, text in DATA.split("test").requests[:6]]
IDS = [tool.id for tool in DATA.tools]
every = pytest.mark.parametrize("name", VARIANTS)
spelled = pytest.mark.parametrize("name", ["toolgen-semantic", "toolgen-numeric", "toolgen-hierarchical"])
of_sets = pytest.mark.parametrize("name", ["toolgen-sets", "toolweaver-sets"])


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.tool_id for hit in hits]


def ranked(retriever: Any, k: int = 60, allowed: Allowed | None = None) -> list[list[str]]:
    """One by one, since what is read in a batch differs by a trifle."""
    return [ids(retriever.search([request], k, Scope(allowed))[0]) for request in REQUESTS]


def as_many(retriever: Any, requests: Sequence[str], allowed: Allowed | None = None) -> list[list[Hit]]:
    """The tools of the likeliest set of each request."""
    rankings = retriever.rank(requests, 1, Scope(allowed))
    found = retriever.as_many(rankings)
    return [retriever.explained(ranking, pairs) for ranking, pairs in zip(rankings, found, strict=True)]


@pytest.mark.parametrize(
    ("name", "least"), [("toolgen", 0.9), ("toolgen-sets", 0.8), ("toolgen-hierarchical", 0.4), ("toolweaver", 0.8)]
)
def test_it_learns_what_words_alone_do_not_tell(name: str, least: float) -> None:
    retriever = opened(name)
    assert recall(retriever, DATA, "train") >= least
    assert recall(retriever, DATA, "test") >= least - 0.1


@every
def test_it_keeps_the_contracts_it_should(name: str) -> None:
    retriever = opened(name)
    assert retriever.encoder.fingerprint == HashedWords.fingerprint
    assert retriever.trainable
    assert retriever.gives_ids
    assert (retriever.as_many([]) is not None) == name.endswith("sets")
    assert (retriever.rank(["anything"], 1)[0].need is not None) == bool(retriever.options.no_tool)
    assert len(retriever) == 60


@every
def test_a_saved_model_ranks_the_same(name: str, tmp_path: Path) -> None:
    retriever = opened(name)
    retriever.add([Tool("zoo", "feed_lion", "gives the lion its dinner"), Tool("zoo", "pet", "pats the lion")])
    retriever.remove([IDS[3]])
    retriever.save(tmp_path / "model")
    loaded = type(retriever).load(tmp_path / "model", HashedWords())
    assert ranked(loaded) == ranked(retriever)
    scores = [[hit.score for hit in one.search(REQUESTS[:1], 60)[0]] for one in (loaded, retriever)]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-6)
    assert loaded.options == retriever.options


@pytest.mark.parametrize("name", ["toolgen", "toolgen-sets", "toolweaver"])
def test_what_is_served_is_what_was_trained(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(name)
    trained, served = generators.LEARNED[name], opened(name)
    monkeypatch.setenv("TOOLSCOUT_DEVICE", "cpu")
    in_torch = opened(name)
    for request in REQUESTS:
        wanted = {hit.tool_id: hit.score for hit in trained.search([request], 60)[0]}
        for one, tolerance in ((in_torch, 0.02), (served, 0.1)):
            found = {hit.tool_id: hit.score for hit in one.search([request], 60)[0]}
            assert found.keys() == wanted.keys()
            assert all(found[tool_id] == pytest.approx(score, abs=tolerance) for tool_id, score in wanted.items())


@every
def test_k_tools_come_back_and_the_best_do_not_depend_on_k(name: str) -> None:
    retriever = opened(name)
    full = ranked(retriever)
    assert all(sorted(one) == sorted(IDS) for one in full)
    for k in (1, 7):
        assert ranked(retriever, k) == [one[:k] for one in full]
    scores = [hit.score for hit in retriever.search(REQUESTS[:1], 60)[0]]
    assert scores == sorted(scores, reverse=True)
    assert 0 < scores[0] <= 1
    if not retriever.options.sets:  # one distribution over all tools, and "no tool" and "finish"
        assert 0.0 < sum(score**8 for score in scores) <= 1 + 1e-6


@every
def test_a_restricted_caller_gets_the_full_ranking_without_the_rest(name: str) -> None:
    retriever = opened(name)
    allowed = Allowed.of({"space2", "space4"}, {IDS[0], "no/such"})
    wanted = [[tool_id for tool_id in one if allowed.permits(tool_id)] for one in ranked(opened(name))]
    for k in (2, 60):
        assert ranked(retriever, k, allowed) == [one[:k] for one in wanted]
    assert [[i for i in one if allowed.permits(i)] for one in ranked(retriever)] == wanted
    assert ranked(retriever, 5, Allowed()) == [[]] * len(REQUESTS)


@every
def test_new_tools_are_found_without_training(name: str) -> None:
    retriever = opened(name)
    before = ranked(retriever)
    new = [Tool("zoo", f"{verb}_{animal}", f"{verb} the {animal}") for verb in ("pat", "feed") for animal in CHAT]
    new += [Tool("zoo", "same", "same"), Tool("other", "same", "same"), Tool("zoo", "面白い", "")]
    retriever.add(new)
    assert len(retriever) == 60 + len(new)
    for one in ranked(retriever, 100):
        assert sorted(one) == sorted([*IDS, *(tool.id for tool in new)])
    hits = retriever.search(["please feed_cheer me up, with `zoo/same`"], 3)[0]
    assert hits[0].tool_id == "zoo/same"
    assert any(isinstance(reason, ExactName) for reason in hits[0].reasons)
    retriever.remove([tool.id for tool in new])
    assert ranked(retriever) == before


@every
def test_a_trained_tool_keeps_its_id_when_it_changes_and_when_it_comes_back(name: str) -> None:
    retriever = opened(name)
    before, wanted = {tool_id: retriever.path(tool_id) for tool_id in IDS}, ranked(retriever)
    edited = replace(DATA.tools[4], description="something else entirely")
    retriever.add([edited])
    assert len(retriever) == 60
    retriever.add([DATA.tools[4]])
    retriever.remove(IDS)
    assert ranked(retriever) == [[]] * len(REQUESTS)
    retriever.add(DATA.tools[::-1])
    assert ranked(retriever) == wanted
    if name != "toolgen" and not name.startswith(
        ("toolgen-sets", "toolgen-agent")
    ):  # atomic tokens are never used twice
        assert {tool_id: retriever.path(tool_id) for tool_id in IDS} == before


def test_an_edited_document_moves_the_row_of_its_token() -> None:
    retriever = opened("toolgen")
    retriever.options = replace(retriever.options, similarity=50.0)
    retriever.add([replace(DATA.tools[4], description="gives the lion its dinner")])
    assert ids(retriever.search(["gives the lion its dinner"], 1)[0]) == [IDS[4]]
    retriever.add([DATA.tools[4]])
    assert ids(retriever.search(["gives the lion its dinner"], 60)[0])[0] != IDS[4]


@spelled
def test_ids_of_tokens_are_unique_and_end_where_no_other_goes_on(name: str) -> None:
    retriever = opened(name)
    retriever.add([Tool("zoo", "alike", "a"), Tool("ant", "alike", "a"), Tool("bee", "alike", "b")])
    paths = [retriever.path(tool_id) for tool_id in retriever.ids()]
    assert len(set(paths)) == 63
    assert not any(a != b and a == b[: len(a)] for a in paths for b in paths)


def test_ids_of_one_request_are_branches_of_one_lesson() -> None:
    from toolscout.retrievers.generative.fit import _branched

    lesson = _branched([1, 2], [(10, 20, 30), (10, 21), (11, 22, 31)])
    assert lesson.tokens == [1, 2, 10, 20, 10, 11, 22]
    assert lesson.branches == [2, 1, 2]
    assert lesson.right == [(1, (10, 11)), (2, (20, 21)), (3, (30,)), (5, (22,)), (6, (31,))]
    assert lesson.weights == pytest.approx([1 / 3, 1 / 6, 1 / 6, 1 / 6, 1 / 6])


@of_sets
def test_as_many_as_needed(name: str) -> None:
    retriever = opened(name)
    split = DATA.split("train")
    found = as_many(retriever, [text for _, text in split.requests])
    exact = [set(ids(hits)) == set(gold) for hits, gold in zip(found, split.gold, strict=True)]
    assert all(len(set(ids(hits))) == len(hits) and set(ids(hits)) <= set(IDS) for hits in found)
    if name == "toolgen-sets":
        assert np.mean(exact) >= 0.6
    assert ids(as_many(retriever, ["get_weather_28 again"])[0])[0] == "space0/get_weather_28"
    assert as_many(retriever, []) == []


@of_sets
def test_what_a_caller_may_not_see_is_not_written(name: str) -> None:
    retriever = opened(name)
    requests = [text for _, text in DATA.split("train").requests[::5]]
    free = {tool_id for hits in as_many(retriever, requests) for tool_id in ids(hits)}
    allowed = Allowed.of(ids=sorted(set(IDS) - free))
    for hits in as_many(retriever, [*requests, f"call {sorted(free | {IDS[0]})[0]}"], allowed):
        assert all(allowed.permits(tool_id) for tool_id in ids(hits))
    assert as_many(retriever, requests[:2], Allowed()) == [[], []]


@of_sets
def test_a_set_is_the_same_whoever_asks_less_what_a_caller_may_not_see(name: str) -> None:
    retriever = opened(name)
    requests = [text for _, text in DATA.split("train").requests[::5]]
    for request, hits in zip(requests, as_many(retriever, requests), strict=True):
        assert hits  # that none is needed is not said by an empty set
        for hit in hits:
            alone = as_many(retriever, [request], Allowed.of(ids=[hit.tool_id]))[0]
            assert [(one.tool_id, one.score) for one in alone] == [(hit.tool_id, pytest.approx(hit.score))]
            rest = Allowed.of(ids=set(IDS) - {hit.tool_id})
            assert set(ids(as_many(retriever, [request], rest)[0])) == set(ids(hits)) - {hit.tool_id}


def test_sets_are_for_models_that_were_trained_to_write_them() -> None:
    retriever = opened("toolgen")
    assert retriever.as_many(retriever.rank(["anything"], 1)) is None
    with pytest.raises(BadModel, match="sets and trajectories cannot be trained together"):
        ToolgenOptions(sets=True, trajectories="some.jsonl")


@pytest.mark.parametrize("name", ["toolgen", "toolweaver-sets"])
def test_it_tells_whether_a_tool_is_needed(name: str) -> None:
    retriever = opened(name)
    asking = [text for _, text in DATA.split("test").requests]
    chatting = [f"{CHAT[number % 6]} {40 + number}" for number in range(12)]
    needed, unneeded = retriever.need(asking), retriever.need(chatting)
    assert np.mean(np.array(needed)[:, None] > np.array(unneeded)) > 0.9
    # Each request is judged alone, whatever it is asked with.
    assert retriever.need([*asking, *chatting]) == pytest.approx([*needed, *unneeded], abs=0.02)
    assert [retriever.need([text])[0] for text in asking[:3]] == pytest.approx(needed[:3], abs=0.02)
    assert all("\0" not in tool_id for one in ranked(retriever) for tool_id in one)


def test_need_is_not_told_by_a_model_that_was_not_taught() -> None:
    assert opened("toolgen-sets").need(["anything"]) is None
    assert made("toolgen").need(["anything"]) is None


def test_what_was_seen_is_known_and_no_path_is_kept() -> None:
    for name in ("toolgen", "toolgen-agent"):
        seen = trained_on(fitted(name))
        known = {tool.digest() for tool in DATA.tools if any(tool.id in g for g in DATA.split("train").gold)}
        assert seen.tools == known | ({STRANGE.digest()} if name == "toolgen-agent" else set())
        roles = {("train", "train"), ("dev", "dev")} if name in generators.JUDGED else {("train", "train")}
        talks = {("conversations", "train")} if name == "toolgen-agent" else set()
        assert {(one.split, one.role) for one in seen.splits} == roles | talks
        assert ("prompts" in {one.dataset for one in seen.splits}) == (name == "toolgen")
        record = json.loads((fitted(name) / "model.json").read_text())
        record["options"].pop("base")
        assert str(generators.home()) not in json.dumps(record)
        assert record["fit"]["stages"]["retrieve"]["history"]
        assert not [path for path in fitted(name).iterdir() if path.name.startswith("training")]


def test_an_untrained_model_names_the_command(tmp_path: Path) -> None:
    retriever = made("toolgen")
    assert retriever.search(["anything"], 5) == [[]]
    with pytest.raises(NeedsTraining, match="toolscout train DATA --retriever toolgen --out FOLDER") as raised:
        retriever.add(catalogue(7))
    assert raised.value.ids == tuple(tool.id for tool in catalogue(7))
    with pytest.raises(NeedsTraining, match="cannot search anything before it is trained; run: toolscout train"):
        retriever.pick([ConversationBuilder("anything").before_action()])
    retriever.add([])
    retriever.save(tmp_path / "model")
    loaded = Toolgen.load(tmp_path / "model", HashedWords())
    assert loaded.search(["anything"], 5) == [[]]


@every
def test_another_base_is_refused_until_its_own_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(fitted(name), tmp_path / "model"))
    record = json.loads((folder / "model.json").read_text())
    for base, message in (
        (str(generators.base(num_hidden_layers=1)), "another language model"),
        (str(tmp_path / "gone"), f"nothing is at {tmp_path / 'gone'}.*TOOLSCOUT_BASE=PLACE"),
    ):
        record["options"]["base"] = base
        (folder / "model.json").write_text(json.dumps(record))
        with pytest.raises(BadModel, match=message):
            type(opened(name)).load(folder, HashedWords())
    monkeypatch.setenv("TOOLSCOUT_BASE", str(generators.base()))
    found = type(opened(name)).load(folder, HashedWords())
    assert found.search(["x"], 3) == opened(name).search(["x"], 3)
    monkeypatch.delenv("TOOLSCOUT_BASE")
    found.save(tmp_path / "copy")  # knows by now where its base is
    assert type(opened(name)).load(tmp_path / "copy", HashedWords()).base().reference == str(generators.base())


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "nonsense"])
@pytest.mark.parametrize("name", ["toolgen", "toolgen-hierarchical", "toolweaver"])
def test_damaged_files_are_told(name: str, damage: str, tmp_path: Path) -> None:
    kind = type(opened(name))
    files = [path.relative_to(fitted(name)) for path in fitted(name).rglob("*") if path.is_file()]
    files = [
        path for path in files if path.name not in ("trained_on.json", "model.json") and path.parts[0] != "vectors"
    ]
    assert len(files) >= 4
    for number, path in enumerate(files):
        folder = Path(shutil.copytree(fitted(name), tmp_path / str(number)))
        whole = (folder / path).read_bytes()
        (folder / path).unlink()
        if damage != "gone":
            content = {"empty": b"", "cut": whole[: len(whole) // 2], "nonsense": b'["nonsense"]'}[damage]
            (folder / path).write_bytes(content)
        with pytest.raises(BadModel):
            kind.load(folder, HashedWords())


def test_rows_of_another_size_are_told(tmp_path: Path) -> None:
    for name, file in (("toolgen", "specials.npy"), ("toolweaver", "rows.npy")):
        folder = Path(shutil.copytree(fitted(name), tmp_path / name))
        np.save(folder / file, np.load(folder / file)[:-1])
        with pytest.raises(BadModel, match="train the model again"):
            type(opened(name)).load(folder, HashedWords())


def test_rows_that_come_after_a_request_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_DEVICE", "cpu")
    retriever = opened("toolgen-sets")
    before, read = ranked(retriever, 5), retriever.rank(REQUESTS[:1], 5)
    new = [Tool("zoo", f"pat_{number}", f"pats the lion {number}") for number in range(70)]
    retriever.add(new)
    assert all(len(set(one)) == 130 for one in ranked(retriever, 200))
    assert retriever.extend(read[0], 200, EVERYTHING) == retriever.rank(REQUESTS[:1], 200)[0].pairs
    assert retriever.as_many(read) == retriever.as_many(retriever.rank(REQUESTS[:1], 5))
    retriever.remove([tool.id for tool in new])
    assert ranked(retriever, 5) == before


def test_a_batch_is_read_at_once_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = opened("toolgen")
    wanted, reading, batches = ranked(retriever, 5), retriever.reading, list[list[str]]()
    monkeypatch.setattr(retriever, "reading", lambda requests: batches.append(list(requests)) or reading(requests))
    rankings = retriever.rank(REQUESTS, 5)
    assert [ranking.ids() for ranking in rankings] == wanted
    gone = wanted[0][0]
    retriever.remove([gone])
    for ranking, ids_of in zip(rankings, wanted, strict=True):
        left = [tool_id for tool_id in ids_of if tool_id != gone]
        assert [tool_id for tool_id, _ in retriever.extend(ranking, 3, EVERYTHING)] == left[:3]
        assert len(retriever.explain(ranking, ids_of)) == 5
    assert batches == [REQUESTS]


def test_what_cannot_be_trained_with_says_so(tmp_path: Path) -> None:
    for options, message in (
        ({"ids": "nonsense"}, "atomic, semantic"),
        ({"similarity": -1.0}, "0 or more"),
        ({"similarity": float("inf")}, "finite number of 0 or more"),
        ({"similarity": float("nan")}, "finite number of 0 or more"),
        ({"new_bonus": float("inf")}, "new_bonus a finite number"),
        ({"rank": -1}, "0 or more"),
        ({"absent": 1.0}, "absent"),
        ({"rehearse": 1.1}, "rehearse and carry_on must be from 0 to 1"),
        ({"carry_on": -0.1}, "rehearse and carry_on must be from 0 to 1"),
    ):
        with pytest.raises(BadModel, match=message):
            ToolgenOptions(**options)
    with pytest.raises(BadModel, match="at least one dataset"):
        made("toolgen").fit([], tmp_path / "a")
    with pytest.raises(BadModel, match="set memorise or epochs above 0"):
        made("toolgen", epochs=0, memorise=0).fit([TrainingSet(DATA)], tmp_path / "b")
    with pytest.raises(BadModel, match="--no-tool FOLDER"):
        made("toolgen", no_tool="", instruct_mix=0.5).fit([TrainingSet(DATA)], tmp_path / "c")
    prompts = write_prompts(tmp_path / "prompts") / "prompts.jsonl"
    prompts.write_text(prompts.read_text().replace('"train"', '"other"'))
    with pytest.raises(BadDataset, match="no prompts of a split 'train'"):
        made("toolgen", no_tool=prompts.parent).fit([TrainingSet(DATA)], tmp_path / "d")


@pytest.mark.parametrize("name", ["toolgen", "toolgen-semantic", "toolweaver"])
def test_a_weight_that_is_given_stays_and_the_other_is_chosen_on_dev(name: str, tmp_path: Path) -> None:
    quick = {"epochs": 1, "memorise": 0, "no_tool": "", **({"code_steps": 2} if name == "toolweaver" else {})}
    for given in (777.0, 0.0):
        retriever = made(name, **quick, similarity=given)
        retriever.fit([TrainingSet(DATA, dev="dev")], tmp_path / f"{given}")
        assert retriever.options.similarity == given
        assert read_model(tmp_path / f"{given}")["options"]["similarity"] == given
        assert retriever.options.new_bonus in BONUSES
    both = made(name, **quick, similarity=0.0, new_bonus=3.5)
    both.fit([TrainingSet(DATA, dev="dev")], tmp_path / "both")
    assert (both.options.similarity, both.options.new_bonus) == (0.0, 3.5)


@pytest.mark.parametrize("dev", ["dev", ""])
def test_a_weight_that_is_not_given_becomes_a_number(dev: str, tmp_path: Path) -> None:
    retriever = made("toolgen", epochs=1, memorise=0, no_tool="")
    assert (retriever.options.similarity, retriever.options.new_bonus) == (None, None)
    retriever.fit([TrainingSet(DATA, dev=dev)], tmp_path / "model")
    assert retriever.options.similarity in (SIMILARITIES if dev else (0.0,))
    assert retriever.options.new_bonus in (BONUSES if dev else (0.0,))


def test_all_tools_are_memorised_where_that_is_asked(tmp_path: Path) -> None:
    used = {tool_id for gold in DATA.qrels["train"].values() for tool_id in gold}
    every = {tool.id for tool in DATA.tools}
    assert used < every
    for asked, learned in ((False, used), (True, every)):
        retriever = made("toolgen", epochs=1, memorise=1, no_tool="", memorise_all=asked)
        retriever.fit([TrainingSet(DATA, dev="")], tmp_path / f"{asked}")
        with np.load(tmp_path / f"{asked}" / "rows.npz") as saved:
            assert set(saved["ids"].tolist()) == learned
