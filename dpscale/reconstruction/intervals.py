"""Intervals of answers: estimate ± half width, where all of an attribute set's are to hold at once."""

from __future__ import annotations

from dpscale.base.arrays import Floats
from dpscale.base.names import AttributeSet
from dpscale.reconstruction.contract import Estimates
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.joint import joint_width
from dpscale.reconstruction.modelled import Modelled
from dpscale.workload import Part


def tells_at_once(estimates: Estimates) -> bool:
    """Whether there are such intervals: of least squares, and where errors were simulated."""
    return isinstance(estimates, LeastSquaresEstimates) or (
        isinstance(estimates, Modelled) and estimates.errors is not None
    )


def at_once(estimates: Estimates, part: Part, names: AttributeSet, errors: Floats, level: float, seed: str) -> Floats:
    """Half widths for all queries of a part over one set, that hold at once with probability `level`.

    `errors`: their standard errors, products in any order; `seed`: any public text.
    """
    if isinstance(estimates, Modelled) and estimates.errors is not None:
        return estimates.errors.at_once(part, names, errors, level)
    assert isinstance(estimates, LeastSquaresEstimates)
    return joint_width(estimates, part, names, level, seed) * errors
