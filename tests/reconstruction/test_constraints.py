"""What the domain says beforehand, in estimates: against brute force over small domains."""

import math
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale.domain.structural_zeros import FunctionalDependency, StructuralZero, closed, possible
from dpscale.reconstruction import constraints
from dpscale.reconstruction.constraints import (
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
from dpscale.workload.residual import center
from dpscale.workload.residual.in_axis import Groups, by_mass, coarsened, every_cell

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


def brute(rules, asked, groups):
    """Group by group and cell by cell."""
    told = possible(rules, asked, [SIZES[name] for name in asked])
    out = np.zeros([groups[name].count for name in asked], np.bool_)
    for cell in product(*(range(SIZES[name]) for name in asked)):
        out[tuple(groups[name].labels[i] for name, i in zip(asked, cell, strict=True))] |= told[cell]
    return out


@settings(max_examples=60, deadline=None)
@given(st.lists(follows | excludes, max_size=3), names, st.integers(1, 3), runs)
def test_groups_that_may_hold_somebody(rules, asked, count, groups):
    asked = tuple(asked[:count])
    assert (coarse_possible(rules, asked, groups) == brute(rules, asked, groups)).all()


@settings(max_examples=60, deadline=None)
@given(follows, names, runs)
def test_what_follows_is_known_of_large_sets_too(rule, asked, groups):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraints, "MOST_CELLS", 0)
        assert (coarse_possible([rule], tuple(asked), groups) == brute([rule], tuple(asked), groups)).all()


def ones(seed=0, total=1000.0):
    drawn = {name: np.random.default_rng(seed).random(size) + 0.2 for name, size in SIZES.items()}
    return {name: counts * total / counts.sum() for name, counts in drawn.items()}


def test_the_counts_of_towns_and_regions_tell_of_each_other():
    """A region is the mean of both by inverse variance (before the sum of all is met); its towns share as before."""
    before, variances = ones(), {"town": 2.0, "region": 3.0, "x": 1.0}
    found = reconcile_one_ways(before, variances, (REGION,))
    sums = np.array([before["town"][[i for i in range(6) if REGION.of[i] == r]].sum() for r in range(3)])
    weights = 1 / 3.0, 1 / (2.0 * np.array([3, 2, 1]))
    joint = (before["region"] * weights[0] + sums * weights[1]) / (weights[0] + weights[1])
    assert found["region"] == pytest.approx(joint * 1000 / joint.sum())
    assert np.bincount(REGION.of, found["town"]) == pytest.approx(found["region"])
    assert found["town"][0] / found["town"][1] == pytest.approx(before["town"][0] / before["town"][1])
    assert found["x"] is before["x"]
    assert reconcile_one_ways(before, variances, ()) == before


def test_two_parents_agree_with_their_child():
    coast = FunctionalDependency("town", "x", (0, 1, 2, 3, 0, 1))
    found = reconcile_one_ways(ones(), dict.fromkeys(SIZES, 1.0), (REGION, coast))
    for rule in (REGION, coast):
        assert np.bincount(rule.of, found["town"]) == pytest.approx(found[rule.dependent])
    assert found["town"].sum() == pytest.approx(1000)


def test_who_decides_the_same_agrees():
    """Two that decide one, and a chain in whatever order its rules are told."""
    other = FunctionalDependency("x", "region", (2, 0, 1, 0))
    found = reconcile_one_ways(ones(), dict.fromkeys(SIZES, 1.0), (REGION, other))
    assert np.bincount(REGION.of, found["town"]) == pytest.approx(found["region"])
    assert np.bincount(other.of, found["x"]) == pytest.approx(found["region"])
    assert [one.sum() for one in found.values()] == pytest.approx([1000] * 3)
    coarser = FunctionalDependency("region", "x", (0, 1, 1))
    for rules in ((REGION, coarser), (coarser, REGION)):
        found = reconcile_one_ways(ones(), dict.fromkeys(SIZES, 1.0), closed(rules))
        assert np.bincount(REGION.of, found["town"]) == pytest.approx(found["region"])
        assert np.bincount(coarser.of, found["region"], 4) == pytest.approx(found["x"], abs=1e-3)


def test_what_follows_by_way_of_another_and_beside_another():
    through = closed((REGION, FunctionalDependency("region", "x", (3, 0, 0))))[-1]
    assert through == FunctionalDependency("town", "x", (3, 3, 3, 0, 0, 0))
    assert closed((NEVER,)) == (NEVER,)
    coast = FunctionalDependency("town", "x", (0, 1, 2, 3, 0, 1))
    assert determined_by_one(closed((REGION, coast)), ("town", "region", "x"))
    assert not determined_by_one((REGION, coast), ("region", "x"))
    for groups in (WHOLE, {"town": Groups(6, (0, 4)), "region": Groups(3, (0, 2)), "x": Groups(4, (0, 1))}):
        own = reconcile_one_ways(ones(), dict.fromkeys(SIZES, 1.0), (REGION, coast))
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


def test_values_that_never_occur_have_next_to_nothing():
    found = reconcile_one_ways(ones(), dict.fromkeys(SIZES, 1.0), (StructuralZero((("x", frozenset({1})),)),))
    assert found["x"][1] < 1e-3
    assert found["x"].sum() == pytest.approx(1000)


def fitted(table, margins, rounds=3000):
    """Proportional fitting to 1-ways, plainly."""
    for _ in range(rounds):
        for axis, wanted in enumerate(margins):
            has = table.sum(axis=tuple(i for i in range(table.ndim) if i != axis), keepdims=True)
            shape = [-1 if i == axis else 1 for i in range(table.ndim)]
            table = table * np.divide(wanted.reshape(shape), has, out=np.zeros_like(has), where=has > 0)
    return table


def model_of(rules, groups=None, measured=None):
    own = reconcile_one_ways(ones(), dict.fromkeys(SIZES, 1.0), rules)
    whole = {name: every_cell(size) for name, size in SIZES.items()}
    return low_order(own, groups or whole, measured or {}, list(combinations(SIZES, 2)), rules=rules)


def test_pairs_are_what_independence_leaves_possible():
    model = model_of((REGION, NEVER))
    assert constrained_pairs(model.rules, list(SIZES)) == [("town", "region"), ("region", "x")]
    town = model.marginal(("town", "region"))
    assert town == pytest.approx(np.where(np.array(REGION.of)[:, None] == np.arange(3), town.sum(1, keepdims=True), 0))
    assert town.sum(axis=1) == pytest.approx(model.ones["town"])
    mask = possible(model.rules, ("region", "x"), (3, 4))
    entropy = fitted(mask.astype(float), [model.ones["region"], model.ones["x"]])
    assert model.marginal(("region", "x")) == pytest.approx(entropy, abs=1e-2)
    assert model.measured == {("town", "region")}  # as good as


@pytest.mark.parametrize("groups", [None, {"town": Groups(6, (0, 2, 4)), "region": Groups(3, (0, 2)),
                                           "x": Groups(4, (0, 3))}])  # fmt: skip
def test_nobody_is_where_nobody_can_be(groups):
    """Nor where rules together say so: a town whose region has no x."""
    model = model_of((REGION, NEVER, THREE), groups)
    every = possible(model.rules, list(SIZES), list(SIZES.values()))
    for size in (1, 2, 3):
        for asked in combinations(SIZES, size):
            held = every.any(axis=tuple(axis for axis, name in enumerate(SIZES) if name not in asked))
            for turned in (asked, asked[::-1]):
                cells = model.marginal(turned)
                assert cells.sum() == pytest.approx(1000)
                told = cells if turned == asked else cells.T
                assert ((told > 0) == held).all()


def test_a_group_keeps_what_it_has():
    groups = {"town": Groups(6, (0, 2, 4)), "region": Groups(3, (0, 2))}
    cells = np.random.default_rng(1).random((6, 3))
    kept = possible_cells((REGION,), ("town", "region"), groups, ones(), cells.copy())
    inside, mask = list(groups.values()), possible((REGION,), ("town", "region"), (6, 3))
    some = coarsened(mask.astype(int), inside) > 0
    share = coarsened(kept, inside)[some] / coarsened(cells, inside)[some]
    assert share == pytest.approx(share[0])
    assert kept.sum() == pytest.approx(1000)


def test_what_was_measured_keeps_to_the_rules_and_links_pass_through_them():
    """Towns and x depend on each other; regions and x were not measured, and follow by the towns' regions."""
    rng = np.random.default_rng(3)
    own = reconcile_one_ways(ones(total=1e5), dict.fromkeys(SIZES, 1.0), (REGION,))
    table = fitted(rng.random((6, 4)) ** 4, [own["town"], own["x"]])
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


def test_sets_that_smaller_ones_tell():
    apart, mixed = WHOLE | {"town": Groups(6, (0, 3, 5))}, WHOLE | {"town": Groups(6, (0, 4))}
    for groups in (WHOLE, apart):
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
def test_what_follows_is_known_whatever_the_groups(of, groups):
    rules = (FunctionalDependency("town", "region", of),)
    own = reconcile_one_ways(ones(), dict.fromkeys(SIZES, 1.0), rules)
    model = low_order(own, groups, {}, rules=rules)
    expected = np.where(np.array(of)[:, None] == np.arange(3), own["town"][:, None], 0)
    assert model.marginal(("town", "region")) == pytest.approx(expected)
    assert model.marginal(("region", "town")) == pytest.approx(expected.T)


def test_groups_end_where_what_follows_changes():
    assert edges((REGION, NEVER), "town") == {3, 5}
    assert edges((REGION,), "region") == frozenset()
    assert (
        edges((FunctionalDependency("town", "region", (0, 1, 0, 1, 2, 0)),), "town") == frozenset()
    )  # no runs of cells
    counts = np.full(6, 4.0)
    assert by_mass(counts, 10.0).starts == (0, 3)
    assert by_mass(counts, 14.0, frozenset({3})).starts == (0, 3)
    assert by_mass(counts, 14.0).starts == (0, 4)


def test_rules_are_in_the_models_file(tmp_path):
    model = model_of((REGION, NEVER, THREE))
    write_model(tmp_path / "model.npz", model)
    found = read_model(tmp_path / "model.npz")
    assert found.rules == model.rules
    assert math.isclose(found.marginal(("town", "region", "x")).sum(), 1000)
