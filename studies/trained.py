"""Trains and measures every trained retriever on the published sets, three seeds each: results/trained.jsonl.

python studies/trained.py [--models DIR] [--gpu N] [--cpu N] [--seeds 0,1,2] [--only WORD] [--methods NAMES]
                       [--stop-after SECONDS]

Needs $TOOLSCOUT_DATA. Each model is trained by `toolscout train` and measured by `toolscout evaluate`; what is already
there is not made again. `--only`: names of sets, or patterns, as toollens*,g3*. `--gpu`: encoders
trained side by side; `--cpu`: other work side by side, two cores each. Methods beside dense learn on the vectors of the
dense model's encoder, encoded once for all of them; `through` is masstool with an encoder trained along.
"""

from __future__ import annotations

import argparse
import os
import queue
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from studies.running import collect, numbers
from toolscout.papers.masstool.published_ablations import SETTINGS


@dataclass(frozen=True)
class TrainedSet:
    """A dataset to train on, the options of the training, and the splits to measure the model on."""

    name: str
    data: str
    tests: tuple[str, ...]
    options: tuple[str, ...]


METHODS = ("memory", "masstool", "colt", "hybrid", "centroid", "masstool_published")
THROUGH = "through"
G3 = ("epochs=6", "rate=0.0002", "candidates=512", "patience=2")
PARTS = ("G1_instruction", "G1_tool", "G1_category", "G2_instruction", "G2_category", "G3_instruction")
SETS = (
    TrainedSet("toollens", "toollens", ("toollens:test",), ("epochs=6", "rate=0.0002", "patience=0")),
    TrainedSet("toollens-unseen_tool", "toollens:unseen_tool", ("toollens:unseen_tool.test",), ("epochs=3",)),
    TrainedSet("toollens-unseen_scene", "toollens:unseen_scene", ("toollens:unseen_scene.test",), ("epochs=3",)),
    TrainedSet(
        "g3", "toolbench-g3", tuple(f"toolbench-g3:test{end}" for end in ("", ".api", ".tool", ".category")), G3
    ),
    TrainedSet("g3-unseen_tool", "toolbench-g3:unseen_tool", ("toolbench-g3:unseen_tool.test",), G3),
    TrainedSet("g3-unseen_scene", "toolbench-g3:unseen_scene", ("toolbench-g3:unseen_scene.test",), G3),
    TrainedSet(
        "simpletoolquestions",
        "simpletoolquestions",
        ("simpletoolquestions:test", "simpletoolquestions:test_unseen"),
        ("epochs=3", "candidates=512"),
    ),
    TrainedSet("ultratool", "ultratool", ("ultratool:test",), ("epochs=6", "rate=0.0002")),
    TrainedSet("toolbench", "toolbench", ("toolbench:test", *(f"toolbench:test_{part}" for part in PARTS)), G3),
)


class Runner:
    """Runs commands, few at a time; a failed one is told and leaves out what depends on it."""

    def __init__(self, models: Path, gpu: int, cpu: int, stop_after: float, methods: Sequence[str]) -> None:
        """Make the two pools."""
        self.models, self.methods = models, methods
        self.deadline = time.monotonic() + stop_after
        self.gpu, self.cpu = ThreadPoolExecutor(gpu), ThreadPoolExecutor(cpu)
        self.cores: queue.Queue[str] = queue.Queue()
        count = os.cpu_count() or 2
        for slot in range(cpu):
            first = (2 * slot) % max(1, count - 1)
            self.cores.put(f"{first},{min(first + 1, count - 1)}")
        self.waiting: list[Future[None]] = []

    def run(self, command: Sequence[str], log: str, pinned: bool) -> bool:
        """Run one toolscout command; its output goes to a log."""
        if time.monotonic() > self.deadline:
            return False
        words = [sys.executable, "-m", "toolscout", *command]
        cores = self.cores.get() if pinned else ""
        if pinned and shutil.which("taskset"):
            words = ["taskset", "-c", cores, *words]
        started = time.monotonic()
        with (self.models / f"{log}.log").open("a") as stream:
            code = subprocess.run(words, stdout=stream, stderr=subprocess.STDOUT, check=False).returncode
        if pinned:
            self.cores.put(cores)
        sys.stderr.write(f"{time.monotonic() - started:6.0f} s  rc {code}  toolscout {shlex.join(command)}\n")
        return code == 0

    def train(self, one: TrainedSet, seed: int) -> None:
        """Train the encoder, then queue all that needs it."""
        name = f"{one.name}-s{seed}"
        folder = self.models / name
        settings = [word for option in (*one.options, f"seed={seed}") for word in ("--option", option)]
        command = ["train", one.data, "--retriever", "dense", "--out", str(folder), *settings]
        if (folder / "model.json").is_file() or self.run(command, name, pinned=False):
            if "dense" in self.methods:
                self.waiting.append(self.cpu.submit(self.measure, one, folder))
            self.waiting.append(self.cpu.submit(self.followers, one, folder, seed))

    def followers(self, one: TrainedSet, dense: Path, seed: int) -> None:
        """The first follower encodes what the others then read, so it goes alone; likewise masstool the prompts."""
        wanted = [method for method in METHODS if method in self.methods]
        if wanted:
            self.follow(one, dense, wanted[0], seed)
        for method in wanted[1:]:
            if method == "masstool_published" and "masstool" in wanted[1:]:
                continue
            then = method == "masstool" and "masstool_published" in wanted
            self.waiting.append(self.cpu.submit(self.follow, one, dense, method, seed, "masstool_published" * then))

    def through(self, one: TrainedSet, seed: int) -> None:
        """Train masstool with its encoder, and measure it."""
        folder = self.models / f"{THROUGH}-{one.name}-s{seed}"
        settings = [
            word for option in (*one.options, "train_encoder=true", f"seed={seed}") for word in ("--option", option)
        ]
        command = ["train", one.data, "--retriever", "masstool", "--out", str(folder), *settings]
        if (folder / "model.json").is_file() or self.run(command, folder.name, pinned=False):
            self.waiting.append(self.cpu.submit(self.measure, one, folder))

    def follow(self, one: TrainedSet, dense: Path, method: str, seed: int, then: str = "") -> None:
        """Fit a method on top of a trained encoder, and measure it; then another."""
        self.fitted(one, dense, method, seed)
        if then:
            self.follow(one, dense, then, seed)

    def fitted(self, one: TrainedSet, dense: Path, method: str, seed: int) -> None:
        """Fit one, and measure it."""
        folder = dense.with_name(f"{method}-{dense.name}")
        command = ["train", one.data, "--retriever", method, "--out", str(folder)]
        options = [] if method == "hybrid" else [f"encoder={dense / 'encoder'}"]
        if method == "hybrid":
            command += [word for part in ("bm25", "memory", str(dense)) for word in ("--part", part)]
        if method in ("colt", "masstool", "masstool_published"):
            options.append(f"seed={seed}")
        if method in ("colt", "masstool"):
            options.append("epochs=3")
        if method == "masstool_published" and one.name.startswith("g3"):
            options += SETTINGS["toolbench-g3"]
        command += [word for option in options for word in ("--option", option)]
        if not (folder / "model.json").is_file():
            shared = self.models / "encoded" / dense.name
            shared.mkdir(parents=True, exist_ok=True)
            folder.mkdir(exist_ok=True)
            link = folder / "encoded"
            if method != "hybrid" and not link.exists():
                link.symlink_to(shared.resolve())
            done = self.run(command, folder.name, pinned=True)
            if link.is_symlink():
                link.unlink()
            if not done:
                return
        self.measure(one, folder)

    def measure(self, one: TrainedSet, folder: Path, pinned: bool = True) -> None:
        """Evaluate one model on all splits of its set, on two cores of its own or where it runs."""
        rows = self.models / "rows" / f"{folder.name}.jsonl"
        if not rows.is_file():
            partial = rows.with_name(f"{folder.name}.part.jsonl")
            partial.unlink(missing_ok=True)
            command = ["evaluate", *one.tests, "--retriever", str(folder), "--json", str(partial)]
            if self.run(command, folder.name, pinned):
                partial.rename(rows)
                partial.with_suffix(".scores").rename(rows.with_suffix(".scores"))

    def wait(self) -> None:
        """Until all is done, what was queued on the way too."""
        while self.waiting:
            self.waiting.pop(0).result()


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--gpu", type=int, default=1)
    parser.add_argument("--cpu", type=int, default=1)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="*")
    parser.add_argument("--methods", default=",".join(("dense", *METHODS)))
    parser.add_argument("--stop-after", type=float, default=1e9)
    asked = parser.parse_args()
    methods = asked.methods.split(",")
    (asked.models / "rows").mkdir(parents=True, exist_ok=True)
    runner = Runner(asked.models, asked.gpu, asked.cpu, asked.stop_after, methods)
    for seed in numbers(asked.seeds):
        for one in SETS:
            if any(fnmatch(one.name, word) for word in asked.only.split(",")):
                if {"dense", *METHODS}.intersection(methods):
                    runner.waiting.append(runner.gpu.submit(runner.train, one, seed))
                if THROUGH in methods:
                    runner.waiting.append(runner.gpu.submit(runner.through, one, seed))
    runner.wait()
    collect((asked.models / "rows").glob("*.jsonl"), "trained")


if __name__ == "__main__":
    main()
