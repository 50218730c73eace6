"""The page section and the figure of masstool's ablations, made of the rows of `toolscout ablate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any

from toolscout.evaluation.report.figures import Figure, Series, deviation, mean_percent, panels_of
from toolscout.evaluation.report.rows import ResultLine, group_by, percent
from toolscout.evaluation.report.tables import table
from toolscout.evaluation.row import STUDY
from toolscout.papers.masstool.ablations import NAME, variant_order

_MEASURES = MappingProxyType({"R@5": "recall@5", "N@5": "ndcg@5", "C@5": "comp@5", "new R@5": "new_recall@5"})
_TESTED = "ndcg@5"
_HEAD = """
## MassTool: what each part is worth

Each line is masstool with one part left out or changed, trained on the vectors of one frozen encoder. It is measured
twice: with the weights of its parts chosen on dev, as served, and with the weights that training *learned*. On dev the
weight of neighbours may be chosen as 0, which turns gate and filter off too; only the second measurement then shows
what they learned. Differences are to the full model of the same seed; p comes from flipping the signs of whole scenes
(of several seeds the largest). *Pool*: the share of the training requests that serve as neighbours, in a model trained
with all of them. *Detector*: the share of requests that the detection tower still takes for such that need a tool,
after the hidden states of the others were replaced by those of prompts that need none. The first figure shows the
differences of N@5; thin lines are as long as the 95 % interval.
"""
_WORDS = MappingProxyType(
    {
        "full": "full",
        "without-adakt": "without AdaKT (the gate)",
        "without-suim": "without SUIM (neighbours)",
        "without-dynamic-filter": "without the dynamic filter",
        "without-contrastive": "without the contrastive loss",
        "without-detection": "without detection",
        "without-graph": "without the graph",
        "without-attention": "without attention (neighbours only vote)",
        "without-votes": "without votes (neighbours are only attended to)",
    }
)
_WHOLE = "MassTool"
# By variant: the part that it leaves out, in the figure of parts.
_PARTS = MappingProxyType(
    {
        "without-graph": "graph",
        "without-attention": "attention",
        "without-adakt": "gate",
        "without-votes": "votes",
        "without-suim": "attention and votes",
    }
)
_ENCODERS = MappingProxyType(
    {"encoder": "trained encoder", "default": "encoder in the package", "raw": "published encoder"}
)
_PARTS_FIGURE = "masstool_parts"
# By part: the title of its panel, and the option on the x axis.
_OPTIONS = {"lambda": ("λ of detection", "detection"), "epsilon": ("ε of the filter", "epsilon")}


def lines_of(lines: Iterable[ResultLine]) -> list[ResultLine]:
    """Return the lines that come from `toolscout ablate`."""
    return [line for line in lines if line.newest.get(STUDY, {}).get("name") == NAME]


def section(lines: Sequence[ResultLine], pictures: Mapping[str, str]) -> Iterator[str]:
    """Yield the Markdown of the ablations; nothing without lines. `pictures`: the Markdown of drawn figures by name."""
    if not lines:
        return
    yield _HEAD
    yield from filter(None, [pictures.get(_PARTS_FIGURE), pictures.get(NAME)])
    groups = group_by(lines, lambda line: (*line.split[:2], line.newest[STUDY]["of"], line.newest[STUDY]["encoder"]))
    for (dataset, split, _, encoder), chosen in groups.items():
        first = chosen[0].newest
        yield f"\n**{dataset} {split}**, {first['requests']:,} requests, encoder {encoder}\n"
        columns = [f"{head}{weights}" for weights in ("", ", learned") for head in (*_MEASURES, "N@5 - full", "p")]
        yield table(["variant", *columns, "need AUROC", "seeds", "commit"], _variants(chosen))


def _variants(lines: Sequence[ResultLine]) -> Iterator[dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        study = line.newest[STUDY]
        marked = ", learned" if study["weights"] == "learned" else ""
        cells = found.setdefault(study["variant"], {"variant": variant_label(study)})
        cells |= {f"{head}{marked}": percent(line.values(name)) for head, name in _MEASURES.items()}
        cells |= {f"{head}{marked}": text for head, text in difference_cells(line).items()}
        cells |= {"need AUROC": percent(line.values("need_auroc")), "seeds": str(len(line.rows))}
        cells["commit"] = line.commits
        if accuracy := line.values("detector_accuracy"):
            cells["variant"] = f"detector right for {100 * fmean(accuracy):.0f} %"
    yield from (found[name] for name in sorted(found, key=variant_order))


def difference_cells(line: ResultLine) -> dict[str, str]:
    """Return the difference of N@5 to the full model and its p; {} unless every row has its paired test."""
    tested = _paired_tests(line)
    if not tested:
        return {}
    p = max(float(one[3]) for one in tested)
    return {
        "N@5 - full": f"{100 * fmean(float(one[0]) for one in tested):+.2f}",
        "p": "< 0.001" if p < 0.001 else f"{p:.3f}",
    }


def _paired_tests(line: ResultLine) -> list[Sequence[float]]:
    """Return difference, ends of its interval and p of each row; [] unless every row has its paired test."""
    tested = [row[STUDY]["against"][_TESTED] for row in line.rows if _TESTED in row[STUDY].get("against", {})]
    return tested if len(tested) == len(line.rows) else []


def variant_label(study: Mapping[str, Any]) -> str:
    """Return a variant in words; `study` is what its row has under "study"."""
    name, changes = str(study["variant"]), study.get("changes") or {}
    if name in _WORDS:
        return _WORDS[name]
    if study.get("part") == "pool":
        return f"pool of {100 * changes['pool']:g} %"
    if study.get("part") == "graph":
        edges = f"{100 * changes['edges']:g} % of the edges"
        return f"{changes['layers']} layer{'s' if changes['layers'] > 1 else ''}, {edges}"
    values = {"lambda": "λ", "epsilon": "ε", "transfer": "transfer"}
    value = next(iter(changes.values()), "")
    return f"{values.get(str(study.get('part')), name)} {value}".replace("_", " ")


def figures(lines: Sequence[ResultLine]) -> dict[str, Figure]:
    """Return the figures of the ablations by their names; only those with something to show."""
    made = {_PARTS_FIGURE: _parts_figure(lines), NAME: _options_figure(lines)}
    return {name: figure for name, figure in made.items() if figure.panels}


def difference_series(label: str, lines: Mapping[str, ResultLine]) -> list[Series]:
    """Return a series of differences of N@5 to the full model in points, with their 95 % intervals.

    `lines`: by what stands on the x axis. Those without a paired test of every row are left out; [] where all are.
    """
    tested = {place: _paired_tests(line) for place, line in lines.items()}
    shown = {place: tests for place, tests in tested.items() if tests}
    if not shown:
        return []
    heights = tuple(round(100 * fmean(test[0] for test in tests), 2) for tests in shown.values())
    half_widths = tuple(round(50 * fmean(test[2] - test[1] for test in tests), 2) for tests in shown.values())
    return [Series(label, tuple(shown), heights, half_widths)]


def _parts_figure(lines: Sequence[ResultLine]) -> Figure:
    """Return what leaving a part out changes, with weights as served and as learned."""
    panels = []
    for weights, title in (("chosen", "as served (weights chosen on dev)"), ("learned", "weights as learned")):
        own = [line for line in lines if line.newest[STUDY]["weights"] == weights]
        series = []
        groups = group_by(own, lambda line: (*line.split[:2], line.newest[STUDY]["of"], line.newest[STUDY]["encoder"]))
        for (dataset, split, _, encoder), chosen in groups.items():
            by_variant = {line.newest[STUDY]["variant"]: line for line in chosen}
            found = {part: by_variant[variant] for variant, part in _PARTS.items() if variant in by_variant}
            series += difference_series(f"{dataset} {split}, {_ENCODERS.get(encoder, encoder)}", found)
        series.sort(key=lambda one: -len(one.x))  # parts stand in the order of the first series
        panels += panels_of(title, series)
    heading, label = "MassTool, our form: N@5 without a part, less the full model", "N@5, points"
    return Figure(f"{_PARTS_FIGURE}.svg", heading, "", "differences", "", label, tuple(panels))


def _options_figure(lines: Sequence[ResultLine]) -> Figure:
    """Return N@5 over the values of options, and with less of a pool, of edges or of the detector."""
    panels = []
    groups = group_by(lines, lambda line: (*line.split[:2], line.newest[STUDY]["of"]))
    for (dataset, split, _), chosen in groups.items():
        title = f"{dataset} {split}"
        for part, (label, option) in _OPTIONS.items():
            panels += panels_of(f"{title}: {label}", _option_curves(chosen, part, option))
        panels += panels_of(f"{title}: edges kept, by layers", _layer_curves(chosen))
        panels += panels_of(f"{title}: pool, share of requests", _serving_curves(chosen, "pool"))
        panels += panels_of(f"{title}: accuracy of the detector", _serving_curves(chosen, "detector"))
    heading = "MassTool: what each part is worth"
    return Figure("ablation.svg", heading, "", "lines", "", "N@5, %", tuple(panels))


def _option_curves(lines: Sequence[ResultLine], part: str, option: str) -> list[Series]:
    """Return the series over the values of one option, that of the full model included."""
    chosen = [line for line in lines if line.newest[STUDY]["part"] in (part, "full")]
    if not any(line.newest[STUDY]["part"] == part for line in chosen):
        return []
    return _weight_series(_WHOLE, chosen, lambda line: float(line.newest["options"][option]))


def _layer_curves(lines: Sequence[ResultLine]) -> list[Series]:
    found: list[Series] = []
    chosen = [line for line in lines if line.newest[STUDY]["part"] in ("graph", "full")]
    if not any(line.newest[STUDY]["part"] == "graph" for line in chosen):
        return []
    for layers in sorted({int(line.newest["options"]["layers"]) for line in chosen}):
        own = [line for line in chosen if line.newest["options"]["layers"] == layers]
        label = f"{layers} layer{'s' if layers > 1 else ''}"
        found += _weight_series(label, own, lambda line: line.newest["options"]["edges"])
    return found


def _serving_curves(lines: Sequence[ResultLine], part: str) -> list[Series]:
    """Return the series of the full model served with a smaller pool, or with a worse detector.

    The latter stand beside the full model and one without the gate, as horizontal lines.
    """
    chosen = [line for line in lines if line.newest[STUDY]["part"] == part]
    if not chosen:
        return []
    full = [line for line in lines if line.newest[STUDY]["part"] == "full"]
    if part == "pool":

        def pool(line: ResultLine) -> float:
            return float(line.newest[STUDY].get("changes", {}).get("pool", 1.0))

        return _weight_series(_WHOLE, full + chosen, pool)
    found = _weight_series(_WHOLE, chosen, lambda line: line.mean("detector_accuracy") or 0.0)
    places = sorted({x for series in found for x in series.x if isinstance(x, float)})
    for line in lines:
        study = line.newest[STUDY]
        if study["variant"] in ("without-adakt", "full") and line.values(_TESTED):
            label = "without AdaKT" if study["variant"] == "without-adakt" else "full, detector as it is"
            height = mean_percent(line.values(_TESTED))
            ends = (places[0], places[-1])
            found.append(Series(label, ends, (height, height), dashed=study["weights"] == "learned"))
    return found


def _weight_series(label: str, lines: Sequence[ResultLine], x: Callable[[ResultLine], float]) -> list[Series]:
    """Return a solid series of the rows with weights chosen on dev, and a dashed one of those with learned weights."""
    found = []
    for weights in ("chosen", "learned"):
        points = sorted(
            (float(x(line)), mean_percent(line.values(_TESTED)), deviation(line.values(_TESTED)))
            for line in lines
            if line.newest[STUDY]["weights"] == weights and line.values(_TESTED)
        )
        if points:
            places, heights, errors = zip(*points, strict=True)
            error = errors if any(errors) else ()
            found.append(Series(label, places, heights, error, dashed=weights == "learned"))
    return found
