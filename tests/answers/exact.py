"""Estimates of a plan from an explicit table of counts, with noise that a test hands over, or none."""

from __future__ import annotations

import math

import numpy as np

import dpscale as dp
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.workload.residual import kron


def measurement_plan(domain, workload, mechanism="query-smasher"):
    """A plan of families over attribute sets: [("prefix", ("a",)), …]."""
    asked = dp.Workload(domain)
    for family, names in workload:
        asked.add(family, attributes=[names])
    return dp.plan(asked, mechanism=mechanism)


def estimates(plan, counts, noise=None):
    """`counts`: over the whole domain; `noise`: a generator that every block's is drawn from, at the planned scale."""
    domain, variances = plan.domain, np.asarray(plan.blocks.unit_variances, float)

    def read(index):
        block = plan.blocks[index]
        others = tuple(axis for axis, name in enumerate(domain.names) if name not in block.attributes)
        strategy = kron([factor.explicit().astype(float) for factor in block.factors])
        values = (strategy @ counts.sum(axis=others).reshape(-1)).reshape(block.rows)
        return values if noise is None else values + noise.normal(0, math.sqrt(variances[index]), block.rows)

    return LeastSquaresEstimates(plan, variances, read)
