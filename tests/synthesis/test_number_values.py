"""Values of numbers in rows: sums, counts of nulls and variances of groups equal their targets; values fit bins."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import brentq
from scipy.stats import truncexpon

from dpscale.domain import Domain
from dpscale.privacy.streams import PublicStream
from dpscale.synthesis import number_values
from dpscale.synthesis.decode import number_column, number_values as values_of
from dpscale.synthesis.number_values import (
    GroupTargets,
    NumberTargets,
    RowGroups,
    draw_steps,
    read_number_targets,
    select_sets,
    write_number_targets,
)

SIZES = {"a": 4, "b": 3}
STEPS = 200


def make_number(**changes):
    table = {"low": -50, "high": 50, "step": 0.5, **changes}
    attributes = {name: {"kind": "coded", "size": size} for name, size in SIZES.items()}
    return Domain.from_dict({"attributes": attributes, "numbers": {"v": table}})["v"]


def make_records(seed, rows=3000):
    random = np.random.default_rng(seed)
    cells = np.stack([random.integers(0, size, rows) for size in SIZES.values()], axis=1).astype(np.int32)
    shares = random.beta(1 + cells[:, 0], 4 - cells[:, 1], rows)
    return cells, shares


def targets_of(cells, shares, known=None, sets=(("a", "b"), ("a",), ("b",), ()), squares=False, error=1e-3):
    """Return exact targets of records, by brute force over the groups."""
    names, known = list(SIZES), np.ones(len(cells), bool) if known is None else known
    found = []
    for by in sets:
        shape = tuple(SIZES[name] for name in by)
        at = (
            np.ravel_multi_index([cells[:, names.index(name)] for name in by], shape)
            if by
            else np.zeros(len(cells), int)
        )
        size = int(np.prod(shape, dtype=int))
        count, total, square = (np.array([own[(at == cell) & known].sum() for cell in range(size)], float)
                                for own in (np.ones(len(cells)), shares, shares**2))  # fmt: skip
        errors = np.full(size, error)
        found.append(
            GroupTargets(by, shape, count, errors, total, errors, errors, square if squares else np.empty(0), 1.96)
        )
    return NumberTargets("v", tuple(found))


def group_sums(one, cells, values):
    return np.bincount(one.index(cells, list(SIZES)), values, len(one.known))


def rows_of(cells, scale=1.0, totals=None):
    return RowGroups(cells, list(SIZES), np.ones(len(cells)), scale, totals)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_sums_of_groups_equal_their_targets(seed):
    cells, shares = make_records(seed)
    targets = targets_of(cells, shares)
    steps = draw_steps(make_number(), targets, rows_of(cells), [], PublicStream("r", "test", seed % 1000))
    assert steps.min() >= 0
    assert steps.max() <= STEPS
    for one in targets.sets:
        assert np.abs(group_sums(one, cells, steps / STEPS) - one.sums).max() < 12 / STEPS


def test_sums_without_raking_are_far_from_their_targets(monkeypatch):
    """The distance that the other tests bound is large for values that are not raked."""
    monkeypatch.setattr(number_values, "SWEEPS", 0)
    cells, shares = make_records(1)
    targets = targets_of(cells, shares)
    steps = draw_steps(make_number(), targets, rows_of(cells), [], PublicStream("r", "test"))
    assert np.abs(group_sums(targets.sets[1], cells, steps / STEPS) - targets.sets[1].sums).max() > 50


def test_noisy_targets_leave_no_bias():
    """Over many noisy sums of groups, the mean of the sums of rows is that of the targets."""
    cells, shares = make_records(2, 600)
    random, differences = np.random.default_rng(0), []
    for number in range(40):
        targets = targets_of(cells, shares, sets=(("a",), ()), error=4.0)
        fine, whole = targets.sets
        fine.sums[:] += random.normal(0, 4, len(fine.sums))
        whole.sums[:] = fine.sums.sum()
        steps = draw_steps(make_number(), targets, rows_of(cells), [], PublicStream("r", "noise", number))
        differences.append(group_sums(fine, cells, steps / STEPS) - fine.sums)
    assert np.abs(np.mean(differences, axis=0)).max() < 0.02


def test_nulls_have_the_released_share_of_each_group():
    cells, shares = make_records(3)
    known = np.random.default_rng(4).random(len(cells)) < 0.3 + 0.2 * cells[:, 0]
    known[cells[:, 0] == 0] = False  # a group without values is not visible among means, but its rows are null
    targets = targets_of(cells, shares, known)
    steps = draw_steps(make_number(nulls="skip"), targets, rows_of(cells), [], PublicStream("r", "test"))
    for one in targets.sets:
        assert np.abs(group_sums(one, cells, steps >= 0) - one.known).max() < 4
        sums = group_sums(one, cells, np.maximum(steps, 0) / STEPS)
        assert np.abs(sums - one.sums).max() < 0.02 * len(cells) ** 0.5


def test_variances_of_groups_are_near_their_targets():
    cells, shares = make_records(5, 6000)
    targets = targets_of(cells, shares, sets=(("a",), ()), squares=True)
    steps = draw_steps(make_number(), targets, rows_of(cells), [], PublicStream("r", "test"))
    for value in range(SIZES["a"]):
        mine = cells[:, 0] == value
        assert (steps[mine] / STEPS).std() == pytest.approx(shares[mine].std(), rel=0.03)
        assert (steps[mine] / STEPS).mean() == pytest.approx(shares[mine].mean(), abs=2e-3)


def test_invisible_groups_have_the_mean_of_the_smaller_set():
    cells, shares = make_records(6)
    targets = targets_of(cells, shares, sets=(("a",), ()))
    targets.sets[0].known_errors[2] = 1e6
    targets.sets[0].sums[2] = 1e5
    steps = draw_steps(make_number(), targets, rows_of(cells), [], PublicStream("r", "test"))
    assert abs(steps.sum() / STEPS - shares.sum()) < 0.05
    assert 0.1 < steps[cells[:, 0] == 2].mean() / STEPS < 0.9


def test_parts_match_their_shares_of_the_sums():
    cells, shares = make_records(7, 4000)
    targets, names = targets_of(cells, shares), list(SIZES)
    totals = [np.bincount(one.index(cells, names), minlength=len(one.known)) for one in targets.sets]
    steps = np.concatenate([
        draw_steps(make_number(), targets, rows_of(part, 1.0, totals), [], PublicStream("r", "part", number))
        for number, part in enumerate(np.array_split(cells, 4))
    ])  # fmt: skip
    for one in targets.sets:
        assert np.abs(group_sums(one, cells, steps / STEPS) - one.sums).max() < 0.6


@pytest.mark.parametrize("attribute", [
    {"kind": "bins", "edges": [-50, -10, 0.25, 3, 3.25, 50], "nulls": "category"},
    {"kind": "bins", "edges": [-10, 0, 30], "outside": "clip"},
    {"kind": "integer", "low": -50, "high": 50},
])  # fmt: skip
def test_values_lie_in_the_cells_of_their_column(attribute):
    table = {"low": -50, "high": 50, "step": 0.5, "nulls": "skip", "from": "a"}
    attributes = {"a": attribute, "b": {"kind": "coded", "size": 3}}
    domain = Domain.from_dict({"attributes": attributes, "numbers": {"v": table}})
    random, number, own = np.random.default_rng(8), domain["v"], domain["a"]
    cells = np.stack([random.integers(0, own.size, 2000), random.integers(0, 3, 2000)], axis=1).astype(np.int32)
    known = cells[:, 0] != own.null_cell
    index = cells[:, 1].astype(int)
    half = np.bincount(index, known) * 0.5
    count = np.bincount(index, known) * 1.0
    sets = [(("b",), (3,), count, half), ((), (), count.sum(keepdims=True), half.sum(keepdims=True))]
    targets = NumberTargets("v", tuple(
        GroupTargets(by, sizes, all_of, np.ones(len(sums)), sums, *[np.ones(len(sums))] * 2, np.empty(0), 1.96)
        for by, sizes, all_of, sums in sets
    ))  # fmt: skip
    rows = RowGroups(cells, ["a", "b"], np.ones(2000), 1.0)
    steps = draw_steps(number, targets, rows, [own], PublicStream("r", "bins"))
    assert ((steps >= 0) == known).all()
    values = values_of(number, steps)
    if own.kind == "integer":
        assert (values[known] == cells[known, 0] - 50).all()
        return
    assert np.abs(np.bincount(index, np.maximum(steps, 0) / STEPS) - half).max() < 0.05
    edges = np.array(own.edges)
    low, high = edges[:-1][np.minimum(cells[:, 0], own.listed - 1)], edges[1:][np.minimum(cells[:, 0], own.listed - 1)]
    if own.outside == "clip":
        low, high = np.where(cells[:, 0] == 0, -50, low), np.where(cells[:, 0] == own.listed - 1, 50.5, high)
    wide = known & (high - low > 0.5)
    assert ((values >= low) & (values < high))[wide].all()


@pytest.mark.parametrize("mean", [1e-5, 0.01, 0.3, 0.5, 0.9])
def test_start_is_a_truncated_exponential(mean):
    places = (np.arange(200_000) + 0.5) / 200_000
    found = number_values._exponential(mean, places)
    assert found.mean() == pytest.approx(mean, rel=2e-3)
    if mean < 0.5:
        scale = brentq(lambda own: truncexpon(1 / own, scale=own).mean() - mean, mean / 2, 1e3)
        expected = truncexpon(1 / scale, scale=scale).ppf([0.2, 0.8])
        np.testing.assert_allclose(np.quantile(found, [0.2, 0.8]), expected, rtol=1e-3)


def test_targets_are_stored_exactly_and_selected_by_signal(tmp_path, monkeypatch):
    cells, shares = make_records(9)
    targets = targets_of(cells, shares)
    write_number_targets(tmp_path / "t.npz", [targets])
    (read,) = read_number_targets(tmp_path / "t.npz")
    assert [one.names for one in read.sets] == [("a", "b"), ("a",), ("b",), ()]
    for one, other in zip(read.sets, targets.sets, strict=True):
        assert (one.sums.tobytes(), one.width, one.sizes) == (other.sums.tobytes(), other.width, other.sizes)
    flat = targets_of(cells, np.full(len(cells), 0.5), sets=(("b",),)).sets[0]
    monkeypatch.setattr("dpscale.synthesis.number_values.MOST_SETS", 1)
    chosen = select_sets([targets.sets[3], flat, targets.sets[1]], 100)
    assert [one.names for one in chosen] == [("a",), ()]
    assert [one.names for one in select_sets(targets.sets, 2)] == [()]


def test_columns_are_whole_where_the_step_is():
    steps = np.array([0, 3, -1])
    assert number_column(make_number(step=1), steps).to_pylist() == [-50, -47, None]
    assert number_column(make_number(), steps).to_pylist() == [-50.0, -48.5, None]
    assert str(number_column(make_number(step=1), steps).type) == "int64"
