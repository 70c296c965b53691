"""Strategies for answers over the periods of a growing table (`plans.time_plan`).

Answers of all kinds are rows of a matrix W over the periods. A strategy R has mean variance tr(W X⁻¹ Wᵀ) / rows of W
times its cost, X = RᵀR. If a unit has rows in one period, the cost is max X[s, s] and the optimum of QuerySmasher's
problem (`optimize.convex`) is certified. Every X ≻ 0 has a lower-triangular R: with J the reversal of the periods and
J X J = L Lᵀ, R = J Lᵀ J. So measurements of period t need only the periods up to t, and answers have the optimal
variance at the time of their period.

If a unit has rows in several periods, the cost is a maximum over sets of periods of sums of |X|. The solver minimises

    log tr(W X⁻¹ Wᵀ) + log c(X)

over lower-triangular R ≥ 0 by L-BFGS from several starts, where c is a smooth form of the row bound of
`plans.time_plan.largest_cost`, and takes the best result by the exact cost. No bound is stated then.

R is rounded to multiples of 2^-BITS of its largest entry. The cost of the rounded matrix is exact, so rounding costs
accuracy only, about 1e-7.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, linalg, optimize
from dpscale.optimize.convex import optimise
from dpscale.plans.time_plan import CUMULATIVE, PERIOD, WINDOW, TimePlan
from dpscale.privacy.accounting import GAUSSIAN

BITS, LEAST_BITS = 24, 8
WORD_BITS, MOST_ROWS = 62, 1 << 30  # of weighted sums, and of records of a growing table
POWER = 20.0  # of the smooth maximum
LEAST = 1e-4  # smallest diagonal entry
STEPS = 300
RIDGE = 1e-13


def queries_over_time(horizon: int, answers: Sequence[str], window: int) -> Floats:
    """Return W, a row for each kind of answer and period, shape (kinds · horizon, horizon)."""
    period, earlier = np.arange(horizon)[:, None], np.arange(horizon)[None, :]
    first = {PERIOD: period, CUMULATIVE: 0 * period, WINDOW: np.maximum(period + 1 - window, 0)}
    return np.concatenate([((earlier >= first[kind]) & (earlier <= period)).astype(float) for kind in answers])


def plan_time(
    horizon: int,
    answers: Sequence[str],
    window: int = 0,
    periods_per_unit: int = 1,
    noise: str = GAUSSIAN,
    largest_part: int = 1,
) -> TimePlan:
    """Return the strategy with the smallest mean variance of answers over the periods.

    Parameters
    ----------
    horizon : int
        Number of periods.
    answers : sequence of {"period", "cumulative", "window"}
    window : int
        Periods of a window.
    periods_per_unit : int
        Largest number of periods in which a privacy unit has rows.
    noise : {"gaussian", "laplace"}
    largest_part : int
        Largest number of parts of a record on a cell; more than 1 for sums of numbers. It limits the weights, so that
        weighted sums over MOST_ROWS records fit 64 bits.

    Returns
    -------
    TimePlan
    """
    bits = min(BITS, WORD_BITS - (MOST_ROWS * largest_part).bit_length())
    if bits < LEAST_BITS:
        raise PlanError("numbers", f"{largest_part:,} parts of a record with data.period",
                        f"at most {1 << (WORD_BITS - LEAST_BITS - MOST_ROWS.bit_length()):,}",
                        "use larger steps, or separate tables")  # fmt: skip

    queries, limit = queries_over_time(horizon, answers, window), min(periods_per_unit, horizon)
    found = [np.eye(horizon)]
    bound = 0.0
    optimum = optimise(queries)
    gram = optimum.root.T @ optimum.root
    best = lower_triangular(gram + RIDGE * np.trace(gram) / horizon * np.eye(horizon))
    found.append(best)

    if noise == GAUSSIAN and limit == 1:
        bound = optimum.dual / len(queries)
    elif noise == GAUSSIAN:
        found += [_descend(queries, limit, start) for start in _starts(best)]

    plans = [TimePlan(_integers(one, bits), tuple(answers), window, limit, noise, bound) for one in found]
    return min(plans, key=TimePlan.mean_variance)


def lower_triangular(gram: Floats) -> Floats:
    """Return the lower-triangular R with RᵀR equal to a positive definite matrix, and a positive diagonal.

    Parameters
    ----------
    gram : ndarray, shape (n, n)

    Returns
    -------
    ndarray, shape (n, n)
    """
    factor = np.linalg.cholesky(gram[::-1, ::-1])
    return np.asarray(factor.T[::-1, ::-1])


def _integers(strategy: Floats, bits: int) -> tuple[tuple[int, ...], ...]:
    """Return the rows of a lower-triangular matrix in units of 2^-bits of its largest entry."""
    scaled = np.rint(strategy * (2**bits / np.abs(strategy).max())).astype(np.int64)
    np.fill_diagonal(scaled, np.maximum(scaled.diagonal(), 1))
    return tuple(tuple(row[: number + 1].tolist()) for number, row in enumerate(scaled))


def _starts(best: Floats) -> list[Floats]:
    identity, positive = np.eye(len(best)), np.maximum(best, 0.0)
    return [np.tril(identity + 0.01), positive, (identity + positive) / 2]


def _descend(queries: Floats, periods: int, start: Floats) -> Floats:
    """Return a local minimum over non-negative lower-triangular matrices."""
    lower = np.tril_indices(len(start))
    bounds = [(LEAST if row == column else 0.0, None) for row, column in zip(*lower, strict=True)]
    point = np.maximum(start, np.diag(np.full(len(start), LEAST)))[lower]
    found = optimize.minimize(_objective, point, args=(queries, periods), jac=True, method="L-BFGS-B", bounds=bounds,
                     options={"maxiter": STEPS, "maxfun": 2 * STEPS})  # fmt: skip
    out = np.zeros_like(start)
    out[lower] = found.x

    return out


def _objective(point: Floats, queries: Floats, periods: int) -> tuple[float, Floats]:
    """Return log tr(W X⁻¹ Wᵀ) + log c(X) and its gradient at the entries of R."""
    size = queries.shape[1]
    lower = np.tril_indices(size)
    strategy = np.zeros((size, size))
    strategy[lower] = point
    answers = linalg.solve_triangular(strategy.T, queries.T, lower=False)  # R⁻ᵀ Wᵀ, whose squared norm is the variance
    variance = float(np.sum(answers**2))
    down = -2 * linalg.solve_triangular(strategy, answers @ answers.T, lower=True).T
    cost, up = _smooth_cost(strategy, periods)

    return float(np.log(variance) + np.log(cost)), (down / variance + up / cost)[lower]


def _smooth_cost(strategy: Floats, periods: int) -> tuple[float, Floats]:
    """Return an upper bound of the cost of a non-negative strategy, smooth in its entries, and its gradient.

    It is k times the POWER norm of the row bounds, and the exact sum if a unit may have rows in all periods.
    """
    gram = strategy.T @ strategy
    if periods == len(gram):
        return float(gram.sum()), 2 * strategy.sum(axis=1, keepdims=True) * np.ones_like(gram)

    others = gram - np.diag(np.diag(gram))
    largest = np.argsort(-others, axis=1)[:, : periods - 1]
    chosen = np.eye(len(gram))
    np.put_along_axis(chosen, largest, 1.0, axis=1)
    rows = (gram * chosen).sum(axis=1)
    scaled = rows / rows.max()
    total = float(np.sum(scaled**POWER))
    slopes = periods * total ** (1 / POWER - 1) * scaled ** (POWER - 1)
    by_gram = slopes[:, None] * chosen

    return periods * float(rows.max()) * total ** (1 / POWER), strategy @ (by_gram + by_gram.T)
