"""What a fit of masstool or colt leaves: what was chosen on dev is what is served; what was seen is written down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.retrievers.scenes import Killed, recall, scenes
from tests.retrievers.towers import CHAT, colt, masstool, with_new_tools, write_prompts
from tests.toys import HashedWords, catalogue
from tests.training.learnable import learnable, tiny_source
from toolscout.data.dataset import Dataset, request_digest
from toolscout.errors import BadDataset, BadModel
from toolscout.evaluation.evaluate import seen_by
from toolscout.models.tower import Tower
from toolscout.retrievers.masstool import Masstool
from toolscout.retrievers.model_folder import read_model, trained_on
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.retrievers.registry import load_model
from toolscout.retrievers.tower import fit as tower_fit
from toolscout.retrievers.tower.dev_weights import (
    ChosenWeights,
    DevScores,
    TowerWeights,
    choose,
    held_out_bonus,
    standard_error,
)
from toolscout.retrievers.tower.options import MasstoolOptions

pytestmark = pytest.mark.slow

DATA = scenes()
TEST = [text for _, text in DATA.split("test").requests]


@pytest.mark.parametrize("case", ["one set", "two sets", "new tools", "twins and repeats"])
def test_what_was_chosen_on_dev_is_what_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    sets = {
        "one set": [DATA],
        "two sets": [DATA, scenes("other", seed=7)],
        "new tools": [with_new_tools()],
        "twins and repeats": [_with_twins_and_repeats()],
    }[case]
    caught: list[tuple[DevScores, ChosenWeights]] = []

    def chosen(dev: DevScores, *args: Any, **given: Any) -> ChosenWeights:
        found = choose(dev, *args, **given)
        weights = replace(found.weights, neighbour_weight=0.5, votes=0.2, new_bonus=0.05)  # so that all of it counts
        caught.append((dev, replace(found, weights=weights)))
        return caught[-1][1]

    monkeypatch.setattr(tower_fit, "choose", chosen)
    made = masstool(epsilon=0.2)
    training = [TrainingSet(one) for one in sets]
    made.fit(training, tmp_path)
    dev, choice = caught[0]
    scores, rows = dev.scores(choice.weights), tower_fit.material(training).rows
    requests = [text for one in sets for _, text in one.split("dev").requests]
    assert len(scores) == len(requests)
    assert np.abs(dev.around).sum() > 0 < dev.votes.sum()
    for request, expected in zip(requests, scores, strict=True):
        (ranking,) = made.rank([request], 99)
        length = np.linalg.norm(ranking.evidence.vector)
        found = {tool_id: score * length for tool_id, score in ranking.pairs}
        if case == "twins and repeats":  # votes go to the one of the twins that was used
            found = {tool_id: found[tool_id] for tool_id in found if not tool_id.startswith("twin/")}
        assert found == pytest.approx({tool_id: expected[rows[tool_id]] for tool_id in found}, abs=4e-3)


def _with_twins_and_repeats() -> Dataset:
    """A tool under two ids, a request that comes twice with other tools, and one too long to be kept whole."""
    used = {i for gold in DATA.split("train").gold for i in gold}
    twins = [replace(tool, namespace="twin") for tool in DATA.tools if tool.id not in used][:2]
    requests, train = dict(DATA.requests), dict(DATA.qrels["train"])
    first, *others = train
    other = others[19]
    requests |= {"again": requests[first].upper(), "long": f"{requests[first]} more " * 300}
    train |= {"again": train[other], "long": train[first]}
    return Dataset("scenes", [*DATA.tools, *twins], requests, {**DATA.qrels, "train": train})


def test_every_request_keeps_its_views(tmp_path: Path) -> None:
    data = _with_twins_and_repeats()
    made = masstool(epochs=1)
    made.fit([TrainingSet(data)], tmp_path)
    assert set(made._pools.keys()) == set(made._views)
    assert made.learned() == len(data.split("train")) - 1


def test_the_share_of_one_source_counts_on_dev_too(tmp_path: Path) -> None:
    made = masstool(epochs=1, share=0.5, epsilon=-1.0)
    made.fit([TrainingSet(DATA), TrainingSet(scenes("other", seed=7))], tmp_path)
    neighbours = made._neighbours(HashedWords().encode_request(TEST[0]), "", lambda entry: True)
    assert sorted(one.entry.source for one in neighbours) == ["source other"] * 3 + ["source scenes"] * 3


def test_no_other_split_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, chat = Dataset._qrels, write_prompts(tmp_path / "chat")
    asked: set[str] = set()

    def qrels(self: Dataset, split: str) -> Any:
        asked.add(split)
        return real(self, split)

    monkeypatch.setattr(Dataset, "_qrels", qrels)
    made = masstool(epochs=1, no_tool=str(chat))
    made.fit([TrainingSet(DATA)], tmp_path / "model")
    colt(epochs=1).fit([TrainingSet(DATA)], tmp_path / "colt")
    assert asked == {"train", "dev"}
    without = Dataset("scenes", DATA.tools, DATA.requests, {n: q for n, q in DATA.qrels.items() if n != "test"})
    again = masstool(epochs=1, no_tool=str(chat))
    again.fit([TrainingSet(without)], tmp_path / "again")
    assert (tmp_path / "again/tower.npz").read_bytes() == (tmp_path / "model/tower.npz").read_bytes()
    held = request_digest(f"{CHAT[36 % 6]} 36")
    assert all(held not in split.requests for split in trained_on(tmp_path / "model").splits)


def test_all_that_was_seen_is_kept_and_no_path_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = write_prompts(tmp_path / "somewhere" / "chat")
    monkeypatch.chdir(chat)
    masstool(epochs=1, no_tool=".").fit([TrainingSet(DATA)], tmp_path / "model")
    seen = trained_on(tmp_path / "model")
    assert [(one.dataset, one.split, one.role, len(one.requests)) for one in seen.splits] == [
        ("scenes", "train", "train", 60),
        ("scenes", "dev", "dev", 24),
        ("chat", "train", "train", 24),
        ("chat", "dev", "dev", 12),
    ]
    assert seen.tools == TrainedOn.of([TrainingSet(DATA)]).tools
    assert read_model(tmp_path / "model")["options"]["no_tool"] == "chat"
    assert "somewhere" not in (tmp_path / "model" / "model.json").read_text()
    masstool(epochs=1, no_tool=str(chat), detection=0.0).fit([TrainingSet(DATA)], tmp_path / "deaf")
    assert read_model(tmp_path / "deaf")["options"]["no_tool"] == ""
    assert not (tmp_path / "deaf" / "need.npz").exists()


def test_the_folder_holds_the_model_and_nothing_else(tmp_path: Path) -> None:
    report = masstool(no_tool=str(write_prompts(tmp_path / "chat"))).fit([TrainingSet(DATA)], tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "model.json", "need.npz", "new.json", "requests", "rows.json", "terms.json", "terms.npy", "tower.npz",
        "trained_on.json", "vectors", "views.npy",
    ]  # fmt: skip
    fit = read_model(tmp_path / "model")["fit"]
    assert fit["parameters"] == report.parameters > 0
    assert fit["dev"] == dict(report.dev)
    assert set(report.dev) == {"ndcg@5", "recall@5"}


def test_the_graph_is_described_and_a_sparse_one_is_warned_of(tmp_path: Path) -> None:
    (note,) = masstool(epochs=1).fit([TrainingSet(DATA)], tmp_path / "dense").notes
    assert note == (
        "graph: 60 requests, 120 edges to 23 of 60 tools (median 5 requests a tool), 12 scenes (5.0 requests each)"
    )
    few = {key: gold for key, gold in DATA.qrels["train"].items() if key.endswith("-0")}
    sparse = Dataset("sparse", DATA.tools, DATA.requests, {"train": few})
    notes = colt(epochs=1).fit([TrainingSet(sparse, dev="")], tmp_path / "sparse").notes
    assert "the graph is sparse (1.0 requests a tool, 1.0 a scene): it will hardly help" in notes[1]
    assert "--option layers=0" in notes[1]
    assert len(colt(epochs=1, layers=0).fit([TrainingSet(sparse, dev="")], tmp_path / "none").notes) == 1


def test_scenes_are_sets_of_tools_whatever_their_numbers() -> None:
    about = {key: {"scene": str(number)} for number, key in enumerate(DATA.requests)}
    numbered = Dataset("scenes", DATA.tools, DATA.requests, DATA.qrels, about)
    assert tower_fit.material([TrainingSet(numbered)]).scenes.max() + 1 == 12


def test_a_seed_gives_one_model(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        masstool(seed=seed).fit([TrainingSet(DATA)], tmp_path / name)
    files = [(tmp_path / name / "tower.npz").read_bytes() for name in "abc"]
    assert files[0] == files[1] != files[2]


def test_the_saved_model_ranks_as_the_fitted_one(tmp_path: Path) -> None:
    for made in (masstool(epochs=1), colt(epochs=1)):
        made.fit([TrainingSet(DATA)], tmp_path / made.name)
        opened = type(made).load(tmp_path / made.name, HashedWords())
        assert opened.search(TEST, 60) == made.search(TEST, 60)
        edited = [replace(tool, description=f"{tool.description} and more") for tool in DATA.tools]
        for one in (made, opened):
            one.add(edited)
        assert opened.search(TEST, 60) == made.search(TEST, 60)


def test_an_interrupted_fit_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.retrievers.encoded_requests._CHUNK", 16)
    chat = write_prompts(tmp_path / "chat")
    sets, folder = [TrainingSet(DATA)], tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        masstool(Killed(70), no_tool=str(chat)).fit(sets, folder)
    with monkeypatch.context() as patch:
        patch.setattr(Masstool, "save", Killed(0).encode_request)  # trained, not yet saved
        with pytest.raises(KeyboardInterrupt):
            masstool(no_tool=str(chat)).fit(sets, folder)
    again, killed = masstool(encoder := Killed(0), no_tool=str(chat)), Killed(0)
    again.fit(sets, folder)  # all is encoded and trained
    straight = masstool(no_tool=str(chat))
    straight.fit(sets, tmp_path / "straight")
    encoder.left = killed.left = 1000
    assert again.search(TEST, 60) == straight.search(TEST, 60)
    assert again.need(TEST) == straight.need(TEST)


def test_vectors_of_another_encoder_are_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Masstool, "save", Killed(0).encode_request)
        with pytest.raises(KeyboardInterrupt):
            masstool().fit([TrainingSet(DATA)], tmp_path)
    other = HashedWords()
    other.fingerprint = "another"
    with pytest.raises(BadModel, match="other data or with other options"):
        masstool(other).fit([TrainingSet(DATA)], tmp_path)


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    sets = [TrainingSet(DATA)]
    with pytest.raises(BadModel, match="at least one dataset"):
        masstool().fit([], tmp_path / "m")
    with pytest.raises(BadModel, match="60 requests to keep; set keep"):
        masstool(keep=59).fit(sets, tmp_path / "m")
    with pytest.raises(BadDataset, match="name a folder of prompts"):
        masstool(no_tool=str(tmp_path)).fit(sets, tmp_path / "m")
    (tmp_path / "prompts.jsonl").write_text('{"_id": "p", "text": "hello", "split": "test", "source": "s"}\n')
    with pytest.raises(BadDataset, match="no prompts of a split 'train'"):
        masstool(no_tool=str(tmp_path)).fit(sets, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_few_requests_without_dev_are_enough(tmp_path: Path) -> None:
    train = {key: DATA.qrels["train"][key] for key in list(DATA.qrels["train"])[:1]}
    one = Dataset("one", DATA.tools, DATA.requests, {"train": train})
    for made in (masstool(epochs=1), colt(epochs=1)):
        assert made.fit([TrainingSet(one, dev="")], tmp_path / made.name).dev == {}
        assert len(made.search(["anything"], 5)[0]) == 5


def test_a_second_fit_forgets_the_first(tmp_path: Path) -> None:
    made, fresh = masstool(epochs=1), masstool(epochs=1)
    made.fit([TrainingSet(scenes("other", seed=7))], tmp_path / "first")
    made.options = fresh.options
    for number, one in enumerate((made, fresh)):
        one.fit([TrainingSet(DATA)], tmp_path / str(number))
    assert made.search(TEST, 60) == fresh.search(TEST, 60)


def dev_scores(scores: list[list[float]], gold: list[set[int]], known: int, votes: list[list[float]]) -> DevScores:
    """Requests and tools whose products are these scores."""
    count = len(scores[0])
    gold_mask = np.array([[tool in few for tool in range(count)] for few in gold])
    requests = np.array(scores, dtype=np.float32)
    none = np.zeros((count, count), dtype=np.float32)
    around = np.zeros_like(requests)
    eye = np.eye(count, dtype=np.float32)
    heard, new, scenes = np.array(votes, dtype=np.float32), np.arange(count) >= known, np.arange(len(gold))
    return DevScores(requests, around, heard, requests, eye, none, gold_mask, new, np.zeros_like(new), scenes)


def with_added(dev: DevScores, added: set[int], cosines: list[list[float]]) -> DevScores:
    """The same where some tools came after training, and the encoder has these cosines."""
    mask = np.array([tool in added for tool in range(len(dev.new))])
    return replace(dev, added=mask, new=dev.new & ~mask, cosines=np.array(cosines, dtype=np.float32))


def test_held_out_tools_get_the_bonus_with_which_they_are_found_as_often_as_by_the_encoder() -> None:
    known, cosines = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], [0.3, 0.2, 0.1, 0.1, 0.1, 0.1]
    plain = dev_scores([[*known, 0.0, 0.0]], [{0, 6}], 8, [[0.0] * 8])
    added = with_added(plain, {6, 7}, [[*cosines, 0.295, 0.05]])
    assert held_out_bonus([added], TowerWeights()) == 0.21  # just above the fifth of the known tools
    far = with_added(plain, {6, 7}, [[*known, 0.295, 0.05]])
    assert held_out_bonus([far], TowerWeights()) == 0.21  # the encoder misses it; the recall of all tools decides
    lost = replace(far, gold=plain.gold & (np.arange(8) != 6))
    assert held_out_bonus([lost], TowerWeights()) == 0.0
    assert held_out_bonus([], TowerWeights()) == 0.0
    voted = replace(added, votes=np.array([[0.0] * 5 + [1.0, 0.0, 0.0]], dtype=np.float32))
    assert held_out_bonus([voted], TowerWeights(votes=0.2)) == 0.31  # a vote has put the sixth tool at .6


def tower(**numbers: float) -> Tower:
    found = {"graph": 0.3, "votes": 0.1, "new_bonus": 0.0, **numbers}
    return Tower({name: np.array(value, dtype=np.float32) for name, value in found.items()}, "none")


def test_new_tools_get_the_bonus_that_dev_asks_for() -> None:
    known = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    lifted = dev_scores([[*known, 0.295, 0.1]], [{0, 6}], 6, [[0.0] * 8])
    assert choose(lifted, tower(), layers=False, around=False).weights == TowerWeights(new_bonus=0.21)
    for gold in ({0, 5}, {6, 7}):  # no new one, or nothing to weigh it against
        found = choose(dev_scores([[*known, 0.295, 0.1]], [gold], 6, [[0.0] * 8]), tower(), layers=False, around=False)
        assert found.weights.new_bonus == 0


def test_votes_count_as_much_as_dev_says_and_as_much_as_it_allows() -> None:
    scores = [[0.9, 0.8, 0.7, 0.6, 0.5, 0.1]]
    helped = dev_scores(scores, [{5}], 6, [[0.0] * 5 + [1.0]])
    found = choose(helped, tower(), layers=False, around=True)
    assert found.weights.votes >= 0.8
    assert found.dev["ndcg@5"] == pytest.approx(1.0)
    idle = choose(dev_scores(scores, [{0}], 6, [[0.0] * 6]), tower(), layers=False, around=True)
    assert (idle.weights.votes, idle.weights.neighbour_weight) == (0.1, 0.0)  # what is learned later is to be heard
    hurt = [[0.9, 0.89, 0.7, 0.6, 0.5, 0.1]]
    found = choose(dev_scores(hurt, [{0}], 6, [[0.0, 0.3, 0, 0, 0, 0]]), tower(), layers=False, around=True)
    assert found.weights.votes == 0.02
    found = choose(dev_scores(hurt, [{0}], 6, [[0.0, 1.0, 0, 0, 0, 0]]), tower(), layers=False, around=True)
    assert found.weights.votes == 0


def test_a_part_that_may_be_better_by_chance_is_left_out() -> None:
    """Votes find the tool where it is else missed, and lead astray in as many scenes of forty."""
    missed, found = [0.9, 0.8, 0.7, 0.6, 0.5, 0.1], [0.1, 0.8, 0.7, 0.6, 0.5, 0.9]
    right, wrong = [0.0, 0, 0, 0, 0, 1], [0.0, 1, 0, 0, 0, 0]
    for helped, misled, counts in ((2, 2, False), (20, 2, True)):
        scores = [missed] * helped + [found] * (40 - helped)
        heard = [right] * helped + [wrong] * misled + [[0.0] * 6] * (40 - helped - misled)
        dev = dev_scores(scores, [{5}] * 40, 6, heard)
        votes = choose(dev, tower(), layers=False, around=True).weights.votes
        assert (votes > 0.1) is counts
    by_scene = standard_error(np.array([1.0, 1.0, 0.0, 0.0]), np.array([0, 0, 1, 1]))
    assert by_scene == pytest.approx(np.sqrt(2) / 4)
    assert standard_error(np.array([1.0, 1.0, 0.0, 0.0]), np.arange(4)) == pytest.approx(0.25)


def test_without_dev_what_was_learned_counts() -> None:
    none = dev_scores([[0.5, 0.1]], [{0}], 2, [[0.0, 0.0]])
    empty = replace(none, requests=none.requests[:0], votes=none.votes[:0], gold=none.gold[:0], scenes=none.scenes[:0])
    found = choose(empty, tower(graph=0.7, votes=0.4), layers=True, around=True)
    assert found == ChosenWeights(
        TowerWeights(graph=pytest.approx(0.7), neighbour_weight=1.0, votes=pytest.approx(0.4)), {}
    )
    assert choose(empty, tower(), layers=False, around=False).weights == TowerWeights()


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masstool whose encoder was trained along, begun with weights that have a past."""
    home = tmp_path_factory.mktemp("through")
    source = tiny_source(home / "source")
    TrainedOn.of([TrainingSet(learnable("before"))]).save(source)
    options = MasstoolOptions(
        train_encoder=True, start=str(source), epochs=2, batch=16, rate=3e-3, pace=2.0, mix=0.2, hidden=8, device="cpu"
    )
    Masstool(options).fit([TrainingSet(learnable())], home / "model")
    return home


def test_an_encoder_that_was_trained_along_is_its_own(through: Path, tmp_path: Path) -> None:
    made, data = load_model(through / "model"), learnable()
    assert isinstance(made, Masstool)
    assert made.has_own_encoder()
    assert recall(made, data, "test") > 0.5
    assert made.bound_to() == made.encoder.fingerprint
    assert 0.5 <= made.options.average <= 1
    made.save(tmp_path / "moved")
    requests = [text for _, text in data.split("test").requests]
    assert load_model(tmp_path / "moved").search(requests, 5) == made.search(requests, 5)


def test_what_the_weights_had_seen_before_is_known(through: Path) -> None:
    seen = seen_by(str(through / "model"), load_model(through / "model"))
    assert {(one.dataset, one.split) for one in seen.splits} == {
        (name, split) for name in ("before", "learnable") for split in ("train", "dev")
    }
    for part in ("encoder", "weights"):  # they may be used without the rest
        assert TrainedOn.load(through / "model" / part) == seen


def test_an_encoder_that_has_seen_the_requests_is_not_moved(through: Path, tmp_path: Path) -> None:
    """Trained on its own training set an encoder looks better than it is: nothing is learned from that."""
    options = MasstoolOptions(encoder=str(through / "model" / "encoder"), epochs=1, hidden=8, device="cpu")
    knowing, other = Masstool(options), Masstool(options)
    knowing.fit([TrainingSet(learnable())], tmp_path / "knowing")
    other.fit([TrainingSet(_elsewhere())], tmp_path / "other")
    for made, maps in ((knowing, False), (other, True)):
        assert made.tower is not None
        assert ("request_map" in made.tower.numbers) is maps


def _elsewhere() -> Dataset:
    data = learnable("elsewhere")
    return replace(data, requests={key: f"{text} w59 w58" for key, text in data.requests.items()})


def test_catalogues_join_with_equal_documents_in_one_row() -> None:
    twin = replace(catalogue(60)[3], namespace="twin")
    other = Dataset("other", [twin], {"q": "ask"}, {"train": {"q": (twin.id,)}})
    both = tower_fit.material([TrainingSet(DATA), TrainingSet(other, dev="")])
    assert len(both.gold) == 61
    assert both.rows[twin.id] == both.rows[catalogue(60)[3].id] or twin.digest() != catalogue(60)[3].digest()
    assert both.requests[-1] == "ask"
    assert len(both.dev_requests) == 24
