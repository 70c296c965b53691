"""Dyadic tree: cost of every path, estimates against solvers, counts against the data, and bins."""

from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import nnls

from dpscale.base.errors import BudgetError
from dpscale.discovery import dyadic_tree
from dpscale.discovery.dyadic_tree import (
    EdgePlan,
    Leaves,
    TreeCounts,
    TreeMeasurement,
    TreePolicy,
    estimate_leaves,
    found_edges,
    join_leaves,
    measure_tree,
    on_grid,
)
from dpscale.domain import Domain
from tests.messages import refused

SHARE = Fraction(1, 1000)
COLUMNS = {
    "none": lambda rng: np.zeros(0, np.int64),
    "one value": lambda rng: np.full(5000, 77),
    "even": lambda rng: rng.integers(0, 1 << 12, 20_000),
    "spikes": lambda rng: rng.choice([0, 5, 1000, 1001, 4095], 30_000, p=[0.8, 0.05, 0.05, 0.05, 0.05]),
    "ends": lambda rng: rng.choice([0, (1 << 12) - 1], 10_000),
}


def plan_of(bits=12, rows=1, share=SHARE, **keys):
    table = {"kind": "bins", "edges": "private", **({"low": 0, "high": (1 << bits) - 1} if bits < 64 else {}), **keys}
    return EdgePlan(Domain.from_dict({"attributes": {"a": table}})["a"], share, rows)


def measurement_of(plan, values, seed=0):
    low, bits = plan.search.axis
    places = np.sort(values.astype(np.int64).view(np.uint64) - np.uint64(low % 2**64))

    def count(level, index):
        if bits == level == 64:
            return np.array([(places == one).sum() for one in index])
        nodes = places >> np.uint64(bits - level) if bits - level < 64 else np.zeros_like(places)
        return np.searchsorted(nodes, index, "right") - np.searchsorted(nodes, index, "left")

    return TreeMeasurement(plan, bytes([seed]) * 32, {"release": "test"}, count)


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(("bits", "rows"), [(12, 1), (12, 3), (64, 1)])
def test_no_path_costs_more_than_the_share(name, bits, rows):
    plan = plan_of(bits, rows)
    for seed in range(3):
        measured = measurement_of(plan, COLUMNS[name](np.random.default_rng(seed)), seed)
        leaves = measure_tree(measured)
        assert Fraction(95, 100) * SHARE < measured.dearest <= SHARE
        widths = [int(last) - int(first) + 1 for first, last in zip(leaves.first, leaves.last, strict=True)]
        assert sum(widths) == 1 << plan.search.axis[1]
        assert (leaves.counts >= 0).all()


def test_a_policy_that_spends_too_much_is_stopped(monkeypatch):
    monkeypatch.setattr(dyadic_tree, "TreePolicy", lambda bits, budget: TreePolicy(bits, budget * 1.5))
    plan = plan_of()
    with refused(BudgetError):
        measure_tree(measurement_of(plan, np.arange(4000)))


def test_grid_rounds_down():
    values = np.array([0.0, 1e-9, 0.3, 1.0, 7.7])
    rounded = on_grid(values)
    assert (rounded <= values).all()
    assert (rounded[1:] > 0.95 * values[1:]).all()


def random_tree(rng, bits=5):
    """A full binary tree with repeated measurements, as TreeCounts, with its design matrix over the leaves."""
    nodes, leaves, todo = [], [], [(0, 0)]
    while todo:
        level, index = todo.pop()
        nodes.append((level, index))
        if level < bits and (level < 2 or rng.random() < 0.6):
            todo += [(level + 1, 2 * index), (level + 1, 2 * index + 1)]
        else:
            leaves.append((level, index))
    repeated = nodes + [nodes[place] for place in rng.integers(0, len(nodes), 5)]
    leaves.sort(key=lambda one: one[1] << (bits - one[0]))
    design = np.array([[leaf[1] >> (leaf[0] - level) == index if leaf[0] >= level else False for leaf in leaves]
                       for level, index in repeated], float)  # fmt: skip
    truth = rng.choice([0.0, 3.0, 50.0], len(leaves))
    precision = rng.uniform(0.01, 2, len(repeated))
    value = design @ truth + rng.normal(size=len(repeated)) / np.sqrt(precision)
    level, index = np.array(repeated).T
    return TreeCounts(level, index.astype(np.uint64), value, precision), design, bits


@pytest.mark.parametrize("seed", range(8))
def test_estimates_are_non_negative_least_squares(seed):
    measured, design, bits = random_tree(np.random.default_rng(seed))
    found = estimate_leaves(bits, measured)
    root = np.sqrt(measured.precision)
    expected, _ = nnls(design * root[:, None], measured.value * root)
    np.testing.assert_allclose(found.counts, expected, atol=1e-7)
    covariance = np.linalg.inv(design.T @ (design * measured.precision[:, None]))
    np.testing.assert_allclose(found.errors, np.sqrt(np.diag(covariance)), rtol=1e-9)


def test_range_counts_are_near_the_data():
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.integers(0, 4096, 20_000), np.full(10_000, 1000)])
    closed, released = found_edges(plan := plan_of(), measure_tree(measurement_of(plan, values)))
    edges_found, counts = np.array(released["edges"]), np.array(released["counts"])
    exact = np.histogram(values, edges_found)[0]
    assert np.abs(np.cumsum(counts - exact)).max() < 0.02 * len(values)
    assert closed.edges == tuple(edges_found)
    assert closed.search is None


def test_axis_without_ends_covers_all_integers_of_64_bits():
    plan = plan_of(64, step=0.5)
    values = np.concatenate(
        [np.full(40_000, -3), np.full(40_000, 12), [np.iinfo(np.int64).max, np.iinfo(np.int64).min]]
    )
    _, released = found_edges(plan, measure_tree(measurement_of(plan, values)))
    assert released["edges"][0] == -(2.0**62)
    assert released["edges"][-1] == 2.0**62
    assert {-1.5, -1.0, 6.0, 6.5} <= set(released["edges"])
    assert sum(released["counts"]) == pytest.approx(80_000, rel=0.05)


def test_bins_are_joined_until_they_are_few():
    leaves = Leaves(np.arange(6, dtype=np.uint64), np.arange(6, dtype=np.uint64),
                    np.array([100.0, 0.0, 0.0, 50.0, 7.0, 100.0]), np.full(6, 2.0))  # fmt: skip
    first, counts, errors = join_leaves(leaves, None)
    assert first.tolist() == [0, 1, 3, 4, 5]
    assert counts.tolist() == [100, 0, 50, 7, 100]
    assert errors[1] == pytest.approx(8**0.5)
    first, counts, _ = join_leaves(leaves, 3)
    assert first.tolist() == [0, 1, 5]
    assert counts.sum() == 257


def test_bins_end_at_the_public_end():
    closed, released = found_edges(plan := plan_of(5, low=10, high=30), measure_tree(
        measurement_of(plan, np.random.default_rng(0).integers(10, 31, 50_000))))  # fmt: skip
    assert released["edges"][0] == 10
    assert released["edges"][-1] == 31
    assert len(closed.labels) == closed.size == len(released["counts"])
