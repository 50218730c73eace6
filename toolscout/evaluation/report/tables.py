"""Markdown tables of results: quality by dataset and split, verdicts, and cost by catalogue size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from toolscout.core.tool import clean_text
from toolscout.evaluation.bench.speed import target_of
from toolscout.evaluation.leakage import base
from toolscout.evaluation.report.rows import ResultLine, by_dataset, percent
from toolscout.evaluation.row import RowDict
from toolscout.papers import published_numbers

_MEASURES = {
    **{f"R@{k}": f"recall@{k}" for k in (1, 3, 5)},
    **{f"N@{k}": f"ndcg@{k}" for k in (1, 3, 5)},
    **{f"C@{k}": f"comp@{k}" for k in (3, 5)},
    "new R@5": "new_recall@5",
    "known R@5": "known_recall@5",
    "exact set": "exact_set",
    "set R": "set_recall",
    "set P": "set_precision",
}
_COLUMNS = ("retriever", *_MEASURES, "returned", "R@5, 95 %", "p50 ms", "fit time", "params", "commit", "paper")
_FIT = {
    "right@5": "right@5",
    "… for tools": "right_use@5",
    "… others": "right_abstain",
    "tools for those that need some": "fit_use",
    "none where nothing fits": "fit_nothing.nothing_fits",
    "… and said so": "verdict.nothing_fits",
    "none where none is needed": "fit_nothing.no_tool",
    "… said so": "verdict.no_tool",
    "AUROC": "fit_auroc",
    "… nothing fits": "fit_auroc.nothing_fits",
    "… none needed": "fit_auroc.no_tool",
    **{name: f"fit_{name.lower()}" for name in ("F1", "Brier", "ECE")},
    **{f"need {name}": f"need_{name.lower()}" for name in ("AUROC", "F1", "accuracy", "Brier", "ECE")},
}
# The measurements of `toolscout bench`; other rows come from load tests and studies.
BENCHES = ("query", "lookup", "caller", "index", "open", "memory", "recall", "cold", "change")
_SETS_HEAD = """
Where a method can say how many tools a request needs (`k="auto"`): *exact set* is the share of requests for which it
returned the gold tools and no other, *set R* and *set P* are recall and precision of what it returned, and *returned*
is how many tools that were, on average.
"""
_FIT_HEAD = """
### Does it say "nothing fits" when nothing does?

Shares of right verdicts, and how well `fit` (and `need`, where it is forecast) tells requests that tools serve from the
others. Of Brier and ECE, less is better. right@5 is the share of all requests answered right: with tools, all gold ones
among the first five, or with none where none was due. A split with a plus has prompts mixed in that need no tool.
"""
_BENCH_HEAD = """
## Cost against catalogue size

Medians of repeats; times of a request are end to end through `Scout.search(k=5)`, then in parts (`searches` is both
searches and fusion, without the encoder). Each size is measured in fresh processes. Targets are for two cores.
"""


def table(columns: Sequence[str], lines: Iterable[Mapping[str, str]]) -> str:
    """Return a table without empty columns. The first column is aligned left, as text; the others right."""
    filled = list(lines)
    heads = [name for name in columns if any(line.get(name) for line in filled)]
    rows = [heads, ["---"] + ["---:"] * (len(heads) - 1)]
    rows += [[line.get(name, "").replace("|", "\\|") for name in heads] for line in filled]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def verdict(aim: object, met: bool) -> str:
    """Return the text after a number that has a target: the target, and whether it was met."""
    return f" ({aim}: {'met' if met else '**missed**'})"


def quality(lines: Sequence[ResultLine]) -> Iterator[str]:
    """Yield a section for each dataset with a table for each split, and the numbers that papers published."""
    machines = list(dict.fromkeys(machine(row) for line in lines for row in line.rows))
    if any(line.values("exact_set") for line in lines):
        yield _SETS_HEAD
    for dataset, splits in by_dataset(lines).items():
        yield f"\n## {dataset}\n"
        theirs = published_numbers.load().get(dataset)
        for (_, split, digest), chosen in splits.items():
            if split != base(split):
                continue  # rankings are those of the split without the added prompts
            requests = max(row["requests"] for line in chosen for row in line.rows)
            comparable = theirs is not None and (theirs.split, theirs.requests) == (split, requests)
            beside = theirs if comparable and not chosen[0].among else None
            among = f" among {clean_text(chosen[0].among)}" if chosen[0].among else ""
            yield f"\n**{split}**, {requests:,} requests{among}, digest `{digest[:12]}`\n"
            yield table(_COLUMNS, [_cells(line, machines) for line in chosen] + (beside.cells() if beside else []))
            if beside:
                yield beside.notes()
        own = [line for chosen in splits.values() for line in chosen]
        whole = [line for line in own if not line.among]
        if theirs and not theirs.split:
            yield f"\n### {theirs.heading}\n"
            yield table(
                ["retriever", *theirs.columns, "commit", "paper"], [*published_numbers.by_part(whole), *theirs.cells()]
            )
            yield theirs.notes()
        yield from _fit([line for line in own if line.values("fit_auroc") or line.values("need_auroc")])
    if lines:
        yield "\nTimes were measured on:\n"
        yield "\n".join(f"- {name} {_mark(machines, name)}".rstrip() for name in machines) + "\n"


def machine(row: RowDict) -> str:
    """Return the hardware of a row in words."""
    about: Mapping[str, Any] = row.get("hardware") or {}
    cores, memory = about.get("cores"), about.get("memory_gb")
    parts = [about.get("machine"), about.get("cpu"), cores and f"{cores} cores", memory and f"{memory} GB"]
    return ", ".join(str(part) for part in parts if part) or "not said"


def _cells(line: ResultLine, machines: Sequence[str]) -> dict[str, str]:
    cells = {head: percent(line.values(name)) for head, name in _MEASURES.items()}
    if (returned := line.mean("returned")) is not None:
        cells["returned"] = f"{returned:.2f}"
    if (p50 := line.mean("query_p50_ms", "timing")) is not None:
        cells["p50 ms"] = f"{p50:.1f} {_mark(machines, machine(line.newest))}".rstrip()
    if (fit_s := line.mean("fit_s", "timing")) is not None:
        cells["fit time"] = f"{fit_s:,.0f} s {line.newest['timing'].get('fit_device') or ''}".rstrip()
    if params := line.newest.get("params"):
        cells["params"] = f"{params / 1e6:.1f} M"
    return cells | {"retriever": line.label, "R@5, 95 %": line.interval_text("recall@5"), "commit": line.commits}


def _mark(machines: Sequence[str], name: str) -> str:
    """Return the mark of a machine, such as "[2]"; "" where there is only one."""
    return f"[{machines.index(name) + 1}]" if len(machines) > 1 else ""


def _fit(lines: Sequence[ResultLine]) -> Iterator[str]:
    if lines:
        yield _FIT_HEAD
        yield table(
            ["split", "retriever", *_FIT],
            (
                {"split": line.split[1], "retriever": line.label}
                | {head: percent(line.values(name)) for head, name in _FIT.items()}
                for line in lines
            ),
        )


def bench(rows: Sequence[RowDict], picture: str) -> Iterator[str]:
    """Yield the section of `bench` rows: a line for each value, a column for each size and encoder, and the plot."""
    yield _BENCH_HEAD
    if picture:
        yield picture
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        name, targets = " ".join(filter(None, [row["bench"], row["requests"]])), target_of(row)
        for key, value in row["values"].items():
            aim = targets.get(key)
            mark = "" if aim is None else verdict(aim, aim.met(value))
            line = lines.setdefault((name, key), {"measurement": name, "value": key})
            line[_column(row)] = f"{value:,.5g}{mark}"
    columns = dict.fromkeys(_column(row) for row in sorted(rows, key=lambda row: row["tools"]))
    yield table(["measurement", "value", *columns], lines.values())
    about = ((_column(row), row.get("how"), row["bench"], row["repeats"], row["commit"], machine(row)) for row in rows)
    runs: dict[tuple[Any, ...], list[str]] = {}
    for column, how, name, *run in about:
        names = runs.setdefault((column, how, *run), [])
        names += [name] if name not in names else []
    for (column, how, repeats, commit, hardware), names in runs.items():
        yield f"- {column} ({', '.join(names)}): {how}; {repeats} repeats; commit {commit}; {hardware}."


def _column(row: RowDict) -> str:
    return ", ".join(filter(None, [f"{row['tools']:,} tools", row.get("encoder"), row.get("store")]))
