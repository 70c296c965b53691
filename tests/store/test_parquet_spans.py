"""Parquet files in a store: columns are decoded from all bytes of a row group, whatever sizes the footer states."""

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.records.files import fetched_bytes
from dpscale.records.parquet import OpenParquet
from tests.messages import refused

ROWS = 200_000
SIZES = {"a": 3, "b": 200, "c": 7}


@pytest.fixture
def stored(tmp_path):
    """A table in a local file and the same file in a store."""
    rng = np.random.default_rng(2)
    columns = {name: rng.integers(0, size, ROWS).astype(np.int64) for name, size in SIZES.items()}
    local = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns), local, row_group_size=80_000, compression="none")
    url = f"memory://{tmp_path.name}/x.parquet"
    with fsspec.open(url, "wb") as file:
        file.write(local.read_bytes())
    return local, url, columns


def counts(path, names):
    domain = dp.Domain(dict(SIZES))
    found = dp.count_marginals(dp.Table.open(path, domain), [names])
    return found[names]


@pytest.mark.parametrize("names", [("a", "b", "c"), ("b",), ("a",), ("a", "c")])
def test_counts_equal_those_of_the_local_file(stored, names):
    local, url, columns = stored
    exact = np.zeros([SIZES[name] for name in names], np.int64)
    np.add.at(exact, tuple(columns[name] for name in names), 1)
    assert np.array_equal(counts(url, names), exact)
    assert np.array_equal(counts(local, names), exact)


def test_span_reaches_the_next_row_group_and_narrow_columns_are_left_to_pyarrow(stored):
    _, url, _ = stored
    source = OpenParquet(url)
    first, second = source.metadata.row_group(0), source.metadata.row_group(1)
    start = first.column(0).dictionary_page_offset or first.column(0).data_page_offset
    end = second.column(0).dictionary_page_offset or second.column(0).data_page_offset
    assert source._span(0, ["a", "b", "c"]) == (start, end)
    assert source._span(0, ["a"]) is None


class WrongSizes:
    """Metadata that understates the size of every column chunk, as some writers do."""

    def __init__(self, metadata, less):
        self._metadata, self._less = metadata, less

    def __getattr__(self, name):
        return getattr(self._metadata, name)

    def row_group(self, number):
        return WrongSizes(self._metadata.row_group(number), self._less)

    def column(self, place):
        return WrongSizes(self._metadata.column(place), self._less)

    @property
    def total_compressed_size(self):
        return self._metadata.total_compressed_size - self._less


def test_understated_size_does_not_shorten_the_bytes(stored):
    _, url, _ = stored
    source = OpenParquet(url)
    exact = source._span(2, ["a", "b", "c"])
    source.metadata = WrongSizes(source.metadata, 60)
    assert source._span(2, ["a", "b", "c"]) == exact


def test_truncated_object_is_an_error(stored):
    local, url, _ = stored
    size = local.stat().st_size
    with refused(OSError), fetched_bytes(url, 2 * size, [(0, 2 * size)]):
        pass
