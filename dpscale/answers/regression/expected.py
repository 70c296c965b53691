"""Expected widths of the intervals of a regression, from a plan and a public guess of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from dpscale.answers.regression.design import read_design
from dpscale.answers.regression.fit import fit_regression
from dpscale.answers.tables import check_level
from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import Floats
from dpscale.domain import Domain
from dpscale.domain.number import Number
from dpscale.plans.plan import Plan
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.joint_intervals import half_width

SPLINES = np.array([1.0, 2.0, 2.0, 1.0]) / 6  # parts of even values on the cells of a number with squares


def expected_widths(
    plan: Plan,
    variances: Sequence[float],
    formula: str,
    family: str,
    rows: float,
    shares: Mapping[str, Sequence[float]],
    level: float,
) -> dict[str, float]:
    """Return the expected width of the interval of each coefficient, to first order, if attributes are independent.

    Parameters
    ----------
    plan : Plan
    variances : sequence of float
        Noise variance of each block.
    formula, family : str
    rows : float
        Guessed number of records.
    shares : mapping of str to sequence of float
        Guessed share of the records in each cell, by attribute; even for the others.
    level : float

    Raises
    ------
    JobError
        For shares that are no distribution over the cells.
    PlanError
        If the needed sets are not measured, or the plan measures levels of a hierarchy or merged cells together.
    """
    check_level(level)
    if not rows > 0:
        raise JobError("rows", safe_repr(rows), "a number above 0", "give a public guess")
    if plan.blocks.has_trees or plan.blocks.merged is not None:
        raise PlanError("formula", "a plan over levels or merged cells", "a plan of cells", "leave the widths out")
    guessed = {name: _guess(plan.domain, name, shares) for name in plan.domain.axis_names}
    for name in shares:
        plan.domain.attribute(name)

    def read(index: int) -> Floats:
        block = plan.blocks[index]
        own = [guessed[name] for name in block.attributes]
        if block.joint:
            cells = reduce(np.multiply.outer, own, np.full((), float(rows)))
            return np.asarray(block.factors[0].explicit() @ cells.reshape(-1)).reshape(block.rows)
        vectors = [factor.explicit() @ one for factor, one in zip(block.factors, own, strict=True)]
        return np.asarray(reduce(np.multiply.outer, vectors, np.full((), float(rows))))

    design = read_design(plan.domain, formula)
    fit = fit_regression(LeastSquaresEstimates(plan, variances, read), design, family, False)
    errors = np.sqrt(np.diag(fit.score.delta_covariance(fit.best.beta))) * fit.scale
    names = [column.name for column in design.columns]
    return dict(zip(names, (2 * half_width(level, plan.noise) * errors).tolist(), strict=True))


def _guess(domain: Domain, name: str, shares: Mapping[str, Sequence[float]]) -> Floats:
    """Return the guessed share of the records in each cell of an attribute or number."""
    axis = domain[name]
    if isinstance(axis, Number):
        inside = SPLINES if axis.squares else np.full(axis.listed, 1 / axis.listed)
        return np.append(inside, np.zeros(axis.size - axis.listed))
    if name not in shares:
        return np.append(np.full(axis.listed, 1 / axis.listed), np.zeros(axis.size - axis.listed))
    found = np.asarray(shares[name], np.float64)
    if found.shape != (axis.size,) or not (found >= 0).all() or not found.sum() > 0:
        raise JobError("shares", f"those of {name}", f"{axis.size} numbers of at least 0", "give one for each cell")
    return found / found.sum()
