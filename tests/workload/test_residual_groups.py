import numpy as np
from hypothesis import given, strategies as st

from dpscale.workload.residual import Groups, by_mass, coarsened, every_cell, expanded


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=40), st.floats(0.1, 500))
def test_groups_partition_cells_into_runs(counts, least):
    groups = by_mass(np.array(counts), least)
    assert groups.starts[0] == 0
    assert list(groups.starts) == sorted(set(groups.starts))
    assert groups.count >= 2
    assert groups.widths.sum() == len(counts) == len(groups.labels)


def test_groups_reach_minimum_mass():
    counts = np.random.default_rng(0).gamma(0.3, size=100)
    sums = coarsened(counts, [by_mass(counts, 2.0)])
    assert (sums >= 2.0 * 0.3).all()


def test_coarsened_and_expanded_tables():
    table = np.arange(12).reshape(3, 4)
    groups = [Groups(3, (0, 2)), Groups(4, (0, 1, 3))]
    small = coarsened(table, groups)
    assert small.dtype == table.dtype
    np.testing.assert_array_equal(small, [[4, 14, 10], [8, 19, 11]])
    np.testing.assert_array_equal(expanded(small, groups)[:, 2], [14, 14, 19])
    assert coarsened(table, [every_cell(3), every_cell(4)]) is table
