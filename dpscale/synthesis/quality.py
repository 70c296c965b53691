"""Self-check of rows: their counts against the released estimates, set by set. It is public, as both are.

The distance of a set is half the L1 distance between the shares of rows and of the estimates in its cells. Where the
noise is known, the *residual* of a set, the part of its table that no smaller set has, is compared in standard errors
as well. Let D be the difference between the residuals of the estimates and of n rows scaled to N records, s² the
variance of the noise summed over the cells, and r² = N²/n · Π (1 − 1/size) that of sampling n rows. If the rows are a
sample of the measured table, ΣD² / (s² + r²) has the mean 1 or less and about the distribution of χ²_ν / ν, where ν
matches the variance (Satterthwaite):

    (s² + r²)² / ν = s⁴/ν_s + 2 s² r²/ν_s + N⁴/n² Σ p²

with ν_s the degrees of freedom of the noise and p the shares of the cells. The residuals of different sets are
measured independently, so a warning at the level CHANCE over all sets together is one at CHANCE / sets for each.

Rows fail if the difference is significant and the distance above a limit: BEYOND times that of independent draws, and a
slack. Models estimate sets of three and more attributes separately, and these estimates may contradict each other by a
few per cent, so the slack of sets without a known noise is larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, stats
from dpscale.synthesis.set_layout import SetLayout

# compared sets, divided equally among degrees; requested sets whose subsets are compared; cells of a set, and of all
# sets
MOST_COMPARED, MOST_REQUESTED, MOST_CELLS, MOST_TOGETHER = 1 << 10, 1 << 14, 1 << 16, 1 << 22
BEYOND, SLACK, WIDE_SLACK = 1.5, 0.01, 0.05  # factor of the distance of independent draws; shares of all rows
CHANCE = 0.01  # level of the test of all sets together
Columns = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ResidualNoise:
    """Estimate of a residual.

    Attributes
    ----------
    difference : callable
        Maps a table of counts to the difference between its residual and the estimate, both arrays of the set's shape.
    variance : float
        Variance of the noise, summed over the cells.
    freedom : float
        Degrees of freedom of the noise.
    """

    difference: Callable[[Floats], Floats]
    variance: float
    freedom: float


@dataclass(frozen=True)
class SetComparison:
    """Comparison of rows with the released estimates over a set.

    Attributes
    ----------
    names : tuple of str
    distance : float
        Half the L1 distance between shares of rows and of released estimates.
    limit : float
        Distance above which rows are not a sample of the estimates.
    departure : float
        Distance that is compared with the limit: from the released estimates, or from the model where these are noisy.
    standard_errors : float or None
        Root mean square of the difference of the residuals, in standard errors; None where the noise is not known.
    probability : float or None
        Probability of such a difference by noise and sampling alone.
    """

    names: tuple[str, ...]
    distance: float
    limit: float
    departure: float
    standard_errors: float | None = None
    probability: float | None = None

    def fails(self, sets: int) -> bool:
        """Return whether the rows fail the joint test over so many sets."""
        significant = self.probability is None or self.probability < CHANCE / sets
        return significant and self.departure > self.limit


def compared_sets(requested: Iterable[Columns], sizes: Sequence[int], further: Iterable[Columns] = ()) -> SetLayout:
    """Return the sets on which rows are compared: all subsets of the requested ones, smallest first.

    Of too many sets of a degree those are returned that are evenly spaced in their order, and all of `further`. Sets of
    more than MOST_CELLS cells are left out.

    Parameters
    ----------
    requested : iterable of tuple of int
        Sets of the workload, columns ascending.
    sizes : sequence of int
        Number of cells of each column.
    further : iterable of tuple of int
        Laws that rows have as targets.
    """
    reduced = evenly_spaced(sorted({columns for columns in requested if columns}, key=_order), MOST_REQUESTED)
    further = sorted(set(further), key=_order)
    largest = max((len(columns) for columns in [*reduced, *further]), default=0)
    chosen: set[Columns] = set()
    for degree in range(1, largest + 1):
        subsets = {inside for columns in reduced for inside in combinations(columns, degree)}
        small = sorted(columns for columns in subsets if _cells(columns, sizes) <= MOST_CELLS)
        chosen.update(evenly_spaced(small, MOST_COMPARED // largest))
        chosen.update(columns for columns in further if len(columns) == degree)

    ordered, cells, selected = sorted(chosen, key=_order), 0, list[Columns]()
    for columns in ordered:
        cells += _cells(columns, sizes)
        if cells <= MOST_TOGETHER:
            selected.append(columns)
    return SetLayout(np.array(sizes, np.int64), tuple(selected))


def _order(columns: Columns) -> tuple[int, Columns]:
    return len(columns), columns


def _cells(columns: Columns, sizes: Sequence[int]) -> int:
    return math.prod(sizes[i] for i in columns)


def evenly_spaced(sets: Sequence[Columns], most: int) -> list[Columns]:
    """Return at most `most` sets, evenly spaced in their order."""
    if len(sets) <= most:
        return list(sets)
    return [sets[number * len(sets) // most] for number in range(most)]


def expected_distance(shares: Floats, count: int) -> float:
    """Return the mean of half the L1 distance between `count` independent draws and their shares.

    E|C − np| is √(2np(1 − p)/π) for large np, by the normal distribution, and 2np(1 − p)ⁿ for np below 1; the smaller
    of both is an upper bound.
    """
    large = np.sqrt(2 * shares * (1 - shares) / (np.pi * count))
    small = 2 * shares * (1 - shares) ** count
    return float(np.where(shares * count < 1, np.minimum(large, small), large).sum() / 2)


def compare(
    layout: SetLayout,
    names: Sequence[str],
    counts: Floats,
    rows: int,
    released: Callable[[Sequence[str]], Floats],
    model: Callable[[Sequence[str]], Floats] | None = None,
    noise: Callable[[Sequence[str]], ResidualNoise | None] = lambda names: None,
) -> list[SetComparison]:
    """Return the comparison of rows with the estimates of every set that the release determines.

    `departure` is the distance from the model's table, from which the limit is derived; `distance` that from the
    released one. Sets with a known noise have the test of their residual in addition.

    Parameters
    ----------
    layout : SetLayout
        Compared sets.
    names : sequence of str
        Attribute of each column.
    counts : ndarray
        Counts or weights of the rows in all cells, flat.
    rows : int
        Number of rows that were counted.
    released : callable
        Released estimate of a set; raises PlanError if the release does not determine it.
    model : callable, optional
        Estimate from which rows are drawn. Default: the released one.
    noise : callable
        Estimated residual of a set with its noise; None where it is not known.
    """
    comparisons = []
    for number, columns in enumerate(layout.sets):
        of_rows, subset = layout.of(counts, number), tuple(names[i] for i in columns)
        try:
            target = np.asarray(released(subset))
        except PlanError:
            continue
        total, shares = float(target.sum()), _shares(target)
        # no shares exist
        if total <= 0 or of_rows.sum() <= 0:
            continue

        distance = _half_distance(of_rows, shares)
        known = noise(subset)
        # a model may estimate a set otherwise than the release; noise is known for released tables only
        reference = shares if known is not None or model is None else _shares(np.asarray(model(subset)))
        departure = distance if reference is shares else _half_distance(of_rows, reference)
        slack = SLACK if known is not None or len(subset) < 3 else WIDE_SLACK
        limit = BEYOND * expected_distance(reference, rows) + slack
        comparison = SetComparison(
            names=subset, distance=distance, limit=limit, departure=departure, standard_errors=None, probability=None
        )
        if known is not None:
            test = _residual_test(known, of_rows * (total / of_rows.sum()), shares, total, rows)
            comparison = SetComparison(subset, distance, limit, departure, *test)
        comparisons.append(comparison)

    return comparisons


def _shares(table: Floats) -> Floats:
    positive = np.maximum(table, 0)
    return np.asarray(positive / max(float(positive.sum()), 1e-300))


def _half_distance(counts: Floats, shares: Floats) -> float:
    return float(np.abs(counts / counts.sum() - shares).sum() / 2)


def _residual_test(
    known: ResidualNoise, scaled: Floats, shares: Floats, total: float, rows: int
) -> tuple[float, float]:
    """Return the difference of the residuals in standard errors, and its probability by noise and sampling alone.

    `sampling_variance` is r² of the module, `spread` the sum of its three terms, (s² + r²)²/ν, so `freedom` is ν.
    """
    sampled = total**2 / rows
    sampling_variance = sampled * math.prod(1 - 1 / size for size in scaled.shape)
    expected = known.variance + sampling_variance
    by_noise = (known.variance**2 + 2 * known.variance * sampling_variance) / known.freedom
    spread = by_noise + sampled**2 * float((shares**2).sum())
    ratio, freedom = float((known.difference(scaled) ** 2).sum()) / expected, expected**2 / spread

    return math.sqrt(ratio), float(stats.chi2.sf(ratio * freedom, freedom))


def mean_distances(comparisons: Sequence[SetComparison]) -> dict[str, float]:
    """Return the mean distance by number of attributes."""
    by_degree = dict[int, list[float]]()
    for comparison in comparisons:
        by_degree.setdefault(len(comparison.names), []).append(comparison.distance)
    return {str(degree): float(np.mean(by_degree[degree])) for degree in sorted(by_degree)}


def worst_set(comparisons: Sequence[SetComparison]) -> SetComparison | None:
    """Return the set that fails by most, or that is nearest to failing: in standard errors where they are known."""

    def order(comparison: SetComparison) -> tuple[bool, bool, float]:
        """Return a key that is largest for the worst set."""
        fails, is_known = comparison.fails(len(comparisons)), comparison.standard_errors is not None
        departure, limit = comparison.departure, comparison.limit
        # without standard errors: the excess over the limit, or the share of it that is reached
        return fails, is_known, comparison.standard_errors or (departure - limit if fails else departure / limit)

    return max(comparisons, key=order, default=None)


def rows_warning(comparisons: Sequence[SetComparison]) -> str:
    """Return a warning that names the worst set if the rows fail the joint test; "" if they do not."""
    worst = worst_set(comparisons)
    if worst is None or not worst.fails(len(comparisons)):
        return ""

    errors = "" if worst.standard_errors is None else f" and {worst.standard_errors:.3g} standard errors"
    return (
        f"rows differ from the released estimates over {', '.join(worst.names)}: half the L1 distance is "
        f"{worst.departure:.3f}{errors}, with a limit of {worst.limit:.3f} from the sampling error of rows: "
        "do not use the rows where this matters; answers are not affected"
    )
