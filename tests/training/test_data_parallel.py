"""Several processes that train one encoder learn what one process learns."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.learnable import learnable, options, tiny_source
from toolscout.retrievers.dense import Dense, DenseOptions
from toolscout.retrievers.provenance import TrainingSet

pytest.importorskip("torch", reason="needs the extra train")

from safetensors.numpy import load_file
from torch import distributed

from toolscout.training.bi_encoder import EncoderTask
from toolscout.training.data_parallel import FollowerDone, ProcessGroup

pytestmark = pytest.mark.slow
TOGETHER, ENDED = 2, 17


def train(rank: int, meeting: str, chosen: DenseOptions, folder: Path, epochs: int) -> None:
    """Train as one of the processes; all of them end before an epoch that is not wanted."""
    begin = EncoderTask.begin

    def begin_or_end(self: EncoderTask, epoch: int, saved: Any = None) -> None:
        if epoch == epochs:
            os._exit(ENDED)
        begin(self, epoch, saved)

    EncoderTask.begin = begin_or_end  # type: ignore[method-assign]  # this process ends with the training
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=TOGETHER)
    try:
        own = folder if rank == 0 else folder / f"process{rank}"
        Dense(chosen).fit([TrainingSet(learnable(), "train", "dev")], own)
        assert ProcessGroup().leads
    except FollowerDone:
        assert not ProcessGroup().leads
        assert not list((folder / f"process{rank}").rglob("*")), "only the leader writes"


def trained_together(tmp_path: Path, chosen: DenseOptions, epochs: int = -1) -> Path:
    """Train in several processes, which end after so many epochs; the default is all."""
    folder = tmp_path / "together"
    context = multiprocessing.get_context("spawn")
    arguments = (f"file://{tmp_path / f'meeting{epochs}'}", chosen, folder, epochs)
    processes = [context.Process(target=train, args=(rank, *arguments)) for rank in range(TOGETHER)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    expected = 0 if epochs < 0 else ENDED
    assert processes[0].exitcode == expected  # the leader's: the others may find it gone first
    if not expected:
        assert {process.exitcode for process in processes} == {0}
    return folder


# With fewer candidates than documents the hardest are mined anew in each epoch; a batch of 7 leaves one process more.
@pytest.mark.parametrize("changed", [{"candidates": 12, "batch": 7, "chunk": 3, "mix": 0.25}, {"loss": "mnrl"}])
def test_processes_learn_what_one_learns(tmp_path: Path, changed: dict[str, object]) -> None:
    chosen = options(tiny_source(tmp_path / "source"), epochs=1, **changed)
    alone = Dense(chosen)
    alone.fit([TrainingSet(learnable(), "train", "dev")], tmp_path / "alone")
    together = Dense.load(trained_together(tmp_path, chosen))
    assert together.fit_record is not None
    assert alone.fit_record is not None
    losses = [one["history"][0]["loss"] for one in (together.fit_record, alone.fit_record)]
    assert losses[0] == pytest.approx(losses[1], abs=2e-3)
    weights = [load_file(tmp_path / name / "weights" / "model.safetensors") for name in ("together", "alone")]
    assert weights[0].keys() == weights[1].keys()
    for name, values in weights[0].items():
        if name.endswith("key.bias"):
            continue  # it changes no attention, so its gradient is rounding alone
        np.testing.assert_allclose(values, weights[1][name], atol=2e-3, err_msg=name)


def test_an_interrupted_training_goes_on_for_all(tmp_path: Path) -> None:
    chosen = options(tiny_source(tmp_path / "source"), epochs=2, candidates=12)
    alone = Dense(chosen)
    alone.fit([TrainingSet(learnable(), "train", "dev")], tmp_path / "alone")
    folder = trained_together(tmp_path, chosen, epochs=1)
    assert (folder / "training").is_dir()
    together = Dense.load(trained_together(tmp_path, chosen))
    assert together.fit_record is not None
    assert alone.fit_record is not None
    losses = [[epoch["loss"] for epoch in one["history"]] for one in (together.fit_record, alone.fit_record)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-2)
