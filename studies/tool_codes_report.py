"""The section and figure about the codes of toolweaver (studies/tool_codes.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType

from studies.study_rows import StudyRows
from toolscout.evaluation.report.figures import Figure, Series, deviation, mean_percent, panels_of
from toolscout.evaluation.report.rows import commits, group_by
from toolscout.evaluation.report.tables import table
from toolscout.evaluation.row import RowDict

NAME = "tool_codes"
_HEAD = """
## ToolWeaver: what makes a code

Codes learned from documents and train requests, no language model behind them (`python -m studies.tool_codes`); means
of the seeds. *Perplexity* of the codes of a level, as a share of their number, says how evenly they are used.
*Co-used*: the share of pairs of tools used together whose first code is the same, and *by chance*: that of all pairs.
*Lost*: the share of the documents' variance that the codes do not hold. Collisions: tools that would share another's
codes if each had its nearest ones, and after the published pass over those (one of Sinkhorn-Knopp over the last level
of each group); by the matching that is used here there are none. *Published loss*: the Laplacian over summed code
vectors. Without Sinkhorn-Knopp there is no published pass.
"""
_SHARES = MappingProxyType(
    {"co-used %": "together", "by chance %": "by_chance", "lost %": "lost", "codes used %": "used"}
)
_COUNTS = MappingProxyType({"collisions, nearest": "nearest_collisions", "published": "published_collisions"})


# The variants in the figure, in its order; the others change a setting of one of them.
_SHOWN = ("as served", "published loss", "without co-use", "without Sinkhorn", "random codes")


def section(rows: StudyRows, pictures: Mapping[str, str]) -> Iterator[str]:
    """A table for each dataset; nothing where there are no rows."""
    found = rows.bench(NAME)
    if not found:
        return
    yield _HEAD
    yield from filter(None, [pictures.get(NAME)])
    for name, own in group_by(found, lambda row: str(row["dataset"])).items():
        yield f"\n**{name}**, {own[0]['tools']:,} tools\n\n"
        variants = group_by(own, lambda row: str(row["variant"]))
        columns = ("variant", "seeds", "levels × codes", "perplexity %", *_SHARES, *_COUNTS, "commit")
        yield table(columns, [_cells(variant, few) for variant, few in variants.items()])


def _cells(variant: str, few: Sequence[RowDict]) -> dict[str, str]:
    def mean(name: str) -> float:
        return fmean(row["values"][name] for row in few)

    return {
        "variant": variant,
        "seeds": f"{len(few)}",
        "levels × codes": f"{mean('levels'):.0f} × {mean('codes'):.0f}",
        "perplexity %": f"{100 * mean('perplexity') / mean('codes'):.1f}",
        **{head: f"{100 * mean(name):.1f}" for head, name in _SHARES.items()},
        **{head: f"{mean(name):,.0f}" for head, name in _COUNTS.items()},
        "commit": commits(few),
    }


def figures(rows: StudyRows) -> dict[str, Figure]:
    """How many co-used pairs share their first code, by the name of the study; none where there is nothing to show."""
    panels = []
    for dataset, own in group_by(rows.bench(NAME), lambda row: str(row["dataset"])).items():
        variants = group_by(own, lambda row: str(row["variant"]))
        found = {name: variants[name] for name in _SHOWN if name in variants}
        series = []
        for label, measure in (("used together", "together"), ("any two tools", "by_chance")) if found else ():
            values = [[float(row["values"][measure]) for row in few] for few in found.values()]
            series.append(Series(label, tuple(found), tuple(map(mean_percent, values)), tuple(map(deviation, values))))
        panels += panels_of(f"{dataset}, {own[0]['tools']:,} tools", series)
    if not panels:
        return {}
    heading, label = "ToolWeaver: pairs of tools that share their first code", "pairs, %"
    return {NAME: Figure("tool_codes.svg", heading, "", "bars", "", label, tuple(panels))}
