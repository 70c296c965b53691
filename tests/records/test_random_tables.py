"""Random valid tables: counts equal those of pandas, whatever types, writers, encodings and layouts state the records.

A table is drawn as Python values, and its cells are those of `bisect`, `Decimal` and `datetime`. It is then written by
a random program in random types, divided into files, and counted. Seeds are fixed; a failure names its seed.
"""

import bz2
import gzip
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import pairwise
from zoneinfo import ZoneInfo

import dask.dataframe as dd
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.engine.frames import frame_table
from dpscale.engine.schedulers import LocalEngine
from dpscale.records.files import Dialect

LABELS = ["NA", "null", "None", "nan", "01", "1", "1e5", "true", "-", "a,b", 'say "x"', "two\nlines", "cr\r\nlf",
          "Köln",
          "ß", "x;y", "#c", "a'b"]  # fmt: skip
EDGES = [Decimal(text) for text in ("-1.5", "-0.3", "0", "0.1", "0.7", "2.5", "100")]
LOW, HIGH = -3, 12
ZONE = "Europe/Berlin"
DOMAIN = dp.Domain.from_dict({
    "attributes": {
        "c": {"kind": "categories", "values": LABELS, "nulls": "category"},
        "i": {"kind": "integer", "low": LOW, "high": HIGH, "nulls": "category"},
        "x": {"kind": "bins", "edges": [float(edge) for edge in EDGES], "nulls": "category"},
        "d": {"kind": "date", "by": "month", "low": "2023-11", "high": "2024-04", "nulls": "category", "zone": ZONE},
        "b": {"kind": "boolean", "nulls": "category"},
    }
})  # fmt: skip
SETS = [("c", "i"), ("x", "d"), ("b", "c"), ("d",)]
MONTHS = [(2023, 11), (2023, 12), (2024, 1), (2024, 2), (2024, 3), (2024, 4)]


def pick(random, options):
    return options[random.integers(len(options))]


def draw_rows(random):
    """Return random records as lists of Python values by column."""
    rows, gaps = int(random.integers(1, 40)), pick(random, [0, 0.2, 0.9])
    start = datetime(2023, 11, 2, tzinfo=UTC)
    draws = {
        "c": lambda: LABELS[random.integers(len(LABELS))],
        "i": lambda: int(random.integers(LOW, HIGH + 1)),
        "x": lambda: Decimal(int(random.integers(-15, 1001))).scaleb(-1),
        "d": lambda: start + timedelta(minutes=int(random.integers(0, 178 * 24 * 60))),
        "b": lambda: bool(random.integers(2)),
    }
    return {name: [None if random.random() < gaps else draw() for _ in range(rows)] for name, draw in draws.items()}


def cells_of(rows, kind):
    """Return the cells of records by column; `kind` says what their times state."""
    return {
        "c": [len(LABELS) if value is None else LABELS.index(value) for value in rows["c"]],
        "i": [HIGH - LOW + 1 if value is None else value - LOW for value in rows["i"]],
        "x": [len(EDGES) - 1 if v is None else min(bisect_right(EDGES, v), len(EDGES) - 1) - 1 for v in rows["x"]],
        "d": [len(MONTHS) if value is None else MONTHS.index(month_of(value, kind)) for value in rows["d"]],
        "b": [2 if value is None else int(value) for value in rows["b"]],
    }


def month_of(moment, kind):
    """Return year and month of a moment: in the zone if it is stated as an instant, else as it is written."""
    local = moment.astimezone(ZoneInfo(ZONE)) if kind == "instant" else moment
    return local.year, local.month


def times_as(random, values):
    """Return times in a random type, and whether they are instants."""
    plain = [None if value is None else value.replace(tzinfo=None) for value in values]
    kind = pick(random, ["date", "local", "instant", "text", "text with offset"])
    if kind == "date":
        days = [None if value is None else value.date() for value in plain]
        return pa.array(days, pick(random, [pa.date32(), pa.date64()])), "local"
    if kind == "local":
        return pa.array(plain, pa.timestamp(pick(random, ["s", "ms", "us", "ns"]))), "local"
    if kind == "instant":
        return pa.array(values, pa.timestamp(pick(random, ["s", "us"]), pick(random, ["UTC", "Asia/Tokyo"]))), "instant"
    if kind == "text":
        form = pick(random, ["%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S"])
        return pa.array([None if value is None else value.strftime(form) for value in plain], pa.string()), "local"
    ending = pick(random, ["+00", "Z", " UTC", "+0000", "+00:00"])
    texts = [None if value is None else value.strftime("%Y-%m-%d %H:%M:%S") + ending for value in plain]
    return pa.array(texts, pa.string()), "instant"


def numbers_as(random, values, whole):
    """Return numbers in a random type."""
    kind = pick(
        random, ["small", "float", "half", "decimal", "text"] if whole else ["float", "float32", "decimal", "text"]
    )
    if kind == "small":
        return pa.array(values, pick(random, [pa.int8(), pa.int16(), pa.int32(), pa.int64()]))
    if kind == "text":
        form = pick(random, ["{}", " {}", "{}.0"] if whole else ["{}", "{}0"])
        return pa.array([None if value is None else str(form).format(value) for value in values], pa.string())
    if kind == "decimal":
        return pa.array([None if value is None else Decimal(value) for value in values], pa.decimal128(9, 2))
    floats = [None if value is None else float(value) for value in values]
    width = {"half": pa.float16(), "float32": pa.float32(), "float": pa.float64()}[str(kind)]
    return pa.array(np.array(floats, object if None in floats else np.float64), pa.float64()).cast(width)


def typed(random, rows):
    """Return records as an Arrow table of random types, and what its times are."""
    times, kind = times_as(random, rows["d"])
    truth = {True: pick(random, ["yes", "True", "1", "t"]), False: pick(random, ["no", "False", "0", "f"])}
    flags = pa.array(rows["b"], pa.bool_())
    if random.random() < 0.5:
        flags = pa.array([None if value is None else str(truth[value]) for value in rows["b"]], pa.string())
    texts = pa.array(rows["c"], pick(random, [pa.string(), pa.large_string()]))
    columns = {
        "c": texts.dictionary_encode() if random.random() < 0.3 else texts,
        "i": numbers_as(random, rows["i"], True),
        "x": numbers_as(random, rows["x"], False),
        "d": times,
        "b": flags,
    }
    order = random.permutation(list(columns)).tolist()
    return pa.table({name: columns[name] for name in order}), kind


def write_parquet(random, table, path):
    writer = pick(random, ["pyarrow", "int96", "pandas", "polars", "duckdb"])
    half = any(pa.types.is_float16(field.type) for field in table.schema)
    if writer == "polars" and not half:
        pl.from_arrow(table).write_parquet(path)
    elif writer == "duckdb" and not half:
        duckdb.from_arrow(table).write_parquet(str(path))
    elif writer == "pandas":
        table.to_pandas().to_parquet(path)
    else:
        zoned = any(
            pa.types.is_timestamp(field.type) and field.type.tz for field in table.schema
        )  # 96 bits state no zone
        pq.write_table(table, path, use_deprecated_int96_timestamps=writer == "int96" and not zoned,
                       use_dictionary=bool(random.integers(2)), row_group_size=int(random.integers(1, 30)),
                       data_page_version=pick(random, ["1.0", "2.0"]),
                       compression=pick(random, ["snappy", "gzip", "zstd", "none"]))  # fmt: skip


def write_arrow(random, table, path):
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, int(random.integers(1, 30)))


def write_ndjson(random, table, path):
    frame = pl.from_arrow(as_texts(table))
    frame.write_ndjson(path)


def as_texts(table):
    """Return a table with columns that text formats can state: dates and decimals as texts."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        plain = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_dictionary(kind)
        zoned = pa.types.is_timestamp(kind) and kind.tz is not None
        column = column.cast(pa.timestamp(kind.unit, "UTC")) if zoned else column
        column = column.cast(pa.float32()) if pa.types.is_float16(kind) else column
        column = column.cast(pa.date32()) if pa.types.is_date64(kind) else column
        columns[name] = column if plain else column.cast(pa.string())
    return pa.table(columns)


def write_csv(random, table, path, delimiter=",", encoding="utf-8"):
    texts = as_texts(table)
    writer = pick(random, ["pandas", "polars", "pyarrow"]) if encoding == "utf-8" else "pandas"
    if writer == "pandas":
        whole = {pa.int8(): "Int8", pa.int16(): "Int16", pa.int32(): "Int32", pa.int64(): "Int64"}
        frame = texts.to_pandas(
            types_mapper=lambda kind: pd.api.types.pandas_dtype(whole[kind]) if kind in whole else None
        )
        frame.to_csv(path, index=False, sep=delimiter, encoding=encoding)
    elif writer == "polars":
        pl.from_arrow(texts).write_csv(path, separator=delimiter)
    else:
        pa.csv.write_csv(texts, path, pa.csv.WriteOptions(delimiter=delimiter))


def pieces_of(random, table):
    """Return a table divided into random pieces of one record or more."""
    many = int(min(random.integers(1, 4), table.num_rows))
    ends = sorted({0, table.num_rows, *random.integers(1, table.num_rows + 1, many - 1).tolist()})
    return [table.slice(first, end - first) for first, end in pairwise(ends)]


def write_table(random, table, folder):
    """Write a table as files in a random format; return the dialect."""
    form, dialect = pick(random, ["parquet", "arrow", "ndjson", "csv", "tsv"]), Dialect()
    if form == "csv":
        delimiter, encoding = pick(random, [",", ";", "|"]), pick(random, ["utf-8", "utf-16", "latin-1"])
        dialect = Dialect(delimiter="" if delimiter == "," else delimiter, encoding=encoding)
        write = partial(write_csv, delimiter=delimiter, encoding=encoding)
    else:
        writers = {"parquet": write_parquet, "arrow": write_arrow, "ndjson": write_ndjson}
        write = partial(write_csv, delimiter="\t") if form == "tsv" else writers[str(form)]
    packer = (
        pick(random, [None, (gzip.compress, ".gz"), (bz2.compress, ".bz2")])
        if form in ("csv", "tsv", "ndjson")
        else None
    )
    for number, piece in enumerate(pieces_of(random, table)):
        path = folder / f"part-{number}.{form}"
        write(random, piece, path)
        if packer:
            (folder / f"{path.name}{packer[1]}").write_bytes(packer[0](path.read_bytes()))
            path.unlink()
    return dialect


def as_frame(random, table):
    """Return a table as a data frame or a stream of a random library."""
    library = pick(random, ["pandas", "polars", "lazy", "pyarrow", "dask", "reader", "batch"])
    if library == "pandas":
        return table.to_pandas()
    if library == "dask":
        return dd.from_pandas(table.to_pandas(), npartitions=2)
    if library in ("polars", "lazy") and not any(pa.types.is_float16(field.type) for field in table.schema):
        frame = pl.from_arrow(table)
        return frame.lazy() if library == "lazy" else frame
    if library == "reader":
        return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(7))
    return table.combine_chunks().to_batches()[0] if library == "batch" else table


def counts_of_pandas(cells):
    """Return the counts over SETS by pandas."""
    sizes, frame, found = dict(zip(DOMAIN.names, DOMAIN.shape(DOMAIN.names), strict=True)), pd.DataFrame(cells), {}
    for names in SETS:
        table = np.zeros([sizes[name] for name in names], np.int64)
        for place, count in frame.groupby(list(names)).size().items():
            table[place] = count
        found[names] = table
    return found


def check_seed(seed, folder):
    from dpscale.records.frames import read_stream

    random = np.random.default_rng(seed)
    rows = draw_rows(random)
    table, kind = typed(random, rows)
    if random.random() < 0.25:
        frame = read_stream(as_frame(random, table))
        opened = frame_table(frame, DOMAIN, DOMAIN.names, LocalEngine("synchronous"))
    else:
        folder.mkdir()
        opened = dp.Table.open(folder, DOMAIN, dialect=write_table(random, table, folder))
    found, expected = dp.count_marginals(opened, SETS), counts_of_pandas(cells_of(rows, kind))
    for names in SETS:
        np.testing.assert_array_equal(found[names], expected[names], err_msg=f"seed {seed}, {names}")


@pytest.mark.parametrize("block", range(10))
def test_counts_of_random_tables_equal_pandas(tmp_path, block):
    for seed in range(20 * block, 20 * block + 20):
        check_seed(seed, tmp_path / str(seed))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_counts_of_many_random_tables_equal_pandas(tmp_path, block):
    for seed in range(1000 + 100 * block, 1000 + 100 * block + 100):
        check_seed(seed, tmp_path / str(seed))


def test_table_with_a_changed_record_is_detected(tmp_path):
    """Planted: a record more than the oracle has."""
    rows = draw_rows(np.random.default_rng(0))
    table, kind = typed(np.random.default_rng(1), rows)
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), tmp_path / "a.parquet")
    found = dp.count_marginals(dp.Table.open(tmp_path, DOMAIN), SETS)
    expected = counts_of_pandas(cells_of(rows, kind))
    assert not any(np.array_equal(found[names], expected[names]) for names in SETS)


def test_oracle_knows_single_cells():
    rows = {
        "c": ["NA"],
        "i": [-3],
        "x": [Decimal("0.7")],
        "d": [datetime(2024, 1, 31, 23, 30, tzinfo=UTC)],
        "b": [None],
    }
    assert cells_of(rows, "instant") == {"c": [0], "i": [0], "x": [4], "d": [3], "b": [2]}
    assert cells_of(rows, "local")["d"] == [2]
