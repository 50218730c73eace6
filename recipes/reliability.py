"""Are tool need and catalogue fit probabilities? Prints how often each comes true on the bundled test requests.

    python recipes/reliability.py

Were they probabilities, the share of each row would lie within the bounds of its row.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from toolscout import Dataset, Scout
from toolscout.core.arrays import Bools, Doubles
from toolscout.data.locate import find_dataset
from toolscout.data.metrics import ece
from toolscout.search.catalogue_fit import FitOptions
from toolscout.search.tool_need import NeedOptions


def reliability(title: str, said: Doubles, truth: Bools, bounds: Sequence[float]) -> Table:
    """By what is said: how many requests it is said of, and the share of them of which it is true."""
    made = Table("said", "requests", "true", title=f"{title}: expected calibration error {ece(truth, said):.2f}")
    for low, high in itertools.pairwise(bounds):
        among = (said >= low) & ((said < high) | (high >= 1))
        made.add_row(f"{low:.2f} to {high:.2f}", f"{among.sum():,}", f"{truth[among].mean():.2f}")
    return made


def main() -> None:
    """Search the bundled test requests and print a table of either number."""
    data = Dataset.load(find_dataset("bundled"), ["test"])
    served = data.split("test").requests
    bare = data.goldless("test")
    kinds = np.array(["use"] * len(served) + [data.kind(key) for key, _ in bare])
    with tempfile.TemporaryDirectory() as folder, Scout.open(Path(folder) / "tools.db") as scout:
        scout.add(data.tools)
        answers = [scout.search(text) for _, text in [*served, *bare]]
    fit = np.array([answer.fit for answer in answers])
    need = np.array([1.0 if answer.need is None else answer.need for answer in answers])
    asks = kinds != "no_tool"
    console, at = Console(), (FitOptions().threshold, NeedOptions().threshold)
    bounds = (0.0, at[0], 0.3, 0.5, 1.0)
    console.print(reliability("A tool serves it, by catalogue fit", fit[asks], kinds[asks] == "use", bounds))
    console.print(reliability("It needs a tool, by tool need", need, asks, (0.0, at[1], 0.4, 0.6, 0.8, 1.0)))


if __name__ == "__main__":
    main()
