"""The published MassTool: its parts against plain numpy, and a small problem that it learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from toolscout.papers.masstool import published_training
from toolscout.papers.masstool.published_training import PublishedEdges, PublishedTask, PublishedTrainingData
from toolscout.training.checkpoint import Checkpoints
from toolscout.training.encoder_options import PublishedOptions
from toolscout.training.loop import Schedule, run
from toolscout.training.tower import nearest

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
WIDTH = 24
CPU = torch.device("cpu")


def unit(rows: NDArray[Any]) -> NDArray[np.float32]:
    units: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)
    return units


def material(negatives: int = 12) -> PublishedTrainingData:
    """Six scenes of two of twelve tools; requests lie near a point of their scene, which says nothing of its tools."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((6, WIDTH))
    tools = unit(random.standard_normal((13, WIDTH)))  # the last has no edge
    pairs = random.permutation(12).reshape(6, 2)

    def near(each: int) -> tuple[NDArray[np.float32], list[NDArray[np.int64]], NDArray[np.int64]]:
        scenes = np.repeat(np.arange(6), each)
        vectors = unit(centres[scenes] + 0.4 * random.standard_normal((len(scenes), WIDTH)))
        return vectors, [np.sort(pairs[scene]) for scene in scenes], scenes

    requests, gold, scenes = near(8)
    dev, dev_gold, _ = near(4)
    prompts = unit(random.standard_normal((negatives, WIDTH)) + 3 * np.eye(WIDTH)[0])
    return PublishedTrainingData(requests, gold, scenes, tools, prompts.reshape(negatives, WIDTH), dev, dev_gold)


def options(**changed: Any) -> PublishedOptions:
    chosen = {"epochs": 12, "rate": 0.01, "batch": 16, "epsilon": 0.5, "neighbours": 5, "patience": 0, "device": "cpu"}
    return PublishedOptions(**{**chosen, **changed})


def adjacency(pairs: NDArray[np.int64], first: int, second: int) -> NDArray[np.float64]:
    """The block matrix, normalised, without any trick."""
    links = np.zeros((first + second, first + second))
    for a, b in pairs:
        links[a, first + b] = links[first + b, a] = 1
    roots = np.sqrt(links.sum(1)) + 1e-8
    normalised: NDArray[np.float64] = links / roots[:, None] / roots[None]
    return normalised


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_propagation_is_what_dense_matrices_give(layers: int) -> None:
    random = np.random.default_rng(layers)
    pairs = np.unique(random.integers(0, [7, 5], (14, 2)), axis=0)
    pairs = pairs[(pairs[:, 0] != 3) & (pairs[:, 1] != 4)]  # nodes without edges
    start = random.standard_normal((12, WIDTH))
    wanted, layer = start.copy(), start
    for number in range(layers):
        layer = adjacency(pairs, 7, 5) @ layer / (number + 2)  # the published divisor, which lengths of one undo
        wanted += layer / np.maximum(np.linalg.norm(layer, axis=1, keepdims=True), 1e-12)
    graph = PublishedEdges(pairs, 7, 5, CPU).normalised()
    found = published_training.propagate(graph, torch.from_numpy(start.astype(np.float32)), layers).numpy()
    assert np.allclose(graph.to_dense().numpy(), adjacency(pairs, 7, 5), atol=1e-6)
    assert np.allclose(found, wanted, atol=1e-5)
    assert np.allclose(found[[3, 11]], start[[3, 11]], atol=1e-6)


def test_dropped_edges_leave_a_normalised_graph_whose_two_ways_differ() -> None:
    torch.manual_seed(0)
    pairs = np.stack(np.meshgrid(np.arange(30), np.arange(20)), -1).reshape(-1, 2)
    dense = PublishedEdges(pairs, 30, 20, CPU).normalised(0.2).to_dense().numpy()
    links = dense > 0
    assert 0.75 < links.sum() / (2 * len(pairs)) < 0.85
    assert (links != links.T).any()
    wanted = links / np.sqrt(links.sum(1))[:, None] / np.sqrt(links.sum(0))[None]
    assert np.allclose(dense, wanted, atol=1e-6)


def test_neighbours_are_the_nearest_and_never_the_request_itself() -> None:
    pool = unit(np.random.default_rng(1).standard_normal((40, WIDTH)))
    cosines, vectors = pool @ pool.T, torch.from_numpy(pool)
    rows, found = nearest(vectors, vectors, 6, itself=False)
    np.fill_diagonal(cosines, -2)
    assert np.array_equal(rows, np.argsort(-cosines, axis=1)[:, :6])
    assert np.allclose(found, -np.sort(-cosines, axis=1)[:, :6], atol=1e-6)
    assert nearest(vectors[:3], vectors, 1)[0].ravel().tolist() == [0, 1, 2]
    assert nearest(vectors[:3], vectors[:3], 10, itself=False)[0].shape == (3, 2)


def test_filtered_neighbours_weigh_nothing() -> None:
    random = np.random.default_rng(2)
    query, near = random.standard_normal((3, WIDTH)), random.standard_normal((3, 5, WIDTH))
    weight = random.standard_normal((WIDTH, WIDTH)) / 5
    kept = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 0, 0]], dtype=bool)
    given = [torch.from_numpy(x) for x in (query, near, kept, weight)]
    given[1].requires_grad_()
    found = published_training.attend(*given)
    for place in range(2):
        few = near[place][kept[place]]
        shares = np.exp(few @ (query[place] @ weight))
        assert np.allclose(found[place].detach(), shares / shares.sum() @ few)
    assert not found[2].any()
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert given[1].grad is not None
    assert bool(torch.isfinite(given[1].grad).all())


def test_the_joint_vector_gives_the_sum_of_six_cosines() -> None:
    task = PublishedTask(material(), options(), CPU)
    task.network.eval()
    random = np.random.default_rng(3)
    tool = random.standard_normal(WIDTH)
    own = [torch.from_numpy(random.standard_normal((1, WIDTH)).astype(np.float32)) for _ in range(2)]
    near = [torch.from_numpy(random.standard_normal((1, 4, WIDTH)).astype(np.float32)) for _ in range(2)]
    state = torch.rand(1, WIDTH)
    kept = torch.tensor([[True, True, False, True]])
    with torch.no_grad():
        joint = task.network.joint(own, near, kept, state)[0].numpy()
        info = task.network.info(state).relu()
        total = 0.0
        for view in range(2):
            found = published_training.attend(own[view], near[view], kept, task.network.attention[view])
            for vector in (own[view], found, task.network.gates[view](info).sigmoid() * found):
                one = vector[0].numpy()
                total += float(one @ tool / np.linalg.norm(one) / np.linalg.norm(tool))
    assert float(joint @ unit(tool)) == pytest.approx(total, abs=1e-5)


def test_the_list_wise_loss_by_hand() -> None:
    scores, gold = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.5, 3.0]]), torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    total = 0.0
    for row, right in zip(scores.numpy(), gold.numpy(), strict=True):
        share, wanted = np.exp(row) / np.exp(row).sum(), right / right.sum()
        total -= float((wanted * np.log(share) + (1 - wanted) * np.log(1 - share)).sum())
    assert float(published_training.list_wise(scores, gold)) == pytest.approx(total / 6, abs=1e-6)


def test_the_pairwise_loss_by_hand() -> None:
    scores = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.5, 3.0], [1.0, 2.0, 3.0]], dtype=torch.float64, requires_grad=True)
    gold = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    differences = np.array([2.0, 1.0, 0.0, -2.5])  # two pairs in each list; the third has none
    loss = published_training.pairwise(scores, gold)
    assert loss.item() == pytest.approx(float(np.log1p(np.exp(-differences)).mean()))
    loss.backward()  # type: ignore[no-untyped-call]
    slopes = -1 / (1 + np.exp(differences)) / 4
    by_hand = [[slopes[0], slopes[1], -slopes[:2].sum()], [-slopes[2], slopes[2:].sum(), -slopes[3]], [0, 0, 0]]
    assert scores.grad is not None
    assert np.allclose(scores.grad.numpy(), by_hand)
    assert published_training.pairwise(scores[2:], gold[2:]).item() == 0.0


def test_counted_rows_contrast_as_if_each_stood_there() -> None:
    random = np.random.default_rng(4)
    one, other = (torch.from_numpy(random.standard_normal((4, WIDTH))) for _ in range(2))
    repeated = torch.tensor([0, 1, 1, 2, 2, 2, 3])
    logits = torch.nn.functional.cosine_similarity(one[repeated][:, None], other[repeated][None], dim=2) / 0.1
    wanted = float(torch.nn.functional.cross_entropy(logits, torch.arange(7)))
    counts = torch.tensor([1.0, 2.0, 3.0, 1.0], dtype=torch.float64)
    assert float(published_training.contrast(one, other, 0.1, counts)) == pytest.approx(wanted)
    assert float(published_training.contrast(one[repeated], other[repeated], 0.1)) == pytest.approx(wanted)


def test_lists_hold_all_gold_and_no_tool_twice() -> None:
    given = material()
    task = PublishedTask(given, options(candidates=6), CPU)
    lists, gold = task._candidates(np.arange(48), np.random.default_rng(0))
    assert lists.shape == (48, 6)
    for row, right, wanted in zip(lists.tolist(), gold.tolist(), given.gold, strict=True):
        assert len(set(row)) == 6
        assert {tool for tool, is_gold in zip(row, right, strict=True) if is_gold} == set(wanted.tolist())


def test_scenes_stay_where_they_began_yet_teach_their_tools() -> None:
    given = material()
    task = PublishedTask(given, options(), CPU)
    begun = task.network.views(task._clean, 1).scenes[1].detach()
    with torch.no_grad():
        task.network.tools.mul_(2.0)
    views = task.network.views(task._clean, 1)
    assert torch.allclose(views.scenes[1].detach(), begun, atol=1e-6)
    views.scenes[1].sum().backward()  # type: ignore[no-untyped-call]
    grad = task.network.tools.grad
    assert grad is not None
    assert bool(grad[:12].any())
    assert not grad[12].any()


@pytest.mark.parametrize(("negatives", "loss"), [(0, "listwise"), (12, "listwise"), (12, "pairwise")])
def test_it_learns_what_vectors_do_not_say(tmp_path: Path, negatives: int, loss: str) -> None:
    given = material(negatives)
    learned = published_training.learn(given, options(loss=loss), tmp_path, "toy")
    first = np.argsort(-given.dev @ given.tools.T, axis=1)[:, :3]
    encoder_alone = np.mean([len(np.intersect1d(*pair)) / 2 for pair in zip(first, given.dev_gold, strict=True)])
    assert encoder_alone < 0.5 < 0.95 < learned.trained.best["recall@3"]
    losses = [record["loss"] for record in learned.trained.history]
    assert losses[-1] < 0.9 * losses[0]
    classes = {"classes.weight", "classes.bias"} if negatives else set()
    assert set(learned.weights) == {
        "pool.0", "pool.1", "tools", "attention.0", "attention.1", "hidden.weight", "hidden.bias",
        "info.weight", "info.bias", "gates.0.weight", "gates.0.bias", "gates.1.weight", "gates.1.bias",
    } | classes  # fmt: skip
    free = (2 * 48 + 13 + negatives) * WIDTH + len(classes) * (WIDTH + 1)
    assert learned.parameters == free + 2 * WIDTH**2 + 4 * WIDTH * (WIDTH + 1)
    assert np.allclose(np.linalg.norm(learned.weights["tools"], axis=1), 1, atol=1e-5)


def test_without_dev_the_last_weights_count(tmp_path: Path) -> None:
    given = replace(material(), dev=np.zeros((0, WIDTH), dtype=np.float32), dev_gold=[])
    assert published_training.learn(given, options(epochs=2), tmp_path, "toy").trained.best == {}


def test_an_interrupted_training_ends_as_one_that_was_not(tmp_path: Path) -> None:
    given, plan = material(), Schedule(6, 0.01, decay=0.0, warmup=0.0, patience=0, save_every=2)

    class Interrupted(PublishedTask):
        def step(self, epoch: int, step: int) -> torch.Tensor:
            if (epoch, step) == (3, 2):
                raise KeyboardInterrupt
            return super().step(epoch, step)

    def trained(kind: type[PublishedTask], folder: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        checkpoints = Checkpoints(tmp_path / folder, "toy")
        run(kind(given, options(), CPU), plan, checkpoints)
        return checkpoints.read_best()

    straight = trained(PublishedTask, "straight")
    with pytest.raises(KeyboardInterrupt):
        trained(Interrupted, "killed")
    resumed = trained(PublishedTask, "killed")
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)
