"""The algebra of weighted marginals over d attributes (HDMM, section 7), in O(d 2^d).

A weight for each subset S of the attributes is an array u of shape (2,)*d: index 1 on the axes in S. Its Gram is
G(u) = Σ_S u_S H(S), H(S) = ⊗ (I on S, 11ᵀ elsewhere). All of them are diagonal on the residual spaces τ ⊆ attributes,
of dimension Π_{i∈τ} (n_i − 1), where G(u) has the eigenvalue (theorem 9)
    κ_τ = Σ_{S ⊇ τ} u_S c_S,   c_S = Π_{i∉S} n_i   (definition 21),
so that products and generalised inverses (theorems 7, 8) are those of the eigenvalues, and back by a Möbius transform.

Nothing changes when the identity on attribute i gives way to any strategy A of full rank: with X = AᵀA, ν = 1ᵀX⁻¹1 and
v = X⁻¹1/√ν, one congruence makes X the identity and 11ᵀ the diagonal (ν, 0, …), so ν takes the place of n_i and the
Gram of queries splits into vᵀGv and tr(G X⁻¹) − vᵀGv. (The means of the residual space are then weighted by X⁻¹1/ν.)
So `sizes` below are the ν_i where attributes have strategies of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.optimize.implicit import Implicit, Product

RANK = 1e-13


@dataclass(frozen=True, eq=False)
class Lens:
    """One attribute's strategy as the algebra sees it: X⁻¹, (n, n), and ν = 1ᵀX⁻¹1."""

    inverse: Floats
    total: float

    def split(self, gram: Floats) -> Floats:
        """The trace of a Gram on what Total tells, and on the rest."""
        toward = self.inverse.sum(axis=0)
        mean = float(toward @ gram @ toward) / self.total
        rest = float((gram * self.inverse).sum()) - mean
        return np.array([mean, rest if rest > RANK * mean else 0.0])


def lens_of(inverse: Floats) -> Lens:
    """The lens of a strategy given by (AᵀA)⁻¹; of the identity, np.eye(n)."""
    return Lens(inverse, float(inverse.sum()))


def characteristic(sizes: Sequence[float]) -> Floats:
    """c_S = Π_{i∉S} n_i: how many cells a cell of the marginal on S sums."""
    return _outer([np.array([n, 1.0]) for n in sizes])


def dimensions(sizes: Sequence[float]) -> Floats:
    """Π_{i∈τ} (n_i − 1): the dimension of each residual space; the cost Σu of an eigenvalue λ_τ, times Π n_i."""
    return _outer([np.array([1.0, n - 1.0]) for n in sizes])


def eigenvalues(weights: Floats, sizes: Sequence[float]) -> Floats:
    """κ of G(weights), one for each residual space."""
    return over_supersets(weights * characteristic(sizes))


def weights_of(levels: Floats, sizes: Sequence[float]) -> Floats:
    """The weights whose Gram has these eigenvalues: the inverse of `eigenvalues`; they may be negative."""
    summed = levels.copy()
    for axis in range(summed.ndim):
        lower, upper = _halves(summed, axis)
        lower -= upper
    return np.asarray(summed / characteristic(sizes))


def multiply(left: Floats, right: Floats, sizes: Sequence[float]) -> Floats:
    """w with G(w) = G(left) G(right) (theorem 7); it commutes."""
    return weights_of(eigenvalues(left, sizes) * eigenvalues(right, sizes), sizes)


def inverse(weights: Floats, sizes: Sequence[float]) -> Floats:
    """v with G(v) = G(weights)⁺, the inverse where there is one (theorem 8)."""
    levels = eigenvalues(weights, sizes)
    kept = np.abs(levels) > RANK * np.abs(levels).max(initial=0.0)
    return weights_of(np.divide(1.0, levels, out=np.zeros_like(levels), where=kept), sizes)


def over_supersets(values: Floats) -> Floats:
    """Σ over S ⊇ τ."""
    summed = values.copy()
    for axis in range(summed.ndim):
        lower, upper = _halves(summed, axis)
        lower += upper
    return summed


def over_subsets(values: Floats) -> Floats:
    """Σ over τ ⊆ S."""
    summed = values.copy()
    for axis in range(summed.ndim):
        lower, upper = _halves(summed, axis)
        upper += lower
    return summed


def residual_traces(union: Implicit, lenses: Sequence[Lens] | None = None) -> Floats:
    """The trace of the workload's Gram on every residual space: all that a marginal strategy's error depends on."""
    seen = lenses or [lens_of(np.eye(n)) for n in union.sizes]
    split = [{key: lens.split(gram) for key, gram in union.distinct(i).items()} for i, lens in enumerate(seen)]
    total = np.zeros((2,) * len(union.sizes))
    for product in union.products:
        total += product.weight * _outer([traces[key] for traces, key in zip(split, product.keys, strict=True)])
    return np.where(total > RANK * total.max(initial=0.0) / total.size, total, 0.0)


def asked(union: Implicit) -> NDArray[np.bool_]:
    """The subsets of attributes that the products name."""
    named = np.zeros((2,) * len(union.sizes), dtype=bool)
    for product in union.products:
        named[_subset(product)] = True
    return named


def _subset(product: Product) -> tuple[int, ...]:
    return tuple(0 if axis.is_total else 1 for axis in product.axes)


def _outer(vectors: Sequence[Floats]) -> Floats:
    total: Floats = np.ones(())
    for vector in vectors:
        total = np.multiply.outer(total, vector)
    return total


def _halves(values: Floats, axis: int) -> tuple[Floats, Floats]:
    """Views of the subsets without and with an attribute."""
    index: list[slice | int] = [slice(None)] * values.ndim
    index[axis] = 0
    lower = values[(*index, ...)]
    index[axis] = 1
    return lower, values[(*index, ...)]
