"""The section about the recipe of the models in the package (recipes/default_encoder)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from studies.study_rows import StudyRows
from toolscout.evaluation.report.rows import commits, group_by
from toolscout.evaluation.report.tables import table
from toolscout.evaluation.row import RowDict

NAME = "default_encoder"
_HEAD = """
## The models in the package, stage by stage

R@1 / R@5 of dev splits, by cosine, with float weights, on the GPU that trained them (`python -m
recipes.default_encoder`): the published encoder; one trained encoder of each seed; the mean of these, with scores of
the cross-encoders added for the first 20 (standardised, at a weight); encoders trained beside the cross-encoder of 6
layers; means of their weights, with a share of the published ones; the one with other languages, which ships; and small
encoders of requests, before documents of that one and before their own. *Mean* is that of R@5.
"""
_LANGUAGES = """
R@5 in other languages, over all programs of tldr, for goals of programs that no training read:

"""


def section(rows: StudyRows, _pictures: Mapping[str, str]) -> Iterator[str]:
    """A table of English sets and one of languages; nothing where there are no rows."""
    found = rows.bench(NAME)
    if not found:
        return
    yield _HEAD + "\n"
    yield _table([row for row in found if "/" in row["set"]], ("recall@1", "recall@5"))
    yield _LANGUAGES
    yield _table([row for row in found if "/" not in row["set"]], ("recall@5",))


def _table(found: Sequence[RowDict], names: Sequence[str]) -> str:
    sets = list(dict.fromkeys(str(row["set"]) for row in found))
    lines = [_cells(model, few, names) for model, few in group_by(found, lambda row: str(row["model"])).items()]
    return table(("model", *sets, "mean", "commit"), lines)


def _cells(model: str, few: Sequence[RowDict], names: Sequence[str]) -> dict[str, str]:
    return {
        "model": model,
        **{str(row["set"]): " / ".join(f"{row['values'][name]:.3f}" for name in names) for row in few},
        "mean": f"{fmean(row['values']['recall@5'] for row in few):.4f}",
        "commit": commits(few),
    }
