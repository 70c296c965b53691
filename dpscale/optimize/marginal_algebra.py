"""Algebra of weighted marginals over d attributes (HDMM, section 7), in O(d 2^d).

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers, NDArray
from dpscale.optimize.convex import Mixing, to_boundary
from dpscale.optimize.implicit_workload import Implicit
from dpscale.privacy.draws import BELOW_ONE
from dpscale.workload import MARGINAL, Workload
from dpscale.workload.residual import subsets

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

RANK = 1e-13  # relative size of an eigenvalue or a trace below which it is a rounding error of 0


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
    best = certified(traces, start / start.sum(), sizes)
    chosen = np.zeros(start.shape, dtype=bool)
    weights = best.weights

    for _ in range(ROUNDS):
        state = certified(traces, weights, sizes)
        chosen |= (state.slopes > NEAR * state.slopes.max()) | (weights > CARRIES * weights.max())
        if best.ratio - 1 <= gap or chosen.sum() > MOST_CANDIDATES:
            break
        weights = _interior_point(traces, weights, sizes, np.flatnonzero(chosen), gap)
        state = certified(traces, weights / weights.sum(), sizes)
        best = state if state.error < best.error or state.ratio < best.ratio else best
        weights = state.weights

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
STEPS = 5000  # most steps of the fixed point of `minimise_maximum`
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
    for _ in range(STEPS):
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()

        tried = np.sqrt(np.maximum(spread.T @ weights, LEAST))
        mean = float(tried.sum()) ** 2
        variances = (spread @ (1 / tried)) * tried.sum()

        bound = max(bound, mean)
        if variances.max() <= worst:
            roots, worst = tried, float(variances.max())
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
