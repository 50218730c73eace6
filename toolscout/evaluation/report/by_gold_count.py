"""Quality by number of gold tools, saved in a small file: a report needs no scores of single requests then."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from toolscout.errors import BadDataset
from toolscout.evaluation.report.rows import FILE, ResultLine
from toolscout.evaluation.row import RowDict, read_scores, scores_path
from toolscout.evaluation.scores import Scores, by_gold

NAME = "by_gold.json"
K = 5
_KEYS = ("dataset", "digest", "split", "retriever", "variant", "seed")
# By number of gold tools: the number of requests, and the means over them of recall@5 and COMP@5.
Groups = dict[int, tuple[int, float, float]]


def groups_by_row(folder: Path, lines: Iterable[ResultLine]) -> dict[str, Groups]:
    """Return the groups of each row by its key: from the row's scores, else from the file of an earlier report.

    Groups whose mean is not the row's belong to another run and are ignored. Raises BadDataset for a damaged file.
    """
    saved = _read(folder / NAME)
    found = {}
    for row in (row for line in lines for row in line.rows):
        scores = scores_path(row[FILE], row)
        current = group_scores(Scores(scores, read_scores(scores))) if scores.is_file() else {}
        for groups in (current, saved.get(row_key(row), {})):
            if _matches(groups, row):
                found[row_key(row)] = groups
                break
    return found


def row_key(row: RowDict) -> str:
    """Return the key of a row's groups in the file."""
    return " ".join(str(row.get(name)) for name in _KEYS)


def group_scores(scores: Scores) -> Groups:
    """Group the requests of a run by their number of gold tools."""
    recall, comp = by_gold(scores, f"recall@{K}"), by_gold(scores, f"comp@{K}")
    return {
        gold: (count, round(found, 6), round(complete, 6))
        for (gold, count, found), (_, _, complete) in zip(recall, comp, strict=True)
    }


def to_json(found: Mapping[str, Groups]) -> str:
    """Return the content of the file, with one line for each row."""
    about = "Made by toolscout results. Of each row, by number of gold tools: requests, recall@5, comp@5."
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in {"about": about, **found}.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _matches(groups: Groups, row: RowDict) -> bool:
    """Return whether the mean recall over the groups is that of the row."""
    requests = sum(count for count, _, _ in groups.values())
    recall = sum(count * recall for count, recall, _ in groups.values()) / max(requests, 1)
    return bool(requests) and abs(recall - row["metrics"].get(f"recall@{K}", -1)) < 2e-6


def _read(path: Path) -> dict[str, Groups]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: {int(gold): (int(n), float(recall), float(comp)) for gold, (n, recall, comp) in groups.items()}
            for name, groups in found.items()
            if isinstance(groups, dict)
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise BadDataset(
            f"{path} is damaged ({error}); remove it and run again: it is made of the scores beside the rows"
        ) from None
