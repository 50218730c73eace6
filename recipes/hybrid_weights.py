"""Learns what words and vectors count in the default hybrid, and prints it: python recipes/hybrid_weights.py

First the unit of a bm25 score beside a cosine (`_UNITS`): on each set alone, on all but one, and on all together, where
each set counts about the same. Then the weights of relative scores, which other parts are fused by
(`_DEFAULT_WEIGHTS`). The sets are dev splits; the default model was trained on UltraTool's train split, so words look
worse there than over tools of your own. Needs $TOOLSCOUT_DATA, and a quarter of an hour: ToolBench has 46,587 tools.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence

from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.retrievers.base import Pairs
from toolscout.retrievers.hybrid.fusion import DevRequest, best_weights, rank_dev
from toolscout.retrievers.hybrid.retriever import Hybrid, HybridOptions
from toolscout.retrievers.provenance import TrainingSet

SETS = ("bundled", "toollens", "toolbench-g3", "simpletoolquestions", "ultratool", "toolbench")
RELATIVE_SETS = ("toollens", "simpletoolquestions", "toolbench-g3", "bundled")
SPLIT, REQUESTS = "dev", 480
# Units of bm25 and of dense that make their scores alike in size; what is learned is how they should differ.
UNITS = (100.0, 1.0)


def dev_set(name: str) -> TrainingSet:
    """About REQUESTS dev requests of a set, or all where there are fewer."""
    whole = Dataset.load(find_dataset(name), [SPLIT])
    few = dict(list(whole.qrels[SPLIT].items())[:: max(1, len(whole.qrels[SPLIT]) // REQUESTS)])
    return TrainingSet(Dataset(name, whole.tools, whole.requests, {SPLIT: few}), SPLIT, SPLIT)


def ranked(hybrid: Hybrid, name: str, units: Sequence[float] = ()) -> list[DevRequest]:
    """The dev requests of a set, ranked by words and by vectors."""
    one = dev_set(name)
    known = frozenset(tool.digest() for tool in one.dataset.tools)

    def rank(requests: Sequence[str]) -> list[list[Pairs]]:
        return [[one.pairs for one in rankings] for rankings in hybrid.rankings(requests)]

    return rank_dev(hybrid.parts, rank, [one], known, hybrid.options.depth, None, units)


def evened(sets: Sequence[list[DevRequest]]) -> list[DevRequest]:
    """The requests of all sets, those of small ones several times, so that each counts about the same."""
    return [request for requests in sets for request in requests * max(1, round(REQUESTS / len(requests)))]


def choices() -> Iterator[tuple[str, ...]]:
    """Each set alone, all but one, and all."""
    yield from ((name,) for name in SETS)
    yield from (tuple(name for name in SETS if name != left_out) for left_out in SETS)
    yield SETS


def main() -> None:
    """Learn the unit of bm25, then the weights of relative scores."""
    hybrid = Hybrid(HybridOptions(weights=(1.0, 1.0)))
    in_units = {name: ranked(hybrid, name, UNITS) for name in SETS}
    for names in choices():
        found = best_weights(evened([in_units[name] for name in names]), 2)
        words, vectors = found.weights.weights
        unit = UNITS[0] * vectors / words if words else math.inf
        sys.stdout.write(f"{'+'.join(names)}: a bm25 score of {unit:.0f} is worth a cosine of 1, dev {found.dev}\n")
    relative = {name: ranked(hybrid, name) for name in RELATIVE_SETS}
    for names in [*((name,) for name in RELATIVE_SETS), RELATIVE_SETS]:
        found = best_weights([request for name in names for request in relative[name]], 2)
        sys.stdout.write(f"{'+'.join(names)}: weights of relative scores {found.weights.weights}, dev {found.dev}\n")


if __name__ == "__main__":
    main()
