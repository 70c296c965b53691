"""Least-squares estimates of a plan from an explicit table of counts, without noise or with noise of a given
generator.
"""

from __future__ import annotations

import math

import numpy as np

import dpscale as dp
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.workload.residual import kron


def measurement_plan(domain, workload, mechanism="query-smasher"):
    """Return a plan of families over attribute sets, given as [("prefix", ("a",)), …]."""
    queries = dp.Workload(domain)
    for family, names in workload:
        queries.add(family, attributes=[names])
    return dp.plan(queries, mechanism=mechanism)


def estimates(plan, counts, noise=None, scale=1.0):
    """Return the estimates from `counts` over the whole domain, with Gaussian noise of `noise`.

    The noise has `scale` times the planned standard deviation.
    """
    domain, variances = plan.domain, scale**2 * np.asarray(plan.blocks.unit_variances, float)

    def read_block(index):
        block = plan.blocks[index]
        others = tuple(axis for axis, name in enumerate(domain.axis_names) if name not in block.attributes)
        strategy = kron([factor.explicit().astype(float) for factor in block.factors])
        values = (strategy @ counts.sum(axis=others).reshape(-1)).reshape(block.rows)
        return values if noise is None else values + noise.normal(0, math.sqrt(variances[index]), block.rows)

    return LeastSquaresEstimates(plan, variances, read_block)
