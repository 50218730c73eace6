"""Chooses on dev what the encoder's similarity counts beside the language model, and what new tools get besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolscout.core.arrays import Bools, Floats
from toolscout.data import metrics

SIMILARITIES = (0.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 80.0)
BONUSES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
# The recall of known tools that a bonus for new ones may cost.
MAY_COST = 0.03
_K = 5


@dataclass(frozen=True, slots=True)
class DevTrial:
    """What each dev request makes of each tool: what the model says, the cosine; and which tools are new."""

    said: Floats
    cosines: Floats
    new: Bools
    ids: Sequence[str]
    gold: Sequence[Sequence[str]]

    def measured(self, similarity: float, bonus: float) -> dict[str, float]:
        """Recall of all, and of known tools, with these."""
        scores = self.said + similarity * self.cosines + bonus * self.new
        count = min(_K, scores.shape[1])
        top = np.argpartition(-scores, count - 1, axis=1)[:, :count]
        rankings = [[self.ids[place] for place in row] for row in top.tolist()]
        new = {self.ids[place] for place in np.flatnonzero(self.new).tolist()}
        return metrics.evaluate(rankings, self.gold, ["recall@5", "known_recall@5"], new)

    def known_alone(self, similarity: float) -> float:
        """The recall of known tools if there were no new ones."""
        return self.measured(similarity, -1e6)["known_recall@5"]

    def weighs(self) -> bool:
        """Whether dev needs both new and known tools: without both there is nothing to weigh."""
        new = {self.ids[place] for place in np.flatnonzero(self.new).tolist()}
        needed = [tool_id in new for few in self.gold for tool_id in few]
        return any(needed) and not all(needed)


def chosen(trials: Sequence[DevTrial]) -> tuple[float, float]:
    """The similarity and bonus that find most, among bonuses that leave known tools what they have without new ones.

    The least of equals. Without a bonus nothing is asked of known tools: that new ones come near is no fault.
    """
    best, found = -1.0, (0.0, 0.0)
    weighing = [place for place, one in enumerate(trials) if one.weighs()]
    for similarity in SIMILARITIES:
        alone = [trials[place].known_alone(similarity) for place in weighing]
        for bonus in BONUSES if weighing else (0.0,):
            measured = [one.measured(similarity, bonus) for one in trials]
            kept = [measured[place]["known_recall@5"] for place in weighing]
            recall = float(np.mean([one["recall@5"] for one in measured]))
            if recall > best and (not bonus or all(k >= a - MAY_COST for k, a in zip(kept, alone, strict=True))):
                best, found = recall, (similarity, bonus)
    return found
