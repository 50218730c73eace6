"""The training loop over a small made-up task: it learns, stops, goes on after a kill, and fails in plain words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from toolscout.errors import BadModel, OutOfMemory, TrainingStopped
from toolscout.training import loop
from toolscout.training.checkpoint import Checkpoints
from toolscout.training.loop import Schedule, TrainingRecord, pick_device, run

pytestmark = pytest.mark.slow

STEPS = 5


class Line:
    """Fits a line to noisy points. `scores`: what dev says, epoch by epoch, in place of the true distance.

    As mining does, each epoch keeps something of the weights that it begins with.
    """

    def __init__(self, scores: list[float] | None = None, dev: bool = True) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(3, 1)
        self.scores, self.dev = scores, dev
        self.met: list[tuple[int, int]] = []
        self.before: Callable[[int, int], None] = lambda epoch, step: None
        self._anchor = torch.zeros(1, 3)

    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        return dict(self.model.named_parameters())

    def steps(self) -> int:
        return STEPS

    def begin(self, epoch: int, saved: Mapping[str, Tensor] | None = None) -> None:
        self._anchor = saved["anchor"] if saved else self.model.weight.detach().clone()

    def epoch_state(self) -> Mapping[str, Tensor]:
        return {"anchor": self._anchor}

    def step(self, epoch: int, step: int) -> Tensor:
        self.before(epoch, step)
        self.met.append((epoch, step))
        points = torch.randn(16, 3)
        wanted = points @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.1 * torch.randn(16, 1)
        loss = (self.model(points) - wanted).square().mean()
        (loss + 0.01 * (self.model.weight - self._anchor).square().sum()).backward()
        return torch.as_tensor(loss.detach())

    def validate(self) -> tuple[Mapping[str, float], Mapping[str, Tensor]]:
        weights = {name: parameter.detach().clone() for name, parameter in self.parameters().items()}
        distance = float((self.model.weight.detach() - torch.tensor([1.0, -2.0, 0.5])).norm())
        score = self.scores[self.met[-1][0]] if self.scores else -distance
        return ({"score": score} if self.dev else {}), weights


def schedule(epochs: int = 6, patience: int = 0, seed: int = 0, save_every: int = 200) -> Schedule:
    return Schedule(epochs, 0.05, patience=patience, seed=seed, save_every=save_every)


def trained(task: Line, plan: Schedule, folder: Path) -> tuple[TrainingRecord, Mapping[str, Tensor]]:
    checkpoints = Checkpoints(folder, "line")
    return run(task, plan, checkpoints), checkpoints.read_best()


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_it_learns(tmp_path: Path) -> None:
    done, _ = trained(Line(), schedule(epochs=60), tmp_path)
    assert done.steps == 60 * STEPS
    assert done.best["score"] > -0.1
    assert done.history[0]["loss"] > 10 * done.history[-1]["loss"]
    assert [record["epoch"] for record in done.history] == list(range(60))


def test_a_seed_gives_the_same_weights_bit_for_bit(tmp_path: Path) -> None:
    runs = [trained(Line(), schedule(seed=seed), tmp_path / str(n))[1] for n, seed in enumerate((7, 7, 8))]
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_it_stops_when_dev_gets_no_better_and_keeps_the_best(tmp_path: Path) -> None:
    scores = [0.1, 0.5, 0.4, 0.5, 0.9, 0.9]
    done, best = trained(Line(scores), schedule(patience=2), tmp_path / "stopped")
    assert [record["score"] for record in done.history] == scores[:4]
    assert done.best == {"score": 0.5}
    watched, after_two = Line(scores), {}

    def remember(epoch: int, step: int) -> None:
        if (epoch, step) == (2, 0):
            after_two.update({name: p.detach().clone() for name, p in watched.parameters().items()})

    watched.before = remember
    trained(watched, schedule(patience=2), tmp_path / "watched")
    assert same(best, after_two)


def test_patience_0_never_stops_and_without_dev_the_last_weights_count(tmp_path: Path) -> None:
    falling = [0.5, 0.4, 0.3, 0.2, 0.1, 0.0]
    assert len(trained(Line(falling), schedule(), tmp_path / "all")[0].history) == 6
    task = Line(dev=False)
    done, best = trained(task, schedule(patience=1), tmp_path / "no-dev")
    assert (len(done.history), done.best) == (6, {})
    assert same(best, {name: parameter.detach() for name, parameter in task.parameters().items()})


def test_progress_is_reported(tmp_path: Path) -> None:
    said: list[tuple[str, int, int]] = []
    run(Line(), schedule(epochs=8), Checkpoints(tmp_path, ""), lambda *now: said.append(now))
    assert [(done, total) for _, done, total in said] == [(n, 40) for n in (5, 10, 15, 16, 20, 25, 30, 32, 35, 40)]
    assert said[0][0].startswith("training, epoch 1, loss ")
    assert ", dev score -" in said[-1][0]


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("save_every", [2, 200])
@pytest.mark.parametrize("dies_at", [0, 1, 3, 4, 5, 8, 14, 29])
def test_an_interrupted_training_comes_to_the_same_end(tmp_path: Path, dies_at: int, save_every: int) -> None:
    straight = trained(Line(), schedule(), tmp_path / "straight")
    task, plan = Line(), schedule(save_every=save_every)

    def die(epoch: int, step: int) -> None:
        if len(task.met) == dies_at:
            raise Interrupted

    task.before = die
    with pytest.raises(Interrupted):
        trained(task, plan, tmp_path / "killed")
    again = Line()
    done, best = trained(again, plan, tmp_path / "killed")
    assert same(best, straight[1])
    assert done.best == straight[0].best
    assert [record["score"] for record in done.history] == [record["score"] for record in straight[0].history]
    saved = max(step for step in range(dies_at + 1) if step % STEPS == 0 or step % save_every == 0)
    assert again.met[0] == divmod(saved, STEPS)  # what was complete is not done again


@pytest.mark.parametrize(("quick", "written"), [(10.0, 6), (0.0, 1)])
def test_checkpoints_that_are_slow_to_write_are_written_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: float, written: int
) -> None:
    monkeypatch.setattr(loop, "_QUICK_WRITE", quick)
    monkeypatch.setattr(loop, "_WRITE_FACTOR", 1e9)  # no epoch is as long as that
    steps: list[int] = []
    write = Checkpoints.write

    def noted(self: Checkpoints, state: Mapping[str, object], tensors: Mapping[str, Tensor]) -> None:
        steps.append(int(str(state["step"])))
        write(self, state, tensors)

    monkeypatch.setattr(Checkpoints, "write", noted)
    whole = Line()
    run(whole, Schedule(6, 0.1, patience=0), Checkpoints(tmp_path / "whole", "x"))
    assert steps == [STEPS * (epoch + 1) for epoch in range(written)]
    # A training that goes on from the first of them comes to the same end.
    again = Line()
    run(again, Schedule(6, 0.1, patience=0), Checkpoints(tmp_path / "whole", "x"))
    assert torch.equal(again.model.weight, whole.model.weight)


def test_an_early_stop_is_remembered(tmp_path: Path) -> None:
    scores = [0.5, 0.4, 0.3, 0.9, 0.9, 0.9]
    trained(Line(scores), schedule(patience=2), tmp_path)
    again = Line(scores)
    done, _ = trained(again, schedule(patience=2), tmp_path)
    assert again.met == []
    assert (len(done.history), done.best, done.steps) == (3, {"score": 0.5}, 3 * STEPS)


def test_seconds_add_up_over_interruptions(tmp_path: Path) -> None:
    first, _ = trained(Line(), schedule(), tmp_path)
    again, _ = trained(Line(), schedule(), tmp_path)
    assert again.seconds >= first.seconds * 0.9


def spoil(task: Line, value: float, at: tuple[int, int]) -> None:
    def before(epoch: int, step: int) -> None:
        if (epoch, step) == at:
            task.model.bias.data.fill_(value)

    task.before = before


@pytest.mark.parametrize("dev", [True, False])
@pytest.mark.parametrize("save_every", [2, 200])
@pytest.mark.parametrize("at", [(2, 1), (2, STEPS - 1)])
def test_a_loss_that_is_no_number_stops_and_leaves_the_last_good_checkpoint(
    tmp_path: Path, at: tuple[int, int], save_every: int, dev: bool
) -> None:
    task, checkpoints = Line(dev=dev), Checkpoints(tmp_path, "line")
    spoil(task, float("nan"), at)
    with pytest.raises(TrainingStopped, match=r"not a number any more; the last good .* lower --option rate") as caught:
        run(task, schedule(save_every=save_every), checkpoints)
    assert str(tmp_path) in str(caught.value)
    taken = checkpoints.read()
    assert taken is not None
    for tensors in (taken[1], checkpoints.read_best()):
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    assert 2 * STEPS <= taken[0]["step"] <= 2 * STEPS + at[1]


def test_weights_that_burst_in_the_last_step_do_not_become_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, checkpoints = Line(dev=False), Checkpoints(tmp_path, "line")
    real = task.step

    def step(epoch: int, number: int) -> Tensor:
        loss = real(epoch, number)
        if (epoch, number) == (1, STEPS - 1):
            task.model.bias.grad = torch.tensor([float("inf")])
        return loss

    monkeypatch.setattr(task, "step", step)
    with pytest.raises(TrainingStopped):
        run(task, schedule(), checkpoints)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in checkpoints.read_best().values())


def test_a_stop_before_any_checkpoint_promises_none(tmp_path: Path) -> None:
    task = Line()
    spoil(task, float("inf"), (0, 0))
    with pytest.raises(TrainingStopped) as caught:
        trained(task, schedule(), tmp_path)
    assert "kept" not in str(caught.value)


def cuda_error() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation")


def cpu_error() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


@pytest.mark.parametrize("where", ["begin", "step", "validate"])
@pytest.mark.parametrize("fail", [cuda_error, cpu_error])
def test_out_of_memory_says_what_to_lower(tmp_path: Path, where: str, fail: Callable[[], None]) -> None:
    task = Line()
    setattr(task, where, lambda *_: fail())
    with pytest.raises(
        OutOfMemory, match=r"lower --option chunk .* then batch or candidates \(.*to allocate"
    ) as caught:
        trained(task, schedule(), tmp_path)
    assert "documentation" not in str(caught.value)


def test_other_errors_come_through(tmp_path: Path) -> None:
    task = Line()

    def fail(epoch: int, step: int) -> None:
        raise RuntimeError("shapes differ")

    task.before = fail
    with pytest.raises(RuntimeError, match="shapes differ"):
        trained(task, schedule(), tmp_path)


def test_a_device_that_is_not_there_is_refused() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device().type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("nonsense", "cuda:99"):
        with pytest.raises(BadModel, match=f"the device '{name}' cannot be used .* name cpu, cuda or auto"):
            pick_device(name)


def test_a_cosine_decay_is_that_of_torch() -> None:
    plan, total, rising = Schedule(1, 0.05, warmup=0.1, falls="cosine"), 50, 5
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=total - rising)
    for step in range(rising, total):
        assert loop._rate_factor(step, total, plan) == pytest.approx(theirs.get_last_lr()[0], abs=1e-9)
        optimiser.step()
        theirs.step()
    assert [loop._rate_factor(step, total, plan) for step in range(rising)] == [0.2, 0.4, 0.6, 0.8, 1.0]
