"""What each part of masstool is worth: variants that lack or change one part, on the vectors of one frozen encoder.

Every variant is trained once and measured twice: "chosen", with what its parts count chosen on dev, as it is served,
and "learned", with what they counted in training. On dev a part may be chosen to count nothing; whether it learned
something is seen in the second.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
    experiment_result,
    rank_split,
    refuse_seen,
)
from toolscout.papers.jobs import Job
from toolscout.papers.masstool import noisy_detector
from toolscout.papers.precomputed_encoder import PrecomputedEncoder
from toolscout.retrievers.base import FitProgress
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
    """What differs from the full model: options it is trained with, or how the full model is served.

    `pool`: the share of the training requests that are kept as neighbours; `accuracy`: that of the detection tower on
    requests that need a tool, brought down to this.
    """

    name: str
    part: VariantKind
    changes: Mapping[str, Any]
    pool: float = 1.0
    accuracy: float = 0.0

    @property
    def trained(self) -> bool:
        """Whether it is trained apart, not the full model served otherwise."""
        return self.part not in ("pool", "detector")


_WITHOUT: Mapping[str, Mapping[str, Any]] = {
    "adakt": {"transfer": "none"},
    "suim": {"neighbours": 0},
    "dynamic-filter": {"epsilon": -1.0},
    "contrastive": {"contrastive": 0.0},
    "detection": {"detection": 0.0},
    "graph": {"layers": 0},
}
VARIANTS = (
    Variant(FULL, "full", {}),
    *(Variant(f"without-{name}", "without", changes) for name, changes in _WITHOUT.items()),
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
class AblationPlan:
    """What to ablate: DATA[:TRAIN[:DEV]], the split to measure on, the folder to work in, and what all variants share.

    `encoder`: the folder of the frozen encoder, "" for the default one. `no_tool`: a folder of prompts that need no
    tool, "" for none.
    """

    data: str
    test: str
    out: Path
    encoder: str = ""
    no_tool: str = ""
    settings: tuple[str, ...] = ()

    def options(self, seed: int) -> MasstoolOptions:
        """Those of the full model."""
        found = with_settings(MasstoolOptions(), "masstool", self.settings)
        if found.train_encoder or found.encoder or found.no_tool:
            raise BadModel(
                "variants share the vectors of one frozen encoder: name it by --encoder, prompts by --no-tool"
            )
        return replace(found, seed=seed, no_tool=str(find_dataset(self.no_tool)) if self.no_tool else "")

    @property
    def _data(self) -> str:
        return self.data.rstrip("/").rpartition("/")[2]

    def identity(self, digest: str, encoder: str) -> str:
        """What rows must share to be of one study."""
        parts = [
            self.data.rpartition("/")[2],
            self.test,
            Path(self.no_tool).name,
            sorted(self.settings),
            digest,
            encoder,
        ]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()

    def command(self) -> str:
        """The command that makes the rows again, without the paths of one machine."""
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
    """What all variants are trained and measured on: the data, its texts encoded once, and what tells runs apart."""

    data: TrainingSet
    test: Dataset
    prompts: tuple[str, ...]
    encoder: PrecomputedEncoder
    digest: str
    identity: str


def variants(plan: AblationPlan, only: str = "") -> list[Variant]:
    """Those that differ from the full model, and it; of the others only those whose name or part has the word."""
    base = plan.options(0)
    found = [VARIANTS[0]]
    for one in VARIANTS[1:]:
        same = one.trained and replace(base, **one.changes) == base
        deaf = not plan.no_tool and (one.part in ("lambda", "detector") or "detection" in one.changes)
        if not same and not deaf and (only in one.name or only in one.part):
            found.append(one)
    if only and len(found) == 1 and only not in FULL:
        raise BadRequest(f"no variant has {only!r} in its name; there are: {', '.join(one.name for one in VARIANTS)}")
    return found


@lru_cache(maxsize=1)
def ground(plan: AblationPlan) -> AblationData:
    """What `read` reads; asked for again by every variant that runs in this process."""
    return read(plan)


def read(plan: AblationPlan, progress: FitProgress | None = None) -> AblationData:
    """Read the data and encode all texts, or take their vectors out of the folder where they were encoded before."""
    (data,) = training_sets([plan.data])
    test = load_split(find_dataset(plan.data if Path(plan.data).is_dir() else plan.data.partition(":")[0]), plan.test)
    prompts = read_prompts(find_dataset(plan.no_tool)) if plan.no_tool else []
    encoder = Encoder.load(Path(plan.encoder) if plan.encoder else None)
    splits = [(data.dataset, data.train), (data.dataset, data.dev), (test, plan.test)]
    texts = [text for dataset, split in splits if split for _, text in dataset.split(split).requests]
    texts += [prompt.text for prompt in prompts if prompt.split in ("train", "dev", PROMPTS)]
    plan.out.mkdir(parents=True, exist_ok=True)
    stored = PrecomputedEncoder.of(encoder, texts, data.dataset.tools, plan.out / _CACHE, progress)
    digest = test.digest(plan.test)
    unseen = tuple(prompt.text for prompt in prompts if prompt.split == PROMPTS)
    return AblationData(data, test, unseen, stored, digest, plan.identity(digest, encoder.fingerprint))


def work(plan: AblationPlan, variant: Variant, seed: int) -> list[ExperimentResult]:
    """Train one variant, unless that was done before, and measure it both ways. A process of its own may run this."""
    found = ground(plan)
    folder = plan.out / found.identity / f"{variant.name if variant.trained else FULL}-s{seed}"
    if not (folder / MODEL_FILE).is_file():
        options = replace(plan.options(seed), **variant.changes)
        Masstool(options, found.encoder).fit([found.data], folder)
    done = [_served(plan, found, variant, seed, folder, weights) for weights in WEIGHTS]
    if variant.trained and variant.name != FULL:
        shutil.rmtree(folder)  # its rows say all; the full model is served in other ways yet
    return done


def _served(
    plan: AblationPlan, found: AblationData, variant: Variant, seed: int, folder: Path, weights: str
) -> ExperimentResult:
    """Open the model, change what the variant says, and ask."""
    model = Masstool.load(folder, found.encoder)
    seen = refuse_seen(found.test, plan.test, model, TrainedOn.load(folder))
    tower, options = model.tower, model.options
    assert tower is not None
    served: dict[str, float] = {}
    if weights == "learned":
        served = asdict(as_learned(tower, layers=options.layers > 0, around=options.neighbours > 0))
    need = _need(model, found, plan.test)
    if variant.accuracy:
        texts = [text for _, text in found.test.split(plan.test).requests]
        state = noisy_detector.tower(tower, model, texts, found.prompts, variant.accuracy)
        tower, need = state.tower, need | {"detector_accuracy": round(state.accuracy, 6)}
    model.retune(served, tower)
    if variant.pool < 1:
        model.forget()
        model.learn(kept(train_examples([found.data]), variant.pool))
    model.add(found.test.tools)
    study = {
        "name": NAME,
        "of": found.identity,
        "variant": variant.name,
        "part": variant.part,
        "weights": weights,
        "changes": dict(variant.changes) | ({"pool": variant.pool} if variant.part == "pool" else {}),
        "encoder": plan.encoder.rstrip("/").rpartition("/")[2] or "default",
    }
    named = f"{variant.name}-{weights}-{found.identity}-s{seed}"
    about = ExperimentContext(study, named, seed, plan.command(), read_fit_record(folder))
    new = leakage.new_tools(found.test, plan.test, seen)
    return experiment_result(found.test, plan.test, model, rank_split(found.test, plan.test, model), about, new, need)


def kept(examples: Sequence[Example], share: float) -> list[Example]:
    """A share of the examples, by chance; of two shares the smaller is part of the larger."""
    order = np.random.default_rng(0).permutation(len(examples))
    return [examples[at] for at in np.sort(order[: round(share * len(examples))]).tolist()]


def _need(model: Masstool, found: AblationData, split: str) -> dict[str, float]:
    """How well the detection tower tells the requests from prompts that need no tool; nothing without one."""
    texts = [text for _, text in found.test.split(split).requests]
    forecast = model.need([*texts, *found.prompts]) if found.prompts else None
    if forecast is None:
        return {}
    truth = [True] * len(texts) + [False] * len(found.prompts)
    return {
        "need_auroc": round(metrics.auroc(truth, forecast), 6),
        "need_accuracy": round(metrics.accuracy(truth, forecast), 6),
    }


def jobs(plan: AblationPlan, chosen: Sequence[Variant], seeds: Sequence[int], path: Path) -> list[Job]:
    """A job for each variant and seed whose rows are not in the file yet; the full models first."""
    found = ground(plan)
    refuse_seen(found.test, plan.test, Masstool(None, found.encoder), TrainedOn.of([found.data]))
    there = {(row[STUDY]["variant"], row["seed"], row[STUDY]["weights"]) for row in own_rows(path, found.identity)}
    made = []
    for seed in seeds:
        missing = [one for one in chosen if not {(one.name, seed, weights) for weights in WEIGHTS} <= there]
        served = [one for one in missing if not one.trained]
        if (
            served
            and VARIANTS[0] not in missing
            and not (plan.out / found.identity / f"{FULL}-s{seed}" / MODEL_FILE).is_file()
        ):
            missing.insert(0, VARIANTS[0])  # its rows are there, but the model itself is gone
        first = (f"{FULL} s{seed}",) if VARIANTS[0] in missing else ()
        made += [Job(f"{one.name} s{seed}", work, (plan, one, seed), () if one.trained else first) for one in missing]
    return made


def own_rows(path: Path, identity: str) -> list[dict[str, Any]]:
    """The rows in a file that are of this study."""
    found = rows.known_rows(path)
    return [row for row in found if row.get(STUDY, {}).get("name") == NAME and row[STUDY].get("of") == identity]


class AblationWriter:
    """Writes rows as they come, each with its paired test against the full model; those that come before it wait."""

    def __init__(self, path: Path) -> None:
        """Write to this file of rows, and scores beside it."""
        self._path = path
        self._waiting: list[ExperimentResult] = []
        self._full: dict[tuple[str, int, str], Scores] = {}

    def take(self, done: Sequence[ExperimentResult]) -> None:
        """Take what a job made, and write all that can be."""
        first = [one for one in done if one.row[STUDY]["variant"] == FULL]
        others = self._waiting + [one for one in done if one not in first]
        self._waiting = []
        for one in first + others:
            if self._against(one) is None:
                self._waiting.append(one)
            else:
                rows.append_with_scores(self._path, one.row, one.lines)

    def _against(self, one: ExperimentResult) -> Scores | None:
        """The scores of the full model, once they are there; the row then says how it differs from them."""
        study = one.row[STUDY]
        key = (study["of"], one.row["seed"], study["weights"])
        if study["variant"] == FULL:
            self._full[key] = Scores(self._path, one.lines)
        elif key not in self._full:
            self._full |= self._read(study["of"])
        if key in self._full and study["variant"] != FULL:
            study["against"] = against(self._full[key], Scores(self._path, one.lines))
        return self._full.get(key)

    def _read(self, identity: str) -> dict[tuple[str, int, str], Scores]:
        found: dict[tuple[str, int, str], Scores] = {}
        for row in own_rows(self._path, identity):
            lying = rows.scores_path(self._path, row)
            if row[STUDY]["variant"] == FULL and lying.is_file():
                found[identity, row["seed"], row[STUDY]["weights"]] = Scores(lying, rows.read_scores(lying))
        return found


def against(full: Scores, other: Scores) -> dict[str, list[float]]:
    """How another run differs from the full one, request by request: difference, its interval, and p."""
    new = all("new" in line for line in full.lines) and any(line["new"] for line in full.lines)
    names = [name for name in COMPARED if new or not name.startswith("new_")]
    tested = significance.paired_test(full.values(names), other.values(names), full.scenes)
    found = {}
    for name, one in zip(names, tested, strict=True):
        if one is not None:
            found[name] = [round(value, 6) for value in (one.difference, one.low, one.high, one.p)]
    return found


def place(variant: str) -> int:
    """Where a variant stands in tables."""
    return next((number for number, one in enumerate(VARIANTS) if one.name == variant), len(VARIANTS))


def sorted_rows(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows in the order of the variants."""
    return sorted(found, key=lambda row: (place(row[STUDY]["variant"]), row["seed"]))
