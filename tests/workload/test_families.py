import numpy as np
import pytest

from dpscale.workload import FAMILIES, Family, axis_of, wide
from tests.oracles import one_way_queries

SIZES = [2, 3, 5, 8]
ONE_WAY = [name for name, family in FAMILIES.items() if isinstance(family, Family)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ONE_WAY)
class TestClosedForms:
    def test_matrix_equals_reference(self, name, size):
        np.testing.assert_array_equal(FAMILIES[name].matrix(size), one_way_queries(name, size))

    def test_count_gram_and_means_equal_matrix(self, name, size):
        queries, family = one_way_queries(name, size), FAMILIES[name]
        assert family.count(size) == len(queries)
        np.testing.assert_allclose(family.gram(size), queries.T @ queries)
        np.testing.assert_allclose(family.means(size), queries.mean(axis=1))

    def test_quadratic_equals_diagonal(self, name, size):
        form = np.random.default_rng(size).normal(size=(size, size))
        form = form + form.T
        queries = one_way_queries(name, size)
        np.testing.assert_allclose(FAMILIES[name].quadratic(form), np.diag(queries @ form @ queries.T), atol=1e-12)

    def test_answers_along_any_axis_equal_matrix(self, name, size):
        values = np.random.default_rng(1).normal(size=(3, size, 4))
        expected = np.einsum("qn,anb->aqb", one_way_queries(name, size), values)
        np.testing.assert_allclose(FAMILIES[name].answers(values, 1), expected, atol=1e-12)

    def test_bounds_have_one_entry_per_query(self, name, size):
        for cells in FAMILIES[name].bounds(size):
            assert len(cells) == FAMILIES[name].count(size)

    def test_axis_restores_centred_gram(self, name, size):
        axis, queries = axis_of(FAMILIES[name], size), one_way_queries(name, size)
        centered = queries - queries.mean(axis=1, keepdims=True)
        np.testing.assert_allclose(axis.factor.gram * axis.weight, centered.T @ centered, atol=1e-10)
        assert axis.mean_square == pytest.approx((queries.mean(axis=1) ** 2).sum())


def test_families_have_equal_axis_at_size_two():
    keys = {axis_of(FAMILIES[name], 2).factor.key for name in ONE_WAY}
    assert len(keys) == 1


class Listed(Family):
    """Intervals of another family, without its closed forms."""

    name = "listed"
    has_intervals = True

    own: str

    def count(self, size):
        return FAMILIES[self.own].count(size)

    def answers(self, values, axis):
        return FAMILIES[self.own].answers(values, axis)

    def bounds(self, size):
        return FAMILIES[self.own].bounds(size)

    def intervals(self, size):
        return FAMILIES[self.own].intervals(size)


@pytest.mark.parametrize("name", ["marginal", "prefix", "range"])
def test_defaults_equal_closed_forms(name, monkeypatch):
    """Also on a wide axis, which is listed by intervals; a Gram matrix within blocks is equal once it is centred."""
    listed, family, size = Listed(own=name), FAMILIES[name], 23
    form = np.random.default_rng(0).normal(size=(size, size))
    assert listed.trace(size) == family.trace(size)
    for found, expected in (
        (listed.gram(size), family.gram(size)), (listed.unit_gram(size), family.unit_gram(size)),
        (listed.means(size), family.means(size)), (listed.quadratic(form + form.T), family.quadratic(form + form.T)),
        (listed.times_gram(form), family.times_gram(form)),
    ):  # fmt: skip
        np.testing.assert_allclose(found, expected, atol=1e-10)
    profile = np.random.default_rng(1).dirichlet(np.ones(size))
    assert listed.centred_trace(profile) == pytest.approx(family.centred_trace(profile), rel=1e-9)
    for dense in (8, 100):
        monkeypatch.setattr(wide, "DENSE", dense)
        cut = wide.even_cut(size, 5)
        np.testing.assert_allclose(listed.block_gram(cut), family.block_gram(cut), atol=1e-10)
        for run in cut.runs:
            keep = np.eye(run.size) - 1 / run.size
            found, expected = listed.inner_gram(cut, run), family.inner_gram(cut, run)
            np.testing.assert_allclose(keep @ found @ keep, keep @ expected @ keep, atol=1e-10)
            assert listed.inner_bound(cut, run) == pytest.approx(family.inner_bound(cut, run), rel=0.02)
