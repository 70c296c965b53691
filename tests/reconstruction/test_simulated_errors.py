"""Errors by simulation, against repeated runs on tables that the model can and cannot tell."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from dpscale.domain import Domain
from dpscale.reconstruction import model_variance
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.joint_intervals import bonferroni
from dpscale.reconstruction.low_order import model_of
from dpscale.reconstruction.one_way import NoisyCounts
from dpscale.reconstruction.simulated_errors import SIMULATION_NOTE, dispersion, simulate_errors
from dpscale.workload import Workload
from dpscale.workload.residual import center
from dpscale.workload.residual.grem import Residuals
from dpscale.workload.residual.in_axis import Groups, coarsened, every_cell

SIZES = {"a": 4, "b": 5, "c": 3}
NAMES = tuple(SIZES)
GROUPS = {name: every_cell(size) for name, size in SIZES.items()}
CHAIN, WANTED = (("a", "b"), ("b", "c")), (("a", "c"),)


def margin(values, names):
    return values.sum(axis=tuple(i for i, name in enumerate(NAMES) if name not in names))


def chained(rows, rng, interaction=0.0):
    """Records of a — b — c, or with c leaning on both."""
    law = rng.gamma(1.0, size=(4, 5))[:, :, None] * rng.gamma(1.0, size=(5, 3))[None]
    law = law * np.exp(interaction * rng.standard_normal((4, 5, 3)))
    return rng.multinomial(rows, (law / law.sum()).ravel()).reshape(4, 5, 3).astype(float)


def measured(values, deviation, pairs, rng, groups=GROUPS):
    counts = {name: NoisyCounts(margin(values, name) + rng.normal(0, 9, SIZES[name]), 81.0) for name in NAMES}
    told = []
    for names in pairs:
        own = coarsened(margin(values, names), [groups[name] for name in names])
        told.append((names, center(own + rng.normal(0, deviation, own.shape), (0, 1)), deviation**-2))
    residuals = Residuals({name: own.count for name, own in groups.items()}).updated(told)
    return counts, residuals


def one_run(rng, interaction=0.0, deviation=9.0, rows=20_000):
    values = chained(rows, rng, interaction)
    counts, residuals = measured(values, deviation, CHAIN, rng)
    model = model_of(counts, GROUPS, residuals, WANTED)
    return values, model, simulate_errors(model, counts, residuals, WANTED, draws=12)


def test_intervals_hold_what_the_model_can_tell():
    held, ratio, rng = [], [], np.random.default_rng(0)
    for _ in range(12):
        values, model, errors = one_run(rng)
        for names in [*combinations(NAMES, 2), NAMES]:
            off, own = model.marginal(names) - margin(values, names), errors.cell_errors(names)
            held.append((np.abs(off) <= 1.96 * own).mean())
            ratio.append((own**2).mean() / (off**2).mean())
    assert 0.88 < np.mean(held) < 0.99
    assert 0.6 < np.median(ratio) < 2


def test_without_what_was_not_measured_they_would_be_far_too_narrow():
    """Cells of the triple: the chance of records given their pairs is the greater part of the error."""
    rng, with_it, without = np.random.default_rng(1), [], []
    for _ in range(8):
        values, model, errors = one_run(rng, deviation=2.0, rows=2000)
        off = np.abs(model.marginal(NAMES) - values)
        noise = [(replica.marginal(NAMES) - model.marginal(NAMES)) ** 2 for replica in errors.replicas]
        with_it.append((off <= 1.96 * errors.cell_errors(NAMES)).mean())
        without.append((off <= 1.96 * np.sqrt(np.mean(noise, axis=0))).mean())
    assert np.mean(with_it) > 0.88
    assert np.mean(without) < 0.7


def test_what_was_measured_and_drowned_is_in_it():
    """Independent attributes: estimates forget how the records happened to depart, and so do all replicas of them."""
    rng, held, forgotten = np.random.default_rng(11), [], []
    for _ in range(12):
        law = rng.gamma(3.0, size=4)[:, None, None] * rng.gamma(3.0, size=5)[:, None] * rng.gamma(3.0, size=3)
        values = rng.multinomial(20_000, (law / law.sum()).ravel()).reshape(4, 5, 3).astype(float)
        counts, residuals = measured(values, 40.0, CHAIN, rng)
        model = model_of(counts, GROUPS, residuals)
        errors = simulate_errors(model, counts, residuals, draws=12)
        off = np.abs(model.marginal(("a", "b")) - margin(values, ("a", "b")))
        assert 0.1 < errors.known["a", "b"] < 0.7
        whole = replace(errors, known=dict.fromkeys(errors.known, 1.0))
        held.append((off <= 1.96 * errors.cell_errors(("a", "b"))).mean())
        forgotten.append((off <= 1.96 * whole.cell_errors(("a", "b"))).mean())
    assert np.mean(forgotten) < 0.9 < 0.95 < np.mean(held)


def sparse(rng, law):
    """A table of far more cells than any of them has records, its pairs measured; and the triple's errors."""
    sizes = dict(zip(NAMES, law.shape, strict=True))
    values = rng.multinomial(1500, law.ravel()).reshape(law.shape).astype(float)
    counts = {name: NoisyCounts(margin(values, name) + rng.normal(0, 2, sizes[name]), 4.0) for name in NAMES}
    told = [(names, center(margin(values, names) + rng.normal(0, 4, [sizes[n] for n in names]), (0, 1)), 1 / 16)
            for names in CHAIN]  # fmt: skip
    groups = {name: every_cell(size) for name, size in sizes.items()}
    residuals = Residuals(sizes).updated(told)
    model = model_of(counts, groups, residuals)
    workload = Workload(Domain(sizes)).add("marginal", attributes=(NAMES, ("a",)))
    return values, model, simulate_errors(model, counts, residuals, draws=8), workload.parts[0]


def test_where_cells_are_sparse_all_hold_at_once_and_would_not_by_the_normal_law():
    rng = np.random.default_rng(12)
    law = rng.gamma(1.0, size=12)[:, None, None] * rng.gamma(0.5, size=10)[:, None] * rng.gamma(0.5, size=9)
    held, plain, wide = [], [], []
    for _ in range(25):
        values, model, errors, part = sparse(rng, law / law.sum())
        off, own = np.abs(model.marginal(NAMES) - values), errors.part_errors(part, NAMES)
        half = errors.simultaneous_widths(part, NAMES, own, 0.95)
        held.append((off <= half).all())
        plain.append((off <= bonferroni(0.95, off.size) * own).all())
        wide.append(half.max() / off.max())
        assert np.array_equal(
            half.transpose(2, 0, 1), errors.simultaneous_widths(part, NAMES, own.transpose(2, 0, 1), 0.95)
        )
    assert np.mean(plain) < 0.5 < 0.9 < np.mean(held)
    assert np.median(wide) < 5


def test_of_one_attribute_a_cell_is_held_as_far_off_as_any():
    rng = np.random.default_rng(13)
    *_, errors, part = sparse(rng, np.full((12, 10, 9), 1 / 1080))
    half = errors.simultaneous_widths(part, ("a",), np.array([1.0, 3.0, 2.0]), 0.95)
    assert half == pytest.approx(np.full(3, 3 * bonferroni(0.95, 3)))
    assert np.isnan(errors.simultaneous_widths(part, NAMES, np.full(4, np.nan), 0.95)).all()


def test_the_longer_a_query_s_entries_the_wider_it_is_at_once():
    rng = np.random.default_rng(14)
    *_, errors, _ = sparse(rng, np.full((12, 10, 9), 1 / 1080))
    queries = np.zeros((2, 12, 10))
    queries[:, 0, :4] = [[1], [-5]]
    part = Workload(Domain({"a": 12, "b": 10, "c": 9})).add_queries(("a", "b"), queries).parts[0]
    one, other = errors.simultaneous_widths(part, ("a", "b"), errors.part_errors(part, ("a", "b")), 0.95)
    assert other == pytest.approx(5 * one, rel=1e-6)


def test_an_interaction_that_nobody_measured_is_not_in_it_and_the_label_says_so():
    held = []
    rng = np.random.default_rng(2)
    for _ in range(4):
        values, model, errors = one_run(rng, interaction=1.0)
        held.append((np.abs(model.marginal(NAMES) - values) <= 1.96 * errors.cell_errors(NAMES)).mean())
    assert np.mean(held) < 0.6
    assert "not included" in SIMULATION_NOTE
    assert "less often than 95" in SIMULATION_NOTE


def test_a_cell_and_its_query_agree_in_any_order_of_axes():
    rng = np.random.default_rng(3)
    *_, errors = one_run(rng)
    turned, straight = errors.cell_errors(("c", "a")), errors.cell_errors(("a", "c"))
    np.testing.assert_allclose(turned, straight.T)
    query = np.zeros((3, 4))
    query[1, 2] = 1
    assert errors.query_error(("c", "a"), query) == pytest.approx(turned[1, 2], rel=0.15)


@pytest.mark.parametrize("grouped", [False, True])
def test_what_records_leave_open_is_their_variance_given_the_measured_margins(grouped):
    """Against weighted least squares on explicit indicator columns."""
    rng = np.random.default_rng(4)
    groups = GROUPS | ({"b": Groups(5, (0, 2, 4)), "a": Groups(4, (0, 1))} if grouped else {})
    values = chained(5000, rng)
    counts, residuals = measured(values, 3.0, CHAIN, rng, groups)
    model, query = model_of(counts, groups, residuals), rng.random((4, 5, 3))
    cells = model.marginal(NAMES)
    columns = []
    for names in [*CHAIN, ("a",), ("b",), ("c",)]:
        labels = [groups[n].labels if len(names) > 1 else np.arange(SIZES[n]) for n in names]
        grid = np.meshgrid(*(np.arange(size) for size in SIZES.values()), indexing="ij")
        keys = np.stack([own[grid[NAMES.index(n)]].ravel() for n, own in zip(names, labels, strict=True)])
        columns += [np.all(keys == key[:, None], axis=0) for key in np.unique(keys, axis=1).T]
    root = np.sqrt(cells.ravel())
    design, wanted = np.array(columns, dtype=float).T * root[:, None], query.ravel() * root
    left = wanted - design @ np.linalg.lstsq(design, wanted, rcond=None)[0]
    found = model_variance.query_variance(model, NAMES, query, CHAIN)
    assert found == pytest.approx((left**2).sum(), rel=0.02)
    assert model_variance.query_variance(model, ("c",), np.array([1.0, 0, 2]), CHAIN) == pytest.approx(0, abs=1e-9)


def test_draws_may_be_tasks():
    rng = np.random.default_rng(5)
    values = chained(5000, rng)
    counts, residuals = measured(values, 5.0, CHAIN, rng)
    model, seen = model_of(counts, GROUPS, residuals), []

    def each(function, items):
        seen.extend(items)
        return [function(item) for item in items[::-1]][::-1]

    one, other = (
        simulate_errors(model, counts, residuals, each=each, draws=3),
        simulate_errors(model, counts, residuals, draws=3),
    )
    assert seen == [(0, 0), (0, 1), (0, 2)]
    np.testing.assert_array_equal(one.cell_errors(NAMES), other.cell_errors(NAMES))


def four_way(rows, rng, size, strength):
    """Records of `size` attributes of 3 values, pairs and triples leaning as strongly as is said."""
    law = np.ones((3,) * size)
    for kept in [*combinations(range(size), 2), *combinations(range(size), 3)]:
        lean = np.exp((0.3 if len(kept) == 2 else strength) * rng.standard_normal((3,) * len(kept)))
        law = law * lean.reshape([3 if axis in kept else 1 for axis in range(size)])
    return rng.multinomial(rows, (law / law.sum()).ravel()).reshape(law.shape).astype(float)


@pytest.mark.parametrize("strength", [0.0, 0.4])
def test_sets_foretold_without_themselves_tell_how_far_others_are_off(strength):
    """All pairs and half of the triples of five attributes measured: the other half is off by about φ U."""
    rng, names = np.random.default_rng(6), tuple("abcde")
    sizes, groups = dict.fromkeys(names, 3), {name: every_cell(3) for name in names}
    values = four_way(50_000, rng, 5, strength)
    exact = {kept: values.sum(axis=tuple(i for i, n in enumerate(names) if n not in kept))
             for size in (1, 2, 3) for kept in combinations(names, size)}  # fmt: skip
    triples = [kept for kept in exact if len(kept) == 3]
    told = [(kept, center(exact[kept] + rng.normal(0, 5.0, exact[kept].shape), range(len(kept))), 1 / 25)
            for kept in [*(kept for kept in exact if len(kept) == 2), *triples[:8]]]  # fmt: skip
    counts = {name: NoisyCounts(exact[name,] + rng.normal(0, 5.0, 3), 25.0) for name in names}
    residuals = Residuals(sizes).updated(told)
    model = model_of(counts, groups, residuals)
    pairs = [kept for kept in exact if len(kept) == 2]
    needed = np.mean([((model.marginal(kept) - exact[kept]) ** 2).sum()
                      / model_variance.cell_variances(model, kept, pairs).sum() for kept in triples[8:]])  # fmt: skip
    found = dispersion(model, residuals)
    assert needed / 2 < found < 20 * needed
    assert bool(needed > 20) is (strength > 0)
    assert dispersion(model, Residuals(sizes).updated(told[:7])) == 1.0


def indicator_rows(size, rng):
    return (rng.random((6, size)) < 0.5).astype(float)


@pytest.mark.parametrize("grouped", [False, True])
def test_products_of_cells_are_the_cells(grouped):
    rng = np.random.default_rng(7)
    groups = GROUPS | ({"b": Groups(5, (0, 2, 4))} if grouped else {})
    model = model_of(*measured_parts(chained(5000, rng), rng, groups))
    found = model_variance.product_variances(model, NAMES, [np.eye(size) for size in SIZES.values()], CHAIN)
    np.testing.assert_allclose(found, model_variance.cell_variances(model, NAMES, CHAIN), atol=1e-9)
    for cell in [(0, 0, 0), (2, 3, 1), (3, 4, 2)]:
        query = np.zeros((4, 5, 3))
        query[cell] = 1
        assert found[cell] == pytest.approx(model_variance.query_variance(model, NAMES, query, CHAIN), rel=0.3)


def measured_parts(values, rng, groups, pairs=CHAIN):
    counts, residuals = measured(values, 5.0, pairs, rng, groups)
    return counts, groups, residuals


def test_products_of_independent_attributes_are_as_by_projection():
    rng = np.random.default_rng(8)
    model = model_of(*measured_parts(chained(5000, rng), rng, GROUPS, ()))
    rows = [indicator_rows(size, rng) for size in SIZES.values()]
    found = model_variance.product_variances(model, NAMES, rows, ())
    for place in [(0, 0, 0), (1, 5, 2), (4, 3, 5)]:
        query = np.einsum("i,j,k->ijk", *(own[at] for own, at in zip(rows, place, strict=True)))
        assert found[place] == pytest.approx(model_variance.query_variance(model, NAMES, query, ()), rel=1e-3, abs=1e-9)
    pair = model_variance.product_variances(model, NAMES[:2], rows[:2], ())
    for place in [(0, 0), (1, 5), (4, 3)]:
        query = np.outer(rows[0][place[0]], rows[1][place[1]])
        assert pair[place] == pytest.approx(
            model_variance.query_variance(model, NAMES[:2], query, ()), rel=1e-6, abs=1e-9
        )


@pytest.mark.parametrize("grouped", [False, True])
def test_of_a_known_pair_only_what_it_leaves_open_is_left(grouped):
    """Independent attributes, so that parts of a query add up, and one pair of which everything is known."""
    rng = np.random.default_rng(10)
    ones = {name: rng.dirichlet(np.ones(size)) * 1000 for name, size in SIZES.items()}
    groups = GROUPS | ({"b": Groups(5, (0, 2, 4))} if grouped else {})
    model = LowOrder(ones, groups, {}, 1000.0)
    rows = [indicator_rows(size, rng) for size in SIZES.values()]
    rows[1] = np.repeat(indicator_rows(3, rng), [2, 2, 1], axis=1) if grouped else rows[1]
    found = model_variance.product_variances(model, NAMES, rows, CHAIN[:1])
    for place in [(0, 0, 0), (1, 5, 2), (4, 3, 5)]:
        query = np.einsum("i,j,k->ijk", *(own[at] for own, at in zip(rows, place, strict=True)))
        exact = model_variance.query_variance(model, NAMES, query, CHAIN[:1])
        assert found[place] == pytest.approx(exact, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("family", ["marginal", "prefix", "range", "random"])
def test_errors_of_whole_parts_are_about_those_of_their_queries(family):
    rng = np.random.default_rng(9)
    *_, errors = one_run(rng)
    workload = Workload(Domain(SIZES)).add(family, degree=3)
    part = workload.parts[0]
    found = errors.part_errors(part, NAMES)
    answered = part.answers(NAMES, errors.model.marginal(NAMES))
    assert found.shape == answered.shape
    cells = np.eye(60).reshape(60, *SIZES.values())
    queries = np.array([part.answers(NAMES, cell).reshape(-1) for cell in cells]).T.reshape(-1, *SIZES.values())
    one_by_one = np.array([errors.query_error(NAMES, query) for query in queries[::7]])
    ratio = found.reshape(-1)[::7] / np.maximum(one_by_one, 1e-9)
    told = one_by_one > 1
    assert np.median(ratio[told]) == pytest.approx(1, rel=0.15)
    assert ratio[told].max() < 2
    assert ratio[told].min() > 0.4
