"""One convex problem of a residual space on few cells, and its optimum as an integer strategy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.errors import PlanError
from dpscale.optimize.convex import Optimum
from dpscale.optimize.lattice import BASIS_BITS, ENTRY_BITS, centred_on, round_strategy, two_cells, weight_bits, worth
from dpscale.optimize.solution import Solve
from dpscale.plans.factor import Factor, center_factor
from dpscale.workload import root_of
from dpscale.workload.factors import AxisWeights, compressed
from dpscale.workload.residual import Weights, kron, profile_of

RIDGE, RIDGE_CELLS, WHOLE_CELLS = 1e-12, 200, 2600
ROUNDED_BITS, LEAST_BITS = 18, 28  # of combinations of a basis that is rounded, and the fewest of the basis


@dataclass(frozen=True, eq=False)
class Problem:
    """One convex problem: the rows of a Gram of trace 1 on the cells of `shape`, and an integer basis of their span.

    `weights`: of every axis, by which the rows are centred. `based`: whether its strategy lies in the span of the rows.
    """

    key: str
    shape: tuple[int, ...]
    rows: Floats
    basis: Floats | None
    weights: tuple[Weights | None, ...]
    based: bool = True

    @property
    def on_two_cells(self) -> bool:
        """Whether its strategy is the only one that there is, by weights."""
        return self.shape == (2,) and self.weights != (None,)

    @cached_property
    def is_center(self) -> bool:
        """Whether the Gram is a multiple of the centring projector, whose optimum is known and needs no rounding."""
        n = self.rows.shape[1]
        if len(self.shape) != 1 or len(self.rows) != n - 1 or self.weights != (None,):
            return False
        gram = self.rows.T @ self.rows
        return bool(np.allclose(gram * (n - 1), np.eye(n) - 1 / n, rtol=0, atol=1e-10))

    @cached_property
    def rounded_basis(self) -> Floats | None:
        """Integer rows near an orthonormal basis of the rows, whose rounding error no estimate can show; None where the
        rows span the whole space, or have exact integer rows."""
        if not self.based or self.basis is not None or len(self.rows) >= math.prod(n - 1 for n in self.shape):
            return None
        directions = np.linalg.svd(self.rows, full_matrices=False)[2]
        bits = ENTRY_BITS - ROUNDED_BITS - (len(directions).bit_length() + 1) // 2 - weight_bits(self.weights)
        if bits < LEAST_BITS:
            raise PlanError("workload", f"queries of values that are not whole over {self.rows.shape[1]} cells of axes "
                            "with weights", "whole numbers", "take query-smasher")  # fmt: skip
        scaled = np.ldexp(directions / np.abs(directions).max(), bits)
        return centred_on(self.shape, self.weights)(scaled).explicit().astype(np.float64)

    def solved(self, solve: Solve) -> Optimum:
        """Its optimum, by the function that solves one problem."""
        return solve(self.key, self.rows, self.shape)

    def rounded(self, optimum: Optimum, bits: int, noise: str) -> tuple[Factor, float]:
        """An integer strategy near the optimum, and its error coefficient."""
        factor = self._factor(optimum, bits)
        return factor, worth(factor, self.rows, noise)

    def _factor(self, optimum: Optimum, bits: int) -> Factor:
        if self.is_center:
            return center_factor(self.shape[0])
        if self.on_two_cells and self.weights[0] is not None:
            return two_cells(self.weights[0])
        if self.rounded_basis is not None:
            mixed = np.abs(optimum.root @ np.linalg.pinv(self.rounded_basis)).max()
            finer = min(ROUNDED_BITS - math.frexp(mixed)[1], ENTRY_BITS)
            return round_strategy(self.rows, optimum.root, self.shape, finer, self.rounded_basis, self.weights)
        if self.basis is not None:
            finer = min(BASIS_BITS + weight_bits(self.weights), ENTRY_BITS)
            return round_strategy(self.rows, optimum.root, self.shape, finer, self.basis, self.weights)
        return round_strategy(self.rows, optimum.root, self.shape, bits, weights=self.weights)


def problem_of(key: str, shape: tuple[int, ...], rows: Floats, basis: Floats | None, weights: AxisWeights,
               based: bool = True) -> Problem:  # fmt: skip
    """The problem with its rows compressed; where they span too little and no basis is known, the whole space is added
    on few cells.

    The addition is a trace, so that rounding the strategy cannot leave the span of the queries. On many cells a basis
    of the queries is rounded instead.
    """
    rows = compressed(rows)
    full = math.prod(n - 1 for n in shape)
    if basis is not None and len(rows) < full:
        return Problem(key, shape, rows, basis, weights)
    if len(rows) < full and not based and full > WHOLE_CELLS:
        raise PlanError("workload", f"queries over {math.prod(shape)} cells for strategies that span all of them",
                        f"at most {WHOLE_CELLS} cells", "take query-smasher")  # fmt: skip
    if len(rows) < full and (not based or full <= RIDGE_CELLS):
        gram = rows.T @ rows
        centring = kron([_orthogonal(own, n) for own, n in zip(weights, shape, strict=True)])
        rows = root_of(gram + RIDGE * float(np.linalg.eigvalsh(gram)[-1]) * centring)
    return Problem(key, shape, rows, None, weights, based)


def _orthogonal(weights: Weights | None, size: int) -> Floats:
    """The projector on what is orthogonal to u."""
    profile = profile_of(weights, size)
    return np.eye(size) - np.outer(profile, profile) / float(profile @ profile)
