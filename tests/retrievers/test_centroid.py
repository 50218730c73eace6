"""centroid: vectors that move with use, and stay where there is none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.retrievers.scenes import recall, scenes
from tests.toys import WORDS, HashedWords, catalogue, examples
from toolscout.core.answer import Example, Hit
from toolscout.core.tool import Tool
from toolscout.data.dataset import request_digest
from toolscout.errors import BadModel
from toolscout.retrievers.centroid import Centroid, CentroidOptions
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.model_folder import read_model, trained_on
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.retrievers.registry import load_model

LION = Tool("zoo", "feed_lion", "gives a lion its dinner")
PLAIN = Tool("farm", "milk_cow", "gets milk from a cow")
HUNGRY = "somebody roars because of hunger"


def centroid(**options: float) -> Centroid:
    made = Centroid(replace(CentroidOptions(), **options), HashedWords())
    made.add([*catalogue(60), LION, PLAIN])
    return made


def used(request: str, tool: Tool) -> Example:
    return Example(request, (tool.id,))


def scores(made: Centroid | Dense, request: str) -> dict[str, float]:
    return {hit.tool_id: hit.score for hit in made.search([request], 100)[0]}


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.tool_id for hit in hits]


def naive(
    request: str, learned: Sequence[Example], tools: Sequence[Tool], alpha: float, tau: float
) -> dict[str, float]:
    """The scores, written down again as they are documented."""
    encoder = HashedWords()
    found = {}
    for tool in tools:
        counted: dict[str, None] = {}
        for example in learned:
            if tool.id in example.used:
                counted[example.request] = None
            elif tool.id in example.rejected:
                counted.pop(example.request, None)
        vector = encoder.encode_request(tool.document()).astype(np.float64)
        if counted:
            share = (1 - alpha) * len(counted) / (len(counted) + tau)
            vector = (1 - share) * vector + share * np.mean([encoder.encode_request(text) for text in counted], axis=0)
        found[tool.id] = float(encoder.encode_request(request) @ vector / np.linalg.norm(vector))
    return found


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=5),
    alpha=st.floats(0, 1),
    tau=st.floats(0, 20),
)
def test_scores_are_what_is_documented(seed: int, words: list[str], alpha: float, tau: float) -> None:
    tools, learned = catalogue(60), examples(60, seed)
    made = Centroid(CentroidOptions(alpha=alpha, tau=tau, share_feedback=True), HashedWords())
    made.learn(learned[:20])  # before the tools are there, while they come, and after
    made.add(tools[:30])
    made.learn(learned[20:40])
    made.add(tools[30:])
    made.learn(learned[40:])
    request = " ".join(words)
    assert scores(made, request) == pytest.approx(naive(request, learned, tools, alpha, tau), abs=2e-3)


def test_it_learns_from_feedback_and_can_be_trained() -> None:
    assert centroid().learns
    assert centroid().trainable


def test_a_tool_moves_towards_its_requests_and_no_other_does() -> None:
    made = centroid(tau=1)
    before = scores(made, HUNGRY)
    made.learn([used(HUNGRY, LION)])
    after = scores(made, HUNGRY)
    assert after.pop(LION.id) > before.pop(LION.id) + 0.2
    assert after == before
    assert made.search([HUNGRY], 1)[0][0].tool_id == LION.id


def test_few_requests_move_a_tool_less_than_many() -> None:
    made, found = centroid(tau=10), []
    for n in range(30):
        made.learn([used(f"{HUNGRY} {n}", LION)])
        found.append(scores(made, HUNGRY)[LION.id])
    assert found == sorted(found)
    assert found[0] < 0.2 < 0.6 < found[-1]


def test_without_requests_it_is_dense() -> None:
    made, dense = centroid(), Dense(encoder=HashedWords())
    dense.add([*catalogue(60), LION, PLAIN])
    made.learn(
        [Example(HUNGRY, used=("no/such",)), Example(HUNGRY, rejected=(LION.id,)), Example(" ", used=(LION.id,))]
    )
    assert made.search([HUNGRY, "report"], 62) == dense.search([HUNGRY, "report"], 62)


def test_a_request_counts_once_and_a_rejection_takes_it_back() -> None:
    made, once, never = centroid(), centroid(), centroid()
    once.learn([used(HUNGRY, LION)])
    made.learn([used(HUNGRY, LION), used(HUNGRY.upper(), LION)] * 5)
    assert scores(made, HUNGRY) == scores(once, HUNGRY)
    assert made.learned() == 1
    made.learn([Example(HUNGRY, rejected=(LION.id,))])
    assert scores(made, HUNGRY) == scores(never, HUNGRY)
    made.learn([used(HUNGRY, LION)])
    assert scores(made, HUNGRY) == pytest.approx(scores(once, HUNGRY), abs=1e-6)


def test_a_removed_tool_is_gone_until_it_comes_back_and_a_changed_one_keeps_its_requests() -> None:
    made = centroid(tau=1)
    made.learn([used(HUNGRY, LION)])
    before = scores(made, HUNGRY)
    made.remove([LION.id])
    assert LION.id not in scores(made, HUNGRY)
    made.add([LION])
    assert scores(made, HUNGRY) == before
    made.add([Tool("zoo", "feed_lion", "brushes an elephant")])
    assert made.search([HUNGRY], 1)[0][0].tool_id == LION.id
    assert scores(made, "brushes an elephant")[LION.id] > 0.3


def test_a_tool_that_waits_for_its_vector_comes_with_its_requests() -> None:
    made, wanted = Centroid(encoder=HashedWords()), centroid()
    tools = [*catalogue(60), LION, PLAIN]
    made.add(tools, {})
    assert made.pending() == 62
    for one in (made, wanted):
        one.learn([used(HUNGRY, LION)])
    made.take_vectors({tool.digest(): HashedWords().encode_request(tool.document()) for tool in tools})
    assert made.search([HUNGRY], 62) == wanted.search([HUNGRY], 62)


def test_learning_for_long_takes_no_more_room() -> None:
    made, wanted = centroid(), centroid()
    learned = [used(f"{HUNGRY} {n}", LION if n % 2 else PLAIN) for n in range(3000)]
    for example in learned:
        made.learn([example])
    wanted.learn(learned)
    assert len(made._table) < 2000
    assert len(made) == 62
    assert scores(made, HUNGRY) == pytest.approx(scores(wanted, HUNGRY), abs=1e-6)


def test_tools_that_never_come_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.retrievers.centroid._ABSENT_KEPT", 10)
    made = centroid()
    made.learn([used(HUNGRY, LION)])
    made.learn([Example(f"request {n}", used=(f"no/such{n}",)) for n in range(100)])
    assert 10 < made.learned() < 60
    assert scores(made, HUNGRY)[LION.id] > scores(centroid(), HUNGRY)[LION.id]


def test_everything_that_was_learned_is_saved(tmp_path: Path) -> None:
    made = centroid()
    made.learn([*examples(60), used(HUNGRY, LION)])
    made.remove([LION.id])
    made.save(tmp_path / "model")
    loaded = Centroid.load(tmp_path / "model", HashedWords())
    requests = [HUNGRY, *(example.request for example in examples(60)[::5])]
    assert loaded.options == made.options
    assert loaded.learned() == made.learned()
    assert loaded.search(requests, 70) == made.search(requests, 70)
    for one in (loaded, made):
        one.add([LION])
        one.learn([used("roars", LION), used(HUNGRY, PLAIN), *examples(60)])
    assert loaded.search(requests, 70) == made.search(requests, 70)
    assert not [path for path in (tmp_path / "model").rglob("*") if path.suffix not in (".json", ".npy", "")]


@pytest.mark.parametrize("damage", ["missing", "nonsense", "short"])
def test_a_damaged_folder_says_so(tmp_path: Path, damage: str) -> None:
    made = centroid()
    made.learn(examples(20))
    made.save(tmp_path)
    path = tmp_path / "sums.json"
    record = json.loads(path.read_text())
    path.unlink()
    if damage != "missing":
        path.write_text("[1]" if damage == "nonsense" else json.dumps(record | {"own": record["own"][1:]}))
    with pytest.raises(BadModel, match="again"):
        Centroid.load(tmp_path, HashedWords())


@pytest.mark.parametrize("wrong", [{"alpha": -0.1}, {"alpha": 1.1}, {"tau": -1}])
def test_options_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadModel, match="alpha"):
        replace(CentroidOptions(), **wrong)


def test_fit_learns_the_train_split_and_leaves_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", HashedWords.load)
    data = scenes()
    made = Centroid(encoder=HashedWords())
    report = made.fit([TrainingSet(data)], tmp_path / "model")
    assert made.learned() == 60
    assert report.dev == {"recall@5": recall(made, data, "dev")}
    assert recall(made, data, "test") > recall(centroid(), data, "test") + 0.5
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, Centroid)
    assert loaded.options == made.options
    loaded.remove(loaded.ids())
    loaded.add(data.tools)
    assert recall(loaded, data, "test") == recall(made, data, "test")
    assert read_model(tmp_path / "model")["fit"]["dev"] == report.dev
    assert trained_on(tmp_path / "model") == TrainedOn.of([TrainingSet(data)])
    loaded.learn([used(HUNGRY, LION)])
    loaded.save(tmp_path / "later")
    assert trained_on(tmp_path / "later").splits[2].requests == {request_digest(HUNGRY)}


def test_fit_without_dev_keeps_the_options(tmp_path: Path) -> None:
    made = Centroid(CentroidOptions(alpha=0.3), HashedWords())
    report = made.fit([TrainingSet(scenes(), dev="")], tmp_path)
    assert (report.dev, made.options.alpha) == ({}, 0.3)
