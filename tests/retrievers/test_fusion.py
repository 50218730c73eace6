"""hybrid learns on dev what each of its parts counts, and what tools that are new to them are due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Tool
from toolscout.data import metrics
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset
from toolscout.retrievers.base import Ranking, Retriever
from toolscout.retrievers.hybrid import fusion
from toolscout.retrievers.hybrid.retriever import Hybrid, HybridOptions
from toolscout.retrievers.model_folder import read_model, write_model
from toolscout.retrievers.provenance import TrainingSet

pytestmark = pytest.mark.slow

TOOLS = [Tool("n", f"tool{number}", f"what number {number} does") for number in range(30)]
Table = dict[str, NDArray[np.float64]]


class Scripted(Retriever):
    """A part whose scores are given: for each request one for every tool."""

    name: ClassVar[str] = "scripted"

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table

    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        found = []
        for request in requests:
            scores = dict(zip((tool.id for tool in TOOLS), self.table[request].tolist(), strict=True))
            pairs = [(tool_id, scores[tool_id]) for tool_id in self.ids() if scope.permits(tool_id)]
            found.append(Ranking(request, scope, sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:k]))
        return found

    def save(self, folder: Path) -> None:
        write_model(folder, self)

    @classmethod
    def load(cls, folder: Path) -> Self:
        raise NotImplementedError


def dataset(known: int = 30, requests: int = 60) -> Dataset:
    """Requests for two tools each; those to train on need the first `known` only."""
    random = np.random.default_rng(1)
    qrels: dict[str, dict[str, tuple[str, ...]]] = {"train": {}, "dev": {}}
    for number in range(2 * requests):
        split = "train" if number < requests else "dev"
        chosen = random.choice(known if split == "train" else 30, 2, replace=False)
        if split == "train" and number < known:
            chosen[0] = number  # each of them is known
        qrels[split][f"{split} {number}"] = tuple({TOOLS[n].id: None for n in chosen})
    texts = {key: f"request {key}" for split in qrels.values() for key in split}
    return Dataset("scripted", TOOLS, texts, qrels)


def scores(data: Dataset, signal: float, seed: int, unseen: float = 0.0) -> Table:
    """Noise, with a signal at gold tools; `unseen` is what tools beyond the first 20 are given besides."""
    random = np.random.default_rng(seed)
    table: Table = {}
    for split in data.splits:
        asked = data.split(split)
        for (_, text), gold in zip(asked.requests, asked.gold, strict=True):
            is_gold = np.array([tool.id in gold for tool in TOOLS])
            is_new = np.arange(30) >= 20
            table[text] = 1 + random.uniform(0, 1, 30) + signal * is_gold + unseen * is_new
    return table


def recalls(made: Hybrid, data: Dataset, new: frozenset[str] = frozenset()) -> dict[str, float]:
    asked = data.split("dev")
    found = made.search([text for _, text in asked.requests], 5)
    rankings = [[hit.tool_id for hit in hits] for hits in found]
    return metrics.evaluate(rankings, asked.gold, ["recall@5", "known_recall@5", "new_recall@5"], new)


def optimum(parts: Sequence[Scripted], data: Dataset, new: Callable[[str], bool] | None = None) -> NDArray[np.float64]:
    """The weights of least loss, found by another solver on another way to write it."""
    asked = data.split("dev")
    tables, golds = [], []
    for (_, text), gold in zip(asked.requests, asked.gold, strict=True):
        columns = np.stack([part.table[text] / part.table[text].max() for part in parts], axis=1)
        if new is not None:
            is_new = np.array([[new(tool.id)] for tool in TOOLS])
            columns = np.hstack([np.where(is_new, 0, columns), np.where(is_new, columns, 0), is_new])
        tables.append(columns)
        golds.append([tool.id in gold for tool in TOOLS])

    def loss(theta: NDArray[np.float64]) -> float:
        each = []
        for table, gold in zip(tables, golds, strict=True):
            logits = table @ theta
            wrong = np.exp(logits[~np.array(gold)]).sum()
            each.append(np.mean([np.log(wrong + np.exp(one)) - one for one in logits[gold]]))
        return float(np.mean(each) + fusion._RIDGE / 2 * theta @ theta)

    return np.asarray(minimize(loss, np.ones(tables[0].shape[1]), method="BFGS", options={"gtol": 1e-7}).x)


def fitted(parts: Sequence[Any], data: Dataset, folder: Path, **options: Any) -> Hybrid:
    made = Hybrid(HybridOptions(**options), parts)
    made.fit([TrainingSet(data)], folder)
    made.add(TOOLS)
    return made


def test_a_good_part_counts_and_noise_does_not(tmp_path: Path) -> None:
    data = dataset()
    good, noise = Scripted(scores(data, 0.5, 0)), Scripted(scores(data, 0.0, 1))
    made = fitted([noise, good], data, tmp_path)
    weights = made.options.weights
    assert weights[1] > 5 * abs(weights[0])
    alike = Hybrid(parts=[noise, good])
    alike.add(TOOLS)
    assert recalls(made, data)["recall@5"] > recalls(alike, data)["recall@5"] + 0.1


def test_the_weights_are_those_of_least_loss(tmp_path: Path) -> None:
    data = dataset()
    parts = [Scripted(scores(data, signal, seed)) for seed, signal in enumerate((0.6, 0.2, 0.0))]
    made = fitted(parts, data, tmp_path)
    np.testing.assert_allclose(made.options.weights, optimum(parts, data), atol=2e-3)
    assert (made.options.new_weights, made.options.new_bonus) == ((), 0.0)


def test_new_tools_get_weights_of_their_own(tmp_path: Path) -> None:
    """Where one part knows nothing of new tools, it counts for the known ones only."""
    data = dataset(known=20)
    blind = scores(data, 0.7, 0)
    for text, row in scores(data, 0.0, 5).items():
        blind[text][20:] = row[20:]
    parts = [Scripted(blind), Scripted(scores(data, 0.4, 1))]
    made = fitted(parts, data, tmp_path)
    best = optimum(parts, data, lambda tool_id: int(tool_id.removeprefix("n/tool")) >= 20)
    np.testing.assert_allclose(made.options.weights, best[:2], atol=2e-3)
    np.testing.assert_allclose(made.options.new_weights, best[2:4], atol=2e-3)
    assert made.options.weights[0] > 2 * made.options.new_weights[0]


def test_a_part_that_tells_gold_tools_apart_is_not_held_back_for_it(tmp_path: Path) -> None:
    """It finds all gold tools, some with far lower scores than others; the other part is often wrong."""
    data = dataset()
    sure, unsure = scores(data, 9.0, 0), scores(data, 0.3, 1)
    for row in sure.values():
        row[row > 9] = np.linspace(10, 20, (row > 9).sum())
    made = fitted([Scripted(unsure), Scripted(sure)], data, tmp_path)
    assert recalls(made, data)["recall@5"] == 1
    assert made.options.weights[1] > made.options.weights[0]


@pytest.mark.parametrize("unseen", [-0.5, 0.0, 0.5])
def test_the_bonus_is_the_best_that_costs_known_tools_little(tmp_path: Path, unseen: float) -> None:
    data = dataset(known=20)
    new = frozenset(tool.id for tool in TOOLS[20:])
    made = fitted([Scripted(scores(data, 0.4, 0, unseen)), Scripted(scores(data, 0.2, 1))], data, tmp_path)
    learned = made.options

    def with_bonus(bonus: float) -> dict[str, float]:
        made.options = replace(learned, new_bonus=bonus)
        return recalls(made, data, new)

    least = with_bonus(-1e6)["known_recall@5"] - 0.03
    reached = with_bonus(learned.new_bonus)
    assert reached["known_recall@5"] >= least - 1e-9
    for bonus in np.arange(-6, 6.01, 0.25):
        tried = with_bonus(float(bonus))
        assert tried["known_recall@5"] < least or tried["recall@5"] <= reached["recall@5"] + 1e-9


def test_known_gold_that_no_part_finds_is_not_taken_for_new() -> None:
    data = dataset(known=20)
    made = Hybrid(HybridOptions(depth=3), [Scripted(scores(data, 0.3, 0))])
    known = frozenset(tool.digest() for tool in TOOLS[:20])
    asked = fusion._dev_requests(made.parts, made._full, TrainingSet(data), known, 3, {}, None)
    assert not all(set(request.gold) <= set(request.ids) for request in asked)
    assert [request.new_gold for request in asked] == [
        {tool.id for tool in TOOLS[20:]}.intersection(gold) for gold in data.split("dev").gold
    ]


def test_what_was_reached_on_dev_is_what_is_served(tmp_path: Path) -> None:
    data = dataset(known=20)
    made = Hybrid(parts=[Scripted(scores(data, 0.4, 0)), Scripted(scores(data, 0.2, 1))])
    said: list[tuple[str, int, int]] = []
    report = made.fit([TrainingSet(data)], tmp_path, lambda *now: said.append(now))
    made.add(TOOLS)
    assert report.dev["recall@5"] == pytest.approx(recalls(made, data)["recall@5"])
    assert said == [("weighing the parts", 60, 60)]
    assert report.parameters == 5
    record = read_model(tmp_path)
    assert record["options"]["weights"] == list(made.options.weights)
    assert record["fit"]["parameters"] == 5


def test_fusion_by_ranks_becomes_fusion_by_scores(tmp_path: Path) -> None:
    data = dataset()
    made = fitted([Scripted(scores(data, 0.5, 0)), Scripted(scores(data, 0.0, 1))], data, tmp_path, fusion="rrf")
    assert made.options.fusion == "scores"


def test_without_dev_nothing_is_begun(tmp_path: Path) -> None:
    data = dataset()
    with pytest.raises(BadDataset, match="name one: DATA:TRAIN:DEV"):
        Hybrid(parts=[Scripted(scores(data, 0.5, 0))]).fit([TrainingSet(data, dev="")], tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_parts_that_find_no_gold_cannot_be_weighed(tmp_path: Path) -> None:
    data = dataset()
    table = scores(data, -1.0, 0)  # gold comes last
    with pytest.raises(BadDataset, match="no part finds any gold tool"):
        fitted([Scripted(table)], data, tmp_path, depth=1)


def test_it_is_not_behind_its_best_part() -> None:
    """One part is right among the first five but seldom first, another is sometimes sure and mostly wrong."""
    random = np.random.default_rng(3)
    asked = []
    for _ in range(300):
        wide, sure = random.uniform(0, 0.2, 30), random.uniform(0, 0.2, 30)
        wide[:4] = 1 - random.uniform(0, 0.01, 4)  # the two gold ones, and two that are wrong
        if random.random() < 0.5:
            sure[0] = 1.0
        else:
            sure[random.integers(2, 30, 6)] = 1.0
        is_gold = np.arange(30) < 2
        ids = [tool.id for tool in TOOLS]
        no_tool = np.zeros(30, bool)
        asked.append(
            fusion._DevRequest(ids, np.stack([wide, sure], 1), (ids[0], ids[1]), frozenset(), is_gold, no_tool)
        )
    solved, alone = np.array([0.5, 4.0]), np.array([1.0, 0.0])
    refined = fusion._refined(asked, solved, 2)
    found = [
        metrics.evaluate(*fusion._ranked(asked, theta), ["recall@5"])["recall@5"] for theta in (solved, alone, refined)
    ]
    assert found[0] < found[1] <= found[2]
