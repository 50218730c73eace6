"""What each stage of the training of a generative model gives and takes: results/stages.jsonl.

python -m studies.generative_stages [--data toollens] [--method toolgen] [--variants full,full-mixed,without-memorise,…]
[--seeds 0]
                      [--no-tool no_tool] [--trajectories FILE] [--epochs N] [--memorise N] [--dev N] [--glue FILE]
                      [--models DIR] [--out FILE] [--stop-after SECONDS] [--option KEY=VALUE]

After each stage: from document to id (the first tool under the constraint, over tools that training requests need),
what the requests of dev find, what the model writes without the constraint, and how well it foretells the prompts of
the split test of no_tool, a text that it never learned from. The base model stands beside them. `mixed` variants go
through general texts on the way (instruct_mix 0.5); --trajectories adds the stage of the agent, which only `rehearsed`
variants go through with the requests of the stage before (without it they are `full` ones, and left out). --glue is a
task of your own, lines of {"text", "label"}: the label that the model takes for the likeliest behind the text. Needs
$TOOLSCOUT_DATA. Rows that are in the file are not made again, and a training that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from studies.running import RESULTS, by_hash, numbers, progress, run, say
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.data.no_tool_prompts import read_prompts
from toolscout.errors import BadModel
from toolscout.evaluation import row as rows
from toolscout.evaluation.fit_record import FitRecord
from toolscout.evaluation.row import STUDY
from toolscout.models.decoding.constrained import best, greedy
from toolscout.models.decoding.trie import Trie
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.papers.experiment import ExperimentContext, experiment_result, rank_split
from toolscout.papers.jobs import Job
from toolscout.papers.labelled_texts import Labelled, read_labelled
from toolscout.retrievers.generative.base import SPECIALS
from toolscout.retrievers.model_folder import MODEL_FILE
from toolscout.retrievers.option_values import with_settings
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.toolgen import Toolgen, ToolgenOptions
from toolscout.retrievers.toolweaver import Toolweaver, ToolweaverOptions

if TYPE_CHECKING:
    from toolscout.models.language.torch_network import TransformerNetwork

NAME = "stages"
OUT = RESULTS / "stages.jsonl"
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "full-mixed": {"instruct_mix": 0.5},
    "without-memorise": {"memorise": 0},
    "without-retrieve": {"epochs": 0},
    "without-retrieve-mixed": {"epochs": 0, "instruct_mix": 0.5},
    "rehearsed": {"rehearse": 1.0},
    "rehearsed-mixed": {"rehearse": 1.0, "instruct_mix": 0.5},
}
DEFAULT = "full,full-mixed,without-memorise,without-retrieve,rehearsed,rehearsed-mixed"
BASE = "base"
RIGHT, OTHER, INVENTED, WORDS, NOTHING = "right", "other", "invented", "words", "nothing"
KINDS = (RIGHT, OTHER, INVENTED, WORDS, NOTHING)
TEXT = "test"
_LONGEST = 48  # tokens that are written freely, where ids are no shorter
Model = Toolgen | Toolweaver


@dataclass(frozen=True)
class StagesPlan:
    """What all jobs share. `dev`: requests of dev that are asked, and documents, at most."""

    models: Path
    out: Path
    data: str = "toollens"
    method: str = "toolgen"
    no_tool: str = "no_tool"
    trajectories: str = ""
    epochs: int = 6
    memorise: int = 1
    dev: int = 500
    glue: str = ""
    settings: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def read(plan: StagesPlan) -> Dataset:
    """The dataset, with a sample of its dev split."""
    whole = Dataset.load(find_dataset(plan.data), ["train", "dev"])
    few = by_hash(whole.qrels["dev"])[: plan.dev]
    return replace(whole, qrels={**whole.qrels, "dev": {request: whole.qrels["dev"][request] for request in few}})


@lru_cache(maxsize=1)
def labelled(path: str) -> list[Labelled]:
    """The task of labels, empty where there is none."""
    return read_labelled(Path(path)) if path else []


def untrained(plan: StagesPlan, variant: str, seed: int) -> Model:
    """A model with the options of a variant."""
    told: dict[str, Any] = {
        "epochs": plan.epochs,
        "memorise": plan.memorise,
        "trajectories": plan.trajectories,
        "no_tool": str(find_dataset(plan.no_tool)),
        "seed": seed,
        "rehearse": 0.0,
        **VARIANTS.get(variant, {}),
    }
    if plan.method == "toolgen":
        return Toolgen(with_settings(ToolgenOptions(**told), plan.method, plan.settings), Encoder.load(None))
    woven = with_settings(ToolweaverOptions(**told), plan.method, plan.settings)
    return Toolweaver(woven, Encoder.load(None))


class StageWatch:
    """Measures a model after each stage, and writes the row at once."""

    def __init__(self, plan: StagesPlan, variant: str, seed: int, model: Model) -> None:
        """Of one training."""
        self._plan, self._variant, self._seed, self._model = plan, variant, seed, model
        self._stages: list[str] = []
        self._started = time.perf_counter()

    def __call__(self, stage: str, network: TransformerNetwork) -> None:
        """A stage is over."""
        self._stages.append(stage)
        if stage in done(self._plan, self._variant, self._seed):
            return
        data, model, spent = read(self._plan), self._model, time.perf_counter() - self._started
        extra = {
            "document_accuracy": documents(model, data, self._plan.dev),
            **unconstrained(model, data),
            **language(self._plan, network, model.words().added(), model),
        }
        fit = FitRecord(round(spent, 3), network.device.type, None, self._seed)
        about = ExperimentContext(
            self._told(stage), self._name(stage), self._seed, "python -m studies.generative_stages", fit
        )
        found = experiment_result(data, "dev", model, rank_split(data, "dev", model), about, None, extra)
        rows.append_with_scores(self._plan.out, found.row, found.lines)
        say(f"{self._variant} {stage}: {', '.join(f'{name} {value:.3f}' for name, value in extra.items())}")

    def _told(self, stage: str) -> dict[str, Any]:
        plan = self._plan
        return {
            "name": NAME,
            "variant": self._variant,
            "stage": stage,
            "stages": list(self._stages),
            "text": f"{Path(plan.no_tool).name} {TEXT}",
            "task": Path(plan.glue).stem if plan.glue else "",
            "epochs": plan.epochs,
            "memorise": plan.memorise,
            "settings": list(plan.settings),
        }

    def _name(self, stage: str) -> str:
        return f"{NAME}-{self._variant}-{stage}-s{self._seed}"

    def base(self) -> None:
        """The row of the language model as it comes: it knows no tools, but it knows language."""
        import torch

        from toolscout.models.language.torch_network import TransformerNetwork
        from toolscout.training.loop import pick_device

        base, data = self._model.base(), read(self._plan)
        network = TransformerNetwork(base.architecture, base.weights(), 1, pick_device(self._model.options.device))
        nothing = np.zeros((0, base.architecture.hidden), np.float32)
        about = ExperimentContext(
            self._told(BASE), self._name(BASE), None, "python -m studies.generative_stages", FitRecord()
        )
        extra = language(self._plan, network, nothing, self._model)
        found = experiment_result(data, "dev", self._model, rank_split(data, "dev", self._model), about, None, extra)
        rows.append(self._plan.out, found.row | {"metrics": extra, "intervals": {}, "options": {}})
        del network
        torch.cuda.empty_cache()


def documents(model: Model, data: Dataset, most: int) -> float:
    """How often a document's own id is the first under the constraint, of tools that training requests need."""
    used = sorted({tool_id for gold in data.qrels["train"].values() for tool_id in gold})
    known = {tool.id: tool for tool in data.tools}
    few = by_hash(used)[:most]
    found = first(model, [known[tool_id].document() for tool_id in few])
    return float(np.mean([one == tool_id for one, tool_id in zip(found, few, strict=True)]))


def first(model: Model, texts: Sequence[str]) -> list[str]:
    """The first tool of each text by its id's probability, "no tool" among them; names in the text do not help."""
    reading = model._extended(model.reading(texts), model._request_vectors(texts))
    ranked = best(reading, model._scoring(), model._trie, 1, extra=SPECIALS)
    return [few[0][0] for few in ranked]


def unconstrained(model: Model, data: Dataset) -> dict[str, float]:
    """What is written without the constraint, as shares of the requests, and what the constraint does to right ones.

    `spoiled`: the share of requests whose greedy answer is right while the first under the constraint is not.
    """
    split = data.split("dev")
    texts = [text for _, text in split.requests]
    longest = max(len(model.path(tool_id)) for tool_id in model.ids())
    written = greedy(model.reading(texts), model.words(), model.base().end, min(longest, _LONGEST))
    kinds = [kind(model, tokens, gold) for tokens, gold in zip(written, split.gold, strict=True)]
    counted = Counter(kinds)
    kept = first(model, texts)
    right = [tool_id in gold for tool_id, gold in zip(kept, split.gold, strict=True)]
    spoiled = sum(one == RIGHT and not fine for one, fine in zip(kinds, right, strict=True))
    mended = sum(one != RIGHT and fine for one, fine in zip(kinds, right, strict=True))
    shares = {f"free_{name}": counted[name] / len(kinds) for name in KINDS}
    found = {"first_right": float(np.mean(right)), "spoiled": spoiled / len(kinds), "mended": mended / len(kinds)}
    return shares | found


def kind(model: Model, tokens: Sequence[int], gold: Sequence[str]) -> str:
    """What was written: a right tool, another one, the beginning of an id that goes on as none does, words, nothing.

    What stands behind a whole id is not looked at. "No tool" and "finish" name no tool: they are nothing.
    """
    node: int | None = Trie.ROOT
    for token in tokens:
        node = model._trie.step(node, token) if node is not None else None
        key = model._trie.key(node) if node is not None else None
        if key is not None:
            return NOTHING if key in SPECIALS else RIGHT if key in gold else OTHER
    if not tokens or tokens[0] in map(model.token, SPECIALS):
        return NOTHING
    begun = model._trie.step(Trie.ROOT, tokens[0]) is not None
    return INVENTED if begun or tokens[0] >= model.base().architecture.vocabulary else WORDS


def language(plan: StagesPlan, network: TransformerNetwork, added: Any, model: Model) -> dict[str, float]:
    """How well texts are foretold, and the task of labels where there is one."""
    from toolscout.papers.language_measures import accuracy, perplexity

    texts = [prompt.text for prompt in read_prompts(find_dataset(plan.no_tool), TEXT)]
    found = perplexity(network, added, model.base(), texts)
    task = labelled(plan.glue)
    found = {name: round(value, 4) for name, value in found.items()}
    return found | ({"task_accuracy": accuracy(network, added, model.base(), task)} if task else {})


def done(plan: StagesPlan, variant: str, seed: int | None) -> set[str]:
    """The stages of a training whose rows are there."""
    found = rows.known_rows(plan.out)
    same = {"variant": variant, "epochs": plan.epochs, "memorise": plan.memorise, "settings": list(plan.settings)}
    return {
        row[STUDY]["stage"]
        for row in found
        if (row["dataset"], row["retriever"], row["seed"]) == (read(plan).name, plan.method, seed)
        and all(row[STUDY].get(key) == value for key, value in same.items())
    }


def expected(plan: StagesPlan, variant: str) -> set[str]:
    """The stages that a training has."""
    told = {"memorise": plan.memorise, "epochs": plan.epochs, **VARIANTS[variant]}
    stages = {"memorise": told["memorise"], "retrieve": told["epochs"], "agent": bool(plan.trajectories)}
    return {stage for stage, there in stages.items() if there}


def measure(plan: StagesPlan, variant: str, seed: int) -> None:
    """Train one variant, and measure it on the way."""
    model = untrained(plan, variant, seed)
    watch = StageWatch(plan, variant, seed, model)
    if variant == BASE:
        watch.base()
        return
    model.watch = watch
    folder = plan.models / f"{plan.data.replace('/', '-')}-{plan.method}-{variant}-s{seed}"
    if (folder / MODEL_FILE).is_file():
        raise BadModel(f"{folder} is complete, but not all of its rows are there; remove it to train again")
    model.fit([TrainingSet(read(plan), "train", "dev")], folder, progress())


def jobs(plan: StagesPlan, variants: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """All trainings that have a stage whose row is not in the file yet; the base model first."""
    made = [] if done(plan, BASE, None) else [Job(BASE, measure, (plan, BASE, 0))]
    for seed in seeds:
        for variant in variants:
            if VARIANTS[variant].get("rehearse") and not plan.trajectories:
                continue
            if not expected(plan, variant) <= done(plan, variant, seed):
                made.append(Job(f"{variant} s{seed}", measure, (plan, variant, seed)))
    return made


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="toollens")
    parser.add_argument("--method", choices=("toolgen", "toolweaver"), default="toolgen")
    parser.add_argument("--variants", default=DEFAULT)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--no-tool", default="no_tool")
    parser.add_argument("--trajectories", default="")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--memorise", type=int, default=1)
    parser.add_argument("--dev", type=int, default=500)
    parser.add_argument("--glue", default="")
    parser.add_argument("--models", type=Path, default=Path("models/stages"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--stop-after", type=float, default=float("inf"))
    parser.add_argument("--option", action="append", default=[])
    told = parser.parse_args()
    about = {name: getattr(told, name) for name in ("data", "method", "no_tool", "trajectories", "epochs", "memorise")}
    plan = StagesPlan(told.models, told.out, **about, dev=told.dev, glue=told.glue, settings=tuple(told.option))
    rows.check_writable(told.out)
    told.models.mkdir(parents=True, exist_ok=True)
    todo = jobs(plan, told.variants.split(","), numbers(told.seeds))
    run(todo, 1, told.stop_after)


if __name__ == "__main__":
    main()
