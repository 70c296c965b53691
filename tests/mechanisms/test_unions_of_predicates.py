"""Unions of products of predicates: the plan has at most the error of the search, and its variances are exact.

The strategies of such products span only part of a residual, so an average of whole residuals over blocks can be worse
than one block alone.
"""

from itertools import product

import numpy as np
import pytest

import dpscale as dp
from dpscale import Domain, Workload
from dpscale.optimize.implicit_workload import implicit
from dpscale.optimize.opt_kronecker import optimise_union
from dpscale.plans.accuracy_base import CoupledResiduals
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from tests.selection import mostly_slow

NIGHTLY = 500
QUICK = [(seed, "gaussian") for seed in (*range(8), 13)]
ROUNDING = 1e-5  # of the strategies on the lattice, and of directions that no query needs
NAMES = "abcd"


def random_predicates(rng, name: str, size: int):
    """Return queries of one attribute: its cells, or one to four intervals."""
    if rng.random() < 0.3:
        return "identity"
    ends = np.sort(rng.integers(0, size, (rng.integers(1, 5), 2)), axis=1)
    return [f"{name} in {low}..{high}" for low, high in ends.tolist()]


def random_union(seed: int, largest: int = 11) -> Workload:
    """Return two to four products, each on one to three of the attributes."""
    rng = np.random.default_rng(seed)
    sizes = {name: int(rng.integers(2, largest + 1)) for name in NAMES[: rng.integers(2, 5)]}
    workload = Workload(Domain(sizes))
    for _ in range(rng.integers(2, 5)):
        chosen = rng.choice(list(sizes), rng.integers(1, min(len(sizes), 3) + 1), replace=False).tolist()
        predicates = {name: random_predicates(rng, name, sizes[name]) for name in chosen}
        workload = workload.add("product", predicates=predicates, weight=float(rng.integers(1, 4)))
    return workload


@pytest.mark.parametrize("case", mostly_slow(product(range(NIGHTLY), ("gaussian", "laplace")), QUICK))
def test_plan_has_at_most_the_error_of_the_search(case):
    seed, noise = case
    workload = random_union(seed)
    searched = optimise_union(implicit(workload), noise).error * (2 if noise == "laplace" else 1)
    plan = dp.plan(workload, mechanism="hdmm", noise=noise, way="union")
    assert plan.error <= searched * (1 + ROUNDING)


def test_averages_of_whole_residuals_alone_exceed_the_search(monkeypatch):
    """The check above finds the fault that it guards against."""
    monkeypatch.setattr(CoupledResiduals, "_able_alone", range(0))
    workload = random_union(13)
    plan = dp.plan(workload, mechanism="hdmm", way="union")
    assert plan.error > 100 * optimise_union(implicit(workload), "gaussian").error


@pytest.mark.parametrize("seed", range(6))
def test_variances_equal_the_coefficients_of_the_estimates(seed):
    """The variance of an answer is the sum of squared coefficients of the measured values, times their variances."""
    workload = random_union(seed, largest=4)
    plan = dp.plan(workload, mechanism="hdmm", way="union")
    variances = plan.blocks.unit_variances
    zero = [np.zeros(block.rows) for block in plan.blocks]
    for part in workload.parts:
        for names in part.sets:
            total = 0.0
            for index, block in enumerate(plan.blocks):
                for place in np.ndindex(block.rows):
                    values = [array.copy() for array in zero]
                    values[index][place] = 1.0
                    estimates = LeastSquaresEstimates(plan, variances.tolist(), values.__getitem__)
                    total = total + variances[index] * np.asarray(estimates.span_answers(part, names)) ** 2
            np.testing.assert_allclose(plan.accuracy.part_variances(part, names), total, rtol=1e-6)


def test_exact_counts_are_answered_exactly():
    workload = random_union(3)
    plan = dp.plan(workload, mechanism="hdmm", way="union")
    counts = np.random.default_rng(0).integers(0, 50, workload.domain.shape(workload.domain.names)).astype(float)

    def read(index: int) -> np.ndarray:
        block = plan.blocks[index]
        outside = tuple(axis for axis, name in enumerate(workload.domain.names) if name not in block.attributes)
        values = counts.sum(axis=outside)
        for axis, factor in enumerate(block.factors):
            values = np.moveaxis(np.tensordot(factor.explicit(), values, axes=(1, axis)), 0, axis)
        return values

    estimates = LeastSquaresEstimates(plan, plan.blocks.unit_variances.tolist(), read)
    for part in workload.parts:
        for names in part.sets:
            axes = tuple(axis for axis, name in enumerate(workload.domain.names) if name not in names)
            exact = part.answers(names, counts.sum(axis=axes))
            np.testing.assert_allclose(estimates.part_answers(part, names)[0], exact, atol=1e-3)
            query = part.queries(names)[0]
            answer, error = estimates.answer(names, query)
            assert answer == pytest.approx(float((query * counts.sum(axis=axes)).sum()), abs=1e-3)
            assert error <= estimates.part_answers(part, names)[1].max() * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_error_of_all_products_is_that_of_the_single_ones(seed):
    """Products on the same attributes are evaluated at once; the variances of the answers of each are exact."""
    workload = random_union(seed).add("prefix", degree=1, weight=0.5)
    accuracy = dp.plan(workload, mechanism="hdmm", way="union").accuracy
    single = sum(
        weight * accuracy.part_variances(part, names).sum()
        for part in workload.parts
        for names, weight in zip(part.sets, part.weights, strict=True)
    )
    assert accuracy.total_error(workload) == pytest.approx(single, rel=1e-7)  # directions that no query needs
