"""Checkpoints: whenever the process dies, a complete one is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from toolscout.errors import BadModel
from toolscout.training.checkpoint import Checkpoints

pytestmark = pytest.mark.slow


def write(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.write({"step": step, "note": ["x"]}, {"a": torch.full((2, 3), float(step)), "b": torch.arange(4)})


def step_of(checkpoints: Checkpoints) -> int:
    """The step of what is read, the same in state and tensors."""
    taken = checkpoints.read()
    assert taken is not None
    state, tensors = taken
    assert bool((tensors["a"] == state["step"]).all())
    return int(state["step"])


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "training", "me")


def test_what_is_written_is_read(checkpoints: Checkpoints) -> None:
    assert (checkpoints.exist(), checkpoints.read()) == (False, None)
    write(checkpoints, 3)
    taken = checkpoints.read()
    assert taken is not None
    assert taken[0] == {"step": 3, "note": ["x"]}
    assert torch.equal(taken[1]["b"], torch.arange(4))
    write(checkpoints, 4)
    assert step_of(checkpoints) == 4
    assert len(list(checkpoints.folder.iterdir())) == 2  # no older ones
    checkpoints.write_best({"a": torch.ones(2)})
    assert torch.equal(checkpoints.read_best()["a"], torch.ones(2))


@pytest.mark.parametrize("dies_at", range(4))
def test_a_write_that_dies_leaves_the_one_before(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    write(checkpoints, 1)
    calls = 0

    def dying(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > dies_at:
                raise KeyboardInterrupt
            return real(*args, **options)

        return call

    monkeypatch.setattr("toolscout.training.checkpoint.save_file", dying(save_file))
    monkeypatch.setattr("os.replace", dying(os.replace))
    monkeypatch.setattr("pathlib.Path.write_text", dying(Path.write_text))
    with pytest.raises(KeyboardInterrupt):
        write(checkpoints, 2)
    monkeypatch.undo()
    assert step_of(checkpoints) == 1
    write(checkpoints, 3)
    assert step_of(checkpoints) == 3


def test_a_half_written_file_is_ignored(checkpoints: Checkpoints) -> None:
    write(checkpoints, 1)
    for name in (".state-2.safetensors", ".state.json", ".best.safetensors", "state-2.safetensors"):
        (checkpoints.folder / name).write_bytes(b"\x10half")
    assert step_of(checkpoints) == 1
    checkpoints.remove()
    assert not checkpoints.folder.exists()


def test_another_training_is_not_taken_up(checkpoints: Checkpoints) -> None:
    write(checkpoints, 1)
    with pytest.raises(BadModel, match="other data or with other options that was interrupted; train into another"):
        Checkpoints(checkpoints.folder, "somebody else").read()
    assert step_of(checkpoints) == 1


@pytest.mark.parametrize("name", ["state.json", "state-1.safetensors", "best.safetensors"])
@pytest.mark.parametrize("content", [b"", b"[]", b"\x10\x00half", None])
def test_a_damaged_checkpoint_says_what_to_do(checkpoints: Checkpoints, name: str, content: bytes | None) -> None:
    write(checkpoints, 1)
    checkpoints.write_best({"a": torch.ones(2)})
    if content is None:
        (checkpoints.folder / name).unlink()
    else:
        (checkpoints.folder / name).write_bytes(content)
    if (name, content) == ("state.json", None):
        assert checkpoints.read() is None
        return
    with pytest.raises(BadModel, match=r"cannot be read .*; remove it, train again"):
        (checkpoints.read_best if name.startswith("best") else checkpoints.read)()


def test_a_removal_that_dies_leaves_nothing_to_take_up(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(checkpoints, 1)
    checkpoints.write_best({"a": torch.ones(2)})
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    checkpoints.remove()
    assert checkpoints.read() is None
    monkeypatch.undo()
    checkpoints.remove()
    checkpoints.remove()
    assert not checkpoints.folder.exists()
