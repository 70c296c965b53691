"""Distance of rows from the released estimates over some sets of one to three attributes; public, as both are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.base.errors import PlanError

SETS, MOST_CELLS = 24, 1 << 16
BEYOND, SLACK = 1.5, 0.01  # of the distance of independent draws; of all rows
Columns = tuple[int, ...]


def sampled(sizes: Sequence[int]) -> list[Columns]:
    """Return about SETS sets of each degree, evenly spaced in their order, of at most MOST_CELLS cells."""
    found: list[Columns] = []
    for degree in (1, 2, 3):
        every = range(0, comb(len(sizes), degree), max(1, comb(len(sizes), degree) // SETS))
        sets = (unranked(number, len(sizes), degree) for number in every)
        found += [kept for kept in sets if prod(sizes[i] for i in kept) <= MOST_CELLS]
    return found


def unranked(number: int, count: int, degree: int) -> Columns:
    """Return the number-th combination of `degree` of `count` columns, in the order of `itertools.combinations`."""
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


def counted(cells: NDArray[np.int32], sizes: Sequence[int], weights: Floats | None = None) -> list[Floats]:
    """Return the rows' counts or weights over each sampled set, shape (cells of the set,)."""
    counts = []
    for kept in sampled(sizes):
        at = np.zeros(len(cells), np.int64)
        for i in kept:
            at = at * sizes[i] + cells[:, i]
        counts.append(np.bincount(at, weights, minlength=prod(sizes[i] for i in kept)).astype(np.float64))
    return counts


def expected_by_chance(shares: Floats, count: int) -> float:
    """Return the mean of half the L1 distance between `count` independent draws and their shares.

    E|C − np| is √(2np(1 − p)/π) for large np, by the normal distribution, and 2np(1 − p)ⁿ for np below 1; the smaller
    of both is an upper bound.
    """
    large = np.sqrt(2 * shares * (1 - shares) / (np.pi * count))
    small = 2 * shares * (1 - shares) ** count
    return float(np.where(shares * count < 1, np.minimum(large, small), large).sum() / 2)


def too_far(
    counts: Sequence[Floats], names: Sequence[str], sizes: Sequence[int], estimated: Callable[[Sequence[str]], Floats],
    rows: int,
) -> str:  # fmt: skip
    """Return a warning if rows are farther from the estimates than BEYOND times independent draws + SLACK."""
    distances = apart(counts, names, sizes, estimated)
    chance = apart_by_chance(names, sizes, estimated, rows)
    for degree in distances:
        bound = BEYOND * chance[degree] + SLACK
        if distances[degree] > bound:
            return (f"rows are {distances[degree]:.3f} from their own estimates over {degree} attributes (half the L1 "
                    f"distance), more than {bound:.3f}, {BEYOND:g} times independent draws and {SLACK:g}: do not use "
                    "them where this matters; answers are not affected")  # fmt: skip
    return ""


def apart_by_chance(
    names: Sequence[str], sizes: Sequence[int], estimated: Callable[[Sequence[str]], Floats], rows: int
) -> dict[str, float]:
    """Return the mean distance of `rows` independent draws from the estimates, by degree."""
    found: dict[str, list[float]] = {"1": [], "2": [], "3": []}
    for kept in sampled(sizes):
        try:
            wanted = np.maximum(estimated([names[i] for i in kept]).ravel(), 0)
        except PlanError:
            continue
        if wanted.sum() > 0:
            found[str(len(kept))].append(expected_by_chance(wanted / wanted.sum(), rows))
    return {degree: float(np.mean(values)) for degree, values in found.items() if values}


def apart(
    counts: Sequence[Floats], names: Sequence[str], sizes: Sequence[int], estimated: Callable[[Sequence[str]], Floats]
) -> dict[str, float]:
    """Return the mean share of rows that would have to change to match the estimates, by degree (L1/2)."""
    found: dict[str, list[float]] = {"1": [], "2": [], "3": []}
    for kept, own in zip(sampled(sizes), counts, strict=True):
        try:
            wanted = np.maximum(estimated([names[i] for i in kept]).ravel(), 0)
        except PlanError:  # what was released does not tell of this set
            continue
        if wanted.sum() > 0 and own.sum() > 0:
            found[str(len(kept))].append(float(np.abs(own / own.sum() - wanted / wanted.sum()).sum() / 2))
    return {degree: float(np.mean(values)) for degree, values in found.items() if values}
