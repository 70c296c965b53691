"""Symmetry blocks: they add up to the Gram matrix and do not change the optimum."""

import numpy as np
import pytest

from dpscale.optimize import convex
from dpscale.optimize.convex import SymmetryBlock, SymmetryBlocks, split
from dpscale.workload import FAMILIES, axis_of
from dpscale.workload.factors import compressed


def single_block(rows, shape) -> SymmetryBlocks:
    """Return one block without any symmetry."""
    return SymmetryBlocks((SymmetryBlock(compressed(rows), np.ones(rows.shape[1])),), np.arange(rows.shape[1]))


CASES = {
    "prefix": (axis_of(FAMILIES["prefix"], 9).factor.rows, (9,)),
    "range": (axis_of(FAMILIES["range"], 8).factor.rows, (8,)),
    "affine": (FAMILIES["affine"].queries((5, 5)).reshape(9, 25) - 0.5, (5, 5)),
    "abs": (FAMILIES["abs"].queries((6, 4)).reshape(6, 24), (6, 4)),
    "product": (
        np.kron(axis_of(FAMILIES["prefix"], 4).factor.rows, axis_of(FAMILIES["prefix"], 4).factor.rows),
        (4, 4),
    ),
    "nothing": (np.random.default_rng(0).normal(size=(7, 12)), (3, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_blocks_add_up_to_gram(name):
    rows, shape = CASES[name]
    blocks = split(rows, shape)
    total = sum(blocks.expand(b, b.rows).T @ blocks.expand(b, b.rows) for b in blocks.blocks)
    np.testing.assert_allclose(total, rows.T @ rows, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_optimum_does_not_depend_on_symmetry(name, monkeypatch):
    rows, shape = CASES[name]
    found = convex.optimise(rows, shape)
    monkeypatch.setattr(convex, "split", single_block)
    assert found.primal == pytest.approx(convex.optimise(rows, shape).primal, rel=1e-7)
    assert found.gap < 1e-8
    assert (found.root**2).sum(axis=0).max() == pytest.approx(1, abs=1e-9)


def test_symmetries_are_found():
    assert len(split(*CASES["product"]).blocks) == 4
    assert len(split(*CASES["prefix"]).blocks) == 2
    assert len(split(*CASES["nothing"]).blocks) == 1


def test_cells_with_equal_columns_are_one_orbit():
    """Also with opposite signs: the Gram matrix and the optimum are those of the distinct columns."""
    rng = np.random.default_rng(1)
    distinct = rng.normal(size=(5, 6))
    of, sign = rng.integers(0, 6, 30), rng.choice([-1.0, 1.0], 30)
    of[:6] = range(6)
    rows = distinct[:, of] * sign
    blocks = split(rows, (30,))
    (block,) = blocks.blocks
    np.testing.assert_array_equal(blocks.orbit[:, None] == blocks.orbit, of[:, None] == of)
    whole = blocks.expand(block, block.rows)
    np.testing.assert_allclose(whole.T @ whole, rows.T @ rows, atol=1e-12)

    merged = convex.optimise(rows, (30,))
    plain = convex.optimise_blocks(single_block(distinct, (6,)), 1e-9)
    assert merged.dual == pytest.approx(plain.dual, rel=1e-8)
    strategy = merged.root.T @ merged.root
    assert np.trace(rows @ np.linalg.pinv(strategy, hermitian=True) @ rows.T) == pytest.approx(merged.primal)


def test_one_query_has_the_square_of_its_largest_entry():
    """The strategy is the query itself, at the scale at which its largest entry is 1."""
    query = np.array([[0.3, -0.9, 0.2, 0.25]])
    found = convex.optimise(query, (4,))
    assert (found.primal, found.dual) == pytest.approx((0.81, 0.81))
    np.testing.assert_allclose(np.abs(found.root), np.abs(query) / 0.9)
