"""What similarity counts for atomic ids is what finds most on dev; a bonus for new tools has to spare known ones."""

from __future__ import annotations

import numpy as np

from toolscout.retrievers.generative.dev_weights import MAY_COST, DevTrial, chosen

KNOWN, NEW = 3, 6
IDS = [f"known{n}" for n in range(KNOWN)] + [f"new{n}" for n in range(NEW)]


def trial(crowded: int) -> DevTrial:
    """Twenty requests, half of them for new tools. The model likes known tools; for some, new ones are more alike."""
    said = np.tile(np.array([1.0] * KNOWN + [0.0] * NEW, np.float32), (20, 1))
    said[:crowded] *= 0.1
    cosines, gold = np.zeros((20, len(IDS)), np.float32), []
    for row in range(10):
        place = row % KNOWN
        gold.append((IDS[place],))
        cosines[row, place] = 0.5
        cosines[row, KNOWN:] = 0.9 if row < crowded else 0.1
    for row in range(10, 20):
        place = KNOWN + row % NEW
        gold.append((IDS[place],))
        cosines[row, place] = 0.9
    return DevTrial(said, cosines, np.array([False] * KNOWN + [True] * NEW), IDS, gold)


def test_similarity_may_cost_known_tools_what_new_ones_gain() -> None:
    made = trial(crowded=2)
    similarity, bonus = chosen([made])
    found, without = made.measured(similarity, bonus), made.measured(0.0, 0.0)
    assert similarity > 0
    assert found["recall@5"] > without["recall@5"] + 0.1
    assert found["known_recall@5"] < made.known_alone(similarity) - MAY_COST  # as without a bonus it may


def test_a_bonus_spares_known_tools() -> None:
    similarity, bonus = chosen([trial(crowded=0)])
    made = trial(crowded=0)
    assert made.measured(similarity, bonus)["known_recall@5"] >= made.known_alone(similarity) - MAY_COST
    assert made.measured(similarity, 8.0)["known_recall@5"] < made.known_alone(similarity) - MAY_COST
