"""OPT_M: weighted marginals as the strategy (HDMM, section 8), and their algebra.

M(θ) measures the marginal on S with weight θ_S, u = θ²; its sensitivity is |θ|₁ for Laplace and |θ|₂ for Gaussian
noise. On every residual space τ its Gram matrix is λ_τ = Σ_{S⊇τ} u_S c_S (see the algebra), so with the workload's
traces t
    error(θ) = |θ|² Σ_τ t_τ / λ_τ,   −∂/∂u_S = c_S Σ_{τ⊆S} t_τ/λ_τ² =: d_S,
which O(d 2^d) sums over subsets evaluate with its gradient. Gaussian: convex in u, solved in closed form if
u = Y⁻¹√(Yw) ≥ 0 (theorem 13; it then attains the SVD bound), else numerically to a certificate (`polish`).
Laplace: not convex. Many starts are descended, some of them by continuation from the norm |θ|_q with q > 1 to q = 1.
Marginals of the best local optimum are then merged as long as that lowers the error.

*Algebra of weighted marginals over d attributes (HDMM, section 7), in O(d 2^d).*
A weight for each subset S of the attributes is an array u of shape (2,)*d: index 1 on the axes in S. Its Gram matrix is
G(u) = Σ_S u_S H(S), H(S) = ⊗ (I on S, 11ᵀ elsewhere). All of them are diagonal on the residual spaces τ ⊆ attributes,
of dimension Π_{i∈τ} (n_i − 1), where G(u) has the eigenvalue (theorem 9)
    κ_τ = Σ_{S ⊇ τ} u_S c_S,   c_S = Π_{i∉S} n_i   (definition 21),
so products and generalised inverses (theorems 7, 8) are computed on the eigenvalues and transformed back by a Möbius
transform.

The algebra is unchanged if any strategy A of full rank replaces the identity on attribute i: with X = AᵀA,
ν = 1ᵀX⁻¹1 and v = X⁻¹1/√ν, one congruence makes X the identity and 11ᵀ the diagonal (ν, 0, …), so ν replaces n_i and
the Gram matrix of queries splits into vᵀGv and tr(G X⁻¹) − vᵀGv. (The means of the residual space are then weighted by
X⁻¹1/ν.) `sizes` below are therefore the ν_i of attributes that have strategies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dpscale.base.deadline import check_planning_time
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Flags, Floats, Integers, NDArray, ParallelMap, optimize, serial_map
from dpscale.optimize.convex import Mixing, to_boundary
from dpscale.optimize.implicit_workload import Implicit
from dpscale.optimize.lower_bounds import svd_bound
from dpscale.optimize.opt_explicit import Noise, inverse_gram, optimise_explicit
from dpscale.privacy.draws import BELOW_ONE
from dpscale.workload import MARGINAL, Workload
from dpscale.workload.residual import subsets

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

RANK = 1e-13  # relative size of an eigenvalue or a trace below which it is a rounding error of 0

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
class Lens:
    """Strategy of one attribute: X⁻¹, (n, n), and ν = 1ᵀX⁻¹1."""

    inverse: Floats
    total: float

    def split(self, gram: Floats) -> Floats:
        """Return the trace of a Gram matrix on the span of Total, and on the rest.

        With X⁻¹ = `inverse` and toward = X⁻¹1, the mean part is vᵀGv = towardᵀ G toward / ν, because v = X⁻¹1/√ν. The
        rest is tr(G X⁻¹) − vᵀGv, set to 0 where it is a rounding error.
        """
        toward = self.inverse.sum(axis=0)
        mean = float(toward @ gram @ toward) / self.total
        rest = float((gram * self.inverse).sum()) - mean
        return np.array([mean, rest if rest > RANK * mean else 0.0])


def lens_of(inverse: Floats) -> Lens:
    """Return the lens of a strategy given by (AᵀA)⁻¹; np.eye(n) for the identity."""
    return Lens(inverse, float(inverse.sum()))


def characteristic(sizes: Sequence[float]) -> Floats:
    """Return c_S = Π_{i∉S} n_i, the number of cells summed by a cell of the marginal on S."""
    return _outer([np.array([n, 1.0]) for n in sizes])


def dimensions(sizes: Sequence[float]) -> Floats:
    """Return Π_{i∈τ} (n_i − 1), the dimension of each residual space: the cost Σu of an eigenvalue λ_τ, times Π n_i."""
    return _outer([np.array([1.0, n - 1.0]) for n in sizes])


def eigenvalues(weights: Floats, sizes: Sequence[float]) -> Floats:
    """Return κ of G(weights), one for each residual space.

    κ_τ = Σ_{S ⊇ τ} u_S c_S: H(S) multiplies the space τ ⊆ S by c_S, the cells that a cell of the marginal on S sums.
    """
    return over_supersets(weights * characteristic(sizes))


def weights_of(levels: Floats, sizes: Sequence[float]) -> Floats:
    """Return the weights whose Gram matrix has these eigenvalues, the inverse of `eigenvalues`; possibly negative.

    The sum over supersets is inverted by a Möbius transform: on every axis the entry without the attribute (`lower`)
    loses the entry with it (`upper`). The result is u_S c_S, divided by c_S.
    """
    summed = levels.copy()
    for axis in range(summed.ndim):
        lower, upper = _halves(summed, axis)
        lower -= upper
    return np.asarray(summed / characteristic(sizes))


def multiply(left: Floats, right: Floats, sizes: Sequence[float]) -> Floats:
    """Return w with G(w) = G(left) G(right) (theorem 7); it commutes."""
    return weights_of(eigenvalues(left, sizes) * eigenvalues(right, sizes), sizes)


def inverse(weights: Floats, sizes: Sequence[float]) -> Floats:
    """Return v with G(v) = G(weights)⁺, the inverse if it exists (theorem 8).

    G has the eigenvalue κ_τ on each residual space τ, so G⁺ has 1/κ_τ, and 0 where κ_τ is 0 up to rounding.
    """
    levels = eigenvalues(weights, sizes)
    nonzero = np.abs(levels) > RANK * np.abs(levels).max(initial=0.0)
    return weights_of(np.divide(1.0, levels, out=np.zeros_like(levels), where=nonzero), sizes)


def over_supersets(values: Floats) -> Floats:
    """Return Σ over S ⊇ τ.

    Axis by axis, the entry without the attribute also receives the entry with it; O(d 2^d) additions.
    """
    summed = values.copy()
    for axis in range(summed.ndim):
        lower, upper = _halves(summed, axis)
        lower += upper
    return summed


def over_subsets(values: Floats) -> Floats:
    """Return Σ over τ ⊆ S.

    Axis by axis, the entry with the attribute also receives the entry without it: the transpose of `over_supersets`.
    """
    summed = values.copy()
    for axis in range(summed.ndim):
        lower, upper = _halves(summed, axis)
        upper += lower
    return summed


def residual_traces(union: Implicit, lenses: Sequence[Lens] | None = None) -> Floats:
    """Return the trace of the workload's Gram matrix on every residual space, which determines the error.

    The result t has shape (2,)*d. A product ⊗ G_i has on τ the trace Π of (rest if i is in τ, else mean) of its axes,
    which `Lens.split` returns; products add with their weights. Traces that are rounding errors become 0.
    """
    strategies = lenses or [lens_of(np.eye(n)) for n in union.sizes]
    split = [{key: lens.split(gram) for key, gram in union.distinct(i).items()} for i, lens in enumerate(strategies)]
    total = np.zeros((2,) * len(union.sizes))
    for product in union.products:
        total += product.weight * _outer([traces[key] for traces, key in zip(split, product.keys, strict=True)])
    return np.where(total > RANK * total.max(initial=0.0) / total.size, total, 0.0)


def requested_terms(union: Implicit) -> NDArray[np.bool_]:
    """Return a mask of the subsets of attributes that the products name.

    The mask has shape (2,)*d. A product names the attributes on which its query is not the total.
    """
    named = np.zeros((2,) * len(union.sizes), dtype=bool)
    for product in union.products:
        named[tuple(int(not axis.is_total) for axis in product.axes)] = True
    return named


def _outer(vectors: Sequence[Floats]) -> Floats:
    """Return the outer product of vectors, one axis each."""
    total: Floats = np.ones(())
    for vector in vectors:
        total = np.multiply.outer(total, vector)
    return total


def _halves(values: Floats, axis: int) -> tuple[Floats, Floats]:
    """Return views of the subsets without and with an attribute."""
    index: list[slice | int] = [slice(None)] * values.ndim
    index[axis] = 0
    lower = values[(*index, ...)]
    index[axis] = 1
    return lower, values[(*index, ...)]


ROUNDS = 12  # most rounds of `polish`, each with more marginals that may have weight
NEWTON_STEPS = 60  # most interior-point steps of a round
NEAR = 0.7  # share of the largest slope above which a marginal may have weight
CARRIES = 1e-7  # share of the largest weight above which a marginal may have weight
MOST_CANDIDATES = 3000  # such marginals, the unknowns of a Newton step, above which `polish` ends
FLOOR = 1e-7  # least weight at the start of the interior-point method, relative to the largest


@dataclass(frozen=True, eq=False)
class CertifiedWeights:
    """Weights u of the marginals with the error Σ t/λ, d_S and Z, all of shape (2,)*d (see `opt_marginals`)."""

    weights: Floats
    error: float
    slopes: Floats
    curves: Floats

    @property
    def least(self) -> float:
        """Lower bound of the error of any marginals with the same sum of weights, times that sum: the certificate."""
        return self.error**2 / float(self.slopes.max())

    @property
    def ratio(self) -> float:
        """Error times cost over the certified lower bound."""
        return float(self.weights.sum()) * float(self.slopes.max()) / self.error


def certified(traces: Floats, weights: Floats, sizes: tuple[float, ...]) -> CertifiedWeights:
    """Evaluate error and derivatives at weights; spaces of trace zero need not be measured.

    With λ = κ(u): the error is Σ_τ t_τ/λ_τ, its slope by u_S is −d_S with d_S = c_S Σ_{τ ⊆ S} t_τ/λ_τ² (`slopes`), and
    the second derivative by u_S and u_S' is 2 c_S c_S' Σ t_τ/λ_τ³ over τ ⊆ S ∩ S' (`curves` has this sum for S ∩ S').
    """
    levels = np.maximum(eigenvalues(weights, sizes), np.finfo(np.float64).tiny ** 0.25)
    ratio = traces / levels
    slopes = characteristic(sizes) * over_subsets(ratio / levels)
    return CertifiedWeights(
        weights=weights, error=float(ratio.sum()), slopes=slopes, curves=over_subsets(ratio / levels**2)
    )


def polish(traces: Floats, start: Floats, sizes: tuple[float, ...], gap: float) -> CertifiedWeights:
    """Return weights of sum 1 whose error is within the gap of the certificate, or the best evaluated.

    `chosen` are the marginals that may have positive weight at the optimum: those whose slope is near the largest, or
    whose weight is not negligible. The Newton steps solve for these alone; the certificate covers all marginals.
    """
    best = state = certified(traces, start / start.sum(), sizes)
    chosen = np.zeros(start.shape, dtype=bool)

    for _ in range(ROUNDS):
        chosen |= (state.slopes > NEAR * state.slopes.max()) | (state.weights > CARRIES * state.weights.max())
        if best.ratio - 1 <= gap or chosen.sum() > MOST_CANDIDATES:
            break
        weights = _interior_point(traces, state.weights, sizes, np.flatnonzero(chosen), gap)
        state = certified(traces, weights / weights.sum(), sizes)
        best = state if state.error < best.error or state.ratio < best.ratio else best

    return best


def _interior_point(traces: Floats, start: Floats, sizes: tuple[float, ...], chosen: Integers, gap: float) -> Floats:
    """Take Newton steps in logarithmic scale for the chosen marginals; the others have weight 0.

    The problem is min Σu + Σ t/λ(u), u ≥ 0, whose optimum is a multiple of that on Σu = 1. The slack 1 − d_S ≥ 0 is the
    multiplier of u_S ≥ 0, and u_S slack_S = `target` decreases to 0. Unknowns are relative steps Δu/u.
    """
    u = np.maximum(start.reshape(-1)[chosen], FLOOR * start.max())
    state = _at(traces, u, sizes, chosen)
    # the multiple of u with least Σu + error: there Σu equals the error, which falls as 1/u
    u = u * np.sqrt(state.error / u.sum())
    slack = np.maximum(1 - _at(traces, u, sizes, chosen).slopes.reshape(-1)[chosen], 1e-3)
    scale = characteristic(sizes).reshape(-1)[chosen]

    for _ in range(NEWTON_STEPS):
        state = _at(traces, u, sizes, chosen)
        steep = state.slopes.reshape(-1)[chosen]
        if float(u.sum()) * float(steep.max()) / state.error - 1 <= gap / 2:
            break

        target = 0.2 * float(u @ slack) / len(u)
        scaled = scale * u
        # Hessian by relative steps; the bitwise and of two sets is their intersection
        matrix = 2 * np.outer(scaled, scaled) * state.curves.reshape(-1)[chosen[:, None] & chosen[None, :]]
        matrix[np.diag_indices(len(u))] += slack * u
        relative = np.linalg.solve(matrix, target - u * (1 - steep))
        slack_step = target / u - slack * relative - slack
        length = min(to_boundary(np.ones(len(u)), relative), to_boundary(slack, slack_step))
        u, slack = u * (1 + length * relative), slack + length * slack_step

    return _spread(u, start.shape, chosen)


def _at(traces: Floats, u: Floats, sizes: tuple[float, ...], chosen: Integers) -> CertifiedWeights:
    """Evaluate the error and its derivatives at weights `u` of the marginals `chosen`, and 0 of the others."""
    return certified(traces, _spread(u, traces.shape, chosen), sizes)


def _spread(u: Floats, shape: tuple[int, ...], chosen: Integers) -> Floats:
    """Return the weights of all marginals, of shape (2,)*d: `u` at the flat positions `chosen`, and 0 elsewhere."""
    weights = np.zeros(int(np.prod(shape)))
    weights[chosen] = u
    return weights.reshape(shape)


TOLERANCE = 1e-8  # relative gap between the largest variance and its bound at which the search ends
DESCENT_STEPS = 5000  # most steps of the fixed point of `minimise_maximum`
LEAST = 1e-200  # least weight and least sum of weights before their logarithm or root


def least_maximum(workload: Workload, residuals: Sequence[AttributeSet]) -> tuple[list[float], str]:
    """Return the shares of the residuals that minimise the maximum, and a remark on it with its certified gap."""
    shares, worst, bound = minimise_maximum(_spread_shares(workload, residuals))
    root = math.sqrt(worst)
    return (
        shares,
        f"largest weighted standard error of a query at privacy cost 1: {root:.6g} (gap {worst / bound - 1:.1e})",
    )


def minimise_maximum(spread: csr_matrix) -> tuple[list[float], float, float]:
    """Return the shares of residuals that minimise the largest variance of a set, that variance, and a lower bound.

    With weights p of the sets, Σp = 1, and r = spreadᵀp, the shares √r / Σ√r minimise the mean variance under p. This
    minimum is (Σ√r)², a lower bound on the largest variance, and it is that variance at the optimal p. The weights
    follow the variances (`convex.Mixing`).

    Parameters
    ----------
    spread : sparse matrix, shape (sets, residuals)
        w_A a_τA: the variance of a set per unit variance of a residual, times the weight of the set.
    """
    mixing, log_weights = Mixing(), np.zeros(spread.shape[0])
    roots, worst, bound = np.zeros(0), math.inf, 0.0
    for _ in range(DESCENT_STEPS):
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()

        # the best shares for these weights, up to a factor, and the variances of the sets under them
        tried_roots = np.sqrt(np.maximum(spread.T @ weights, LEAST))
        mean = float(tried_roots.sum()) ** 2
        variances = (spread @ (1 / tried_roots)) * tried_roots.sum()

        bound = max(bound, mean)
        if variances.max() <= worst:
            roots, worst = tried_roots, float(variances.max())
        if worst / bound - 1 <= TOLERANCE:
            break
        log_weights = mixing.next(np.log(np.maximum(weights, LEAST)), np.log(variances / mean), mean)

    return list(map(float, roots / roots.sum() * BELOW_ONE)), worst, bound


def _spread_shares(workload: Workload, residuals: Sequence[AttributeSet]) -> csr_matrix:
    """Return the weighted variance of each set A (rows) by the variance of each residual τ (columns): w_A a_τA.

    A cell of the marginal on A is the sum of its residuals on τ ⊆ A. The residual on τ at unit noise variance adds
    a_τA = Π_{i in τ} ((n_i − 1)/n_i)² Π_{i in A∖τ} n_i⁻² to its variance. w_A is the largest weight of the set A.
    """
    from scipy.sparse import csr_matrix

    column = {attributes: index for index, attributes in enumerate(residuals)}
    weights = _weights(workload)
    entries: list[tuple[float, int, int]] = []
    for row, (attributes, weight) in enumerate(weights.items()):
        sizes = dict(zip(attributes, workload.domain.shape(attributes), strict=True))
        for subset in subsets(attributes):
            value = math.prod(((n - 1) / n) ** 2 if name in subset else n**-2 for name, n in sizes.items())
            entries.append((weight * value, row, column[subset]))

    values, rows, columns = zip(*entries, strict=True)
    return csr_matrix((values, (rows, columns)), shape=(len(weights), len(residuals)))


def _weights(workload: Workload) -> dict[AttributeSet, float]:
    """Return the largest weight of each marginal of a workload. Raises PlanError for other families.

    The same set may occur in several parts; each part must have the family of marginals on every axis.
    """
    weights: dict[AttributeSet, float] = {}
    for part in workload.parts:
        if part.axis_families != (MARGINAL,):
            raise PlanError("mechanism.objective", f"max with family {part.name!r}", f"family {MARGINAL.name}",
                            f"minimise the sum, or use family {MARGINAL.name} only")  # fmt: skip
        for attributes, weight in zip(part.sets, part.weights, strict=True):
            if weight > 0:
                weights[attributes] = max(weights.get(attributes, 0.0), weight)
    return weights


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
    """Return θ after pairs of marginals are replaced by their unions, as long as a descent then lowers the error.

    The best of the tried changes, before a descent, is continued; it must lower the error by the fraction 10⁻⁶.
    `traces` are those of the workload on residual spaces, `theta` the weights of the marginals, of sum 1.
    """
    error = marginal_error(traces, theta**2, sizes)
    for _ in range(MERGE_ROUNDS):
        tries = list(_merges(theta, generator))
        if not tries:
            break

        start = min(tries, key=lambda merged: marginal_error(traces, (merged / merged.sum()) ** 2, sizes))
        new = _descend(traces, start, sizes, 1.0)
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
