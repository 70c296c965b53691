import numpy as np
from hypothesis import given, strategies as st

from dpscale.workload.residual import center, piece, residual_of, smear, subsets

shapes = st.lists(st.integers(2, 5), min_size=0, max_size=4).map(tuple)


def draw_array(shape, seed):
    return np.random.default_rng(seed).normal(size=shape)


def test_subsets_are_ordered_by_size():
    assert subsets(("a", "b")) == [(), ("a",), ("b",), ("a", "b")]


@given(shapes, st.integers(0, 2**32))
def test_pieces_answer_query_from_marginals(shape, seed):
    """query · marginal(A) = Σ piece(A') · marginal(A') for any query and data."""
    query, data = draw_array(shape, seed), draw_array(shape, seed + 1)
    axes = tuple(range(len(shape)))
    total = 0.0
    for subset in subsets(axes):
        others = tuple(axis for axis in axes if axis not in subset)
        total += float((piece(query, subset) * data.sum(axis=others)).sum())
    assert np.isclose(total, (query * data).sum())


@given(shapes, st.integers(0, 2**32))
def test_smeared_residuals_sum_to_marginal(shape, seed):
    data = draw_array(shape, seed)
    axes = tuple(range(len(shape)))
    total = sum(smear(residual_of(data, subset), subset, shape) for subset in subsets(axes))
    np.testing.assert_allclose(np.broadcast_to(total, shape), data, atol=1e-12)


@given(shapes, st.integers(0, 2**32))
def test_residual_spaces_are_orthogonal(shape, seed):
    one, other = draw_array(shape, seed), draw_array(shape, seed + 1)
    spaces = subsets(tuple(range(len(shape))))
    for left in spaces:
        for right in spaces:
            if left != right:
                a = smear(residual_of(one, left), left, shape)
                b = smear(residual_of(other, right), right, shape)
                assert abs((a * b).sum()) < 1e-9


def test_piece_leaves_leading_axes_unchanged():
    batch = draw_array((6, 3, 4), 0)
    for subset in ((), (0,), (1,), (0, 1)):
        together = piece(batch, subset, lead=1)
        for one, query in zip(together, batch, strict=True):
            np.testing.assert_allclose(one, piece(query, subset))


def test_centred_array_has_zero_mean():
    np.testing.assert_allclose(center(draw_array((3, 4), 1), [0, 1]).sum(axis=0), 0, atol=1e-12)
