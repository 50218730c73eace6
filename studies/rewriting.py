"""What rewriting requests is worth, over other retrievers: results/rewriting.jsonl.

python -m studies.rewriting [rows|texts] [--only toollens*] [--forms NAMES|table|ablations] [--retrievers NAMES]
                         [--seeds 0] [--side-by-side N] [--models DIR] [--out FILE] [--stop-after SECONDS]
                         [--requests N] [--llm URL --model NAME] [--option KEY=VALUE]

Over bm25, dense with the published encoder (raw), dense trained on the set, and a hybrid of bm25 and raw vectors: the
request alone; split by rules; SmolLM2 as it is (zero, decompose, iterate); a generator trained on the set's train split
(supervised; its sub-requests without the request: decompose-supervised; iterate-supervised); one that was taught all
but some tools, and aligned with dense raw on requests for those (aligned), also for a share of the requests only; one
that was taught by requests written for tools without any, too (supervised-written, aligned-written: of the sets for
which studies/synthetic.py had such written). `ablations` are alignments with one thing changed, over dense raw. One
generator serves all retrievers; the trained dense model is that of studies/trained.py in the folder above --models, or
is trained. What models write is kept in DIR/written/, so that `texts`, which measures nothing, can run on a GPU
(TOOLSCOUT_DEVICE=cuda) and `rows` elsewhere, without the models' weights. With --llm, zero, decompose and iterate are
asked of an endpoint instead (key: OPENAI_API_KEY), every answer cached in DIR/endpoint.db. Needs $TOOLSCOUT_DATA and
`toolscout encoder export`. Rows that are in the file are not made again; an interrupted training goes on.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from studies import rewriting_models as models
from studies.exposure import by_namespace, exposure
from studies.rewriting_models import FORMS, Family, RewritingForm, RewritingPlan
from studies.running import RESULTS, by_hash, numbers, run, say
from toolscout.core.answer import Cost
from toolscout.core.scope import Scope
from toolscout.data.dataset import Dataset
from toolscout.errors import BadModel, ToolscoutError
from toolscout.evaluation import leakage
from toolscout.evaluation import row as rows
from toolscout.evaluation.evaluate import seen_by
from toolscout.evaluation.fit_record import FitRecord
from toolscout.evaluation.request_result import DEPTH, RequestResult
from toolscout.papers.experiment import ExperimentContext, ExperimentResult, check_unseen, experiment_result
from toolscout.papers.jobs import Job
from toolscout.retrievers.base import Ranking
from toolscout.retrievers.model_folder import read_model
from toolscout.retrievers.option_values import with_settings
from toolscout.retrievers.provenance import TrainedOn
from toolscout.retrievers.rewrite.retriever import Rewrite, RewriteOptions

NAME = "rewriting"
OUT = RESULTS / "rewriting.jsonl"
_PATHS = ("llm", "cache", "base", "init_from")
_FAILED = 0.02


def few(plan: RewritingPlan, data: Dataset, split: str) -> Dataset:
    """A split with so many of its requests, by hash; all unless told."""
    kept = by_hash(data.qrels[split])[: plan.requests or None]
    return replace(data, qrels={**data.qrels, split: {one: data.qrels[split][one] for one in kept}})


def author(plan: RewritingPlan, form: RewritingForm) -> str:
    """Who writes, as a row says it."""
    if form.source == models.NOBODY:
        return ""
    if form.source != models.ZERO:
        return "a generator of the set"
    return plan.model or plan.llm.rpartition("/")[2] or "SmolLM2"


def variant(plan: RewritingPlan, name: str, over: str, seed: int) -> str:
    """The name of a row; it has a seed where anything was trained."""
    form = FORMS[name]
    by = [re.sub(r"[^A-Za-z0-9.]+", "-", author(plan, form))] if form.source == models.ZERO and plan.llm else []
    learned = form.source not in (models.NOBODY, models.ZERO) or over == models.TRAINED
    sample = [f"of{plan.requests}"] if plan.requests else []
    return "-".join([NAME, over, name, *by, *sample, *([f"s{seed}"] if learned else [])])


def missing(plan: RewritingPlan, family: Family, seed: int, names: Sequence[str]) -> list[tuple[str, str, str]]:
    """What is not in the file yet: form, retriever, split."""
    known = rows.known_rows(plan.out)
    there = {(row["dataset"], row["split"], row["variant"]) for row in known}
    return [
        (name, over, split)
        for over in plan.retrievers
        for name in names
        if over in FORMS[name].over
        for split in family.tests
        if (Path(family.dataset).name, split, variant(plan, name, over, seed)) not in there
    ]


def answered(rewrite: Rewrite, data: Dataset, split: str) -> tuple[list[RequestResult], dict[str, Any]]:
    """Every request of a split asked, all at once, and what it took."""
    part = data.split(split)
    texts = [text for _, text in part.requests]
    started = time.perf_counter()
    ranked = rewrite.rank(texts, DEPTH, Scope(endpoints="wait"))
    seconds = time.perf_counter() - started
    found = [
        RequestResult(i, data.scene(i), "use", gold, tuple(one.ids()), 0.0, None, 0.0)
        for (i, _), gold, one in zip(part.requests, part.gold, ranked, strict=True)
    ]
    queries = sum(len(one.queries) for one in ranked)
    return found, checked_cost(ranked).to_dict() | {"seconds": round(seconds, 3), "queries": queries}


def checked_cost(ranked: Sequence[Ranking]) -> Cost:
    """What language models were asked; refused where most failed: requests searched alone are another row."""
    cost = Cost.total(one.cost for one in ranked) or Cost()
    if cost.failed > _FAILED * len(ranked):
        raise BadModel(f"the language model failed for {cost.failed} of {len(ranked)} requests: {cost.problem}")
    return cost


def fitted(plan: RewritingPlan, family: Family, source: str, seed: int) -> tuple[FitRecord, list[dict[str, Any]]]:
    """How a generator was trained, the alignment added to what it began with; and how its rounds went."""
    if source in (models.NOBODY, models.ZERO):
        return FitRecord(), []
    own = read_model(plan.folder(family, source, seed))["fit"]
    spent = float(own["seconds"])
    if source in models.ALIGNED:
        spent += fitted(plan, family, models.begins_with(source), seed)[0].seconds or 0.0
    return FitRecord(round(spent, 3), own["device"], own["parameters"], seed), own.get("align", [])


def measured(
    plan: RewritingPlan, family: Family, name: str, over: str, split: str, seed: int, rewrite: Rewrite, seen: TrainedOn
) -> ExperimentResult:
    """The row of a form over a retriever."""
    data = few(plan, models.read(family), split)
    whole = check_unseen(data, split, rewrite, seen | seen_by("rewrite", rewrite))
    answers, costs = answered(rewrite, data, split)
    fit, history = fitted(plan, family, FORMS[name].source, seed)
    told: dict[str, Any] = {
        "name": NAME,
        "family": family.name,
        "form": name,
        "over": over,
        "author": author(plan, FORMS[name]),
        "costs": costs,
        "settings": list(plan.settings),
        "namespaces": by_namespace(answers, data.tools),
    }
    if history and over == models.ALIGNED_WITH:
        told["history"] = history
    named = variant(plan, name, over, seed)
    own = seed if named.endswith(f"-s{seed}") else None
    about = ExperimentContext(told, named, own, _command(plan, family, name, over, own), fit)
    new = leakage.new_tools(data, split, whole)
    found = experiment_result(data, split, rewrite, answers, about, new, exposure(answers, data.tools))
    options = {key: Path(str(value)).name if key in _PATHS else value for key, value in asdict(rewrite.options).items()}
    return ExperimentResult(found.row | {"options": options}, found.lines)


def _command(plan: RewritingPlan, family: Family, name: str, over: str, seed: int | None) -> str:
    words = ["python -m studies.rewriting", "--only", family.name, "--forms", name, "--retrievers", over]
    words += ["--llm URL --model", plan.model] if FORMS[name].source == models.ZERO and plan.llm else []
    words += ["--seeds", str(seed)] if seed else []
    words += ["--requests", str(plan.requests)] if plan.requests else []
    return " ".join([*words, *(f"--option {one}" for one in plan.settings if not one.startswith(_PATHS))])


def measure(plan: RewritingPlan, family: Family, seed: int, todo: Sequence[tuple[str, str, str]]) -> int:
    """All rows of one source of texts, each written as it is done."""
    for over in dict.fromkeys(over for _, over, _ in todo):
        part, seen = models.part(plan, family, over, seed)
        for name in dict.fromkeys(name for name, where, _ in todo if where == over):
            rewrite = models.rewriting(plan, family, name, part, seed)
            for split in [split for one, where, split in todo if (one, where) == (name, over)]:
                found = measured(plan, family, name, over, split, seed, rewrite, seen)
                rows.append_with_scores(plan.out, found.row, found.lines)
                say(f"{family.name} {split} {over} {name}: R@5 {found.row['metrics']['recall@5']:.4f}")
    return len(todo)


def write(plan: RewritingPlan, family: Family, seed: int, todo: Sequence[tuple[str, str, str]]) -> int:
    """All texts of one source. Which retriever it is matters only to a form that looks at what was found."""
    overs = {
        name: [o for o in plan.retrievers if o in FORMS[name].over] for name in dict.fromkeys(n for n, _, _ in todo)
    }
    for over in plan.retrievers:
        names = [name for name, own in overs.items() if over in (own if FORMS[name].looks else own[:1])]
        if not names:
            continue
        part, _ = models.part(plan, family, over, seed)
        for name in names:
            rewrite = models.rewriting(plan, family, name, part, seed)
            if rewrite.options.share < 1:
                continue  # those are among the texts of all requests
            for split in family.tests:
                data = few(plan, models.read(family), split)
                started, texts = time.perf_counter(), [text for _, text in data.split(split).requests]
                checked_cost(rewrite.rank(texts, DEPTH))
                say(f"{family.name} {split} {over} {name}: written in {time.perf_counter() - started:.1f} s")
    return len(todo)


def jobs(plan: RewritingPlan, seeds: Sequence[int], names: Sequence[str], what: str = "rows") -> list[Job]:
    """What has to be trained, then what has to be measured, for all that is missing; one job a source of texts."""
    trainings: dict[str, Job] = {}
    measures: list[Job] = []
    for seed in seeds:
        for family in plan.families:
            todo = missing(plan, family, seed, names)
            for source in dict.fromkeys(FORMS[name].source for name, _, _ in todo):
                own = [one for one in todo if FORMS[one[0]].source == source]
                if what == "texts" and (source == models.NOBODY or plan.llm):
                    continue
                own_trainings = _trainings(plan, family, source, seed, own, what)
                trainings |= own_trainings
                name, work = f"{what} {family.name} {source or 'alone'} s{seed}", write if what == "texts" else measure
                measures.append(Job(name, work, (plan, family, seed, own), tuple(own_trainings)))
    return [*trainings.values(), *measures]


def _trainings(
    plan: RewritingPlan, family: Family, source: str, seed: int, todo: Sequence[tuple[str, str, str]], what: str
) -> Mapping[str, Job]:
    """The models that are needed and not there; a generator is trained before it is aligned."""
    found: dict[str, Job] = {}
    if source not in (models.NOBODY, models.ZERO):
        first = models.begins_with(source) if source in models.ALIGNED else source
        base = f"{first} {family.name} s{seed}"
        if not models.complete(plan.folder(family, first, seed)):
            found[base] = Job(base, models.train_generator, (plan, family, first, seed))
        if source != first and not models.complete(plan.folder(family, source, seed)):
            name = f"{source} {family.name} s{seed}"
            after = (base,) if base in found else ()
            found[name] = Job(name, models.train_aligned, (plan, family, source, seed), after)
    looks = any(FORMS[name].looks for name, _, _ in todo)
    dense = models.TRAINED in {over for _, over, _ in todo} and (what == "rows" or looks)
    if dense and not models.complete(plan.dense(family, seed)):
        name = f"dense {family.name} s{seed}"
        found[name] = Job(name, models.train_dense, (plan, family, seed))
    return found


def form_names(text: str) -> list[str]:
    """The forms that were named: `table` and `ablations` are several."""
    groups = {"table": list(models.TABLE), "ablations": list(models.ABLATIONS)}
    found = [one for name in text.split(",") for one in groups.get(name, [name])]
    unknown = [name for name in found if name not in FORMS]
    if unknown:
        raise BadModel(f"there is no form {unknown[0]!r}; choose from table, ablations, {', '.join(FORMS)}")
    return list(dict.fromkeys(found))


def asked_for(told: argparse.Namespace) -> tuple[list[str], RewritingPlan, list[int]]:
    """Forms, plan and seeds, or why there is nothing to do."""
    names, retrievers = form_names(told.forms), tuple(told.retrievers.split(","))
    families = models.chosen(models.FAMILIES, told.only.split(","))
    unknown = [name for name in retrievers if name not in models.RETRIEVERS]
    if unknown:
        raise BadModel(f"there is no retriever {unknown[0]!r}; choose from {', '.join(models.RETRIEVERS)}")
    if not families:
        raise BadModel(f"--only {told.only} fits none of {', '.join(one.name for one in models.FAMILIES)}")
    if told.llm:
        names = [name for name in names if FORMS[name].source == models.ZERO]
        if not names or not told.model or told.what == "texts":
            raise BadModel("an endpoint needs --model NAME, writes for rows, and for zero, decompose and iterate alone")
    if told.requests < 0:
        raise BadModel("--requests is 0 (all) or more")
    with_settings(RewriteOptions(llm=told.llm, model=told.model), "rewrite", told.option)
    plan = RewritingPlan(
        told.models, told.out, families, retrievers, told.llm, told.model, told.requests, tuple(told.option)
    )
    return names, plan, numbers(told.seeds)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=("rows", "texts"), default="rows")
    parser.add_argument("--only", default="*")
    parser.add_argument("--forms", default="table")
    parser.add_argument("--retrievers", default=",".join(models.RETRIEVERS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--models", type=Path, default=Path("models/rewriting"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--stop-after", type=float, default=float("inf"))
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--llm", default="")
    parser.add_argument("--model", default="")
    parser.add_argument("--option", action="append", default=[])
    told = parser.parse_args()
    try:
        names, plan, seeds = asked_for(told)
        rows.check_writable(told.out)
    except (ToolscoutError, ValueError) as error:
        parser.error(str(error))
    told.models.mkdir(parents=True, exist_ok=True)
    run(jobs(plan, seeds, names, told.what), told.side_by_side, told.stop_after)


if __name__ == "__main__":
    main()
