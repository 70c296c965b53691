"""Subworkloads in the Fourier basis: X is diagonal there, and nothing of cells × cells is built (QuerySmasher, app. C).

With U the unitary Fourier transform of N cells, c = diag(U G U*) of a Gram matrix G of trace 1 is the sum over its
terms: of products of those of the axes, and of Σ |q̂|²/N over the pieces q of queries that are no products. The problem
is min Σ c/x subject to Σ x = N, so

    x = N √c / Σ √c,   L = (Σ √c)²/N,

and the strategy is the circulant matrix with the eigenvalues √x (`plans.circulant`). It is the best strategy whose
Gram matrix every rotation of the cells along an axis leaves unchanged. The bound is the sum of those of the terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import cast

import numpy as np

from dpscale.base.numerics import Floats
from dpscale.optimize.convex import Optimum, Solve
from dpscale.optimize.integer_strategies import FactorBits
from dpscale.plans.circulant import CirculantFactor, gram_power, rounded_kernel
from dpscale.plans.factor import Factor
from dpscale.workload import Family, GramFactor, Subworkload
from dpscale.workload.factors import AnyGram, ArrayGram
from dpscale.workload.family import in_chunks
from dpscale.workload.residual import Weights
from dpscale.workload.wide import WideGram

MOST_CELLS, MOST_ENTRIES = 1 << 20, 1 << 30  # of a subworkload, and of its queries that are no products
MOST_BOUNDED = 1 << 26  # entries of queries that are no products and have a bound
NEGLIGIBLE = 1e-12  # of the largest squared singular value
LEAST = 1e-24  # of the largest c, so that no eigenvalue vanishes


@dataclass(frozen=True, eq=False)
class FourierProblem:
    """Problem of a Gram matrix of trace 1 whose strategies are circulant along every axis.

    Attributes
    ----------
    key : str
    shape : tuple of int
        Sizes of the axes.
    terms : tuple of (float, tuple of AnyGram)
        Weights, and the factors of one axis each, or one joint factor.
    """

    key: str
    shape: tuple[int, ...]
    terms: tuple[tuple[float, tuple[AnyGram, ...]], ...]
    is_center = False

    @classmethod
    def of(cls, sub: Subworkload) -> FourierProblem:
        """Return the problem of a subworkload."""
        terms = ((weight / sub.scale, tuple(sub.factors[name] for name in key)) for key, weight in sub.terms.items())
        return cls(f"fourier/{sub.signature()}", sub.sizes, tuple(terms))

    @classmethod
    def of_axis(cls, gram: WideGram) -> FourierProblem:
        """Return the problem of one wide axis."""
        return cls(gram.key, (gram.size,), ((1.0, (gram,)),))

    @property
    def weights(self) -> tuple[Weights | None, ...]:
        return (None,) * len(self.shape)

    @property
    def power(self) -> Floats:
        """C by frequency, shape `shape`; a residual has no part at the frequencies that are 0 on an axis."""
        return np.asarray(sum(weight * self._term_power(factors) for weight, factors in self.terms))

    def _term_power(self, factors: tuple[AnyGram, ...]) -> Floats:
        """Return c of one term of weight 1: of its joint factor, or the outer product of those of the axes."""
        if len(factors) < len(self.shape):
            return array_power(_chunks(factors[0]), self.shape)
        return reduce(np.multiply.outer, map(_axis_power, factors))

    def solved(self, solve: Solve) -> Optimum:
        """Return the optimum; its `root` has the eigenvalues of the strategy by frequency."""
        spectrum, primal = spectrum_of(self.power)
        bound = math.fsum(weight * math.prod(map(_bound, factors)) for weight, factors in self.terms)
        return Optimum(root=np.sqrt(spectrum), primal=primal, dual=min(bound, primal), weights=np.zeros(0))

    def rounded(self, optimum: Optimum, bits: FactorBits, noise: str) -> tuple[Factor, float]:
        """Return the strategy in integers and its error coefficient."""
        factor = CirculantFactor("circulant", self.shape, kernel=rounded_kernel(optimum.root))
        error = float((self.power * factor.inverse_power).sum()) * math.prod(self.shape)
        return factor, error * factor.squared_sensitivity(noise)


def spectrum_of(power: Floats) -> tuple[Floats, float]:
    """Return x and L for c by frequency; x is 0 at the frequencies that are 0 on an axis.

    x = N √c/Σ√c and L = (Σ√c)²/N, see the module; frequency 0 of an axis belongs to what is averaged over it.
    """
    roots = np.sqrt(np.maximum(power, power.max() * LEAST))
    for axis in range(roots.ndim):
        roots[(slice(None),) * axis + (0,)] = 0.0
    return roots.size * roots / roots.sum(), float(roots.sum() ** 2 / roots.size)


def array_power(chunks: Iterable[Floats], shape: tuple[int, ...]) -> Floats:
    """Return Σ |q̂|²/N over queries, given in arrays of shape (m, cells), by frequency."""
    axes, total = tuple(range(1, len(shape) + 1)), np.zeros(shape)
    for queries in chunks:
        total += (np.abs(np.fft.fftn(queries.reshape(-1, *shape), axes=axes)) ** 2).sum(axis=0)
    return total / math.prod(shape)


def _chunks(factor: AnyGram) -> Iterator[Floats]:
    """Yield rows F with FᵀF equal to a Gram matrix, in arrays of some rows."""
    return factor.chunks() if isinstance(factor, ArrayGram) else in_chunks(factor.rows)


def _axis_power(factor: AnyGram) -> Floats:
    """Return c of the Gram matrix of one axis; that of a wide one is not centred."""
    if isinstance(factor, WideGram):
        powers = [weight * gram_power(cast(Family, family), factor.size) for family, weight in factor.asked]
        return np.asarray(sum(powers))
    assert isinstance(factor, GramFactor)
    return array_power(in_chunks(factor.rows), factor.rows.shape[1:])


def _bound(factor: AnyGram) -> float:
    """Return the bound (Σ singular values)²/n of the error of a Gram matrix over all strategies; 0 if not computed.

    Singular values of the rows come from the smaller of the two Gram matrices, if the rows are few.
    """
    if isinstance(factor, WideGram):
        return max(factor.lower_bound, _invariant_bound(factor))
    if isinstance(factor, ArrayGram) and math.prod(factor.shape) > MOST_BOUNDED:
        return 0.0
    rows = np.concatenate(list(factor.chunks())) if isinstance(factor, ArrayGram) else factor.rows
    if 2 * len(rows) >= rows.shape[1]:
        return float(np.linalg.svd(rows, compute_uv=False).sum() ** 2 / rows.shape[1])
    squares = np.linalg.eigvalsh(rows @ rows.T)
    return float(np.sqrt(squares[squares > NEGLIGIBLE * squares[-1]]).sum() ** 2 / rows.shape[1])


def _invariant_bound(gram: WideGram) -> float:
    """Return the optimum of centred queries that rotations leave unchanged: (Σ √c)²/n; 0 for other queries."""
    families = [cast(Family, family) for family, _ in gram.asked]
    if not all(family.invariant and (family.has_intervals or family.is_identity) for family in families):
        return 0.0
    return spectrum_of(_axis_power(gram))[1]
