"""The SVD bound against explicit Gram matrices: theorems 5 and 12, and errors of random strategies."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale import Domain, Workload
from dpscale.optimize.implicit_workload import implicit
from dpscale.optimize.lower_bounds import eigenspaces, svd_bound, svd_of_gram
from dpscale.optimize.opt_explicit import error_of
from dpscale.optimize.opt_marginals import characteristic, dimensions, over_supersets
from dpscale.workload import FAMILIES
from tests.oracles import marginal_weights

DOMAIN = Domain({"a": 3, "b": 4, "c": 2})
FAMILY = st.sampled_from(["marginal", "circular", "prefix", "range"])


def svd_bound_by_definition(gram: np.ndarray) -> float:
    rows = np.linalg.cholesky(gram + 1e-13 * np.trace(gram) * np.eye(len(gram))).T
    return np.linalg.svd(rows, compute_uv=False).sum() ** 2 / len(gram)


def test_bound_of_product_is_product_of_bounds():
    """Theorem 5: the bound of a Kronecker product is the product of the bounds."""
    prefix, ranges = FAMILIES["prefix"].gram(5), FAMILIES["range"].gram(4)
    assert svd_of_gram(prefix) == pytest.approx(svd_bound_by_definition(prefix), rel=1e-5)
    assert svd_of_gram(np.kron(prefix, ranges)) == pytest.approx(svd_of_gram(prefix) * svd_of_gram(ranges))
    union = implicit(Workload(DOMAIN).add("prefix", degree=3))
    found = svd_bound(union)
    assert found.exact
    assert found.value == pytest.approx(svd_of_gram(union.gram()))


@pytest.mark.parametrize("family", ["marginal", "circular"])
def test_bound_of_commuting_unions_is_exact(family):
    workload = Workload(DOMAIN).add(family, degree=1, weight=2.0).add(family, degree=2).add("marginal", degree=3)
    union = implicit(workload)
    found = svd_bound(union)
    assert found.exact
    assert found.value == pytest.approx(svd_of_gram(union.gram()))


def test_bound_of_marginals_equals_theorem_12():
    union = implicit(Workload(DOMAIN).add("marginal", degree=1).add("marginal", degree=2, weight=3.0))
    weights, c = marginal_weights(union), characteristic(union.sizes)
    by_theorem = (dimensions(union.sizes) * np.sqrt(over_supersets(weights * c))).sum() ** 2 / union.cells
    assert svd_bound(union).value == pytest.approx(by_theorem)


@given(st.lists(st.tuples(FAMILY, st.integers(0, 3)), min_size=1, max_size=3), st.integers(0, 1 << 30))
@settings(max_examples=25, deadline=None)
def test_bound_is_valid_for_any_union(parts, seed):
    workload = Workload(DOMAIN)
    for family, degree in parts:
        workload.add(family, degree=degree)
    union = implicit(workload)
    found, exact = svd_bound(union), svd_of_gram(union.gram())
    assert found.value <= exact * (1 + 1e-9)
    if found.exact:
        assert found.value == pytest.approx(exact)
    strategy = np.random.default_rng(seed).normal(size=(union.cells + 2, union.cells)) + 2 * np.eye(
        union.cells + 2, union.cells
    )
    for noise in ("gaussian", "laplace"):
        assert error_of(union.gram(), strategy, noise) >= exact * (1 - 1e-9)


def test_common_eigenspaces_give_eigenvalues():
    grams = {"one": np.eye(6), "all": np.ones((6, 6)), "circular": FAMILIES["circular"].gram(6)}
    levels, dimension = eigenspaces(grams)
    assert dimension.sum() == 6
    for key, gram in grams.items():
        values = np.sort(np.repeat(levels[key], dimension.astype(int)))
        np.testing.assert_allclose(values, np.linalg.eigvalsh(gram), atol=1e-9)


def test_bounds_of_tables_6_and_7_are_reproduced():
    """CPS: 7.85 and 27.85 (Gaussian), 2.63 and 9.32 (Laplace)."""
    domain = Domain({"p": 50, "q": 100, "a": 7, "b": 4, "c": 2})
    marginals = Workload(domain)
    for degree in range(6):
        marginals.add("marginal", degree=degree)
    rest = [names for degree in range(4) for names in combinations("abc", degree)]
    prefixes = Workload(domain).add("hybrid", attributes=[("p", "q", *names) for names in rest], numeric=["p", "q"])
    for workload, gaussian, laplace in ((marginals, 7.85, 2.63), (prefixes, 27.85, 9.32)):
        found, count = svd_bound(implicit(workload)), workload.query_count
        assert found.exact
        assert 4.224679 * math.sqrt(found.value / count) == pytest.approx(gaussian, abs=0.006)
        assert math.sqrt(2 * found.value / count) == pytest.approx(laplace, abs=0.006)
