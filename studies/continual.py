"""Tools that come and documents that change, without retraining and with: results/continual.jsonl.

python -m studies.continual [--data NAME] [--encoder FOLDER | --train-dense] [--methods dense,colt,masstool] [--seeds 0]
                         [--models DIR] [--out FILE] [--no-tool FOLDER] [--jobs N] [--stop-after SECONDS] [--only WORD]
                         [--option KEY=VALUE]

The first model knows 80 % of the tools (by a hash of their ids) and the training requests that need no other. The rest
comes in five steps; five rounds of edits change one document in ten each. Needs $TOOLSCOUT_DATA. `--encoder`: the
frozen encoder under all models, the default one unless told. It should not have been trained on the tools that come:
the default one has read those of ToolBench, toolbench-g3 and toollens; toolscout-minilm-1 (its card) and raw have not.
With `--train-dense` an encoder is trained at each step on what is there, and the towers stand on it; without it dense
is the encoder as it is. Rows that are in the file are not made again; models are kept in --models.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from studies.document_edits import edited
from studies.running import RESULTS, numbers, run, say
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.data.no_tool_prompts import read_prompts
from toolscout.evaluation import leakage
from toolscout.evaluation import row as rows
from toolscout.evaluation.fit_record import FitRecord, read_fit_record
from toolscout.evaluation.row import STUDY
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.papers.experiment import (
    ExperimentContext,
    ExperimentResult,
    check_unseen,
    experiment_result,
    rank_split,
)
from toolscout.papers.jobs import Job
from toolscout.papers.precomputed_encoder import PrecomputedEncoder
from toolscout.retrievers.colt import Colt
from toolscout.retrievers.dense import Dense, DenseOptions
from toolscout.retrievers.encoded_requests import train_examples
from toolscout.retrievers.masstool import Masstool
from toolscout.retrievers.model_folder import MODEL_FILE
from toolscout.retrievers.option_values import with_settings
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.retrievers.tower.options import ColtOptions, MasstoolOptions

NAME = "continual"
OUT = RESULTS / "continual.jsonl"
STEPS, BASE = 5, 0.8
TOOLS, DOCUMENTS = "tools", "documents"
KEPT, TOLD, RETRAINED = "kept", "told", "retrained"
DENSE = ("epochs=6", "rate=0.0002", "patience=0")
Model = Dense | Colt | Masstool


@dataclass(frozen=True)
class ContinualPlan:
    """What all jobs share."""

    data: str
    models: Path
    encoder: str = ""
    train_dense: bool = False
    no_tool: str = ""
    settings: tuple[str, ...] = ()
    dense_settings: tuple[str, ...] = DENSE

    @property
    def encoder_name(self) -> str:
        """As the page calls it."""
        return "trained at each step" if self.train_dense else Path(self.encoder).name or "default"

    def folder(self, method: str, change: str, step: int, seed: int) -> Path:
        """Where a model lies. What knows all tools in their first form is one model."""
        whole = change == DOCUMENTS and step == 0
        return self.models / f"{method}-{TOOLS if whole else change}-{STEPS if whole else step}-s{seed}"


@lru_cache(maxsize=1)
def read(plan: ContinualPlan) -> Dataset:
    """The dataset with the three splits that are used."""
    return Dataset.load(find_dataset(plan.data), ["train", "dev", "test"])


def stages(tools: Sequence[Tool]) -> list[frozenset[str]]:
    """The ids of the tools that are there at the beginning and after each step."""
    order = sorted((tool.id for tool in tools), key=lambda i: hashlib.blake2b(i.encode(), digest_size=8).digest())
    first = round(BASE * len(order))
    ends = [first + round((len(order) - first) * step / STEPS) for step in range(STEPS + 1)]
    return [frozenset(order[:end]) for end in ends]


def restricted(dataset: Dataset, ids: Collection[str]) -> Dataset:
    """Only these tools, and the requests that need no other."""
    there = frozenset(ids)
    qrels = {
        split: {request_id: gold for request_id, gold in found.items() if there.issuperset(gold)}
        for split, found in dataset.qrels.items()
    }
    tools = [tool for tool in dataset.tools if tool.id in there]
    return replace(dataset, tools=tools, qrels={split: found for split, found in qrels.items() if found}, scenes={})


def at(plan: ContinualPlan, change: str, step: int) -> Dataset:
    """What is there after a step."""
    whole = read(plan)
    if change == TOOLS:
        return restricted(whole, stages(whole.tools)[step])
    return replace(whole, tools=edited(whole.tools, step))


def grouped(plan: ContinualPlan, change: str, step: int) -> Iterator[tuple[str, Dataset, frozenset[str] | None]]:
    """The test requests of a step in two groups: by whether they need something that came or changed; and what came."""
    whole, now = read(plan), at(plan, change, step)
    if change == TOOLS:
        moved = stages(whole.tools)[step] - stages(whole.tools)[0]
        names = ("old", "added")
    else:
        before = {tool.id: tool.digest() for tool in whole.tools}
        moved = frozenset(tool.id for tool in now.tools if tool.digest() != before[tool.id])
        names = ("untouched", "edited")
    for name in names:
        wanted = name in ("added", "edited")
        chosen = {i: gold for i, gold in now.qrels["test"].items() if bool(moved.intersection(gold)) == wanted}
        if chosen:
            yield name, replace(now, qrels={"test": chosen}), moved if name == "added" else None


@lru_cache(maxsize=2)
def stored(plan: ContinualPlan, folder: str) -> PrecomputedEncoder:
    """The encoder in a folder with the vectors of all texts of the study; those not known are encoded."""
    whole, encoder = read(plan), Encoder.load(Path(folder) if folder else None)
    texts = [text for split in whole.splits for _, text in whole.split(split).requests]
    texts += [prompt.text for prompt in read_prompts(find_dataset(plan.no_tool))] if plan.no_tool else []
    tools = {tool.digest(): tool for step in range(STEPS + 1) for tool in edited(whole.tools, step)}
    plan.models.mkdir(parents=True, exist_ok=True)
    return PrecomputedEncoder.of(encoder, texts, list(tools.values()), plan.models / f"{encoder.fingerprint[:16]}.db")


def encoder_of(plan: ContinualPlan, change: str, step: int, seed: int) -> PrecomputedEncoder:
    """The encoder under the models of a step."""
    trained = plan.folder("dense", change, step, seed) / "encoder"
    return stored(plan, str(trained) if plan.train_dense else plan.encoder)


def trained(plan: ContinualPlan, method: str, change: str, step: int, seed: int) -> Model:
    """The model of a step, trained unless that was done before, and opened."""
    folder, data = plan.folder(method, change, step, seed), at(plan, change, step)
    if method == "dense" and not plan.train_dense:
        made = Dense(None, encoder_of(plan, change, step, seed))
        made.add(data.tools)
        return made
    if not (folder / MODEL_FILE).is_file():
        sets = [TrainingSet(data, "train", "dev" if "dev" in data.qrels else "")]
        _untrained(plan, method, change, step, seed).fit(sets, folder)
    kinds: Mapping[str, Any] = {"dense": Dense, "colt": Colt, "masstool": Masstool}
    loaded: Model = kinds[method].load(folder, encoder_of(plan, change, step, seed))
    return loaded


def _untrained(plan: ContinualPlan, method: str, change: str, step: int, seed: int) -> Model:
    if method == "dense":
        return Dense(replace(with_settings(DenseOptions(), "dense", plan.dense_settings), seed=seed))
    encoder = encoder_of(plan, change, step, seed)
    if method == "colt":
        return Colt(replace(with_settings(ColtOptions(), "colt", plan.settings), seed=seed), encoder)
    no_tool = str(find_dataset(plan.no_tool)) if plan.no_tool else ""
    options = replace(with_settings(MasstoolOptions(), "masstool", plan.settings), seed=seed, no_tool=no_tool)
    return Masstool(options, encoder)


def kept(plan: ContinualPlan, method: str, change: str, seed: int, mode: str) -> list[ExperimentResult]:
    """Train once; then follow all steps. `told`: requests that used what has come are learned too."""
    model, found = trained(plan, method, change, 0, seed), []
    known = {(tool.id, tool.digest()) for tool in at(plan, change, 0).tools}
    requests = set(at(plan, change, 0).qrels["train"])
    for step in range(STEPS + 1):
        now = at(plan, change, step)
        model.add([tool for tool in now.tools if (tool.id, tool.digest()) not in known])
        known |= {(tool.id, tool.digest()) for tool in now.tools}
        if mode == TOLD:
            fresh = {i: gold for i, gold in now.qrels["train"].items() if i not in requests}
            requests |= set(fresh)
            if fresh:
                model.learn(train_examples([TrainingSet(replace(now, qrels={"train": fresh}), "train", "")]))
        found += measured(plan, model, change, step, seed, mode, plan.folder(method, change, 0, seed))
    return found


def retrained(plan: ContinualPlan, method: str, change: str, seed: int, step: int) -> list[ExperimentResult]:
    """Train on what is there after a step."""
    model = trained(plan, method, change, step, seed)
    return measured(plan, model, change, step, seed, RETRAINED, plan.folder(method, change, step, seed))


def measured(
    plan: ContinualPlan, model: Model, change: str, step: int, seed: int, mode: str, folder: Path
) -> list[ExperimentResult]:
    """The rows of a model after a step, one for each group of requests."""
    found = []
    fit = read_fit_record(folder) if (folder / MODEL_FILE).is_file() else FitRecord()
    seen = TrainedOn.load(folder) if folder.is_dir() else TrainedOn()
    for group, dataset, new in grouped(plan, change, step):
        check_unseen(dataset, "test", model, seen)
        told = {
            "name": NAME,
            "change": change,
            "mode": mode,
            "step": step,
            "group": group,
            "encoder": plan.encoder_name,
            "settings": list(plan.settings),
            "job": job_name(model.name, change, mode, step if mode == RETRAINED else 0, seed),
        }
        named = f"{change}-{mode}-{group}-{step}-{plan.encoder_name.replace(' ', '-')}-s{seed}"
        about = ExperimentContext(told, named, seed, "python -m studies.continual", fit)
        found.append(experiment_result(dataset, "test", model, rank_split(dataset, "test", model), about, new))
    return found


def job_name(method: str, change: str, mode: str, step: int, seed: int) -> str:
    """What tells jobs apart."""
    return f"{method} {change} {mode} {step} s{seed}"


def jobs(plan: ContinualPlan, methods: Sequence[str], seeds: Sequence[int], path: Path, only: str = "") -> list[Job]:
    """All jobs whose rows are not in the file yet."""
    encoder = None if plan.train_dense else stored(plan, plan.encoder).fingerprint
    there = {row[STUDY].get("job") for row in rows.known_rows(path) if _is_own(plan, row, encoder)}
    made = []
    for seed in seeds:
        for method in sorted(methods, key=lambda name: name != "dense"):
            for change in (TOOLS, DOCUMENTS):
                modes = [KEPT, *([TOLD] if method == "masstool" and change == TOOLS else [])]
                first = {mode: job_name(method, change, mode, 0, seed) for mode in modes}
                made += [Job(first[mode], kept, (plan, method, change, seed, mode)) for mode in modes]
                if method != "dense" or plan.train_dense:
                    for step in range(1, STEPS + 1):
                        name = job_name(method, change, RETRAINED, step, seed)
                        made.append(Job(name, retrained, (plan, method, change, seed, step)))
    left = [job for job in made if job.name not in there and only in job.name]
    names = {job.name for job in left}
    return [replace(job, after=tuple(sorted(names & _before(plan, job)))) for job in left]


def _before(plan: ContinualPlan, job: Job) -> set[str]:
    """Those that make what a job reads: the encoder under it, and models that two jobs share."""
    _, method, change, seed, last = job.arguments
    step = last if isinstance(last, int) else 0
    found = set()
    if plan.train_dense and method != "dense":
        mode = RETRAINED if step else KEPT
        found.add(job_name("dense", change, mode, step, seed))
    if last == TOLD:
        found.add(job_name(method, change, KEPT, 0, seed))
    if change == DOCUMENTS and not step:
        found.add(job_name(method, TOOLS, RETRAINED, STEPS, seed))
    return found - {job.name}


def _is_own(plan: ContinualPlan, row: Mapping[str, Any], encoder: str | None) -> bool:
    """Whether a row is of this plan; `encoder`: the fingerprint of the frozen one, None where one is trained."""
    told = row.get(STUDY, {})
    same = told.get("encoder") == plan.encoder_name and told.get("settings") == list(plan.settings)
    same = same and encoder in (None, row.get("encoder"))
    return bool(told.get("name") == NAME and row["dataset"] == Path(plan.data).name and same)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="toollens")
    parser.add_argument("--encoder", default="")
    parser.add_argument("--train-dense", action="store_true")
    parser.add_argument("--methods", default="dense,colt,masstool")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--models", type=Path, default=Path("models/continual"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--no-tool", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--stop-after", type=float, default=float("inf"))
    parser.add_argument("--only", default="")
    parser.add_argument("--option", action="append", default=[])
    told = parser.parse_args()
    plan = ContinualPlan(told.data, told.models, told.encoder, told.train_dense, told.no_tool, tuple(told.option))
    rows.check_writable(told.out)
    told.models.mkdir(parents=True, exist_ok=True)
    if not told.train_dense:
        come = stages(read(plan).tools)[-1] - stages(read(plan).tools)[0]
        seen = leakage.encoder_history(stored(plan, told.encoder)).tools  # encodes all, before there are many processes
        known = sum(tool.digest() in seen for tool in read(plan).tools if tool.id in come)
        if known:
            say(f"note: the encoder was trained on {known} of the {len(come)} tools that come")
    todo = jobs(plan, told.methods.split(","), numbers(told.seeds), told.out, told.only)
    run(todo, told.jobs, told.stop_after, partial(_write, told.out))


def _write(out: Path, found: Sequence[ExperimentResult]) -> None:
    for one in found:
        rows.append_with_scores(out, one.row, one.lines)


if __name__ == "__main__":
    main()
