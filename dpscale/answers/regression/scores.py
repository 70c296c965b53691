"""Scores of regressions whose moments have noise, and confidence sets by inversion of tests.

The score s(β) = G(β) m is linear in the moments m, so its noise variance V(β) = G(β) Σ G(β)ᵀ is exact at every β. At
the coefficients of the exact table s(β) has expectation 0, so T(β) = sᵀ V⁻¹ s is a χ² variable there. The interval of
a coefficient has all values b for which the least T(β) with β_j = b is at most the square of the normal quantile. With
a single coefficient of a line these are Fieller's limits. They are unbounded where the noise hides the design: then a
coefficient is not known, and no narrow interval is told (Guggenberger et al. 2012 prove the size of the test for
linear models).

T is the objective of continuously updated moments. Its slope is 2 Dᵀ V⁻¹ s, where D is the slope of the score at the
adjusted moments m − Σ Gᵀ V⁻¹ s, which satisfy s = 0. Gauss–Newton steps with D find its minimum.

References
----------
Guggenberger, Kleibergen, Mavroeidis, Chen: On the asymptotic sizes of subset Anderson–Rubin and Lagrange multiplier
tests in linear instrumental variables regression, Econometrica 80 (2012).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpscale.base.numerics import Floats, Integers, linalg

STEPS, TOLERANCE = 60, 1e-7  # most Gauss–Newton steps; relative decrease of T below which they end
FAR = 1e3  # standard errors from the estimate at which a value that is not refuted counts as infinite
PRECISION = 1e-3  # of an end, in standard errors
MOST_EXPONENT = 200.0  # limit of the linear predictor, so that its exponential does not overflow
MOST_EFFECT = 40.0  # of a scaled column on log odds or log means: larger ones cannot be told from infinite ones


@dataclass(frozen=True, eq=False)
class Score(ABC):
    """Score of a regression, linear in moments.

    Attributes
    ----------
    moments : ndarray, shape (m,)
    covariance : ndarray, shape (m, m)
        Of the errors of the moments.
    extra : ndarray, shape (p, p)
        Variance of the score beside that of the moments.
    reach : float
        Largest absolute value of a coefficient that is told.
    """

    moments: Floats
    covariance: Floats
    extra: Floats

    @property
    def reach(self) -> float:
        return math.inf

    @abstractmethod
    def rows(self, beta: Floats) -> Floats:
        """Return G(β), shape (p, m)."""

    @abstractmethod
    def slope(self, beta: Floats, moments: Floats) -> Floats:
        """Return the derivative of the score by β for given moments, shape (p, p)."""

    def variance(self, beta: Floats) -> Floats:
        """Return V(β)."""
        rows = self.rows(beta)
        return np.asarray(rows @ self.covariance @ rows.T + self.extra)

    def test(self, beta: Floats) -> Tested:
        """Return T(β) with its derivatives."""
        rows = self.rows(beta)
        spread = self.covariance @ rows.T
        variance = rows @ spread + self.extra
        # a small ridge, because the variance may be singular
        variance += 1e-13 * np.eye(len(beta)) * max(np.trace(variance), 1e-300)
        score = rows @ self.moments
        root = np.linalg.cholesky(variance)
        solved = linalg.cho_solve((root, True), score)
        # the slope D at the adjusted moments; the derivative of T is 2 Dᵀ V⁻¹ s
        slope = self.slope(beta, self.moments - spread @ solved)
        whitened = np.linalg.solve(root, np.column_stack([score, slope]))
        return Tested(
            beta=beta, value=float(whitened[:, 0] @ whitened[:, 0]), score=whitened[:, 0], slope=whitened[:, 1:]
        )

    def delta_covariance(self, beta: Floats) -> Floats:
        """Return the covariance matrix of the coefficients to first order; nan if the design is singular."""
        slope = self.slope(beta, self.moments)
        try:
            inverse = np.linalg.inv(slope)
        except np.linalg.LinAlgError:
            return np.full(slope.shape, np.nan)
        return np.asarray(inverse @ self.variance(beta) @ inverse.T)


@dataclass(frozen=True, eq=False)
class Tested:
    """T at some coefficients, with the whitened score and its whitened slope."""

    beta: Floats
    value: float
    score: Floats
    slope: Floats


@dataclass(frozen=True, eq=False)
class LinearScore(Score):
    """s(β) = b − A β with moments (A, b).

    Attributes
    ----------
    places : ndarray, shape (p, p)
        Place of each entry of A among the moments; b is last.
    """

    places: Integers

    def rows(self, beta: Floats) -> Floats:
        """Return G(β), shape (p, m): row i has −β at the places of A_i and 1 at b_i."""
        count = len(beta)
        rows = np.zeros((count, len(self.moments)))
        np.add.at(rows, (np.arange(count)[:, None], self.places), -np.broadcast_to(beta, (count, count)))
        rows[:, -count:] = np.eye(count)
        return rows

    def slope(self, beta: Floats, moments: Floats) -> Floats:
        return -moments[self.places]


@dataclass(frozen=True, eq=False)
class Mean:
    """Mean of an outcome as a function of the linear predictor, with its derivative."""

    value: Callable[[Floats], Floats]
    slope: Callable[[Floats], Floats]


def _logistic(eta: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(eta, -MOST_EXPONENT, MOST_EXPONENT))))


def _exponential(eta: Floats) -> Floats:
    return np.exp(np.clip(eta, -MOST_EXPONENT, MOST_EXPONENT))


MEANS = {
    "logistic": Mean(_logistic, lambda eta: _logistic(eta) * (1 - _logistic(eta))),
    "poisson": Mean(_exponential, _exponential),
}


@dataclass(frozen=True, eq=False)
class CellScore(Score):
    """s(β) = Σ x (S − N μ(xβ)) over distinct rows x of the design; the moments are the numbers N and then the sums S.

    Attributes
    ----------
    design : ndarray, shape (rows, p)
    mean : Mean
    """

    design: Floats
    mean: Mean

    @property
    def reach(self) -> float:
        return MOST_EFFECT

    def rows(self, beta: Floats) -> Floats:
        expected = self.mean.value(self.design @ beta)
        return np.hstack([-self.design.T * expected, self.design.T])

    def slope(self, beta: Floats, moments: Floats) -> Floats:
        weights = moments[: len(self.design)] * self.mean.slope(self.design @ beta)
        return -(self.design.T * weights) @ self.design


def minimise(score: Score, beta: Floats, free: Sequence[int]) -> Tested:
    """Return the least T over the free coefficients near given ones, by damped Gauss–Newton steps.

    The damping of the Gauss–Newton step grows tenfold until the step reduces T, and then decreases.

    `score.test(beta)` has T (`value`), the score and its slope at β, both divided by the noise's root. A step solves
    (slopeᵀ slope + damping) step = −slopeᵀ score. It ends after STEPS steps, without a step that reduces T, or with a
    small decrease.
    """
    best, damping, places = score.test(beta), 0.0, list(free)
    if not places:
        return best

    for _ in range(STEPS):
        slope, value = best.slope[:, places], best.value
        gram, down = slope.T @ slope, slope.T @ best.score
        # the scale of the damping
        size = np.diag(gram).mean() or 1.0
        for _ in range(12):
            step = np.linalg.lstsq(gram + damping * size * np.eye(len(places)), -down, rcond=1e-14)[0]
            moved = best.beta.copy()
            moved[places] += step
            tried = _try(score, moved)
            if tried is not None and tried.value < value:
                best, damping = tried, damping / 10 if damping > 1e-8 else 0.0
                break
            damping = max(damping * 10, 1e-6)
        # twelve dampings did not reduce T
        else:
            return best
        if value - best.value <= TOLERANCE * (1 + best.value):
            return best
    return best


def _try(score: Score, beta: Floats) -> Tested | None:
    """Return T at some coefficients; None where it cannot be computed."""
    with np.errstate(all="ignore"):
        try:
            tested = score.test(beta) if np.isfinite(beta).all() else None
        except (np.linalg.LinAlgError, ValueError):
            return None
    return tested if tested is not None and math.isfinite(tested.value) else None


@dataclass(frozen=True, eq=False)
class Profile:
    """Least T as a function of one coefficient.

    Attributes
    ----------
    score : Score
    best : Tested
        At the estimate.
    place : int
        Number of the coefficient.
    deviation : float
        Its standard error to first order.
    """

    score: Score
    best: Tested
    place: int
    deviation: float

    def at(self, value: float, start: Floats | None = None) -> Tested:
        """Return the least T with the coefficient at a value.

        `start` is a point of a neighbouring value; without one, the other coefficients move along the first-order
        profile.
        """
        others = [place for place in range(len(self.best.beta)) if place != self.place]
        beta = (self.best.beta if start is None else start).copy()
        slope, change = self.best.slope, value - beta[self.place]
        if others and start is None:  # to first order along the profile
            # the other coefficients follow, so that the score changes least
            moves = np.linalg.lstsq(slope[:, others], -slope[:, self.place] * change, rcond=1e-12)[0]
            moved = beta.copy()
            moved[others] += moves
            moved[self.place] = value
            beta[self.place] = value
            first, second = _try(self.score, moved), _try(self.score, beta)
            # the start with the smaller T, if either can be evaluated
            if first is not None and (second is None or first.value <= second.value):
                beta = moved
        beta[self.place] = value
        # T cannot be evaluated here and counts as infinite
        if _try(self.score, beta) is None:
            return Tested(beta=beta, value=math.inf, score=np.zeros(0), slope=np.zeros((0, 0)))
        with np.errstate(all="ignore"):
            return minimise(self.score, beta, others)

    def reached(self, value: float, start: Floats | None, limit: float) -> Tested:
        """Return the least T with the coefficient at a value, from a start, and from the estimate if T is large."""
        from_start = self.at(value, start)
        if from_start.value <= limit or start is None:
            return from_start
        from_estimate = self.at(value)
        return from_estimate if from_estimate.value < from_start.value else from_start

    def end(self, sign: int, width: float) -> float:
        """Return the end of the interval of values with T up to width² in a direction, or an infinite one.

        `reach` of the score and FAR standard errors limit the search: an interval beyond them is unbounded. Steps grow
        by half until T exceeds width².
        """
        limit, estimate = width**2, self.best.beta[self.place]
        step = width * self.deviation
        if step == 0:
            return float(estimate)
        farthest = min(FAR * step, self.score.reach - sign * estimate)
        if not (math.isfinite(step) and farthest > 0) or self.at(estimate + sign * farthest).value <= limit:
            return sign * math.inf

        inside, outside, at_inside, start = 0.0, min(step, farthest), self.best.value, None
        while (tested := self.reached(estimate + sign * outside, start, limit)).value <= limit:
            if outside >= farthest:
                return sign * math.inf
            inside, at_inside, start = outside, tested.value, tested.beta
            outside = min(1.5 * outside, farthest)
        return float(estimate + sign * self._crossing(sign, (inside, outside), (at_inside, tested.value), width, start))

    def _crossing(
        self, sign: int, ends: tuple[float, float], values: tuple[float, float], width: float, start: Floats | None
    ) -> float:
        """Return the distance at which √T is the width, by false position between two ends.

        `ends` are the distances inside and outside, and `values` T at them. If an end stays twice, its value is halved
        (Illinois rule), so that both ends approach the crossing.

        `low` and `high` are distances from the estimate in the direction `sign`, `below` and `above` √T − width at
        them. `start` are coefficients near the solution.
        """
        (low, high), (below, above) = ends, (math.sqrt(value) - width for value in values)
        estimate = self.best.beta[self.place]
        if not math.isfinite(above):
            above = width
        for _ in range(40):
            # the zero of the line through both ends, at least 2 % away from either
            middle = low + (high - low) * min(max(-below / (above - below), 0.02), 0.98)
            tested = self.reached(estimate + sign * middle, start, width**2)
            at = min(math.sqrt(tested.value) - width, width)
            if abs(at) < PRECISION or high - low < PRECISION * self.deviation:
                return middle
            if at < 0:
                low, below, start, above = middle, at, tested.beta, above / 2
            else:
                high, above, below = middle, at, below / 2
        return (low + high) / 2


def interval(profile: Profile, width: float, two_sided: bool) -> tuple[float, float]:
    """Return the interval of a coefficient; unbounded on both sides if it is on one and the set may be a complement."""
    if profile.best.value > width**2 or abs(profile.best.beta[profile.place]) > profile.score.reach:
        return -math.inf, math.inf
    low = profile.end(-1, width)
    high = profile.end(1, width) if not two_sided or math.isfinite(low) else math.inf
    if two_sided and not (math.isfinite(low) and math.isfinite(high)):
        return -math.inf, math.inf
    return low, high
