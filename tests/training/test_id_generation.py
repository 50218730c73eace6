"""Lessons: the loss against one by hand, that they are learned, that a killed stage goes on, that language is kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.tiny_llama import tiny_llama
from toolscout.errors import BadModel
from toolscout.models.language.base import Base, open_base
from toolscout.models.language.torch_network import TransformerNetwork
from toolscout.training import id_generation, loop
from toolscout.training.id_generation import (
    AddedRows,
    IdExample,
    IdGenerationTask,
    IdTrainingSettings,
    Stage,
    TrainableRows,
    TrainedIdWriter,
    learn,
)

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
FIRST = 340  # the first added token


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama(folder)
    return open_base(str(folder))


def network(base: Base, rank: int = 4) -> TransformerNetwork:
    return TransformerNetwork(base.architecture, base.weights(), rank, CPU)


def added(count: int = 6, absent: float = 0.3) -> AddedRows:
    drawn = np.random.default_rng(0)
    start, vectors = drawn.normal(size=(count, 32)) * 0.1, drawn.normal(size=(count, 8))
    vectors[:2] = 0
    return AddedRows(start.astype(np.float32), vectors.astype(np.float32), absent)


def settings(**changed: Any) -> IdTrainingSettings:
    return IdTrainingSettings(**{"batch": 4, "pace": 3.0, "patience": 0, "seed": 0, **changed})


def documents(epoch: int = 0) -> list[IdExample]:
    """Eight texts, each with the id of one of four tools, of two tokens."""
    found = []
    for number in range(8):
        text = [5 + number, 60, 61, 90 + number % 4][: 3 + number % 2] if number % 2 else [5 + number, 60]
        path = (FIRST + 2 + number % 2, FIRST + 4 + number // 2 % 2)
        found.append(IdExample([*text, path[0]], [(len(text) - 1, (path[0],)), (len(text), (path[1],))]))
    return found


def stage(epochs: int, name: str = "memorise", lessons: Any = documents, rate: float = 2e-2) -> Stage:
    return Stage(name, lessons, epochs, rate)


def by_hand(
    task: IdGenerationTask, made: TransformerNetwork, rows: TrainableRows, lessons: Sequence[IdExample]
) -> float:
    """For each right token, minus the log of its chance among itself and all wrong ones; means of means."""
    table = rows().detach()
    every = torch.cat([made.head, table]).numpy().astype(np.float64)
    total = 0.0
    for lesson in lessons:
        with torch.no_grad():
            states = made.states([lesson.tokens], table, made.merged())[0].numpy()
        places = []
        for at, right in lesson.right:
            logits = every @ states[at]
            wrong = sum(np.exp(logit) for token, logit in enumerate(logits) if token not in right)
            places.append(np.mean([-np.log(np.exp(logits[one]) / (np.exp(logits[one]) + wrong)) for one in right]))
        total += float(np.mean(places))
    return total / len(lessons)


@pytest.mark.parametrize("chunk", [0, 7])
def test_the_loss_is_the_one_by_hand(base: Base, chunk: int) -> None:
    lessons = [
        IdExample([5, 9, 11], [(2, (FIRST, FIRST + 2, FIRST + 5))]),
        IdExample([5, FIRST + 3, 11, 12], [(0, (FIRST + 1,)), (1, (FIRST + 4, 17)), (3, (2,))]),
        IdExample([7], [(0, (FIRST + 2, FIRST + 3))]),
        *documents()[:2],
    ]
    made, rows = network(base), TrainableRows(added(absent=0.0), CPU)
    with torch.no_grad():
        for parameter in [*made.parameters(), *rows.parameters()]:
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    task = IdGenerationTask(made, rows, stage(1, lessons=lambda epoch: lessons), settings(batch=5, chunk=chunk), None)
    task.begin(0)
    assert float(task.step(0, 0)) == pytest.approx(by_hand(task, made, rows, lessons), rel=1e-4)
    single = [lesson for lesson in lessons if all(len(right) == 1 for _, right in lesson.right)]
    assert float(task._loss(single).detach()) == pytest.approx(by_hand(task, made, rows, single), rel=1e-4)


def test_branches_do_not_see_each_other(base: Base) -> None:
    made, rows = network(base), TrainableRows(added(absent=0.0), CPU)
    prompt, paths = [5, 9, 11], [(340, 341, 342), (343, 344), (340, 345)]
    forked = IdExample(
        [*prompt, 340, 341, 343, 340],
        [(2, (340, 343)), (3, (341, 345)), (4, (342,)), (5, (344,)), (6, (7,))],
        branches=[2, 1, 1],
        weights=[0.3, 0.2, 0.1, 0.15, 0.25],
    )
    apart = [
        (
            0.6,
            IdExample(
                [*prompt, *paths[0][:2]], [(2, (340, 343)), (3, (341, 345)), (4, (342,))], (), [0.5, 1 / 3, 1 / 6]
            ),
        ),
        (0.15, IdExample([*prompt, 343], [(3, (344,))])),
        (0.25, IdExample([*prompt, 340], [(3, (7,))])),
    ]
    other = IdExample([7, 8], [(1, (342,))])
    task = IdGenerationTask(made, rows, stage(1, lessons=lambda epoch: [other]), settings(), None)
    with torch.no_grad():
        wanted = sum(weight * float(task._loss([lesson])) for weight, lesson in apart)
        assert float(task._loss([forked])) == pytest.approx(wanted, rel=1e-4)
        both = (wanted + float(task._loss([other]))) / 2
        assert float(task._loss([other, forked])) == pytest.approx(both, rel=1e-4)


def test_lessons_with_branches_do_not_go_with_long_ones(base: Base) -> None:
    made = network(base)
    lessons = [
        IdExample([5] * 90, [(89, (6,))]),
        IdExample([5, 6, 7], [(0, (6,))], [1, 1]),
        IdExample([5, 6], [(0, (6,))], [1]),
    ]
    task = IdGenerationTask(
        made, TrainableRows(added(), made.device), stage(1, lessons=lambda epoch: lessons), settings(), None
    )
    assert task._parts(lessons) == [[lessons[1]], [lessons[2], lessons[0]]]
    assert task._parts(lessons[:1]) == [lessons[:1]]


def test_rows_are_their_beginning_a_map_of_documents_and_a_part_of_their_own() -> None:
    rows, start = TrainableRows(added(absent=0.5), CPU), added()
    with torch.no_grad():
        for parameter in rows.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    free, mapped, bias = (one.detach().numpy() for one in (rows.free, rows.map, rows.bias))
    documents = start.start + start.vectors @ mapped + bias
    documents[:2] = start.start[:2]
    np.testing.assert_allclose(rows.eval()().detach().numpy(), documents + free, atol=1e-4)
    rows.train()
    torch.manual_seed(0)
    seen = np.stack([rows().detach().numpy() for _ in range(20)])
    without = np.isclose(seen, documents, atol=1e-4).all(2)
    assert np.isclose(seen, documents + free, atol=1e-4).all(2)[~without].all()
    assert not without[:, :2].any()
    assert 0.3 < without[:, 2:].mean() < 0.7


def taught(base: Base, folder: Path, stages: Sequence[Stage], rank: int = 4, judge: Any = None, **changed: Any) -> Any:
    made = network(base, rank)
    return made, learn(made, added(), stages, settings(**changed), judge, folder, "identity")


@pytest.mark.parametrize("rank", [0, 4])
def test_lessons_are_learned(base: Base, tmp_path: Path, rank: int) -> None:
    made, learned = taught(base, tmp_path, [stage(20)], rank, batch=8)
    losses = [record["loss"] for record in learned.stages["memorise"].history]
    assert losses[-1] < 0.3 * losses[0]
    rows = TrainableRows(added(), CPU).eval()
    with torch.no_grad():
        for name in ("free", "map", "bias"):
            getattr(rows, name).copy_(torch.tensor(getattr(learned.state, name)))
    every = torch.cat([made.head, rows().detach()])
    for lesson in documents():
        with torch.no_grad():
            states = made.states([lesson.tokens], rows(), made.merged())[0]
        assert [(at, (int((every @ states[at]).argmax()),)) for at, _ in lesson.right] == list(lesson.right)
    assert learned.state.adapter.keys() == made.trained_arrays().keys()
    assert learned.parameters == sum(one.numel() for one in [*made.parameters(), *rows.parameters()])


def judged(made: TransformerNetwork, state: Any) -> dict[str, float]:
    """A dev score that rises and falls."""
    return {"recall@5": float(np.abs(state.free).sum()) % 1.0}


def test_a_stage_that_was_killed_goes_on_to_the_same_result(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_generation, "Schedule", partial(loop.Schedule, save_every=3))

    def requests(epoch: int) -> list[IdExample]:
        return documents()[epoch % 2 :]

    stages = [stage(2), stage(3, "retrieve", requests)]
    general = [[5, 9, 11, 30], [31, 32]]
    more: dict[str, Any] = {"batch": 2, "general": general, "mix": 0.5, "judge": judged}
    _, wanted = taught(base, tmp_path / "whole", stages, **more)
    real = loop._step
    for name, left in (("first", 6), ("second", 14), ("between", 8)):
        calls = iter(range(left))

        def dying(*args: Any, calls: Any = calls) -> Any:
            if next(calls, None) is None:
                raise KeyboardInterrupt
            return real(*args)

        monkeypatch.setattr(loop, "_step", dying)
        with pytest.raises(KeyboardInterrupt):
            taught(base, tmp_path / name, stages, **more)
        monkeypatch.setattr(loop, "_step", real)
        _, found = taught(base, tmp_path / name, stages, **more)
        assert_same(found, wanted)
    with pytest.raises(BadModel, match="other data or with other options"):
        learn(network(base), added(), stages, settings(), None, tmp_path / "first", "another")


def assert_same(found: TrainedIdWriter, wanted: TrainedIdWriter) -> None:
    for name in ("free", "map", "bias"):
        np.testing.assert_array_equal(getattr(found.state, name), getattr(wanted.state, name))
    for name, array in wanted.state.adapter.items():
        np.testing.assert_array_equal(found.state.adapter[name], array)
    # The loss that is told of an epoch is that since it was taken up again.
    assert scores(found) == scores(wanted)


def scores(learned: TrainedIdWriter) -> dict[str, list[float]]:
    return {name: [record["recall@5"] for record in one.history] for name, one in learned.stages.items()}


def test_general_texts_keep_the_language_of_the_base(base: Base, tmp_path: Path) -> None:
    drawn = np.random.default_rng(2)
    texts = [drawn.integers(3, 300, size=10).tolist() for _ in range(12)]
    moved = {}
    for mix in (0.0, 1.0):
        made, learned = taught(base, tmp_path / str(mix), [stage(15)], batch=8, general=texts[:8], mix=mix)
        with torch.no_grad():
            now, then = (
                torch.log_softmax(made.states(texts, torch.zeros(0, 32), merged()) @ made.head.T, -1)
                for merged in (made.merged, made.base_matrices)
            )
        moved[mix] = float((then.exp() * (then - now)).sum(-1).mean())
    assert moved[1.0] < 0.6 * moved[0.0]
    losses = [record["loss"] for record in learned.stages["memorise"].history]
    assert losses[-1] < 0.8 * losses[0]
