"""OPT⊗: theorems 4 and 6 against explicit Kronecker products, and the descent against its starting points."""

import numpy as np
import pytest

from dpscale import Domain, Workload
from dpscale.base.numerics import serial_map
from dpscale.optimize import opt_kronecker
from dpscale.optimize.convex import optimise
from dpscale.optimize.implicit_workload import implicit
from dpscale.optimize.opt_explicit import error_of, optimise_explicit, sensitivity
from dpscale.optimize.opt_kronecker import optimise_product, optimise_union
from dpscale.workload import FAMILIES, root_of
from dpscale.workload.residual import kron
from tests.selection import mostly_slow

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


def counting(seen):
    """Return a parallel map that notes the name and the number of its tasks, and runs them in reverse order."""

    def each(function, items):
        seen.append((function.task_name, len(items := list(items))))
        return [function(item) for item in items[::-1]][::-1]

    return each


@pytest.mark.parametrize("noise", mostly_slow(NOISES, {"gaussian"}))
def test_attributes_and_starts_of_a_sweep_are_independent_tasks(noise):
    """Ten products over eight attributes keep sixteen workers busy in every sweep, with the result of a serial run."""
    rng, seen = np.random.default_rng(0), []
    workload = Workload(Domain({f"x{i}": 4 + i for i in range(8)}))
    for number in range(10):
        names = [name for name in workload.domain.names if rng.random() < 0.6]
        workload.add("range" if number % 2 else "prefix", attributes=[names])
    union = implicit(workload)
    found, serial = optimise_product(union, noise, counting(seen)), optimise_product(union, noise)
    assert {name for name, _ in seen} == {"solve-attribute" if noise == "gaussian" else "solve-restart"}
    assert all(number >= 16 for _, number in seen[:2])
    assert found.error == serial.error
    for one, other in zip(found.factors, serial.factors, strict=True):
        np.testing.assert_array_equal(one, other)


def test_equal_problems_are_solved_once_across_groups():
    """Three attributes of one size with one family are one problem in all groups of OPT+."""
    seen = []
    union = implicit(Workload(Domain({"a": 9, "b": 9, "c": 9})).add("prefix", degree=2))
    optimise_union(union, "gaussian", counting(seen), groups=[(product,) for product in union.products])
    assert seen == [("solve-attribute", 1)]


@pytest.mark.parametrize("noise", NOISES)
def test_descent_ends_at_a_coordinate_optimum(noise):
    """No attribute's surrogate has a better solution at the end, by the solver itself from the last strategy."""
    union = implicit(UNION)
    found = optimise_product(union, noise)
    inverses = [np.linalg.pinv(one.T @ one, hermitian=True) for one in found.factors]
    for axis in range(len(union.sizes)):
        gram = 0.0
        for product in union.products:
            prices = [float((one.gram * own).sum()) for one, own in zip(product.axes, inverses, strict=True)]
            gram = gram + product.weight * np.prod(np.delete(prices, axis)) * product.axes[axis].gram
        best = optimise_explicit(gram, noise, starts=6)
        assert best.error >= found.error * (1 - 1e-3)


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


@pytest.mark.parametrize("noise", NOISES)
def test_sweep_refuses_worse_strategies(noise):
    """Solutions of other costs are taken only if they decrease the error at the present ones."""
    union = implicit(UNION)
    descent = opt_kronecker._SweepDescent(union, noise, 0)
    opt_kronecker.run_descents([descent], serial_map)
    before = descent.strategy.error
    bad = [optimise_explicit(np.diag(10.0 ** np.arange(size)), noise) for size in union.sizes]
    descent.advance(bad)
    assert descent.strategy.error <= before
