"""The compiled loops over many sets of three: what their pairs expect of them, and fitting them to what is inside.

Sets lie one after another in flat arrays, set t from `starts[t]` to `starts[t + 1]`; `threes[t]`: its attributes by
number, rising. 1-ways lie so as well, attribute i from `at[i]` on; known pairs in `cells`, that of i < j from
place[i, j] on, where that is not -1. Everything is over groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpscale.privacy.sampling_loops import compiled
from dpscale.reconstruction.fitting_loops import fit_triple

PLACES = "float64[::1], int64[::1], int64[:, ::1], int64[::1], int64[:, ::1], float64[::1]"


@compiled(f"void(float64[::1], float64, {PLACES})")
def multiply(tables: Any, total: float, ones: Any, at: Any, threes: Any, starts: Any, place: Any, cells: Any) -> None:
    """The tables of independent attributes."""
    for t in range(len(threes)):
        i, j, k, cell = threes[t, 0], threes[t, 1], threes[t, 2], starts[t]
        for a in range(at[i], at[i + 1]):
            for b in range(at[j], at[j + 1]):
                both = ones[a] * (ones[b] / total)
                for c in range(at[k], at[k + 1]):
                    tables[cell] = both * (ones[c] / total)
                    cell += 1


@compiled(f"void(float64[::1], boolean, int64, float64, {PLACES})")
def fit_all(
    tables: Any, singly: bool, rounds: int, tolerance: float, ones: Any, at: Any, threes: Any, starts: Any, place: Any,
    cells: Any,
) -> None:  # fmt: skip
    """Proportional fitting in place to the known pairs; and, if `singly`, to the 1-ways before them."""
    told, order, nothing = np.full(3, singly), np.empty(3, np.int64), np.empty((0, 0))
    for t in range(len(threes)):
        i, j, k = threes[t, 0], threes[t, 1], threes[t, 2]
        p, q, r = at[i + 1] - at[i], at[j + 1] - at[j], at[k + 1] - at[k]
        front, sides, back, count = nothing, nothing, nothing, 0
        if place[i, j] >= 0:
            front, order[count], count = cells[place[i, j] : place[i, j] + p * q].reshape(p, q), 0, count + 1
        if place[i, k] >= 0:
            sides, order[count], count = cells[place[i, k] : place[i, k] + p * r].reshape(p, r), 1, count + 1
        if place[j, k] >= 0:
            back, order[count], count = cells[place[j, k] : place[j, k] + q * r].reshape(q, r), 2, count + 1
        margins = count + (3 if singly else 0)  # one alone is met at once
        fit_triple(tables[starts[t] : starts[t + 1]].reshape(p, q, r), told, ones[at[i] : at[i + 1]],
                   ones[at[j] : at[j + 1]], ones[at[k] : at[k + 1]], order[:count], front, sides, back,
                   rounds if margins > 1 else min(rounds, margins), tolerance)  # fmt: skip
