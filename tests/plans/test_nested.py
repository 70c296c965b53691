"""Nested strategies of wide axes, against their explicit matrices on small axes."""

from itertools import pairwise

import numpy as np
import pytest

from dpscale.plans.factor import Factor
from dpscale.plans.nested import NestedFactor
from dpscale.workload import FAMILIES, wide
from dpscale.workload.residual import centred, nearest_centred, profile_of, whole_weights
from tests.messages import refused


@pytest.fixture(autouse=True)
def few_cells(monkeypatch):
    """Lower the limits: axes are wide from nine cells and are cut into four blocks."""
    monkeypatch.setattr(wide, "DENSE", 8)
    monkeypatch.setattr(wide, "BLOCKS", 4)
    wide.runs_of.cache_clear()
    yield
    wide.runs_of.cache_clear()


def draw_centred_rows(weights, count, rng):
    rows = rng.integers(-5000, 5000, (count, len(weights)))
    return nearest_centred(rows, weights) if len(weights) > 2 else centred(rows[:1], weights)


def make_nested(size, seed=0, plain=False):
    """Return a random nested strategy of full rank, with random or, for `plain`, uniform weights."""
    rng = np.random.default_rng(seed)
    runs = wide.runs_of(size)
    count = sum(run.count for run in runs)
    within = [whole_weights(np.full(run.size, 1 / run.size) if plain else rng.dirichlet(np.full(run.size, 90.0)), 10)
              for run in runs]  # fmt: skip
    if plain:
        lengths = wide.cut_of(size, None)[0].lengths
        blocks, within = tuple(int(n) for n in lengths), [tuple([1] * run.size) for run in runs]
        weights = None
    else:
        blocks = whole_weights(rng.dirichlet(np.full(count, 9.0)), 10)
        owns = [own for run, own in zip(runs, within, strict=True) for _ in range(run.count)]
        weights = (tuple(b * w for b, own in zip(blocks, owns, strict=True) for w in own),)
    top = Factor("matrix", (count,), draw_centred_rows(blocks, count - 1, rng), (blocks,))
    inner = tuple(Factor("matrix", (len(own),), draw_centred_rows(own, len(own) - 1, rng), (own,)) for own in within)
    return NestedFactor("nested", (size,), weights=weights, top=top, inner=inner)


SIZES = [12, 13, 15, 22]
ONE_WAY = ("marginal", "prefix", "range", "circular")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("plain", [True, False])
def test_properties_equal_explicit_matrix(size, plain):
    factor = make_nested(size, plain=plain)
    matrix = factor.explicit()
    profile = profile_of(factor.weights[0] if factor.weights else None, size)
    assert np.abs(matrix @ profile).max() < 1e-9
    assert matrix.shape == (factor.rows, size) == (size - 1, size)
    assert np.linalg.matrix_rank(matrix) == size - 1
    assert factor.l1_sensitivity == np.abs(matrix).sum(axis=0).max()
    assert factor.squared_l2_sensitivity == (matrix**2).sum(axis=0).max()
    assert factor.largest == np.abs(matrix).max()
    assert factor.largest_row_sum == np.abs(matrix).sum(axis=1).max()


@pytest.mark.parametrize("size", SIZES)
def test_estimates_equal_explicit_least_squares(size):
    """The oracle is least squares for vectors with sum zero under the spread u."""
    factor, rng = make_nested(size, 1), np.random.default_rng(2)
    matrix, profile = factor.explicit().astype(float), profile_of(factor.weights[0], size)
    keep = np.eye(size) - np.outer(profile, np.ones(size))
    inverse = keep @ np.linalg.pinv(matrix)
    covariance = inverse @ inverse.T
    values, cells = rng.normal(size=(factor.rows, 2)), rng.normal(size=(3, size, 2))
    assert np.allclose(factor.estimate(values), np.moveaxis(inverse @ values, 0, -1))
    assert np.allclose(factor.estimate(values.T, 1), (inverse @ values).T)
    assert np.allclose(factor.inverse, inverse)
    assert np.allclose(factor.covariance, covariance)
    assert np.allclose(factor.apply_covariance(cells), np.tensordot(cells, covariance, axes=(1, 0)))
    assert factor.mean_variance == pytest.approx(np.diag(covariance).mean())
    assert np.allclose(factor.sums_covariance(np.arange(size + 1)), covariance)
    for name in ONE_WAY:
        assert np.allclose(factor.quadratics(FAMILIES[name]), FAMILIES[name].quadratic(covariance))
        assert factor.trace(FAMILIES[name]) == pytest.approx((FAMILIES[name].gram(size) * covariance).sum())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ONE_WAY)
def test_block_and_inner_grams_equal_cell_gram(size, name):
    rng = np.random.default_rng(3)
    cut = wide.Cut(size, tuple(rng.dirichlet(np.full(run.size, 5.0)) for run in wide.runs_of(size)))
    gram, ends = FAMILIES[name].gram(size), np.cumsum([0, *cut.lengths])
    spread = np.zeros((size, len(cut.lengths)))
    for block, (start, end) in enumerate(pairwise(ends)):
        spread[start:end, block] = cut.within[0 if block < cut.runs[0].count else 1]
        keep = np.eye(end - start) - np.outer(np.ones(end - start), spread[start:end, block])
        within = keep @ gram[start:end, start:end] @ keep.T
        expected = keep @ FAMILIES[name].inner_gram(cut, cut.runs[0 if block < cut.runs[0].count else 1]) @ keep.T
        assert np.allclose(within, expected)
    assert np.allclose(FAMILIES[name].block_gram(cut), spread.T @ gram @ spread)


@pytest.mark.parametrize("size", SIZES)
def test_strategy_that_spans_less_refuses_other_queries(size):
    """Without a row of the top strategy, pieces are projected on the rest; the oracle is K⁺K of the explicit matrix."""
    whole, rng = make_nested(size, 3), np.random.default_rng(4)
    top = Factor("matrix", whole.top.shape, whole.top.matrix[1:], whole.top.weights)
    factor = NestedFactor("nested", (size,), weights=whole.weights, top=top, inner=whole.inner)
    matrix, profile = factor.explicit().astype(float), profile_of(factor.weights[0], size)
    inside = rng.normal(size=(3, len(matrix))) @ matrix
    outside = rng.normal(size=(3, size))
    outside -= np.outer(outside @ profile, np.ones(size))
    assert np.allclose(factor.project(inside), inside)
    assert np.allclose(factor.project(outside), outside @ factor.inverse @ matrix)
    assert factor.spans(inside)
    assert not factor.spans(outside)
    assert whole.spans(outside)


def test_mismatched_parts_are_refused():
    factor = make_nested(13)
    for size in (14, 17):  # cells of the weights; sizes of the blocks
        with refused(ValueError):
            NestedFactor("nested", (size,), weights=factor.weights, top=factor.top, inner=factor.inner)


@pytest.mark.parametrize("kind", ["center", "identity"])
def test_long_implicit_factors_equal_explicit_covariance(kind):
    size = wide.LONG + 1
    factor, values = Factor(kind, (size,)), np.random.default_rng(1).normal(size=(2, size, 3))
    covariance = factor.covariance
    assert np.allclose(factor.apply_covariance(values), np.tensordot(values, covariance, axes=(1, 0)))
    assert factor.mean_variance == pytest.approx(np.diag(covariance).mean())
    ends = np.array([0, 3, 4, 200, size])
    sums = np.add.reduceat(np.add.reduceat(covariance, ends[:-1], axis=0), ends[:-1], axis=1)
    assert np.allclose(factor.sums_covariance(ends), sums)
    for name in ONE_WAY:
        assert np.allclose(factor.quadratics(FAMILIES[name]), FAMILIES[name].quadratic(covariance))
        assert factor.trace(FAMILIES[name]) == pytest.approx((FAMILIES[name].gram(size) * covariance).sum())
        assert FAMILIES[name].trace(size) == np.trace(FAMILIES[name].gram(size))


def test_contrasts_are_orthonormal_and_centred():
    rows = wide._contrasts(7)
    assert np.allclose(rows @ rows.T, np.eye(6))
    assert np.allclose(rows.sum(axis=1), 0)
