"""Contribution bounds: exact stability for any order, partitioning and number of buckets.

The property takes the rule as an argument, and a planted wrong rule (keep the first k rows in file order) fails it.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, find, given, settings, strategies as st
from hypothesis.errors import NoSuchExample

import dpscale as dp
from dpscale.contributions.unit_ids import identities
from dpscale.contributions.units import buckets
from dpscale.counting.count import encoded
from dpscale.engine.contribution_bounds import rows_beyond
from dpscale.engine.counting import partition_groups
from dpscale.engine.schedulers import LocalEngine
from tests.messages import refused

DOMAIN = dp.Domain({"a": 3, "b": 2})
ENGINE = LocalEngine("synchronous")
TYPES = [
    pa.int8(), pa.uint16(), pa.int64(), pa.uint64(), pa.float64(), pa.string(), pa.large_string(), pa.decimal128(9),
]  # fmt: skip
Row = tuple[int, int, int]


def write_pieces(folder, pieces, types=TYPES):
    """Write each piece of rows (unit, a, b) as a file, with another type of the unit column in each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, piece in enumerate(pieces):
        kind = types[number % len(types)]
        units = [str(row[0]) if "string" in str(kind) else Decimal(row[0]) if "decimal" in str(kind) else row[0]
                 for row in piece]  # fmt: skip
        column = pa.array(units, kind)
        column = column.dictionary_encode() if number % 3 == 2 else column
        codes = {name: pa.array([row[i] for row in piece], pa.int8()) for i, name in enumerate(DOMAIN.names, start=1)}
        pq.write_table(pa.table({"unit": column, **codes}), folder / f"{number}.parquet")


def rows_beyond_bound(partitions, bound, memory=1 << 20, **options):
    """Return the rows to exclude by the rule under test."""
    groups = partition_groups(partitions, 2)
    out = rows_beyond(ENGINE, DOMAIN, groups, "unit", bound, 100, memory, **options)
    return {part: out[part].places if part in out else np.empty(0, np.int64) for part in partitions}


def first_rows(partitions, bound, memory=1 << 20):
    """Planted wrong rule: keep the first rows of a unit in file order."""
    seen: Counter[str] = Counter()
    out = {}
    for part in partitions:
        units = [str(int(unit)) for unit in pq.read_table(part.path)["unit"].to_pylist()]
        keep = []
        for unit in units:
            keep.append(seen[unit] < bound)
            seen[unit] += 1
        out[part] = np.flatnonzero(~np.array(keep, dtype=bool))
    return out


def surviving_rows(rule, folder, pieces, bound, memory=1 << 20):
    """Return the rows that stay, as a multiset for each unit."""
    write_pieces(folder, pieces)
    partitions = dp.Table.open(folder, DOMAIN).partitions
    out = rule(partitions, bound, memory)
    surviving: dict[int, Counter[tuple[int, int]]] = {}
    for part, piece in zip(partitions, pieces, strict=True):
        gone = set(out[part].tolist())
        for place, (unit, a, b) in enumerate(piece):
            surviving.setdefault(unit, Counter())[a, b] += place not in gone
    return {unit: +rows for unit, rows in surviving.items()}


def distribute_rows(rows, places, count=3):
    """Return pieces of rows, where row i is in piece places[i]."""
    return [[row for row, place in zip(rows, places, strict=True) if place == number] for number in range(count)]


@st.composite
def cases(draw):
    """Draw rows, another order and another distribution of them, a bound and a unit to remove."""
    row = st.tuples(st.integers(-2, 3).map(abs), st.integers(0, 2), st.integers(0, 1))
    rows = draw(st.lists(row, min_size=1, max_size=14))
    places = st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows))
    return {"rows": rows, "places": draw(places), "other": draw(st.permutations(rows)), "others": draw(places),
            "bound": draw(st.integers(1, 3)), "removed": draw(st.sampled_from(rows))[0],
            "memory": draw(st.sampled_from([2000, 5000, 1 << 20]))}  # fmt: skip


def is_stable(rule, folder, case):
    """Return whether the surviving rows of a unit respect the bound and depend on its own rows only."""
    bound, removed = case["bound"], case["removed"]
    surviving = surviving_rows(rule, folder / "1", distribute_rows(case["rows"], case["places"]), bound)
    shuffled = surviving_rows(rule, folder / "2", distribute_rows(case["other"], case["others"]), bound, case["memory"])
    rest = [(row, place) for row, place in zip(case["rows"], case["places"], strict=True) if row[0] != removed]
    without = surviving_rows(
        rule, folder / "3", distribute_rows([row for row, _ in rest], [place for _, place in rest]), bound
    )
    sizes = Counter(row[0] for row in case["rows"])
    exact = all(sum(rows.values()) == min(bound, sizes[unit]) for unit, rows in surviving.items())
    return exact and shuffled == surviving and without == {u: rows for u, rows in surviving.items() if u != removed}


@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_surviving_rows_depend_on_own_unit_only(tmp_path_factory, case):
    assert is_stable(rows_beyond_bound, tmp_path_factory.mktemp("units"), case)


def test_property_detects_rule_by_row_order(tmp_path_factory):
    def fails(case):
        return not is_stable(first_rows, tmp_path_factory.mktemp("planted"), case)

    found = settings(max_examples=100, deadline=None, database=None, phases=[Phase.generate])  # as it is found
    assert find(cases(), fails, settings=found)
    with pytest.raises(NoSuchExample):
        find(cases(), lambda case: not is_stable(rows_beyond_bound, tmp_path_factory.mktemp("right"), case),
             settings=settings(max_examples=10, deadline=None, database=None))  # fmt: skip


def test_removing_a_unit_changes_at_most_bound_rows(tmp_path):
    rng = np.random.default_rng(5)
    rows = [(int(u), int(a), int(b)) for u, a, b in rng.integers(0, [40, 3, 2], (600, 3))]

    def count_rows(folder, rows_given):
        write_pieces(folder, distribute_rows(rows_given, rng.integers(0, 3, len(rows_given))))
        partitions = dp.Table.open(folder, DOMAIN).partitions
        out = rows_beyond_bound(partitions, 4)
        cells = np.zeros((3, 2), dtype=int)
        for codes, _, part, first in encoded(DOMAIN, partitions, DOMAIN.names):
            stay = np.setdiff1d(np.arange(codes.shape[1]), out[part] - first)
            np.add.at(cells, tuple(codes[:, stay]), 1)
        return cells

    whole = count_rows(tmp_path / "whole", rows)
    assert whole.sum() == sum(min(4, n) for n in Counter(row[0] for row in rows).values())
    for unit in range(10):
        change = whole - count_rows(tmp_path / str(unit), [row for row in rows if row[0] != unit])
        assert (change >= 0).all()
        assert change.sum() <= 4


@pytest.mark.parametrize("bound", [1, 2])
def test_unit_is_the_same_in_all_column_types_csv_and_paths(tmp_path, bound):
    write_pieces(tmp_path / "t", [[(7, 1, 1)] for _ in range(9)])
    (tmp_path / "x.csv").write_text("unit,a,b\n7,0,0\n 7 ,2,1\n")
    (tmp_path / "t" / "unit=7").mkdir()
    pq.write_table(pa.table({"a": [0], "b": [1]}), tmp_path / "t" / "unit=7" / "y.parquet")
    partitions = [part for name in ("t", "x.csv") for part in dp.Table.open(tmp_path / name, DOMAIN).partitions]
    assert sum(map(len, rows_beyond_bound(partitions, bound).values())) == 12 - bound


def test_unit_texts_are_distinguished_exactly(tmp_path):
    texts = ["1", "10", "1.5", "-1", "a", "A", "a a", "0", "9" * 18, "9" * 19, "1" + "0" * 18, "é", str(2**64 - 1)]
    pq.write_table(pa.table({"unit": texts, "a": [0] * len(texts), "b": [0] * len(texts)}), tmp_path / "x.parquet")
    numbers = pa.array([1, 0, 10**18 - 1, 10**18, 2**64 - 1], pa.uint64())
    pq.write_table(pa.table({"unit": numbers, "a": [1] * 5, "b": [0] * 5}), tmp_path / "y.parquet")
    partitions = dp.Table.open(tmp_path, DOMAIN).partitions
    out = rows_beyond_bound(partitions, 1)
    assert sum(map(len, out.values())) == 5, "only the five numbers met their own texts"


def test_integer_units_have_two_distinct_hash_words():
    words = identities(pa.array(np.arange(10_000)), "unit").words
    assert not np.isin(words[:, 0], words[:, 1]).any()
    assert len(np.unique(words[:, 1])) == 10_000
    assert np.array_equal(words, identities(pa.array(map(str, range(10_000))), "unit").words)


def test_number_of_buckets_does_not_matter(tmp_path):
    rows = [(i % 17, i % 3, i % 2) for i in range(200)]
    write_pieces(tmp_path, distribute_rows(rows, [i % 3 for i in range(200)]))
    partitions = dp.Table.open(tmp_path, DOMAIN).partitions
    one, many = rows_beyond_bound(partitions, 3), rows_beyond_bound(partitions, 3, memory=600)
    assert buckets(100, 300) > 30
    assert one.keys() == many.keys()
    assert all(np.array_equal(one[part], many[part]) for part in one)


def test_only_counted_columns_are_read(tmp_path):
    pq.write_table(pa.table({"unit": [1, 1], "a": [0, 1]}), tmp_path / "x.parquet")
    partitions = dp.Table.open(tmp_path, DOMAIN).partitions
    assert sum(map(len, rows_beyond_bound(partitions, 1, names=("a",)).values())) == 1
    with refused(dp.DataError):
        rows_beyond_bound(partitions, 1)


@pytest.mark.parametrize(
    "units",
    [
        pa.array([1, None]),
        pa.array(["x", None]),
        pa.array([1.0, float("nan")]),
        pa.array(["x", None]).dictionary_encode(),
        pa.array(["x", "  "]),
        pa.array([[1], [2]]),
        pa.array([{"k": 1}, {"k": 2}]),
    ],
)
def test_invalid_unit_column_is_refused(tmp_path, units):
    pq.write_table(pa.table({"unit": units, "a": [0, 1], "b": [0, 1]}), tmp_path / "x.parquet")
    with refused(dp.DataError):
        rows_beyond_bound(dp.Table.open(tmp_path, DOMAIN).partitions, 1)


def test_unit_column_may_be_an_attribute(tmp_path):
    domain = dp.Domain({"unit": 5, "a": 3})
    pq.write_table(pa.table({"unit": [1, 1, 2], "a": [0, 1, 0]}), tmp_path / "x.parquet")
    groups = partition_groups(dp.Table.open(tmp_path, domain).partitions, 1)
    out = rows_beyond(ENGINE, domain, groups, "unit", 1, 3, 1 << 20)
    assert sum(map(len, out.values())) == 1
