"""Expected widths of the intervals of a regression, from a plan and a public guess of the table."""

from __future__ import annotations

import numpy as np

from dpscale.answers.regression.design import read_design
from dpscale.answers.regression.fit import fit_regression
from dpscale.answers.tables import check_level
from dpscale.base.errors import PlanError
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.joint_intervals import half_width


def expected_widths(estimates: LeastSquaresEstimates, formula: str, family: str, level: float) -> dict[str, float]:
    """Return the expected width of the interval of each coefficient, to first order, on a guessed table.

    Parameters
    ----------
    estimates : LeastSquaresEstimates
        Those of a guessed table (`dpscale.reconstruction.guessed`).
    formula, family : str
    level : float

    Raises
    ------
    PlanError
        If the needed sets are not measured, or the plan measures levels of a hierarchy or merged cells together.
    """
    check_level(level)
    plan = estimates.plan
    if plan.blocks.has_trees or plan.blocks.merged is not None:
        raise PlanError("formula", "a plan over levels or merged cells", "a plan of cells", "leave the widths out")
    design = read_design(plan.domain, formula)
    fit = fit_regression(estimates, design, family, False)
    errors = np.sqrt(np.diag(fit.score.delta_covariance(fit.best.beta))) * fit.scale
    names = [column.name for column in design.columns]
    return dict(zip(names, (2 * half_width(level, plan.noise) * errors).tolist(), strict=True))
