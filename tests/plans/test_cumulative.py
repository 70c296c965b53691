"""The closed form against the exact rational root, the certified optimum, and every pair of neighbours."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from dpscale.audit.composition import reaches
from dpscale.optimize.convex import optimise
from dpscale.plans.blocks import Block
from dpscale.plans.factor import BITS, MOST, Factor, cumulative_factor
from dpscale.workload import FAMILIES


def moved(factor):
    """The most that one record, added to any cell, moves what is measured: squared, in Python's own integers."""
    before = factor.explicit().astype(object) @ np.full(factor.cells, 3, dtype=object)
    most = 0
    for cell in range(factor.cells):
        counts = np.full(factor.cells, 3, dtype=object)
        counts[cell] += 1
        most = max(most, int(((factor.explicit().astype(object) @ counts - before) ** 2).sum()))
    return most


def error(family, factor):
    """tr(G (KᵀK)⁻¹) Δ² of a strategy."""
    rows = factor.matrix.astype(float)
    covariance = np.linalg.inv(rows.T @ rows)
    return float((FAMILIES[family].gram(factor.cells) * covariance).sum()) * factor.squared_l2_sensitivity


def test_the_root_squared_is_the_matrix_of_prefixes():
    root = [Fraction(comb(2 * k, k), 4**k) for k in range(40)]
    assert all(sum(root[i] * root[k - i] for i in range(k + 1)) == 1 for k in range(40))
    rows = cumulative_factor(40).matrix[:40]
    for i in range(40):
        for j in range(40):
            exact = root[i - j] * 2**BITS if i >= j else 0
            assert abs(int(rows[i, j]) - exact) <= Fraction(1, 2)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("size", [3, 4, 17, 60])
def test_one_record_moves_it_by_its_sensitivity_and_every_column_has_nearly_that(size, both):
    factor = cumulative_factor(size, both)
    assert moved(factor) == factor.squared_l2_sensitivity
    columns = (factor.matrix.astype(object) ** 2).sum(axis=0)
    assert min(columns) > 0.999 * max(columns)


@pytest.mark.parametrize("size", [3, 17, 120])
def test_the_audit_knows_the_same_strategies_by_code_of_its_own(size):
    for both in (False, True):
        block = Block(("a",), (cumulative_factor(size, both),), 1.0)
        assert reaches(size)[block.digest] == block.squared_l2_sensitivity


def test_a_strategy_that_is_charged_by_its_first_column_would_be_caught():
    """Planted: one more late row, and the sensitivity of before."""
    honest = cumulative_factor(9)
    late = np.zeros((1, 9), dtype=np.int64)
    late[0, -1] = 1 << BITS
    false = Factor("full", (9,), np.vstack([honest.matrix, late]))
    vars(false)["squared_l2_sensitivity"] = honest.squared_l2_sensitivity
    assert moved(false) > false.squared_l2_sensitivity


@pytest.mark.parametrize(("family", "most"), [("prefix", 1.02), ("range", 1.08), ("circular", 1.1)])
@pytest.mark.parametrize("size", [3, 10, 64])
def test_its_error_is_near_that_of_the_optimum(family, size, most):
    optimum = optimise(FAMILIES[family].matrix(size))
    factor = cumulative_factor(size, family != "prefix")
    assert 1 <= (error(family, factor) / optimum.dual) ** 0.5 < most


def test_the_widest_is_worth_a_sixteenth_of_the_cells():
    factor = cumulative_factor(MOST)
    assert factor.largest < 1 << BITS + 1
    assert error("prefix", factor) < 0.06 * FAMILIES["prefix"].trace(MOST), "noise of each cell by itself"
