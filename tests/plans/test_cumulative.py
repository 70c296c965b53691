"""Cumulative strategies: the rational square root, the certified optimum, and the brute-force sensitivity."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from dpscale.optimize.convex import optimise
from dpscale.plans.blocks import Block
from dpscale.plans.factor import BITS, MOST, Factor, cumulative_factor
from dpscale.workload import FAMILIES
from tests.audit.composition import reaches


def brute_force_sensitivity(factor):
    """Return the largest squared change of the measurements when one record is added to a cell, in Python integers."""
    before = factor.explicit().astype(object) @ np.full(factor.cells, 3, dtype=object)
    most = 0
    for cell in range(factor.cells):
        counts = np.full(factor.cells, 3, dtype=object)
        counts[cell] += 1
        most = max(most, int(((factor.explicit().astype(object) @ counts - before) ** 2).sum()))
    return most


def strategy_error(family, factor):
    """Return tr(G (KᵀK)⁻¹) Δ² of a strategy."""
    rows = factor.matrix.astype(float)
    covariance = np.linalg.inv(rows.T @ rows)
    return float((FAMILIES[family].gram(factor.cells) * covariance).sum()) * factor.squared_l2_sensitivity


def test_squared_root_equals_prefix_matrix():
    root = [Fraction(comb(2 * k, k), 4**k) for k in range(40)]
    assert all(sum(root[i] * root[k - i] for i in range(k + 1)) == 1 for k in range(40))
    rows = cumulative_factor(40).matrix[:40]
    for i in range(40):
        for j in range(40):
            exact = root[i - j] * 2**BITS if i >= j else 0
            assert abs(int(rows[i, j]) - exact) <= Fraction(1, 2)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("size", [3, 4, 17, 60])
def test_sensitivity_equals_brute_force_and_columns_are_even(size, both):
    factor = cumulative_factor(size, both)
    assert brute_force_sensitivity(factor) == factor.squared_l2_sensitivity
    columns = (factor.matrix.astype(object) ** 2).sum(axis=0)
    assert min(columns) > 0.999 * max(columns)


@pytest.mark.parametrize("size", [3, 17, 120])
def test_audit_recomputes_strategy_digests_and_sensitivities(size):
    for both in (False, True):
        block = Block(("a",), (cumulative_factor(size, both),), 1.0)
        assert reaches(size)[block.digest] == block.squared_l2_sensitivity


def test_planted_sensitivity_of_first_column_is_detected():
    """Planted fault: one more row on the last cell, with the sensitivity of the strategy without it."""
    honest = cumulative_factor(9)
    late = np.zeros((1, 9), dtype=np.int64)
    late[0, -1] = 1 << BITS
    false = Factor("full", (9,), np.vstack([honest.matrix, late]))
    vars(false)["squared_l2_sensitivity"] = honest.squared_l2_sensitivity
    assert brute_force_sensitivity(false) > false.squared_l2_sensitivity


@pytest.mark.parametrize(("family", "most"), [("prefix", 1.02), ("range", 1.08), ("circular", 1.1)])
@pytest.mark.parametrize("size", [3, 10, 64])
def test_error_is_near_optimum(family, size, most):
    optimum = optimise(FAMILIES[family].matrix(size))
    factor = cumulative_factor(size, family != "prefix")
    assert 1 <= (strategy_error(family, factor) / optimum.dual) ** 0.5 < most


def test_largest_strategy_reduces_prefix_error():
    factor = cumulative_factor(MOST)
    assert factor.largest < 1 << BITS + 1
    assert strategy_error("prefix", factor) < 0.06 * FAMILIES["prefix"].trace(MOST), "noise of each cell by itself"
