"""Writes results/README.md from the rows in results/*.jsonl. A test fails where it is stale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from toolscout.evaluation.row import read_rows
from toolscout.evaluation.run import CUTOFFS
from toolscout.evaluation.speed import target_of

RESULTS = Path(__file__).resolve().parent.parent / "results"
Row = dict[str, Any]

HEAD = """# Results

Made by `python runs/report.py` from the rows beside it; each script in `runs/` writes one set of them. A row says what
was measured, with which options, on which machine and at which commit (a plus: with changes on top of it). Scores are
percentages. R is recall, N is true NDCG (the ideal counts every gold tool), C is COMP (all gold tools among the first
k). A request that failed scores 0. Scores of single requests lie in `*.scores/` (see `toolscout/evaluation/row.py`).
"""
FIT_HEAD = """
### Does it say "nothing fits" when nothing does?

Shares of right verdicts, and the AUROC of `fit` between requests that tools serve and the others.
"""
BENCH_HEAD = """
## Cost against catalogue size

Medians of repeats; times of a request are end to end through `Scout.search(k=5)`, then in parts (`searches` is both
searches and fusion, without the encoder). Each size is measured in fresh processes. Targets are for two cores.
"""


def render(folder: Path) -> str:
    """The whole page."""
    files = {path.name: read_rows(path) for path in sorted(folder.glob("*.jsonl"))}
    bench = files.pop("bench.jsonl", [])
    rows = [row for name in files for row in files[name]]
    parts = [HEAD, *_quality(rows), *(_bench(bench, folder) if bench else [])]
    return "\n".join(parts).rstrip() + "\n"


def _newest(rows: Iterable[Row], *keys: str) -> list[Row]:
    """One row for each combination of keys: the last written."""
    return list({tuple(str(row[key]) for key in keys): row for row in rows}.values())


def _quality(rows: Sequence[Row]) -> Iterator[str]:
    rows = _newest(rows, "dataset", "split", "retriever", "variant", "seed")
    if not rows:
        yield "No rows yet.\n"
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        yield f"\n## {dataset}\n"
        chosen = [row for row in rows if row["dataset"] == dataset]
        for split in dict.fromkeys(row["split"] for row in chosen):
            yield from _split([row for row in chosen if row["split"] == split], split)
        if any("fit_auroc" in row["metrics"] for row in chosen):
            yield FIT_HEAD
            yield from _fit(chosen)


def _split(rows: Sequence[Row], split: str) -> Iterator[str]:
    measures = [f"{kind}@{k}" for kind in ("recall", "ndcg", "comp") for k in CUTOFFS]
    if any("new_recall@5" in row["metrics"] for row in rows):
        measures += ["new_recall@5", "known_recall@5"]
    short = {"recall": "R", "ndcg": "N", "comp": "C", "new_recall": "new R", "known_recall": "other R"}
    heads = [f"{short[kind]}@{k}" for kind, _, k in (name.partition("@") for name in measures)]
    yield f"\n**{split}**, {rows[0]['requests']:,} requests, digest `{rows[0]['digest'][:12]}`\n"
    yield _table(
        ["retriever", *heads, "p50 ms", "commit"],
        (
            [_label(row), *_percents(row, measures), f"{row['timing']['query_p50_ms']:.1f}", row["commit"]]
            for row in rows
        ),
    )


def _fit(rows: Sequence[Row]) -> Iterator[str]:
    names = {
        "fit_use": "tools for those that need some",
        "fit_nothing.nothing_fits": "none where nothing fits",
        "fit_nothing.no_tool": "none where none is needed",
        "fit_auroc": "AUROC",
        "fit_auroc.nothing_fits": "… nothing fits",
        "fit_auroc.no_tool": "… none needed",
    }
    yield _table(
        ["split", "retriever", *names.values()],
        ([row["split"], _label(row), *_percents(row, names)] for row in rows),
    )


def _bench(rows: Sequence[Row], folder: Path) -> Iterator[str]:
    rows = _newest(rows, "bench", "tools", "requests")
    sizes = sorted({row["tools"] for row in rows})
    yield BENCH_HEAD
    if (folder / "bench.svg").is_file():
        yield "![cost against size](bench.svg)\n"
    machine = rows[-1]["hardware"]
    yield f"{machine['machine']}, {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB.\n"
    lines: dict[tuple[str, str], dict[int, str]] = {}
    for row in rows:
        name, targets = " ".join(filter(None, [row["bench"], row["requests"]])), target_of(row)
        for key, value in row["values"].items():
            aim = targets.get(key)
            mark = "" if aim is None else f" ({aim}: {'met' if aim.met(value) else '**missed**'})"
            lines.setdefault((name, key), {})[row["tools"]] = f"{value:,.5g}{mark}"
    yield _table(
        ["measurement", "value", *(f"{size:,} tools" for size in sizes)],
        ([*names, *(values.get(size, "") for size in sizes)] for names, values in lines.items()),
    )
    for how in dict.fromkeys((row["tools"], row["how"], row["repeats"], row["commit"]) for row in rows):
        yield f"- {how[0]:,} tools: {how[1]}; {how[2]} repeats; commit {how[3]}."


def _label(row: Row) -> str:
    return row["retriever"] if row["variant"] == "default" else f"{row['retriever']} ({row['variant']})"


def _percents(row: Row, names: Iterable[str]) -> list[str]:
    found = [row["metrics"].get(name) for name in names]
    return ["" if value is None else f"{100 * value:.2f}" for value in found]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    (RESULTS / "README.md").write_text(render(RESULTS), encoding="utf-8")
