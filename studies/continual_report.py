"""The section and figure about tools that come and documents that change (studies/continual.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from studies.study_rows import StudyRows, about
from toolscout.evaluation.report.figures import Figure, Series, mean_percent, panels_of
from toolscout.evaluation.report.rows import group_by, percent
from toolscout.evaluation.report.tables import table
from toolscout.evaluation.row import STUDY

_NAME = "continual"
_HEAD = """
## Tools that come, documents that change

*Kept*: the model is trained once and never again; tools are added, or their documents replaced, while it serves.
*Told*: the same, and past requests that used what has come join its pool. *Retrained*: trained anew at each step on all
that is there. The first model knows 80 % of the tools and the requests that need no other; the rest comes in five
steps. *Old*: requests that need tools of the beginning alone; *added*: those that need one that came. A round of edits
changes one document in ten: a sentence is dropped, parameters change places, words get synonyms; *edited*: requests
that need a tool whose document has changed, *untouched*: the others. R@5 in percent; where it stands, new R@5 counts
only the tools that came.
"""


def section(rows: StudyRows, pictures: Mapping[str, str]) -> Iterator[str]:
    """A table for each dataset and kind of change, a column for each step; nothing where there are no rows."""
    lines = rows.study(_NAME)
    if not lines:
        return
    yield _HEAD
    yield from filter(None, [pictures.get(_NAME)])
    groups = group_by(lines, lambda line: (line.split[0], about(line, "change"), about(line, "encoder")))
    for (dataset, change, encoder), chosen in groups.items():
        heading = "Tools in five steps" if change == "tools" else "Five rounds of edited documents"
        made_of = str(chosen[0].newest.get("encoder") or "")[:8]
        yield f"\n### {heading}: {dataset}, encoder {encoder} ({made_of})\n"
        steps = sorted({line.newest[STUDY]["step"] for line in chosen})
        found: dict[tuple[str, ...], dict[str, str]] = {}
        for line in chosen:
            told = line.newest[STUDY]
            for measure, head in (("recall@5", "R@5"), ("new_recall@5", "new R@5")):
                if line.values(measure):
                    key = (line.newest["retriever"], told["mode"], told["group"], head)
                    cells = found.setdefault(
                        key, dict(zip(("method", "model", "requests", "measure"), key, strict=True))
                    )
                    cells[_step(told["step"])] = percent(line.values(measure))
        ordered = [found[key] for key in sorted(found)]
        yield table(["method", "model", "requests", "measure", *map(_step, steps)], ordered)


def _step(number: int) -> str:
    return f"step {number}"


def figures(rows: StudyRows) -> dict[str, Figure]:
    """R@5 against the steps, by name of the study; none where there is nothing to show."""
    panels = []
    names = ("change", "encoder", "group")
    groups = group_by(rows.study(_NAME), lambda line: (line.split[0], *(about(line, name) for name in names)))
    for (dataset, change, _, group), chosen in sorted(groups.items()):
        series = []
        for (retriever, mode), own in sorted(
            group_by(chosen, lambda line: (line.newest["retriever"], about(line, "mode"))).items()
        ):
            measured = [(float(about(one, "step")), one.values("recall@5")) for one in own]
            points = sorted((step, mean_percent(values)) for step, values in measured if values)
            if points:
                x, y = zip(*points, strict=True)
                label = retriever if mode in ("kept", "retrained") else f"{retriever}, {mode}"
                series.append(Series(label, x, y, dashed=mode == "retrained"))
        panels += panels_of(f"{dataset}: {change}, {group}", series)
    if not panels:
        return {}
    heading = "Tools that come, documents that change"
    return {_NAME: Figure("continual.svg", heading, "", "lines", "step", "R@5, %", tuple(panels))}
