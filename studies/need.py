"""Measures "is a tool needed?": results/need.jsonl.

python -m studies.need [--seeds 0,1,2] [--methods trained,shipped,cosine,llm] [--llm FILE] [--out FILE] [--encoder
FOLDER]

Heads are trained by toolscout/training/need_head.py on vectors of the default encoder, which the cache keeps: the first
run encodes for some minutes. Beside them stand the head that comes with the package, the best cosine to a catalogue,
and the language model that studies/need_llm.py asked; the last two are made probabilities on dev. Needs
$TOOLSCOUT_DATA.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipes import need_texts
from studies import need_measures
from studies.need_llm import OUT as ANSWERS
from studies.need_llm import read as read_answers
from studies.need_measures import Collection, Item, NeedTrial
from studies.running import RESULTS, numbers
from toolscout.core.arrays import Doubles
from toolscout.data.dataset import Dataset, request_digest
from toolscout.data.locate import find_dataset
from toolscout.errors import BadModel
from toolscout.evaluation import leakage, row
from toolscout.evaluation.vector_cache import request_vectors, tool_vectors
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.models.need_head import NeedHead
from toolscout.search.tool_need import NeedOptions, open_head
from toolscout.training import need_head

OUT = RESULTS / "need.jsonl"
PACKAGE = OUT.parent.parent / "toolscout"
HEAD, COSINE, MODEL = "need-head", "best-cosine", "smollm2-135m"
MODEL_PARAMETERS = 134_515_008
# One that was taught all but what is tested; one that was taught all; the one in the package.
REST, ALL, SHIPPED = "trained-on-the-rest", "trained-on-all", "shipped"
# How recipes/need_head.py marks what the head was taught in what the encoder has seen.
TAUGHT = "need: "
# A pair that comes as near to a sentence that was taught is no test of what was not.
NEAR = 0.85


@dataclass
class Bench:
    """What all trials share: texts and their vectors, catalogues, and the heads that were trained so far."""

    encoder: Encoder
    tools: list[Collection]
    prompts: list[Collection]
    seeds: Sequence[int] = (0,)
    answers_file: Path = ANSWERS
    answers: dict[str, float] = field(default_factory=dict)
    options: need_head.DetectionOptions = field(default_factory=need_head.DetectionOptions)
    catalogues: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    known: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    heads: dict[tuple[str, int], tuple[NeedHead, float]] = field(default_factory=dict)

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Of requests, each looked up or encoded once."""
        missing = [text for text in dict.fromkeys(texts) if text not in self.known]
        if missing:
            self.known |= dict(zip(missing, request_vectors(missing, self.encoder), strict=True))
        return np.stack([self.known[text] for text in texts])

    def head(self, left_out: str, seed: int) -> tuple[NeedHead, float]:
        """A head that was taught everything but one collection, and the seconds that took."""
        if (left_out, seed) not in self.heads:
            with tempfile.TemporaryDirectory() as folder:
                started = time.perf_counter()
                options = need_head.DetectionOptions(**{**asdict(self.options), "seed": seed})
                train, dev = self.examples("train", left_out), self.examples("dev", left_out)
                head, _ = need_head.learn(train, dev, self.encoder.fingerprint, Path(folder), options)
                self.heads[left_out, seed] = (head, round(time.perf_counter() - started, 1))
        return self.heads[left_out, seed]

    def examples(self, part: str, left_out: str) -> need_head.Examples:
        """The vectors and texts of one part of every collection but one."""
        texts = [
            {one.name: found for one in collections if one.name != left_out and (found := getattr(one, part))}
            for collections in (self.tools, self.prompts)
        ]
        return need_head.Examples(
            *({name: self.vectors(found) for name, found in side.items()} for side in texts), *texts
        )

    def chances(self, head: NeedHead, trial: NeedTrial) -> list[float]:
        """What a head says of the texts of a trial."""
        texts = [item.text for item in trial.items]
        found: list[float] = head.probabilities(self.vectors(texts), texts).tolist()
        return found

    def cosines(self, items: Sequence[Item]) -> Doubles:
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

    def unseen(self, trial: NeedTrial) -> NeedTrial:
        """Without what the head in the package was taught; of pairs also without those near to our own sentences."""
        seen = {digest for one in leakage.encoder_history(self.encoder).splits for digest in one.requests}
        if trial.part == "pairs":
            vectors, taught = self.vectors([item.text for item in trial.items]), self.vectors(own_sentences())
            near = (vectors @ taught.T).max(axis=1) >= NEAR
            seen |= {request_digest(item.text) for item, is_near in zip(trial.items, near, strict=True) if is_near}
        return trial.without(seen)

    def dev_items(self, left_out: str) -> list[Item]:
        """What values are made probabilities on: dev texts of all collections but one, whatever is tested then."""
        dev = [
            Collection(one.name, one.need, (), (), one.dev) for one in self.tools + self.prompts if one.name != left_out
        ]
        return list(
            need_measures.balanced([one for one in dev if one.need], [one for one in dev if not one.need and one.test])
        )


def own_sentences() -> list[str]:
    """What recipes/need_head.py teaches the head in the package besides published texts, but for made-up tasks."""
    asked, talked = need_texts.everyday(np.random.default_rng(0))
    recipes = Path(__file__).resolve().parent.parent / "recipes"
    files = (PACKAGE / "search" / "background.txt", recipes / "need_asked.txt", recipes / "need_talk.txt")
    written = [line for path in files for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [*asked, *talked, *written]


def calibrated(values: Doubles, items: Sequence[Item], tested: Doubles) -> tuple[list[float], float]:
    """Values made probabilities by what dev items have, both kinds weighing the same; and where one half lies."""
    truth = np.array([item.need for item in items])
    weights = np.where(truth, 0.5 / truth.mean(), 0.5 / (1 - truth.mean()))
    spread = float(values.std()) or 1.0
    scale, shift = need_head.platt((values - values.mean()) / spread, truth, weights)
    chances = 1 / (1 + np.exp(-(scale * (tested - values.mean()) / spread + shift)))
    return chances.tolist(), float(values.mean() - shift / scale * spread)


def best_place(values: Doubles, items: Sequence[Item]) -> float:
    """The value from which on "yes" is most often right on dev, both kinds weighing the same."""
    truth = np.array([item.need for item in items])
    places = np.unique(values)
    right = [np.mean(values[truth] >= place) + np.mean(values[~truth] < place) for place in places]
    return float(places[int(np.argmax(right))])


@dataclass(frozen=True)
class Forecast:
    """One forecast of one trial."""

    method: str
    variant: str
    trial: NeedTrial
    chances: Sequence[float]
    options: dict[str, Any]
    seed: int | None = None
    fit_s: float | None = None
    params: int = 0
    served: float | None = None


def trained(bench: Bench, trial: NeedTrial) -> Iterator[Forecast]:
    """What heads say that were taught all but what is left out, a head for each seed."""
    for seed in bench.seeds:
        head, seconds = bench.head(trial.left_out, seed)
        chances = bench.chances(head, trial)
        options, variant = {**asdict(bench.options), "seed": seed}, REST if trial.left_out else ALL
        yield Forecast(HEAD, variant, trial, chances, options, seed, seconds, _size(head))


def shipped(bench: Bench, trial: NeedTrial) -> Iterator[Forecast]:
    """What the head says that lies beside the encoder; of what is to be left out only where it was not taught it."""
    head, seen = open_head(bench.encoder), leakage.encoder_history(bench.encoder).splits
    taught = {one.dataset.removeprefix(TAUGHT) for one in seen if one.role == "train"}
    if head is not None and trial.left_out not in taught:
        known, served = bench.unseen(trial), NeedOptions().threshold
        chances = bench.chances(head, known)
        yield Forecast(HEAD, SHIPPED, known, chances, {"threshold": served}, params=_size(head), served=served)


def cosine(bench: Bench, trial: NeedTrial) -> Iterator[Forecast]:
    """The best cosine to a tool of the catalogue."""
    dev = bench.dev_items(trial.left_out)
    found, half = calibrated(bench.cosines(dev), dev, bench.cosines(trial.items))
    yield Forecast(COSINE, "default", trial, found, {"threshold": round(half, 4)})


def answers(bench: Bench, trial: NeedTrial) -> Iterator[Forecast]:
    """What the language model says of those texts that it was asked about; nothing where it was not."""
    bench.answers = bench.answers or read_answers(bench.answers_file)
    dev = bench.dev_items(trial.left_out)
    asked = [item for item in dev if request_digest(item.text) in bench.answers]
    tested = trial.among(bench.answers)
    if len({item.need for item in asked}) == len({item.need for item in tested.items}) == 2:
        odds = [np.array([bench.answers[request_digest(item.text)] for item in one]) for one in (asked, tested.items)]
        try:
            said, half = calibrated(odds[0], asked, odds[1])
        except BadModel:  # more often wrong than right on dev: no curve fits, so its own odds count from the best place
            half = best_place(odds[0], asked)
            said = (1 / (1 + np.exp(half - odds[1]))).tolist()
        yield Forecast(MODEL, "default", tested, said, {"threshold": round(half, 4)}, params=MODEL_PARAMETERS)


METHODS = {"trained": trained, "shipped": shipped, "cosine": cosine, "llm": answers}


def method_of(made: Mapping[str, Any]) -> str:
    """Which of METHODS a row comes from."""
    other = {COSINE: "cosine", MODEL: "llm"}
    return other.get(made["retriever"]) or ("shipped" if made["variant"] == SHIPPED else "trained")


def _size(head: NeedHead) -> int:
    return head.hidden.size + head.hidden_bias.size + head.output.size + 1


def row_of(told: Forecast, whole: NeedTrial, encoder: str | None, command: str) -> row.Row:
    """The row of one forecast."""
    numbers = need_measures.judged(told.trial, told.chances, told.served)
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


def note(made: row.Row) -> None:
    """Say what came out."""
    about = f"{made.options['need']} {made.options['left_out'] or made.dataset} {made.retriever} {made.variant}"
    sys.stderr.write(f"{about} {made.metrics['need_auroc']:.4f} {made.metrics['need_accuracy']:.4f}\n")


def main() -> None:
    """Run every trial; rows of methods that are not measured again stay. The file is replaced when all is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--llm", type=Path, default=ANSWERS)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--encoder", type=Path, default=None)
    asked = parser.parse_args()
    names, seeds = asked.methods.split(","), numbers(asked.seeds)
    tools, prompts = (
        need_measures.tool_collections(),
        need_measures.prompt_collections(find_dataset(need_measures.PROMPTS)),
    )
    bench = Bench(Encoder.load(asked.encoder), tools, prompts, seeds, asked.llm)
    words = ["python", "-m", "studies.need", *(["--encoder", asked.encoder.name] if asked.encoder else [])]
    rows = [made for made in row.read_rows(asked.out) if method_of(made) not in names] if asked.out.exists() else []
    for name in names:
        for trial in need_measures.trials(tools, prompts):
            for told in METHODS[name](bench, trial):
                encoder = None if told.method == MODEL else bench.encoder.fingerprint
                made = row_of(told, trial, encoder, shlex.join(words))
                note(made)
                rows.append(made.to_dict())
    partial = asked.out.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    for kept in rows:
        row.append(partial, kept)
    partial.replace(asked.out)


if __name__ == "__main__":
    if not os.environ.get("TOOLSCOUT_DATA"):
        sys.exit("name the folder of datasets: TOOLSCOUT_DATA")
    main()
