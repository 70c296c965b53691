from fractions import Fraction

import numpy as np
import pytest

from dpscale.mechanisms.aim.decision import residual_requests
from dpscale.privacy.streams import seeded_secret
from dpscale.workload.residual import Groups, center, every_cell, residual_of
from tests.measurement.small import measure_request

GROUPS = (Groups(6, (0, 2, 5)), every_cell(4))


def make_requests(beta=Fraction(1, 30), precisions=None, rows=1):
    return residual_requests(("x", "y"), GROUPS, precisions or {}, beta, rows, (3, 1))


@pytest.mark.parametrize("rows", [1, 3])
def test_request_costs_sum_to_beta(rows):
    for beta in (Fraction(1, 7), Fraction(1, 10**9), Fraction(123, 7)):
        spent = sum(order.draw.cost for order in make_requests(beta, rows=rows))
        assert beta * (1 - Fraction(1, 10**5)) < spent <= beta


def test_request_cost_is_p_over_variance():
    for order in make_requests():
        p = np.prod([1 - 1 / own.count for own in order.groups])
        assert float(order.draw.cost) == pytest.approx(p / order.variance, rel=1e-5)


def test_request_cost_equals_explicit_sensitivity():
    """Brute force over the explicit strategy of the request."""
    for order in make_requests():
        block, whole = order.block, np.ones((1, 1), dtype=int)
        for factor in block.factors:
            whole = np.kron(whole, factor.explicit())
        moved = int((whole.astype(object) ** 2).sum(axis=0).max())
        assert order.draw.cost == Fraction(order.draw.multiplier**2 * moved, order.draw.variance - 8)


def test_residual_noise_covariance_is_projector():
    rng = np.random.default_rng(0)
    counts = rng.poisson(20, size=(6, 4))
    order = make_requests(Fraction(1, 2))[-1]
    true = residual_of(np.add.reduceat(counts, (0, 2, 5), axis=0).astype(float), (0, 1))
    drawn = (
        np.array([measure_request(order, lambda names: counts, seeded_secret(s), order.label) for s in range(600)])
        - true
    )
    np.testing.assert_allclose(drawn.sum(axis=1), 0, atol=1e-9)
    projector = np.kron(*(center(np.eye(own.count), [0]) for own in order.groups))
    found = np.cov(drawn.reshape(600, -1).T) / order.variance
    assert np.trace(found) == pytest.approx(np.trace(projector), rel=0.1)
    assert np.abs(found - projector).max() < 0.15


def test_labels_of_different_measurements_differ():
    one, other = [o.label for o in make_requests()], [o.label for o in make_requests(Fraction(1, 31))]
    assert len({repr(record) for record in one + other}) == len(one) + len(other)
    assert one == [o.label for o in make_requests()]
