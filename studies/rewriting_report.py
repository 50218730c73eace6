"""The section and figures about requests that are rewritten before a search.

The rows are made by studies/rewriting.py and studies/rewriting_speed.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType

from studies.study_rows import StudyRows, about
from toolscout.evaluation.report.figures import Figure, Panel, Series, deviation, mean_percent, panels_of
from toolscout.evaluation.report.rows import ResultLine, by_split, commits, group_by, percent
from toolscout.evaluation.report.tables import table
from toolscout.evaluation.row import STUDY, RowDict

REWRITING = "rewriting"
ALONE, OVER = "alone", "dense-raw"
SHARES = ("25", "50")
_MARGIN = 0.05  # a namespace whose recall moved by less stays as it is
_HEAD = """
## Rewriting requests

A language model says what a request needs, each of its lines is searched, and the rankings are interleaved with the
request's own. *Alone*: the request as it is. *Rules*: split at sentences and joints, no model. *Zero*: SmolLM2-135M as
it is (or the model that is named), *decompose* asks it for sub-requests, *iterate* shows it what was found.
*Supervised* learned from the train split to describe gold tools; *decompose-supervised* is the same without the request
itself; *aligned* was taught all but some tools and went on, on requests for those, by what dense with the published
encoder finds. *Supervised-written* learned from requests that were written for tools without any, too, and
*aligned-written* went on from there; *aligned-new* is *supervised*, aligned on the written ones alone. Dense *raw* has
the published encoder, dense *trained* learned from the same train split; hybrid is of bm25 and raw vectors. Δ is to
*alone* over the same retriever, in points. *Read* and *written* are tokens of a request. Gini is over how often each
tool comes among the first five (0: all equally often), beside it that of how often they are needed; *better* and
*worse* count the namespaces, of those needed most, whose recall moved by 5 points or more. *Fit* are the seconds that
the generator took, its alignment too.
"""
_MEASURES = MappingProxyType({"R@5": "recall@5", "C@5": "comp@5", "new R@5": "new_recall@5"})
_FORMS = (
    ALONE,
    "rules",
    "zero",
    "decompose",
    "iterate",
    "supervised",
    "decompose-supervised",
    "iterate-supervised",
    "aligned",
    "supervised-written",
    "aligned-written",
    "aligned-new",
)
# The forms in the figure of gains, in words.
_GAINS = MappingProxyType(
    {
        "rules": "split by rules, no model",
        "zero": "SmolLM2 as it is, shown examples",
        "supervised": "SmolLM2, supervised",
        "aligned": "SmolLM2, supervised and aligned",
    }
)
_SPLITS = MappingProxyType({"unseen_tool.test": "unseen tools", "unseen_scene.test": "unseen combinations"})
_OVERS = ("bm25", "dense-raw", "dense-trained", "hybrid")
_COLUMNS = (
    "over",
    "form",
    "R@5",
    "Δ R@5",
    "C@5",
    "Δ C@5",
    "new R@5",
    "queries",
    "read",
    "written",
    "Gini",
    "… needed",
    "better",
    "worse",
    "fit, s",
    "seeds",
    "commit",
)
_SHARES_HEAD = """
### Only where it is worth it

A router, fitted on dev, forecasts what rewriting gains a request; the share that gains most is rewritten, over dense
with the published encoder. *At random* is what as many requests drawn at random would give.
"""
_ABLATION_HEAD = """
### Alignment: what matters

Each line is *aligned* with one thing changed, over dense with the published encoder; *known* went on from the
supervised generator instead, on requests that it was taught by, *written* from the one that learned from written
requests. *Gain on dev* is R@5 of the kept round less that before. Then the rounds of each: the mean reward of samples
and of the best of a request, what the likeliest text finds on dev, how reward and recall of samples go together
(correlation), distinct-2 over queries, the share of distinct samples of a request, the mean idf of a query's words
(specific), and the share of queries that are the request again (copied).
"""
_ROUNDS = MappingProxyType(
    {
        "reward": "reward",
        "best of n": "best_reward",
        "dev R@5": "dev_recall@5",
        "dev C@5": "dev_comp@5",
        "correlation": "correlation",
        "distinct-2": "diversity",
        "distinct": "distinct",
        "specific": "specificity",
        "copied": "copying",
        "pairs": "pairs",
        "seconds": "seconds",
    }
)
_SPEED_HEAD = """
### One request

Through `search(k=5)`, one after the other, nothing kept between them.
"""
_SPEEDS = MappingProxyType(
    {"p50, ms": "p50_ms", "p95, ms": "p95_ms", "read": "read", "written": "written", "failed": "failed"}
)


def section(rows: StudyRows, pictures: Mapping[str, str]) -> Iterator[str]:
    """Quality by form, the share of requests rewritten, alignment and speed: what there are rows for."""
    lines, speed = rows.study(REWRITING), rows.bench(REWRITING)
    if lines:
        yield _HEAD
        yield from filter(None, [pictures.get("rewriting_gain"), pictures.get(REWRITING)])
        yield from _quality(lines)
        yield from _shares(lines, pictures)
        yield from _ablations(lines)
    if speed:
        yield from [] if lines else ["\n## Rewriting requests\n"]
        yield _SPEED_HEAD
        yield table(["form", "over", "on", *_SPEEDS, "asked", "commit"], map(_speed, speed))


def rank(line: ResultLine) -> tuple[int, int, str]:
    """Where a line of the main table stands."""
    over, form = str(about(line, "over")), str(about(line, "form"))
    places = (_OVERS.index(over) if over in _OVERS else len(_OVERS), _FORMS.index(form))
    return *places, str(about(line, "author"))


def label(line: ResultLine) -> str:
    """The form, with who writes where that is not SmolLM2 or a generator of the set."""
    form, author = str(about(line, "form")), str(about(line, "author") or "")
    return f"{form} ({author})" if form in ("zero", "decompose", "iterate") and author != "SmolLM2" else form


def main_lines(lines: Sequence[ResultLine]) -> list[ResultLine]:
    """Those of the main table, in order."""
    return sorted((line for line in lines if about(line, "form") in _FORMS), key=rank)


def _quality(lines: Sequence[ResultLine]) -> Iterator[str]:
    for (dataset, split, _), chosen in by_split(main_lines(lines)).items():
        yield f"\n**{dataset} {split}**, {max(line.newest['requests'] for line in chosen):,} requests\n"
        alone = {about(line, "over"): line for line in chosen if about(line, "form") == ALONE}
        yield table(_COLUMNS, [_cells(line, alone.get(about(line, "over"))) for line in chosen])


def _cells(line: ResultLine, alone: ResultLine | None) -> dict[str, str]:
    cells = {"over": str(about(line, "over")), "form": label(line)}
    cells |= {"seeds": str(len(line.rows)), "commit": line.commits}
    cells |= {head: percent(line.values(name)) for head, name in _MEASURES.items()}
    for head, name in (("queries", "queries"), ("read", "llm_prompt_tokens"), ("written", "llm_completion_tokens")):
        each = [row[STUDY]["costs"].get(name, 0) / row["requests"] for row in line.rows]
        cells |= {head: f"{fmean(each):.1f}"} if any(each) else {}
    for head, name in (("Gini", "gini@5"), ("… needed", "gini_gold")):
        value = line.mean(name)
        cells |= {} if value is None else {head: f"{value:.3f}"}
    spent = line.mean("fit_s", "timing")
    cells |= {} if spent is None else {"fit, s": f"{spent:,.0f}"}
    if alone is None or alone is line:
        return cells
    for head in ("R@5", "C@5"):
        before, after = alone.mean(_MEASURES[head]), line.mean(_MEASURES[head])
        if before is not None and after is not None:
            cells[f"Δ {head}"] = f"{100 * (after - before):+.2f}"
    better, worse = moved(alone.newest, line.newest)
    return cells | {"better": str(better), "worse": str(worse)}


def moved(before: RowDict, after: RowDict) -> tuple[int, int]:
    """How many namespaces are found better than before, and how many worse."""
    was, now = (row[STUDY].get("namespaces") or {} for row in (before, after))
    steps = [found / count - was[name][1] / was[name][0] for name, (count, found) in now.items() if name in was]
    return sum(step >= _MARGIN - 1e-9 for step in steps), sum(step <= -_MARGIN + 1e-9 for step in steps)


def shares(lines: Sequence[ResultLine]) -> dict[tuple[str, str, str], dict[int, ResultLine]]:
    """By dataset, split and source: the lines at a share of the requests, in percent, where a router was asked."""
    over = [line for line in lines if about(line, "over") == OVER]
    found: dict[tuple[str, str, str], dict[int, ResultLine]] = {}
    for line in over:
        source, _, percent_ = str(about(line, "form")).partition("-share")
        if percent_ in SHARES:
            found.setdefault((*line.split[:2], source), {})[int(percent_)] = line
    for (dataset, split, source), own in found.items():
        ends = {ALONE: 0, source: 100}
        for line in over:
            if line.split[:2] == (dataset, split) and about(line, "form") in ends:
                own[ends[about(line, "form")]] = line
    return found


def _shares(lines: Sequence[ResultLine], pictures: Mapping[str, str]) -> Iterator[str]:
    found = shares(lines)
    if not found:
        return
    yield _SHARES_HEAD
    yield from filter(None, [pictures.get("rewriting_share")])
    cells = []
    for (dataset, split, source), own in sorted(found.items()):
        for share, line in sorted(own.items()):
            ends = [own[end].mean("recall@5") for end in (0, 100) if end in own]
            random = ""
            if len(ends) == 2 and None not in ends:
                low, high = (float(one or 0) for one in ends)
                random = f"{100 * (low + (high - low) * share / 100):.2f}"
            done = fmean(row[STUDY]["costs"].get("rewritten", 0) / row["requests"] for row in line.rows)
            first = {
                "set": f"{dataset} {split}",
                "by": source,
                "share": f"{share} %",
                "rewritten": f"{100 * done:.1f} %",
            }
            measures = {head: percent(line.values(name)) for head, name in _MEASURES.items()}
            cells.append(first | measures | {"R@5 at random": random} | {"commit": line.commits})
    yield table(["set", "by", "share", "rewritten", "R@5", "R@5 at random", "C@5", "new R@5", "commit"], cells)


def _ablations(lines: Sequence[ResultLine]) -> Iterator[str]:
    aligned = [line for line in lines if about(line, "history") and "-share" not in str(about(line, "form"))]
    if not aligned:
        return
    yield _ABLATION_HEAD
    for (dataset, split, _), chosen in by_split(aligned).items():
        yield f"\n**{dataset} {split}**\n"
        own, rounds = [], []
        for line in sorted(chosen, key=lambda line: (about(line, "form") != "aligned", str(about(line, "form")))):
            first, *later = history = about(line, "history")
            kept = next((one for one in history if one.get("kept")), first)
            gain = kept.get("dev_recall@5", 0) - first.get("dev_recall@5", 0)
            cells = {"alignment": str(about(line, "form")), "gain on dev": f"{100 * gain:+.2f}"}
            cells |= {head: percent(line.values(name)) for head, name in _MEASURES.items()}
            spent = sum(one.get("seconds", 0) for one in later)
            own.append(cells | {"seconds": f"{spent:,.0f}", "seeds": str(len(line.rows))} | {"commit": line.commits})
            for one in history:
                shown = {head: f"{one[name]:.4g}" for head, name in _ROUNDS.items() if one.get(name) is not None}
                note = ", ".join(name for name in ("kept", "plateau") if one.get(name))
                rounds.append({"alignment": str(about(line, "form")), "round": str(one["round"]), "": note} | shown)
        yield table(["alignment", *_MEASURES, "gain on dev", "seconds", "seeds", "commit"], own)
        yield table(["alignment", "round", *_ROUNDS, ""], rounds)


def _speed(row: RowDict) -> dict[str, str]:
    values = row["values"]
    cells = {head: f"{values[name]:,.4g}" for head, name in _SPEEDS.items() if values.get(name) is not None}
    first = {"form": str(row.get("form")), "over": str(row.get("over")), "on": str(row.get("device"))}
    return first | cells | {"asked": str(row.get("asked", ""))} | {"commit": commits([row])}


def figures(rows: StudyRows) -> dict[str, Figure]:
    """What forms gain, R@5 of each form, and against the share of requests rewritten; only those with points."""
    lines = rows.study(REWRITING)
    made = {
        "rewriting_gain": _gains_figure(main_lines(lines)),
        REWRITING: _forms_figure(main_lines(lines)),
        "rewriting_share": _shares_figure(lines),
    }
    return {name: figure for name, figure in made.items() if figure.panels}


def _gains_figure(lines: Sequence[ResultLine]) -> Figure:
    """R@5 less that of the request alone over the same retriever: a panel for each form, a bar for each retriever."""
    means = {(*line.split[:2], str(about(line, "over")), label(line)): line.values("recall@5") for line in lines}
    panels = []
    for form, title in _GAINS.items():
        gains: dict[str, dict[str, float]] = {}
        for (dataset, split, over, own), values in sorted(means.items()):
            alone = means.get((dataset, split, over, ALONE))
            if own == form and values and alone:
                name = f"{dataset} {_SPLITS.get(split, split)}"
                gains.setdefault(over, {})[name] = round(mean_percent(values) - mean_percent(alone), 2)
        panels += panels_of(
            title,
            (Series(over, tuple(own), tuple(own.values())) for over, own in sorted(gains.items(), key=_place)),
        )
    heading, axis = "Rewriting requests: R@5 gained over the request alone", "R@5, points"
    return Figure("rewriting_gain.svg", heading, "", "differences", "", axis, tuple(panels))


def _place(group: tuple[str, object]) -> int:
    return _OVERS.index(group[0]) if group[0] in _OVERS else len(_OVERS)


def _forms_figure(lines: Sequence[ResultLine]) -> Figure:
    """R@5 of each form, a bar for each retriever."""
    panels = []
    for (dataset, split, _), chosen in by_split(lines).items():
        series = []
        for over, own in group_by(chosen, lambda line: str(about(line, "over"))).items():
            found = {label(line): line.values("recall@5") for line in own}
            shown = {name: values for name, values in found.items() if values}
            if shown:
                heights, errors = tuple(map(mean_percent, shown.values())), tuple(map(deviation, shown.values()))
                series.append(Series(over, tuple(shown), heights, errors))
        panels += panels_of(f"{dataset} {split}", series)
    return Figure("rewriting.svg", "Rewriting requests: R@5", "", "bars", "", "R@5, %", tuple(panels))


def _shares_figure(lines: Sequence[ResultLine]) -> Figure:
    """R@5 against the share of requests that are rewritten."""
    panels: dict[str, list[Series]] = {}
    for (dataset, split, source), own in sorted(shares(lines).items()):
        points = [(share, line.values("recall@5")) for share, line in sorted(own.items())]
        x, y = zip(*((float(share), mean_percent(values)) for share, values in points if values), strict=True)
        panels.setdefault(f"{dataset} {split}", []).append(Series(source, x, y))
    made = tuple(Panel(title, tuple(series)) for title, series in panels.items())
    labels = ("requests rewritten, %", "R@5, %")
    return Figure("rewriting_share.svg", "Only where it is worth it", "", "lines", *labels, made)
