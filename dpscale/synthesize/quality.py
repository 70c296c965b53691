"""How near rows are to the released estimates, over some sets of one, two and three attributes. Public, as both are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from dpscale.errors import PlanError

Array = NDArray[np.float64]
SETS, MOST_CELLS = 24, 1 << 16
Columns = tuple[int, ...]


def sampled(sizes: Sequence[int]) -> list[Columns]:
    """About SETS sets of each degree, evenly spaced in their order, of no more than MOST_CELLS cells."""
    found: list[Columns] = []
    for degree in (1, 2, 3):
        every = range(0, comb(len(sizes), degree), max(1, comb(len(sizes), degree) // SETS))
        sets = (unranked(number, len(sizes), degree) for number in every)
        found += [kept for kept in sets if prod(sizes[i] for i in kept) <= MOST_CELLS]
    return found


def unranked(number: int, count: int, degree: int) -> Columns:
    """The number-th set of so many of `count` columns, in the order of `itertools.combinations`."""
    kept: list[int] = []
    for column in range(count):
        if len(kept) == degree:
            break
        begun = comb(count - column - 1, degree - len(kept) - 1)  # sets that go on with this column
        if number < begun:
            kept.append(column)
        else:
            number -= begun
    return tuple(kept)


def counted(cells: NDArray[np.int32], sizes: Sequence[int], weights: Array | None = None) -> list[Array]:
    """The rows' counts (or weights) over each sampled set, (cells of the set,)."""
    counts = []
    for kept in sampled(sizes):
        at = np.zeros(len(cells), np.int64)
        for i in kept:
            at = at * sizes[i] + cells[:, i]
        counts.append(np.bincount(at, weights, minlength=prod(sizes[i] for i in kept)).astype(np.float64))
    return counts


def apart(
    counts: Sequence[Array], names: Sequence[str], sizes: Sequence[int], estimated: Callable[[Sequence[str]], Array]
) -> dict[str, float]:
    """By degree, the mean share of rows that would have to be others to meet the estimates: half the L1 distance."""
    found: dict[str, list[float]] = {"1": [], "2": [], "3": []}
    for kept, own in zip(sampled(sizes), counts, strict=True):
        try:
            wanted = np.maximum(estimated([names[i] for i in kept]).ravel(), 0)
        except PlanError:  # what was released does not tell of this set
            continue
        if wanted.sum() > 0 and own.sum() > 0:
            found[str(len(kept))].append(float(np.abs(own / own.sum() - wanted / wanted.sum()).sum() / 2))
    return {degree: float(np.mean(values)) for degree, values in found.items() if values}
