"""What solving a subworkload gives, and the shape of the function that solves one problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dpscale.base.arrays import Floats
from dpscale.optimize.convex import Optimum
from dpscale.plans.factor import Factor


@dataclass(frozen=True)
class Solution:
    """A subworkload's strategy with its coefficient L (noise of the lattice included) and a lower bound of L."""

    factors: tuple[Factor, ...]
    coefficient: float
    bound: float


class Solve(Protocol):
    """Solves the problem of one Gram FᵀF of trace 1 on the cells of `shape`; equal keys mean equal problems.

    Where the key is None the problem is a passing one, and is not kept. `tolerance` None: the solver's own.
    """

    def __call__(
        self, key: str | None, rows: Floats, shape: tuple[int, ...], tolerance: float | None = None
    ) -> Optimum: ...
