"""Estimates of one attribute whose values were searched: the noisy counts of the search join those of the measurement.

The search measures the counts of all values with independent noise of variance s, and shows those above a threshold.
The measurement gives every found cell, and the cells of other values and nulls, with independent noise of variance v. A
found value has the inverse-variance mean, with variance 1/(1/s + 1/v); the other cells have that of the measurement.
A value that passes the threshold by its noise alone is overestimated; of n values, at most those within a few standard
deviations of the threshold are concerned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.reconstruction.base import PlanEvidence
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.workload import WorkloadPart


@dataclass(frozen=True, eq=False)
class SearchedCounts:
    """Counts of the cells that a search has found.

    Attributes
    ----------
    name : str
        The attribute, the only one that the plan measures.
    cells : ndarray of int64
    counts : ndarray of float64
    variance : float
    """

    name: str
    cells: Integers
    counts: Floats
    variance: float


@dataclass(frozen=True, eq=False)
class SearchedEvidence(PlanEvidence):
    """Measured blocks of a plan on one attribute, and the counts of the search for its values."""

    searched: SearchedCounts

    @cached_property
    def _estimates(self) -> LeastSquaresEstimates:
        return SearchedEstimates(LeastSquaresEstimates(self.plan, self.variances, self.read), self.searched)


class SearchedEstimates(LeastSquaresEstimates):
    """Estimates with independent errors of the cells of one attribute.

    Parameters
    ----------
    measured : LeastSquaresEstimates
        Estimates from a plan that measures the cells of the attribute with equal and independent noise.
    searched : SearchedCounts

    Raises
    ------
    ValueError
        If the errors of `measured` are not equal and independent.
    """

    def __init__(self, measured: LeastSquaresEstimates, searched: SearchedCounts) -> None:
        """Average the measured cells with the noisy counts of a search, by their precisions."""
        super().__init__(measured.plan, measured.variances, measured._read)
        names = (searched.name,)
        cells = measured.marginal(names)
        size = len(cells)
        _, error_of_cell = measured.answer(names, np.eye(1, size)[0])
        _, error_of_total = measured.answer(names, np.ones(size))
        variance = error_of_cell**2
        if not math.isclose(error_of_total**2, size * variance, rel_tol=1e-6):
            raise ValueError("a plan whose cells have dependent errors")

        self.cell_variances = np.full(size, variance)
        self.cell_variances[searched.cells] = 1 / (1 / variance + 1 / searched.variance)
        share = self.cell_variances[searched.cells] / searched.variance
        cells[searched.cells] += share * (searched.counts - cells[searched.cells])
        self._residuals = type(self._residuals)({(): np.asarray(cells.sum()), names: cells - cells.mean()})
        self.cells = cells

    @property
    def _batched(self) -> None:  # type: ignore[override]
        return None

    def residual(self, subset: AttributeSet) -> Floats:
        """Return the total, or the centred counts of the cells."""
        return self._residuals[subset]

    def answer(self, attributes: Sequence[str], query: Any) -> tuple[float, float]:
        """Return the estimate and standard error of one linear query, an array over the attribute's cells."""
        estimate, _ = super().answer(attributes, query)
        cells = np.broadcast_to(np.asarray(query, np.float64), self.cells.shape)
        return estimate, math.sqrt(cells**2 @ self.cell_variances)

    def part_variances(self, part: WorkloadPart, attributes: AttributeSet) -> Floats:
        """Return variances of all queries of a part over the attribute, whose entries are 0 and 1."""
        return part.answers(attributes, self.cell_variances if attributes else self.cell_variances.sum())
