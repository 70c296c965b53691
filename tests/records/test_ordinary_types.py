"""Values as programs write them: old times, 32-bit floats, UUIDs, bytes, columns of nulls, and dialects of text."""

import bz2
import csv
import json
import unicodedata
import uuid
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import tomli_w
from hypothesis import given, strategies as st

import dpscale as dp
from dpscale.base.arrow import as_text
from dpscale.engine.frames import frame_table
from dpscale.engine.schedulers import LocalEngine
from dpscale.job.sections import TableSection
from dpscale.records.column_values import days, numbers, plain, plain_kind, shortest
from dpscale.records.delimited import scan_quotes
from dpscale.records.encode import encode
from dpscale.records.frames import content_of, read_stream
from dpscale.records.where import matching, read_where
from tests.messages import refused

NULLS = {"nulls": "category"}


def counts(path, names=("x",), where="", origin=None, **attributes):
    domain = dp.Domain.from_dict({"attributes": attributes})
    origin = origin or TableSection(path=str(path), domain=".", **({"where": where} if where else {})).origin
    return dp.count_marginals(origin.table(str(path), domain), [names])[names].tolist()


def counts_of_frame(frame, names=("x",), **attributes):
    domain = dp.Domain.from_dict({"attributes": attributes})
    table = frame_table(read_stream(frame), domain, list(attributes), LocalEngine("synchronous"))
    return dp.count_marginals(table, [names])[names].tolist()


# Types of Parquet


@pytest.mark.parametrize("rows", [4, 300_000])
def test_times_in_96_bits_beyond_64_bit_nanoseconds(tmp_path, rows):
    times = [datetime(2024, 1, 5), datetime(9999, 12, 31), datetime(1, 1, 1), None] * (rows // 4)
    table = pa.table({"x": pa.array(times, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    month = {"kind": "date", "by": "month", "low": "2023-12", "high": "2024-02", "outside": "clip", **NULLS}
    assert counts(tmp_path, x=month) == [rows // 4] * 4


@pytest.mark.parametrize("old", [True, False])
def test_type_of_times_is_that_in_which_they_are_read(tmp_path, old):
    table = pa.table({"x": pa.array([datetime(2024, 1, 5)], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=old)
    [part] = dp.Table.open(tmp_path, dp.Domain(x=2)).partitions
    [batch] = part.batches(["x"])
    assert part.kinds(["x"])["x"] == batch["x"].type == pa.timestamp("us" if old else "ns")


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=20))
def test_32_bit_floats_are_their_shortest_decimals(values):
    narrow = np.array(values, np.float32)
    assert shortest(narrow).tolist() == [float(str(value)) for value in narrow]


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("width", [pa.float16(), pa.float32(), pa.float64(), pa.decimal128(8, 1), pa.string()])
def test_decimals_are_in_one_bin_in_every_type(tmp_path, width, dictionary):
    values = [Decimal(number) / 10 for number in range(101)]
    floats = pa.array([float(value) for value in values])
    column = pa.array(list(map(str, values))) if width == pa.string() else (
        pa.array(values, width) if pa.types.is_decimal(width) else floats.cast(width)
    )  # fmt: skip
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet", use_dictionary=dictionary)
    edges = [round(number / 10, 1) for number in range(102)]
    assert counts(tmp_path, x={"kind": "bins", "edges": edges}) == [1] * 101


def test_filter_compares_32_bit_floats_as_decimals(tmp_path):
    pq.write_table(pa.table({"x": pa.array([0.7, 0.8], pa.float32())}), tmp_path / "a.parquet")
    bins = {"kind": "bins", "edges": [0, 0.75, 1]}
    assert counts(tmp_path, where="x >= 0.7", x=bins) == [1, 1]
    assert counts(tmp_path, where="x = 0.7", x=bins) == [1, 0]


IDS = [uuid.UUID(int=number) for number in (1, 2, 1)]


def test_uuid_bytes_and_json_are_texts(tmp_path):
    uuids = pa.array([one.bytes for one in IDS], pa.binary(16)).cast(pa.uuid())
    assert plain(uuids).to_pylist() == list(map(str, IDS))
    assert plain(pa.array([None, IDS[0].bytes], pa.binary(16)).cast(pa.uuid())).to_pylist() == [None, str(IDS[0])]
    for kind in (pa.binary(), pa.large_binary(), pa.binary(1), pa.binary_view(), pa.string_view()):
        column = pa.array(["a", "b", "a"] if kind == pa.string_view() else [b"a", b"b", b"a"], kind)
        pq.write_table(pa.table({"x": column, "u": uuids}), tmp_path / "a.parquet")
        assert counts(tmp_path, x={"kind": "categories", "values": ["a", "b"]}) == [2, 1]
        column = plain(column.dictionary_encode() if kind == pa.binary() else column)
        assert as_text(column).to_pylist() == as_text(pa.chunked_array([column])).to_pylist() == ["a", "b", "a"]
    assert counts(tmp_path, ("u",), u={"kind": "categories", "values": [str(IDS[1]), str(IDS[0])]}) == [1, 2]
    document = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}']))
    assert plain(document).to_pylist() == ['{"a":1}']
    assert plain_kind(pa.list_(pa.int8())) == pa.list_(pa.int8())


def test_uuid_is_one_unit_with_its_text():
    from dpscale.contributions.unit_ids import identities

    stored = plain(pa.array([one.bytes for one in IDS], pa.binary(16)).cast(pa.uuid()))
    texts = pa.array([str(one) for one in IDS])
    assert identities(stored, "u").words.tolist() == identities(texts, "u").words.tolist()


@pytest.mark.parametrize("kind", [pa.float64(), pa.int32(), pa.int64(), pa.null()])
@pytest.mark.parametrize("first", [True, False])
def test_column_of_nulls_fits_texts_and_dates(tmp_path, kind, first):
    names = ("0.parquet", "1.parquet") if first else ("1.parquet", "0.parquet")
    nulls = pa.array([None, None], kind)
    pq.write_table(pa.table({"x": nulls, "d": nulls}), tmp_path / names[0])
    pq.write_table(pa.table({"x": ["a", "b"], "d": [date(2024, 1, 1)] * 2}), tmp_path / names[1])
    attributes = {"x": {"kind": "categories", "values": ["a", "b"], **NULLS},
                  "d": {"kind": "date", "by": "year", "low": 2024, "high": 2024, **NULLS}}  # fmt: skip
    assert counts(tmp_path, **attributes) == [1, 1, 2]
    assert counts(tmp_path, ("d",), **attributes) == [2, 2]
    assert counts(tmp_path, where="x = 'a'", **attributes) == [1, 0, 0]
    with refused(dp.DataError):  # a value is a value
        encode(dp.Domain.from_dict({"attributes": attributes})["x"], pa.array([None, 1.0]))


def test_all_nan_column_is_null():
    domain = dp.Domain.from_dict({"attributes": {"x": {"kind": "categories", "values": ["a"], **NULLS}}})
    assert encode(domain["x"], pa.array([float("nan")] * 2)).tolist() == [1, 1]


def test_columns_that_are_not_used_may_have_one_name_or_any_type(tmp_path):
    nested = pa.array([{"k": [1]}] * 2)
    table = pa.table([pa.array([0, 1]), nested, pa.array([2, 2]), nested], names=["x", "y", "y", "z"])
    pq.write_table(table, tmp_path / "a.parquet")
    assert counts(tmp_path, x={"kind": "coded", "size": 2}) == [1, 1]
    with refused(dp.DataError):
        counts(tmp_path, ("y",), y={"kind": "coded", "size": 2})
    with pa.ipc.new_file(tmp_path / "b.arrow", table.schema) as file:
        file.write_table(table)
    assert counts(tmp_path / "b.arrow", x={"kind": "coded", "size": 2}) == [1, 1]
    (tmp_path / "c.csv").write_text("x,,\n0,,\n1,,\n")
    assert counts(tmp_path / "c.csv", x={"kind": "coded", "size": 2}) == [1, 1]


# Numbers and times


def test_whole_numbers_in_texts_are_exact():
    texts = ["9007199254740993", "-9007199254740995", "+0009223372036854775000", "1.5", "x", "", "9" * 25, "-0"]
    found = numbers(pa.array(texts))
    expected = [9007199254740993, -9007199254740995, 9223372036854775000, Fraction(3, 2), 0, 0, Fraction(1e25), 0]
    exact = [int(large) or Fraction(value) for value, large in zip(found.values, found.large, strict=True)]
    assert exact == expected
    for text in texts[:3]:
        for column in (pa.array([text, "0"]), pa.array([text, "0"]).dictionary_encode(), pa.array([int(text), 0])):
            [same] = read_where(f"x = {int(text)}").conditions
            [other] = read_where(f"x = {int(text) - 1}").conditions
            assert matching(same, column).tolist() == [True, False]
            assert matching(other, column).tolist() == [False, False]


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.string(), pa.decimal128(20)])
def test_categories_of_large_integers(tmp_path, kind):
    values = [2**53, 2**53 + 1, 2**62 + 1]
    column = pa.array([Decimal(v) if pa.types.is_decimal(kind) else str(v) if kind == pa.string() else v
                       for v in [*values, values[1], 2**53 + 2]], kind)  # fmt: skip
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    assert counts(tmp_path, x={"kind": "categories", "values": values, "outside": "category"}) == [1, 2, 1, 1]


@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal128(9, 3), pa.string()])
@pytest.mark.parametrize("step", [0.1, 0.7, 0.01])
def test_decimals_half_way_between_steps_are_rounded_up(kind, step):
    attribute = dp.Domain.from_dict({"numbers": {"n": {"low": 0, "high": 70, "step": step}},
                                     "attributes": {"x": {"kind": "coded", "size": 2}}})["n"]  # fmt: skip
    exact = Fraction(str(step))
    values = [(number + Fraction(1, 2)) * exact for number in range(60)]
    texts = [str(float(value)) for value in values]
    column = (
        pa.array(texts) if kind == pa.string() else pa.array(list(map(Decimal, texts)), pa.decimal128(9, 3)).cast(kind)
    )
    assert encode(attribute, column).tolist() == [number + 1 for number in range(60)]


OFFSETS = {
    "+00": 0,
    "+01": 1,
    "-05": -5,
    "Z": 0,
    " UTC": 0,
    "UTC": 0,
    "GMT": 0,
    "+0130": 1.5,
    "-01:30": -1.5,
    " +02": 2,
}


@pytest.mark.parametrize("ending", OFFSETS)
def test_offsets_of_times(ending):
    text = f"2024-02-29 23:15:00{ending}"
    expected = (datetime(2024, 2, 29, 23, 15) - pd.Timedelta(hours=OFFSETS[ending]) - datetime(1970, 1, 1)).days
    assert days(pa.array([text])).values.tolist() == [expected]
    [same] = read_where("x < 2024-03-01").conditions
    if ending != " +02":
        assert matching(same, pa.array([text])).tolist() == [expected < 19783]
    assert days(pa.array([f"2024-02-29 23:15:00{ending}x", "2024-02-29 23:15:00+5"])).foreign.tolist() == [True, True]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Sydney", "UTC"])
def test_days_after_2037_follow_the_rules_of_the_zone(zone):
    instants = pd.date_range("2036-01-01 00:30", "2044-12-31", freq="17h", tz="UTC")
    expected = [(one.tz_convert(zone).tz_localize(None) - pd.Timestamp(0)).days for one in instants]
    column = pa.array(instants.as_unit("us"))
    assert days(column, zone).values.tolist() == expected
    far = pa.array([datetime(9999, 12, 31, 23, 59)], pa.timestamp("us", "UTC"))
    assert days(far, zone).values[0] in (2932896, 2932897)


# Delimited text


def test_nulls_of_a_file_with_one_column(tmp_path):
    path = tmp_path / "a.csv"
    values = {"kind": "categories", "values": ["a", "b"]}
    for write in (lambda: pa.csv.write_csv(pa.table({"x": ["a", None, "b", None, "a"]}), path),
                  lambda: pl.DataFrame({"x": ["a", None, "b", None, "a"]}).write_csv(path),
                  lambda: pd.DataFrame({"x": ["a", None, "b", None, "a"]}).to_csv(path, index=False)):  # fmt: skip
        write()
        assert counts(path, x={**values, **NULLS}) == [2, 1, 2]
        with refused(dp.DataError):
            counts(path, x=values)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_line_ends_in_quotes_at_the_end_of_a_block(tmp_path, encoding, monkeypatch):
    monkeypatch.setattr("dpscale.records.delimited.BLOCK_BYTES", 64)
    path, labels = tmp_path / "a.csv", ["z", "p\r\nq", "q"]
    for shift in range(64):
        text = 'x,t\n"z",' + "w" * shift + '\n"p\r\nq",1\nq,2\n'
        path.write_bytes(text.encode(encoding))
        origin = TableSection(path=str(path), domain=".", encoding=encoding).origin
        assert counts(path, origin=origin, x={"kind": "categories", "values": labels, "outside": "category"}) == [
            1,
            1,
            1,
            0,
        ]


def test_dialect_of_another_country(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'by a program\r\nsecond line\r\n# note\r\nx;t\r\n1.234,5;a\\;b\r\n# no; record\r\n"4.999";c\r\n'
                     b'12;"q\\"r"\r\n999,99;"c\n# in quotes"\r\n1,2,3;c\r\n')  # fmt: skip
    origin = TableSection(path=str(path), domain=".", delimiter=";", decimal=",", thousands=".", escape="\\",
                          comment="#", skip_lines=2).origin  # fmt: skip
    bins = {"kind": "bins", "edges": [0, 1000, 2000, 5000], "unparsable": "category", "outside": "category"}
    attributes = {"x": bins,
                  "t": {"kind": "categories", "values": ["a;b", "c", 'q"r', "c\n# in quotes"]}}  # fmt: skip
    assert counts(path, origin=origin, **attributes) == [2, 1, 1, 1]
    assert counts(path, ("t",), origin=origin, **attributes) == [1, 2, 1, 1]
    blocks = tmp_path / "long.csv"
    blocks.write_text("# first\nx\n" + "1\n# comment\n" * 30_000)
    origin = TableSection(path=str(blocks), domain=".", comment="#").origin
    assert counts(blocks, origin=origin, x={"kind": "coded", "size": 2}) == [0, 30_000]


@pytest.mark.parametrize("keys", [
    {"decimal": ";"}, {"thousands": "x"}, {"escape": "ab"}, {"comment": ""}, {"skip_lines": -1},
    {"missing_columns": "x"},
    {"decimal": ",", "thousands": ","}, {"decimal": ",", "delimiter": ","},
])  # fmt: skip
def test_invalid_keys_of_a_dialect_are_refused(keys):
    with pytest.raises((dp.JobError, ValueError)):
        TableSection(path="a.csv", domain=".", **keys)


def test_keys_of_a_dialect_are_refused_for_other_formats(tmp_path):
    pq.write_table(pa.table({"x": [0]}), tmp_path / "a.parquet")
    origin = TableSection(path=str(tmp_path), domain=".", decimal=",").origin
    with refused(dp.DataError):
        counts(tmp_path, origin=origin, x={"kind": "coded", "size": 2})


def test_decimal_mark_that_separates_fields_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x\n0\n")
    with refused(dp.DataError):
        counts(
            tmp_path,
            origin=TableSection(path=str(tmp_path), domain=".", decimal=",").origin,
            x={"kind": "coded", "size": 2},
        )


def test_bzip2_is_read_and_recognised(tmp_path):
    (tmp_path / "a.csv.bz2").write_bytes(bz2.compress(b"x\n0\n1\n"))
    assert counts(tmp_path, x={"kind": "coded", "size": 2}) == [1, 1]
    (tmp_path / "a.csv.bz2").rename(tmp_path / "a.csv")
    with refused(dp.DataError):
        counts(tmp_path, x={"kind": "coded", "size": 2})


def test_column_that_older_files_lack_is_null_on_request(tmp_path):
    pq.write_table(pa.table({"a": [0, 1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [0, 1], "x": ["b", "c"]}), tmp_path / "2.parquet")
    attributes = {"x": {"kind": "categories", "values": ["b", "c"], **NULLS}, "a": {"kind": "coded", "size": 2}}
    origin = TableSection(path=str(tmp_path), domain=".", missing_columns="null").origin
    assert counts(tmp_path, origin=origin, **attributes) == [1, 1, 2]
    with refused(dp.DataError):
        counts(tmp_path, **attributes)
    with refused(dp.DataError):
        origin.table(str(tmp_path), dp.Domain(y=2)).require(["y"])


# Frames


BATCH = pa.record_batch({"x": pa.array([1], pa.int8())})


def interval_frame():
    return pd.DataFrame({"x": pd.cut([1, 2, 2], [0, 1.5, 4])})


@pytest.mark.parametrize(("frame", "attribute", "expected"), [
    (pd.DataFrame({"x": pd.arrays.SparseArray([0, 0, 1])}), {"kind": "coded", "size": 2}, [2, 1]),
    (pl.DataFrame({"x": [1, 0, 1]}, schema={"x": pl.Int128}), {"kind": "coded", "size": 2}, [1, 2]),
    (interval_frame(), {"kind": "categories", "values": ["(0.0, 1.5]", "(1.5, 4.0]"]}, [1, 2]),
    (pa.RecordBatchReader.from_batches(BATCH.schema, iter([BATCH])),
     {"kind": "coded", "size": 2}, [0, 1]),
    (pa.record_batch({"x": [0, 1, 1]}), {"kind": "coded", "size": 2}, [1, 2]),
    (pd.DataFrame({"x": [b"b"]}), {"kind": "categories", "values": ["a", "b"]}, [0, 1]),
    (pd.DataFrame({"x": pd.Categorical(["b", None])}), {"kind": "categories", "values": ["a", "b"], **NULLS},
     [0, 1, 1]),
], ids=["sparse", "Int128", "intervals", "reader", "batch", "bytes", "categorical"])  # fmt: skip
def test_columns_of_frames_are_read(frame, attribute, expected):
    assert counts_of_frame(frame, x=attribute) == expected


class Stream:
    """Object that only has the Arrow stream protocol."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def test_any_arrow_stream_is_read():
    assert counts_of_frame(Stream(pa.table({"x": [0, 1, 1]})), x={"kind": "coded", "size": 2}) == [1, 2]


@pytest.mark.parametrize("frame", [
    pd.DataFrame([[0, 1]], columns=["x", "x"]),
    pl.Series("x", [1]),
    pl.DataFrame({"x": [2**70]}, schema={"x": pl.Int128}),
    pd.DataFrame({"x": [1, "a"]}),
    pd.DataFrame({"x": [[1], [2]]}),
    {"x": [1]},
    pa.array([1]),
])  # fmt: skip
def test_refused_frames_name_the_column(frame):
    with refused(dp.DataError) as caught:
        counts_of_frame(frame, x={"kind": "coded", "size": 2})
    assert "run it again" not in str(caught.value)


def test_labels_that_name_other_cells_are_refused():
    for policy, label in (("nulls", "(null)"), ("outside", "(outside)")):
        values = {"kind": "categories", "values": ["x", label]}
        with refused(dp.DomainError):
            dp.Domain.from_dict({"attributes": {"x": {**values, policy: "category"}}})
        mapped = {"kind": "categories", "map": {"x": ["x"], "named": [label]}, policy: "category"}
        assert len(dp.Domain.from_dict({"attributes": {"x": mapped}})["x"].labels) == 3
    assert json.dumps(label)


# Comments, marks and nulls of text that other rules touch


def rows_of(tmp_path, content, **keys):
    from dpscale.records.delimited import CSV

    (tmp_path / "a.csv").write_bytes(content)
    source = CSV.open(str(tmp_path / "a.csv"), TableSection(path="a.csv", domain=".", **keys).dialect)
    return [tuple(row.values()) for batch in source.batches(source.names) for row in batch.to_pylist()]


@pytest.mark.parametrize(("content", "keys", "rows"), [
    (b'a,b\n5" pipe,1\n# comment,2\nx,3\n', {"comment": "#"}, [('5" pipe', "1"), ("x", "3")]),
    (b'a,b\n"C:\\\\",1\n# comment,2\nx,3\n', {"comment": "#", "escape": "\\"}, [("C:\\", "1"), ("x", "3")]),
    (b'a,b\n"say ""x"",\n# part",1\n# comment\nx,3\n', {"comment": "#"}, [('say "x",\n# part', "1"), ("x", "3")]),
    (b'a,b\nx,"1\n# part"\n#,"\ny,2\n', {"comment": "#"}, [("x", "1\n# part"), ("y", "2")]),
    (b"\xef\xbb\xbf# made\na,b\nx,1\n", {"comment": "#"}, [("x", "1")]),
    (b"\xef\xbb\xbf# made\nx\ny\n", {"comment": "#", "names": ["a"], "header": False}, [("x",), ("y",)]),
    (b"\xef\xbb\xbfskipped\na\n1\n", {"skip_lines": 1}, [("1",)]),
    (b"\n\r\na\n0\n\n1\n", {}, [("0",), (None,), ("1",)]),
    (b"a;b\n-9,9;x\n1,5;-9.9\n", {"decimal": ",", "delimiter": ";", "null_values": ["-9,9"]}, "refused"),
    (b"a;b\n-9,9;x\n1,5;y\n", {"decimal": ",", "delimiter": ";", "null_values": ["-9,9"]}, [(None, "x"), ("1.5", "y")]),
    (b"a;b\n9.999;x\n", {"thousands": ".", "decimal": ",", "delimiter": ";", "null_values": ["9999"]}, [("9999", "x")]),
    (b"a;b\n1.234;x\n", {"decimal": ",", "delimiter": ";"}, "refused"),
    (b"a;b\n12.12;x\n", {"decimal": ",", "thousands": ".", "delimiter": ";"}, "refused"),
    (b"a;b\n12.12.2024;v1.2.3\n", {"decimal": ",", "delimiter": ";"}, [("12.12.2024", "v1.2.3")]),
])  # fmt: skip
def test_rules_of_delimited_text_do_not_disturb_each_other(tmp_path, content, keys, rows):
    if rows == "refused":
        with refused(dp.DataError):
            rows_of(tmp_path, content, **keys)
    else:
        assert rows_of(tmp_path, content, **keys) == rows


class BrokenStream:
    """Object whose stream fails with a text that describes a record."""

    def __init__(self, error):
        self.error = error

    def __arrow_c_stream__(self, requested_schema=None):
        raise self.error


@pytest.mark.parametrize("error", [KeyError("patient 4711"), OSError("patient 4711"), ValueError("patient 4711")])
def test_error_of_a_stream_does_not_show_its_text(error):
    def batches():
        raise error
        yield

    for frame in (BrokenStream(error), pa.RecordBatchReader.from_batches(pa.schema({"x": pa.int8()}), batches())):
        with refused(dp.DataError) as caught:
            read_stream(frame)
        assert "4711" not in str(caught.value)
        assert caught.value.__cause__ is None


DATES = (
    *("2024-02-29", "2023-02-29", "1900-02-29", "0000-01-01", "0001-01-01", "9999-12-31", "1969-12-31"),
    *("2024-W01-1", " 2024-01-01", "20240101", "2024-1-01", "2024-13-01", "2024-00-10", "2024-01-32"),
    *("\u0662\u0660\u0662\u0664-01-01", "2024-01-01T00:00", "", "NA", None),
)


@pytest.mark.parametrize("text", DATES)
def test_date_of_a_folder_is_that_of_a_column(text):
    """Few texts are read without Arrow, and with the same result as many."""
    few, many = (days(pa.array([text] * rows, pa.string())) for rows in (2, 20))
    for figure in ("values", "missing", "foreign"):
        assert set(getattr(few, figure).tolist()) == set(getattr(many, figure).tolist())


def test_few_texts_that_are_not_utf8_are_no_dates():
    texts = pa.array([b"\xff2024-01-1"], pa.binary()).view(pa.string())
    assert days(texts).foreign.tolist() == [True]


def read_texts(path, **dialect):
    """Return the texts of the column x of a CSV file."""
    opened = (
        TableSection(path=str(path), domain=".", **dialect).origin.table(str(path), dp.Domain(x=["a", "b"])).partitions
    )
    return [text for batch in opened[0].batches(["x"]) for text in batch["x"].to_pylist()]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("last", [True, False])
def test_values_of_several_lines_and_with_quotes_are_read(tmp_path, ending, quoting, last):
    rng = np.random.default_rng(0)
    path, parts = tmp_path / "a.csv", ["a", '"', "\n", "\r\n", ",", "# b", '""', "\\"]
    for _ in range(100):
        texts = ["".join(rng.choice(parts, rng.integers(1, 6))) + "e" for _ in range(rng.integers(1, 20))]
        with open(path, "w", newline="") as file:
            writer = csv.writer(file, quoting=quoting, lineterminator=ending)
            writer.writerows([["y", "x"], *([str(place), text] for place, text in enumerate(texts))])
        path.write_bytes(path.read_bytes().removesuffix(b"" if last else ending.encode()))
        assert read_texts(path) == [text.strip() for text in texts]


@pytest.mark.parametrize("text", [
    'x,y\n1,"a\n2,b\n3,c\n',
    'x,y\n1,a\n2,"b',
    'x,y\n1,"5 inch\n2,b\n3,"6 inch\n4,c\n',
    'x,y\n\n1,a\n\n2,"b\n',
    'x,y\r\n1,"a\r\n2,b\r\n',
    'x,y\n1,a\n2,"b\n',
    'x,y\r\n1,a\r\n2,"b\r\n\r\n',
    'x,y\r1,"5 inch\r2,b\r3,"6 inch\r4,c\r',
])  # fmt: skip
def test_quote_that_takes_the_next_records_is_refused(tmp_path, text, monkeypatch):
    """Planted: without the check, the records after the quote are a text of the record with it."""
    path = tmp_path / "a.csv"
    for encoding in ("utf-8", "utf-16"):
        path.write_bytes(text.encode(encoding))
        for few in (1 << 16, 0):  # with and without compiling
            monkeypatch.setattr(scan_quotes, "_few", few)
            with refused(dp.DataError):
                read_texts(path, encoding=encoding)
    path.write_text('x,y\n1,5"\n2,"a"\n3,b"c"\n\n4,"5"" d"')
    assert read_texts(path) == ["1", "2", "3", "4"]
    for valid in ('x,y\r1,"a\nb"\r2,c\r3,d\r', 'x,y\r1,"a\rb"\r2,",2"\r3,d\r', 'x,y\n1,"a\nb" \n2,c\n3,d'):
        path.write_text(valid, newline="")
        assert read_texts(path) == ["1", "2", "3"]


def test_quoted_numbers_have_the_delimiter_as_the_mark_of_thousands(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('x,y\n"1,234",1\n5,2\n"12,345,678",3\n')
    assert read_texts(path, thousands=",") == ["1234", "5", "12345678"]


def test_categories_are_compared_in_one_form_of_unicode(tmp_path):
    """A name that a program stores with a letter and an accent as two characters is not outside the domain."""
    names = ["Köln", "Ulm", "Ångström"]
    decomposed = [unicodedata.normalize("NFD", name) for name in names]
    assert decomposed[0] != names[0]
    for values, texts in ((names, decomposed), (decomposed, names)):
        pq.write_table(pa.table({"x": [*texts, *texts, "Bonn", None, "Köln"]}), tmp_path / "a.parquet")
        kinds = {"kind": "categories", "values": values, "outside": "category", "nulls": "category"}
        assert counts(tmp_path, x=kinds) == [3, 2, 2, 1, 1]
    pq.write_table(pa.table({"x": [text + "e" for text in decomposed]}), tmp_path / "a.parquet")
    prefixes = {"kind": "text-prefix", "length": 4, "values": ["Köln", "Ulme"], "outside": "category"}
    assert counts(tmp_path, x=prefixes) == [1, 1, 1]
    for text in (b"\xff", b"Ko\xcc", None):  # a further row changes its own cell only
        column = pa.array([*(name.encode() for name in decomposed), text], pa.binary())
        for kind in (pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.binary())):
            pq.write_table(pa.table({"x": column.cast(kind)}), tmp_path / "a.parquet")
            assert counts(tmp_path, x=kinds | {"values": names})[:3] == [1, 1, 1]
    both = [names[0], decomposed[0]]
    pq.write_table(pa.table({"x": [names[0], decomposed[0], decomposed[0]]}), tmp_path / "a.parquet")
    assert counts(tmp_path, x={"kind": "categories", "values": both}) == [1, 2]


@pytest.mark.parametrize("kind", [{"kind": "categories", "values": ["a ", "b"]},
                                  {"kind": "categories", "map": {"x": ["b"], "y": ["a", "\ta"]}},
                                  {"kind": "text-prefix", "length": 2, "values": [" a", "bc"]}])  # fmt: skip
def test_listed_values_that_delimited_files_cannot_have_are_refused(tmp_path, kind):
    table = pa.table({"x": ["a ", "\ta", " ab", "bcd"]})
    counted = kind | {"outside": "category"}
    pq.write_table(table, tmp_path / "a.parquet")
    assert counts(tmp_path, x=counted)[-1] < 4  # they are in other files
    (tmp_path / "a.parquet").unlink()
    pyarrow.csv.write_csv(table, tmp_path / "a.csv")
    job = {"data": {"path": str(tmp_path / "a.csv"), "domain": str(tmp_path / "d.toml")},
           "privacy": {"epsilon": 1.0, "ledger": str(tmp_path / "ledger.sqlite")},
           "workload": [{"family": "marginal", "degree": 1}]}  # fmt: skip
    (tmp_path / "d.toml").write_text(tomli_w.dumps({"attributes": {"x": counted}}))
    with refused(dp.DataError):
        dp.run(job, tmp_path / "run", progress=None)
    assert not (tmp_path / "ledger.sqlite").exists()


@pytest.mark.parametrize("by_path", [False, True])
def test_nodes_of_a_hierarchy_are_compared_in_one_form_of_unicode(tmp_path, by_path):
    paths = [("Österreich", "Graz"), ("Österreich", "Wörgl"), ("Schweiz", "Zürich"), ("Schweiz", "Bern")]
    forms = [[[unicodedata.normalize(form, name) for name in path] for path in paths] for form in ("NFC", "NFD")]
    for listed, stated in (forms, forms[::-1]):
        columns = {"land": [path[0] for path in listed], "ort": [path[1] for path in listed]}
        pq.write_table(pa.table(columns), tmp_path / "tree.parquet")
        (tmp_path / "data").mkdir(exist_ok=True)
        rows = [*stated, listed[1], stated[2], ("x", "Düren"), ("Schweiz", "Bern"), (None, None)]
        pq.write_table(pa.table({"land": [row[0] for row in rows], "ort": [row[1] for row in rows]}),
                       tmp_path / "data/a.parquet")  # fmt: skip
        kind = {"kind": "hierarchy", "file": str(tmp_path / "tree.parquet"), "levels": ["land"], "outside": "category"}
        kind |= {"key": "path"} if by_path else {}
        found = counts(tmp_path / "data", names=("ort",), ort=kind | {"nulls": "category"})
        assert sorted(found) == [1, 1, 1, 2, 2, 2]
        assert found[-2:] == [1, 1]


def test_frame_of_bytes_has_the_hash_and_types_of_texts():
    """A run that was measured with such a frame is the same run, and its rows have texts."""
    texts, raw = (pa.table({"x": pa.array(["a", "bc"]).cast(kind)}) for kind in (pa.large_string(), pa.large_binary()))
    assert content_of(texts) == content_of(raw)
    assert content_of(texts) != content_of(pa.table({"x": pa.array(["ab", "c"], pa.large_string())}))
    tables = [frame_table(frame, dp.Domain(x=["a", "bc"]), ["x"], LocalEngine("synchronous")) for frame in (texts, raw)]
    assert tables[0].types() == tables[1].types()
