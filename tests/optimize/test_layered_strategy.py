"""Layered strategies for pure epsilon: error and gradient against dense forms, plans against OPT0 and hierarchies."""

import numpy as np
import pytest

import dpscale as dp
from dpscale.optimize.baselines import layered_tree
from dpscale.optimize.layered_strategy import LayeredProblem, divisions, optimise_layers
from dpscale.optimize.opt_explicit import p_identity_error
from dpscale.workload import CIRCULAR, PREFIX, RANGE

WIDE = 2100


@pytest.mark.parametrize("asked", [[(RANGE, 1.0)], [(PREFIX, 2.0), (CIRCULAR, 0.5)]])
@pytest.mark.parametrize("total", [0.0, 3.0])
@pytest.mark.parametrize(("size", "widths"), [(24, (4, 1)), (23, (6, 2, 1))])
def test_error_equals_dense_matrix(size, widths, asked, total):
    problem, rng = LayeredProblem(size, widths, asked, total), np.random.default_rng(0)
    weights, rows = np.array([0.5, 0.2, 0.3][: len(widths)]), rng.random((2, problem.blocks))
    weights /= weights.sum()
    value, _, _ = problem.error(rows, weights)

    cells = problem.blocks * widths[0]
    gram = sum(weight * family.gram(size) for family, weight in asked) + total * np.ones((size, size))
    stretch = np.sqrt(weights**2 @ np.array(widths) / widths[0])
    matrix = [np.repeat(row * stretch, widths[0]) for row in rows]
    for width, weight in zip(widths, weights, strict=True):
        matrix += [weight * (np.arange(cells) // width == node) for node in range(cells // width)]
    matrix = np.array(matrix)
    covariance = np.linalg.inv((matrix / matrix.sum(axis=0)).T @ (matrix / matrix.sum(axis=0)))[:size, :size]
    assert value == pytest.approx((gram * covariance).sum(), rel=1e-10)

    factor = problem.factor(rows, weights)
    found = sum(weight * factor.trace(family) for family, weight in asked)
    found += total * factor.apply_covariance(np.ones((1, size)))[0].sum()
    assert found * factor.l1_sensitivity**2 == pytest.approx(value, rel=1e-4)


def test_gradient_equals_differences():
    problem, rng, step = LayeredProblem(40, (8, 4, 1), [(RANGE, 1.0)]), np.random.default_rng(1), 1e-6
    rows, weights = rng.random((3, 5)), np.array([0.3, 0.3, 0.4])
    _, by_rows, by_weights = problem.error(rows, weights)
    for place in np.ndindex(3, 5):
        moved = np.zeros((3, 5))
        moved[place] = step
        known = (problem.error(rows + moved, weights)[0] - problem.error(rows - moved, weights)[0]) / (2 * step)
        assert by_rows[place] == pytest.approx(known, rel=1e-5, abs=1e-4)
    for level in range(3):
        moved = step * np.eye(3)[level]
        known = (problem.error(rows, weights + moved)[0] - problem.error(rows, weights - moved)[0]) / (2 * step)
        assert by_weights[level] == pytest.approx(known, rel=1e-5)


def test_error_of_a_descent_is_that_of_its_strategy():
    problem = LayeredProblem(40, (8, 4, 1), [(RANGE, 1.0)])
    value, rows, weights = problem.descend(np.full((2, problem.blocks), 0.1))
    assert value == pytest.approx(problem.error(rows, weights)[0])


def test_blocks_of_one_cell_are_p_identity():
    rows = np.random.default_rng(3).random((4, 30))
    value, by_rows, _ = LayeredProblem(30, (1,), [(PREFIX, 1.0)]).error(rows, np.ones(1))
    known, gradient = p_identity_error(PREFIX.gram(30), rows)
    assert value == pytest.approx(known)
    np.testing.assert_allclose(by_rows, gradient, rtol=1e-9)


@pytest.mark.parametrize("size", [2049, 4096, 8192, 70_000, 1_000_000, 1 << 22])
def test_divisions_cover_every_wide_axis(size):
    found = list(divisions(size))
    assert found
    assert all(widths[-1] == 1 and 160 <= -(-size // widths[0]) <= 640 for widths in found)


@pytest.mark.parametrize("family", [RANGE, PREFIX, CIRCULAR])
def test_strategy_is_below_every_uniform_hierarchy(family):
    found = optimise_layers(WIDE, [(family, 1.0)])
    error = found.trace(family) * found.l1_sensitivity**2
    trees = [layered_tree(WIDE, branching, root=False) for branching in range(2, 33)]
    assert error < 0.9 * min(tree.trace(family) * tree.l1_sensitivity**2 for tree in trees)


@pytest.mark.parametrize("mechanism", ["hdmm", "weighted-residuals", "auto"])
def test_mechanisms_take_a_wide_attribute(mechanism):
    workload = dp.Workload(dp.Domain({"age": WIDE})).add("range", degree=1).add("marginal", degree=0)
    made = dp.plan(workload, mechanism, noise="laplace")
    assert [factor.kind for block in made.blocks for factor in block.factors] == ["layered"]
    assert made.rmse() == pytest.approx(13.37, rel=0.02)  # OPT0 has 11.18 on 1,024 cells, 14.4 on 4,096
    (factor,) = made.blocks[0].factors
    total = factor.apply_covariance(np.ones((1, WIDE)))[0].sum()
    squares = (factor.trace(RANGE) + total) * 2 * factor.l1_sensitivity**2
    assert made.error == pytest.approx(squares, rel=1e-9)
