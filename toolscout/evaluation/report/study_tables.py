"""Markdown of studies: what parts are worth, other domains, tools that come and documents that change, and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any

from toolscout.evaluation.report.rows import Line, Row, percent
from toolscout.evaluation.study import STUDY
from toolscout.papers.masstool.ablations import place

Table = Callable[[Sequence[str], Iterable[Mapping[str, str]]], str]
COST = "masstool"
_MEASURES = MappingProxyType({"R@5": "recall@5", "N@5": "ndcg@5", "C@5": "comp@5", "new R@5": "new_recall@5"})
_TESTED = "ndcg@5"
_ABLATION_HEAD = """
## MassTool: what each part is worth

Each line is masstool with one part left out or changed, trained on the vectors of one frozen encoder. It is measured
twice: with what its parts count *chosen* on dev, as it is served, and with what they counted in training (*learned*).
On dev neighbours may be chosen to count nothing, and then gate and filter do nothing either: whether they learned
something is seen in the second. Differences are to the full model of the same seed, p is from flipping the signs of
whole scenes (of several seeds the largest). *Pool*: how many of the training requests are kept as neighbours, in a
model trained with all. *Detector*: for some requests the gate hears the hidden state of a prompt that needs no tool, so
that only this share of the requests is still taken for such that need one.
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
    }
)
_TRANSFER_HEAD = """
## Across domains, without retraining

Trained on ToolLens alone, asked about other catalogues. Beside them stand, where they were measured, the domain's own
dense model (trained on its train split), and words and vectors as they come with the package.
"""
_CONTINUAL_HEAD = """
## Tools that come, documents that change

*Kept*: the model is trained once and never again; tools are added, or their documents replaced, while it serves.
*Told*: the same, and past requests that used what has come join its pool. *Retrained*: trained anew at each step on all
that is there. The first model knows 80 % of the tools and the requests that need no other; the rest comes in five
steps. *Old*: requests that need tools of the beginning alone; *added*: those that need one that came. A round of edits
changes one document in ten: a sentence is dropped, parameters change places, words get synonyms; *edited*: requests
that need a tool whose document has changed, *untouched*: the others. R@5 in percent; where it stands, new R@5 counts
only the tools that came.
"""
_COST_HEAD = """
## MassTool: cost

Made-up tools and requests, so that sizes can be chosen; a fit with the usual options on vectors of a frozen encoder.
Times of a request are those of the search alone, without the encoder, on two cores; the aim is to be within 3 ms of
dense on the same encoder.
"""
_AIM_MS = 3.0


def is_study(line: Line) -> bool:
    """Whether a line belongs to a study, not into the tables of methods."""
    return STUDY in line.newest


def of(lines: Sequence[Line], name: str) -> list[Line]:
    """The lines of one study."""
    return [line for line in lines if line.newest[STUDY].get("name") == name]


def groups(lines: Sequence[Line], *keys: str) -> dict[tuple[Any, ...], list[Line]]:
    """Lines by dataset, split and some keys of their study."""
    found: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        told = line.newest[STUDY]
        found.setdefault((*line.split[:2], *(told.get(key) for key in keys)), []).append(line)
    return found


def sections(
    studies: Sequence[Line], others: Sequence[Line], cost: Sequence[Row], pictures: Mapping[str, str], table: Table
) -> Iterator[str]:
    """All sections that there is something for. `pictures`: by the study that they belong to."""
    yield from _ablation(of(studies, "ablation"), pictures.get("ablation", ""), table)
    yield from _transfer(of(studies, "transfer"), others, table)
    yield from _continual(of(studies, "continual"), pictures.get("continual", ""), table)
    yield from _cost(cost, pictures.get("cost", ""), table)


def _ablation(lines: Sequence[Line], picture: str, table: Table) -> Iterator[str]:
    if not lines:
        return
    yield _ABLATION_HEAD
    if picture:
        yield picture
    for (dataset, split, _, encoder), chosen in groups(lines, "of", "encoder").items():
        first = chosen[0].newest
        yield f"\n**{dataset} {split}**, {first['requests']:,} requests, encoder {encoder}\n"
        columns = [head for weights in ("", ", learned") for head in _heads(weights)]
        yield table(["variant", *columns, "need AUROC", "seeds", "commit"], _variants(chosen))


def _heads(weights: str) -> list[str]:
    return [f"{head}{weights}" for head in (*_MEASURES, "N@5 - full", "p")]


def _variants(lines: Sequence[Line]) -> Iterator[dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        told = line.newest[STUDY]
        marked = ", learned" if told["weights"] == "learned" else ""
        cells = found.setdefault(told["variant"], {"variant": said(told)})
        cells |= {f"{head}{marked}": percent(line.values(name)) for head, name in _MEASURES.items()}
        cells |= {f"{head}{marked}": text for head, text in _difference(line).items()}
        cells |= {"need AUROC": percent(line.values("need_auroc")), "seeds": str(len(line.rows))}
        cells["commit"] = ", ".join(dict.fromkeys(str(row.get("commit") or "") for row in line.rows))
        if accuracy := line.values("detector_accuracy"):
            cells["variant"] = f"detector right for {100 * fmean(accuracy):.0f} %"
    yield from (found[name] for name in sorted(found, key=place))


def _difference(line: Line) -> dict[str, str]:
    tested = [row[STUDY]["against"][_TESTED] for row in line.rows if _TESTED in row[STUDY].get("against", {})]
    if not tested or len(tested) < len(line.rows):
        return {}
    p = max(float(one[3]) for one in tested)
    return {
        "N@5 - full": f"{100 * fmean(float(one[0]) for one in tested):+.2f}",
        "p": "< 0.001" if p < 0.001 else f"{p:.3f}",
    }


def said(told: Mapping[str, Any]) -> str:
    """A variant in words."""
    name, changes = str(told["variant"]), told.get("changes") or {}
    if name in _WORDS:
        return _WORDS[name]
    if told.get("part") == "pool":
        return f"pool of {100 * changes['pool']:g} %"
    if told.get("part") == "graph":
        edges = f"{100 * changes['edges']:g} % of the edges"
        return f"{changes['layers']} layer{'s' if changes['layers'] > 1 else ''}, {edges}"
    values = {"lambda": "λ", "epsilon": "ε", "transfer": "transfer"}
    value = next(iter(changes.values()), "")
    return f"{values.get(str(told.get('part')), name)} {value}".replace("_", " ")


def _transfer(lines: Sequence[Line], others: Sequence[Line], table: Table) -> Iterator[str]:
    if not lines:
        return
    yield _TRANSFER_HEAD
    for (dataset, split, digest), chosen in _by_split(lines).items():
        beside = [line for line in others if line.split == (dataset, split, digest) and _is_reference(line, dataset)]
        yield f"\n**{dataset} {split}**, {chosen[0].newest['requests']:,} requests\n"
        cells = [_row(line, f"{line.newest['retriever']}, trained on {line.newest[STUDY]['from']}") for line in chosen]
        cells += [_row(line, _reference(line)) for line in beside]
        yield table(["model", *_MEASURES, "seeds", "commit"], cells)


def _by_split(lines: Sequence[Line]) -> dict[tuple[str, str, str], list[Line]]:
    found: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        found.setdefault(line.split, []).append(line)
    return found


def _is_reference(line: Line, dataset: str) -> bool:
    """The domain's own dense model, and what no training on these sets stands behind."""
    retriever, variant = line.newest["retriever"], line.newest["variant"]
    plain = retriever in ("bm25", "dense", "hybrid") and variant in ("default", "drop-seen")
    return plain or (retriever == "dense" and variant.startswith(dataset))


def _reference(line: Line) -> str:
    plain = line.newest["variant"] in ("default", "drop-seen")
    return f"{line.newest['retriever']}, as it comes" if plain else f"{line.newest['retriever']}, trained on this set"


def _row(line: Line, name: str) -> dict[str, str]:
    cells = {head: percent(line.values(measure)) for head, measure in _MEASURES.items()}
    commits = dict.fromkeys(str(row.get("commit") or "") for row in line.rows)
    return cells | {"model": name, "seeds": str(len(line.rows)), "commit": ", ".join(filter(None, commits))}


def _continual(lines: Sequence[Line], picture: str, table: Table) -> Iterator[str]:
    if not lines:
        return
    yield _CONTINUAL_HEAD
    if picture:
        yield picture
    for (dataset, change, encoder), chosen in _by(lines, "change", "encoder").items():
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


def _by(lines: Sequence[Line], *keys: str) -> dict[tuple[Any, ...], list[Line]]:
    found: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        told = line.newest[STUDY]
        found.setdefault((line.split[0], *(told.get(key) for key in keys)), []).append(line)
    return found


def _cost(rows: Sequence[Row], picture: str, table: Table) -> Iterator[str]:
    if not rows:
        return
    yield _COST_HEAD
    if picture:
        yield picture
    heads = {
        "fit, s": "fit_s",
        "peak memory of the fit, MB": "fit_peak_mb",
        "GPU memory, MB": "fit_gpu_mb",
        "on disk, MB": "model_mb",
        "memory to serve, MB": "serve_mb",
        "dense p50, ms": "dense_p50_ms",
        "masstool p50, ms": "masstool_p50_ms",
        "more, ms": "more_ms",
    }
    lines = []
    for row in sorted(rows, key=lambda row: (row["tools"], int(row["requests"]))):
        values = row["values"]
        cells = {head: f"{values[name]:,.4g}" for head, name in heads.items() if values.get(name) is not None}
        if values.get("more_ms") is not None:
            cells["more, ms"] += f" (≤ {_AIM_MS:g}: {'met' if values['more_ms'] <= _AIM_MS else '**missed**'})"
        cells |= {"tools": f"{row['tools']:,}", "requests": f"{int(row['requests']):,}"}
        lines.append(cells | {"device": str(row.get("device", "")), "commit": str(row.get("commit", ""))})
    yield table(["tools", "requests", *heads, "device", "commit"], lines)
