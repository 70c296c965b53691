"""Contribution bounds by exchange of shards keep the rows of the earlier implementation (`old_units`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

import dpscale as dp
from dpscale.contributions import few_rows, unit_hashes, unit_loops, units
from dpscale.contributions.unit_ids import identities
from dpscale.contributions.unit_shards import MOST_BUCKETS, Dealing, UnitMap
from dpscale.engine import contribution_bounds
from dpscale.engine.contribution_bounds import rows_beyond, send_dropped_rows
from dpscale.engine.counting import partition_groups
from dpscale.engine.schedulers import LocalEngine
from dpscale.records.where import RowMask
from dpscale.storage import scratch
from tests.engine import old_units

UNITS = st.one_of(st.none(), st.integers(0, 5), st.integers(0, 40))


def make_domain(dropping):
    policies = {"outside": "drop", "nulls": "drop"} if dropping else {}
    return dp.Domain.from_dict({"attributes": {name: {"kind": "coded", "size": 3, **policies} for name in "ab"}})


def write(folder, pieces):
    for number, piece in enumerate(pieces):
        columns = {name: pa.array([row[i] for row in piece], pa.int64()) for i, name in enumerate(("unit", "a", "b"))}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=7)


def compare_rules(engine, domain, partitions, workers, bound, memory, **options):
    """Return the rows excluded by the current and the earlier rule, by partition, ascending."""
    groups, arguments = partition_groups(partitions, workers), ("unit", bound, 60)
    now = rows_beyond(engine, domain, groups, *arguments, memory, **options)
    then = old_units.rows_beyond(domain, groups, *arguments, 1 << 30, **options)
    return {part: rows.places.tolist() for part, rows in now.items()}, {
        part: rows.tolist() for part, rows in then.items() if len(rows)
    }


@st.composite
def tables(draw):
    """Draw rows in files, with null units and with values that are dropped."""
    dropping = draw(st.booleans())
    value = st.integers(0, 3 if dropping else 2)
    row = st.tuples(UNITS, value, value)
    return dropping, draw(st.lists(st.lists(row, min_size=1, max_size=25), min_size=1, max_size=5))


@settings(max_examples=60, deadline=None)
@given(
    tables(), st.integers(1, 4), st.integers(1, 3), st.sampled_from([200, 2000, 1 << 14, 1 << 30]),
    st.sampled_from([2, 7, 1 << 16]), st.booleans(), st.sampled_from([0, 4, few_rows.FEW]),
)  # fmt: skip
def test_exchange_keeps_rows_of_earlier_rule(tmp_path_factory, table, bound, workers, memory, near, heavy, few):
    """With few and many buckets, single and grouped, in one or many segments, in memory and on disk."""
    dropping, pieces = table
    folder = tmp_path_factory.mktemp("units")
    write(folder, pieces)
    domain = make_domain(dropping)
    engine, partitions = LocalEngine("threads", 2), dp.Table.open(folder, domain).split().partitions
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "HEAVY_ROWS", 2 if heavy else units.HEAVY_ROWS)
        patch.setattr(few_rows, "FEW", few)
        patch.setattr(units, "NEAR_ROWS", near)
        patch.setattr(contribution_bounds, "BATCHES_A_WORKER", 2)
        patch.setattr(contribution_bounds, "LEAST_SEGMENT", 5)
        patch.setattr(contribution_bounds, "KEYS_SENT", 2)
        now, then = compare_rules(engine, domain, partitions, workers, bound, memory, drop=True)
        assert now == then
        through = UnitMap.made(
            identities(pa.array([1, 2, 3, 30]), "u").words, identities(pa.array([1, 1, 2, 1]), "u").words
        )
        now, then = compare_rules(engine, domain, partitions, workers, bound, memory, drop=True, through=through)
        assert now == then


def test_planted_rule_without_tie_order_is_detected(tmp_path, monkeypatch):
    """Planted fault: another one of several equal rows stays."""
    write(tmp_path, [[(1, 0, 0)] * 3, [(1, 0, 0)] * 3])
    domain = make_domain(False)
    partitions = dp.Table.open(tmp_path, domain).partitions
    now, then = compare_rules(LocalEngine("synchronous"), domain, partitions, 2, 2, 1 << 20)
    assert now == then
    beyond = few_rows.beyond
    monkeypatch.setattr(few_rows, "beyond", lambda rows, bound: beyond(rows[::-1].copy(), bound)[::-1])
    now, then = compare_rules(LocalEngine("synchronous"), domain, partitions, 2, 2, 1 << 20)
    assert now != then


@pytest.mark.parametrize("bound", [1, 2, 5])
def test_small_and_large_units_keep_smallest_values(bound):
    """Oracle: the rows of each unit sorted by value and then by position, with ties."""
    random = np.random.default_rng(bound)
    sizes = np.repeat([1, 2, 5, 15, 16, 17, 40], 20)
    unit = random.permutation(np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes))
    rows = np.stack([unit * np.uint64(977), unit, random.choice([3, 5, 1 << 60], len(unit)).astype(np.uint64)], axis=1)
    right = np.zeros(len(rows), bool)
    for one in range(len(sizes)):
        mine = np.flatnonzero(unit == one)
        right[mine[np.lexsort((mine, rows[mine, 2]))][bound:]] = True
    np.testing.assert_array_equal(unit_loops.beyond(rows, bound), right)
    np.testing.assert_array_equal(few_rows.beyond(rows, bound), right)


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_few_rows_are_treated_as_by_the_loops(rows):
    """Units and values that repeat, rows of no unit, and periods."""
    random = np.random.default_rng(rows)
    units = random.integers(0, 40, (rows, 1)).astype(np.uint64) * np.array([977, 1 << 63], np.uint64)
    values = random.integers(0, 5, rows).astype(np.uint64) << np.uint64(47)
    apart = random.choice(np.array([0, 0, 0, 1, 2], np.uint8), rows)
    results = []
    for functions in (few_rows, unit_loops):
        counts, buckets = np.zeros(9, np.int64), np.empty(rows, np.uint16)
        functions.buckets_of(units, apart, np.uint64(5), counts, buckets)
        ends = np.append(0, np.cumsum(counts[:6]))
        places, dealt, flags = 3 + ends, np.empty((counts[:7].sum(), 3), np.uint64), np.empty(rows, bool)
        functions.deal(units, values, buckets, ends, dealt)
        functions.mark(buckets, places, random_bits(rows), flags)
        gone = [functions.beyond_periods(dealt, bound, most) for bound in (1, 3) for most in (1, 2, 9)]
        results.append([buckets, counts, ends, places, dealt, flags, *gone, functions.beyond(dealt, 2)])
    for own, other in zip(*results, strict=True):
        np.testing.assert_array_equal(own, other)


def random_bits(rows):
    return np.random.default_rng(1).integers(0, 256, rows // 8 + 2).astype(np.uint8)


def write_many_rows(folder, count=60_000, files=6):
    """Write units with few rows and one with a third of all rows."""
    rng = np.random.default_rng(3)
    for number in range(files):
        rows = count // files
        unit = np.where(rng.random(rows) < 0.3, 7, rng.integers(0, count // 5, rows))
        table = pa.table({"unit": unit, "a": rng.integers(0, 3, rows), "b": rng.integers(0, 3, rows)})
        pq.write_table(table, folder / f"{number}.parquet")
    return dp.Table.open(folder, make_domain(False)).partitions


@pytest.mark.parametrize(
    ("scheduler", "memory"), [("threads", 1 << 20), pytest.param("processes", 1 << 24, marks=pytest.mark.slow)]
)
def test_threads_and_processes_keep_rows_of_earlier_rule(tmp_path, scheduler, memory):
    partitions = write_many_rows(tmp_path)
    groups, domain = partition_groups(partitions, 2), make_domain(False)
    now = rows_beyond(LocalEngine(scheduler, 2), domain, groups, "unit", 3, 60_000, memory)
    then = old_units.rows_beyond(domain, groups, "unit", 3, 60_000, 1 << 30)
    assert {part: rows.places.tolist() for part, rows in now.items()} == {p: rows.tolist() for p, rows in then.items()}


def test_number_of_buckets_is_limited(tmp_path):
    """The guessed number of rows is far too high, as for a compressed file, and the memory is small."""
    partitions, dealings = write_many_rows(tmp_path), []
    groups, domain = partition_groups(partitions, 2), make_domain(False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contribution_bounds, "Dealing", lambda **given: dealings.append(Dealing(**given)) or dealings[0])
        patch.setattr(contribution_bounds, "LEAST_ROWS", 1)
        patch.setattr(contribution_bounds, "LEAST_SEGMENT", 1 << 18)
        now = rows_beyond(LocalEngine("threads", 2), domain, groups, "unit", 3, 200_000, 4 * units.ROW_BYTES)
    assert dealings[0].buckets == MOST_BUCKETS
    then = old_units.rows_beyond(domain, groups, "unit", 3, 60_000, 1 << 30)
    assert {part: rows.places.tolist() for part, rows in now.items()} == {p: rows.tolist() for p, rows in then.items()}


@pytest.mark.parametrize(("rows", "memory"), [(10, 1 << 30), (10**6, 1 << 20), (10**8, 1 << 30), (10**11, 1 << 34)])
def test_batch_of_buckets_fits_memory(rows, memory):
    count = units.buckets(rows, memory)
    each = units.together(rows, count, memory, 16)
    assert each == 1 or (rows / count * each * units.ROW_BYTES <= memory and count >= 16)
    assert rows / count * units.ROW_BYTES <= memory


def test_each_file_is_read_once(tmp_path, monkeypatch):
    partitions, read = write_many_rows(tmp_path), []
    batches = type(partitions[0]).batches

    def record_read(self, *arguments):
        read.append(self.path)
        return batches(self, *arguments)

    monkeypatch.setattr(type(partitions[0]), "batches", record_read)
    rows_beyond(LocalEngine("synchronous"), make_domain(False), [partitions], "unit", 3, 60_000, 1 << 18)
    assert sorted(read) == sorted(part.path for part in partitions)


def test_scratch_files_contain_no_hash_and_are_removed(tmp_path, monkeypatch):
    """All written bytes are searched for the hashes of ids and rows."""
    partitions, seen, folder = write_many_rows(tmp_path, 6000), [], tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(folder))
    append = scratch.Sealed.append

    def append_and_check(self, array):
        start = append(self, array)
        own = Path(self._path)
        assert own.stat().st_mode & 0o777 == 0o600
        assert own.parent.stat().st_mode & 0o777 == 0o700
        seen.append((own.read_bytes(), array.tobytes(), array.dtype == np.uint64))
        return start

    monkeypatch.setattr(scratch.Sealed, "append", append_and_check)
    engine = LocalEngine("synchronous")
    engine.shares_memory = False  # as processes have it
    rows_beyond(engine, make_domain(False), [partitions], "unit", 3, 6000, 1 << 10)
    hashes = identities(pa.array([7]), "unit").words.reshape(-1)
    assert seen
    for written, plain, of_rows in seen:
        assert len(written) >= len(plain)
        assert all(word.tobytes() in plain for word in hashes) or not of_rows
        assert not any(word.tobytes() in written for word in hashes)
        assert plain[:64] not in written
    assert not any(folder.iterdir())


@given(st.lists(st.booleans(), min_size=1, max_size=100), st.integers(0, 99), st.integers(1, 120))
def test_row_mask_equals_flags(flags, first, rows):
    marked = RowMask.of(np.array(flags))
    wanted = (flags + [False] * 300)[first : first + rows]
    assert marked.within(first, rows).tolist() == wanted
    assert marked.places.tolist() == np.flatnonzero(flags).tolist()
    assert len(marked) == sum(flags)
    assert "True" not in repr(marked)


def test_large_masks_are_sent_once(monkeypatch):
    engine, dropped = LocalEngine("synchronous"), {"part": RowMask.of(np.ones(100, dtype=bool))}
    assert send_dropped_rows(engine, dropped) is dropped
    monkeypatch.setattr(contribution_bounds, "SMALL", 3)
    assert send_dropped_rows(engine, dropped) == dropped


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32])
def test_value_hashes_equal_earlier_hashes(kind):
    codes = np.random.default_rng(0).integers(0, 200, (7, 1003)).astype(kind)
    for functions in (few_rows, unit_hashes):
        np.testing.assert_array_equal(functions.mixed(codes), old_units.hash_values(codes))
