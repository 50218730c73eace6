"""Trains in processes that kill themselves: python killed.py OUT SOURCE, one folder in OUT for each place to die.

One process imports all that is heavy and is forked for each, before there is any thread.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from transformers import BertModel  # noqa: F401 - imported once for all

from tests.training.learnable import learnable, options
from toolscout.models.encoders import export
from toolscout.retrievers import dense
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.provenance import TrainingSet
from toolscout.training import bi_encoder, checkpoint, loop

# Everything that is random, and documents that are mined: a resumed training must meet all of it again.
HARD = {"epochs": 3, "batch": 4, "mix": 0.3, "self_queries": 0.25, "candidates": 12, "chunk": 12}
MINED = 4
STEPS = 4


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(number: int, owner: Any, name: str, half: bool = False) -> None:
    """Die at the n-th call of a function; `half`: having written half of the file that it writes."""
    real: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def call(*args: Any, **given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and half:
            real(*args, **given)
            path = Path(args[1])
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        if calls == number:
            die()
        return real(*args, **given)

    setattr(owner, name, call)


PLACES: dict[str, Callable[[], None]] = {
    "before-any-checkpoint": lambda: at_call(2, loop, "_step"),
    "mid-epoch": lambda: at_call(STEPS + 3, loop, "_step"),
    "half-a-state": lambda: at_call(4, checkpoint, "save_file", half=True),
    "between-best-and-state": lambda: at_call(3, checkpoint, "save_file"),
    "export": lambda: at_call(1, export, "export"),
    "before-the-model": lambda: at_call(1, dense, "write_model"),
    "before-clean-up": lambda: at_call(1, checkpoint.Checkpoints, "remove"),
}


def main(out: Path, source: Path) -> None:
    for name, prepare in PLACES.items():
        child = os.fork()
        if child == 0:
            prepare()
            bi_encoder._MINED_FROM = MINED
            setattr(bi_encoder, "Schedule", partial(loop.Schedule, save_every=3))  # noqa: B010 - a class to mypy
            Dense(options(source, **HARD)).fit([TrainingSet(learnable(train=STEPS * 4))], out / name)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(f"{name}: was not killed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
