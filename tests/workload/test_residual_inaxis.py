import numpy as np
from hypothesis import given, strategies as st

from dpscale.workload.residual import center, centered, decompose, reconstruct, residual_of, smear, sub, subsets
from tests.oracles import decompose_all

shapes = st.lists(st.integers(2, 5), min_size=0, max_size=4).map(tuple)
AGE_EDUC = np.array([[7, 5, 2], [3, 5, 11], [10, 2, 11], [9, 18, 17]], dtype=float)


def test_worked_example_of_paper():
    """Every number of appendix A."""
    zeta = decompose_all(AGE_EDUC)
    assert zeta[()] == 100
    np.testing.assert_array_equal(zeta[(0,)], [5, 9, 30])
    np.testing.assert_array_equal(zeta[(1,)], [1, 12])
    np.testing.assert_array_equal(zeta[(0, 1)], [[4, 13], [-6, 6], [11, 13]])
    twelfths = {subset: 12 * reconstruct(value, subset, (4, 3)) for subset, value in zeta.items()}
    np.testing.assert_allclose(twelfths[()], np.full((4, 3), 100))
    np.testing.assert_allclose(twelfths[(0,)], np.repeat([[-44], [-24], [-8], [76]], 3, axis=1))
    np.testing.assert_allclose(twelfths[(1,)], np.repeat([[-13, -10, 23]], 4, axis=0))
    last = [[41, 14, -55], [-27, -6, 33], [41, -58, 17], [-55, 50, 5]]  # the text has 32: its row sums to zero with 33
    np.testing.assert_allclose(twelfths[(0, 1)], last)
    np.testing.assert_allclose(sum(twelfths.values()) / 12, AGE_EDUC)


@given(shapes, st.integers(0, 2), st.integers(0, 2**32))
def test_reconstruct_inverts_decompose(shape, lead, seed):
    batch = (2, 3)[:lead]
    data = np.random.default_rng(seed).normal(size=(*batch, *shape))
    parts = decompose_all(data, lead)
    total = sum(reconstruct(value, subset, shape, lead) for subset, value in parts.items())
    np.testing.assert_allclose(total, data, atol=1e-12)
    for subset in parts:
        np.testing.assert_allclose(decompose(total, subset, lead), parts[subset], atol=1e-10)


@given(shapes, st.integers(0, 2**32))
def test_both_residual_forms_agree(shape, seed):
    data = np.random.default_rng(seed).normal(size=shape)
    for subset in subsets(tuple(range(len(shape)))):
        theirs = reconstruct(decompose(data, subset), subset, shape)
        np.testing.assert_allclose(
            theirs, np.broadcast_to(smear(residual_of(data, subset), subset, shape), shape), atol=1e-12
        )


def test_centered_inverts_sub():
    values = center(np.random.default_rng(0).normal(size=(4, 5)), [1])
    np.testing.assert_allclose(centered(sub(values, 1), 1), values)
