"""The page section about the ablations of masstool_published, made of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from toolscout.evaluation.report.figures import Figure, panels_of
from toolscout.evaluation.report.rows import ResultLine, group_by, percent
from toolscout.evaluation.report.tables import table
from toolscout.evaluation.row import STUDY
from toolscout.papers.masstool.ablation_report import difference_cells, difference_series
from toolscout.papers.masstool.published_ablations import NAME, VARIANTS

_MEASURES = MappingProxyType(
    {
        "R@3": "recall@3",
        "R@5": "recall@5",
        "N@3": "ndcg@3",
        "N@5": "ndcg@5",
        "C@5": "comp@5",
    }
)
_HEAD = """
## MassTool as published: its ablations

Each line is the published network (`masstool_published`: six cosines, free vectors of requests and tools) with one part
left out or changed, trained on the vectors of one frozen encoder and selected on dev. Gradients pass the graphs and the
attention, as published. Differences are to the full network of the same seed; p comes from flipping the signs of whole
scenes (of several seeds the largest). *Epochs*: those trained, and the most that were allowed. The paper allows 200 on
ToolLens and 100 on ToolBench-G3, and stops after 20 without a better dev score; a line with fewer is a shortened
training, whose learning rate falls to 0 earlier, and is no run of the paper's. What differs from the released code is
listed in `toolscout/papers/masstool/published.py`. The figure shows the differences of N@5 where a part is left out;
thin lines are as long as the 95 % interval.
"""
_WORDS = MappingProxyType(
    {
        "full": "full",
        "without-detection": "without the detection loss",
        "without-suim": "without SUIM (neighbours)",
        "without-adakt": "without AdaKT (the gate)",
        "without-dynamic-filter": "without the dynamic filter",
        "without-contrastive": "without the contrastive loss",
        "without-qc-gcn": "without QC-GCN (the graphs)",
    }
)


def lines_of(lines: Iterable[ResultLine]) -> list[ResultLine]:
    """Return the lines that come from the ablations of masstool_published."""
    return [line for line in lines if line.newest.get(STUDY, {}).get("name") == NAME]


def section(lines: Sequence[ResultLine], pictures: Mapping[str, str]) -> Iterator[str]:
    """Yield the Markdown of the ablations; nothing without lines. `pictures`: the Markdown of drawn figures by name."""
    if not lines:
        return
    yield _HEAD
    yield from filter(None, [pictures.get(NAME)])
    for (dataset, split, _, encoder), chosen in _by_study(lines).items():
        yield f"\n**{dataset} {split}**, {chosen[0].newest['requests']:,} requests, encoder {encoder}\n"
        columns = ["variant", *_MEASURES, "N@5 - full", "p", "need AUROC", "epochs", "seeds", "commit"]
        yield table(columns, [_cells(line) for line in sorted(chosen, key=_order)])


def figures(lines: Sequence[ResultLine]) -> dict[str, Figure]:
    """Return the figure of the parts that are left out, by its name; {} where there is nothing to show."""
    series = []
    for (dataset, _, _, encoder), chosen in _by_study(lines).items():
        without = [line for line in sorted(chosen, key=_order) if line.newest[STUDY]["part"] == "without"]
        epochs = chosen[0].newest["options"]["epochs"]
        parts = {variant_label(line.newest[STUDY]).removeprefix("without "): line for line in without}
        series += difference_series(f"{dataset}, {encoder} encoder, ≤ {epochs} epochs", parts)
    if not series:
        return {}
    heading, label = "MassTool as published: N@5 without a part, less the full network", "N@5, points"
    panels = panels_of("published network, one part left out", series)
    return {NAME: Figure(f"{NAME}.svg", heading, "", "differences", "", label, tuple(panels))}


def _by_study(lines: Sequence[ResultLine]) -> dict[tuple[str, ...], list[ResultLine]]:
    """Return the lines by dataset, split, study and encoder."""
    return group_by(lines, lambda line: (*line.split[:2], line.newest[STUDY]["of"], line.newest[STUDY]["encoder"]))


def _order(line: ResultLine) -> int:
    names, variant = list(VARIANTS), line.newest[STUDY]["variant"]
    return names.index(variant) if variant in names else len(names)


def _cells(line: ResultLine) -> dict[str, str]:
    trained = sorted({int(row[STUDY]["epochs"]) for row in line.rows})
    ends = dict.fromkeys((trained[0], trained[-1]))
    return {
        "variant": variant_label(line.newest[STUDY]),
        **{head: percent(line.values(name)) for head, name in _MEASURES.items()},
        **difference_cells(line),
        "need AUROC": percent(line.values("need_auroc")),
        "epochs": f"{'–'.join(map(str, ends))} of {line.newest['options']['epochs']}",
        "seeds": str(len(line.rows)),
        "commit": line.commits,
    }


def variant_label(study: Mapping[str, Any]) -> str:
    """Return a variant in words; `study` is what its row has under "study"."""
    name = str(study["variant"])
    value = next(iter((study.get("changes") or {}).values()), "")
    words = {
        "transfer": f"transfer by {value}",
        "lambda": f"λ {value}",
        "epsilon": f"ε {value}",
        "layers": f"{value} layers",
        "density": f"{100 * value:g} % of the training requests" if isinstance(value, float) else name,
    }
    return _WORDS.get(name) or words.get(str(study.get("part"))) or name
