"""Unions of products against explicit query matrices."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale import Domain, Workload
from dpscale.base.errors import PlanError
from dpscale.optimize.implicit_workload import explicit_gram, implicit
from tests.messages import refused

DOMAIN = Domain({"a": 3, "unasked": 7, "b": 4, "c": 2})
FAMILIES = ("marginal", "prefix", "range", "circular")


def query_rows(workload: Workload, names: tuple[str, ...], relative: bool = False) -> np.ndarray:
    """Return every query as a row over the cells of `names`, scaled by the root of its weight, from answers to unit
    vectors.
    """
    sizes = workload.domain.shape(names)
    units = np.eye(int(np.prod(sizes))).reshape(-1, *sizes)
    found = []
    for part in workload.parts:
        for attributes, weight in zip(part.sets, part.weights, strict=True):
            if not weight:
                continue
            away = tuple(1 + i for i, name in enumerate(names) if name not in attributes)
            answers = np.stack([part.answers(attributes, unit).reshape(-1) for unit in units.sum(axis=away)], axis=1)
            norms = np.sqrt((answers**2).sum(axis=1, keepdims=True)) if relative else 1.0
            each = np.sqrt(part.query_weights(attributes))[:, None] if hasattr(part, "query_weights") else 1.0
            found.append(np.sqrt(weight) * each * answers / norms)
    return np.concatenate(found)


def make_workload(parts: list[tuple[str, int, float]]) -> Workload:
    workload = Workload(DOMAIN)
    for family, degree, weight in parts:
        sets = [s for s in ((), ("a",), ("b",), ("c",), ("a", "b"), ("c", "b"), ("a", "b", "c")) if len(s) == degree]
        workload.add(family, attributes=sets, weight=weight)
    return workload


@given(
    st.lists(
        st.tuples(st.sampled_from(FAMILIES), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0, 2.0])),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_gram_equals_explicit_queries(parts, relative):
    workload = make_workload(parts)
    if not workload.weighs:
        return
    union = implicit(workload, relative)
    names, gram = explicit_gram(workload, relative=relative)
    expected = query_rows(workload, names, relative)
    np.testing.assert_allclose(union.gram(), expected.T @ expected, atol=1e-9)
    np.testing.assert_allclose(gram, expected.T @ expected, atol=1e-9)
    assert union.names == names
    assert "unasked" not in names


@pytest.mark.parametrize("family", FAMILIES)
def test_relative_gram_has_unit_rows(family):
    domain = Domain({"a": 9})
    workload = Workload(domain).add(family, degree=1)
    expected = query_rows(workload, ("a",), relative=True)
    np.testing.assert_allclose(implicit(workload, relative=True).gram(), expected.T @ expected, atol=1e-12)


def test_equal_products_are_merged():
    workload = Workload(DOMAIN).add("marginal", degree=1).add("hybrid", attributes=[["c"]], numeric=["a"], weight=2.0)
    union = implicit(workload)
    assert sorted(product.weight for product in union.products) == [1.0, 1.0, 1.0, 3.0]
    assert {union.named(product) for product in union.products} == {("a",), ("b",), ("c",), ("unasked",)}


def test_subset_of_products_has_its_own_attributes():
    union = implicit(Workload(DOMAIN).add("prefix", degree=2))
    part = union.only(union.products[:1])
    assert part.names == union.named(union.products[0])
    assert part.cells == 21


def test_joint_families_need_explicit_gram():
    workload = Workload(DOMAIN).add("affine", attributes=[["a", "b"]]).add("random", attributes=[["c"]])
    with refused(PlanError):
        implicit(workload)
    names, gram = explicit_gram(workload)
    expected = query_rows(workload, names)
    np.testing.assert_allclose(gram, expected.T @ expected, atol=1e-9)
    with refused(PlanError):
        explicit_gram(workload, limit=5)


def test_one_attribute_families_are_products():
    workload = (
        Workload(DOMAIN).add("random", attributes=[["b"]]).add("prefix", attributes=[["b"]], weight=[[1, 2, 0, 4]])
    )
    workload.add_queries(["a"], np.array([[1.0, 0, 2], [0, 1, 1]]), [1.0, 3.0])
    expected = query_rows(workload, ("a", "b"))
    np.testing.assert_allclose(implicit(workload).gram(), expected.T @ expected, atol=1e-9)
