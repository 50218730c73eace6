"""Markdown of the studies of generative models: catalogues that grow, stages of training, and speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType

from toolscout.evaluation.report.rows import Line, Row, percent
from toolscout.evaluation.study import STUDY

Table = Callable[[Sequence[str], Iterable[Mapping[str, str]]], str]
SPEED = "generative"
_GROWTH_HEAD = """
## Generative models: catalogues that grow

toolgen gives each tool a token of its own, toolweaver a short code: tokens grow with the tools, codes are combined and
grow far slower (two levels by the square root, more levels by the logarithm). The first tools are gold ones of
ToolBench's requests, those of test and train in turns; then come other tools of ToolBench, then operations of
openapi_ops and tools of mcp_tools that no request needs. Trained is on the requests of train whose tools are all there,
measured on those of test; *same* is over the test requests that the smallest catalogue can answer. New R@5 counts the
tools that no training request needs. *Rows in memory* are those added to the vocabulary; of toolgen's only the
*trained* ones have a part of their own, the others are made of their documents. A tool is added to an open model: its
document encoded, its id made, nothing trained.
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


def of(lines: Sequence[Line], name: str) -> list[Line]:
    """The lines of one study."""
    return [line for line in lines if line.newest[STUDY].get("name") == name]


def sections(studies: Sequence[Line], speed: Sequence[Row], pictures: Mapping[str, str], table: Table) -> Iterator[str]:
    """All sections that there is something for. `pictures`: by the study that they belong to."""
    yield from _growth(of(studies, "growth"), pictures, table)
    yield from _stages(of(studies, "stages"), table)
    yield from _speed(speed, table)


def costs(line: Line, name: str) -> float | None:
    """A cost of a line: the mean over its seeds, None where not all have it."""
    found = [row[STUDY].get("costs", {}).get(name) for row in line.rows]
    return None if None in found else fmean(float(one) for one in found)


def _growth(lines: Sequence[Line], pictures: Mapping[str, str], table: Table) -> Iterator[str]:
    if not lines:
        return
    yield _GROWTH_HEAD
    for name in ("growth", "growth_cost"):
        if pictures.get(name):
            yield pictures[name]
    quality, cost = [], []
    for line in sorted(lines, key=lambda line: (line.newest["retriever"], line.newest[STUDY]["tools"])):
        told = line.newest[STUDY]
        first = {"method": line.newest["retriever"], "tools": f"{told['tools']:,}"}
        about = {
            "trained on": f"{told['train']:,}",
            "asked": f"{line.newest['requests']:,}",
            "seeds": str(len(line.rows)),
        }
        quality.append(
            first | about | {head: percent(line.values(name)) for head, name in _GROWTH.items()} | _commit(line.rows)
        )
        found = {head: costs(line, name) for head, name in _COSTS.items()}
        shown = {head: _number(value) for head, value in found.items() if value is not None}
        cost.append(first | shown | {"device": str(told.get("device", ""))})
    yield table(["method", "tools", "trained on", "asked", *_GROWTH, "seeds", "commit"], quality)
    yield table(["method", "tools", *_COSTS, "device"], cost)


def _stages(lines: Sequence[Line], table: Table) -> Iterator[str]:
    if not lines:
        return
    yield _STAGES_HEAD
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.split[0], line.split[1], line.newest["retriever"]), []).append(line)
    for (dataset, split, method), chosen in groups.items():
        told = chosen[0].newest[STUDY]
        yield f"\n**{method}, {dataset} {split}**, {chosen[0].newest['requests']:,} requests; text: {told['text']}\n"
        task = next((line.newest[STUDY]["task"] for line in chosen if line.newest[STUDY].get("task")), "")
        columns = ["training", "after", *_STAGES, *_PERPLEXITY, task or "task", "seeds", "commit"]
        yield table(columns, [_stage(line, task or "task") for line in sorted(chosen, key=_place)])


def _place(line: Line) -> tuple[bool, str, int]:
    told = line.newest[STUDY]
    return told["stage"] != "base", told["variant"], _ORDER.index(told["stage"]) if told["stage"] in _ORDER else 9


def _stage(line: Line, task: str) -> dict[str, str]:
    told = line.newest[STUDY]
    cells = {"training": str(told["variant"]).replace("-mixed", ", mixed").replace("-", " "), "after": told["stage"]}
    if told["stage"] == "base":
        cells = {"training": "none: the base model"}
    cells |= {head: percent(line.values(name)) for head, name in _STAGES.items()}
    for head, name in _PERPLEXITY.items():
        mean = line.mean(name)
        cells |= {} if mean is None else {head: f"{mean:.2f}"}
    return cells | {task: percent(line.values("task_accuracy")), "seeds": str(len(line.rows))} | _commit(line.rows)


def _commit(rows: Sequence[Row]) -> dict[str, str]:
    found = dict.fromkeys(str(row.get("commit") or "") for row in rows)
    return {"commit": ", ".join(filter(None, found))}


def _speed(rows: Sequence[Row], table: Table) -> Iterator[str]:
    if not rows:
        return
    yield _SPEED_HEAD
    lines = []
    for row in sorted(rows, key=lambda row: (str(row.get("model")), str(row.get("device")))):
        values = row["values"]
        cells = {head: _number(values[name]) for head, name in _SPEEDS.items() if values.get(name) is not None}
        aim = _ONE_TOKEN_MS if row.get("ids") == "atomic" else _CODE_MS
        if "search p50, ms" in cells:
            cells["search p50, ms"] += _met(f"≤ {aim:g}", values["search_p50_ms"] <= aim)
        if "same first tool" in cells:
            cells["same first tool"] += _met(f"≥ {_AGREES:g}", values["top1"] >= _AGREES)
        about = {"model": str(row.get("model", "")), "ids": str(row.get("ids", "")), "tools": f"{row['tools']:,}"}
        more = {"asked": str(row.get("asked", "")), "on": str(row.get("device", ""))}
        lines.append(about | more | cells | _commit([row]))
    yield table(["model", "ids", "tools", "asked", "on", *_SPEEDS, "commit"], lines)


def _met(aim: str, met: bool) -> str:
    return f" ({aim}: {'met' if met else '**missed**'})"


def _number(value: float) -> str:
    """Four digits, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
