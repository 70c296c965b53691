"""OPT⊗: theorems 4 and 6 against explicit Kronecker products, and the descent against its starting points."""

import numpy as np
import pytest

from dpscale import Domain, Workload
from dpscale.optimize.convex import optimise
from dpscale.optimize.implicit_workload import implicit
from dpscale.optimize.opt_explicit import error_of, optimise_explicit, sensitivity
from dpscale.optimize.opt_kronecker import optimise_product
from dpscale.workload import FAMILIES, root_of
from dpscale.workload.residual import kron

DOMAIN = Domain({"a": 3, "b": 4, "c": 2})
NOISES = ("gaussian", "laplace")


def make_workload(parts) -> Workload:
    workload = Workload(DOMAIN)
    for family, sets in parts:
        workload.add(family, attributes=sets)
    return workload


UNION = make_workload([("prefix", [["a", "b"], ["b"]]), ("marginal", [["a", "c"], []]), ("range", [["b", "c"]])])


@pytest.mark.parametrize("noise", NOISES)
def test_optimise_explicit_error_equals_matrix(noise):
    gram = FAMILIES["prefix"].gram(12)
    found = optimise_explicit(gram, noise)
    assert sensitivity(found.matrix, noise) == pytest.approx(1.0)
    assert error_of(gram, found.matrix, noise) == pytest.approx(found.error, rel=1e-6)
    assert found.bound <= found.error
    total = optimise_explicit(np.full((4, 4), 3.0), noise)
    assert total.matrix.shape == (1, 4)
    assert total.error == total.bound == 3.0


def test_gaussian_opt0_reaches_certificate():
    """Gaussian OPT0 is the convex solver on the whole Gram matrix, within its gap."""
    for family, size, paper in (("range", 64, 9.73), ("prefix", 64, 8.87)):
        found = optimise_explicit(FAMILIES[family].gram(size), "gaussian")
        assert found.error / found.bound - 1 < 1e-6
        rmse = 4.224679 * np.sqrt(found.error / FAMILIES[family].count(size))
        assert rmse == pytest.approx(paper, abs=0.005)


@pytest.mark.parametrize("noise", NOISES)
def test_product_error_equals_kronecker_product(noise):
    """Theorems 4 and 6: the product formula is the error of the explicit Kronecker product."""
    rng = np.random.default_rng(3)
    factors = []
    for size in (3, 4, 2):
        factor = rng.normal(size=(size + 1, size))
        factors.append(factor / sensitivity(factor, noise))
    for workload in (make_workload([("prefix", [["a", "b", "c"]])]), UNION):
        union = implicit(workload)
        by_factors = sum(
            one.weight * np.prod([error_of(axis.gram, a, noise) for axis, a in zip(one.axes, factors, strict=True)])
            for one in union.products
        )
        assert by_factors == pytest.approx(error_of(union.gram(), kron(factors), noise))


@pytest.mark.parametrize("noise", NOISES)
def test_single_product_is_optimised_by_attribute(noise):
    union = implicit(Workload(DOMAIN).add("prefix", attributes=[["a", "b"]], weight=2.0))
    found = optimise_product(union, noise)
    alone = [optimise_explicit(FAMILIES["prefix"].gram(n), noise).error for n in (3, 4)]
    assert found.error == pytest.approx(2 * alone[0] * alone[1])
    assert error_of(union.gram(), kron(list(found.factors)), noise) == pytest.approx(found.error)
    if noise == "gaussian":  # the dual factors too, so it is the optimum over all strategies
        assert found.error == pytest.approx(optimise(root_of(union.gram())).primal, rel=1e-6)
        assert found.bound == pytest.approx(found.error, rel=1e-6)


@pytest.mark.parametrize("noise", NOISES)
def test_union_error_is_between_bound_and_identity(noise):
    union = implicit(UNION)
    found = optimise_product(union, noise)
    assert found.bound <= found.error <= error_of(union.gram(), np.eye(union.cells), noise) * (1 + 1e-9)
    assert all(sensitivity(factor, noise) == pytest.approx(1.0) for factor in found.factors)
    assert error_of(union.gram(), kron(list(found.factors)), noise) == pytest.approx(found.error, rel=1e-6)
    if noise == "gaussian":
        assert found.error >= optimise(root_of(union.gram())).dual


def test_each_receives_independent_tasks():
    seen = []

    def each(function, items):
        seen.append(len(items := list(items)))
        return [function(item) for item in items]

    union = implicit(UNION)
    assert optimise_product(union, "gaussian", each).error == optimise_product(union, "gaussian").error
    optimise_product(implicit(Workload(DOMAIN).add("prefix", attributes=[["a", "b"]])), "gaussian", each)
    assert seen == [3, 2]


def test_table_3_and_cps_error_are_reproduced():
    union = implicit(Workload(Domain({"a": 2, "b": 5, "c": 50, "d": 100})).add("marginal", degree=2))
    found = optimise_product(union, "laplace")
    assert found.error == pytest.approx(213_270, rel=2e-3)
    assert found.error <= 213_270 * 1.0005
    domain = Domain({"p": 50, "q": 100, "a": 7, "b": 4, "c": 2})
    workload = Workload(domain)
    for degree in range(6):
        workload.add("marginal", degree=degree)
    rmse = 4.224679 * np.sqrt(optimise_product(implicit(workload), "gaussian").error / workload.query_count)
    assert rmse == pytest.approx(7.8517, abs=1e-3)
