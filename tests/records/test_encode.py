"""Encoding against an oracle that takes one value at a time, for every kind, policy and column type."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from dpscale.base.errors import DataError
from dpscale.domain import Domain
from dpscale.records.encode import code_type, encode, judged
from tests.messages import refused
from tests.records import naive
from tests.strategies import columns, domains


def make_attribute(**table):
    return Domain.from_dict({"attributes": {"x": table}})["x"]


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_encoding_equals_oracle(data):
    one = data.draw(domains(most=1)).attributes[0]
    column = data.draw(columns(one))
    expected = [naive.cell(one, value) for value in naive.values_of(column)]
    if naive.REFUSED in expected:
        with pytest.raises(DataError, match="data column 'a0'"):
            encode(one, column)
        return
    gone = np.zeros(len(expected), dtype=bool) if one.drops else None
    codes = encode(one, column, gone)
    assert codes.dtype == code_type(one.size)
    assert gone is None or gone.tolist() == [cell == naive.DROPPED for cell in expected]
    assert codes.tolist() == [0 if cell == naive.DROPPED else cell for cell in expected]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_rows_are_encoded_independently(data):
    one = data.draw(domains(most=1)).attributes[0]
    column = data.draw(columns(one))

    def encode_rows(rows):
        try:
            gone = np.zeros(len(rows), dtype=bool)
            encode_rows = encode(one, rows, gone).astype(np.int64)
            return np.where(gone, -1, encode_rows).tolist()
        except DataError:
            return None

    alone = [encode_rows(column.slice(i, 1)) for i in range(len(column))]
    together = encode_rows(column)
    assert together == (None if None in alone else [code for part in alone for code in part])


def test_dictionary_with_8_bit_indices_and_nulls():
    one = make_attribute(kind="coded", size=128, nulls="category")
    column = pa.DictionaryArray.from_arrays(pa.array([0, None, 127], pa.int8()), pa.array(range(128)))
    assert encode(one, column).tolist() == [0, 128, 127]


def test_unused_dictionary_entries_are_ignored():
    one = make_attribute(kind="integer", low=0, high=9)
    column = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array(["7", "planted", None]))
    assert encode(one, column).tolist() == [7, 7]


def test_decimals_are_rounded_like_texts():
    edges = [i / 10 for i in range(100)]
    one = make_attribute(kind="bins", edges=edges)
    values = [Decimal(i).scaleb(-1).quantize(Decimal("0.000001")) for i in range(99)]
    assert encode(one, pa.array(values, pa.decimal128(30, 6))).tolist() == list(range(99))


def test_numbers_beyond_64_bits_and_floats():
    one = make_attribute(kind="integer", low=0, high=9, outside="clip")
    assert encode(one, pa.array([2**64 - 1, 3], pa.uint64())).tolist() == [9, 3]
    assert encode(one, pa.array(["1e999", "-1e999", "+4"])).tolist() == [9, 0, 4]
    strict = make_attribute(kind="integer", low=2**53 - 3, high=2**53 - 1, outside="category")
    assert encode(strict, pa.array([2**53, 2**53 - 1], pa.int64())).tolist() == [3, 2]
    assert encode(strict, pa.array([2**63, 2**53 - 2], pa.uint64())).tolist() == [3, 1]


def test_code_type_depends_on_domain_size():
    for size, width in ((256, 1), (257, 2), (65536, 2), (65537, 4)):
        one = make_attribute(kind="coded", size=size)
        codes = encode(one, pa.array([0, size - 1]))
        assert (codes.itemsize, codes.tolist()) == (width, [0, size - 1])


def test_chunks_with_different_dictionaries():
    one = make_attribute(kind="categories", values=["a", "b", "c"])
    chunks = pa.chunked_array([pa.array(["b", "a"]).dictionary_encode(), pa.array(["c", "b"]).dictionary_encode()])
    assert encode(one, chunks).tolist() == [1, 0, 2, 1]


@pytest.mark.parametrize(
    "column",
    [pa.array([datetime.date(2020, 1, 1)]), pa.array([[1]]), pa.array([{"a": 1}]), pa.array([b"x"])],
    ids=["date", "list", "struct", "binary"],
)
@pytest.mark.parametrize("table", [{"kind": "coded", "size": 9}, {"kind": "categories", "values": ["a", "b"]}])
def test_unsupported_column_type_is_refused(column, table):
    with refused(DataError):
        encode(make_attribute(**table, outside="category"), column)


def test_numbers_are_refused_for_text_categories():
    with refused(DataError):
        encode(make_attribute(kind="categories", values=["1", "2"]), pa.array([1, 2]))


def test_decimals_with_a_fraction_are_refused_for_text_categories():
    """They have the texts 1.00 and 2.00, which would be outside the domain."""
    kinds = {"kind": "categories", "values": ["1", "2"], "outside": "category", "nulls": "category"}
    attribute = make_attribute(**kinds)
    for column in (pa.array([1, None], pa.decimal128(5, 2)), pa.array([], pa.decimal128(5, 2))):
        for read in (encode, judged):
            with pytest.raises(DataError):
                read(attribute, column)
    assert encode(attribute, pa.array([2, 1], pa.decimal128(5, 0))).tolist() == [1, 0]
    assert encode(attribute, pa.array([None, None], pa.decimal128(5, 2))).tolist() == [3, 3]
    assert encode(make_attribute(**kinds | {"values": [1, 2]}), pa.array([2, 1], pa.decimal128(5, 2))).tolist() == [
        1,
        0,
    ]


@pytest.mark.parametrize(
    ("table", "column", "says"),
    [
        ({"kind": "coded", "size": 9}, pa.array([None, 1]), "a null"),
        ({"kind": "coded", "size": 9}, pa.array([float("nan"), 1]), "a null"),
        ({"kind": "coded", "size": 9}, pa.array([77]), '"clip", "category" or "drop"'),
        ({"kind": "categories", "values": ["a", "b"]}, pa.array(["zz"]), 'outside = "category" or "drop"'),
        ({"kind": "categories", "values": ["a", "b"]}, pa.array([None], pa.string()), "a null"),
        ({"kind": "coded", "size": 9, "outside": "clip"}, pa.array(["zz"]), 'unparsable = "category" or "drop"'),
        (
            {"kind": "categories", "values": ["a", "b"]},
            pa.DictionaryArray.from_arrays(pa.array([1]), pa.array(["a", None])),
            "a null",
        ),
    ],
)
def test_refusal_states_reason_and_remedy(table, column, says):
    with pytest.raises(DataError) as caught:
        encode(make_attribute(**table), column)
    assert says in str(caught.value)
    assert caught.value.field == "data column 'x'"


def test_empty_columns():
    one = make_attribute(kind="categories", values=["a", "b"])
    for column in (pa.array([], pa.string()), pa.array([], pa.string()).dictionary_encode(), pa.nulls(0)):
        assert np.array_equal(encode(one, column), [])


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
@pytest.mark.parametrize(("low", "high"), [(-100, 100), (-128, -120), (3, 120), (-1, 1)])
def test_integer_fast_path_equals_general_encoding(kind, low, high):
    one = make_attribute(kind="integer", low=low, high=high)
    values = list(range(low, high + 1))
    codes = encode(one, pa.array(values, kind))
    assert codes.dtype == code_type(one.size)
    assert codes.tolist() == [value - low for value in values]
    assert encode(one, pa.array([0, *values], kind).slice(1)).tolist() == codes.tolist()


@pytest.mark.parametrize("value", [1 << 63, (1 << 64) - 1, 256, 1 << 32])
def test_numbers_beyond_code_type_do_not_wrap(value):
    column = pa.array([0, value], pa.uint64())
    with pytest.raises(DataError):
        encode(make_attribute(kind="coded", size=200), column)
    assert encode(make_attribute(kind="coded", size=200, outside="category"), column).tolist() == [0, 200]
