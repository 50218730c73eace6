"""The towers learn by the one loop, on frozen vectors and through an encoder; killed, they go on to the same end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.learnable import learnable, tiny_source
from toolscout.data import metrics
from toolscout.data.dataset import Dataset
from toolscout.errors import BadModel
from toolscout.models.tower import unit
from toolscout.retrievers.tower.options import MasstoolOptions
from toolscout.training import loop, tower_task
from toolscout.training.loop import Schedule
from toolscout.training.tower import TowerOptions, TrainingRequests
from toolscout.training.tower_task import LearnedTower, Vectors, gold_mask, learn_frozen, learn_with_encoder, ndcg

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
D, TOOLS, SCENES = 16, 12, 6


def made_up() -> tuple[TrainingRequests, list[Any], Vectors]:
    """Scenes of two tools; their requests lie around a point of their own, far from the tools' documents."""
    random = np.random.default_rng(0)
    points = random.normal(size=(SCENES, D))
    golds = [np.sort(random.choice(TOOLS - 2, 2, replace=False)) for _ in range(SCENES)]  # nobody needs the last two
    numbers = {"train": np.arange(48) % SCENES, "dev": np.arange(18) % SCENES}
    rows = {
        split: unit((points[of] + 0.5 * random.normal(size=(len(of), D))).astype(np.float32))
        for split, of in numbers.items()
    }
    tools, prompts = (unit(random.normal(size=(count, D)).astype(np.float32)) for count in (TOOLS, 30))
    known = TrainingRequests([golds[i] for i in numbers["train"]], numbers["train"], TOOLS)
    return known, [golds[i] for i in numbers["dev"]], Vectors(rows["train"], tools, prompts, rows["dev"])


def options(**changed: Any) -> TowerOptions:
    chosen = {"epochs": 4, "batch": 8, "rate": 2e-3, "neighbours": 6, "hidden": 8, "patience": 0, "device": "cpu"}
    found = MasstoolOptions(**{**chosen, **changed})
    return TowerOptions(found, found, found)


def frozen(folder: Path, identity: str = "", **changed: Any) -> LearnedTower:
    known, dev, vectors = made_up()
    return learn_frozen(known, dev, vectors, options(**changed), folder, identity)


def same(one: LearnedTower, other: LearnedTower) -> bool:
    numbers, others = one.tower.numbers, other.tower.numbers
    assert numbers.keys() == others.keys()
    return all(np.array_equal(value, others[name]) for name, value in numbers.items())


def scores(learned: LearnedTower) -> list[float]:
    return [one["ndcg@5"] for one in learned.trained.history]


def test_it_learns_and_the_best_epoch_counts(tmp_path: Path) -> None:
    learned = frozen(tmp_path, epochs=8)
    assert learned.trained.best["ndcg@5"] == pytest.approx(max(scores(learned)), abs=1e-4)
    assert max(scores(learned)) > 0.9
    _, dev, vectors = made_up()
    plain = torch.from_numpy(vectors.dev @ vectors.tools.T)
    assert ndcg(plain, gold_mask(dev, TOOLS, torch.device("cpu"))) < 0.6
    assert learned.trained.history[-1]["loss"] < learned.trained.history[0]["loss"]
    assert learned.parameters == sum(value.size for value in learned.tower.numbers.values())


def test_ndcg_is_that_of_the_measures() -> None:
    random = np.random.default_rng(1)
    scores = torch.from_numpy(random.random((20, 9)).astype(np.float32))
    golds = [np.sort(random.choice(9, random.integers(1, 8), replace=False)) for _ in range(20)]
    rankings = [list(map(str, row)) for row in scores.argsort(1, descending=True)[:, :5].tolist()]
    expected = metrics.evaluate(rankings, [list(map(str, gold)) for gold in golds], ["ndcg@5"])["ndcg@5"]
    assert ndcg(scores, gold_mask(golds, 9, torch.device("cpu"))) == pytest.approx(expected, abs=1e-6)


def test_a_seed_gives_one_result(tmp_path: Path) -> None:
    first, again, other = (frozen(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert same(first, again)
    assert not same(first, other)


@pytest.mark.parametrize("transfer", ["attention", "concatenation", "addition", "cross_attention", "residual", "none"])
def test_every_way_of_listening_learns(tmp_path: Path, transfer: str) -> None:
    learned = frozen(tmp_path, transfer=transfer, epochs=6)
    assert learned.tower.transfer == transfer
    assert learned.trained.best["ndcg@5"] > 0.8


@pytest.mark.parametrize(
    "changed",
    [
        {"layers": 0},
        {"layers": 3, "edges": 0.5},
        {"neighbours": 0},
        {"neighbours": 1000, "epsilon": 1.0},
        {"contrastive": 0.0, "detection": 0.0, "absent": 0.0, "edge_dropout": 0.0},
        {"loss": "sigmoid", "unused": True},
        {"batch": 1000},
        {"candidates": 5},
    ],
    ids=str,
)
def test_parts_can_be_left_out(tmp_path: Path, changed: dict[str, Any]) -> None:
    learned = frozen(tmp_path, **{"epochs": 2, **changed})
    assert all(np.isfinite(value).all() for value in learned.tower.numbers.values())
    assert 0 < learned.trained.best["ndcg@5"] <= 1


def test_without_dev_it_is_trained_to_the_end(tmp_path: Path) -> None:
    known, _, vectors = made_up()
    none = Vectors(vectors.requests, vectors.tools, vectors.prompts[:0], vectors.dev[:0])
    learned = learn_frozen(known, [], none, options(epochs=2), tmp_path, "")
    assert (learned.trained.best, len(learned.trained.history)) == ({}, 2)


def killed_at(number: int, monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> None:
    """Stop like a killed process before a step; checkpoints come every second step."""
    calls, real = 0, loop._step

    def step(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_step", step)
        with pytest.raises(KeyboardInterrupt):
            run()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tower_task, "Schedule", partial(Schedule, save_every=2))
    monkeypatch.setattr(tower_task, "_MINED_FROM", 4)


@pytest.mark.parametrize("place", [1, 4, 7, 10, 18])
def test_a_killed_training_goes_on_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: None, place: int
) -> None:
    """Six steps an epoch: killed before the first, in the middle of an epoch, at its end, and in the last one."""
    changed = {"epochs": 3, "candidates": 7}
    straight = frozen(tmp_path / "straight", **changed)
    killed_at(place, monkeypatch, lambda: frozen(tmp_path / "killed", **changed))
    again = frozen(tmp_path / "killed", **changed)
    assert same(again, straight)
    assert scores(again) == scores(straight)
    assert same(frozen(tmp_path / "killed", **changed), straight)  # complete: nothing is trained again


def test_another_training_is_not_gone_on_with(tmp_path: Path) -> None:
    frozen(tmp_path, "one")
    with pytest.raises(BadModel, match="other data or with other options"):
        frozen(tmp_path, "another")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_source(tmp_path_factory.mktemp("tiny") / "source", dropout=0.1)


def through(folder: Path, source: Path, data: Dataset | None = None, **changed: Any) -> LearnedTower:
    data = data or learnable(train=24)
    row_of = {tool.id: row for row, tool in enumerate(data.tools)}
    gold = [np.array(sorted(row_of[i] for i in few)) for few in data.split("train").gold]
    numbers: dict[tuple[int, ...], int] = {}
    scenes = [numbers.setdefault(tuple(few.tolist()), len(numbers)) for few in gold]
    known = TrainingRequests(gold, np.array(scenes), len(data.tools))
    prompts = [f"w{n} w{n + 1} w50" for n in range(10)]
    chosen = options(**{"train_encoder": True, "epochs": 3, "rate": 3e-3, "pace": 2.0, **changed})
    return learn_with_encoder(data, ("train", "dev"), known, prompts, source, chosen, folder, "")


def test_an_encoder_is_trained_along(tmp_path: Path) -> None:
    calm = tiny_source(tmp_path / "calm")
    learned = through(tmp_path, calm, learnable(train=120), epochs=4, batch=16, mix=0.0)
    assert max(scores(learned)) > scores(learned)[0] + 0.1
    assert "request_map" not in learned.tower.numbers
    assert learned.average in (1.0, 0.75, 0.5)
    assert (tmp_path / "weights" / "model.safetensors").read_bytes() != (calm / "model.safetensors").read_bytes()


def test_a_killed_training_through_the_encoder_goes_on_to_the_same_end(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, often: None
) -> None:
    """Three steps an epoch, killed in the second; with dropout, requests joined, documents mined, texts in chunks."""
    monkeypatch.setattr("toolscout.training.bi_encoder._MINED_FROM", 4)
    changed = {"epochs": 2, "mix": 0.4, "candidates": 12, "chunk": 15}
    straight = through(tmp_path / "straight", source, **changed)
    killed_at(6, monkeypatch, lambda: through(tmp_path / "killed", source, **changed))
    again = through(tmp_path / "killed", source, **changed)
    assert same(again, straight)
    assert scores(again) == scores(straight)
    file = "weights/model.safetensors"
    assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "straight" / file).read_bytes()
