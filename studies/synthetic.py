"""What requests that a language model wrote are worth in training: results/synthetic.jsonl.

python -m studies.synthetic [rows|texts] [--only toollens*] [--methods dense,masstool,toolgen,hybrid] [--per-tool 0,5,…]
                         [--seeds 0] [--side-by-side N] [--models DIR] [--out FILE] [--stop-after SECONDS]
                         [--batch N] [--option [METHOD.]KEY=VALUE]
python -m studies.synthetic default|default-texts [--pool DIR] [--before DIR] [--per-tool 3] [and the other options]

The first form holds tools out: on the splits of unseen tools a generator (SmolLM2) learns from the train split to write
requests, and writes some for every tool that has none there, of whose document alone it knows. dense, masstool, toolgen
and hybrid (bm25, memory and dense) are trained on real and written requests, and asked the real requests for those
tools. --per-tool: how many written requests a tool has at most; the fewer are the first of the many. Of METHOD `synth`
options are those of the generator, of `writing` those of what it writes.
`default` is the recipe of toolscout-minilm-2, the default encoder before this one (--pool is what
recipes/default_model_data.py made): five sets, and requests written for all documents of ToolBench by a generator that
learned from three of them.
--before is the encoder without them, toolscout-minilm-1, which the repository had as the default one at 59c0c74:
git archive 59c0c74 toolscout/default_model | tar x --strip-components=2 -C models/before
`texts` and `default-texts` train generators and write, and measure nothing; --batch texts are written together. All
begins with the published encoder: `toolscout encoder export`. Needs $TOOLSCOUT_DATA; a GPU for real sizes
(TOOLSCOUT_DEVICE=cuda). Rows that are in the file are not made again, an interrupted training or writing goes on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from studies.rewriting_models import complete, raw
from studies.round_trip import judge
from studies.running import RESULTS, numbers, progress, run, say
from studies.trained import SETS
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.evaluation import fit_record
from toolscout.evaluation import row as rows
from toolscout.evaluation.evaluate import evaluate, load_splits
from toolscout.evaluation.row import STUDY
from toolscout.evaluation.vector_cache import cache_path, tool_vectors
from toolscout.llm.finetuned import is_finetuned, read_finetuned
from toolscout.papers.jobs import Job
from toolscout.retrievers import training_setup
from toolscout.retrievers.dense import Dense, DenseOptions
from toolscout.retrievers.document_index import ENCODER_FOLDER
from toolscout.retrievers.model_folder import trained_on
from toolscout.retrievers.option_values import with_settings
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.retrievers.registry import load_model
from toolscout.synth import (
    RequestWriter,
    SynthOptions,
    SynthSource,
    WriterTrainingOptions,
    fewer,
    synthesise,
    train_synth,
)

NAME = "synthetic"
OUT = RESULTS / "synthetic.jsonl"
METHODS, PER_TOOL = "dense,masstool,toolgen,hybrid", "0,5,10,20,40"
DEFAULT = "toolbench"
# Beside ToolBench: two sets of its tools, two of others.
ELSEWHERE = ("toollens", "toolbench-g3", "simpletoolquestions", "bundled")
# That of toolscout-minilm-2.
RECIPE = ("average=0.5", "epochs=3", "candidates=512", "patience=0")


@dataclass(frozen=True)
class HeldOutSet:
    """A set with tools held out."""

    name: str
    data: str
    test: str = "unseen_tool.test"
    options: tuple[str, ...] = ()

    @property
    def dataset(self) -> str:
        """The dataset's name."""
        return self.data.partition(":")[0]


HELD = tuple(
    HeldOutSet(one.name, one.data, options=one.options)
    for one in SETS
    if one.name in ("toollens-unseen_tool", "g3-unseen_tool")
)


@dataclass(frozen=True)
class SyntheticPlan:
    """What all jobs share. `batch`: texts that are written together, 0 as usual."""

    models: Path
    out: Path
    held: tuple[HeldOutSet, ...] = HELD
    per_tool: tuple[int, ...] = (0, 5, 10, 20, 40)
    settings: tuple[str, ...] = ()
    pool: Path = Path("models/pool")
    before: Path = Path("models/before")
    catalogue: str = DEFAULT
    batch: int = 0

    def of(self, method: str) -> list[str]:
        """The settings of one method."""
        split = [(one.partition("=")[0].rpartition("."), one.partition("=")[2]) for one in self.settings]
        return [f"{key}={value}" for (whose, _, key), value in split if whose in ("", method)]

    def generator(self, name: str, seed: int) -> Path:
        """Where a generator lies."""
        return self.models / f"writer-{name}-s{seed}"

    def written(self, name: str, seed: int) -> Path:
        """Where what it wrote lies."""
        return self.models / f"written-{name}-s{seed}"

    def model(self, name: str, method: str, count: int, seed: int) -> Path:
        """Where a model lies."""
        return self.models / f"{method}-{name}-{count}-s{seed}"


def train_writer(plan: SyntheticPlan, name: str, data: Sequence[str], seed: int) -> None:
    """Teach a generator to write requests like those of the train splits."""
    options = with_settings(WriterTrainingOptions(seed=seed), "synth", plan.of("synth"))
    train_synth(
        training_setup.training_sets(data), plan.generator(name, seed), options, encoder=raw(), progress=progress()
    )


def write(plan: SyntheticPlan, name: str, source: str, wanted: str, count: int, seed: int) -> None:
    """Have it write so many requests for each tool, and say on the way what that took."""
    opened = SynthSource.open(source)
    options = with_settings(SynthOptions(per_tool=count, seed=seed), "writing", plan.of("writing"))  # type: ignore[type-var]
    folder = plan.written(name, seed)
    partial = folder.with_name(f"{folder.name}.partial.jsonl")
    started = time.perf_counter()
    vectors = tool_vectors(opened.tools, raw(), cache_path())
    writer = RequestWriter.open(str(plan.generator(name, seed)), seed=seed, batch=plan.batch or None)
    began = time.perf_counter()
    made = synthesise(
        opened,
        writer,
        options,
        "new" if wanted == "new" else "all",
        retriever=judge(opened.tools) if options.round_trip else None,
        vectors=vectors,
        partial=partial,
        progress=progress(),
    )
    seconds = time.perf_counter() - began
    made.write(folder)
    rows.append(
        plan.out,
        {
            "bench": NAME,
            "tools": len(opened.tools),
            "requests": f"written {name} s{seed}",
            "values": {
                "seconds": round(seconds, 1),
                "prepare_s": round(began - started, 1),
                "anchors": made.wanted,
                "kept": len(made.requests),
                "tokens_per_s": round(float(made.usage["llm_completion_tokens"] or 0) / seconds, 1),
                **{f"dropped: {why}": count for why, count in made.dropped.items()},
                **{key: value for key, value in made.usage.items() if isinstance(value, int)},
            },
            "writer": _writer(plan, name, seed),
            **rows.provenance("python -m studies.synthetic texts"),
        },
    )
    partial.unlink(missing_ok=True)


def _writer(plan: SyntheticPlan, name: str, seed: int) -> dict[str, Any]:
    about = read_finetuned(plan.generator(name, seed))
    return {"learned_from": about["data"], "fit_s": about["fit"]["seconds"], "examples": about["fit"]["examples"]}


def sets(plan: SyntheticPlan, held: HeldOutSet, count: int, seed: int) -> list[TrainingSet]:
    """What is trained on: the real requests, and the first so many written ones of each tool."""
    found = training_setup.training_sets([held.data])
    if count:
        folder = plan.written(held.name, seed)
        few = fewer(Dataset.load(folder, Dataset.split_names(folder)), count)
        dev = "dev" if "dev" in few.qrels else ""
        found.append(TrainingSet(few, "train", dev, TrainedOn.load(folder)))
    return found


def train(plan: SyntheticPlan, held: HeldOutSet, method: str, count: int, seed: int) -> None:
    """Train one method. Others than dense learn on the vectors of its encoder; hybrid has it as a part."""
    folder, dense = plan.model(held.name, method, count, seed), plan.model(held.name, "dense", count, seed)
    parts, settings = [], [f"seed={seed}"]
    if method == "dense":
        settings += held.options
    elif method == "hybrid":
        parts, settings = ["bm25", "memory", str(dense)], []
    else:
        settings += [f"encoder={dense / ENCODER_FOLDER}", "epochs=3"]
    made = training_setup.made(method, parts, [*settings, *plan.of(method)])
    made.fit(sets(plan, held, count, seed), folder, progress())


def measure(plan: SyntheticPlan, held: HeldOutSet, method: str, count: int, seed: int) -> dict[str, Any]:
    """Ask a model the real requests."""
    folder = plan.model(held.name, method, count, seed)
    data = load_splits(find_dataset(held.dataset), [held.test])
    told = {"name": NAME, "family": held.name, "method": method, "per_tool": count, **_trained(plan, held, count, seed)}
    return _evaluated(plan, data, held.test, folder, f"{NAME}-{method}-{count}-s{seed}", told)


def _trained(plan: SyntheticPlan, held: HeldOutSet, count: int, seed: int) -> dict[str, Any]:
    used = [len(one.dataset.split(one.train)) for one in sets(plan, held, count, seed)]
    return {"real": used[0], "written": used[1] if count else 0}


def _evaluated(
    plan: SyntheticPlan, data: Dataset, split: str, folder: Path, variant: str, told: Mapping[str, Any]
) -> dict[str, Any]:
    is_model = folder != plan.before  # that one is an encoder, no trained dense
    retriever = load_model(folder) if is_model else Dense(DenseOptions(encoder=str(folder)))
    found = evaluate(
        data,
        split,
        retriever,
        variant=variant,
        command="python -m studies.synthetic",
        seen=trained_on(folder) if is_model else TrainedOn.load(folder),
        fitted=fit_record.read_fit_record(folder) if is_model else None,
    )
    row = found.row.to_dict() | {STUDY: dict(told) | {"settings": list(plan.settings)}}
    options = {key: Path(value).name if isinstance(value, str) else value for key, value in row["options"].items()}
    row["options"] = options
    rows.append_with_scores(plan.out, row, found.lines())
    measures = ("new_recall@5", "known_recall@5", "recall@5", "ndcg@1")
    say(f"{variant}: " + ", ".join(f"{one} {row['metrics'][one]:.4f}" for one in measures if one in row["metrics"]))
    return row


def there(plan: SyntheticPlan, dataset: str) -> set[str]:
    """The variants of a dataset whose rows are in the file."""
    known = rows.known_rows(plan.out)
    return {row["variant"] for row in known if row.get("dataset") == Path(dataset).name}


def jobs(plan: SyntheticPlan, methods: Sequence[str], seeds: Sequence[int], what: str = "rows") -> list[Job]:
    """Generators, then what they write, then models and their rows."""
    found: dict[str, Job] = {}
    for seed in seeds:
        for held in plan.held:
            known = there(plan, held.dataset)
            todo = [
                (method, count)
                for count in plan.per_tool
                for method in methods
                if f"{NAME}-{method}-{count}-s{seed}" not in known
            ]
            writing: dict[str, Job] = {}
            if any(count for _, count in todo):
                writing = _writing(plan, held.name, [held.data], held.data, "new", max(plan.per_tool), seed)
            found |= writing
            for method, count in todo if what == "rows" else ():
                after = tuple(writing) if count else ()
                found |= _modelling(plan, held, method, count, seed, after)
    return list(found.values())


def _writing(
    plan: SyntheticPlan, name: str, data: Sequence[str], source: str, wanted: str, count: int, seed: int
) -> dict[str, Job]:
    made: dict[str, Job] = {}
    teach, texts = f"writer {name} s{seed}", f"written {name} s{seed}"
    if not (plan.written(name, seed) / "qrels").is_dir():
        if not is_finetuned(plan.generator(name, seed)):
            made[teach] = Job(teach, train_writer, (plan, name, data, seed))
        made[texts] = Job(texts, write, (plan, name, source, wanted, count, seed), tuple(made))
    return made


def _modelling(
    plan: SyntheticPlan, held: HeldOutSet, method: str, count: int, seed: int, after: tuple[str, ...]
) -> dict[str, Job]:
    made: dict[str, Job] = {}
    for one in dict.fromkeys(("dense", method)):
        name = f"{one} {held.name} {count} s{seed}"
        if not complete(plan.model(held.name, one, count, seed)):
            made[name] = Job(name, train, (plan, held, one, count, seed), (*after, *made))
    name = f"row {method} {held.name} {count} s{seed}"
    made[name] = Job(name, measure, (plan, held, method, count, seed), (*after, *made))
    return made


def recipe(plan: SyntheticPlan) -> list[str]:
    """What the default encoder is trained on beside what was written for ToolBench."""
    return ["ultratool", "sealtools:dev:", *(str(plan.pool / name) for name in ("calls", "mcp", "openapi"))]


def train_default(plan: SyntheticPlan, seed: int) -> None:
    """Train the default encoder: its recipe, and what was written for ToolBench."""
    used = [*recipe(plan), str(plan.written(plan.catalogue, seed))]
    made = training_setup.made("dense", [], [*RECIPE, f"seed={seed}", *plan.of("dense")])
    made.fit(training_setup.training_sets(used), plan.models / f"default-s{seed}", progress())


def measure_default(plan: SyntheticPlan, after: bool, seed: int, dataset: str = "") -> dict[str, Any]:
    """Ask ToolBench's test requests, or another set's, of the encoder without written requests, or of the one with."""
    data = Dataset.load(find_dataset(dataset or plan.catalogue), ["test"])
    told = {"name": NAME, "family": "default", "method": "dense", "per_tool": max(plan.per_tool) if after else 0}
    folder = plan.models / f"default-s{seed}" if after else plan.before
    variant = f"{NAME}-default-after-s{seed}" if after else f"{NAME}-default-before"
    return _evaluated(plan, data, "test", folder, variant, told)


def default_jobs(plan: SyntheticPlan, seed: int, what: str = "rows") -> list[Job]:
    """Those of the default encoder. The generator learns from the recipe's requests, not from its mere documents."""
    known, name = there(plan, plan.catalogue), plan.catalogue
    data = recipe(plan)[:3]
    found = _writing(plan, name, data, name, "all", max(plan.per_tool), seed)
    if f"{NAME}-default-before" not in known and what == "rows":
        found["before"] = Job("before", measure_default, (plan, False, seed))
    after = tuple(job for job in found if job != "before")
    if f"{NAME}-default-after-s{seed}" not in known and what == "rows":
        if not complete(plan.models / f"default-s{seed}"):
            found["default"] = Job("default", train_default, (plan, seed), after)
            after = (*after, "default")
        found["after"] = Job("after", measure_default, (plan, True, seed), after)
    for dataset in ELSEWHERE if what == "rows" else ():
        for word, row, needs in (("before", "before", ()), ("after", f"after-s{seed}", after)):
            if f"{NAME}-default-{row}" not in there(plan, dataset):
                name = f"{word} {dataset}"
                found[name] = Job(name, measure_default, (plan, word == "after", seed, dataset), needs)
    return list(found.values())


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=("rows", "texts", "default", "default-texts"), default="rows")
    parser.add_argument("--only", default="*")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--per-tool", default="")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--models", type=Path, default=Path("models/synthetic"))
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--pool", type=Path, default=Path("models/pool"))
    parser.add_argument("--before", type=Path, default=Path("models/before"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--stop-after", type=float, default=float("inf"))
    parser.add_argument("--option", action="append", default=[])
    told = parser.parse_args()
    of_default = told.what.startswith("default")
    counts = tuple(int(one) for one in (told.per_tool or ("3" if of_default else PER_TOOL)).split(","))
    plan = SyntheticPlan(
        told.models, told.out, HELD, counts, tuple(told.option), told.pool, told.before, batch=told.batch
    )
    plan = replace(plan, held=tuple(one for one in HELD if any(fnmatch(one.name, w) for w in told.only.split(","))))
    rows.check_writable(told.out)
    told.models.mkdir(parents=True, exist_ok=True)
    seeds, kind = numbers(told.seeds), "texts" if told.what.endswith("texts") else "rows"
    if of_default:
        todo = [job for seed in seeds for job in default_jobs(plan, seed, kind)]
    else:
        todo = jobs(plan, told.methods.split(","), seeds, kind)
    run(todo, told.side_by_side, told.stop_after)


if __name__ == "__main__":
    main()
