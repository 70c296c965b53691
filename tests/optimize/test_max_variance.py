"""The smallest maximum variance against Clarabel, with variances from explicit matrices."""

from itertools import combinations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from dpscale.optimize.opt_marginals import minimise_maximum
from dpscale.workload.residual import center, kron, subsets

SIZES = {"a": 2, "b": 5, "c": 9, "d": 3}
SETS = [(name,) for name in SIZES] + list(combinations(SIZES, 2))
WEIGHTS = [1, 1, 1, 1, 1, 2, 1, 1, 3, 1]


def residual_variance(attributes, subset) -> float:
    """Return the variance that the residual on `subset`, at privacy cost 1, adds to one cell of a marginal."""
    matrices = {name: center(np.eye(SIZES[name]), [0]) for name in subset}
    own = [matrices[name][:1] if name in subset else np.full((1, 1), 1 / SIZES[name]) for name in attributes]
    sensitivity = (kron([matrices[name] for name in subset] or [np.ones((1, 1))]) ** 2).sum(axis=0).max()
    return float((kron(own) ** 2).sum() * sensitivity)


def test_minimum_of_maximum_equals_clarabel():
    import cvxpy as cp

    residuals = sorted({subset for attributes in SETS for subset in subsets(attributes)})
    spread = np.zeros((len(SETS), len(residuals)))
    for row, (attributes, weight) in enumerate(zip(SETS, WEIGHTS, strict=True)):
        for subset in subsets(attributes):
            spread[row, residuals.index(subset)] = weight * residual_variance(attributes, subset)
    _, worst, bound = minimise_maximum(csr_matrix(spread))
    shares, most = cp.Variable(len(residuals)), cp.Variable()
    problem = cp.Problem(cp.Minimize(most), [spread @ cp.inv_pos(shares) <= most, cp.sum(shares) <= 1])
    assert worst == pytest.approx(problem.solve(solver=cp.CLARABEL), rel=1e-5)
    assert 1 <= worst / bound <= 1 + 1e-7
