"""Distance of rows from the released estimates over some sets of one to three attributes; public, as both are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats

SETS, MOST_CELLS = 24, 1 << 16
BEYOND, SLACK = 1.5, 0.01  # factor of the distance of independent draws; share of all rows
Columns = tuple[int, ...]


def sample_sets(sizes: Sequence[int]) -> list[Columns]:
    """Return about SETS sets of each degree, evenly spaced in their order, of at most MOST_CELLS cells."""
    found: list[Columns] = []
    for degree in (1, 2, 3):
        every = range(0, comb(len(sizes), degree), max(1, comb(len(sizes), degree) // SETS))
        sets = (combination_at(number, len(sizes), degree) for number in every)
        found += [subset for subset in sets if prod(sizes[i] for i in subset) <= MOST_CELLS]
    return found


def combination_at(number: int, count: int, degree: int) -> Columns:
    """Return the number-th combination of `degree` of `count` columns, in the order of `itertools.combinations`."""
    subset: list[int] = []
    for column in range(count):
        if len(subset) == degree:
            break
        count_with = comb(count - column - 1, degree - len(subset) - 1)  # sets that contain this column
        if number < count_with:
            subset.append(column)
        else:
            number -= count_with

    return tuple(subset)


def count_sampled_sets(cells: NDArray[np.int32], sizes: Sequence[int], weights: Floats | None = None) -> list[Floats]:
    """Return the rows' counts or weights over each sampled set, shape (cells of the set,)."""
    counts, columns = [], np.ascontiguousarray(cells.T)
    for subset in sample_sets(sizes):
        at = np.zeros(len(cells), np.int64)
        for i in subset:
            at = at * sizes[i] + columns[i]
        counts.append(np.bincount(at, weights, minlength=prod(sizes[i] for i in subset)).astype(np.float64))
    return counts


def expected_distance(shares: Floats, count: int) -> float:
    """Return the mean of half the L1 distance between `count` independent draws and their shares.

    E|C − np| is √(2np(1 − p)/π) for large np, by the normal distribution, and 2np(1 − p)ⁿ for np below 1; the smaller
    of both is an upper bound.
    """
    large = np.sqrt(2 * shares * (1 - shares) / (np.pi * count))
    small = 2 * shares * (1 - shares) ** count
    return float(np.where(shares * count < 1, np.minimum(large, small), large).sum() / 2)


def distance_warning(
    counts: Sequence[Floats], names: Sequence[str], sizes: Sequence[int], estimated: Callable[[Sequence[str]], Floats],
    rows: int,
) -> str:  # fmt: skip
    """Return a warning if rows are farther from the estimates than BEYOND times independent draws + SLACK."""
    if not rows:
        return ""

    distances = distances_by_degree(counts, names, sizes, estimated)
    chance = expected_distances(names, sizes, estimated, rows)
    for degree in distances:
        bound = BEYOND * chance[degree] + SLACK
        if distances[degree] > bound:
            return (
                f"the distance of rows from the estimates over {degree} attributes (half the L1 distance) is "
                f"{distances[degree]:.3f}, more than {bound:.3f}, {BEYOND:g} times that of independent draws plus "
                f"{SLACK:g}: do not use the rows if this matters; answers are not affected"
            )

    return ""


def expected_distances(
    names: Sequence[str], sizes: Sequence[int], estimated: Callable[[Sequence[str]], Floats], rows: int
) -> dict[str, float]:
    """Return the mean distance of `rows` independent draws from the estimates, by degree."""
    found: dict[str, list[float]] = {"1": [], "2": [], "3": []}
    for subset in sample_sets(sizes):
        try:
            target = np.maximum(estimated([names[i] for i in subset]).ravel(), 0)
        except PlanError:
            continue
        if target.sum() > 0:
            found[str(len(subset))].append(expected_distance(target / target.sum(), rows))
    return {degree: float(np.mean(values)) for degree, values in found.items() if values}


def distances_by_degree(
    counts: Sequence[Floats], names: Sequence[str], sizes: Sequence[int], estimated: Callable[[Sequence[str]], Floats]
) -> dict[str, float]:
    """Return the mean share of rows that would have to change to match the estimates, by degree (L1/2)."""
    found: dict[str, list[float]] = {"1": [], "2": [], "3": []}
    for subset, own in zip(sample_sets(sizes), counts, strict=True):
        try:
            target = np.maximum(estimated([names[i] for i in subset]).ravel(), 0)
        except PlanError:  # the release does not determine this set
            continue
        if target.sum() > 0 and own.sum() > 0:
            found[str(len(subset))].append(float(np.abs(own / own.sum() - target / target.sum()).sum() / 2))
    return {degree: float(np.mean(values)) for degree, values in found.items() if values}
