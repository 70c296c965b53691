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
from dataclasses import dataclass
from functools import reduce

import numpy as np

from dpscale.base.numerics import Floats
from dpscale.optimize.convex import Optimum, Solve
from dpscale.plans.circulant import CHUNK, CirculantFactor, gram_power, rounded_kernel
from dpscale.plans.factor import Factor
from dpscale.workload import Family, GramFactor, Subworkload
from dpscale.workload.residual import Weights
from dpscale.workload.wide import WideGram

MOST_CELLS = 1 << 20
LEAST = 1e-24  # of the largest c, so that no eigenvalue vanishes


@dataclass(frozen=True, eq=False)
class FourierProblem:
    """Problem of a subworkload whose strategies are circulant along every axis."""

    sub: Subworkload
    is_center = False

    @property
    def key(self) -> str:
        return f"fourier/{self.sub.signature()}"

    @property
    def weights(self) -> tuple[Weights | None, ...]:
        return self.sub.weights

    @property
    def power(self) -> Floats:
        """c by frequency, shape `sizes`: 0 at the frequencies that are 0 on an axis, of which a residual has no part."""
        total = np.zeros(self.sub.sizes)
        for key, weight in self.sub.terms.items():
            total += weight / self.sub.scale * self._term_power(key)
        total = np.maximum(total, total.max() * LEAST)
        for axis in range(total.ndim):
            total[(slice(None),) * axis + (0,)] = 0.0
        return total

    def _term_power(self, key: tuple[str, ...]) -> Floats:
        factors = [self.sub.factors[name] for name in key]
        if self.sub.is_joint(key):
            return array_power(factors[0].rows, self.sub.sizes)
        return reduce(np.multiply.outer, map(_axis_power, factors))

    def solved(self, solve: Solve) -> Optimum:
        """Return the optimum; its `root` has the eigenvalues of the strategy by frequency."""
        cells, roots = self.sub.cells, np.sqrt(self.power)
        primal = float(roots.sum() ** 2 / cells)
        bounds = (weight * math.prod(_bound(self.sub.factors[name]) for name in key)
                  for key, weight in self.sub.terms.items())  # fmt: skip
        bound = math.fsum(bounds) / self.sub.scale
        return Optimum(np.sqrt(cells * roots / roots.sum()), primal, min(bound, primal), np.zeros(0))

    def rounded(self, optimum: Optimum, bits: int, noise: str) -> tuple[Factor, float]:
        """Return the strategy in integers and its error coefficient."""
        factor = CirculantFactor("circulant", self.sub.sizes, kernel=rounded_kernel(optimum.root))
        error = float((self.power * factor.inverse_power).sum()) * self.sub.cells
        return factor, error * factor.squared_sensitivity(noise)


def array_power(queries: Floats, shape: tuple[int, ...]) -> Floats:
    """Return Σ |q̂|²/N over queries, shape (m, cells), by frequency."""
    cells, axes, total = math.prod(shape), tuple(range(1, len(shape) + 1)), np.zeros(shape)
    step = max(1, CHUNK // cells)
    for start in range(0, len(queries), step):
        spectra = np.fft.fftn(queries[start : start + step].reshape(-1, *shape), axes=axes)
        total += (np.abs(spectra) ** 2).sum(axis=0)
    return total / cells


def _axis_power(factor: GramFactor | WideGram) -> Floats:
    """Return c of the Gram matrix of one axis; that of a wide one is not centred."""
    if isinstance(factor, WideGram):
        powers = [weight * gram_power(family, factor.size) for family, weight in factor.asked
                  if isinstance(family, Family)]  # fmt: skip
        return np.asarray(sum(powers))
    return array_power(factor.rows, factor.rows.shape[1:])


def _bound(factor: GramFactor | WideGram) -> float:
    """Return the bound (Σ singular values)²/n of the error of a Gram matrix over all strategies."""
    if isinstance(factor, WideGram):
        return factor.lower_bound
    rows = factor.rows
    if 2 * len(rows) < rows.shape[1]:
        values = np.sqrt(np.maximum(np.linalg.eigvalsh(rows @ rows.T), 0))
    else:
        values = np.linalg.svd(rows, compute_uv=False)
    return float(values.sum() ** 2 / rows.shape[1])
