"""Measures "is a tool needed?": results/need.jsonl.

python -m runs.need [--seeds 0,1,2] [--llm FILE] [--out FILE] [--only PART] [--encoder FOLDER]

Heads are trained by toolscout/training/detection.py on vectors of the default encoder, which the cache keeps: the first
run encodes for some minutes. Beside them stand the head that comes with the package, the best cosine to a catalogue,
and the language model that runs/need_llm.py asked; the last two are made probabilities on dev. Needs $TOOLSCOUT_DATA.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runs import need_texts
from runs.need_llm import OUT as ANSWERS
from runs.need_llm import read as read_answers
from toolscout.dataset import Dataset, request_digest
from toolscout.errors import BadModel
from toolscout.evaluation import need, overlap, row
from toolscout.evaluation._vectors import request_vectors, tool_vectors
from toolscout.evaluation.need import Collection, Item, Trial
from toolscout.evaluation.run import find_dataset
from toolscout.need import NeedOptions, open_head
from toolscout.nn.encoder import Encoder
from toolscout.nn.need import NeedHead
from toolscout.training import detection

OUT = Path(__file__).resolve().parent.parent / "results" / "need.jsonl"
PACKAGE = OUT.parent.parent / "toolscout"
HEAD, COSINE, MODEL = "need-head", "best-cosine", "smollm2-135m"
MODEL_PARAMETERS = 134_515_008
# One that was taught all but what is tested; one that was taught all; the one in the package.
REST, ALL, SHIPPED = "trained-on-the-rest", "trained-on-all", "shipped"
# A pair that comes as near to a sentence that was taught is no test of what was not.
NEAR = 0.85
Floats = NDArray[np.float64]


@dataclass
class Bench:
    """What all trials share: texts and their vectors, catalogues, and the heads that were trained so far."""

    encoder: Encoder
    tools: list[Collection]
    prompts: list[Collection]
    answers: dict[str, float]
    options: detection.DetectionOptions = field(default_factory=detection.DetectionOptions)
    catalogues: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    heads: dict[tuple[str, int], tuple[NeedHead, float]] = field(default_factory=dict)

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Of requests, out of the cache."""
        return request_vectors(texts, self.encoder)

    def head(self, left_out: str, seed: int) -> tuple[NeedHead, float]:
        """A head that was taught everything but one collection, and the seconds that took."""
        if (left_out, seed) not in self.heads:
            with tempfile.TemporaryDirectory() as folder:
                started = time.perf_counter()
                options = detection.DetectionOptions(**{**asdict(self.options), "seed": seed})
                train, dev = self.examples("train", left_out), self.examples("dev", left_out)
                head, _ = detection.learn(train, dev, self.encoder.fingerprint, Path(folder), options)
                self.heads[left_out, seed] = (head, round(time.perf_counter() - started, 1))
        return self.heads[left_out, seed]

    def examples(self, part: str, left_out: str) -> detection.Examples:
        """The vectors of one part of every collection but one."""

        def chosen(collections: Sequence[Collection]) -> dict[str, NDArray[np.float32]]:
            parts = {one.name: getattr(one, part) for one in collections if one.name != left_out}
            return {name: self.vectors(texts) for name, texts in parts.items() if texts}

        return detection.Examples(chosen(self.tools), chosen(self.prompts))

    def cosines(self, items: Sequence[Item]) -> Floats:
        """Of each text the best cosine to a tool of its catalogue."""
        vectors, best = self.vectors([item.text for item in items]), np.zeros(len(items))
        for name in dict.fromkeys(item.catalogue for item in items):
            if name not in self.catalogues:
                folder = find_dataset(name)
                tools = Dataset.load(folder, Dataset.split_names(folder)[:1]).tools
                self.catalogues[name] = tool_vectors(tools, self.encoder)
            at = [number for number, item in enumerate(items) if item.catalogue == name]
            best[at] = (vectors[at] @ self.catalogues[name].T).max(axis=1)
        return best

    def unseen(self, trial: Trial) -> Trial:
        """Without what the head in the package was taught; of pairs also without those near to our own sentences."""
        seen = {digest for one in overlap.encoder_history(self.encoder).splits for digest in one.requests}
        if trial.part == "pairs":
            vectors, taught = self.vectors([item.text for item in trial.items]), self.vectors(own_sentences())
            near = (vectors @ taught.T).max(axis=1) >= NEAR
            seen |= {request_digest(item.text) for item, is_near in zip(trial.items, near, strict=True) if is_near}
        return trial.without(seen)

    def dev_items(self, left_out: str, catalogue: str) -> list[Item]:
        """What a threshold is found on: dev texts of all but one collection; of the bundled catalogue its own dev."""
        if catalogue == need.BUNDLED:
            return list(need.bundled_trial("dev").items)
        dev = [
            Collection(one.name, one.need, (), (), one.dev) for one in self.tools + self.prompts if one.name != left_out
        ]
        return list(need.balanced([one for one in dev if one.need], [one for one in dev if not one.need and one.test]))


def own_sentences() -> list[str]:
    """What runs/need_head.py teaches the head in the package besides published texts, but for made-up tasks."""
    asked, talked = need_texts.everyday(np.random.default_rng(0))
    runs = Path(__file__).resolve().parent
    files = (PACKAGE / "background.txt", runs / "need_asked.txt", runs / "need_talk.txt")
    written = [line for path in files for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [*asked, *talked, *written]


def calibrated(values: Floats, items: Sequence[Item], tested: Floats) -> tuple[list[float], float]:
    """Values made probabilities by what dev items have, both kinds weighing the same; and where one half lies."""
    truth = np.array([item.need for item in items])
    weights = np.where(truth, 0.5 / truth.mean(), 0.5 / (1 - truth.mean()))
    spread = float(values.std()) or 1.0
    scale, shift = detection.platt((values - values.mean()) / spread, truth, weights)
    chances = 1 / (1 + np.exp(-(scale * (tested - values.mean()) / spread + shift)))
    return chances.tolist(), float(values.mean() - shift / scale * spread)


@dataclass(frozen=True)
class Told:
    """One forecast of one trial."""

    method: str
    variant: str
    trial: Trial
    chances: Sequence[float]
    options: dict[str, Any]
    seed: int | None = None
    fit_s: float | None = None
    params: int = 0
    served: float | None = None


def forecasts(bench: Bench, trial: Trial, seeds: Sequence[int], shipped: NeedHead | None) -> Iterator[Told]:
    """What each method says."""
    texts = [item.text for item in trial.items]
    for seed in seeds:
        head, seconds = bench.head(trial.left_out, seed)
        chances = head.probabilities(bench.vectors(texts)).tolist()
        options = {**asdict(bench.options), "seed": seed}
        variant = REST if trial.left_out else ALL
        yield Told(HEAD, variant, trial, chances, options, seed, seconds, _size(head))
    if shipped is not None and not trial.left_out:
        known = bench.unseen(trial)
        chances = shipped.probabilities(bench.vectors([item.text for item in known.items])).tolist()
        served = NeedOptions().threshold
        yield Told(HEAD, SHIPPED, known, chances, {"threshold": served}, params=_size(shipped), served=served)
    dev = bench.dev_items(trial.left_out, trial.items[0].catalogue)
    found, half = calibrated(bench.cosines(dev), dev, bench.cosines(trial.items))
    yield Told(COSINE, "default", trial, found, {"threshold": round(half, 4)})
    asked = [item for item in dev if request_digest(item.text) in bench.answers]
    tested = trial.among(bench.answers)
    if len({item.need for item in asked}) == len({item.need for item in tested.items}) == 2:
        odds = [np.array([bench.answers[request_digest(item.text)] for item in one]) for one in (asked, tested.items)]
        try:
            said, half = calibrated(odds[0], asked, odds[1])
        except BadModel:  # on dev it says the opposite of what is true: then its own word counts, not the opposite
            said, half = (1 / (1 + np.exp(-odds[1]))).tolist(), 0.0
        yield Told(MODEL, "default", tested, said, {"threshold": round(half, 4)}, params=MODEL_PARAMETERS)


def _size(head: NeedHead) -> int:
    return head.hidden.size + head.hidden_bias.size + head.output.size + 1


def row_of(told: Told, whole: Trial, encoder: str | None, command: str) -> row.Row:
    """The row of one forecast."""
    numbers = need.judged(told.trial, told.chances, told.served)
    return row.Row(
        dataset=whole.dataset,
        digest=whole.digest(),
        split=whole.split,
        retriever=told.method,
        variant=told.variant,
        options={"need": whole.part, "left_out": whole.left_out, **told.options},
        seed=told.seed,
        metrics=numbers.metrics,
        intervals=numbers.intervals,
        timing={"fit_s": told.fit_s, "query_p50_ms": None},
        params=told.params,
        encoder=encoder,
        requests=len(told.trial.items),
        failed=0,
        dropped=len(whole.items) - len(told.trial.items) if told.method == HEAD else 0,
        new_tools=None,
        **row.provenance(command),
    )


def main() -> None:
    """Run every trial, and replace the file of rows when all is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--llm", type=Path, default=ANSWERS)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", default="")
    parser.add_argument("--encoder", type=Path, default=None)
    asked = parser.parse_args()
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    encoder = Encoder.load(asked.encoder)
    tools, prompts = need.tool_collections(), need.prompt_collections(find_dataset(need.PROMPTS))
    bench = Bench(encoder, tools, prompts, read_answers(asked.llm))
    shipped = open_head(encoder)
    words = ["python", "-m", "runs.need", *(["--encoder", asked.encoder.name] if asked.encoder else [])]
    command, rows = shlex.join(words), []
    for trial in need.trials(tools, prompts):
        if not trial.part.startswith(asked.only):
            continue
        for told in forecasts(bench, trial, seeds, shipped):
            made = row_of(told, trial, None if told.method == MODEL else encoder.fingerprint, command)
            rows.append(made)
            sys.stderr.write(f"{trial.part} {trial.left_out or trial.dataset} {told.method} {told.variant} ")
            sys.stderr.write(f"{made.metrics['need_auroc']:.4f} {made.metrics['need_accuracy']:.4f}\n")
    partial = asked.out.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    for made in rows:
        row.append(partial, made.to_dict())
    partial.replace(asked.out)


if __name__ == "__main__":
    if not os.environ.get("TOOLSCOUT_DATA"):
        sys.exit("name the folder of datasets: TOOLSCOUT_DATA")
    main()
