"""The sections and figures about generative models: catalogues that grow, stages of training, and speed.

The rows are made by studies/catalogue_growth.py, studies/generative_stages.py and studies/generative_speed.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from types import MappingProxyType

from studies.study_rows import StudyRows, about, number
from toolscout.evaluation.report.figures import Figure, Series, mean_percent, panels_of
from toolscout.evaluation.report.rows import ResultLine, commits, group_by, percent
from toolscout.evaluation.report.tables import table, verdict
from toolscout.evaluation.row import STUDY, RowDict

SPEED = "generative"
_GROWTH_HEAD = """
## Generative models: catalogues that grow

toolgen gives each tool a token of its own, toolweaver a short code, both with the cosine of the encoder added
(`+dense`): tokens grow with the tools, codes are combined and grow far slower (two levels by the square root, more
levels by the logarithm). The first tools are gold ones of ToolBench's requests, those of test and train in turns;
then come other tools of ToolBench, then operations of openapi_ops and tools of mcp_tools that no request needs.
Trained is on the requests of train whose tools are all there, measured on those of test; *same* is over the test
requests that the smallest catalogue can answer. New R@5 counts the tools that no training request needs. *Rows in
memory* are those added to the vocabulary; of toolgen's only the *trained* ones have a part of their own, the others
are made of their documents. A tool is added to an open model: its document encoded, its id made, nothing trained.
"""
_GROWTH = MappingProxyType(
    {
        "N@1": "ndcg@1",
        "N@3": "ndcg@3",
        "N@5": "ndcg@5",
        "R@5": "recall@5",
        "new R@5": "new_recall@5",
        "same N@5": "same_ndcg@5",
        "same R@5": "same_recall@5",
    }
)
_COSTS = MappingProxyType(
    {
        "added vocabulary": "vocabulary",
        "… trained": "trained_rows",
        "rows in memory, MB": "rows_mb",
        "model on disk, MB": "model_mb",
        "GPU peak, MB": "gpu_peak_mb",
        "host peak, MB": "host_peak_mb",
        "fit, s": "fit_s",
        "tokens / s": "tokens_per_s",
        "requests / s": "requests_per_s",
        "add a tool, s": "add_s",
        "… its id alone": "add_id_s",
    }
)
_STAGES_HEAD = """
## Generative models: what each stage gives and takes

After each stage of a training: *document → id* is the share of documents (of tools that training requests need) whose
own id comes first; R and N are on a sample of dev, on which the epoch was chosen too. *Free*: what the model writes
without the constraint, in shares of the requests: a right tool, another real tool, an id that no tool has, words,
nothing (or "no tool"). *Spoiled*: the free answer is right, and the first under the constraint is not; *mended*: the
other way round. Perplexity is over the held-out prompts that are named, plain text that no stage learned from, among
all tokens, and among those of the base model alone. *Mixed* went through general texts on the way.
"""
_STAGES = MappingProxyType(
    {
        "document → id": "document_accuracy",
        "R@5": "recall@5",
        "N@5": "ndcg@5",
        "first right": "first_right",
        "free: right": "free_right",
        "other tool": "free_other",
        "invented": "free_invented",
        "words": "free_words",
        "nothing": "free_nothing",
        "spoiled": "spoiled",
        "mended": "mended",
    }
)
_PERPLEXITY = MappingProxyType({"perplexity": "perplexity", "… of words": "perplexity_words"})
_ORDER = ("base", "memorise", "retrieve", "agent")
_SPEED_HEAD = """
## Generative models: speed

A request of about 30 tokens through `search(k=5)` on two cores, the model served with 8-bit weights, and what of it is
reading; the encoder's part is there where similarity counts or reasons are given. *Agreement* is with the same model in
single precision: how often the first tool is the same, and what share of the first five. The aims are 80 ms for ids of
one token, 160 ms for codes, and a first tool that is the same for 98 of 100. *Requests / s*: ranked together on a GPU.
"""
_SPEEDS = MappingProxyType(
    {
        "tokens": "tokens",
        "search p50, ms": "search_p50_ms",
        "p95, ms": "search_p95_ms",
        "reading, ms": "reading_p50_ms",
        "encoder, ms": "encoder_p50_ms",
        "same first tool": "top1",
        "same of five": "top5",
        "requests / s": "requests_per_s",
    }
)
_ONE_TOKEN_MS, _CODE_MS, _AGREES = 80.0, 160.0, 0.98
_QUALITY = {
    "all test requests there": ("ndcg@5", "recall@5"),
    "the same requests": ("same_ndcg@5", "same_recall@5"),
}
_DRAWN_COSTS = {
    "added vocabulary": "vocabulary",
    "added rows in memory, MB": "rows_mb",
    "GPU peak, MB": "gpu_peak_mb",
    "adding a tool, s": "add_s",
}


def section(rows: StudyRows, pictures: Mapping[str, str]) -> Iterator[str]:
    """The sections that there are rows for. `pictures`: the Markdown of each of `figures`."""
    yield from _growth(rows.study("growth"), pictures)
    yield from _stages(rows.study("stages"))
    yield from _speed(rows.bench(SPEED))


def costs(line: ResultLine, name: str) -> float | None:
    """A cost of a line: the mean over its seeds, None where not all have it."""
    found = [row[STUDY].get("costs", {}).get(name) for row in line.rows]
    return None if None in found else fmean(float(one) for one in found)


def _growth(lines: Sequence[ResultLine], pictures: Mapping[str, str]) -> Iterator[str]:
    if not lines:
        return
    yield _GROWTH_HEAD
    yield from filter(None, (pictures.get(name) for name in ("growth", "growth_cost")))
    quality, cost = [], []
    for line in sorted(lines, key=lambda line: (line.newest["retriever"], line.newest[STUDY]["tools"])):
        told = line.newest[STUDY]
        first = {"method": line.retriever, "tools": f"{told['tools']:,}"}
        cells = {"trained on": f"{told['train']:,}", "asked": f"{line.newest['requests']:,}"}
        cells |= {head: percent(line.values(name)) for head, name in _GROWTH.items()}
        quality.append(first | cells | {"seeds": str(len(line.rows)), "commit": line.commits})
        found = {head: costs(line, name) for head, name in _COSTS.items()}
        shown = {head: number(value) for head, value in found.items() if value is not None}
        cost.append(first | shown | {"device": str(told.get("device", ""))})
    yield table(["method", "tools", "trained on", "asked", *_GROWTH, "seeds", "commit"], quality)
    yield table(["method", "tools", *_COSTS, "device"], cost)


def _stages(lines: Sequence[ResultLine]) -> Iterator[str]:
    if not lines:
        return
    yield _STAGES_HEAD
    groups = group_by(lines, lambda line: (*line.split[:2], line.newest["retriever"]))
    for (dataset, split, method), chosen in groups.items():
        told = chosen[0].newest[STUDY]
        yield f"\n**{method}, {dataset} {split}**, {chosen[0].newest['requests']:,} requests; text: {told['text']}\n"
        task = next((line.newest[STUDY]["task"] for line in chosen if line.newest[STUDY].get("task")), "")
        columns = ["training", "after", *_STAGES, *_PERPLEXITY, task or "task", "seeds", "commit"]
        yield table(columns, [_stage(line, task or "task") for line in sorted(chosen, key=_place)])


def _place(line: ResultLine) -> tuple[bool, str, int]:
    told = line.newest[STUDY]
    return told["stage"] != "base", told["variant"], _ORDER.index(told["stage"]) if told["stage"] in _ORDER else 9


def _stage(line: ResultLine, task: str) -> dict[str, str]:
    told = line.newest[STUDY]
    cells = {"training": str(told["variant"]).replace("-mixed", ", mixed").replace("-", " "), "after": told["stage"]}
    if told["stage"] == "base":
        cells = {"training": "none: the base model"}
    cells |= {head: percent(line.values(name)) for head, name in _STAGES.items()}
    for head, name in _PERPLEXITY.items():
        mean = line.mean(name)
        cells |= {} if mean is None else {head: f"{mean:.2f}"}
    return cells | {task: percent(line.values("task_accuracy")), "seeds": str(len(line.rows)), "commit": line.commits}


def _speed(rows: Sequence[RowDict]) -> Iterator[str]:
    if not rows:
        return
    yield _SPEED_HEAD
    lines = []
    for row in sorted(rows, key=lambda row: (str(row.get("model")), str(row.get("device")))):
        values = row["values"]
        cells = {head: number(values[name]) for head, name in _SPEEDS.items() if values.get(name) is not None}
        aim = _ONE_TOKEN_MS if row.get("ids") == "atomic" else _CODE_MS
        if "search p50, ms" in cells:
            cells["search p50, ms"] += verdict(f"≤ {aim:g}", values["search_p50_ms"] <= aim)
        if "same first tool" in cells:
            cells["same first tool"] += verdict(f"≥ {_AGREES:g}", values["top1"] >= _AGREES)
        first = {"model": str(row.get("model", "")), "ids": str(row.get("ids", "")), "tools": f"{row['tools']:,}"}
        more = {"asked": str(row.get("asked", "")), "on": str(row.get("device", ""))}
        lines.append(first | more | cells | {"commit": commits([row])})
    yield table(["model", "ids", "tools", "asked", "on", *_SPEEDS, "commit"], lines)


def figures(rows: StudyRows) -> dict[str, Figure]:
    """Quality and cost of catalogues that grow, by the names of the figures; only those with something to show."""
    lines = rows.study("growth")
    made = {"growth": _quality_figure(lines), "growth_cost": _cost_figure(lines)}
    return {name: figure for name, figure in made.items() if figure.panels}


def _quality_figure(lines: Sequence[ResultLine]) -> Figure:
    """N@5, and dashed R@5, against the number of tools."""
    panels = []
    for title, names in _QUALITY.items():
        curves = [_curves(lines, partial(_percent, name=name), bool(place)) for place, name in enumerate(names)]
        panels += panels_of(title, (one for some in curves for one in some))
    heading, labels = "Catalogues that grow: N@5, and R@5 (dashed)", ("tools", "%")
    return Figure("growth.svg", heading, "", "lines", *labels, tuple(panels), log=("x",))


def _cost_figure(lines: Sequence[ResultLine]) -> Figure:
    panels = []
    for title, name in _DRAWN_COSTS.items():
        panels += panels_of(title, _curves(lines, partial(costs, name=name)))
    heading = "Catalogues that grow: cost"
    return Figure("growth_cost.svg", heading, "", "curves", "tools", "", tuple(panels), log=("x", "y"))


def _percent(line: ResultLine, name: str) -> float | None:
    values = line.values(name)
    return mean_percent(values) if values else None


def _curves(
    lines: Sequence[ResultLine], height: Callable[[ResultLine], float | None], dashed: bool = False
) -> list[Series]:
    """A curve for each method over the numbers of tools."""
    found = []
    for method, own in sorted(group_by(lines, lambda line: line.retriever).items()):
        heights = [(float(about(line, "tools")), height(line)) for line in own]
        points = sorted((tools, float(value)) for tools, value in heights if value is not None)
        if points:
            x, y = zip(*points, strict=True)
            found.append(Series(method, x, y, dashed=dashed))
    return found
