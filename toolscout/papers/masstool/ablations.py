"""Ablations of masstool: variants that lack or change one part, trained on the vectors of one frozen encoder.

Every variant is trained once and measured twice: "chosen", with the weights of its parts chosen on dev, as served, and
"learned", with the weights that training learned. On dev the weight of a part may be chosen as 0; only the second
measurement then shows what that part learned.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from toolscout.core.answer import Example
from toolscout.data import metrics
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.data.no_tool_prompts import read_prompts
from toolscout.errors import BadModel, BadRequest
from toolscout.evaluation import leakage, significance
from toolscout.evaluation import row as rows
from toolscout.evaluation.evaluate import load_split
from toolscout.evaluation.fit_record import read_fit_record
from toolscout.evaluation.row import STUDY
from toolscout.evaluation.scores import Scores
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.models.tower import TRANSFERS
from toolscout.papers.experiment import (
    ExperimentContext,
    ExperimentResult,
    check_unseen,
    experiment_result,
    rank_split,
)
from toolscout.papers.jobs import Job
from toolscout.papers.masstool import noisy_detector
from toolscout.papers.precomputed_encoder import PrecomputedEncoder
from toolscout.retrievers.base import FitProgress
from toolscout.retrievers.document_index import DocumentIndex
from toolscout.retrievers.encoded_requests import train_examples
from toolscout.retrievers.masstool import Masstool
from toolscout.retrievers.model_folder import MODEL_FILE
from toolscout.retrievers.option_values import with_settings
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.retrievers.tower.dev_weights import as_learned
from toolscout.retrievers.tower.options import MasstoolOptions
from toolscout.retrievers.training_setup import training_sets

NAME = "ablation"
FULL = "full"
WEIGHTS = ("chosen", "learned")
COMPARED = ("recall@5", "ndcg@5", "comp@5", "new_recall@5")
PROMPTS = "test"
_CACHE = "vectors.db"
VariantKind = Literal["full", "without", "transfer", "lambda", "epsilon", "graph", "pool", "detector"]


@dataclass(frozen=True)
class Variant:
    """A variant of the full model: `changes` of the options it is trained with, or the full model served otherwise.

    `pool`: the share of the training requests that serve as neighbours. `accuracy`: what the accuracy of the detection
    tower on requests that need a tool is lowered to; 0 leaves it unchanged. `weights`: options of the served model.
    """

    name: str
    part: VariantKind
    changes: Mapping[str, Any]
    pool: float = 1.0
    accuracy: float = 0.0
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def trained(self) -> bool:
        """Return whether the variant is trained; the others serve the full model with a change."""
        return self.part not in ("pool", "detector") and not self.weights


_WITHOUT: Mapping[str, Mapping[str, Any]] = {
    "adakt": {"transfer": "none"},
    "suim": {"neighbours": 0},
    "dynamic-filter": {"epsilon": -1.0},
    "contrastive": {"contrastive": 0.0},
    "detection": {"detection": 0.0},
    "graph": {"layers": 0},
}
# What neighbours give is left out by its weight: their vectors (attention), or their votes.
_UNWEIGHTED: Mapping[str, str] = {"attention": "neighbour_weight", "votes": "votes"}
VARIANTS = (
    Variant(FULL, "full", {}),
    *(Variant(f"without-{name}", "without", changes) for name, changes in _WITHOUT.items()),
    *(Variant(f"without-{name}", "without", {}, weights={weight: 0.0}) for name, weight in _UNWEIGHTED.items()),
    *(Variant(f"transfer-{one}", "transfer", {"transfer": one}) for one in TRANSFERS if one != "none"),
    *(Variant(f"lambda-{one:g}", "lambda", {"detection": one}) for one in (0.08, 0.2, 0.5, 1.0)),
    *(Variant(f"epsilon-{one:g}", "epsilon", {"epsilon": one}) for one in (0.0, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)),
    *(
        Variant(f"layers-{layers}_edges-{edges:g}", "graph", {"layers": layers, "edges": edges})
        for layers in (1, 2, 3)
        for edges in (1.0, 0.5, 0.25, 0.1)
    ),
    *(Variant(f"pool-{share:g}", "pool", {}, pool=share) for share in (0.5, 0.25, 0.1, 0.0)),
    *(Variant(f"detector-{one:g}", "detector", {}, accuracy=one) for one in (0.9, 0.8, 0.7, 0.6)),
)


@dataclass(frozen=True)
class StudyPlan:
    """What variants are trained and measured on.

    `data` is DATA[:TRAIN[:DEV]], `test` the split to measure on, `out` the folder to work in.
    `encoder`: the folder of the frozen encoder, "" for the default one. `no_tool`: a folder of prompts that need no
    tool, "" for none. `settings`: options of all variants, as NAME=VALUE.
    """

    data: str
    test: str
    out: Path
    encoder: str = ""
    no_tool: str = ""
    settings: tuple[str, ...] = ()

    def identity(self, digest: str, encoder: str) -> str:
        """Return the id that rows of one study share: same data (`digest`), encoder (fingerprint) and options."""
        parts = [
            self.data.rpartition("/")[2],
            self.test,
            Path(self.no_tool).name,
            sorted(self.settings),
            digest,
            encoder,
        ]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class AblationPlan(StudyPlan):
    """The plan of the ablations of masstool."""

    def options(self, seed: int) -> MasstoolOptions:
        """Return the options of the full model; raises BadModel for an option that variants cannot share."""
        found = with_settings(MasstoolOptions(), "masstool", self.settings)
        if found.train_encoder or found.encoder or found.no_tool:
            raise BadModel(
                "variants share the vectors of one frozen encoder: name it by --encoder, prompts by --no-tool"
            )
        return replace(found, seed=seed, no_tool=str(find_dataset(self.no_tool)) if self.no_tool else "")

    def command(self) -> str:
        """Return the command that repeats the study, without paths of this machine."""
        words = [
            "toolscout",
            "ablate",
            "masstool",
            self.data.rpartition("/")[2],
            "--test",
            self.test,
            "--out",
            "FOLDER",
        ]
        words += ["--encoder", "ENCODER"] if self.encoder else []
        words += ["--no-tool", Path(self.no_tool).name] if self.no_tool else []
        return shlex.join([*words, *(word for one in self.settings for word in ("--option", one))])


@dataclass(frozen=True)
class AblationData:
    """The data that all variants are trained and measured on, with an encoder that has the vectors of its texts.

    `prompts`: test prompts that need no tool. `identity`: the id of the study.
    """

    data: TrainingSet
    test: Dataset
    prompts: tuple[str, ...]
    encoder: PrecomputedEncoder
    identity: str


def variants(plan: AblationPlan, only: str = "") -> list[Variant]:
    """Return the full model, and the variants that differ from it and have `only` in their name or part.

    Raises BadRequest where no variant has it.
    """
    base = plan.options(0)
    found = [VARIANTS[0]]
    for one in VARIANTS[1:]:
        same = one.trained and replace(base, **one.changes) == base
        needs_prompts = one.part in ("lambda", "detector") or "detection" in one.changes
        usable = not same and (plan.no_tool or not needs_prompts)
        if usable and (only in one.name or only in one.part):
            found.append(one)
    if only and len(found) == 1 and only not in FULL:
        raise BadRequest(f"no variant has {only!r} in its name; there are: {', '.join(one.name for one in VARIANTS)}")
    return found


@lru_cache(maxsize=1)
def cached_data(plan: StudyPlan) -> AblationData:
    """Return the data of `read_data`, read once by all variants that run in this process."""
    return read_data(plan)


def read_data(plan: StudyPlan, progress: FitProgress | None = None) -> AblationData:
    """Read the data and encode its texts; vectors are cached in the plan's folder. Raises BadDataset or BadModel."""
    (data,) = training_sets([plan.data])
    test = load_split(find_dataset(plan.data if Path(plan.data).is_dir() else plan.data.partition(":")[0]), plan.test)
    prompts = read_prompts(find_dataset(plan.no_tool)) if plan.no_tool else []
    encoder = Encoder.load(Path(plan.encoder) if plan.encoder else None)
    splits = [(data.dataset, data.train), (data.dataset, data.dev), (test, plan.test)]
    texts = [text for dataset, split in splits if split for _, text in dataset.split(split).requests]
    texts += [prompt.text for prompt in prompts if prompt.split in ("train", "dev", PROMPTS)]
    plan.out.mkdir(parents=True, exist_ok=True)
    precomputed = PrecomputedEncoder.of(encoder, texts, data.dataset.tools, plan.out / _CACHE, progress)
    identity = plan.identity(test.digest(plan.test), encoder.fingerprint)
    test_prompts = tuple(prompt.text for prompt in prompts if prompt.split == PROMPTS)
    return AblationData(data, test, test_prompts, precomputed, identity)


def run_variant(plan: AblationPlan, variant: Variant, seed: int) -> list[ExperimentResult]:
    """Train one variant, unless its model exists, and measure it with chosen and with learned weights.

    A module-level function, so that another process can run it.
    """
    found = cached_data(plan)
    folder = plan.out / found.identity / f"{variant.name if variant.trained else FULL}-s{seed}"
    if not (folder / MODEL_FILE).is_file():
        options = replace(plan.options(seed), **variant.changes)
        Masstool(options, found.encoder).fit([found.data], folder)
    results = [_measure(plan, found, variant, seed, folder, weights) for weights in WEIGHTS]
    if variant.trained and variant.name != FULL:
        shutil.rmtree(folder)  # only the full model is needed again, by variants that serve it
    return results


def _measure(
    plan: AblationPlan, found: AblationData, variant: Variant, seed: int, folder: Path, weights: str
) -> ExperimentResult:
    """Load the model, change how it serves as the variant says, and rank the test split."""
    model = Masstool.load(folder, found.encoder)
    seen = check_unseen(found.test, plan.test, model, TrainedOn.load(folder))
    tower, options = model.tower, model.options
    assert tower is not None
    served: dict[str, float] = {}
    if weights == "learned":
        served = asdict(as_learned(tower, layers=options.layers > 0, around=options.neighbours > 0))
    need = need_measures(model, found, plan.test)
    if variant.accuracy:
        texts = [text for _, text in found.test.split(plan.test).requests]
        noisy = noisy_detector.add_errors(tower, model, texts, found.prompts, variant.accuracy)
        tower, need = noisy.tower, need | {"detector_accuracy": round(noisy.accuracy, 6)}
    model.retune({**served, **variant.weights}, tower)
    if variant.pool < 1:
        model.forget()
        model.learn(sample(train_examples([found.data]), variant.pool))
    model.add(found.test.tools)
    study = {
        "name": NAME,
        "of": found.identity,
        "variant": variant.name,
        "part": variant.part,
        "weights": weights,
        "changes": {**variant.changes, **variant.weights, **({"pool": variant.pool} if variant.part == "pool" else {})},
        "encoder": plan.encoder.rstrip("/").rpartition("/")[2] or "default",
    }
    named = f"{variant.name}-{weights}-{found.identity}-s{seed}"
    about = ExperimentContext(study, named, seed, plan.command(), read_fit_record(folder))
    new = leakage.new_tools(found.test, plan.test, seen)
    return experiment_result(found.test, plan.test, model, rank_split(found.test, plan.test, model), about, new, need)


def sample(examples: Sequence[Example], share: float) -> list[Example]:
    """Return a random share of the examples; a larger share includes the examples of a smaller one."""
    order = np.random.default_rng(0).permutation(len(examples))
    return [examples[at] for at in np.sort(order[: round(share * len(examples))]).tolist()]


def need_measures(model: DocumentIndex, found: AblationData, split: str) -> dict[str, float]:
    """Return how well the detection tower tells requests from prompts that need no tool; {} without a tower."""
    texts = [text for _, text in found.test.split(split).requests]
    predicted = model.need([*texts, *found.prompts]) if found.prompts else None
    if predicted is None:
        return {}
    truth = [True] * len(texts) + [False] * len(found.prompts)
    return {
        "need_auroc": round(metrics.auroc(truth, predicted), 6),
        "need_accuracy": round(metrics.accuracy(truth, predicted), 6),
    }


def jobs(plan: AblationPlan, chosen: Sequence[Variant], seeds: Sequence[int], path: Path) -> list[Job]:
    """Return a job for each variant and seed whose rows are not in the file `path`; of each seed the full model first.

    Raises Leak where the test split shares requests with the training data.
    """
    found = cached_data(plan)
    check_unseen(found.test, plan.test, Masstool(None, found.encoder), TrainedOn.of([found.data]))
    written = {(row[STUDY]["variant"], row["seed"], row[STUDY]["weights"]) for row in own_rows(path, found.identity)}
    todo: list[Job] = []
    for seed in seeds:
        missing = [one for one in chosen if not {(one.name, seed, weights) for weights in WEIGHTS} <= written]
        served = [one for one in missing if not one.trained]
        if (
            served
            and VARIANTS[0] not in missing
            and not (plan.out / found.identity / f"{FULL}-s{seed}" / MODEL_FILE).is_file()
        ):
            missing.insert(0, VARIANTS[0])  # its rows are written, but its model was removed
        first = (f"{FULL} s{seed}",) if VARIANTS[0] in missing else ()
        for one in missing:
            todo.append(Job(f"{one.name} s{seed}", run_variant, (plan, one, seed), () if one.trained else first))
    return todo


def own_rows(path: Path, identity: str, name: str = NAME) -> list[dict[str, Any]]:
    """Return the rows of a file that belong to the study with this name and id."""
    found = rows.known_rows(path)
    return [row for row in found if row.get(STUDY, {}).get("name") == name and row[STUDY].get("of") == identity]


class AblationWriter:
    """Writes rows with their paired test against the full model; rows that come before the full model's wait for it."""

    def __init__(self, path: Path, name: str = NAME) -> None:
        """Write rows of the study `name` to this file, and scores beside it."""
        self._path, self._name = path, name
        self._waiting: list[ExperimentResult] = []
        self._full: dict[tuple[str, int, str], Scores] = {}

    def add(self, done: Sequence[ExperimentResult]) -> None:
        """Add the results of a job, and write all whose full model is known."""
        first = [one for one in done if one.row[STUDY]["variant"] == FULL]
        others = self._waiting + [one for one in done if one not in first]
        self._waiting = []
        for one in first + others:
            if not self._compare(one):
                self._waiting.append(one)
            else:
                rows.append_with_scores(self._path, one.row, one.lines)

    def _compare(self, one: ExperimentResult) -> bool:
        """Add the paired test against the full model to a row; return False where the full model is not measured."""
        study = one.row[STUDY]
        key = (study["of"], one.row["seed"], study.get("weights", ""))
        if study["variant"] == FULL:
            self._full[key] = Scores(self._path, one.lines)
        elif key not in self._full:
            self._full |= self._read(study["of"])
        if key in self._full and study["variant"] != FULL:
            study["against"] = paired_tests(self._full[key], Scores(self._path, one.lines))
        return key in self._full

    def _read(self, identity: str) -> dict[tuple[str, int, str], Scores]:
        """Read the scores of the full models in the file, by study, seed and weights."""
        found: dict[tuple[str, int, str], Scores] = {}
        for row in own_rows(self._path, identity, self._name):
            scores = rows.scores_path(self._path, row)
            if row[STUDY]["variant"] == FULL and scores.is_file():
                found[identity, row["seed"], row[STUDY].get("weights", "")] = Scores(scores, rows.read_scores(scores))
        return found


def paired_tests(full: Scores, other: Scores) -> dict[str, list[float]]:
    """Return, by measure, the difference of a variant from the full model, the ends of its interval, and p."""
    new = all("new" in line for line in full.lines) and any(line["new"] for line in full.lines)
    names = [name for name in COMPARED if new or not name.startswith("new_")]
    tested = significance.paired_test(full.values(names), other.values(names), full.scenes)
    found = {}
    for name, one in zip(names, tested, strict=True):
        if one is not None:
            found[name] = [round(value, 6) for value in (one.difference, one.low, one.high, one.p)]
    return found


def variant_order(variant: str) -> int:
    """Return the place of a variant in tables."""
    return next((number for number, one in enumerate(VARIANTS) if one.name == variant), len(VARIANTS))


def sorted_rows(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return rows in the order of VARIANTS, then of seeds."""
    return sorted(found, key=lambda row: (variant_order(row[STUDY]["variant"]), row["seed"]))
