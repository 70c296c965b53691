"""Decoded values are encoded to the same cells and have the types of the input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpscale.domain import Domain
from dpscale.domain.domain_schema import from_table
from dpscale.privacy.streams import PublicStream
from dpscale.records.encode import encode
from dpscale.synthesis.decode import column, column_of, read_column, table_of, type_of, values_inside

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


TYPES = ["timestamp[s]", "timestamp[ns]", "timestamp[ms, tz=UTC]", "timestamp[us, tz=Europe/Berlin]", "string",
         "large_string", "date32[day]"]  # fmt: skip
DATES = [("day", "2024-03-28", "2024-04-02", 6), ("week", "2024-W10", "2024-W14", 5),
         ("month", "2024-02", "2024-11", 10), ("year", "2023", "2025", 3)]  # fmt: skip


@pytest.mark.parametrize("zone", ["", "Europe/Berlin", "America/Havana", "America/Sao_Paulo", "Africa/Cairo"])
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("dates", DATES, ids=[one[0] for one in DATES])
def test_dates_in_the_type_of_their_column_stay_in_their_cells(name: str, zone: str, dates: Any) -> None:
    by, low, high, cells = dates
    attribute = from_table("x", {"kind": "date", "by": by, "low": low, "high": high, "zone": zone, "nulls": "category"})
    drawn = np.random.default_rng(0).integers(0, cells + 1, 2000).astype(np.int32)
    inside, wanted = values_inside(attribute, drawn, PublicStream("r", "v")), type_of(name)
    for times in (None, PublicStream("r", "times")):
        values = column_of(attribute, drawn, inside, wanted, times)
        assert str(values.type) == name
        assert (encode(attribute, values) == drawn).all()
    if pa.types.is_timestamp(wanted):
        unit = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[wanted.unit]
        ticks = values.drop_null().cast(pa.int64()).to_numpy()
        share = ticks / (86400 * unit) % 1
        assert np.histogram(share, 4, (0, 1))[0] == pytest.approx(len(share) / 4, rel=0.25)
        assert wanted.unit == "s" or (ticks % unit > 0).any()


def test_midnight_is_the_first_instant_of_the_local_day() -> None:
    table = {"kind": "date", "by": "day", "low": "2024-03-31", "high": "2024-04-01", "zone": "Europe/Berlin"}
    attribute, cells = from_table("x", table), np.array([0, 1], np.int32)
    values = column(attribute, cells, PublicStream("r", "v"), pa.timestamp("us", "UTC"))
    assert [str(one) for one in values.to_pylist()] == ["2024-03-30 23:00:00+00:00", "2024-03-31 22:00:00+00:00"]


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%d-%b-%y", "%B %d %Y", "%Y-%m"])
def test_texts_of_dates_have_the_stated_format(form: str) -> None:
    attribute = from_table("x", {"kind": "date", "by": "month", "low": "2023-11", "high": "2024-10", "format": form})
    cells = np.arange(12, dtype=np.int32)
    values = column(attribute, cells, PublicStream("r", "v"), pa.string())
    assert (encode(attribute, values) == cells).all()
    assert read_column(Domain([attribute]), {"x": "string"}, "x", values) == values
    days = column(attribute, cells, PublicStream("r", "v")).to_pylist()
    assert values.to_pylist() == [day.strftime(form) for day in days]


def test_times_beyond_the_range_of_nanoseconds_are_days() -> None:
    attribute = from_table("x", {"kind": "date", "by": "year", "low": 2024, "high": 2300})
    cells = np.array([0, 276], np.int32)
    assert column(attribute, cells, PublicStream("r", "v"), pa.timestamp("ns")).type == pa.date32()
    assert column(attribute, cells, PublicStream("r", "v"), pa.timestamp("us")).type == pa.timestamp("us")
