"""OPT_M: weighted marginals as the strategy (HDMM, section 8).

M(θ) measures the marginal on S with weight θ_S, u = θ²; its sensitivity is |θ|₁ for Laplace and |θ|₂ for Gaussian
noise. On every residual space τ its Gram matrix is λ_τ = Σ_{S⊇τ} u_S c_S (`marginal_algebra`), so with the workload's
traces t
    error(θ) = |θ|² Σ_τ t_τ / λ_τ,   −∂/∂u_S = c_S Σ_{τ⊆S} t_τ/λ_τ² =: d_S,
which O(d 2^d) sums over subsets evaluate with its gradient. Gaussian: convex in u, solved in closed form if
u = Y⁻¹√(Yw) ≥ 0 (theorem 13; it then attains the SVD bound), else numerically to a certificate (`polish`).
Laplace: not convex. Many starts are descended, some of them by continuation from the norm |θ|_q with q > 1 to q = 1.
Marginals of the best local optimum are then merged as long as that lowers the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpscale.base.deadline import check_planning_time
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Flags, Floats, ParallelMap, optimize, serial_map
from dpscale.optimize.implicit_workload import Implicit
from dpscale.optimize.lower_bounds import svd_bound
from dpscale.optimize.marginal_algebra import (
    certified,
    dimensions,
    eigenvalues,
    lens_of,
    polish,
    requested_terms,
    residual_traces,
    weights_of,
)
from dpscale.optimize.opt_explicit import Noise, inverse_gram, optimise_explicit

MOST_ATTRIBUTES = 15  # attributes of a workload, with 2^15 weights of marginals
STEPS = 1000  # most L-BFGS steps of a descent
FLAT = 1e-12  # ftol of L-BFGS on the logarithm of the error, at which a descent ends
GAP = 1e-6  # certified relative gap at which `polish` ends under Gaussian noise
NEGLIGIBLE = 1e-9  # share of the largest weight below which a marginal is left out; even weight added to a start
TINY = 1e-30  # least θ in an evaluation, so that no precision is 0
ALL_STARTS = 1 << 18  # number of random starts times the number of marginals, between the two limits below
MOST_STARTS = 48  # most random starts
FEWEST_STARTS = 8  # fewest random starts
POWERS = (1.5, 1.25, 1.0)  # norms |θ|_q of a continuation, in the order of its descents
MERGES = 300  # most random pairs of marginals whose union a round tries
MERGE_ROUNDS = 12  # most merges, each with a descent
OF_TOTAL = 1e-3  # trace of the total added to the queries of an attribute, each of trace 1


@dataclass(frozen=True, eq=False)
class MarginalStrategy:
    """Marginals to measure, with weights θ > 0 of norm 1 (L2 for Gaussian, L1 for Laplace noise).

    A marginal's share of the privacy cost is θ² for Gaussian noise, and its share of ε is θ for Laplace noise.

    Attributes
    ----------
    weights : dict of AttributeSet to float
    error : float
        Coefficient of the least-squares estimate from all marginals.
    bound : float
        Lower bound over all strategies.
    best_weights : float
        Lower bound over all weights of these marginals; 0 if unknown.
    factors : dict of str to ndarray, optional
        Strategy of each attribute, (rows × size) of sensitivity 1; a marginal is measured by the Kronecker product of
        its attributes' factors. None: marginals are measured cell by cell.
    """

    weights: dict[AttributeSet, float]
    error: float
    bound: float
    best_weights: float = 0.0
    factors: dict[str, Floats] | None = None


def optimise_marginals(
    union: Implicit, noise: Noise, seed: int = 0, factors: Sequence[Floats] | None = None
) -> MarginalStrategy:
    """Solve OPT_M for a union over at most 15 attributes.

    Parameters
    ----------
    union : Implicit
    noise : {"gaussian", "laplace"}
    seed : int
    factors : sequence of ndarray, optional
        Strategy of each attribute.

    Raises
    ------
    PlanError
        If there are more than 15 attributes.
    """
    if len(union.sizes) > MOST_ATTRIBUTES:
        raise PlanError("workload", f"{len(union.sizes)} attributes", f"at most {MOST_ATTRIBUTES} for OPT_M",
                        "drop attributes, or use query-smasher or residual-planner")  # fmt: skip

    lenses = [lens_of(inverse_gram(factor)) for factor in factors] if factors is not None else None
    traces = residual_traces(union, lenses)
    sizes = tuple(lens.total for lens in lenses) if lenses is not None else union.sizes
    u, floor = _gaussian(traces, sizes)
    theta = np.sqrt(u)
    if noise == "laplace":
        theta, floor = _laplace(traces, theta, sizes, requested_terms(union), seed), 0.0
    theta = theta / norm(theta, noise)
    error = marginal_error(traces, theta**2, sizes)
    named = None if factors is None else dict(zip(union.names, factors, strict=True))
    bound = min(svd_bound(union).value, error)

    return MarginalStrategy(
        weights=_named(union, theta), error=error, bound=bound, best_weights=min(floor, error), factors=named
    )


def attribute_strategies(
    union: Implicit, noise: Noise, of_total: float = OF_TOTAL, each: ParallelMap = serial_map
) -> list[Floats]:
    """Return a strategy of sensitivity 1 per attribute, for its queries and a fraction of Total: factors for OPT_M."""
    axes = [union.distinct(i) for i in range(len(union.sizes))]
    return list(each(partial(_attribute_strategy, noise=noise, of_total=of_total), axes))


def _attribute_strategy(grams: dict[str, Floats], noise: Noise, of_total: float) -> Floats:
    """Return the strategy of an attribute for the mean of its queries' Gram matrices and a fraction of the total.

    Gram matrices are scaled to trace 1; a constant one is that of the total, which `of_total` adds instead.
    """
    size = len(next(iter(grams.values())))
    normed = [gram / np.trace(gram) for gram in grams.values() if np.ptp(gram) > 0]
    mixed = np.sum(normed, axis=0) + np.full((size, size), of_total / size)
    return optimise_explicit(mixed, noise).matrix


def norm(theta: Floats, noise: Noise) -> float:
    """Return the sensitivity of M(θ) (proposition 7)."""
    return float(np.abs(theta).sum() if noise == "laplace" else np.sqrt((theta**2).sum()))


def marginal_error(traces: Floats, u: Floats, sizes: tuple[float, ...]) -> float:
    """Return Σ_τ t_τ/λ_τ (theorem 11); inf if a residual space of the workload is not measured.

    t_τ is the trace of the workload on the residual space τ (`traces`), λ_τ the eigenvalue of the strategy there, and u
    are the squared weights of the marginals.
    """
    levels = eigenvalues(u, sizes)
    needed = traces > 0
    if (levels[needed] <= 0).any():
        return float("inf")
    return float((traces[needed] / levels[needed]).sum())


def closed_form(traces: Floats, sizes: tuple[float, ...]) -> Floats:
    """Return Y⁻¹√κ with κ the workload's eigenvalues (theorem 13): the optimum if it is non-negative."""
    return weights_of(np.sqrt(traces / np.maximum(dimensions(sizes), 1.0)), sizes)


def _gaussian(traces: Floats, sizes: tuple[float, ...]) -> tuple[Floats, float]:
    """Return u of sum 1 and the lower bound over all marginals.

    The closed form `ideal` holds if it has no negative weight. Otherwise its positive part with a little even weight is
    the start of a descent, and `polish` finishes it with a certificate.
    """
    ideal = closed_form(traces, sizes)
    if ideal.min() >= -NEGLIGIBLE * ideal.max():
        u = np.maximum(ideal, 0.0)
        u /= u.sum()
        return u, certified(traces, u, sizes).least

    start = np.maximum(ideal, 0.0) / np.maximum(ideal, 0.0).sum() + 0.1 / ideal.size
    theta = _descend(traces, np.sqrt(start), sizes, 2.0)
    state = polish(traces, theta**2, sizes, GAP)
    return state.weights, state.least


def _laplace(traces: Floats, gaussian: Floats, sizes: tuple[float, ...], wanted: Flags, seed: int) -> Floats:
    """Return the best of several local optima, θ of L1 norm 1.

    Powers fall to 1 in a continuation: each descent starts at the end of the one before, of sum 1 and with a little
    even weight, since zero weights have slope 0. θ are the weights of the marginals and `traces` the traces of the
    workload on the residual spaces; `wanted` marks the sets of the workload. At last, marginals are merged where that
    lowers the error.
    """
    generator = np.random.default_rng(seed)
    optima = []
    for start, powers in _starts(wanted, gaussian, generator):
        theta = start
        for power in powers:
            theta = _descend(traces, theta / theta.sum() + NEGLIGIBLE / theta.size, sizes, power)
        optima.append(theta / theta.sum())

    best = min(optima, key=lambda theta: marginal_error(traces, theta**2, sizes))
    return _merged(traces, best, sizes, generator)


def _starts(
    wanted: Flags, gaussian: Floats, generator: np.random.Generator
) -> Iterator[tuple[Floats, tuple[float, ...]]]:
    """Yield starts without zero weights: the Gaussian optimum, the workload's marginals, and random ones."""
    least = 1e-3 / gaussian.size
    yield gaussian / gaussian.sum() + least, (1.0,)
    yield np.where(wanted, 1 / wanted.sum(), least), (1.0,)
    for turn in range(max(FEWEST_STARTS, min(MOST_STARTS, ALL_STARTS // gaussian.size))):
        yield generator.random(gaussian.shape), POWERS if turn % 2 else (1.0,)


def _objective(traces: Floats, sizes: tuple[float, ...], power: float) -> Callable[[Floats], tuple[float, Floats]]:
    """Return the function 2 log |θ|_power + log Σ t/λ(θ²) with its gradient, on flat θ ≥ 0.

    λ are the eigenvalues of the strategy with squared weights θ², and t the traces of the workload on the residual
    spaces.
    """

    def function(flat: Floats) -> tuple[float, Floats]:
        """Return the logarithm of the error at norm 1, and its slope.

        With u = θ², Σ t/λ(u) has the slope −2 θ d by θ (`slopes` is d), and 2 log |θ|_p has 2 θ^(p−1)/Σθ^p.
        """
        check_planning_time()
        theta = np.maximum(flat.reshape(traces.shape), TINY)  # a trial step may reach zero
        state = certified(traces, theta**2, sizes)
        total = float((theta**power).sum())
        norm_slope = 2 * theta ** (power - 1) / total
        gradient = np.asarray(norm_slope - 2 * theta * state.slopes / state.error)
        return 2 / power * np.log(total) + np.log(state.error), gradient.reshape(-1)

    return function


def _descend(traces: Floats, theta: Floats, sizes: tuple[float, ...], power: float) -> Floats:
    """Return a local minimum of the error over the weights θ of all marginals, by L-BFGS-B from a start.

    The norm of the weights is that of the power: 1 for Laplace noise; larger ones are easier to minimise.
    """
    options = {"maxiter": STEPS, "maxfun": 2 * STEPS, "ftol": FLAT, "gtol": 1e-12, "maxcor": 20}
    bounds = [(0.0, None)] * theta.size
    function = _objective(traces, sizes, power)
    optimum = optimize.minimize(
        function, theta.reshape(-1), jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    return np.asarray(optimum.x.reshape(theta.shape))


def _merged(traces: Floats, theta: Floats, sizes: tuple[float, ...], generator: np.random.Generator) -> Floats:
    """Replace two marginals by their union, or drop one, and descend again, while the error decreases.

    The best of the tried changes, before a descent, is continued; it must lower the error by the fraction 10⁻⁶.
    `traces` are those of the workload on residual spaces, `theta` the weights of the marginals, of sum 1.
    """
    error = marginal_error(traces, theta**2, sizes)
    for _ in range(MERGE_ROUNDS):
        tries = list(_merges(theta, generator))
        if not tries:
            break

        first = min(
            tries, key=lambda other_theta: marginal_error(traces, (other_theta / other_theta.sum()) ** 2, sizes)
        )
        new = _descend(traces, first, sizes, 1.0)
        new /= new.sum()
        new_error = marginal_error(traces, new**2, sizes)
        if new_error >= error * (1 - 1e-6):
            break
        theta, error = new, new_error

    return theta


def _merges(theta: Floats, generator: np.random.Generator) -> Iterator[Floats]:
    """Yield θ with a pair of measured marginals merged into their union, for at most `MERGES` random pairs.

    Flat positions in shape (2,)*d are bit masks of the attributes, so their bitwise or is the union.
    """
    chosen = np.flatnonzero(theta > NEGLIGIBLE * theta.max())
    pairs = np.stack(np.triu_indices(len(chosen), 1), axis=1)
    for first, second in chosen[generator.permutation(pairs)[:MERGES]]:
        flat = theta.reshape(-1).copy()
        weight = flat[first] + flat[second]
        flat[first] = flat[second] = 0.0
        flat[first | second] += weight
        yield flat.reshape(theta.shape)


def _named(union: Implicit, theta: Floats) -> dict[AttributeSet, float]:
    """Return the marginals of non-negligible weight by name."""
    chosen = np.argwhere(theta > NEGLIGIBLE * theta.max())
    return {
        tuple(name for name, bit in zip(union.names, index, strict=True) if bit): float(theta[tuple(index)])
        for index in chosen
    }
