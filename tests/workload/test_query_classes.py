"""Classes of cells that queries do not distinguish, compared with explicit query matrices and neighbouring tables."""

import itertools

import numpy as np
import pytest

from dpscale import Domain, Workload
from dpscale.workload.query_classes import QueryCandidates
from dpscale.workload.residual import Groups, every_cell

DOMAIN = Domain({"a": 4, "b": 3, "c": 2})
ALL = ("a", "b", "c")
CELLS = {name: every_cell(DOMAIN[name].size) for name in ALL}
UNITS = 256
NESTED = {"a": ["a = 0", "a in 0..1", "a in 0..2"], "b": ["b = 0"]}


def classes_of(workload, names, groups=CELLS):
    found = QueryCandidates.of(workload.domain, workload.parts)
    assert found is not None
    return found.over([names], groups).get(names)


def random_union(rng):
    """Return a workload of random products and arrays, and all its queries on the cells of (a, b, c)."""
    workload, rows = Workload(DOMAIN), []
    for _ in range(int(rng.integers(1, 3))):
        factors = {name: rng.integers(0, 2, (int(rng.integers(1, 3)), DOMAIN[name].size)) for name in ALL}
        workload = workload.add_product(factors)
        rows.append(np.kron(np.kron(factors["a"], factors["b"]), factors["c"]))
    if rng.random() < 0.5:
        array = rng.integers(0, 2, (2, 4, 3, 2))
        workload = workload.add_queries(ALL, array)
        rows.append(array.reshape(2, -1))
    return workload, np.concatenate(rows)


def brute_distance(queries, differences):
    """Return the L1 norm of the sums over cells with equal columns of the queries."""
    sums = {}
    for column, value in zip(queries.T.tolist(), differences.ravel().tolist(), strict=True):
        sums[tuple(column)] = sums.get(tuple(column), 0) + value
    return sum(map(abs, sums.values()))


@pytest.mark.parametrize("seed", range(20))
def test_distance_bounds_all_answers(seed):
    """Classes refine those of the joint queries, and no answer of 0/1 queries differs by more than the distance."""
    rng = np.random.default_rng(seed)
    workload, queries = random_union(rng)
    classes = classes_of(workload, ALL)
    differences = rng.integers(-(10**6), 10**6, (4, 3, 2))
    found = np.abs(differences).sum() if classes is None else classes.distance(differences)
    assert brute_distance(queries, differences) <= found <= np.abs(differences).sum()
    assert np.abs(queries @ differences.ravel()).max() <= found


def test_classes_of_one_attribute_and_arrays_equal_columns():
    rng = np.random.default_rng(5)
    for _ in range(20):
        array = rng.integers(0, 2, (2, 4, 3))
        classes = classes_of(Workload(DOMAIN).add_queries(["a", "b"], array), ("a", "b"))
        differences = rng.integers(-100, 100, (4, 3))
        assert classes.distance(differences) == brute_distance(array.reshape(2, -1), differences)
        turned = classes_of(Workload(DOMAIN).add_queries(["b", "a"], array.transpose(0, 2, 1)), ("a", "b"))
        assert turned.distance(differences) == classes.distance(differences)


def test_subset_of_array_distinguishes_cells_of_any_slice():
    xor = np.array([[[1, 0], [0, 1], [1, 0], [0, 1]]])
    classes = classes_of(Workload(DOMAIN).add_queries(["a", "c"], xor), ("a",))
    assert classes.distance(np.array([1, 10, 100, 1000])) == 1 + 100 + 10 + 1000
    assert len(set(classes.labels[0].tolist())) == 2


def largest_change(distance, shape, tables):
    """Return the largest change of a distance from adding one record to any table, by enumeration."""
    largest = 0
    for table in tables:
        before = distance(table)
        for cell in itertools.product(*map(range, shape)):
            after = table.copy()
            after[cell] += UNITS
            largest = max(largest, abs(distance(after) - before))
    return largest


@pytest.mark.parametrize("seed", range(10))
def test_one_record_changes_distance_by_its_units(seed):
    """Enumerate the neighbours of random and extreme tables. The change of a marginal is attained and not exceeded."""
    rng = np.random.default_rng(seed)
    groups = CELLS if seed % 2 else {"a": Groups(4, (0, 2)), "b": every_cell(3), "c": every_cell(2)}
    classes = classes_of(random_union(rng)[0], ALL, groups) or classes_of(Workload(DOMAIN).add_product(NESTED), ALL[:2])
    shape = (len(groups["a"].starts), 3, 2) if len(classes.labels) != 2 else (4, 3)
    tables = [rng.integers(-100, 100, shape) * UNITS + rng.integers(0, UNITS, shape) for _ in range(30)]
    tables += [np.full(shape, 1 << 60), np.full(shape, -(1 << 60)), np.zeros(shape, np.int64)]
    assert largest_change(classes.distance, shape, tables) == UNITS


def test_distance_of_answers_exceeds_units():
    """A planted fault: nested ranges count a record several times, so raw answers need a larger sensitivity."""
    classes = classes_of(Workload(DOMAIN).add_product(NESTED), ("a", "b"))
    ranges, first = np.tri(3, 4, dtype=np.int64), np.array([[1, 0, 0]])

    def raw(table):
        return int(np.abs(ranges @ table @ first.T).sum())

    tables = [np.zeros((4, 3), np.int64)]
    assert largest_change(raw, (4, 3), tables) == 3 * UNITS
    assert largest_change(classes.distance, (4, 3), tables) == UNITS


def test_sums_do_not_wrap():
    """Sums of a class that would exceed 64 bits change by no more than one record."""
    classes = classes_of(Workload(DOMAIN).add_product({"a": ["a = 0"], "b": ["b = 0"]}), ("a", "b"))
    table = np.full((4, 3), (1 << 62) - UNITS)
    assert table.sum() != 12 * ((1 << 62) - UNITS)  # planted: numpy wraps
    assert 0 < classes.distance(table) <= 1 << 62
    assert largest_change(classes.distance, (4, 3), [table, -table, table // 12]) <= UNITS


def test_noise_factor_is_expected_distance_of_noise():
    classes = classes_of(Workload(DOMAIN).add_product({"a": ["a in 0..1"], "b": ["b = 0"]}), ("a", "b"))
    draws = np.random.default_rng(1).normal(0, 1000, (4000, 4, 3))
    mean = np.mean([classes.distance(np.rint(one).astype(np.int64)) for one in draws])
    assert mean == pytest.approx(np.sqrt(2 / np.pi) * 1000 * classes.noise_factor, rel=0.02)


def test_candidates_of_other_parts_are_scored_on_cells():
    product = Workload(DOMAIN).add_product({"a": ["a in 0..1"], "b": "identity"})
    mixed = product.add("marginal", attributes=[("b", "c")])
    candidates = QueryCandidates.of(DOMAIN, mixed.parts)
    assert set(candidates.over([("a", "b"), ("b", "c"), ("b",), ("c",), ("a",)], CELLS)) == {("a", "b"), ("a",)}
    assert QueryCandidates.of(DOMAIN, Workload(DOMAIN).add("prefix", degree=2).parts) is None


def test_wide_families_are_assumed_to_distinguish_all_cells():
    wide = Domain({"a": 4200, "b": 60})
    workload = Workload(wide).add_product({"a": "prefix", "b": ["b in 0..9"]})
    classes = classes_of(workload, ("a", "b"), {name: every_cell(wide[name].size) for name in wide.names})
    assert [len(set(labels.tolist())) for labels in classes.labels] == [4200, 2]


def test_runs_are_cells_that_no_query_distinguishes():
    workload = Workload(DOMAIN).add_product({"a": ["a in 0..1", "a = 3"], "b": "total"}).add_conditions(["b = 2"])
    candidates = QueryCandidates.of(DOMAIN, workload.parts)
    assert candidates.runs("a").starts == (0, 2, 3)
    assert candidates.runs("b").starts == (0, 2)
    assert candidates.runs("c").starts == (0, 1)  # no query uses it: single cells
    with_cells = workload.add("marginal", attributes=[("a",)])
    assert QueryCandidates.of(DOMAIN, with_cells.parts).runs("a").count == 4
