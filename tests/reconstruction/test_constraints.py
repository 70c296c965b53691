"""Functional dependencies and structural zeros in estimates, against brute force over small domains."""

import math
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale.domain.rules import FunctionalDependency, StructuralZero, closed, possible
from dpscale.reconstruction import entropy as constraints
from dpscale.reconstruction.entropy import (
    coarse_possible,
    constrained_pairs,
    determined_by_one,
    determined_over_groups,
    edges,
    possible_cells,
    reconcile_one_ways,
)
from dpscale.reconstruction.low_order import NoisyResidual, low_order
from dpscale.reconstruction.model_answers import read_model, write_model
from dpscale.workload.residual import Groups, by_mass, center, coarsened, every_cell

SIZES = {"town": 6, "region": 3, "x": 4}
WHOLE = {name: every_cell(size) for name, size in SIZES.items()}
REGION = FunctionalDependency("town", "region", (0, 0, 0, 1, 1, 2))
NEVER = StructuralZero((("x", frozenset({3})), ("region", frozenset({1, 2}))))
THREE = StructuralZero((("town", frozenset({0, 1})), ("region", frozenset({0})), ("x", frozenset({2}))))
names = st.permutations(list(SIZES))
follows = names.flatmap(
    lambda two: st.tuples(*[st.integers(-1, SIZES[two[1]] - 1)] * SIZES[two[0]]).map(
        lambda of: FunctionalDependency(two[0], two[1], of)
    )
)
excludes = names.flatmap(
    lambda chosen: st.integers(1, 3).flatmap(
        lambda count: st.tuples(
            *[st.tuples(st.just(n), st.frozensets(st.integers(0, SIZES[n] - 1), min_size=1)) for n in chosen[:count]]
        ).map(StructuralZero)
    )
)
runs = st.tuples(*[st.sets(st.integers(1, size - 1)) for size in SIZES.values()]).map(
    lambda cuts: {name: Groups(size, (0, *sorted(cut))) for (name, size), cut in zip(SIZES.items(), cuts, strict=True)}
)


def brute_force_possible(rules, attributes, groups):
    """Return the possible cells of groups, group by group and cell by cell."""
    mask = possible(rules, attributes, [SIZES[name] for name in attributes])
    out = np.zeros([groups[name].count for name in attributes], np.bool_)
    for cell in product(*(range(SIZES[name]) for name in attributes)):
        out[tuple(groups[name].labels[i] for name, i in zip(attributes, cell, strict=True))] |= mask[cell]
    return out


@settings(max_examples=60, deadline=None)
@given(st.lists(follows | excludes, max_size=3), names, st.integers(1, 3), runs)
def test_possible_groups_equal_brute_force(rules, attributes, count, groups):
    attributes = tuple(attributes[:count])
    assert (coarse_possible(rules, attributes, groups) == brute_force_possible(rules, attributes, groups)).all()


@settings(max_examples=60, deadline=None)
@given(follows, names, runs)
def test_dependency_is_applied_beyond_cell_limit(rule, attributes, groups):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraints, "MOST_CELLS", 0)
        assert (
            coarse_possible([rule], tuple(attributes), groups)
            == brute_force_possible([rule], tuple(attributes), groups)
        ).all()


def draw_one_ways(seed=0, total=1000.0):
    drawn = {name: np.random.default_rng(seed).random(size) + 0.2 for name, size in SIZES.items()}
    return {name: counts * total / counts.sum() for name, counts in drawn.items()}


def test_one_ways_of_dependency_are_combined_by_variance():
    """A dependent count is the mean of both by inverse variance (before scaling to the total); determinant shares
    stay.
    """
    before, variances = draw_one_ways(), {"town": 2.0, "region": 3.0, "x": 1.0}
    found = reconcile_one_ways(before, variances, (REGION,))
    sums = np.array([before["town"][[i for i in range(6) if REGION.of[i] == r]].sum() for r in range(3)])
    weights = 1 / 3.0, 1 / (2.0 * np.array([3, 2, 1]))
    joint = (before["region"] * weights[0] + sums * weights[1]) / (weights[0] + weights[1])
    assert found["region"] == pytest.approx(joint * 1000 / joint.sum())
    assert np.bincount(REGION.of, found["town"]) == pytest.approx(found["region"])
    assert found["town"][0] / found["town"][1] == pytest.approx(before["town"][0] / before["town"][1])
    assert found["x"] is before["x"]
    assert reconcile_one_ways(before, variances, ()) == before


def test_two_dependents_agree_with_their_determinant():
    coast = FunctionalDependency("town", "x", (0, 1, 2, 3, 0, 1))
    found = reconcile_one_ways(draw_one_ways(), dict.fromkeys(SIZES, 1.0), (REGION, coast))
    for rule in (REGION, coast):
        assert np.bincount(rule.of, found["town"]) == pytest.approx(found[rule.dependent])
    assert found["town"].sum() == pytest.approx(1000)


def test_two_determinants_and_chains_agree():
    """Two determinants of one attribute, and a chain of rules in either order."""
    other = FunctionalDependency("x", "region", (2, 0, 1, 0))
    found = reconcile_one_ways(draw_one_ways(), dict.fromkeys(SIZES, 1.0), (REGION, other))
    assert np.bincount(REGION.of, found["town"]) == pytest.approx(found["region"])
    assert np.bincount(other.of, found["x"]) == pytest.approx(found["region"])
    assert [one.sum() for one in found.values()] == pytest.approx([1000] * 3)
    coarser = FunctionalDependency("region", "x", (0, 1, 1))
    for rules in ((REGION, coarser), (coarser, REGION)):
        found = reconcile_one_ways(draw_one_ways(), dict.fromkeys(SIZES, 1.0), closed(rules))
        assert np.bincount(REGION.of, found["town"]) == pytest.approx(found["region"])
        assert np.bincount(coarser.of, found["region"], 4) == pytest.approx(found["x"], abs=1e-3)


def test_closed_rules_contain_chains_and_restrict_pairs():
    through = closed((REGION, FunctionalDependency("region", "x", (3, 0, 0))))[-1]
    assert through == FunctionalDependency("town", "x", (3, 3, 3, 0, 0, 0))
    assert closed((NEVER,)) == (NEVER,)
    coast = FunctionalDependency("town", "x", (0, 1, 2, 3, 0, 1))
    assert determined_by_one(closed((REGION, coast)), ("town", "region", "x"))
    assert not determined_by_one((REGION, coast), ("region", "x"))
    for groups in (WHOLE, {"town": Groups(6, (0, 4)), "region": Groups(3, (0, 2)), "x": Groups(4, (0, 1))}):
        own = reconcile_one_ways(draw_one_ways(), dict.fromkeys(SIZES, 1.0), (REGION, coast))
        model = low_order(
            own, groups, {}, rules=(REGION, coast, StructuralZero((("region", frozenset({0})), ("x", frozenset({3})))))
        )
        region = model.marginal(("region", "x"))
        cells = np.zeros((3, 4))
        np.add.at(cells, (REGION.of, coast.of), own["town"])
        assert groups is not WHOLE or region == pytest.approx(cells)
        assert model.marginal(("town", "region")).sum() == pytest.approx(1000)
        town = model.marginal(("town", "region", "x")).sum(axis=(1, 2))
        assert town == pytest.approx(own["town"], rel=1e-6 if groups is WHOLE else 0.05)


def test_impossible_values_have_nearly_no_records():
    found = reconcile_one_ways(draw_one_ways(), dict.fromkeys(SIZES, 1.0), (StructuralZero((("x", frozenset({1})),)),))
    assert found["x"][1] < 1e-3
    assert found["x"].sum() == pytest.approx(1000)


def fit_margins(table, margins, rounds=3000):
    """Fit a table to 1-way margins by plain iterative proportional fitting."""
    for _ in range(rounds):
        for axis, wanted in enumerate(margins):
            has = table.sum(axis=tuple(i for i in range(table.ndim) if i != axis), keepdims=True)
            shape = [-1 if i == axis else 1 for i in range(table.ndim)]
            table = table * np.divide(wanted.reshape(shape), has, out=np.zeros_like(has), where=has > 0)
    return table


def make_model(rules, groups=None, measured=None):
    own = reconcile_one_ways(draw_one_ways(), dict.fromkeys(SIZES, 1.0), rules)
    whole = {name: every_cell(size) for name, size in SIZES.items()}
    return low_order(own, groups or whole, measured or {}, list(combinations(SIZES, 2)), rules=rules)


def test_pairs_are_independent_over_possible_cells():
    model = make_model((REGION, NEVER))
    assert constrained_pairs(model.rules, list(SIZES)) == [("town", "region"), ("region", "x")]
    town = model.marginal(("town", "region"))
    assert town == pytest.approx(np.where(np.array(REGION.of)[:, None] == np.arange(3), town.sum(1, keepdims=True), 0))
    assert town.sum(axis=1) == pytest.approx(model.ones["town"])
    mask = possible(model.rules, ("region", "x"), (3, 4))
    entropy = fit_margins(mask.astype(float), [model.ones["region"], model.ones["x"]])
    assert model.marginal(("region", "x")) == pytest.approx(entropy, abs=1e-2)
    assert model.measured == {("town", "region")}  # as good as


@pytest.mark.parametrize("groups", [None, {"town": Groups(6, (0, 2, 4)), "region": Groups(3, (0, 2)),
                                           "x": Groups(4, (0, 3))}])  # fmt: skip
def test_marginals_are_zero_exactly_at_impossible_cells(groups):
    """Zeros that follow from several rules together are included."""
    model = make_model((REGION, NEVER, THREE), groups)
    every = possible(model.rules, list(SIZES), list(SIZES.values()))
    for size in (1, 2, 3):
        for attributes in combinations(SIZES, size):
            allowed = every.any(axis=tuple(axis for axis, name in enumerate(SIZES) if name not in attributes))
            for ordered in (attributes, attributes[::-1]):
                cells = model.marginal(ordered)
                assert cells.sum() == pytest.approx(1000)
                straight = cells if ordered == attributes else cells.T
                assert ((straight > 0) == allowed).all()


def test_possible_cells_preserve_group_totals():
    groups = {"town": Groups(6, (0, 2, 4)), "region": Groups(3, (0, 2))}
    cells = np.random.default_rng(1).random((6, 3))
    adjusted = possible_cells((REGION,), ("town", "region"), groups, draw_one_ways(), cells.copy())
    inside, mask = list(groups.values()), possible((REGION,), ("town", "region"), (6, 3))
    some = coarsened(mask.astype(int), inside) > 0
    share = coarsened(adjusted, inside)[some] / coarsened(cells, inside)[some]
    assert share == pytest.approx(share[0])
    assert adjusted.sum() == pytest.approx(1000)


def test_measured_pairs_obey_rules_and_dependent_pairs_follow():
    """Towns and x depend on each other; regions and x are not measured and follow from the region of each town."""
    rng = np.random.default_rng(3)
    own = reconcile_one_ways(draw_one_ways(total=1e5), dict.fromkeys(SIZES, 1.0), (REGION,))
    table = fit_margins(rng.random((6, 4)) ** 4, [own["town"], own["x"]])
    measured = {("town", "x"): NoisyResidual(center(table, (0, 1)), 1.0),
                ("town", "region"): NoisyResidual(rng.normal(0, 500, (6, 3)), 500.0)}  # fmt: skip
    whole = {name: every_cell(size) for name, size in SIZES.items()}
    model = low_order(own, whole, measured, list(combinations(SIZES, 2)), rules=(REGION,))
    region = np.array([table[np.array(REGION.of) == r].sum(axis=0) for r in range(3)])
    far = np.abs(region - np.multiply.outer(own["region"], own["x"]) / 1e5).sum()
    assert np.abs(model.marginal(("region", "x")) - region).sum() < 0.05 * far
    assert not model.marginal(("town", "region"))[~possible((REGION,), ("town", "region"), (6, 3))].any()
    without = replace(model, rules=())
    assert np.abs(without.marginal(("town", "region")) - model.marginal(("town", "region"))).sum() < 1e-6


def test_sets_determined_over_groups_are_recognised():
    aligned, mixed = WHOLE | {"town": Groups(6, (0, 3, 5))}, WHOLE | {"town": Groups(6, (0, 4))}
    for groups in (WHOLE, aligned):
        assert determined_over_groups((REGION,), ("town", "region"), groups)
        assert determined_over_groups((REGION,), ("region", "town", "x"), groups)
    assert not determined_over_groups((REGION,), ("town", "region", "x"), mixed)  # a group of towns in two regions
    assert determined_over_groups((REGION,), ("town", "region", "x"), mixed | {"region": Groups(3, (0,))})
    assert not determined_over_groups((REGION,), ("region", "x"), WHOLE)
    assert not determined_over_groups(
        (FunctionalDependency("town", "region", (0, 0, 0, 1, 1, -1)),), ("town", "region"), WHOLE
    )
    assert not determined_over_groups((NEVER,), ("region", "x"), WHOLE)


@pytest.mark.parametrize("of", [(0, 0, 0, 1, 1, 2), (2, 0, 1, 0, 0, 1)])
@settings(max_examples=20, deadline=None)
@given(runs)
def test_dependency_is_exact_for_any_groups(of, groups):
    rules = (FunctionalDependency("town", "region", of),)
    own = reconcile_one_ways(draw_one_ways(), dict.fromkeys(SIZES, 1.0), rules)
    model = low_order(own, groups, {}, rules=rules)
    expected = np.where(np.array(of)[:, None] == np.arange(3), own["town"][:, None], 0)
    assert model.marginal(("town", "region")) == pytest.approx(expected)
    assert model.marginal(("region", "town")) == pytest.approx(expected.T)


def test_groups_end_where_dependent_changes():
    assert edges((REGION, NEVER), "town") == {3, 5}
    assert edges((REGION,), "region") == frozenset()
    assert (
        edges((FunctionalDependency("town", "region", (0, 1, 0, 1, 2, 0)),), "town") == frozenset()
    )  # no runs of cells
    counts = np.full(6, 4.0)
    assert by_mass(counts, 10.0).starts == (0, 3)
    assert by_mass(counts, 14.0, frozenset({3})).starts == (0, 3)
    assert by_mass(counts, 14.0).starts == (0, 4)


def test_rules_round_trip_through_model_file(tmp_path):
    model = make_model((REGION, NEVER, THREE))
    write_model(tmp_path / "model.npz", model)
    found = read_model(tmp_path / "model.npz")
    assert found.rules == model.rules
    assert math.isclose(found.marginal(("town", "region", "x")).sum(), 1000)
