"""Exact counts against a naive count, bit for bit."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings, strategies as st

import dpscale as dp
from dpscale.counting.count import ExactMarginal, Layout, count
from dpscale.records.where import RowMask
from tests.records import naive
from tests.strategies import accepted_values, as_table, attribute_sets, coded_domains, coded_rows, cuts, domains


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_partitioning_gives_naive_counts(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("count")
    domain = data.draw(coded_domains())
    rows = data.draw(coded_rows(domain))
    sets = data.draw(attribute_sets(domain))
    table = as_table(domain, data.draw(st.permutations(rows)))
    for number, (start, end) in enumerate(data.draw(cuts(len(rows)))):
        pq.write_table(table.slice(start, end - start), folder / f"{number}.parquet", row_group_size=7)
    counts = dp.count_marginals(dp.Table.open(folder, domain), sets)
    assert set(counts) == set(sets)
    for names in sets:
        assert counts[names].dtype == np.int64
        assert np.array_equal(counts[names], naive.marginal(domain, rows, names))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_every_kind_of_attribute_is_counted(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("kinds")
    domain = data.draw(domains())
    values = {a.name: data.draw(st.lists(accepted_values(a), min_size=5, max_size=5)) for a in domain.attributes}
    rows = list(zip(*([naive.cell(a, v) for v in values[a.name]] for a in domain.attributes), strict=True))
    pq.write_table(pa.table({name: pa.array(column) for name, column in values.items()}), folder / "x.parquet")
    for names in [domain.names, *combinations(domain.names, 2), *((name,) for name in domain.names)]:
        if domain.cells(names) <= 100_000:  # the oracle goes cell by cell
            counts = dp.count_marginals(dp.Table.open(folder, domain), [names])
            assert np.array_equal(counts[names], naive.marginal(domain, rows, names))


def test_empty_set_and_no_sets(tmp_path):
    pq.write_table(pa.table({"a": [0, 1, 1]}), tmp_path / "x.parquet")
    table = dp.Table.open(tmp_path, dp.Domain({"a": 2}))
    assert dp.count_marginals(table, [()]) == {(): 3}
    assert dp.count_marginals(table, []) == {}


def test_repr_contains_no_count():
    assert "41" not in repr(ExactMarginal(("a",), np.array([41, 41])))


def test_attributes_of_ten_thousand_cells(tmp_path):
    domain = dp.Domain({"a": 10_000, "b": 500, "c": 2})
    rng = np.random.default_rng(3)
    columns = {"a": rng.integers(0, 10_000, 5000), "b": rng.integers(0, 500, 5000), "c": rng.integers(0, 2, 5000)}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    counts = dp.count_marginals(dp.Table.open(tmp_path, domain), [("b", "a"), ("c", "a")])
    joint = np.bincount(columns["b"] * 10_000 + columns["a"], minlength=5_000_000).reshape(500, 10_000)
    assert np.array_equal(counts["b", "a"], joint)
    assert np.array_equal(counts["c", "a"].sum(axis=0), np.bincount(columns["a"], minlength=10_000))


def test_dropped_rows_are_excluded_across_batches(tmp_path, monkeypatch):
    from dpscale.records import files

    monkeypatch.setattr(files, "BATCH_ROWS", 10)
    domain = dp.Domain({"a": 100})
    pq.write_table(pa.table({"a": np.arange(100)}), tmp_path / "x.parquet")
    table = dp.Table.open(tmp_path, domain)
    out = np.array([0, 9, 10, 55, 99])
    gone = RowMask.of(np.isin(np.arange(100), out))
    counts = count(Layout(domain, (("a",),)), table.partitions, dropped={table.partitions[0]: gone})
    assert np.array_equal(np.flatnonzero(counts == 0), out)
    assert count(Layout(domain, ((),)), table.partitions, dropped={}).tolist() == [100]
