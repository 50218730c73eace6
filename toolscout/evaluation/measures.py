"""Computes the measures of an evaluation: means over requests with intervals, quality of verdicts, fit and need."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from toolscout.data import metrics
from toolscout.data.dataset import Kind
from toolscout.errors import BadRequest
from toolscout.evaluation import significance
from toolscout.evaluation.request_result import DEPTH, RequestResult

CUTOFFS = (1, 3, 5, 10)
MEASURES = (
    *(f"{kind}@{k}" for kind in ("recall", "ndcg", "comp", "hit") for k in CUTOFFS),
    "mrr",
    *(f"toolgen_ndcg@{k}" for k in (1, 3, 5)),
)
# Over the gold tools that are new, and over the others.
NEW_TOOL_MEASURES = tuple(f"{kind}@{k}" for kind in ("new_recall", "known_recall") for k in CUTOFFS)
TOOLLESS: tuple[Kind, ...] = ("nothing_fits", "no_tool")
# Measured by default where a split has such requests. "fit_nothing": no tools were offered, for whatever reason;
# "verdict": none were offered, and for the right reason.
VERDICTS = (
    "fit_use",
    "fit_nothing",
    *(f"fit_nothing.{kind}" for kind in TOOLLESS),
    *(f"verdict.{kind}" for kind in TOOLLESS),
)
# Retrieval and verdict together: all gold tools among the first five, or none offered where none is right.
RIGHT_AT = 5
RIGHT = (f"right@{RIGHT_AT}", f"right_use@{RIGHT_AT}", "right_abstain")
SMALLER_IS_BETTER = ("fit_brier", "fit_ece", "need_brier", "need_ece")
# Measures of the set that a search with k="auto" returns, whatever its verdict.
SETS = tuple(metrics.OF_SETS)
FORECASTS = (
    *VERDICTS,
    *SETS,
    *RIGHT,
    "fit_auroc",
    *(f"fit_auroc.{kind}" for kind in TOOLLESS),
    "fit_f1",
    "need_auroc",
    "need_f1",
    "need_accuracy",
    *SMALLER_IS_BETTER,
)


@dataclass(frozen=True, slots=True)
class MeasureValues:
    """Every number, and the 95 % interval of those that are means over requests."""

    metrics: dict[str, float]
    intervals: dict[str, list[float]]


def check_names(names: Iterable[str]) -> list[str]:
    """Return the names without duplicates and default measures; raises BadRequest for a name that is no measure."""
    found = list(dict.fromkeys(name for name in names if name not in FORECASTS))
    for name in found:
        try:
            metrics.measure(name)
        except BadRequest as error:
            raise BadRequest(f"{error}; or one of {', '.join(FORECASTS)}") from None
    return found


def depth_of(names: Iterable[str]) -> int:
    """Return how many tools must be ranked for these measures."""
    return max([DEPTH, *(metrics.measure(name).k or DEPTH for name in names)])


def compute_measures(
    asked: Sequence[RequestResult], names: Sequence[str] = (), new_tools: Collection[str] | None = None
) -> MeasureValues:
    """Return the default measures and those in `names`. `new_tools`: gold tools to measure apart; None for none."""
    answerable = [one for one in asked if one.gold]
    wanted = list(dict.fromkeys([*MEASURES, *NEW_TOOL_MEASURES, *names]))
    if new_tools is None:
        wanted = [name for name in wanted if not needs_new_tools(name)]
    ranked = scores([one.ranking for one in answerable], [one.gold for one in answerable], wanted, new_tools)
    if any(one.returned is not None for one in answerable):
        ranked |= {name: [set_score(name, one.returned, one.gold) for one in answerable] for name in SETS}
    verdicts = {name: [verdict_score(name, one.kind, one.verdict) for one in asked] for name in VERDICTS}
    if len(answerable) < len(asked):
        complete = [one.gold != () and metrics.comp(one.ranking, one.gold, RIGHT_AT) == 1 for one in asked]
        pairs = list(zip(asked, complete, strict=True))
        verdicts |= {name: [right_score(name, one.kind, one.verdict, all_) for one, all_ in pairs] for name in RIGHT}
    found: dict[str, float] = {}
    ends: dict[str, list[float]] = {}
    for values, scenes in ((ranked, [one.scene for one in answerable]), (verdicts, [one.scene for one in asked])):
        means = {name: float(np.nanmean(column)) for name, column in values.items() if not np.isnan(column).all()}
        columns = np.array([values[name] for name in means]).T
        found |= means
        ends |= dict(zip(means, np.round(significance.intervals(columns, scenes), 6).tolist(), strict=True))
    found |= _fit_measures(asked) | _need_measures(asked)
    return MeasureValues({name: round(value, 6) for name, value in found.items()}, ends)


def scores(
    rankings: Sequence[metrics.Ranking],
    golds: Sequence[Collection[str]],
    names: Sequence[str],
    new_tools: Collection[str] | None = None,
) -> dict[str, list[float]]:
    """Return metrics.scores of each request; "mrr" always looks at the first ten, so that rows can be compared."""
    cut = [f"mrr@{DEPTH}" if name == "mrr" else name for name in names]
    found = metrics.scores(rankings, golds, cut, new_tools)
    return {name: found[one] for name, one in zip(names, cut, strict=True)}


def set_score(name: str, returned: metrics.Ranking, gold: Collection[str]) -> float:
    """Return the score of the set returned for a request; NaN where there was no search with k="auto"."""
    return math.nan if returned is None else metrics.OF_SETS[name](returned, gold)


def needs_new_tools(name: str) -> bool:
    """Return whether a measure distinguishes new tools from others."""
    return name.startswith(("new_recall@", "known_recall@"))


def verdict_score(name: str, kind: str, verdict: str | None) -> float:
    """Return 1 for a right verdict, 0 for a wrong one or a failed request, NaN where the measure does not apply."""
    if name == "fit_use":
        return float(verdict == "use") if kind == "use" else math.nan
    measure, _, of_kind = name.partition(".")
    judged = kind == of_kind if of_kind else kind in TOOLLESS
    if measure == "verdict":
        return float(verdict == _SAID_OF[kind]) if judged else math.nan
    return float(verdict in _SAID_OF.values()) if judged else math.nan


def right_score(name: str, kind: str, verdict: str | None, complete: bool) -> float:
    """Return 1 where a request was answered right, else 0; `complete`: all its gold tools are among the first five."""
    if (name == "right_abstain" and kind == "use") or (name.startswith("right_use") and kind != "use"):
        return math.nan
    return float(verdict == "use" and complete) if kind == "use" else float(verdict in _SAID_OF.values())


def _fit_measures(asked: Sequence[RequestResult]) -> dict[str, float]:
    """Return how well `fit` separates requests that tools serve from others, and how well it is calibrated."""

    def auroc(kinds: Collection[Kind]) -> float:
        chosen = [one for one in asked if one.kind == "use" or one.kind in kinds]
        return metrics.auroc([one.kind == "use" for one in chosen], [one.fit for one in chosen])

    kinds = [kind for kind in TOOLLESS if any(one.kind == kind for one in asked)]
    if not kinds:
        return {}
    truth, fits = [one.kind == "use" for one in asked], [one.fit for one in asked]
    said = [one.fit if one.ranking is None else float(one.verdict == "use") for one in asked]
    found = {"fit_auroc": auroc(kinds), **{f"fit_auroc.{kind}": auroc([kind]) for kind in kinds}}
    return found | {
        "fit_f1": metrics.f1(truth, said),
        "fit_brier": metrics.brier(truth, fits),
        "fit_ece": metrics.ece(truth, fits),
    }


def _need_measures(asked: Sequence[RequestResult]) -> dict[str, float]:
    """Return how well `need` separates requests that need a tool from others; nothing where it was not predicted.

    Requests whose need cannot be told, being in a language that the need head does not know, are left out.
    """
    judged = [one for one in asked if one.ranking is None or one.need is not None]
    truth = [one.kind != "no_tool" for one in judged]
    if all(truth) or not any(truth) or all(one.need is None for one in judged):
        return {}
    # A failed request counts as the worst possible prediction.
    needs = [float(not true) if one.need is None else one.need for one, true in zip(judged, truth, strict=True)]
    return {f"need_{name}": of(truth, needs) for name, of in _OF_NEED.items()}


_SAID_OF = {"no_tool": "no_tool_needed", "nothing_fits": "nothing_fits"}
_OF_NEED: dict[str, Callable[[Sequence[bool], Sequence[float]], float]] = {
    "auroc": metrics.auroc,
    "f1": metrics.f1,
    "accuracy": metrics.accuracy,
    "brier": metrics.brier,
    "ece": metrics.ece,
}
