"""Weighted Fourier factorisation (Lebeda, Nikolov, Tang, 2025; QuerySmasher, appendix C): noise by frequency.

X is restricted to be diagonal in the Fourier basis of the cells, that is, circulant along every axis. With U the
unitary Fourier transform and c = diag(U G U*), the problem is min Σ c/x subject to Σ x = n, so x ∝ √c and L = (Σ
√c)²/n: optimal for marginals and circular ranges, closed form for all. The bound is the dual at uniform weights, (tr
(G/n)^½)², which applies to every strategy. Residuals of several attributes are
planned and measured by FFT (`optimize.fourier`), except products of axes, and those of more than 1,048,576 cells with
several terms, which use a product of circulants.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.numerics import Floats
from dpscale.mechanisms.contract import ObjectiveOptions, PlanningProblem, Tools, seconds_of_sets
from dpscale.mechanisms.matrix_mechanism import matrix_mechanism
from dpscale.mechanisms.residual_split import plan_residuals
from dpscale.optimize.convex import Optimum
from dpscale.optimize.fourier import MOST_CELLS, array_power, spectrum_of
from dpscale.plans.plan import Plan
from dpscale.workload import root_of

NAME = "weighted-fourier"


def plan(problem: PlanningProblem, options: ObjectiveOptions, tools: Tools) -> Plan:
    """Plan every residual with its best circulant strategy."""
    return plan_residuals(problem, tools, NAME, solve_circulant, based=False)


def solve_circulant(key: str | None, rows: Floats, shape: tuple[int, ...], tolerance: float | None = None) -> Optimum:
    """Return the best X that is circulant along every axis, for the Gram FᵀF of the rows."""
    cells = rows.shape[1]
    spectrum, primal = spectrum_of(array_power([rows], shape))
    dual = float(np.linalg.svd(rows, compute_uv=False).sum() ** 2 / cells)
    return Optimum(
        root=root_of(_circulant(spectrum)), primal=primal, dual=min(dual, primal), weights=np.full(cells, 1 / cells)
    )


def _circulant(spectrum: Floats) -> Floats:
    """Return the matrix U* diag(spectrum) U on all cells: entry (i, j) is the kernel at i − j along every axis."""
    kernel = np.fft.ifftn(spectrum).real
    shape = kernel.shape
    cells = np.indices(shape).reshape(len(shape), -1)
    offsets = (cells[:, :, None] - cells[:, None, :]) % np.array(shape)[:, None, None]
    matrix = kernel[tuple(offsets)]
    return np.asarray((matrix + matrix.T) / 2)


CELL_SECONDS, ENTRY_SECONDS = 3e-6, 2e-7  # of a joint cell, and of an entry of queries that are no products


def predicted_seconds(problem: PlanningProblem, options: ObjectiveOptions) -> float:
    """Return the predicted seconds of the sets, of the largest joint residuals and of queries that are no products."""
    cells, entries = dict[str, float](), dict[str, float]()
    for part in problem.workload.parts:
        for names in part.sets:
            size = part.domain.cells(names)
            if len(names) > 1 and size <= MOST_CELLS:
                cells[str(part.domain.shape(names))] = size
            if not part.factorizes:
                entries[part.key(names)] = size * part.count(names)
    joint = CELL_SECONDS * sum(cells.values()) + ENTRY_SECONDS * sum(entries.values())
    return seconds_of_sets(problem, options) + joint


MECHANISM = matrix_mechanism(NAME, ObjectiveOptions, plan, "2", frozenset({"1"}), predicted_seconds)
