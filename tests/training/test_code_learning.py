"""Learning of codes: what is served is what was learned, use together moves tools, hostile vectors do no harm."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel, TrainingStopped
from toolscout.models.tool_ids.code_tree import Health
from toolscout.models.tool_ids.quantizer import CodeOptions
from toolscout.training import code_learning
from toolscout.training.code_learning import LearnedCodes, UsagePairs, learn

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
D, KINDS, EACH = 12, 12, 8
FAST: dict[str, Any] = {
    "collaborative": 1.0,
    "codes": 16,
    "levels": 2,
    "latent": 8,
    "code_steps": 80,
    "code_rate": 4e-3,
}


def clusters(seed: int = 0) -> Floats:
    """Tools of several kinds: those of one kind mean alike."""
    draw = np.random.default_rng(seed)
    vectors = np.repeat(draw.normal(size=(KINDS, D)), EACH, axis=0) + 0.5 * draw.normal(size=(KINDS * EACH, D))
    found: Floats = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return found


# Tools of neighbouring kinds are used together, one by one: their meanings alone do not say so.
USES = [[kind * EACH + i, (kind + 1) * EACH + i] for kind in range(0, KINDS, 2) for i in range(EACH)]


def taught(uses: list[list[int]] = USES, **changed: Any) -> LearnedCodes:
    return learn(clusters(), uses, CodeOptions(**{**FAST, **changed}), "cpu")


@pytest.fixture(scope="module")
def learned() -> LearnedCodes:
    return taught()


@pytest.fixture(scope="module")
def alone() -> LearnedCodes:
    """As learned, but nothing draws together what is used together."""
    return taught(collaborative=0.0)


def test_tools_used_together_come_to_share_first_codes(learned: LearnedCodes, alone: LearnedCodes) -> None:
    assert learned.health.together > alone.health.together + 0.2
    assert learned.health.together > 3 * learned.health.random  # and not since all tools share one
    assert learned.health.pairs == len(USES)


def test_codes_are_used_evenly_and_say_what_tools_mean(alone: LearnedCodes) -> None:
    health = alone.health
    assert health.collisions == 0
    assert min(health.used) > 0.9
    assert min(health.perplexity) > 0.6 * 16
    assert health.lost < 0.4
    first = np.array([code[0] for code in alone.codes]).reshape(KINDS, EACH)
    same = np.mean([(kind[:, None] == kind).mean() for kind in first])
    assert same > 4 * health.random


def test_sinkhorn_evens_out_the_use_of_codes() -> None:
    draw = torch.Generator().manual_seed(0)
    apart = torch.rand(64, 8, generator=draw) + torch.arange(8) / 8  # the first codes are nearest to nearly all
    plain = torch.bincount(apart.argmin(1), minlength=8)
    even = torch.bincount(code_learning._sinkhorn(apart, 0.01), minlength=8)
    assert plain.max() > 20
    assert even.max() <= 12
    assert even.min() >= 5


def test_what_is_served_is_what_was_learned() -> None:
    """The frozen quantizer (numpy, scaling folded in) says what the learner (torch) says."""
    options = CodeOptions(**{**FAST, "code_steps": 20})
    learner = code_learning._Learner(clusters(), UsagePairs.of(USES), options, torch.device("cpu"))
    learner.run(None)
    quantizer, _ = learner.to_quantizer()
    latent = learner.all_latent()
    np.testing.assert_allclose(quantizer.encode(clusters()), latent, atol=1e-4)
    left = latent
    for level, book in enumerate(learner.net.books.detach()):
        codes = code_learning._nearest(left, book)
        assert quantizer.nearest(clusters())[:, level].tolist() == codes.tolist()
        left = left - book[codes]


def test_unused_codes_are_given_a_place() -> None:
    learner = code_learning._Learner(clusters(), UsagePairs.of([]), CodeOptions(**FAST), torch.device("cpu"))
    points = torch.randn(50, 8, generator=torch.Generator().manual_seed(1))
    book = torch.cat([points[:2], torch.full((14, 8), 99.0)])
    for _ in range(6):
        learner.revive(book, points, code_learning._nearest(points, book))
    assert len(set(code_learning._nearest(points, book).tolist())) == 16


def test_a_seed_gives_one_set_of_codes(learned: LearnedCodes) -> None:
    again = taught()
    assert again.codes == learned.codes
    np.testing.assert_array_equal(again.quantizer.codebooks, learned.quantizer.codebooks)
    assert taught(seed=1, code_steps=5).codes != taught(code_steps=5).codes


def test_a_seed_gives_one_set_of_codes_whatever_threads_do(request: pytest.FixtureRequest) -> None:
    # Indexing tools by pairs would let threads add up a tool's gradients in any order.
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(2)
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(300, 384)).astype(np.float32)
    uses = draw.integers(300, size=(600, 4)).tolist()
    options = CodeOptions(levels=2, codes=64, code_steps=60, collaborative=1.0)
    first = learn(vectors, uses, options)
    for _ in range(3):
        np.testing.assert_array_equal(learn(vectors, uses, options).quantizer.codebooks, first.quantizer.codebooks)


def test_batches_and_drawn_edges_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_learning, "_BATCH", 40)
    monkeypatch.setattr(code_learning, "_EDGES", 20)
    assert taught().health.together > 0.2


def test_the_published_loss_draws_code_vectors_together_and_reaches_nothing_else() -> None:
    options = CodeOptions(**{**FAST, "collaborative_on": "vectors"})
    learner = code_learning._Learner(clusters(), UsagePairs.of(USES), options, torch.device("cpu"))
    learner.begin_codes()
    latent = learner.net.latent(learner.vectors, len(learner.vectors))
    first, second, _ = learner.edges()
    loss = learner.vector_loss(latent, (first, second))
    summed = torch.zeros_like(latent)
    left = latent.detach()
    for book in learner.net.books.detach():  # the formula, tool by tool
        codes = [int(((row - book) ** 2).sum(1).argmin()) for row in left]
        summed, left = summed + book[codes], left - book[codes]
    wanted = [float(((summed[u] - summed[v]) ** 2).sum()) for u, v in zip(first, second, strict=True)]
    np.testing.assert_allclose(loss.detach(), wanted, rtol=1e-4, atol=1e-5)
    loss.sum().backward()
    assert learner.net.books.grad is not None
    assert learner.net.books.grad.abs().sum() > 0
    assert all(part.grad is None for layer in learner.net.encoder for part in layer)


def test_the_published_loss_moves_fewer_tools_than_the_one_on_assignments(learned: LearnedCodes) -> None:
    published = taught(collaborative_on="vectors")
    assert published.codes != taught(collaborative=0.0).codes
    assert published.health.together < learned.health.together


def test_random_codes_are_the_same_codes_and_mean_nothing(alone: LearnedCodes) -> None:
    drawn = taught(collaborative=0.0, code_source="random")
    assert sorted(drawn.codes) == sorted(alone.codes)
    first = np.array([code[0] for code in drawn.codes]).reshape(KINDS, EACH)
    same = np.mean([(kind[:, None] == kind)[~np.eye(EACH, dtype=bool)].mean() for kind in first])
    assert same < 2 * drawn.health.random


def test_the_published_pass_leaves_collisions_that_matching_does_not() -> None:
    draw = np.random.default_rng(0)
    vectors = np.repeat(draw.normal(size=(20, D)), 8, axis=0) + 0.01 * draw.normal(size=(160, D))
    found = learn(vectors.astype(np.float32), [], CodeOptions(**{**FAST, "code_steps": 20}), "cpu")
    nearest = found.quantizer.nearest(vectors.astype(np.float32))
    assert found.health.nearest_collisions == 160 - len(set(map(tuple, nearest.tolist())))
    assert found.health.nearest_collisions > found.health.published_collisions > 0
    assert found.health.collisions == 0


def test_weights_of_pairs_are_the_published_ones() -> None:
    found = UsagePairs.of([[0, 1], [1, 0, 1], [1, 2], [3]])
    assert list(zip(found.first.tolist(), found.second.tolist(), strict=True)) == [(0, 1), (1, 2)]
    np.testing.assert_allclose(found.weight, [2 / np.sqrt(2 * 3), 1 / np.sqrt(3 * 1)], rtol=1e-6)


@pytest.mark.parametrize(
    ("vectors", "shape"),
    [
        (np.zeros((9, 6)), (2, 8)),
        (np.ones((1, 6)), (0, 0)),
        (np.ones((16, 6)), (2, 4)),  # exactly as many as there are codes
        (np.eye(16), (2, 4)),
        (np.repeat(np.eye(4), 10, axis=0), (3, 4)),
        (np.eye(3), (1, 4)),
    ],
)
def test_hostile_vectors_get_different_codes(vectors: Floats, shape: tuple[int, int]) -> None:
    options = CodeOptions(levels=shape[0], codes=shape[1], latent=4, code_steps=15)
    uses = [[0, len(vectors) - 1]] if len(vectors) > 1 else []
    found = learn(vectors.astype(np.float32), uses, options, "cpu")
    assert len(set(found.codes)) == len(vectors)
    assert found.health.collisions == 0
    assert all(np.isfinite(value).all() for value in found.health.as_dict().values())
    assert np.isfinite(found.quantizer.codebooks).all()


def test_progress_and_health_are_told(learned: LearnedCodes) -> None:
    told: list[tuple[str, int, int]] = []
    learn(clusters(), [], CodeOptions(**{**FAST, "code_steps": 10}), "cpu", lambda *args: told.append(args))
    assert told[-1][1:] == (10, 10)
    assert told[-1][0].startswith("learning codes, loss ")
    assert isinstance(learned.health, Health)
    assert learned.health.error < 1 / D


def test_bad_input_is_refused() -> None:
    with pytest.raises(BadModel, match="embed the tools again"):
        learn(np.full((2, 3), np.nan, dtype=np.float32), [])
    with pytest.raises(BadModel, match="embed the tools again"):
        learn(np.empty((0, 3), dtype=np.float32), [])
    with pytest.raises(BadModel, match="rows from 0 to 1"):
        learn(np.eye(2, dtype=np.float32), [[0, 2]])
    with pytest.raises(BadModel, match="there are 5"):
        learn(np.eye(5, dtype=np.float32), [], CodeOptions(levels=2, codes=2))
    with pytest.raises(BadModel, match="collaborative_on must be assignments or vectors"):
        CodeOptions(collaborative_on="both")  # type: ignore[arg-type]
    with pytest.raises(BadModel, match="code_source must be documents or random"):
        CodeOptions(code_source="names")  # type: ignore[arg-type]
    with pytest.raises(TrainingStopped, match="code_rate"):
        taught(code_rate=1e30)
