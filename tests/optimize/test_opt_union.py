"""OPT+: shares against a numerical minimum, Table 3's example, and least squares over all groups."""

import numpy as np
import pytest
from scipy.optimize import minimize

from dpscale import Domain, Workload
from dpscale.optimize.implicit_workload import distinct_groupings, gather, implicit
from dpscale.optimize.opt_explicit import error_of, sensitivity
from dpscale.optimize.opt_kronecker import divide, optimise_union
from dpscale.workload.residual import kron

DOMAIN = Domain({"a": 3, "b": 4, "c": 2})
NOISES = ("gaussian", "laplace")


@pytest.mark.parametrize("noise", NOISES)
def test_divided_shares_are_optimal(noise):
    errors = np.array([3.0, 50.0, 0.2])
    power = 2 if noise == "laplace" else 1
    shares, total = divide(errors, noise)
    assert sum(shares) == pytest.approx(1.0)
    assert total == pytest.approx((errors / np.array(shares) ** power).sum())

    def split_error(logits: np.ndarray) -> float:
        parts = np.exp(logits) / np.exp(logits).sum()
        return float((errors / parts**power).sum())

    assert total == pytest.approx(minimize(split_error, np.zeros(3), tol=1e-12).fun, rel=1e-6)


def test_table_3_is_reproduced():
    union = implicit(Workload(Domain({"a": 2, "b": 5, "c": 50, "d": 100})).add("marginal", degree=2))
    alone = [(product,) for product in union.products]
    found = optimise_union(union, "laplace", groups=alone)
    assert found.error == pytest.approx(85_070, abs=1)
    assert sorted(round(share, 2) for share in found.shares) == [0.05, 0.11, 0.13, 0.14, 0.18, 0.39]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("noise", NOISES)
def test_least_squares_over_groups_is_within_bounds(noise):
    workload = (
        Workload(DOMAIN).add("prefix", attributes=[["a", "b"], ["b", "c"]]).add("marginal", attributes=[["c"], []])
    )
    union = implicit(workload)
    found = optimise_union(union, noise)
    rows = []
    for group, share in zip(found.groups, found.shares, strict=True):
        own = dict(zip(group.names, group.factors, strict=True))
        weight = share if noise == "laplace" else np.sqrt(share)
        sizes = zip(union.names, union.sizes, strict=True)
        rows.append(weight * kron([own.get(name, np.ones((1, size))) for name, size in sizes]))
    strategy = np.concatenate(rows)
    assert sensitivity(strategy, noise) <= 1 + 1e-9
    assert found.bound * (1 - 1e-9) <= error_of(union.gram(), strategy, noise) <= found.error * (1 + 1e-9)


def test_groupings_contain_every_product_once():
    union = implicit(Workload(DOMAIN).add("prefix", degree=1).add("marginal", degree=2).add("marginal", degree=0))
    for groups in distinct_groupings(union):
        assert sorted(p.keys for group in groups for p in group) == sorted(p.keys for p in union.products)
    assert len(gather(union)) == 3
    together = optimise_union(union, "gaussian", groups=[union.products])
    assert together.shares == (1.0,)


@pytest.mark.slow
def test_example_13_prefers_two_strategies():
    """Prefixes of either of two attributes: two strategies have a smaller error than one product."""
    domain = Domain({"a": 20, "b": 20})
    union = implicit(Workload(domain).add("prefix", degree=1))
    assert (
        optimise_union(union, "laplace").error < 0.6 * optimise_union(union, "laplace", groups=[union.products]).error
    )
