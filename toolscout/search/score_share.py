"""Scores as people read them: shares of the best one, since a score itself compares within one answer alone."""

from __future__ import annotations

from collections.abc import Sequence

from toolscout.core.answer import ExactName, Hit
from toolscout.index.exact_names import EXACT_BONUS

EXPLANATION = "of best: a tool's score as a share of the best score; named: the request names the tool"


def is_named(hit: Hit) -> bool:
    """Whether the request names the tool, which puts it before all others whatever its score."""
    return any(isinstance(reason, ExactName) for reason in hit.reasons)


def score_shares(hits: Sequence[Hit]) -> list[float | None]:
    """Each tool's score as a share of the best one, from 0 to 1; all None where no score is above 0.

    What a named tool gets for being named is left out: beside it every other share would be 0.
    """
    scores = [hit.score - EXACT_BONUS if is_named(hit) and hit.score >= EXACT_BONUS else hit.score for hit in hits]
    best = max(scores, default=0.0)
    return [max(0.0, score / best) if best > 0 else None for score in scores]


def share_texts(hits: Sequence[Hit]) -> list[str]:
    """What stands beside each tool: "named", a share such as "87 %", or nothing where there is none."""
    return [
        "named" if is_named(hit) else "" if share is None else f"{share:.0%}".replace("%", " %")
        for hit, share in zip(hits, score_shares(hits), strict=True)
    ]
