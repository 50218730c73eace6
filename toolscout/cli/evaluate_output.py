"""Prints what the command `evaluate` measured: one run in full, several in a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolscout.cli import output

if TYPE_CHECKING:
    from toolscout.evaluation.evaluate import Evaluation

_KINDS = {
    "recall": "Recall",
    "ndcg": "NDCG",
    "comp": "COMP",
    "hit": "Hit",
    "new_recall": "Recall, new tools",
    "known_recall": "Recall, other tools",
}
_FORECASTS = {
    "exact_set": "k=auto: exactly the right tools returned",
    "set_recall": "  share of the right tools that were returned",
    "set_precision": "  share of the returned tools that are right",
    "returned": "  tools returned for a request",
    "right@5": "answered right: all tools in 5, none if none was due",
    "right_use@5": "  requests for tools",
    "right_abstain": "  other requests",
    "fit_use": "verdict: requests for tools answered with tools",
    "fit_nothing": "verdict: other requests answered with none",
    "fit_nothing.nothing_fits": "  those that nothing fits",
    "verdict.nothing_fits": "    and it was said that nothing fits",
    "fit_nothing.no_tool": "  those that need no tool",
    "verdict.no_tool": "    and it was said that none is needed",
    "fit_auroc": "catalogue fit: AUROC, requests for tools against others",
    "fit_auroc.nothing_fits": "  against those that nothing fits",
    "fit_auroc.no_tool": "  against those that need no tool",
    "fit_f1": "catalogue fit: F1 of the verdict",
    "fit_brier": "catalogue fit: Brier score (less is better)",
    "fit_ece": "catalogue fit: calibration error (less is better)",
    "need_auroc": "tool need: AUROC, requests that need a tool or not",
    "need_f1": "tool need: F1",
    "need_accuracy": "tool need: accuracy",
    "need_brier": "tool need: Brier score (less is better)",
    "need_ece": "tool need: calibration error (less is better)",
}
_LABEL = max(map(len, _FORECASTS.values())) + 2
_HEADLINES = ("recall@5", "ndcg@5", "comp@5", "new_recall@5", "known_recall@5", "right@5", "exact_set", "returned")


def show(done: Sequence[Evaluation], names: Sequence[str], several: bool) -> None:
    """Print the finished runs: a table where `several` were planned. `names` are the measures asked for besides."""
    if several and done:
        _table(done, names)
    elif done:
        _sheet(done[0], names)
    for one in done:
        _notes(one, names, several)


def title(one: Evaluation) -> str:
    """Return the dataset, split, retriever and variant of a run as one text."""
    return f"{one.row.dataset} {one.row.split}, {one.row.retriever} ({one.row.variant})"


def headline(one: Evaluation) -> str:
    """Return the title of a run with its recall@5."""
    return f"{title(one)}: {_HEADLINES[0]} {_cell(one, _HEADLINES[0], 4)}"


def _cell(one: Evaluation, name: str, digits: int) -> str:
    """Return a mean with half the width of its interval; "" where it was not measured."""
    value, ends = one.row.metrics.get(name), one.row.intervals.get(name)
    if value is None:
        return ""
    return f"{value:.{digits}f}" + ("" if ends is None else f" ±{(ends[1] - ends[0]) / 2:.{digits}f}")


def _table(done: Sequence[Evaluation], names: Sequence[str]) -> None:
    chosen = [name for name in dict.fromkeys([*_HEADLINES, *names]) if any(name in one.row.metrics for one in done)]
    table = output.table("dataset and split", "retriever", *chosen, "p50 ms")
    for one in done:
        variant = "" if one.row.variant == "default" else f" ({one.row.variant})"
        table.add_row(
            output.shown(f"{one.row.dataset} {one.row.split}"),
            output.shown(f"{one.row.retriever}{variant}"),
            *(_cell(one, name, 3) for name in chosen),
            "" if one.row.timing["query_p50_ms"] is None else f"{one.row.timing['query_p50_ms']:.1f}",
        )
    output.stdout().print(table)


def _sheet(one: Evaluation, names: Sequence[str]) -> None:
    from toolscout.evaluation.measures import CUTOFFS

    found, timing, console = one.row.metrics, one.row.timing, output.stdout()
    table = output.table("", *(f"@{k}" for k in CUTOFFS))
    for kind, label in _KINDS.items():
        cells = [_cell(one, f"{kind}@{k}", 4) for k in CUTOFFS]
        if any(cells):
            table.add_row(label, *cells)
    among = f" among {one.row.among['tools']:,} tools" if one.row.among else ""
    about = f"{one.row.dataset} {one.row.split}: {one.row.requests:,} requests{among}"
    console.print(output.shown(f"{about}, {one.row.retriever} ({one.row.variant})"))
    console.print(table)
    in_table = {f"{kind}@{k}" for kind in _KINDS for k in CUTOFFS}
    for name in dict.fromkeys(["mrr", *(name for name in names if name not in in_table)]):
        if name in found:
            console.print(f"{name:<{_LABEL}} {_cell(one, name, 4)}")
    for name, label in _FORECASTS.items():
        if name in found:
            console.print(f"{label:<{_LABEL}} {_cell(one, name, 4)}")
    if timing["fit_s"] is not None:
        console.print(output.shown(f"fitted in {timing['fit_s']} s on {timing['fit_device']}"), end="; ")
    cached = " (vectors from the cache)" if timing["index_cached"] else ""
    console.print(f"indexed in {timing['index_s']} s{cached}", end="; ")
    if timing["query_p50_ms"] is None:
        console.print("requests were ranked all at once")
    else:
        console.print(f"a request takes {timing['query_p50_ms']} ms (p50), {timing['query_p95_ms']} ms (p95)")


def _notes(one: Evaluation, names: Sequence[str], several: bool) -> None:
    """Print notes on a run: requests left out or failed, calls of a language model, measures that are missing."""
    about = f"{title(one)}: " if several else ""
    if one.row.dropped:
        output.note(f"{about}{one.row.dropped:,} requests were left out: the model has seen them")
    if one.row.failed:
        first = next(asked for asked in one.asked if asked.error)
        output.note(
            f"{about}{one.row.failed:,} requests failed and score 0; the first, {first.request_id}: {first.error}"
        )
    if one.row.timing.get("llm_calls") or one.row.timing.get("llm_failed"):
        output.note(about + _costs(one), label="language model")
    absent = [name for name in names if name not in one.row.metrics]
    if absent:
        output.note(f"{about}there is nothing here to measure {', '.join(absent)} on")


def _costs(one: Evaluation) -> str:
    """Return the calls, tokens and cost of the language model as one text."""
    timing = one.row.timing
    text = f"{timing['llm_calls']:,} calls, {timing['llm_prompt_tokens']:,} tokens read, "
    text += f"{timing['llm_completion_tokens']:,} written; {timing['rewritten']:,} requests rewritten"
    text += f"; cost {timing['llm_cost']:.4f}" if timing["llm_cost"] else ""
    return text + (f"; {timing['llm_failed']:,} calls failed: {timing['llm_problem']}" if timing["llm_failed"] else "")
