"""Quality by number of gold tools: a small file made of the scores of single requests, which need not be kept."""

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
# Number of gold tools: requests, and the means over them of recall and COMP at 5.
Groups = dict[int, tuple[int, float, float]]


def groups_by_row(folder: Path, lines: Iterable[ResultLine]) -> dict[str, Groups]:
    """For each row that it is known of: from its scores, else from the file that an earlier report left.

    Either counts only where its mean is the row's own: scores of another run, or an older one, are passed over.
    """
    filed = _read(folder / NAME)
    found = {}
    for row in (row for line in lines for row in line.rows):
        scores = scores_path(row[FILE], row)
        made = grouped(Scores(scores, read_scores(scores))) if scores.is_file() else {}
        for groups in (made, filed.get(key(row), {})):
            if _agrees(groups, row):
                found[key(row)] = groups
                break
    return found


def key(row: RowDict) -> str:
    """What a row's groups are filed under."""
    return " ".join(str(row.get(name)) for name in _KEYS)


def grouped(scores: Scores) -> Groups:
    """The requests of a run by how many tools they need."""
    recall, comp = by_gold(scores, f"recall@{K}"), by_gold(scores, f"comp@{K}")
    return {
        gold: (count, round(found, 6), round(complete, 6))
        for (gold, count, found), (_, _, complete) in zip(recall, comp, strict=True)
    }


def text(found: Mapping[str, Groups]) -> str:
    """The file, one line for each row."""
    about = "Made by toolscout results. Of each row, by number of gold tools: requests, recall@5, comp@5."
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in {"about": about, **found}.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _agrees(groups: Groups, row: RowDict) -> bool:
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
            f"{path} is damaged ({error}); remove it and run again: scores beside the rows make it anew"
        ) from None
