"""The section and figure about training on requests that a language model wrote (studies/synthetic.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from studies.study_rows import StudyRows, about
from toolscout.evaluation.report.figures import Figure, Series, deviation, mean_percent, panels_of
from toolscout.evaluation.report.rows import ResultLine, by_split, commits, group_by, percent
from toolscout.evaluation.report.tables import table, verdict
from toolscout.evaluation.row import STUDY, RowDict

SYNTHETIC = "synthetic"
DEFAULT = "default"
_HEAD = """
## Training on written requests

Tools are held out: nobody's request for them is trained on. A generator that learned from the train split to write
requests is shown their documents, and what it writes for them (at most *per tool* requests) joins the real requests of
the other tools in training. Asked are real requests; new R@5 counts the held-out tools, known R@5 the others. The aim
is new R@5 of 55 with known R@5 of 65 or more. *toolgen+dense* is toolgen with the cosine of an encoder added.
"""
_MEASURES = MappingProxyType(
    {"new R@5": "new_recall@5", "known R@5": "known_recall@5", "R@5": "recall@5", "C@5": "comp@5"}
)
_AIM = {"new R@5": 0.55, "known R@5": 0.65}
_DEFAULT_HEAD = """
### The default encoder

The encoder before (toolscout-minilm-1), and its recipe with requests written for every document of ToolBench (*after*,
which is shipped, without the bonus that the model here adds to new tools), each set's test requests. No request of
ToolBench was seen, by the generator neither.
"""
_RANKED = MappingProxyType({"N@1": "ndcg@1", "N@3": "ndcg@3", "N@5": "ndcg@5", "R@5": "recall@5"})
_WRITTEN_HEAD = """
### Writing

*Seconds* are those of writing and filtering; the aim is 46,587 documents, three requests each, within 1,200.
"""
_COLUMNS = ("for", "tools", "to write for", "kept", "left out", "seconds", "tokens / s", "learned from", "commit")
_LIMIT, _DOCUMENTS = 1200.0, 46_000


def section(rows: StudyRows, pictures: Mapping[str, str]) -> Iterator[str]:
    """Held-out tools, the default encoder and the writing itself: what there are rows for."""
    lines, written = rows.study(SYNTHETIC), rows.bench(SYNTHETIC)
    held, shipped = _held_out(lines), [line for line in lines if about(line, "family") == DEFAULT]
    if not lines and not written:
        return
    yield _HEAD
    yield from filter(None, [pictures.get(SYNTHETIC)])
    for (dataset, split, _), chosen in by_split(held).items():
        yield f"\n**{dataset} {split}**, {max(line.newest['requests'] for line in chosen):,} requests\n"
        order = sorted(chosen, key=lambda line: (line.retriever, int(about(line, "per_tool"))))
        yield table(["method", "per tool", "real", "written", *_MEASURES, "seeds", "commit"], map(_held_cells, order))
    if shipped:
        yield _DEFAULT_HEAD
        order = sorted(shipped, key=lambda line: (str(line.newest["dataset"]), int(about(line, "per_tool"))))
        yield table(["requests of", "encoder", "per tool", *_RANKED, "fit, s", "commit"], map(_shipped, order))
    if written:
        yield _WRITTEN_HEAD
        yield table(list(_COLUMNS), map(_written, written))


def _held_out(lines: Sequence[ResultLine]) -> list[ResultLine]:
    return [line for line in lines if about(line, "family") != DEFAULT]


def _held_cells(line: ResultLine) -> dict[str, str]:
    cells = {head: percent(line.values(name)) for head, name in _MEASURES.items()}
    for head, aim in _AIM.items():
        value = line.mean(_MEASURES[head])
        if value is not None and about(line, "per_tool"):
            cells[head] += verdict(f"≥ {100 * aim:g}", value >= aim)
    real, written = (sum(row[STUDY][name] for row in line.rows) // len(line.rows) for name in ("real", "written"))
    first = {"method": line.retriever, "per tool": str(about(line, "per_tool"))}
    return (
        first
        | {"real": f"{real:,}", "written": f"{written:,}"}
        | cells
        | {"seeds": str(len(line.rows))}
        | {"commit": line.commits}
    )


def _shipped(line: ResultLine) -> dict[str, str]:
    spent = line.mean("fit_s", "timing")
    cells = {"requests of": str(line.newest["dataset"]), "encoder": "after" if about(line, "per_tool") else "before"}
    cells |= {"per tool": str(about(line, "per_tool"))}
    cells |= {head: percent(line.values(name)) for head, name in _RANKED.items()}
    return cells | ({} if spent is None else {"fit, s": f"{spent:,.0f}"}) | {"commit": line.commits}


def _written(row: RowDict) -> dict[str, str]:
    values = row["values"]
    met = ""
    if values["anchors"] >= _DOCUMENTS:
        met = verdict(f"≤ {_LIMIT:,.0f}", values["seconds"] <= _LIMIT)
    left_out = [(name.partition(": ")[2], count) for name, count in values.items() if name.startswith("dropped: ")]
    return {
        "for": str(row["requests"]).removeprefix("written "),
        "tools": f"{row['tools']:,}",
        "to write for": f"{values['anchors']:,}",
        "kept": f"{values['kept']:,}",
        "left out": ", ".join(f"{count:,} {why}" for why, count in left_out),
        "seconds": f"{values['seconds']:,.0f}{met}",
        "tokens / s": f"{values['tokens_per_s']:,.0f}",
        "learned from": ", ".join((row.get("writer") or {}).get("learned_from", ())),
        "commit": commits([row]),
    }


def figures(rows: StudyRows) -> dict[str, Figure]:
    """New R@5, and dashed known R@5, against the written requests for each tool; none where there is nothing."""
    panels = []
    for (dataset, split, _), chosen in by_split(_held_out(rows.study(SYNTHETIC))).items():
        series = []
        for name, dashed in (("new_recall@5", False), ("known_recall@5", True)):
            for method, own in sorted(group_by(chosen, lambda line: line.retriever).items()):
                measured = {int(about(line, "per_tool")): line.values(name) for line in own}
                points = sorted((float(count), values) for count, values in measured.items() if values)
                if points:
                    x, heights = zip(*points, strict=True)
                    y, errors = tuple(map(mean_percent, heights)), tuple(map(deviation, heights))
                    series.append(Series(method, x, y, errors, dashed))
        panels += panels_of(f"{dataset} {split}", series)
    if not panels:
        return {}
    heading, labels = "Held-out tools: new R@5, and known R@5 (dashed)", ("written requests for each tool", "%")
    return {SYNTHETIC: Figure("synthetic.svg", heading, "", "lines", *labels, tuple(panels))}
