"""Chooses on dev the weight of the encoder's similarity beside the language model, and the bonus of new tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolscout.core.arrays import Bools, Floats
from toolscout.data import metrics

SIMILARITIES = (0.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 80.0)
BONUSES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
# How much recall of known tools a bonus for new ones may cost.
MAY_COST = 0.03
_K = 5


@dataclass(frozen=True, slots=True)
class DevTrial:
    """Scores of dev requests for every tool: `said` by the language model, cosines; and which tools are new."""

    said: Floats
    cosines: Floats
    new: Bools
    ids: Sequence[str]
    gold: Sequence[Sequence[str]]

    def measured(self, similarity: float, bonus: float) -> dict[str, float]:
        """Recall@5 of all tools and of known tools with this weight and bonus."""
        scores = self.said + similarity * self.cosines + bonus * self.new
        count = min(_K, scores.shape[1])
        top = np.argpartition(-scores, count - 1, axis=1)[:, :count]
        rankings = [[self.ids[place] for place in row] for row in top.tolist()]
        new = {self.ids[place] for place in np.flatnonzero(self.new).tolist()}
        return metrics.evaluate(rankings, self.gold, ["recall@5", "known_recall@5"], new)

    def known_alone(self, similarity: float) -> float:
        """The recall@5 of known tools if there were no new ones."""
        return self.measured(similarity, -1e6)["known_recall@5"]

    def has_new_and_known(self) -> bool:
        """Whether the dev requests need both new and known tools; only then can a bonus be chosen."""
        new = {self.ids[place] for place in np.flatnonzero(self.new).tolist()}
        needed = [tool_id in new for few in self.gold for tool_id in few]
        return any(needed) and not all(needed)


def chosen(
    trials: Sequence[DevTrial], similarity: float | None = None, bonus: float | None = None
) -> tuple[float, float]:
    """The similarity weight and new-tool bonus with the highest mean recall@5; the lowest of equals.

    One that is given stays as it is. A bonus above 0 that is chosen must leave known tools nearly the recall that they
    would have if there were no new tools.
    """
    best, found = -1.0, (similarity or 0.0, bonus or 0.0)
    mixed = [place for place, one in enumerate(trials) if one.has_new_and_known()]
    for weight in SIMILARITIES if similarity is None else (similarity,):
        alone = [trials[place].known_alone(weight) for place in mixed]
        for extra in (BONUSES if mixed else (0.0,)) if bonus is None else (bonus,):
            measured = [one.measured(weight, extra) for one in trials]
            known = [measured[place]["known_recall@5"] for place in mixed]
            recall = float(np.mean([one["recall@5"] for one in measured]))
            spared = all(k >= a - MAY_COST for k, a in zip(known, alone, strict=True))
            if recall > best and (bonus is not None or not extra or spared):
                best, found = recall, (weight, extra)
    return found
