"""Strategies for answers over the periods of a growing table (`plans.time_plan`).

Answers of all kinds are rows of a matrix W over the periods. A strategy R has mean variance tr(W X⁻¹ Wᵀ) / rows of W
times its cost, X = RᵀR. If a unit has rows in one period, the cost is max X[s, s] and the optimum of QuerySmasher's
problem (`optimize.convex`) is certified. Every X ≻ 0 has a lower-triangular R: with J the reversal of the periods and
J X J = L Lᵀ, R = J Lᵀ J. So measurements of period t need only the periods up to t, and answers have the optimal
variance at the time of their period.

If a unit has rows in at most k periods, the cost is c(X) = max over sets S of k periods of Σ_{s, s' in S} |X[s, s']|.
The problem is convex in X. The solver minimises

    log tr(W X⁻¹ Wᵀ) + log c_p(X),   c_p(X) = (Σ_S c_S^p)^(1/p),   c_S = Σ_{s, s' in S} (X[s, s']² + η² [s ≠ s'])^½,

over R by L-BFGS. The power p grows and η shrinks from one search to the next, each from the last result. The cost of
the plan is exact.

The bound is that of the dual. For shares λ_S ≥ 0 with sum 1, M = Σ_S λ_S 1_S 1_Sᵀ and any Y ⪰ 0 with |Y| ≤ M, every X
of cost 1 has tr(XY) ≤ Σ M |X| ≤ 1, so

    tr(W X⁻¹ Wᵀ) ≥ (tr (G^½ Y G^½)^½)²,   G = WᵀW.

The search has λ_S ∝ c_S^(p−1), and Y is M times the slope of |X|. If Y has an eigenvalue −δ < 0, Y + δI is admissible
for M + δI, whose mass is larger by δ T / k: that of sets that cover all periods equally often.

With many sets of periods, c is the row bound of `plans.time_plan.largest_cost`: k times the p-norm of the row bounds.
No bound is stated then, nor for Laplace noise.

R is rounded to multiples of 2^-BITS of its largest entry. The cost of the rounded matrix is exact, so rounding costs
accuracy only, about 1e-7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from dpscale.base.deadline import check_planning_time
from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, linalg, optimize
from dpscale.optimize.convex import optimise
from dpscale.plans.time_plan import CUMULATIVE, PERIOD, WINDOW, TimePlan
from dpscale.privacy.accounting import GAUSSIAN

SmoothCost = Callable[[Floats], tuple[float, Floats]]

# bits of the largest entry of R; fewer are used if sums would exceed a word, down to the second
BITS, LEAST_BITS = 24, 8
WORD_BITS, MOST_ROWS = 62, 1 << 30  # of weighted sums, and of records of a growing table
POWERS = (30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0)  # of the smooth maximum
MOST_PAIRS = 2_000_000  # of periods in all sets whose sums are computed
ROUNDING = 1 / 3  # η of a matrix with trace T, times the power
STEPS, MEMORY = 400, 30  # of L-BFGS: most steps; pairs of steps and slopes that it keeps
RIDGE = 1e-13  # added to the diagonal of X before its factorisation, relative to the mean of the diagonal


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
    optimum = optimise(queries)
    gram = optimum.root.T @ optimum.root
    best = lower_triangular(gram + RIDGE * np.trace(gram) / horizon * np.eye(horizon))
    strategies, bound = [np.eye(horizon), best], 0.0

    if noise == GAUSSIAN and limit == 1:
        bound = optimum.dual / len(queries)
    elif noise == GAUSSIAN:
        descended, bound = _descend(queries, limit)
        strategies.append(descended)

    plans = [
        TimePlan(
            rows=_integers(strategy, bits),
            answers=tuple(answers),
            window=window,
            periods_per_unit=limit,
            noise=noise,
            bound=bound,
        )
        for strategy in strategies
    ]
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


def _descend(queries: Floats, periods: int) -> tuple[Floats, float]:
    """Return the end of the searches, and a lower bound of the mean variance; 0 if none is known.

    Each power of the norm starts at the strategy of the one before. With few sets of periods, the cost is exact over
    all sets and gives a bound; else it is bounded by rows.
    """
    size = queries.shape[1]
    has_sets = math.comb(size, periods) * periods * (periods + 1) // 2 <= MOST_PAIRS
    sums = _sums_over_sets(size, periods) if has_sets else None
    strategy, bound = np.tril(np.eye(size) + 0.05), 0.0

    for power in POWERS:
        cost = partial(_cost_of_rows, periods=periods, power=power)
        if sums is not None:
            cost = partial(_cost_of_sets, sums=sums, power=power)

        strategy = _search(queries, cost, strategy)
        if sums is not None:
            _, slopes = cost(strategy.T @ strategy)
            bound = max(bound, _dual(queries.T @ queries, slopes, periods) / len(queries))

    return strategy, bound


def _search(queries: Floats, cost: SmoothCost, start: Floats) -> Floats:
    """Return a minimum over lower-triangular matrices of mean squared column norm 1.

    Signs of the rows and the scale do not change the objective; they are normalised.
    """
    lower = np.tril_indices(len(start))
    end = optimize.minimize(_objective, start[lower], args=(queries, cost), jac=True, method="L-BFGS-B",
                            options={"maxiter": STEPS, "maxfun": 2 * STEPS, "maxcor": MEMORY}).x  # fmt: skip
    strategy = np.zeros_like(start)
    strategy[lower] = end
    strategy *= np.sign(strategy.diagonal())[:, None]

    return np.asarray(strategy / np.sqrt(np.square(strategy).sum() / len(strategy)))


def _objective(point: Floats, queries: Floats, smooth_cost: SmoothCost) -> tuple[float, Floats]:
    """Return log tr(W X⁻¹ Wᵀ) + log c_p(X) and its gradient at the entries of R.

    With X = RᵀR, `answers` = R⁻ᵀWᵀ and the variance |R⁻ᵀWᵀ|², whose derivative by R is −2 (R⁻¹ answers answersᵀ)ᵀ
    (`down`). That of c_p(X) is 2 R Y with the slope Y (`up`). Only entries of the lower triangle are variables.
    """
    check_planning_time()
    size = queries.shape[1]
    lower = np.tril_indices(size)
    strategy = np.zeros((size, size))
    strategy[lower] = point
    answers = linalg.solve_triangular(strategy.T, queries.T, lower=False)  # R⁻ᵀ Wᵀ, whose squared norm is the variance
    variance = float(np.sum(answers**2))
    down = -2 * linalg.solve_triangular(strategy, answers @ answers.T, lower=True).T
    cost, slopes = smooth_cost(strategy.T @ strategy)
    up = 2 * strategy @ slopes

    return float(np.log(variance) + np.log(cost)), (down / variance + up / cost)[lower]


def _dual(gram: Floats, slopes: Floats, periods: int) -> float:
    """Return a lower bound of tr(G X⁻¹) over all X of cost 1, from the slopes Y of a cost over sets of k periods.

    Every set has k diagonal entries, so the mass of the sets is tr Y / k.

    With M + δI the admissible Y + δI has the trace that counts; (tr (G^½ Y G^½)^½)² is divided by the mass.
    """
    missing = max(0.0, -float(np.linalg.eigvalsh(slopes)[0]))
    admissible = slopes + missing * np.eye(len(slopes))
    values, vectors = np.linalg.eigh(gram)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    squares = np.linalg.eigvalsh(root.T @ admissible @ root)

    return float(np.sqrt(np.maximum(squares, 0.0)).sum()) ** 2 / (np.trace(admissible) / periods)


def _sums_over_sets(size: int, periods: int) -> Any:
    """Return the matrix that sums a matrix over each set of periods, shape (sets, size²); pairs s > s' count twice."""
    from scipy.sparse import csr_array

    sets = np.array(list(combinations(range(size), periods)))
    first, second = np.tril_indices(periods)
    row = np.repeat(np.arange(len(sets)), len(first))
    column = (sets[:, first] * size + sets[:, second]).ravel()
    twice = np.tile(np.where(first == second, 1.0, 2.0), len(sets))

    return csr_array((twice, (row, column)), shape=(len(sets), size * size))


def _cost_of_sets(gram: Floats, sums: Any, power: float) -> tuple[float, Floats]:
    """Return c_p(X) over the sets of `sums`, and its slopes: M times the slope of |X|.

    `rounded` is (X² + η²)^½ off the diagonal. `shares` are the slopes of the p-norm by the sets' costs; summed by pairs
    of periods they are the weights M, and X/rounded is the slope of the rounded |X|.
    """
    rounded = np.sqrt(gram**2 + (ROUNDING / power) ** 2 * (1 - np.eye(len(gram))))
    cost, shares = _norm(sums @ rounded.ravel(), power)
    weights = (sums.T @ shares).reshape(gram.shape)  # a pair of periods has its whole weight below the diagonal

    return cost, (weights + weights.T) / 2 * gram / rounded


def _cost_of_rows(gram: Floats, periods: int, power: float) -> tuple[float, Floats]:
    """Return k times the p-norm of the row bounds, and its slopes.

    The row bound of period s is |X[s, s]| plus its k − 1 largest other entries; `chosen` marks these. X is `gram`, and
    k = `periods` is the number of periods that a unit can be in.
    """
    sizes = np.abs(gram)
    others = sizes - np.diag(np.diag(sizes))
    largest = np.argsort(-others, axis=1)[:, : periods - 1]
    chosen = np.eye(len(gram))
    np.put_along_axis(chosen, largest, 1.0, axis=1)
    norm, shares = _norm((sizes * chosen).sum(axis=1), power)
    weights = periods * shares[:, None] * chosen

    return periods * norm, (weights + weights.T) / 2 * np.sign(gram)


def _norm(costs: Floats, power: float) -> tuple[float, Floats]:
    """Return the p-norm of positive costs and its slopes."""
    scaled = costs / costs.max()
    total = float(np.sum(scaled**power))
    return float(costs.max()) * total ** (1 / power), scaled ** (power - 1) * total ** (1 / power - 1)
