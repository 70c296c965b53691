"""Weighted Fourier factorisation (Lebeda, Nikolov, Tang, 2025; QuerySmasher, appendix C): noise by frequency.

X is restricted to be diagonal in the Fourier basis of the cells, that is, circulant along every axis. With U the
unitary Fourier transform and c = diag(U G U*), the problem is min Σ c/x subject to Σ x = n, so x ∝ √c and L = (Σ
√c)²/n: optimal for marginals and circular ranges, closed form for all. The bound is the dual at uniform weights, (tr
(G/n)^½)², which applies to every strategy. Large sets with several terms use a product of circulants.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.numerics import Floats
from dpscale.mechanisms.contract import ObjectiveOptions, PlanningProblem, Tools
from dpscale.mechanisms.matrix_mechanism import matrix_mechanism
from dpscale.mechanisms.residual_split import plan_residuals
from dpscale.optimize.convex import Optimum
from dpscale.plans.plan import Plan
from dpscale.workload import root_of

NAME = "weighted-fourier"


def plan(problem: PlanningProblem, options: ObjectiveOptions, tools: Tools) -> Plan:
    """Plan every residual with its best circulant strategy."""
    return plan_residuals(problem, tools, NAME, solve_circulant, based=False)


def solve_circulant(key: str | None, rows: Floats, shape: tuple[int, ...], tolerance: float | None = None) -> Optimum:
    """Return the best X that is circulant along every axis, for the Gram FᵀF of the rows."""
    cells = rows.shape[1]
    power = (np.abs(np.fft.fftn(rows.reshape(-1, *shape), axes=range(1, len(shape) + 1))) ** 2).sum(axis=0) / cells
    roots = np.sqrt(np.maximum(power, power.max() * 1e-24))
    for axis in range(len(shape)):  # a residual has no constant part along any axis
        roots[(slice(None),) * axis + (0,)] = 0.0
    spectrum = cells * roots / roots.sum()
    dual = float(np.linalg.svd(rows, compute_uv=False).sum() ** 2 / cells)
    primal = float(roots.sum() ** 2 / cells)

    return Optimum(root_of(_circulant(spectrum)), primal, min(dual, primal), np.full(cells, 1 / cells))


def _circulant(spectrum: Floats) -> Floats:
    """Return the matrix U* diag(spectrum) U on all cells: entry (i, j) is the kernel at i − j along every axis."""
    kernel = np.fft.ifftn(spectrum).real
    shape = kernel.shape
    cells = np.indices(shape).reshape(len(shape), -1)
    offsets = (cells[:, :, None] - cells[:, None, :]) % np.array(shape)[:, None, None]
    matrix = kernel[tuple(offsets)]
    return np.asarray((matrix + matrix.T) / 2)


MECHANISM = matrix_mechanism(NAME, ObjectiveOptions, plan)
