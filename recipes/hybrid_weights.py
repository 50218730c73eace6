"""Learns what words and vectors count in the default hybrid, and prints it: python recipes/hybrid_weights.py

On the dev splits that the default model's recipe was chosen on; each dataset counts the same. Needs $TOOLSCOUT_DATA.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.retrievers.base import Pairs
from toolscout.retrievers.hybrid.fusion import learn_weights
from toolscout.retrievers.hybrid.retriever import Hybrid, HybridOptions
from toolscout.retrievers.provenance import TrainingSet

SETS = ("toollens:dev", "simpletoolquestions:dev", "toolbench-g3:dev", "bundled:dev")
REQUESTS = 480


def main() -> None:
    """Learn the weights on each set alone, then on all together."""
    hybrid = Hybrid(HybridOptions(weights=(1.0, 1.0)))

    def ranked(requests: Sequence[str]) -> list[list[Pairs]]:
        return [[one.pairs for one in rankings] for rankings in hybrid.rankings(requests)]

    data = []
    for text in SETS:
        name, split = text.split(":")
        whole = Dataset.load(find_dataset(name), [split])
        few = dict(list(whole.qrels[split].items())[:: max(1, len(whole.qrels[split]) // REQUESTS)])
        data.append(TrainingSet(Dataset(name, whole.tools, whole.requests, {split: few}), split, split))
    known = frozenset(tool.digest() for one in data for tool in one.dataset.tools)
    for chosen in [*([one] for one in data), data]:
        found = learn_weights(hybrid.parts, ranked, chosen, known, hybrid.options.depth, None)
        names = "+".join(one.dataset.name for one in chosen)
        sys.stdout.write(f"{names}: weights {found.weights.weights}, dev {found.dev}\n")


if __name__ == "__main__":
    main()
