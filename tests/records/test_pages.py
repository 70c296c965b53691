"""Codes decoded directly from Parquet pages against pyarrow values, and damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.base.errors import DataError
from dpscale.counting.count import encode_batch
from dpscale.records import pages, parquet
from dpscale.records.parquet import values, values as levels
from dpscale.records.table import Partition, Table

ROWS = 5000
WAYS: dict[str, dict[str, Any]] = {
    "usual": {},
    "zstd": {"compression": "zstd"},
    "gzip": {"compression": "gzip"},
    "none": {"compression": "none"},
    "newer pages": {"data_page_version": "2.0"},
    "newer pages, zstd": {"data_page_version": "2.0", "compression": "zstd"},
    "old types": {"version": "1.0"},
    "small pages": {"data_page_size": 64, "write_batch_size": 37},
    "row groups": {"row_group_size": 701},
    "dictionaries too large": {"dictionary_pagesize_limit": 1000, "write_batch_size": 100, "data_page_size": 256},
    "no dictionaries": {"use_dictionary": False},
    "mixed": {"use_dictionary": ["int64", "text"], "compression": {"int64": "zstd", "text": "snappy"}},
}
KINDS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


def make_columns(nulls: bool, runs: bool) -> dict[str, pa.Array]:
    """Return a column of every kind; one in ten values is null, and values are in runs of 250 or independent."""
    random, mask = np.random.default_rng(0), None

    def draw_values(most: int) -> Any:
        return np.repeat(random.integers(0, most, ROWS // 250), 250) if runs else random.integers(0, most, ROWS)

    found = {}
    for kind in KINDS:
        mask = random.random(ROWS) < 0.1 if nulls else None
        found[kind] = pa.array(draw_values(100).astype(kind), mask=mask)
    found["wide"] = pa.array(draw_values(3000), mask=mask)
    found["text"] = pa.array(np.array([f"value {v}" for v in range(20)])[draw_values(20)], mask=mask)
    found["digits"] = pa.array(draw_values(12).astype(str), mask=mask)
    found["factor"] = found["text"].dictionary_encode()
    for most in (1, 2, 3, 4, 7, 16):
        found[f"below {most}"] = pa.array(draw_values(most) + 3, mask=mask)
    found["flag"], found["day"] = pa.array(draw_values(2).astype(bool), mask=mask), pa.array(draw_values(9), pa.int32())
    return found


def make_domain(names: Any, nulls: str, outside: str) -> dp.Domain:
    """Return a domain with cells for most of the values, so that some are outside."""
    policies = {key: how for key, how in {"nulls": nulls, "outside": outside}.items() if how}
    attributes: dict[str, Any] = {name: {"kind": "integer", "low": 3, "high": 90, **policies} for name in names}
    attributes |= {name: {"kind": "bins", "edges": [5, 20, 70, 90], **policies} for name in ("float32", "float64")}
    attributes["wide"] = {"kind": "coded", "size": 2900, **policies}
    texts = {"kind": "categories", "values": [f"value {v}" for v in range(1, 18)], **policies}
    return dp.Domain.from_dict({"attributes": attributes | {"text": texts, "factor": texts}})


def test_definition_levels_equal_bits_for_all_run_lengths() -> None:
    """Oracle: bits written one by one; runs have any length, and pages may end within a run."""
    random = np.random.default_rng(2)
    for _ in range(200):
        data, bits = bytearray(), []
        while len(bits) < 300:
            if random.random() < 0.5:
                length, bit = int(random.choice([1, 5, 8, 63, 64, 65, 130])), int(random.integers(2))
                data += bytes(
                    [length << 1 & 127 | (128 if length > 63 else 0), *([length >> 6] if length > 63 else []), bit]
                )
                bits += [bit] * length
            else:
                groups = random.integers(0, 256, random.integers(1, 12)).tolist()
                data += bytes([len(groups) << 1 | 1, *groups])
                bits += [group >> place & 1 for group in groups for place in range(8)]
        first, count = int(random.integers(0, 100)), int(random.integers(1, 200))
        raw, words = np.frombuffer(bytes(data) + bytes(8), np.uint8), np.zeros((first + count) // 64 + 3, np.uint64)
        assert levels.level_bits(raw, 0, len(data), first + count, words)
        assert levels.ones_before(words, first) == sum(bits[:first])
        mine = np.array(bits[first : first + count], bool)
        for kind in (np.uint8, np.uint16):
            values, out = random.integers(0, 200, mine.sum() + 8).astype(kind), np.empty(count, kind)
            levels.expand(words, first, count, values, kind(255), out)
            right = np.full(count, 255, kind)
            right[mine] = values[: mine.sum()]
            np.testing.assert_array_equal(out, right)
        assert not levels.level_bits(raw, 0, len(data), len(bits) + 1, np.zeros(len(bits) // 64 + 3, np.uint64))


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_dictionary_index_out_of_range_is_detected(width: int) -> None:
    random, groups = np.random.default_rng(width), 40
    entries, count = 2**width - (width > 1), 8 * groups
    table = np.zeros(256, np.int32)
    table[:entries] = random.integers(0, 200, entries)
    for planted in (None, 0, 17, count - 1):
        indices = random.integers(0, entries, count)
        if planted is not None and width > 1:
            indices[planted] = entries
        flat = (indices[:, None] >> np.arange(width) & 1).astype(np.uint8).reshape(-1)
        raw, out = np.append(np.packbits(flat, bitorder="little"), np.zeros(8, np.uint8)), np.empty(count, np.uint8)
        table_of_bytes = values.packs_of(table, entries, width, 5000, out)
        assert len(table_of_bytes)
        assert values.by_packs(raw, 0, width, groups, table_of_bytes, out) == (planted is None or width == 1)
        if planted is None:
            np.testing.assert_array_equal(out, table[indices])


def read_codes(path: Path, domain: dp.Domain, ours: bool) -> tuple[Any, Any]:
    """Return the codes and the dropped rows of a file."""
    part, names = Partition(str(path)), domain.names
    every = [encode_batch(domain, batch, names) for batch in part.batches(names, domain=domain if ours else None)]
    gone = [np.zeros(codes.shape[1], bool) if gone is None else gone for codes, gone in every]
    if not every:  # a damaged footer may tell of no row group
        return np.empty((len(names), 0), np.uint8), np.empty(0, bool)
    return np.concatenate([codes for codes, _ in every], axis=1), np.concatenate(gone)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("nulls", "runs"), [
    (True, True), pytest.param(False, False, marks=pytest.mark.slow), pytest.param(True, False, marks=pytest.mark.slow),
])  # fmt: skip
@pytest.mark.parametrize("narrow", [True, False])
def test_page_codes_equal_value_codes(way: str, nulls: bool, runs: bool, narrow: bool, tmp_path: Path) -> None:
    """With `narrow` all codes have one byte, and several are looked up at a time."""
    every = {name: column for name, column in make_columns(nulls, runs).items() if not narrow or name != "wide"}
    pq.write_table(pa.table(every), tmp_path / "x.parquet", **WAYS[way])
    for policy in ("category", "drop"):
        domain = make_domain(every, policy, policy)
        if narrow:
            domain = dp.Domain.from_dict({"attributes": {
                name: about for name, about in domain.to_dict()["attributes"].items() if name != "wide"}})  # fmt: skip
        for one, other in zip(
            *(read_codes(tmp_path / "x.parquet", domain, ours) for ours in (True, False)), strict=True
        ):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("way", ["usual", "row groups", "no dictionaries"])
def test_first_values_of_a_process_are_read_by_pyarrow(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small jobs need no loops; codes are the same, and files after the first values are read by the loops."""
    columns = make_columns(nulls=True, runs=False)
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", **WAYS[way])
    sizes = {name: {"kind": "categories", "values": column.unique().drop_null().to_pylist(), "nulls": "category"}
             for name, column in columns.items() if name in ("int64", "text")}  # fmt: skip
    table, seen = Table.open(tmp_path / "x.parquet", dp.Domain(sizes)), []
    decoded = pages.Decoded
    monkeypatch.setattr(pages, "Decoded", lambda *rest: seen.append(1) or decoded(*rest))
    monkeypatch.setattr(parquet, "_values_read", 0)
    counts = []
    for first in (3 * ROWS, 3 * ROWS, 0):  # enough for one reading
        monkeypatch.setattr(parquet, "FIRST_VALUES", first)
        counts.append(dp.count_marginals(table, [("int64", "text")])["int64", "text"].tolist())
        assert bool(seen) == (len(counts) > 1)
    assert counts[0] == counts[1] == counts[2]


def test_small_row_groups_are_read_by_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = make_columns(nulls=True, runs=False)
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=100)
    domain = dp.Domain({"text": {"kind": "categories", "values": columns["text"].unique().drop_null().to_pylist(),
                                 "nulls": "category"}})  # fmt: skip
    table, seen = Table.open(tmp_path / "x.parquet", domain), []
    decoded = pages.Decoded
    monkeypatch.setattr(pages, "Decoded", lambda *rest: seen.append(1) or decoded(*rest))
    counts = []
    for rows, loops in ((101, False), (100, True)):
        monkeypatch.setattr(parquet, "SMALL_GROUP", rows)
        counts.append(dp.count_marginals(table, [("text",)])["text",].tolist())
        assert bool(seen) == loops
    assert counts[0] == counts[1]


def test_windows_and_batches_may_split_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table(make_columns(True, False)), tmp_path / "x.parquet", data_page_size=300, write_batch_size=50)
    domain = make_domain(make_columns(True, False), "category", "category")
    whole = read_codes(tmp_path / "x.parquet", domain, True)[0]
    monkeypatch.setattr("dpscale.records.parquet.batch_rows", lambda columns: 333)
    monkeypatch.setattr(pages, "WINDOW_VALUES", 16 * 777)
    np.testing.assert_array_equal(read_codes(tmp_path / "x.parquet", domain, True)[0], whole)


def test_dictionaries_are_decoded_by_dpscale(tmp_path: Path) -> None:
    """Without this check the other tests might compare pyarrow with itself."""
    pq.write_table(pa.table(make_columns(True, False)), tmp_path / "x.parquet")
    domain = make_domain(make_columns(True, False), "category", "category")
    [batch] = Partition(str(tmp_path / "x.parquet")).batches(domain.names, domain=domain)
    here = {name for name, column in batch.items() if isinstance(column, np.ndarray)}
    assert here == set(domain.names) - {"flag"}


@pytest.mark.parametrize("nulls", [True, False])
def test_refusal_texts_equal_those_of_values(nulls: bool, tmp_path: Path) -> None:
    pq.write_table(pa.table(make_columns(nulls, False)), tmp_path / "x.parquet")
    for name in make_columns(nulls, False):
        every = make_domain(make_columns(nulls, False), "", "" if not nulls else "category").to_dict()["attributes"]
        domain, results = dp.Domain.from_dict({"attributes": {name: every[name]}}), []
        for ours in (True, False):
            try:
                results.append(str(read_codes(tmp_path / "x.parquet", domain, ours)[0].sum()))
            except DataError as error:
                results.append(str(error))
        assert results[0] == results[1]


@pytest.mark.parametrize("way", ["usual", "zstd", "none", "newer pages", "small pages"])
def test_damaged_file_is_refused_or_codes_stay_in_domain(way: str, tmp_path: Path) -> None:
    """With bytes changed anywhere, the codes stay within the domain or an error names the file."""
    pq.write_table(pa.table(make_columns(True, False)).slice(0, 600), tmp_path / "whole.parquet", **WAYS[way])
    domain, good = (
        make_domain(make_columns(True, False), "category", "category"),
        (tmp_path / "whole.parquet").read_bytes(),
    )
    random, refused, sizes = np.random.default_rng(1), 0, np.array([domain[name].size for name in domain.names])
    for _ in range(150):
        bad = np.frombuffer(good, np.uint8).copy()
        bad[random.integers(4, len(bad) - 8, random.integers(1, 20))] = random.integers(0, 256)
        (tmp_path / "bad.parquet").write_bytes(bad)
        try:
            codes, _ = read_codes(tmp_path / "bad.parquet", domain, True)
        except DataError as error:
            refused += "bad.parquet" in str(error)
        else:
            assert (codes < sizes[:, None]).all()
    assert refused > 20


def test_file_with_other_columns_is_counted(tmp_path: Path) -> None:
    frame = pa.table({"a": [1, 2, 1], "nested": [{"x": 1, "y": 2}] * 3, "b": [0, 1, 1]})
    pq.write_table(frame, tmp_path / "x.parquet")
    table = Table.open(tmp_path, dp.Domain({"a": 3, "b": 2}))
    found = dp.count_marginals(table, [("a", "b")])
    assert found["a", "b"].tolist() == [[0, 0], [1, 1], [0, 1]]
