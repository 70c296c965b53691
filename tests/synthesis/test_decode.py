"""Decoded values are encoded to the same cells and have the types of the input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpscale.domain.domain_schema import from_table
from dpscale.privacy.streams import PublicStream
from dpscale.records.encode import encode
from dpscale.synthesis.decode import column, table_of, type_of

TABLES: list[tuple[dict[str, Any], pa.DataType]] = [
    ({"kind": "integer", "low": -3, "high": 60}, pa.int16()),
    ({"kind": "integer", "low": 0, "high": 9, "nulls": "category"}, pa.float64()),
    ({"kind": "coded", "size": 7}, pa.uint8()),
    ({"kind": "categories", "values": ["ä", "東京", "x y"], "nulls": "category"}, pa.string()),
    ({"kind": "categories", "values": ["a", "b"], "outside": "category"}, pa.large_string()),
    ({"kind": "categories", "values": [1, 5, 9]}, pa.int32()),
    ({"kind": "categories", "values": [True, False]}, pa.bool_()),
    ({"kind": "bins", "edges": [0, 0.5, 7.25, 1e6]}, pa.float64()),
    ({"kind": "bins", "edges": [0, 10, 11, 50], "nulls": "category"}, pa.int64()),
    ({"kind": "bins", "edges": [0, 1, 2]}, pa.decimal128(12, 2)),
]


@pytest.mark.parametrize(("table", "wanted"), TABLES, ids=[f"{t['kind']} {w}" for t, w in TABLES])
def test_decoded_values_are_encoded_to_same_cells(table: dict[str, Any], wanted: pa.DataType) -> None:
    attribute = from_table("x", table)
    cells = np.random.default_rng(0).integers(0, attribute.size, 500).astype(np.int32)
    values = column(attribute, cells, PublicStream("r", "values"), wanted)
    assert values.type == wanted
    assert (encode(attribute, values) == cells).all()


def test_bins_are_filled_evenly_with_integers_for_integer_columns() -> None:
    attribute = from_table("x", {"kind": "bins", "edges": [0, 10, 20]})
    cells = np.zeros(4000, np.int32)
    whole = column(attribute, cells, PublicStream("r", "values"), pa.int64()).to_numpy()
    assert np.bincount(whole) == pytest.approx(400, abs=100)
    real = column(attribute, cells, PublicStream("r", "values"), pa.float64()).to_numpy()
    assert (real % 1 > 0).any()
    assert real.mean() == pytest.approx(5, abs=0.2)


def test_outside_cell_is_null_or_text_label() -> None:
    numbers = from_table("x", {"kind": "integer", "low": 0, "high": 1, "outside": "category"})
    assert column(numbers, np.array([0, 2], np.int32), PublicStream("r", "v")).to_pylist() == [0, None]
    texts = from_table("x", {"kind": "categories", "values": ["a"], "outside": "category"})
    assert column(texts, np.array([0, 1], np.int32), PublicStream("r", "v")).to_pylist() == ["a", "(outside)"]


def test_unsuitable_type_is_ignored() -> None:
    attribute = from_table("x", {"kind": "categories", "values": ["a", "b"]})
    assert column(attribute, np.array([0, 1], np.int32), PublicStream("r", "v"), pa.int64()).type == pa.string()
    assert type_of("no such type") is None
    assert type_of("decimal128(9, 3)") == pa.decimal128(9, 3)


def test_parquet_file_has_no_metadata(tmp_path) -> None:
    table = table_of({"a": pa.array([1, 2]), "b": pa.array(["x", None])})
    pq.write_table(table, tmp_path / "t.parquet", store_schema=False)
    assert table.schema.metadata is None
    assert pq.read_metadata(tmp_path / "t.parquet").metadata is None
