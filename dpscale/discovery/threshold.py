"""Threshold above which the noisy count of a value may be released, and its additive delta.

The values of an open column are not public: a value that only one unit has must not appear. With integer noise z of
variance v, the count n of a value is released as y = m n + z, and only where y >= t. Let a unit have r_1 + … + r_j <= k
rows with values of no other unit. The probability that one of them appears is
    1 - Π_j (1 - P(z >= t - m r_j)) =: δ_T,
and on the complement of this event the release has the law of a Gaussian mechanism on the values that the other units
have. Hence δ(ε) <= δ_μ(ε) + δ_T for every ε. Over columns and releases the δ_T add (docs/privacy.md).

With votes a unit of r values adds w_r = floor(W/√r) to each of them, at most k. If
all of them are values of no other unit, one appears with probability 1 - (1 - P(z >= t - m w_r))^r; if fewer are, with
less. So δ_T is the largest of these for r = 1 … k, and the squared L2 sensitivity is r w_r² <= W², whatever k is.

The tail of the discrete Gaussian is bounded by that of a continuous one,
    P(z >= x) <= Q((x - 1/2)/sqrt(v)),   x - 1/2 >= sqrt(v),
since exp(-t²/2v) is convex there, so each term is at most the integral over the unit interval around it, and
Σ_j exp(-j²/2v) >= sqrt(2πv) by Poisson summation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpscale.base.errors import JobError
from dpscale.privacy.draws import GaussianDraw, gaussian_draw

ROUNDING = 1e-9  # relative error that covers the rounding of every float here
MOST_MULTIPLIER = 1 << 28  # counts below 2^34 times it fit in 62 bits
LEAST = 1e-300  # of a bound: smaller ones would be rounded to 0
MOST_SPLIT = 2000  # rows of a unit of which all splits are compared
GRID = 1.02  # ratio of the numbers of rows between which the loss is bounded, for more rows
VOTE = 256  # steps of the vote of a unit with one value


def vote_weight(values: int) -> int:
    """Return the steps that a unit of some values adds to each of them."""
    return math.isqrt(VOTE**2 // values)


def search_draw(share: Fraction, rows_per_unit: int, what: str, squared_l2: int = 1) -> GaussianDraw:
    """Return the noise of a histogram whose measurement costs `share` of squared mu, or slightly less.

    Parameters
    ----------
    share : Fraction
    rows_per_unit : int
        Contribution bound.
    what : str
        Name of the measurement in an error.
    squared_l2 : int
        Squared change of the histogram by one row.

    Raises
    ------
    PlanError, JobError
        If the budget is too small, or so large that counts times the multiplier could exceed 64 bits.

    Guarantee
    ---------
    Protected: a noisy histogram of an attribute whose cells are not public.
    Cost: μ² of Gaussian DP of at most `share`.
    Neighbours: added or removed rows: at most rows_per_unit of one unit.
    Proof: docs/privacy.md, Cells that are not public; tests/discovery/test_threshold.py.
    """
    draw = gaussian_draw(squared_l2, share, rows_per_unit, what)
    if not draw.fits_words or draw.multiplier > MOST_MULTIPLIER:
        raise JobError("privacy", f"a budget with which {what} cannot be measured on integers of 64 bits",
                       "a budget between 1e-20 and 1e9 of squared mu", "change it, or discover.share")  # fmt: skip
    return draw


def tail_bound(distance: int, variance: int) -> float:
    """Return an upper bound of P(z >= distance) for the discrete Gaussian of a variance.

    Parameters
    ----------
    distance : int
        The bound is 1 below a standard deviation.
    variance : int

    Returns
    -------
    float

    References
    ----------
    Canonne, Kamath, Steinke (2020), The Discrete Gaussian for Differential Privacy.
    """
    if distance < 1 or (2 * distance - 1) ** 2 < 4 * variance:
        return 1.0
    bound = math.erfc(math.sqrt(Fraction((2 * distance - 1) ** 2, 8 * variance))) / 2
    return min(max(bound * (1 + ROUNDING), LEAST), 1.0)


def delta_of(threshold: int, draw: GaussianDraw, rows_per_unit: int) -> float:
    """Return the largest probability that a value of one unit alone passes a threshold.

    Parameters
    ----------
    threshold : int
        Least released value of `multiplier` · count + noise.
    draw : GaussianDraw
    rows_per_unit : int
        Contribution bound k: the rows of the unit may be split over several values in any way.
    """
    many = rows_per_unit > MOST_SPLIT
    numbers = _grid(rows_per_unit) if many else list(range(1, rows_per_unit + 1))
    passing = [tail_bound(threshold - draw.multiplier * rows, draw.variance) for rows in numbers]
    if max(passing) >= 1:
        return 1.0

    losses = -np.log1p(-np.array(passing))
    if many:  # of r rows between two numbers of the grid, the loss is at most that of the larger one
        least = np.array([1, *(one + 1 for one in numbers[:-1])])
        return min(-math.expm1(-float((losses / least).max()) * rows_per_unit) * (1 + ROUNDING), 1.0)
    return min(-math.expm1(-_largest_sum(losses)) * (1 + ROUNDING), 1.0)


def delta_of_votes(threshold: int, draw: GaussianDraw, values: int) -> float:
    """Return the largest probability that a value of one unit alone passes a threshold of votes.

    Parameters
    ----------
    threshold : int
        Least released value of `multiplier` · votes + noise.
    draw : GaussianDraw
    values : int
        Largest number of values of a unit.
    """
    numbers = _grid(values) if values > MOST_SPLIT else list(range(1, values + 1))
    least = [1, *(one + 1 for one in numbers[:-1])]  # fewest values up to each number, which have the largest weight
    passing = [tail_bound(threshold - draw.multiplier * vote_weight(one), draw.variance) for one in least]
    if max(passing) >= 1:
        return 1.0
    losses = [most * -math.log1p(-one) for most, one in zip(numbers, passing, strict=True)]
    return min(-math.expm1(-max(losses)) * (1 + ROUNDING), 1.0)


def _grid(rows: int) -> list[int]:
    """Return ascending numbers of rows up to `rows`, about in a constant ratio."""
    numbers = [1]
    while numbers[-1] < rows:
        numbers.append(min(max(numbers[-1] + 1, int(numbers[-1] * GRID)), rows))
    return numbers


def _largest_sum(losses: np.ndarray) -> float:
    """Return the largest sum of losses[r_1 - 1] + losses[r_2 - 1] + … over all splits of len(losses) rows."""
    rows = len(losses)
    best = np.zeros(rows + 1)
    for total in range(1, rows + 1):
        best[total] = (losses[:total] + best[total - 1 :: -1][:total]).max()
    return float(best[rows])


@dataclass(frozen=True)
class Threshold:
    """Threshold of the noisy counts of one column.

    Attributes
    ----------
    draw : GaussianDraw
        Noise; a count n is measured as `draw.multiplier` · n + z.
    value : int
        Least released measurement.
    delta : Fraction
        Upper bound of the probability that a value of one unit alone is released.
    steps : int
        Steps of a row, or of the vote of a unit.
    """

    draw: GaussianDraw
    value: int
    delta: Fraction
    steps: int = 1

    @property
    def records(self) -> float:
        """Threshold in records, or in votes."""
        return self.value / (self.draw.multiplier * self.steps)


def threshold_for(draw: GaussianDraw, delta: Fraction, rows_per_unit: int, votes: bool = False) -> Threshold:
    """Return the lowest threshold whose additive delta is at most `delta`.

    Parameters
    ----------
    draw : GaussianDraw
    delta : Fraction
    rows_per_unit : int
    votes : bool
        Whether units vote for their values.

    Returns
    -------
    Threshold

    Guarantee
    ---------
    Protected: the cells whose noisy count exceeds the threshold; cells without records are never shown.
    Cost: the cost of `draw`, and an additive delta of at most `delta` for cells of one unit alone.
    Neighbours: added or removed rows: at most rows_per_unit of one unit, or one vote of a unit for each value.
    Proof: docs/privacy.md, Cells that are not public; tests/discovery/test_threshold.py.
    """
    loss, steps = (delta_of_votes, VOTE) if votes else (delta_of, 1)
    most, low = float(delta), 0
    step = math.isqrt(draw.variance) + draw.multiplier * (VOTE if votes else rows_per_unit)
    while loss(low + step, draw, rows_per_unit) > most:
        low, step = low + step, 2 * step
    high = low + step

    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if loss(middle, draw, rows_per_unit) <= most else (middle, high)

    return Threshold(draw, high, Fraction(loss(high, draw, rows_per_unit)), steps)
