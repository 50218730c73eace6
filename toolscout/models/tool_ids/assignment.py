"""Who gets which place: as near as possible, and never more than there is room for. numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Ints

Costs = NDArray[np.floating[Any]]


def one_each(costs: Costs) -> Ints:
    """The column of each row, all different, such that the costs together are least; at most as many rows as columns.

    Shortest augmenting paths: rows come one after another, and those before them move aside where that is cheaper.
    """
    rows, columns = costs.shape
    own = np.zeros(rows)
    price = np.zeros(columns)
    holder = np.full(columns, -1, dtype=np.int64)
    for new in range(rows):
        reduced = costs[new] - price
        best = int(reduced.argmin())
        if holder[best] < 0:  # its favourite is free
            own[new], holder[best] = reduced[best], new
            continue
        _augment(costs, own, price, holder, new)
    found = np.empty(rows, dtype=np.int64)
    held = np.flatnonzero(holder >= 0)
    found[holder[held]] = held
    return found


def _augment(costs: Costs, own: Costs, price: Costs, holder: Ints, new: int) -> None:
    """Find the cheapest chain of moves that frees a column for the new row, and make them; prices follow."""
    columns = costs.shape[1]
    reach = np.full(columns, np.inf)
    before = np.full(columns, -1, dtype=np.int64)
    done = np.zeros(columns, dtype=bool)
    row, far, column = new, 0.0, -1
    passed = []
    while True:
        through = far + costs[row] - own[row] - price
        better = ~done & (through < reach)
        reach[better] = through[better]
        before[better] = column
        column = int(np.where(done, np.inf, reach).argmin())
        far = float(reach[column])
        done[column] = True
        if holder[column] < 0:
            break
        row = int(holder[column])
        passed.append(column)
    own[new] += far
    own[holder[passed]] += far - reach[passed]
    price[passed] -= far - reach[passed]
    while before[column] >= 0:
        holder[column] = holder[before[column]]
        column = int(before[column])
    holder[column] = new


def with_room(costs: Costs, room: Ints) -> Ints:
    """The column of each row where `room` says how many rows a column takes; there must be room for all.

    Every row asks for its cheapest column; one that is asked by too many keeps the cheapest of them, and the others
    ask for their next. What comes out is stable: no row and column would both rather have each other.
    """
    wanted: Ints = costs.argmin(axis=1)
    left = costs.copy()
    every = np.arange(len(costs))
    while True:
        order = np.lexsort((costs[every, wanted], wanted))
        asked = wanted[order]
        place = every - np.searchsorted(asked, asked)  # among the rows that ask for the same column
        refused = order[place >= room[asked]]
        if not len(refused):
            return wanted
        left[refused, wanted[refused]] = np.inf
        wanted[refused] = left[refused].argmin(axis=1)
