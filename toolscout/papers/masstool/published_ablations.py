"""Ablations of masstool_published: the paper's variants of the published network, trained on cached vectors.

`VARIANTS` names what each variant changes, `SETTINGS` has the paper's settings of a dataset, and `run_variant` trains
and measures one variant with one seed.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toolscout.data.locate import find_dataset
from toolscout.errors import BadModel, BadRequest
from toolscout.evaluation import leakage
from toolscout.evaluation import row as rows
from toolscout.evaluation.fit_record import read_fit_record
from toolscout.evaluation.row import STUDY
from toolscout.papers.experiment import ExperimentContext, ExperimentResult, check_unseen, experiment_result, rank_split
from toolscout.papers.jobs import Job
from toolscout.papers.masstool.ablations import FULL, StudyPlan, cached_data, need_measures, own_rows
from toolscout.papers.masstool.published import MasstoolPublished, MasstoolPublishedOptions
from toolscout.retrievers.document_index import ENCODER_FOLDER
from toolscout.retrievers.model_folder import MODEL_FILE
from toolscout.retrievers.option_values import with_settings
from toolscout.retrievers.provenance import TrainedOn

NAME = "masstool_published"
SETTINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "toollens": (),
        # With the published batch of 2,048, an epoch of this train split would be a single step.
        "toolbench-g3": (
            "rate=0.005",
            "temperature=0.05",
            "weight_detection=0.05",
            "epsilon=0.87",
            "epochs=100",
            "batch=512",
        ),
    }
)
"""The options of the paper by dataset, as NAME=VALUE; those of ToolLens are the defaults of the method."""
_WITHOUT: Mapping[str, Mapping[str, Any]] = {
    "without-detection": {"weight_detection": 0.0},
    "without-suim": {"neighbours": 0},
    "without-adakt": {"transfer": "none"},
    "without-dynamic-filter": {"epsilon": 0.0},
    "without-contrastive": {"beta": 0.0},
    "without-qc-gcn": {"layers": 0},
}
VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        FULL: {},
        **_WITHOUT,
        **{f"transfer-{one}": {"transfer": one} for one in ("addition", "concatenation", "attention")},
        **{f"lambda-{one:g}": {"weight_detection": one} for one in (0.08, 0.2, 0.5, 1.0)},
        **{f"epsilon-{one:g}": {"epsilon": one} for one in (0.6, 0.7, 0.8, 0.9, 1.0)},
        **{f"layers-{one}": {"layers": one} for one in (2, 3)},
        **{f"density-{one:g}": {"train_share": one} for one in (0.1, 0.25, 0.5, 0.75)},
    }
)
"""What each variant changes of the options, in the order of tables; the part it is about is the first word of its name.

Without detection, the tower stays and is trained by the retrieval loss alone, through AdaKT. Without QC-GCN, both views
of a request are its own vector, and the contrastive loss only drives requests of a batch apart.
"""


@dataclass(frozen=True)
class PublishedPlan(StudyPlan):
    """The plan of these ablations; `settings` are added to those of the paper for the dataset."""

    def options(self, variant: str, seed: int) -> MasstoolPublishedOptions:
        """Return the options of a variant.

        Raises BadRequest for a variant that does not exist, BadModel for an option that variants cannot share.
        """
        if variant not in VARIANTS:
            raise BadRequest(f"there is no variant {variant!r:.80}; there are: {', '.join(VARIANTS)}")
        dataset = find_dataset(self.data.partition(":")[0]).name
        found = with_settings(MasstoolPublishedOptions(), NAME, (*SETTINGS.get(dataset, ()), *self.settings))
        if found.encoder or found.no_tool:
            raise BadModel("variants share the vectors of one frozen encoder: name it and the prompts in the plan")
        if not self.no_tool:
            raise BadModel("the published network learns detection too: name a folder of prompts that need no tool")
        return replace(found, seed=seed, no_tool=str(find_dataset(self.no_tool)), **VARIANTS[variant])

    def encoder_name(self) -> str:
        """Return what rows call the encoder: the name of its folder, or of the model whose encoder it is."""
        folder = Path(self.encoder)
        return (folder.parent if folder.name == ENCODER_FOLDER else folder).name or "default"

    def command(self) -> str:
        """Return the command that repeats the study, without paths of this machine."""
        words = ["python", "-m", "studies.masstool_published", self.data.rpartition("/")[2], "--test", self.test]
        words += ["--no-tool", Path(self.no_tool).name, *(["--encoder", "ENCODER"] if self.encoder else [])]
        return shlex.join([*words, *(word for one in self.settings for word in ("--option", one))])


def run_variant(plan: PublishedPlan, variant: str, seed: int) -> ExperimentResult:
    """Train one variant and measure it on the test split; return its row and the scores of single requests.

    A training that was interrupted goes on. `AblationWriter(path, NAME).add([result])` writes the row with its paired
    test against the full network. A module-level function, so that another process can run it.

    Raises BadRequest for a variant that does not exist, Leak for a test split that shares requests with training.
    """
    options = plan.options(variant, seed)
    found = cached_data(plan)
    folder = plan.out / found.identity / f"{variant}-s{seed}"
    if not (folder / MODEL_FILE).is_file():
        MasstoolPublished(options, found.encoder).fit([found.data], folder)
    model = MasstoolPublished.load(folder, found.encoder)
    seen = check_unseen(found.test, plan.test, model, TrainedOn.load(folder))
    study = {
        "name": NAME,
        "of": found.identity,
        "variant": variant,
        "part": variant.partition("-")[0],
        "changes": dict(VARIANTS[variant]),
        "encoder": plan.encoder_name(),
        "epochs": len((model.fit_record or {}).get("history", ())),
    }
    about = ExperimentContext(
        study, f"{variant}-{found.identity}-s{seed}", seed, plan.command(), read_fit_record(folder)
    )
    answers = rank_split(found.test, plan.test, model)
    new = leakage.new_tools(found.test, plan.test, seen)
    result = experiment_result(
        found.test, plan.test, model, answers, about, new, need_measures(model, found, plan.test)
    )
    shutil.rmtree(folder)  # the row is all that is needed of a variant
    return result


def jobs(plan: PublishedPlan, variants: Sequence[str], seeds: Sequence[int], path: Path) -> list[Job]:
    """Return a job for each variant and seed whose row is not in the file `path`; of each seed the full network first.

    The full network is trained again where the scores of its requests are missing: others are tested against them.
    Raises BadRequest for a variant that does not exist, Leak where the test split shares requests with training.
    """
    for variant in variants:
        plan.options(variant, 0)
    found = cached_data(plan)
    check_unseen(found.test, plan.test, MasstoolPublished(None, found.encoder), TrainedOn.of([found.data]))
    own = own_rows(path, found.identity, NAME)
    written = {(row[STUDY]["variant"], row["seed"]) for row in own}
    comparable = {row["seed"] for row in own if row[STUDY]["variant"] == FULL and rows.scores_path(path, row).is_file()}
    todo: list[Job] = []
    for seed in seeds:
        missing = [variant for variant in variants if (variant, seed) not in written and variant != FULL]
        if (missing and seed not in comparable) or (FULL in variants and (FULL, seed) not in written):
            missing.insert(0, FULL)
        todo += [Job(f"{variant} s{seed}", run_variant, (plan, variant, seed)) for variant in missing]
    return todo
