"""The training loop: seeds, device, warm-up and decay, dev scores, early stopping, best weights, resuming.

All randomness of a step comes from the seed and the number of the step, so a training that was interrupted and resumed
gives the same result as one that was not, and processes that train one model together take the same steps.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from toolscout.errors import BadModel, OutOfMemory, TrainingStopped
from toolscout.training.checkpoint import Checkpoints
from toolscout.training.data_parallel import FollowerDone, ProcessGroup

Report = Callable[[str, int, int], None]
Scores = Mapping[str, float]
# Reading the loss on a GPU waits for all work before it, so it is read every so many steps only.
_LOOK_EVERY = 16
_CLIP = 1.0
# A checkpoint that takes longer than these seconds to write is written at the end of an epoch only if that long, times
# this factor, has passed since the last one.
_QUICK_WRITE, _WRITE_FACTOR = 0.1, 9
_STATE_PREFIX = "task."
FAST = "tower."  # what the names of parameters with a higher learning rate begin with
# This is the default; some versions of torch warn unless it is set explicitly.
torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The length and the learning rates of a training.

    rate, decay, warmup: the learning rate, the weight decay of matrices, and the share of steps of the warm-up.
    falls: how the learning rate falls to 0 after the warm-up.
    patience: epochs without a better dev score before training stops, 0 to never stop early.
    save_every: steps between checkpoints within an epoch.
    pace: how many times higher the learning rate of the parameters of a tower or of token rows is.
    """

    epochs: int
    rate: float
    decay: float = 0.01
    warmup: float = 0.1
    patience: int = 2
    seed: int = 0
    save_every: int = 200
    pace: float = 1.0
    falls: Literal["linear", "cosine"] = "linear"


class TrainingTask(ABC):
    """A model with its data and loss, as the training loop sees them.

    divides: whether `step` divides a batch among the processes that train together.
    """

    divides = False

    @abstractmethod
    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """The trained parameters, by name."""

    @abstractmethod
    def steps(self) -> int:
        """The number of steps in an epoch."""

    @abstractmethod
    def begin(self, epoch: int, saved: Mapping[str, Tensor] | None = None) -> None:
        """Prepare an epoch, such as shuffle and mine negatives; all randomness follows from the seed and the epoch.

        `saved` is what `epoch_state()` gave, where the training resumes in the middle of this epoch.
        """

    @abstractmethod
    def epoch_state(self) -> Mapping[str, Tensor]:
        """Tensors that `begin` computed from the weights at the start of the epoch, to be saved for resuming."""

    @abstractmethod
    def step(self, epoch: int, step: int) -> Tensor:
        """Compute the loss of one step and its gradients; gives back the detached loss."""

    @abstractmethod
    def validate(self) -> tuple[Scores, Mapping[str, Tensor]]:
        """Dev scores, of which the first one selects the best epoch, and the weights that reached them.

        Without a dev split, there are no scores.
        """


@dataclass(slots=True)
class TrainingRecord:
    """The course of a training: its best dev scores, and in `history` one record per epoch."""

    seconds: float = 0.0
    steps: int = 0
    best: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


def pick_device(name: str = "auto") -> torch.device:
    """The device of this name; "auto" is a GPU where there is one. Raises BadModel where it cannot be used."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise BadModel(f"the device {name!r} cannot be used ({_first_line(error)}); name cpu, cuda or auto") from None
    return device


def hardware_name(device: torch.device) -> str:
    """The name of a GPU, such as "NVIDIA H200"; the type of any other device, such as "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def run(
    task: TrainingTask, schedule: Schedule, checkpoints: Checkpoints, report: Report | None = None
) -> TrainingRecord:
    """Train, or resume a training; the best weights are then in `checkpoints.read_best()`.

    Of several processes that train together the leader alone returns, the others raise FollowerDone. Raises
    OutOfMemory, TrainingStopped where the loss or a weight is not finite, and BadModel for another training's
    checkpoints.
    """
    try:
        return _run(task, schedule, checkpoints, report)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "CPUAllocator" in str(error):
            raise OutOfMemory(
                "the device ran out of memory; lower --option chunk (texts in memory at once), then batch or "
                f"candidates ({_first_line(error)})"
            ) from None
        raise


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _run(task: TrainingTask, schedule: Schedule, checkpoints: Checkpoints, report: Report | None) -> TrainingRecord:
    processes = ProcessGroup()
    if processes.size > 1 and not task.divides:
        raise BadModel("this method cannot be trained by several processes; train it by one")
    parameters = task.parameters()
    optimiser = torch.optim.AdamW(
        _groups(parameters, schedule), lr=schedule.rate, fused=next(iter(parameters.values())).is_cuda
    )
    per_epoch = task.steps()
    total = schedule.epochs * per_epoch
    trained, since_best, saved = _resumed(processes, checkpoints, parameters, optimiser)
    clock, last_write = _Clock(trained.seconds), _LastWrite()
    epoch = trained.steps // per_epoch
    while epoch < schedule.epochs and not (schedule.patience and since_best >= schedule.patience):
        _begin(task, processes, epoch, saved)
        losses, saved = [], None
        for step in range(trained.steps - epoch * per_epoch, per_epoch):
            for group in optimiser.param_groups:
                group["lr"] = group["rate"] * _rate_factor(trained.steps, total, schedule)
            losses.append(_step(task, optimiser, parameters, epoch, step, schedule.seed))
            trained.steps += 1
            if trained.steps % _LOOK_EVERY == 0:
                loss = _mean_loss(losses, trained, checkpoints)
                if report:
                    report(_progress_text(epoch, loss, trained), trained.steps, total)
            if trained.steps % schedule.save_every == 0 and trained.steps % per_epoch:
                _mean_loss(losses, trained, checkpoints)
                trained.seconds = clock.spent()
                if processes.leads:
                    _write(checkpoints, trained, since_best, parameters, optimiser, task.epoch_state())
        loss = _mean_loss(losses, trained, checkpoints)
        _check_weights(parameters, trained, checkpoints)  # before they can become the best
        scores, weights = task.validate() if processes.leads else ({}, {})
        scores = processes.from_leader(scores)
        better = not scores or not trained.best or next(iter(scores.values())) > next(iter(trained.best.values()))
        if better:
            trained.best = dict(scores)
            if processes.leads:
                checkpoints.write_best(weights)
        since_best = 0 if better else since_best + 1
        trained.history.append({"epoch": epoch, "loss": round(loss, 4), **{k: round(v, 4) for k, v in scores.items()}})
        trained.seconds = clock.spent()
        if processes.leads and last_write.is_past():
            with last_write.timed():
                _write(checkpoints, trained, since_best, parameters, optimiser, {})
        if report:
            report(_progress_text(epoch, loss, trained), trained.steps, total)
        epoch += 1
    trained.seconds = clock.spent()
    if not processes.leads:
        raise FollowerDone
    return trained


def _resumed(
    processes: ProcessGroup,
    checkpoints: Checkpoints,
    parameters: Mapping[str, torch.nn.Parameter],
    optimiser: torch.optim.Optimizer,
) -> tuple[TrainingRecord, int, dict[str, Tensor] | None]:
    """Restore the leader's checkpoint; return the record, the epochs since the best, and the state of the epoch."""
    checkpoint = processes.from_leader(checkpoints.read() if processes.leads else None)
    if checkpoint is None:
        return TrainingRecord(), 0, None
    state, tensors = checkpoint
    trained = TrainingRecord(**state["trained"])
    trained.steps = state["step"]
    _restore(parameters, optimiser, tensors, trained.steps)
    saved = {
        name.removeprefix(_STATE_PREFIX): tensor for name, tensor in tensors.items() if name.startswith(_STATE_PREFIX)
    }
    return trained, state["since_best"], saved


def _begin(task: TrainingTask, processes: ProcessGroup, epoch: int, saved: Mapping[str, Tensor] | None) -> None:
    """Begin an epoch; all processes have what the leader computed."""
    if processes.leads:
        task.begin(epoch, saved)
    if processes.size > 1:
        state = processes.from_leader(task.epoch_state() if processes.leads else {})
        if not processes.leads:
            task.begin(epoch, state)


def _groups(parameters: Mapping[str, torch.nn.Parameter], schedule: Schedule) -> list[dict[str, Any]]:
    """Parameter groups for the optimiser: weight decay for matrices alone, and a higher rate for fast parameters."""
    groups: dict[tuple[bool, bool], list[torch.nn.Parameter]] = {}
    for name, parameter in parameters.items():
        groups.setdefault((parameter.ndim > 1, name.startswith(FAST)), []).append(parameter)
    return [
        {
            "params": few,
            "weight_decay": schedule.decay if matrix else 0.0,
            "rate": schedule.rate * (schedule.pace if fast else 1.0),
        }
        for (matrix, fast), few in groups.items()
    ]


class _Clock:
    """Counts the seconds of this run and of those before it."""

    def __init__(self, before: float) -> None:
        self._start = time.perf_counter() - before

    def spent(self) -> float:
        return time.perf_counter() - self._start


class _LastWrite:
    """When the last checkpoint was written and how long that took: large ones must not take most of the time."""

    def __init__(self) -> None:
        self._ended, self._took = 0.0, 0.0

    def is_past(self) -> bool:
        """Whether it is time for another one."""
        return self._took < _QUICK_WRITE or time.perf_counter() - self._ended >= _WRITE_FACTOR * self._took

    @contextmanager
    def timed(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._ended = time.perf_counter()
        self._took = self._ended - started


def _step(
    task: TrainingTask,
    optimiser: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    epoch: int,
    step: int,
    seed: int,
) -> Tensor:
    torch.manual_seed(hash((seed, epoch, step)) & 0x7FFFFFFF)
    optimiser.zero_grad(set_to_none=True)
    loss = task.step(epoch, step)
    torch.nn.utils.clip_grad_norm_(list(parameters.values()), _CLIP)
    optimiser.step()
    return loss


def _rate_factor(step: int, total: int, schedule: Schedule) -> float:
    """The share of the full learning rate: linear warm-up, then linear or cosine decay."""
    rising = max(1, round(schedule.warmup * total))
    if step < rising:
        return (step + 1) / rising
    left = max(0.0, (total - step) / max(1, total - rising))
    return left if schedule.falls == "linear" else (1 - math.cos(math.pi * left)) / 2


def _mean_loss(losses: Sequence[Tensor], trained: TrainingRecord, checkpoints: Checkpoints) -> float:
    """The mean of the last losses; raises TrainingStopped where it is not finite."""
    if not losses:
        return math.nan
    loss = float(torch.stack(list(losses[-_LOOK_EVERY:])).mean())
    if not math.isfinite(loss):
        raise _stop_error(trained, checkpoints)
    return loss


def _check_weights(
    parameters: Mapping[str, torch.nn.Parameter], trained: TrainingRecord, checkpoints: Checkpoints
) -> None:
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters.values()):
        raise _stop_error(trained, checkpoints)


def _stop_error(trained: TrainingRecord, checkpoints: Checkpoints) -> TrainingStopped:
    kept = f"; the last good checkpoint is kept in {checkpoints.folder}" if checkpoints.exist() else ""
    return TrainingStopped(
        f"training stopped near step {trained.steps}: the loss is not a number any more{kept}. "
        "Train into another folder with a lower --option rate"
    )


def _progress_text(epoch: int, loss: float, trained: TrainingRecord) -> str:
    best = "".join(f", dev {name} {value:.3f}" for name, value in list(trained.best.items())[:1])
    return f"training, epoch {epoch + 1}, loss {loss:.3f}{best}"


def _write(
    checkpoints: Checkpoints,
    trained: TrainingRecord,
    since_best: int,
    parameters: Mapping[str, torch.nn.Parameter],
    optimiser: torch.optim.Optimizer,
    epoch_state: Mapping[str, Tensor],
) -> None:
    _check_weights(parameters, trained, checkpoints)
    tensors = {f"{_STATE_PREFIX}{name}": tensor for name, tensor in epoch_state.items()}
    for name, parameter in parameters.items():
        tensors[f"weight.{name}"] = parameter
        for key, value in optimiser.state.get(parameter, {}).items():
            if key != "step":
                tensors[f"{key}.{name}"] = value
    about = {"seconds": trained.seconds, "best": trained.best, "history": trained.history}
    checkpoints.write({"step": trained.steps, "since_best": since_best, "trained": about}, tensors)


def _restore(
    parameters: Mapping[str, torch.nn.Parameter],
    optimiser: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    steps: int,
) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"weight.{name}"])
            if f"exp_avg.{name}" in tensors:
                optimiser.state[parameter] = {
                    # AdamW keeps it on the parameter's device where it is fused, else on the CPU
                    "step": torch.tensor(float(steps), device=parameter.device if parameter.is_cuda else "cpu"),
                    "exp_avg": tensors[f"exp_avg.{name}"].to(parameter.device),
                    "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(parameter.device),
                }
