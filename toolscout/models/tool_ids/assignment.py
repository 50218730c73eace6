"""Assigns rows to columns by their costs: one row per column, or a limited number of rows per column. numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Ints

Costs = NDArray[np.floating[Any]]


def linear_assignment(costs: Costs) -> Ints:
    """Solve the linear assignment problem: a different column for each row, with the least total cost.

    Takes `costs` [rows, columns] with no more rows than columns; gives back the column of each row. Uses shortest
    augmenting paths (Jonker and Volgenant): each row is added in turn, and earlier rows move where that is cheaper.
    """
    rows, columns = costs.shape
    row_dual = np.zeros(rows)
    column_dual = np.zeros(columns)
    row_of = np.full(columns, -1, dtype=np.int64)  # the row assigned to each column, -1 for none
    for new in range(rows):
        reduced = costs[new] - column_dual
        best = int(reduced.argmin())
        if row_of[best] < 0:
            row_dual[new], row_of[best] = reduced[best], new
            continue
        _augment(costs, row_dual, column_dual, row_of, new)
    column_of = np.empty(rows, dtype=np.int64)
    assigned = np.flatnonzero(row_of >= 0)
    column_of[row_of[assigned]] = assigned
    return column_of


def _augment(costs: Costs, row_dual: Costs, column_dual: Costs, row_of: Ints, new: int) -> None:
    """Assign the row `new` along the shortest augmenting path; changes `row_of` and both duals in place."""
    columns = costs.shape[1]
    distance = np.full(columns, np.inf)
    previous = np.full(columns, -1, dtype=np.int64)
    done = np.zeros(columns, dtype=bool)
    row, shortest, column = new, 0.0, -1
    passed = []
    while True:
        through_row = shortest + costs[row] - row_dual[row] - column_dual
        better = ~done & (through_row < distance)
        distance[better] = through_row[better]
        previous[better] = column
        column = int(np.where(done, np.inf, distance).argmin())
        shortest = float(distance[column])
        done[column] = True
        if row_of[column] < 0:
            break
        row = int(row_of[column])
        passed.append(column)
    row_dual[new] += shortest
    row_dual[row_of[passed]] += shortest - distance[passed]
    column_dual[passed] -= shortest - distance[passed]
    while previous[column] >= 0:
        row_of[column] = row_of[previous[column]]
        column = int(previous[column])
    row_of[column] = new


def stable_matching(costs: Costs, room: Ints) -> Ints:
    """The column of each row, where column j takes at most room[j] rows; the room must suffice for all rows.

    Deferred acceptance (Gale and Shapley): every row proposes to its cheapest column; a column with too many proposals
    accepts the cheapest, and the refused rows propose to their next column. The result is a stable matching, which
    need not have the least total cost.
    """
    column_of: Ints = costs.argmin(axis=1)
    open_costs = costs.copy()  # inf where a column refused a row
    rows = np.arange(len(costs))
    while True:
        order = np.lexsort((costs[rows, column_of], column_of))
        proposed = column_of[order]
        position = rows - np.searchsorted(proposed, proposed)  # among the proposals to the same column
        refused = order[position >= room[proposed]]
        if not len(refused):
            return column_of
        open_costs[refused, column_of[refused]] = np.inf
        column_of[refused] = open_costs[refused].argmin(axis=1)
