"""Time plan: integer weights with which the records of earlier periods enter the measurements of a period.

Period t of a growing table measures  y_t = K Σ_{s ≤ t} R[t, s] x_s + z_t, where x_s are the counts of the records of
period s, K is the strategy of the plan of one table and R is a lower-triangular integer matrix. An answer over periods
is w·x with one weight for each period. It is estimated from the values that exist by

    w·x ≈ c·y,  Rᵀ c = w,

so c_s = 0 for every s after the last period of w: later values do not change an estimate. Its variance is |c|² times
that of one measurement. The estimates of all attribute sets use the same c.

A row belongs to one period s and changes every y_t with t ≥ s. Its cost is that of one measurement times the squared
norm of column s, (RᵀR)[s, s]. A unit with at most m rows in each of at most k periods changes Σ_s R[t, s] K x_s by a
combination of vectors K u_s with |K u_s| ≤ m |K|, so its cost is at most

    m² max_{|S| ≤ k} Σ_{s, s' in S} |(RᵀR)[s, s']|.

The absolute values are necessary: rows of a unit in different cells may have negative inner products. The maximum is
computed over all sets if they are few, and otherwise bounded by the k largest of the row bounds
|X[s, s]| + (sum of the k − 1 largest |X[s, s']|). All of this is exact integer arithmetic. With Laplace noise the cost
is m times the k largest of the column sums Σ_t |R[t, s]|.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.errors import JobError
from dpscale.base.numerics import Floats, Integers, linalg
from dpscale.privacy.accounting import LAPLACE, Cost
from dpscale.storage.files import read_text, write_whole

PERIOD, CUMULATIVE, WINDOW = "period", "cumulative", "window"
ANSWERS = (PERIOD, CUMULATIVE, WINDOW)
MOST_SETS = 200_000  # sets of periods over which the largest cost is computed exactly
FILE = "time.json"


@dataclass(frozen=True)
class PeriodContext:
    """What the plan of a period of a growing table depends on.

    Attributes
    ----------
    weight : int
        Weight of the records of the first period in its measurements.
    periods : int
        Number of periods for whose cumulative answers the structure is chosen.
    noise : float
        Standard error of these answers, in units of that of one period's values.
    structure : decision, optional
        Measurements that follow from the values of the first period.
    amount : float, optional
        Budget of a combination of values, if it differs from that of the plan.
    """

    weight: int = 1
    periods: int = 1
    noise: float = 1.0
    structure: Any = None
    amount: float | None = None


@dataclass(frozen=True)
class TimePlan:
    """Weights of earlier periods in the measurements of each period.

    Attributes
    ----------
    rows : tuple of tuple of int
        Row t has the weights of the periods 0 … t.
    answers : tuple of str
        Kinds of answers that were optimised: "period", "cumulative", "window".
    window : int
        Number of periods of a window; 0 without windows.
    periods_per_unit : int
        Largest number of periods in which a privacy unit has rows.
    noise : str
    bound : float
        Lower bound of the mean variance over all strategies of the same cost, in units of one release of one period; 0
        if none is known.
    """

    rows: tuple[tuple[int, ...], ...]
    answers: tuple[str, ...]
    window: int
    periods_per_unit: int
    noise: str
    bound: float

    @property
    def horizon(self) -> int:
        """Number of periods."""
        return len(self.rows)

    @cached_property
    def matrix(self) -> Integers:
        """R, shape (horizon, horizon)."""
        matrix = np.zeros((self.horizon, self.horizon), np.int64)
        for number, row in enumerate(self.rows):
            matrix[number, : len(row)] = row
        return matrix

    @cached_property
    def factor(self) -> int:
        """Cost of all periods to one unit with one row in each of its periods, in units of one measurement's cost.

        The cost is a squared mu for Gaussian noise and an epsilon for Laplace noise.
        """
        if self.noise == LAPLACE:
            return largest_column_sums(self.matrix, self.periods_per_unit)
        return largest_cost(self.matrix, self.periods_per_unit)

    def total(self, cost: Cost) -> Cost:
        """Return the cost of all periods if one measurement of K x costs `cost`.

        Parameters
        ----------
        cost : Cost
            Cost to one unit with all its rows of one period, at weight 1.

        Returns
        -------
        Cost

        Guarantee
        ---------
        Protected: all values of all periods of the horizon.
        Cost: `cost` times `factor`, the largest cost of the rows of R in the periods in which one unit can have rows.
        Neighbours: all rows of one unit, in at most `periods_per_unit` periods.
        Proof: docs/privacy.md, Growing tables; tests/periods/test_sensitivity.py.
        """
        if self.noise == LAPLACE:
            return cost.scaled(self.factor)
        return Cost(gaussian=cost.gaussian * self.factor)

    def amount(self, whole: float) -> float:
        """Return the budget of one measurement, rounded down, so that all periods cost at most `whole`.

        Division of floats may round up, so the amount decreases until its exact product with the factor is at most
        `whole`.
        """
        amount = float(Fraction(whole) / self.factor)
        while Fraction(amount) * self.factor > Fraction(whole):
            amount = math.nextafter(amount, 0.0)
        return amount

    def weights(self, kind: str, period: int) -> Floats:
        """Return w, the weight of each of the periods 0 … `period` in an answer, shape (period + 1,)."""
        weights = np.zeros(period + 1)
        first = {PERIOD: period, CUMULATIVE: 0, WINDOW: max(period + 1 - self.window, 0)}[kind]
        weights[first:] = 1.0
        return weights

    def coefficients(self, kind: str, period: int) -> Floats:
        """Return c, the coefficient of the values of each of the periods 0 … `period`, shape (period + 1,)."""
        known = self.matrix[: period + 1, : period + 1].astype(np.float64)
        return np.asarray(linalg.solve_triangular(known.T, self.weights(kind, period), lower=False))

    def variance(self, kind: str, period: int) -> float:
        """Return the variance of an answer in units of one release of one table that has the whole budget."""
        squares = float(np.sum(self.coefficients(kind, period) ** 2))
        return squares * (float(self.factor) ** 2 if self.noise == LAPLACE else float(self.factor))

    def shared_noise(self, kind: str, periods: Sequence[int]) -> Floats:
        """Return the covariances of answers of one kind at some periods, in units of the variance of one value.

        An answer w·x is c·y with Rᵀc = w (`coefficients`), and the values have independent noise, so covariances are
        c·c'.
        """
        coefficients = np.zeros((len(periods), self.horizon))
        for row, period in zip(coefficients, periods, strict=True):
            row[: period + 1] = self.coefficients(kind, period)
        return np.asarray(coefficients @ coefficients.T)

    def mean_variance(self, kind: str | None = None) -> float:
        """Return the mean of `variance` over the horizon, of one kind or of all kinds in `answers`."""
        kinds = self.answers if kind is None else (kind,)
        periods = range(self.horizon)
        return float(np.mean([self.variance(kind, period) for kind in kinds for period in periods]))

    def context(self, amount: float | None = None, structure: Any = None) -> PeriodContext:
        """Return the context of the plan of a period.

        Its structure is chosen for answers in the middle of the horizon.

        The middle period represents the horizon; its answer has the noise |c| in units of one value's.
        """
        middle = (self.horizon - 1) // 2
        kind = CUMULATIVE if CUMULATIVE in self.answers else self.answers[0]
        noise = float(np.sum(self.coefficients(kind, middle) ** 2)) ** 0.5
        return PeriodContext(
            weight=self.rows[0][0],
            periods=int(self.weights(kind, middle).sum()),
            noise=noise,
            structure=structure,
            amount=amount,
        )

    @property
    def gap(self) -> float:
        """Mean variance over its lower bound − 1; inf if no bound is known."""
        return self.mean_variance() / self.bound - 1 if self.bound > 0 else math.inf

    def write(self, folder: Path) -> None:
        """Write the plan to a folder."""
        write_whole(folder / FILE, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, folder: Path) -> TimePlan:
        """Read the plan in a folder. Raises JobError if it is damaged."""
        try:
            return cls.parse(json.loads(read_text(folder / FILE)))
        except (OSError, ValueError, KeyError, TypeError):
            raise JobError("run directory", f"{FILE} in {folder} is damaged", "the file as the run wrote it",
                           "restore it, or start a new run") from None  # fmt: skip

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> TimePlan:
        """Return the plan with the content of its file. Raises ValueError for rows that are no valid strategy."""
        rows = tuple(tuple(map(int, row)) for row in content["rows"])
        if any(len(row) != number + 1 or row[-1] <= 0 for number, row in enumerate(rows)) or not rows:
            raise ValueError("rows")
        if int(content["periods_per_unit"]) < 1 or not set(content["answers"]) <= set(ANSWERS):
            raise ValueError("answers")
        return cls(rows, tuple(content["answers"]), int(content["window"]), int(content["periods_per_unit"]),
                   str(content["noise"]), float(content["bound"]))  # fmt: skip


def largest_cost(matrix: Integers, periods: int) -> int:
    """Return an upper bound of max_{|S| ≤ k} Σ_{s, s' in S} |(RᵀR)[s, s']|, exact if there are few sets.

    Parameters
    ----------
    matrix : ndarray of int, shape (rows, periods)
        R.
    periods : int
        k.
    """
    exact = matrix.astype(object)
    gram = np.abs(exact.T @ exact)  # |RᵀR|, entry by entry
    number = len(gram)
    periods = min(periods, number)
    if periods == number:
        return int(gram.sum())

    # at most the k largest row sums, of each row the diagonal entry and the k − 1 largest others
    others = gram.copy()
    np.fill_diagonal(others, 0)
    rows = [gram[s, s] + sum(sorted(others[s], reverse=True)[: periods - 1]) for s in range(number)]
    bound = sum(sorted(rows, reverse=True)[:periods])
    if periods == 1 or math.comb(number, periods) > MOST_SETS:  # of one period the bound is exact
        return int(bound)
    sets = map(list, combinations(range(number), periods))
    return int(max(gram[np.ix_(chosen, chosen)].sum() for chosen in sets))


def largest_column_sums(matrix: Integers, periods: int) -> int:
    """Return the sum of the k largest Σ_t |R[t, s]|, the cost of k periods with Laplace noise."""
    sums = sorted((int(total) for total in np.abs(matrix.astype(object)).sum(axis=0)), reverse=True)
    return sum(sums[:periods])
