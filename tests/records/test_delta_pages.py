"""Texts in DELTA_LENGTH_BYTE_ARRAY pages, as written by DuckDB, with and without dictionaries."""

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.domain import Domain

ROWS, VALUES = 50_000, 40_000


def write_duckdb_file(path, values):
    duckdb.sql(f"COPY (SELECT 's' || (range * 7919 % {values}) AS s, range % 3 AS n FROM range({ROWS})) TO '{path}' "
               "(FORMAT PARQUET, PARQUET_VERSION v2, ROW_GROUP_SIZE 20480)")  # fmt: skip
    return path


@pytest.mark.parametrize("values", [VALUES, 7])
def test_texts_of_version_2_pages_are_counted(tmp_path, values):
    path = write_duckdb_file(tmp_path / "v2.parquet", values)
    encodings = pq.ParquetFile(path).metadata.row_group(0).column(0).encodings
    assert ("DELTA_LENGTH_BYTE_ARRAY" in encodings) == (values == VALUES)
    texts = {"kind": "categories", "values": [f"s{i}" for i in range(values)]}
    domain = Domain.from_dict({"attributes": {"s": texts, "n": {"kind": "coded", "size": 3}}})
    found = dp.count_marginals(dp.Table.open(str(path), domain), [("s",), ("n",)])
    expected = np.bincount(np.arange(ROWS) * 7919 % values, minlength=values)
    assert (found[("s",)] == expected).all()
    assert (found[("n",)] == np.bincount(np.arange(ROWS) % 3)).all()


def test_files_with_different_text_encodings_are_counted(tmp_path):
    """One file has a dictionary and the next has none."""
    import pyarrow as pa

    few, many = ["a", "b"] * 5000, [f"t{i}" for i in range(10_000)]
    schema = pa.schema([("s", pa.string())])
    for name, texts in (("few", few), ("many", many)):
        encoding = {"use_dictionary": ["s"]} if name == "few" else {
            "use_dictionary": False, "column_encoding": {"s": "DELTA_LENGTH_BYTE_ARRAY"}}  # fmt: skip
        pq.write_table(pa.table({"s": texts}, schema=schema), tmp_path / f"{name}.parquet", version="2.6",
                       data_page_version="2.0", **encoding)  # fmt: skip
    domain = Domain.from_dict({"attributes": {"s": {"kind": "categories", "values": ["a", "b", *many]}}})
    found = dp.count_marginals(dp.Table.open(str(tmp_path / "*.parquet"), domain), [("s",)])[("s",)]
    assert found[:2].tolist() == [5000, 5000]
    assert (found[2:] == 1).all()
