"""Finds, reads and compares the scores of single requests, which are written beside the rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolscout.core.arrays import Doubles
from toolscout.data import metrics
from toolscout.errors import BadDataset, BadRequest
from toolscout.evaluation import row as rows
from toolscout.evaluation import significance
from toolscout.evaluation.measures import (
    RIGHT,
    RIGHT_AT,
    SETS,
    VERDICTS,
    check_names,
    needs_new_tools,
    right_score,
    scores,
    set_score,
    verdict_score,
)
from toolscout.evaluation.request_result import DEPTH, new_tool_placeholders, scoring_ranking, scoring_set

ScoreLine = Mapping[str, Any]
_HOW = "write scores with: toolscout evaluate DATA --json OUT.jsonl"
_CHECKED = "recall@5"
_LISTED = 12


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Selects rows of a file by their fields; None matches any value."""

    dataset: str | None = None
    split: str | None = None
    retriever: str | None = None
    variant: str | None = None

    def meets(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row matches."""
        return all(wanted is None or row.get(key) == wanted for key, wanted in asdict(self).items())


@dataclass(frozen=True, slots=True)
class Scores:
    """The score lines of one run, one for each request; `row` is its row, None where the scores were read alone."""

    path: Path
    lines: Sequence[ScoreLine]
    row: Mapping[str, Any] | None = None

    @property
    def label(self) -> str:
        """Return dataset, split and retriever of the run, or the name of the file."""
        return _label(self.row) if self.row else self.path.name.removesuffix(".jsonl.gz")

    @property
    def scenes(self) -> list[str]:
        """Return the scene of each request."""
        return [line["scene"] for line in self.lines]

    def values(self, names: Sequence[str]) -> Doubles:
        """Return a row for each request and a column for each measure; NaN where a measure leaves a request out.

        Raises BadRequest for a measure that these scores cannot give.
        """
        self._check(names)
        of_answers = (*VERDICTS, *RIGHT, *SETS)
        columns = [self._answer_values(name) if name in of_answers else self._ranking_values(name) for name in names]
        return np.array(columns).T.reshape(len(self.lines), len(names))

    def _answer_values(self, name: str) -> list[float]:
        if name in VERDICTS:
            return [verdict_score(name, line["kind"], line.get("verdict")) for line in self.lines]
        if name in SETS:
            return [set_score(name, *scoring_set(line)) if line["gold"] else math.nan for line in self.lines]
        return [right_score(name, line["kind"], line.get("verdict"), _complete(line)) for line in self.lines]

    def _ranking_values(self, name: str) -> list[float]:
        answerable = [line for line in self.lines if line["gold"]]
        rankings, golds = zip(*map(scoring_ranking, answerable), strict=True) if answerable else ((), ())
        found = iter(scores(rankings, golds, [name], new_tool_placeholders(answerable))[name])
        return [next(found) if line["gold"] else math.nan for line in self.lines]

    def _check(self, names: Sequence[str]) -> None:
        depth = min(line.get("depth", DEPTH) for line in self.lines)
        for name in names:
            if name in (*VERDICTS, *RIGHT):
                continue
            if name in SETS:
                if any("returned" not in line for line in self.lines if line["gold"]):
                    raise BadRequest(f"{self.path} has no sets of tools, so no {name}: the model cannot say how many")
                continue
            if not check_names([name]):
                raise BadRequest(f"{name} is no mean over requests, so single requests have no value of it")
            k = metrics.measure(name).k
            if k is not None and k > depth:
                raise BadRequest(f"{self.path} ranks {depth} tools; for {name} evaluate again with --measure {name}")
            if needs_new_tools(name) and new_tool_placeholders([line for line in self.lines if line["gold"]]) is None:
                raise BadRequest(f"{self.path} does not tell new tools from others, so it has no {name}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The paired test of two runs on one measure."""

    measure: str
    result: significance.PairedResult


def find(selector: str, narrow: RowFilter | None = None) -> Scores:
    """Return the scores that `selector` names: a file of OUT.scores/, or OUT.jsonl with a row chosen by `narrow` or #.

    `OUT.jsonl#3` is its third row, `OUT.jsonl#bm25` that of a retriever, `OUT.jsonl#hybrid.fusion-rrf` of its variant.
    Raises BadDataset where files are missing or the scores are not the row's, BadRequest unless it names one row.
    """
    if Path(selector).is_file() and selector.endswith(".gz"):
        return Scores(Path(selector), rows.read_scores(Path(selector)))
    name, _, chosen = (selector, "", "") if Path(selector).is_file() else selector.partition("#")
    path = Path(name)
    if not path.is_file():
        raise BadDataset(f"there is no file {name}; {_HOW}, and name OUT.jsonl or a file of OUT.scores/")
    row = _select_row(path, chosen, narrow or RowFilter())
    scores_file = rows.scores_path(path, row)
    if not scores_file.is_file():
        raise BadDataset(f"the scores of {_label(row)} are not at {scores_file}; {_HOW}")
    found = Scores(scores_file, rows.read_scores(scores_file), row)
    _refuse_stale(found)
    return found


def compare(a: Scores, b: Scores, names: Sequence[str], common: bool = False) -> list[Comparison]:
    """Return the paired test of B minus A on each measure; `common` compares on the requests that both runs have.

    Raises BadDataset where the runs do not have the same requests, BadRequest for a measure that cannot be compared.
    """
    a, b = _align(a, b, common)
    if any(map(needs_new_tools, names)):
        differ = sum(one.get("new") != other.get("new") for one, other in zip(a.lines, b.lines, strict=True))
        if differ:
            raise BadRequest(f"{a.label} and {b.label} have different new tools in {differ:,} requests: not comparable")
    tested = significance.paired_test(a.values(names), b.values(names), a.scenes)
    empty = [name for name, result in zip(names, tested, strict=True) if result is None]
    if empty:
        raise BadRequest(f"no request counts for {', '.join(empty)} in these scores; leave that measure out")
    return [Comparison(name, result) for name, result in zip(names, tested, strict=True) if result is not None]


def worst(scores: Scores, name: str, count: int) -> list[tuple[ScoreLine, float]]:
    """Return the `count` requests with the lowest scores, and these; ties: failed first, then most gold missed."""
    values = scores.values([name])[:, 0]
    judged = [(line, float(value)) for line, value in zip(scores.lines, values, strict=True) if not math.isnan(value)]

    def order(pair: tuple[ScoreLine, float]) -> tuple[float, bool, int, str]:
        line, value = pair
        return value, line["ranks"] is not None, len(line["ranks"] or ()) - line["gold"], line["id"]

    return sorted(judged, key=order)[:count]


def by_gold(scores: Scores, name: str) -> list[tuple[int, int, float]]:
    """Return (number of gold tools, number of requests with so many, their mean score), in increasing order."""
    values = scores.values([name])[:, 0]
    groups: dict[int, list[float]] = {}
    for line, value in zip(scores.lines, values, strict=True):
        if not math.isnan(value):
            groups.setdefault(line["gold"], []).append(float(value))
    return [(gold, len(found), math.fsum(found) / len(found)) for gold, found in sorted(groups.items())]


def _select_row(path: Path, chosen: str, narrow: RowFilter) -> Mapping[str, Any]:
    """Return the selected row; of repeated measurements the newest, as only its scores are kept."""
    known = list(enumerate(rows.read_rows(path), 1))
    if any(key not in row for _, row in known for key in ("dataset", "split", "retriever", "variant")):
        raise BadDataset(f"{path} is no file of rows that toolscout evaluate wrote; {_HOW}")
    if not known:
        raise BadDataset(f"{path} has no rows; {_HOW}")
    if chosen.lstrip("-").isdigit() and not 1 <= int(chosen) <= len(known):
        raise BadRequest(f"{path} has rows 1 to {len(known)}, got #{chosen}")
    found = [(number, row) for number, row in known if narrow.meets(row) and chosen in ("", *_names(number, row))]
    newest = {tuple(row[key] for key in ("dataset", "split", "retriever", "variant")): (n, row) for n, row in found}
    if len(newest) == 1:
        return next(iter(newest.values()))[1]
    listed = list(newest.values()) if newest else known
    shown = "; ".join(f"#{number} {_label(row)}" for number, row in listed[:_LISTED])
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    what = f"{len(newest)} rows of {path} are meant" if newest else f"no row of {path} is meant"
    raise BadRequest(
        f"{what}; name one with {path.name}#NUMBER, or with --dataset, --split, --retriever: {shown}{more}"
    )


def _names(number: int, row: Mapping[str, Any]) -> Iterable[str]:
    return str(number), row["retriever"], f"{row['retriever']}.{row['variant']}"


def _label(row: Mapping[str, Any]) -> str:
    variant = "" if row["variant"] == "default" else f".{row['variant']}"
    return f"{row['dataset']} {row['split']} {row['retriever']}{variant}"


def _complete(line: ScoreLine) -> bool:
    """Return whether all gold tools of a request are among the first RIGHT_AT."""
    found = sum(int(rank) <= RIGHT_AT for rank in line["ranks"] or ())
    return 0 < found == int(line["gold"])


def _refuse_stale(scores: Scores) -> None:
    """Raise BadDataset where the scores on disk are not those of the row: only the newest row's are kept."""
    score = ((scores.row or {}).get("metrics") or {}).get(_CHECKED)
    found = float(np.nanmean(scores.values([_CHECKED])))
    if isinstance(score, int | float) and abs(score - found) > 1e-5:
        raise BadDataset(
            f"the scores in {scores.path} are not those of the row ({_CHECKED} {found:.4f}, the row says {score:.4f}): "
            "a later run has replaced them; evaluate again"
        )


def _align(a: Scores, b: Scores, common: bool) -> tuple[Scores, Scores]:
    """Return both runs with the same requests in the same order."""
    lines_a, lines_b = ({line["id"]: line for line in one.lines} for one in (a, b))
    only_a, only_b = len(lines_a.keys() - lines_b.keys()), len(lines_b.keys() - lines_a.keys())
    shared = [request_id for request_id in lines_a if request_id in lines_b]
    if not shared or ((only_a or only_b) and not common):
        remedy = "; or compare those that both have with --common" if shared else ""
        raise BadDataset(
            f"the two runs asked different requests: {only_a:,} only in {a.label}, {only_b:,} only in {b.label}, "
            f"{len(shared):,} in both; evaluate both on the same split{remedy}"
        )
    digests = [(one.row or {}).get("digest") for one in (a, b)]
    if all(digests) and digests[0] != digests[1]:
        raise BadDataset(f"{a.label} and {b.label} were measured on other tools, requests or gold; evaluate both again")
    other = sum(any(lines_a[i][key] != lines_b[i][key] for key in ("kind", "gold", "scene")) for i in shared)
    if other:
        raise BadDataset(
            f"{other:,} requests have another kind, scene or number of gold tools in {a.label} than in {b.label}; "
            "evaluate both on the same dataset"
        )
    chosen = [[lines[i] for i in shared] for lines in (lines_a, lines_b)]
    return Scores(a.path, chosen[0], a.row), Scores(b.path, chosen[1], b.row)
