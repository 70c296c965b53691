"""Simulated standard errors, against repeated runs on tables inside and outside the model."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from dpscale.domain import Domain
from dpscale.reconstruction import simulated_errors
from dpscale.reconstruction.consistency import NoisyCounts
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.joint_intervals import bonferroni
from dpscale.reconstruction.low_order import model_of
from dpscale.reconstruction.model_answers import BASE, ERRORS, FIRST_WEIGHTS, read_errors, write_errors
from dpscale.reconstruction.simulated_errors import (
    EVEN,
    SIMULATION_NOTE,
    Calibration,
    Departures,
    draw_count,
    simulate_errors,
)
from dpscale.workload import Workload
from dpscale.workload.residual import Groups, Residuals, center, coarsened, every_cell

SIZES = {"a": 4, "b": 5, "c": 3}
NAMES = tuple(SIZES)
GROUPS = {name: every_cell(size) for name, size in SIZES.items()}
CHAIN, WANTED = (("a", "b"), ("b", "c")), (("a", "c"),)


def marginalize(values, names):
    return values.sum(axis=tuple(i for i, name in enumerate(NAMES) if name not in names))


def draw_chain(rows, rng, interaction=0.0):
    """Draw records of a chain a — b — c, or with an interaction of all three."""
    law = rng.gamma(1.0, size=(4, 5))[:, :, None] * rng.gamma(1.0, size=(5, 3))[None]
    law = law * np.exp(interaction * rng.standard_normal((4, 5, 3)))
    return rng.multinomial(rows, (law / law.sum()).ravel()).reshape(4, 5, 3).astype(float)


def measure_pairs(values, deviation, pairs, rng, groups=GROUPS):
    counts = {name: NoisyCounts(marginalize(values, name) + rng.normal(0, 9, SIZES[name]), 81.0) for name in NAMES}
    observations = []
    for names in pairs:
        own = coarsened(marginalize(values, names), [groups[name] for name in names])
        observations.append((names, center(own + rng.normal(0, deviation, own.shape), (0, 1)), deviation**-2))
    residuals = Residuals({name: own.count for name, own in groups.items()}).updated(observations)
    return counts, residuals


def run_once(rng, interaction=0.0, deviation=9.0, rows=20_000):
    values = draw_chain(rows, rng, interaction)
    counts, residuals = measure_pairs(values, deviation, CHAIN, rng)
    model = model_of(counts, GROUPS, residuals, WANTED)
    return values, model, simulate_errors(model, counts, residuals, WANTED, draws=12)


def test_intervals_cover_records_of_the_model():
    covered, ratio, rng = [], [], np.random.default_rng(0)
    for _ in range(12):
        values, model, errors = run_once(rng)
        for names in [*combinations(NAMES, 2), NAMES]:
            off, own = model.marginal(names) - marginalize(values, names), errors.cell_errors(names)
            covered.append((np.abs(off) <= 1.96 * own).mean())
            ratio.append((own**2).mean() / (off**2).mean())
    assert 0.88 < np.mean(covered) < 0.99
    assert 0.6 < np.median(ratio) < 2


def test_error_without_unmeasured_part_is_too_small():
    """For cells of the triple, the variation of records given their pairs is the greater part of the error."""
    rng, with_it, without = np.random.default_rng(1), [], []
    for _ in range(8):
        values, model, errors = run_once(rng, deviation=2.0, rows=2000)
        off = np.abs(model.marginal(NAMES) - values)
        noise = [(replica.marginal(NAMES) - model.marginal(NAMES)) ** 2 for replica in errors.replicas]
        with_it.append((off <= 1.96 * errors.cell_errors(NAMES)).mean())
        without.append((off <= 1.96 * np.sqrt(np.mean(noise, axis=0))).mean())
    assert np.mean(with_it) > 0.88
    assert np.mean(without) < 0.7


def test_error_includes_shrunk_signal():
    """Independent attributes: the estimates and all replicas shrink the chance departures of the records."""
    rng, covered, forgotten = np.random.default_rng(11), [], []
    for _ in range(12):
        law = rng.gamma(3.0, size=4)[:, None, None] * rng.gamma(3.0, size=5)[:, None] * rng.gamma(3.0, size=3)
        values = rng.multinomial(20_000, (law / law.sum()).ravel()).reshape(4, 5, 3).astype(float)
        counts, residuals = measure_pairs(values, 40.0, CHAIN, rng)
        model = model_of(counts, GROUPS, residuals)
        errors = simulate_errors(model, counts, residuals, draws=12)
        off = np.abs(model.marginal(("a", "b")) - marginalize(values, ("a", "b")))
        assert 0.1 < errors.known["a", "b"] < 0.7
        whole = replace(errors, known=dict.fromkeys(errors.known, 1.0))
        covered.append((off <= 1.96 * errors.cell_errors(("a", "b"))).mean())
        forgotten.append((off <= 1.96 * whole.cell_errors(("a", "b"))).mean())
    assert np.mean(forgotten) < 0.9 < 0.92 < np.mean(covered)


def measure_sparse_table(rng, law):
    """Return a table with fewer records than cells, with measured pairs, its model, the errors of the triple and the
    part.
    """
    sizes = dict(zip(NAMES, law.shape, strict=True))
    values = rng.multinomial(1500, law.ravel()).reshape(law.shape).astype(float)
    counts = {name: NoisyCounts(marginalize(values, name) + rng.normal(0, 2, sizes[name]), 4.0) for name in NAMES}
    observations = [
        (names, center(marginalize(values, names) + rng.normal(0, 4, [sizes[n] for n in names]), (0, 1)), 1 / 16)
        for names in CHAIN
    ]
    groups = {name: every_cell(size) for name, size in sizes.items()}
    residuals = Residuals(sizes).updated(observations)
    model = model_of(counts, groups, residuals)
    workload = Workload(Domain(sizes)).add("marginal", attributes=(NAMES, ("a",)))
    return values, model, simulate_errors(model, counts, residuals, draws=8), workload.parts[0]


def test_simultaneous_widths_cover_sparse_cells():
    """Intervals of single cells do not cover all cells together."""
    rng = np.random.default_rng(12)
    law = rng.gamma(1.0, size=12)[:, None, None] * rng.gamma(0.5, size=10)[:, None] * rng.gamma(0.5, size=9)
    covered, plain, wide = [], [], []
    for _ in range(25):
        values, model, errors, part = measure_sparse_table(rng, law / law.sum())
        off, own = np.abs(model.marginal(NAMES) - values), errors.part_errors(part, NAMES)
        half = errors.simultaneous_widths(part, NAMES, own, 0.95)
        covered.append((off <= half).all())
        plain.append((off <= 1.96 * own).all())
        wide.append(half.max() / off.max())
        assert np.array_equal(
            half.transpose(2, 0, 1), errors.simultaneous_widths(part, NAMES, own.transpose(2, 0, 1), 0.95)
        )
    assert np.mean(plain) < 0.5 < 0.9 < np.mean(covered)
    assert np.median(wide) < 8


def test_one_way_widths_follow_bonferroni_and_the_mean_error():
    rng = np.random.default_rng(13)
    *_, errors, part = measure_sparse_table(rng, np.full((12, 10, 9), 1 / 1080))
    own = np.linspace(1.0, 3.0, 12)
    half = errors.simultaneous_widths(part, ("a",), own, 0.95)
    assert half == pytest.approx(bonferroni(0.95, 12) * np.sqrt(own**2 + EVEN**2 * (own**2).mean()), rel=1e-3)
    assert np.isnan(errors.simultaneous_widths(part, NAMES, np.full(4, np.nan), 0.95)).all()


def test_simultaneous_width_scales_with_query_entries():
    rng = np.random.default_rng(14)
    *_, errors, _ = measure_sparse_table(rng, np.full((12, 10, 9), 1 / 1080))
    queries = np.zeros((2, 12, 10))
    queries[:, 0, :4] = [[1], [-5]]
    part = Workload(Domain({"a": 12, "b": 10, "c": 9})).add_queries(("a", "b"), queries).parts[0]
    one, other = errors.simultaneous_widths(part, ("a", "b"), errors.part_errors(part, ("a", "b")), 0.95)
    assert other == pytest.approx(5 * one, rel=1e-6)


def test_unmeasured_interaction_is_excluded_and_note_says_so():
    covered = []
    rng = np.random.default_rng(2)
    for _ in range(4):
        values, model, errors = run_once(rng, interaction=1.0)
        covered.append((np.abs(model.marginal(NAMES) - values) <= 1.96 * errors.cell_errors(NAMES)).mean())
    assert np.mean(covered) < 0.6
    assert "not included" in SIMULATION_NOTE
    assert "less often than 95" in SIMULATION_NOTE


def test_cell_and_query_errors_agree_in_any_axis_order():
    rng = np.random.default_rng(3)
    *_, errors = run_once(rng)
    transposed, straight = errors.cell_errors(("c", "a")), errors.cell_errors(("a", "c"))
    np.testing.assert_allclose(transposed, straight.T)
    query = np.zeros((3, 4))
    query[1, 2] = 1
    assert errors.query_error(("c", "a"), query) == pytest.approx(transposed[1, 2], rel=0.15)


@pytest.mark.parametrize("grouped", [False, True])
def test_query_variance_equals_residual_of_measured_margins(grouped):
    """The oracle is weighted least squares on explicit indicator columns."""
    rng = np.random.default_rng(4)
    groups = GROUPS | ({"b": Groups(5, (0, 2, 4)), "a": Groups(4, (0, 1))} if grouped else {})
    values = draw_chain(5000, rng)
    counts, residuals = measure_pairs(values, 3.0, CHAIN, rng, groups)
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
    found = simulated_errors.query_variance(model, NAMES, query, CHAIN)
    assert found == pytest.approx((left**2).sum(), rel=0.02)
    assert simulated_errors.query_variance(model, ("c",), np.array([1.0, 0, 2]), CHAIN) == pytest.approx(0, abs=1e-9)


def test_draws_are_tasks_for_each():
    rng = np.random.default_rng(5)
    values = draw_chain(5000, rng)
    counts, residuals = measure_pairs(values, 5.0, CHAIN, rng)
    model, seen = model_of(counts, GROUPS, residuals), []

    def record_items(function, items):
        seen.extend(items)
        return [function(item) for item in items[::-1]][::-1]

    one, other = (
        simulate_errors(model, counts, residuals, each=record_items, draws=3),
        simulate_errors(model, counts, residuals, draws=3),
    )
    assert seen == [(0, 0), (0, 1), (0, 2)]
    np.testing.assert_array_equal(one.cell_errors(NAMES), other.cell_errors(NAMES))


def test_many_tables_have_fewer_draws():
    """The work of all draws is bounded for wide tables, and small problems are unchanged."""
    assert [draw_count(tables) for tables in (0, 1, 50_000, 80_000, 124_707, 10**7)] == [20, 20, 20, 12, 8, 8]
    values = draw_chain(5000, np.random.default_rng(5))
    counts, residuals = measure_pairs(values, 5.0, CHAIN, np.random.default_rng(6))
    model = model_of(counts, GROUPS, residuals)
    errors = simulate_errors(model, counts, residuals)
    assert len(errors.replicas) == 20
    few, some = replace(errors, replicas=errors.replicas[:8]), replace(errors, replicas=errors.replicas[:8] * 3)
    ratio = few.cell_components(NAMES).spread / some.cell_components(NAMES).spread
    np.testing.assert_allclose(ratio, (2.306 / 2.086) ** 2, rtol=1e-3)  # quantiles of Student's t


def draw_interactions(rows, rng, size, strength):
    """Draw records of `size` attributes of 3 values with pair effects and triple effects of a given strength."""
    law = np.ones((3,) * size)
    for subset in [*combinations(range(size), 2), *combinations(range(size), 3)]:
        lean = np.exp((0.3 if len(subset) == 2 else strength) * rng.standard_normal((3,) * len(subset)))
        law = law * lean.reshape([3 if axis in subset else 1 for axis in range(size)])
    return rng.multinomial(rows, (law / law.sum()).ravel()).reshape(law.shape).astype(float)


@pytest.mark.parametrize("strength", [0.0, 0.4])
def test_dispersion_predicts_error_of_unmeasured_triples(strength):
    """All pairs and half of the triples of five attributes are measured: the error of the others is about φ U."""
    rng, names = np.random.default_rng(6), tuple("abcde")
    sizes, groups = dict.fromkeys(names, 3), {name: every_cell(3) for name in names}
    values = draw_interactions(50_000, rng, 5, strength)
    exact = {subset: values.sum(axis=tuple(i for i, n in enumerate(names) if n not in subset))
             for size in (1, 2, 3) for subset in combinations(names, size)}  # fmt: skip
    triples = [subset for subset in exact if len(subset) == 3]
    observations = [
        (subset, center(exact[subset] + rng.normal(0, 5.0, exact[subset].shape), range(len(subset))), 1 / 25)
        for subset in [*(subset for subset in exact if len(subset) == 2), *triples[:8]]
    ]
    counts = {name: NoisyCounts(exact[name,] + rng.normal(0, 5.0, 3), 25.0) for name in names}
    residuals = Residuals(sizes).updated(observations)
    model = model_of(counts, groups, residuals)
    pairs = [subset for subset in exact if len(subset) == 2]
    needed = np.mean([((model.marginal(subset) - exact[subset]) ** 2).sum()
                      / simulated_errors.cell_variances(model, subset, pairs).sum()
                      for subset in triples[8:]])  # fmt: skip
    found = Departures.of(model, residuals)
    assert needed / 2 < found.larger < 3 * needed
    assert bool(needed > 20) is (strength > 0)
    assert Departures.of(model, Residuals(sizes).updated(observations[:7])) == Departures()


def indicator_rows(size, rng):
    return (rng.random((6, size)) < 0.5).astype(float)


@pytest.mark.parametrize("grouped", [False, True])
def test_product_variances_of_cells_equal_cell_variances(grouped):
    rng = np.random.default_rng(7)
    groups = GROUPS | ({"b": Groups(5, (0, 2, 4))} if grouped else {})
    model = model_of(*model_inputs(draw_chain(5000, rng), rng, groups))
    found = simulated_errors.product_variances(model, NAMES, [np.eye(size) for size in SIZES.values()], CHAIN)
    np.testing.assert_allclose(found, simulated_errors.cell_variances(model, NAMES, CHAIN), rtol=1e-5, atol=1e-5)
    for cell in [(0, 0, 0), (2, 3, 1), (3, 4, 2)]:
        query = np.zeros((4, 5, 3))
        query[cell] = 1
        assert found[cell] == pytest.approx(simulated_errors.query_variance(model, NAMES, query, CHAIN), rel=0.3)


def model_inputs(values, rng, groups, pairs=CHAIN):
    counts, residuals = measure_pairs(values, 5.0, pairs, rng, groups)
    return counts, groups, residuals


def test_product_variances_equal_projection_for_independence():
    rng = np.random.default_rng(8)
    model = model_of(*model_inputs(draw_chain(5000, rng), rng, GROUPS, ()))
    rows = [indicator_rows(size, rng) for size in SIZES.values()]
    found = simulated_errors.product_variances(model, NAMES, rows, ())
    for place in [(0, 0, 0), (1, 5, 2), (4, 3, 5)]:
        query = np.einsum("i,j,k->ijk", *(own[at] for own, at in zip(rows, place, strict=True)))
        assert found[place] == pytest.approx(
            simulated_errors.query_variance(model, NAMES, query, ()), rel=1e-3, abs=1e-9
        )
    pair = simulated_errors.product_variances(model, NAMES[:2], rows[:2], ())
    for place in [(0, 0), (1, 5), (4, 3)]:
        query = np.outer(rows[0][place[0]], rows[1][place[1]])
        assert pair[place] == pytest.approx(
            simulated_errors.query_variance(model, NAMES[:2], query, ()), rel=1e-6, abs=1e-9
        )


@pytest.mark.parametrize("grouped", [False, True])
def test_known_pair_is_removed_from_product_variance(grouped):
    """Independent attributes, for which parts of a query add up, and one completely known pair."""
    rng = np.random.default_rng(10)
    ones = {name: rng.dirichlet(np.ones(size)) * 1000 for name, size in SIZES.items()}
    groups = GROUPS | ({"b": Groups(5, (0, 2, 4))} if grouped else {})
    model = LowOrder(ones, groups, {}, 1000.0)
    rows = [indicator_rows(size, rng) for size in SIZES.values()]
    rows[1] = np.repeat(indicator_rows(3, rng), [2, 2, 1], axis=1) if grouped else rows[1]
    found = simulated_errors.product_variances(model, NAMES, rows, CHAIN[:1])
    for place in [(0, 0, 0), (1, 5, 2), (4, 3, 5)]:
        query = np.einsum("i,j,k->ijk", *(own[at] for own, at in zip(rows, place, strict=True)))
        exact = simulated_errors.query_variance(model, NAMES, query, CHAIN[:1])
        assert found[place] == pytest.approx(exact, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("family", ["marginal", "prefix", "range", "random"])
def test_part_errors_are_near_single_query_errors(family):
    rng = np.random.default_rng(9)
    *_, errors = run_once(rng)
    workload = Workload(Domain(SIZES)).add(family, degree=3)
    part = workload.parts[0]
    found = errors.part_errors(part, NAMES)
    answered = part.answers(NAMES, errors.model.marginal(NAMES))
    assert found.shape == answered.shape
    cells = np.eye(60).reshape(60, *SIZES.values())
    queries = np.array([part.answers(NAMES, cell).reshape(-1) for cell in cells]).T.reshape(-1, *SIZES.values())
    one_by_one = np.array([errors.query_error(NAMES, query) for query in queries[::7]])
    ratio = found.reshape(-1)[::7] / np.maximum(one_by_one, 1e-9)
    observations = one_by_one > 1
    assert np.median(ratio[observations]) == pytest.approx(1, rel=0.15)
    assert ratio[observations].max() < 2
    assert ratio[observations].min() > 0.4


def test_spread_of_cells_from_groups_equals_direct_spread():
    """Groups of several cells: the spread of a cell follows from its group and its share of the group."""
    rng = np.random.default_rng(15)
    groups = GROUPS | {"b": Groups(5, (0, 2, 4)), "a": Groups(4, (0, 1))}
    counts, own, residuals = model_inputs(draw_chain(20_000, rng), rng, groups)
    model = model_of(counts, own, residuals)
    errors = simulate_errors(model, counts, residuals, draws=200)
    direct = np.mean([(replica.marginal(NAMES) - model.marginal(NAMES)) ** 2 for replica in errors.replicas], axis=0)
    found = errors.cell_components(NAMES).spread
    large = direct > 1
    assert np.median(found[large] / direct[large]) == pytest.approx(1, rel=0.1)
    assert found.sum() == pytest.approx(direct.sum(), rel=0.1)


def test_completed_model_has_larger_errors():
    """Estimates that depart from the tables of the measurements are uncertain in proportion to this departure."""
    rng = np.random.default_rng(16)
    _, model, errors = run_once(rng)
    moved = replace(model, tables=model.tables | {("a", "c"): model.coarse_marginal(("a", "c"))[::-1].copy()})
    completed = replace(errors, model=moved)
    part = completed.cell_components(("a", "c")).completion
    assert part == pytest.approx((moved.marginal(("a", "c")) - model.marginal(("a", "c"))) ** 2)
    added = completed.cell_errors(("a", "c")) ** 2 - errors.cell_errors(("a", "c")) ** 2
    assert added == pytest.approx(errors.calibration.completion * part)


def test_written_errors_are_read_again_and_older_files_too(tmp_path):
    rng = np.random.default_rng(17)
    _, model, errors = run_once(rng)
    write_errors(tmp_path, errors)
    again = read_errors(tmp_path, model)
    assert again.departures == errors.departures
    np.testing.assert_array_equal(again.cell_errors(NAMES), errors.cell_errors(NAMES))
    other = replace(errors, calibration=Calibration(*FIRST_WEIGHTS))
    write_errors(tmp_path, other)
    assert read_errors(tmp_path, model).calibration == other.calibration != errors.calibration
    content = json.loads((tmp_path / ERRORS).read_text())
    older = {key: value for key, value in content.items() if key not in ("pairs", "larger", "weights")}
    older["dispersion"] = 4.0
    (tmp_path / ERRORS).write_text(json.dumps(older))
    (tmp_path / BASE).unlink()
    assert read_errors(tmp_path, model).departures == Departures(4.0)
    assert read_errors(tmp_path, model).calibration == other.calibration
    assert (read_errors(tmp_path, model).cell_errors(NAMES) > 0).all()
