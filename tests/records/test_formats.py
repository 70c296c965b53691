"""Every file format and text dialect gives the counts of the same table in Parquet."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.job import Job
from dpscale.records import table as tables
from dpscale.records.files import Dialect
from dpscale.records.origin import snapshot
from tests.audit.small import write
from tests.messages import refused

DOMAIN = dp.Domain.from_dict({"attributes": {
    "town": {"kind": "categories", "values": ["Köln", "Ulm"], "nulls": "category"},
    "age": {"kind": "integer", "low": 0, "high": 9, "nulls": "category"}}})  # fmt: skip
SETS = [("town", "age"), ("age",)]
ROWS = 3000


def make_table():
    rng = np.random.default_rng(1)
    town = np.array(["Köln", "Ulm", None], object)[rng.integers(0, 3, ROWS)]
    return pa.table({"town": pa.array(town, pa.string()), "id": rng.integers(0, 99, ROWS),
                     "age": pa.array(rng.integers(0, 10, ROWS), mask=rng.random(ROWS) < 0.1)})  # fmt: skip


@pytest.fixture(scope="module")
def expected_counts(tmp_path_factory):
    path = tmp_path_factory.mktemp("oracle") / "x.parquet"
    pq.write_table(make_table(), path)
    return count_sets(path)


def count_sets(path, dialect=tables.PLAIN):
    table = dp.Table.open(path, DOMAIN, dialect=dialect).split()
    return {names: counts.tolist() for names, counts in dp.count_marginals(table, SETS).items()}


def make_csv(delimiter=",", header=True, null=""):
    rows = [[null if one is None else str(one) for one in row.values()] for row in make_table().to_pylist()]
    return "\n".join(delimiter.join(row) for row in ([["town", "id", "age"]] if header else []) + rows) + "\n"


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.CSV.GZ", "x.csv.zst", "x.tsv", "x.tsv.gz", "x.tsv.zst"])
def test_compressed_and_tab_separated_text(tmp_path, name, expected_counts):
    content = make_csv("\t" if "tsv" in name else ",").encode()
    codec = {"gz": "gzip", "zst": "zstd"}.get(name.lower().rpartition(".")[2])
    (tmp_path / name).write_bytes(pa.compress(content, codec, asbytes=True) if codec == "zstd"
                                  else gzip.compress(content) if codec else content)  # fmt: skip
    assert count_sets(tmp_path) == expected_counts
    assert dp.Table.open(tmp_path, DOMAIN).partitions[0].row_bound() >= ROWS


def test_concatenated_archives_are_read_completely(tmp_path, expected_counts):
    lines = make_csv().splitlines(keepends=True)
    for name, pack in (
        ("x.csv.gz", gzip.compress),
        ("x.csv.zst", lambda part: pa.compress(part, "zstd", asbytes=True)),
    ):
        (tmp_path / name).write_bytes(b"".join(pack("".join(part).encode()) for part in (lines[:900], lines[900:])))
        assert count_sets(tmp_path / name) == expected_counts


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8-sig"])
def test_text_encodings(tmp_path, encoding, expected_counts):
    (tmp_path / "x.csv").write_bytes(make_csv().encode(encoding))
    assert count_sets(tmp_path, Dialect(encoding=encoding)) == expected_counts


def test_delimiter_null_values_and_column_names(tmp_path, expected_counts):
    (tmp_path / "x.csv").write_text(make_csv(";", header=False, null=" n/a "))
    dialect = Dialect(";", null_values=("n/a", "-"), names=("town", "id", "age"))
    assert count_sets(tmp_path, dialect) == expected_counts
    with refused(dp.DataError):
        count_sets(tmp_path, Dialect(";", null_values=("n/a",), names=("town", "age")))


@pytest.mark.parametrize(("name", "codec"), [("x.arrow", None), ("x.ipc", "lz4"), ("x.feather", "zstd")])
def test_arrow_files(tmp_path, name, codec, expected_counts):
    if name == "x.feather":
        feather.write_feather(make_table(), tmp_path / name, compression=codec, chunksize=700)
    else:
        with (
            pa.OSFile(str(tmp_path / name), "wb") as file,
            pa.ipc.new_file(file, make_table().schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer,
        ):
            writer.write_table(make_table(), max_chunksize=700)
    assert count_sets(tmp_path) == expected_counts
    assert dp.Table.open(tmp_path, DOMAIN).partitions[0].row_bound() == ROWS


def test_arrow_file_is_split_by_batches(tmp_path, monkeypatch, expected_counts):
    feather.write_feather(make_table(), tmp_path / "x.feather", chunksize=700)
    monkeypatch.setattr(tables, "SPLIT_BYTES", 1)
    monkeypatch.setattr(tables, "SPLIT_ROWS", 1000)
    parts = dp.Table.open(tmp_path, DOMAIN).split().partitions
    assert [part.row_groups for part in parts] == [(0, 1), (2, 3), (4,)]
    assert count_sets(tmp_path) == expected_counts
    assert [batch["age"].type for batch in parts[2].batches(["age"])] == [pa.int64()]


def test_footer_snapshot_hashes_files_without_footer(tmp_path):
    seen = set()
    for year in (1, 2):
        feather.write_feather(pa.table({"age": [year]}), tmp_path / "x.feather")
        seen.add(snapshot(dp.Table.open(tmp_path, DOMAIN), footers=True))
    assert len(seen) == 2


@pytest.mark.parametrize("names", [("x.csv", "x.csv.gz"), ("x.csv", "x.tsv"), ("x.parquet", "x.feather"),
                                   ("x.parquet", "x.jsonl")])  # fmt: skip
def test_mixed_file_formats_are_refused(tmp_path, names):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with refused(dp.DataError):
        dp.Table.open(tmp_path, DOMAIN)


@pytest.mark.parametrize("name", ["x.csv.gz", "x.csv.zst", "x.jsonl.gz", "x.ndjson.zst", "x.feather", "x.arrow"])
@pytest.mark.parametrize("whole", [False, True])
def test_damaged_file_is_reported_without_content(tmp_path, name, whole):
    feather.write_feather(pa.table({"age": ["SECRET"]}), tmp_path / "x")
    good = {
        "gz": gzip.compress(b"age\n" + b"SECRET\n" * 99),
        "zst": pa.compress(b"age\nSECRET\n", "zstd", asbytes=True),
    }
    content = good.get(name.rpartition(".")[2], (tmp_path / "x").read_bytes())
    (tmp_path / name).write_bytes(b"SECRET" * 9 if whole else content[: len(content) // 2])
    with refused(dp.DataError) as caught:
        count_sets(tmp_path / name)
    assert "SECRET" not in str(caught.value)


def test_text_of_other_encoding_is_reported_without_content(tmp_path):
    (tmp_path / "x.csv").write_bytes("town,age\nKöln,1\n".encode("latin-1"))
    for encoding in ("utf-8", "ascii", "utf-16"):
        with refused(dp.DataError) as caught:
            count_sets(tmp_path, Dialect(encoding=encoding))
        assert "ln" not in str(caught.value).replace(str(tmp_path), "")


@pytest.mark.parametrize("wrong", [
    {"delimiter": "||"},
    {"delimiter": ""},
    {"encoding": "klingon"},
    {"encoding": "base64"},
    {"header": False},
    {"names": ["a"]},
    {"header": False, "names": ["a", "a"]},
    {"header": False, "names": []},
    {"null_values": "NA"},
])  # fmt: skip
def test_invalid_text_option_is_refused(tmp_path, wrong):
    with refused(dp.JobError):
        Job.read(write(tmp_path, data={"path": "data", "domain": "domain.toml", **wrong}))


def test_text_options_are_refused_for_parquet(tmp_path):
    with refused(dp.DataError):
        dp.run(write(tmp_path, data={"path": "data", "domain": "domain.toml", "encoding": "latin-1"}), tmp_path / "run")
    assert not (tmp_path / "ledger.sqlite").exists()


def test_text_options_of_job_are_stored_in_run(tmp_path):
    """A run with text options works, and its job file has the same options."""
    job = write(tmp_path, data={"path": "text", "domain": "domain.toml", "delimiter": ";", "encoding": "latin-1",
                                "null_values": ["NA"], "header": False, "names": ["a", "b", "c", "unit"]})  # fmt: skip
    (tmp_path / "text").mkdir()
    table = pa.concat_tables(pq.read_table(path) for path in sorted((tmp_path / "data").iterdir()))
    options = arrow_csv.WriteOptions(include_header=False, delimiter=";")
    arrow_csv.write_csv(table, tmp_path / "text" / "x.csv", options)
    release = dp.run(job, tmp_path / "run")
    assert release.marginal(("a", "b")).shape == (4, 3)
    assert Job.read(release.path / "job.toml").table.data.dialect == Job.read(job).table.data.dialect
