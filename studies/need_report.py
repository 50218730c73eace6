"""The section about "is a tool needed?": what was left out of training first, the pooled figure last.

The rows are made by studies/need.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType

from studies.study_rows import StudyRows
from toolscout.evaluation.report.rows import ResultLine, by_split, group_by, percent
from toolscout.evaluation.report.tables import table

_MEASURES = MappingProxyType(
    {
        "AUROC": "need_auroc",
        "F1": "need_f1",
        "accuracy": "need_accuracy",
        "Brier": "need_brier",
        "ECE": "need_ece",
        "let through": "need_let_through",
        "turned away": "need_turned_away",
        "pairs right": "need_pair_accuracy",
        "pairs in order": "need_pair_auroc",
    }
)
_MEANS = ("mean accuracy", "worst accuracy", "mean F1", "mean Brier", "mean ECE")
_METHODS = MappingProxyType(
    {
        "need-head": "head",
        "best-cosine": "best cosine to the catalogue",
        "smollm2-135m": "SmolLM2-135M, asked yes or no",
    }
)
_VARIANTS = MappingProxyType(
    {
        "trained-on-the-rest": "trained without it",
        "trained-on-all": "trained on all train data",
        "shipped": "as it comes with the package",
    }
)
_HEAD = """
## Is a tool needed?

How well a forecast tells requests that need a tool (live data, private data, something done) from prompts that need
none, before any tool is looked at. Half of the texts of a table need one, evenly out of each origin, unless said
otherwise. F1 and accuracy take one half as the threshold; what is served turns away only what is below its own, lower
one: *let through* are requests for tools that stay above that, *turned away* are prompts that do not. Of Brier and ECE,
less is better. The interval of AUROC comes from resampling. The best cosine and the odds of the language model were
made probabilities on dev; where the language model has fewer texts, it was asked about a random sample. What needs no
tool is told by where a prompt comes from: nobody has checked each of them.
"""
_PARTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "left out": (
            "Left out of training, one by one",
            "This is the headline. A source of prompts, or a dataset of requests, is left out of training and of dev, "
            "and is then what is tested on: prompts of the source against test requests of all datasets, test requests "
            "of the dataset against prompts of all sources. A head that knows only how a collection sounds fails here. "
            "The encoder underneath is the default one, which was trained on UltraTool's train and Seal-Tools' dev "
            "requests and their tools, and on requests written for ToolBench's documents (ToolLens and ToolBench-G3 "
            "have its tools), though never on whether they need one: that helps the best cosine there. The "
            "head in the package stands where it was not taught what is left out; dev texts of those were looked at "
            "when its recipe was chosen. SimpleToolQuestions asks for facts that a tool of its catalogue looks up and "
            "that a well-read model may know; questions like them count as needing none in other collections.",
        ),
        "tooldet": (
            "ToolDet's test prompts against each dataset",
            "ToolDet chose its prompts for being near to requests for tools. Some do need one (two ask for tomorrow's "
            "weather). No published figure could be had; MassTool's own evaluation counts the requests that it was "
            "trained on.",
        ),
        "bundled": (
            "The bundled benchmark",
            "As it is: requests that tools serve and those that nothing fits need a tool, the others do not.",
        ),
        "pairs": (
            "Minimal pairs",
            "A hundred pairs in nearly the same words, one of which needs a tool: “what is the weather tomorrow in "
            "Lyon” and “write a poem about the weather in Lyon”. *Pairs right*: both are judged right. *Pairs in "
            "order*: the one that needs a tool stands above the other.",
        ),
        "pooled": (
            "All together, for comparison only",
            "Trained on all sources and datasets, and tested on all of them. It says little: every style is known.",
        ),
    }
)


def is_need(line: ResultLine) -> bool:
    """Whether a line is of this study."""
    return bool((line.newest.get("options") or {}).get("need"))


def section(rows: StudyRows, _pictures: Mapping[str, str]) -> Iterator[str]:
    """A table for each collection of texts; nothing where there are no rows."""
    lines = [line for line in rows.lines if is_need(line)]
    if not lines:
        return
    yield _HEAD
    for part, (heading, about) in _PARTS.items():
        chosen = [line for line in lines if line.newest["options"]["need"] == part]
        if not chosen:
            continue
        yield f"\n### {heading}\n\n{about}\n"
        if part == "left out":
            yield table(["forecast", "left out", "mean AUROC", "worst", *_MEANS], _summary(chosen))
        yield table([_first(part), "forecast", "texts", "AUROC", "95 %", *list(_MEASURES)[1:], "commit"], _rows(chosen))


def _first(part: str) -> str:
    return "left out" if part == "left out" else "against" if part == "tooldet" else "texts of"


def _rows(lines: Sequence[ResultLine]) -> Iterator[dict[str, str]]:
    for chosen in by_split(lines).values():
        for line in chosen:
            part = line.newest["options"]["need"]
            cells = {head: percent(line.values(name)) for head, name in _MEASURES.items()}
            yield cells | {
                _first(part): line.newest["options"].get("left_out") or line.split[0],
                "forecast": _forecast(line),
                "texts": f"{line.newest['requests']:,}",
                "95 %": line.interval_text("need_auroc"),
                "commit": line.commits,
            }


def _summary(lines: Sequence[ResultLine]) -> Iterator[dict[str, str]]:
    """Each method over all that was left out; where one has fewer, the others over the same few too."""
    methods = group_by(lines, _forecast)
    most = max(map(len, methods.values()))
    few = [{line.split for line in chosen} for chosen in methods.values() if len(chosen) < most]
    groups = [(name, chosen) for name, chosen in methods.items() if len(chosen) == most]
    if few:
        shared = set.intersection(*few)
        groups += [(name, [one for one in chosen if one.split in shared]) for name, chosen in methods.items()]
    for name, chosen in ((name, chosen) for name, chosen in groups if chosen):
        means = {key: [line.mean(key) or 0.0 for line in chosen] for key in _MEASURES.values()}
        cells = {f"mean {head}": f"{100 * fmean(means[key]):.2f}" for head, key in list(_MEASURES.items())[:5]}
        cells |= {"worst": f"{100 * min(means['need_auroc']):.2f}"}
        cells |= {"worst accuracy": f"{100 * min(means['need_accuracy']):.2f}"}
        yield cells | {"forecast": name, "left out": f"{len(chosen)} of {most}"}


def _forecast(line: ResultLine) -> str:
    method, variant = line.newest["retriever"], line.newest["variant"]
    notes = [_VARIANTS.get(variant, "" if variant == "default" else variant)]
    notes += [f"{len(line.rows)} seeds"] if len(line.rows) > 1 else []
    notes += [f"{line.newest['dropped']:,} left out as seen"] if line.newest.get("dropped") else []
    return ", ".join([_METHODS.get(method, method), *filter(None, notes)])
