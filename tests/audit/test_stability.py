"""Sensitivity by brute force over records and units: neighbouring data never change the measurements by more than the
claim.

The oracle is exact arithmetic on the difference of two releases with one key. For units, the counts come from the
product's counting code over files, with each unit removed in turn.
"""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from dpscale import Domain, Table
from dpscale.audit.selftest import (
    MECHANISMS,
    case_of,
    distance,
    domain_of_the_data,
    sensitivity_off,
    small_table,
    worst_record,
)
from dpscale.counting.count import Layout, count
from dpscale.engine.contribution_bounds import rows_beyond
from dpscale.engine.schedulers import resolve

SIZES = (2, 3)
DOMAIN = Domain({f"x{i}": size for i, size in enumerate(SIZES)})
ROWS = np.array([[0, 0], [0, 0], [0, 0], [1, 2], [1, 2], [0, 1], [1, 0], [0, 2], [1, 1], [1, 1]])
UNITS = [7, 7, 7, 8, 9, 8, 9, 9, 9, 10]


def worst_neighbour(case, counts, neighbours):
    """Return the largest distance over given neighbours; inf if one has another shape (data-dependent domain)."""
    worst = Fraction(0)
    for other in neighbours:
        if other.shape != counts.shape:
            return math.inf
        worst = max(worst, distance(case, counts, other))
    return worst


def without_each(rows, units, count):
    """Return the counts of a table without each of its privacy units in turn."""
    counts = []
    for removed in dict.fromkeys(units):
        others = [index for index, unit in enumerate(units) if unit != removed]
        counts.append(count(rows[others], [units[index] for index in others]))
    return counts


def make_bounded_counter(folder, bound):
    """Return a function that counts with the product's code: rows in two files, at most `bound` per unit."""
    made = iter(range(10**6))

    def count_bounded(rows, units):
        place = folder / str(next(made))
        place.mkdir()
        table = pd.DataFrame({"x0": rows[:, 0], "x1": rows[:, 1], "unit": units})
        for number, part in enumerate(np.array_split(np.arange(len(table)), 2)):
            table.iloc[part].to_parquet(place / f"{number}.parquet", index=False)
        partitions = Table.open(place, DOMAIN).partitions
        out = rows_beyond(resolve(scheduler="synchronous"), DOMAIN, [partitions], "unit", bound, 100, 1 << 20)
        return count(Layout(DOMAIN, (DOMAIN.names,)), partitions, dropped=out).reshape(SIZES)

    return count_bounded


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("sizes", [(2, 3), (5, 4), (2, 2, 2)])
@pytest.mark.parametrize("cost", [0.01, 1.0, 30.0])
def test_record_changes_release_by_at_most_the_claim(mechanism, sizes, cost):
    case = case_of(mechanism, sizes, cost)
    worst = worst_record(case, small_table(case.plan.domain))
    assert worst <= case.draws.amount
    assert worst > 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_planted_sensitivity_is_detected(mechanism):
    case = case_of(mechanism)
    assert worst_record(sensitivity_off(case), small_table(case.plan.domain)) > case.draws.amount


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("bound", [1, 2, 3])
def test_unit_changes_release_by_at_most_the_claim(tmp_path, mechanism, bound):
    case = case_of(mechanism, SIZES, rows_per_unit=bound)
    counted = make_bounded_counter(tmp_path, bound)
    worst = worst_neighbour(case, counted(ROWS, UNITS), without_each(ROWS, UNITS, counted))
    assert worst <= case.draws.amount
    # a unit of `bound` equal rows uses the whole claim of a marginal: three rows of unit 7 fall into one cell
    assert worst > case.draws.amount * 0.4


@pytest.mark.parametrize("bound", [1, 2])
def test_row_order_does_not_change_counts(tmp_path, bound):
    counted = make_bounded_counter(tmp_path, bound)
    first = counted(ROWS, UNITS)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(UNITS))
        np.testing.assert_array_equal(first, counted(ROWS[order], [UNITS[i] for i in order]))


def make_position_counter(bound):
    """Plant a fault: the rows of a unit that are counted depend on their positions in the whole table."""

    def count_by_position(rows, units):
        counts = np.zeros(SIZES, dtype=np.int64)
        for unit in dict.fromkeys(units):
            mine = [i for i, other in enumerate(units) if other == unit]
            for i in sorted(mine, key=lambda i: (i * 7919) % len(units))[:bound]:
                counts[tuple(rows[i])] += 1
        return counts

    return count_by_position


def test_planted_row_order_bound_is_detected():
    case = case_of("identity", SIZES, rows_per_unit=1)
    counted = make_position_counter(1)
    assert worst_neighbour(case, counted(ROWS, UNITS), without_each(ROWS, UNITS, counted)) > case.draws.amount


def test_missing_bound_is_detected():
    case = case_of("identity", SIZES, rows_per_unit=1)
    counted = make_position_counter(10)
    assert worst_neighbour(case, counted(ROWS, UNITS), without_each(ROWS, UNITS, counted)) > case.draws.amount


def test_planted_data_dependent_domain_is_detected():
    case = case_of("identity", SIZES)
    counts = np.array([[1, 4, 4], [4, 4, 4]])
    fewer = counts[:, 1:]
    assert worst_neighbour(case, counts, [fewer]) == float("inf")
    one = domain_of_the_data(case)
    without = counts.copy()
    without[0, 0] = 0
    assert len(one.release(counts, 0)) != len(one.release(without, 0))


@pytest.mark.parametrize("kinds", [("int64", "int32"), ("int64", "float64"), ("int64", "uint8"), ("object", "string")])
def test_unit_is_the_same_in_files_of_different_types(tmp_path, kinds):
    """At most one row is counted of a unit that two files store with different types."""
    for number, kind in enumerate(kinds):
        units = pd.Series([7, 7]).astype(str if kind in ("object", "string") else kind).astype(kind)
        pd.DataFrame({"x0": [0, 0], "x1": [0, 0], "unit": units}).to_parquet(tmp_path / f"{number}.parquet")
    partitions = Table.open(tmp_path, DOMAIN).partitions
    out = rows_beyond(resolve(scheduler="synchronous"), DOMAIN, [partitions], "unit", 1, 100, 1 << 20)
    assert count(Layout(DOMAIN, (DOMAIN.names,)), partitions, dropped=out).sum() == 1


def test_distance_of_equal_tables_is_exactly_zero():
    case = case_of("identity", SIZES)
    counts = small_table(case.plan.domain)
    assert distance(case, counts, counts) == 0
