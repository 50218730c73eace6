"""The section about the verdict and its levels, and the table of levels in docs/verdicts.md.

The rows are made by recipes/verdict.py. python -m studies.verdict_report writes the table into the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.verdict import COLUMNS
from studies.running import RESULTS
from studies.study_rows import StudyRows, about
from toolscout.evaluation.report.rows import ResultLine
from toolscout.evaluation.report.tables import table
from toolscout.evaluation.row import read_rows
from toolscout.search.verdict import LEVELS

ROWS = RESULTS / "verdict.jsonl"
PAGE = RESULTS.parent / "docs" / "verdicts.md"
BEGIN, END = "<!-- levels: python -m studies.verdict_report -->", "<!-- end of levels -->"
_RULES = (*LEVELS, "thresholds")
_RULES_SHOWN = {"thresholds": "two thresholds"}
_PARTS = {
    "left out": (
        "Left-out sets",
        "Each set is left out once, with the sets that share its requests or tools and with talk of the same sources; "
        "the model and the thresholds of the levels are fitted to the other sets.",
    ),
    "bundled, left out": (
        "The bundled dev requests, left out",
        "With the labels that people gave them, over all bundled tools; model and thresholds are fitted to other sets.",
    ),
    "bundled": (
        "The bundled requests, dev and test",
        "With the labels that people gave them, over all bundled tools, by the model in the package.",
    ),
    "test": ("Test splits", "By the model in the package, for the sets that have a test split."),
}
_RERANKED = ", reranked"
_PARTS |= {
    part + _RERANKED: (
        f"{heading}, with the reranker",
        f"{text} The reranker in the package has scored the first ten tools.",
    )
    for part, (heading, text) in list(_PARTS.items())
}
_HEAD = """
## The verdict

`python -m recipes.verdict` fits the model and makes these rows. By weight a tool serves half of the requests; for a
quarter nothing fits, since their tools were taken out of the catalogue together with similar ones; a quarter is talk,
which needs no tool. Catalogues of 1 to 10 tools, of 20 to 200 tools, and of all tools of a set have the same weight.
*Answered*: the share of the served requests that get tools (recall). *Precision*: the share of the requests that get
tools which a tool serves. *Turned away*: the share of the other requests that get no tools; *said so*: the share that
also gets the right one of the other two verdicts. *Two thresholds* is the rule before this model: no tool is needed
where need is below 0.2, else nothing fits where fit, here of the best cosine alone, is below 0.14.
"""


def section(rows: StudyRows, _pictures: Mapping[str, str]) -> Iterator[str]:
    """Yield a table for each part, with a line for each level; nothing where there are no rows."""
    lines = rows.study("verdict")
    if not lines:
        return
    yield _HEAD
    for part, (heading, text) in _PARTS.items():
        chosen = [line for line in lines if about(line, "part") == part]
        if chosen:
            yield f"\n### {heading}\n\n{text}\n"
            yield table(["set", "split", "rows", "AUROC", "ECE", "level", *COLUMNS, "commit"], _rows(chosen))


def _rows(lines: Sequence[ResultLine]) -> Iterator[dict[str, str]]:
    for line in lines:
        found = line.newest["metrics"]
        first = {
            "set": line.newest["dataset"],
            "split": line.newest["split"],
            "rows": f"{line.newest['requests']:,}",
            "AUROC": f"{100 * found['use_auroc']:.1f}",
            "ECE": f"{100 * found['use_ece']:.1f}",
            "commit": line.commits,
        }
        if f"{LEVELS[0]}_recall" not in found:
            yield first
            continue
        for level in _RULES:
            yield (
                (first if level == _RULES[0] else {})
                | {"level": _RULES_SHOWN.get(level, level)}
                | _shares(found, level)
            )


def _shares(found: Mapping[str, float], level: str) -> dict[str, str]:
    named = {head: found.get(f"{level}_{name}") for head, name in COLUMNS.items()}
    return {head: f"{100 * value:.1f}" for head, value in named.items() if value is not None}


def levels_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of levels: means over the left-out sets, all and of each catalogue size, then bundled.

    Where there are rows with the reranker, those follow.
    """
    wanted = [
        ("left-out sets, mean", "left out", "mean", "dev"),
        ("… 1 to 10 tools", "left out", "mean, 1 to 10 tools", "dev"),
        ("… 20 to 200 tools", "left out", "mean, 20 to 200 tools", "dev"),
        ("… all tools of a set", "left out", "mean, all tools of the set", "dev"),
        ("bundled dev", "bundled", "bundled", "dev"),
        ("bundled test", "bundled", "bundled", "test"),
    ]
    if any(one["study"]["part"].endswith(_RERANKED) for one in rows):
        wanted += [(f"{name}, reranked", part + _RERANKED, *rest) for name, part, *rest in wanted]
    made = []
    for name, part, dataset, split in wanted:
        (row,) = (one for one in rows if (one["study"]["part"], one["dataset"], one["split"]) == (part, dataset, split))
        for level in _RULES:
            first = name if level == _RULES[0] else ""
            made.append({"": first, "level": _RULES_SHOWN.get(level, f"`{level}`")} | _shares(row["metrics"], level))
    return table(["", "level", *COLUMNS], made).strip()


def page_with(text: str, levels: str) -> str:
    """Return the page with this table of levels between its marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{levels}\n\n{END}{rest.partition(END)[2]}"


def main(page: Path = PAGE) -> None:
    """Write the table into the page."""
    page.write_text(page_with(page.read_text(encoding="utf-8"), levels_table(read_rows(ROWS))), encoding="utf-8")


if __name__ == "__main__":
    main()
