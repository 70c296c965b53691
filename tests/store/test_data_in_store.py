"""Data in an object store: the counts, names and snapshot of the same files in a directory, and no leaked key."""

import importlib
import json
import os
import sys
import uuid

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.records.origin import layout, snapshot, stamps
from dpscale.storage import objects
from tests.audit.small import answers, frame, measurements, write
from tests.messages import refused

s3fs = pytest.importorskip("s3fs")
DOMAIN = dp.Domain({"a": 4, "b": 3, "c": 5})


@pytest.fixture
def folder(tmp_path):
    """Directory with files of two years, a hidden file and a file that is not data."""
    for year, name in ((2020, "x"), (2021, "y"), (2021, "_z"), (2021, "w")):
        path = tmp_path / "t" / f"year={year}" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pandas(frame(60, year + len(name))), path, row_group_size=20)
    (tmp_path / "t" / "notes.txt").write_text("no data")
    return tmp_path / "t"


def upload(folder, prefix):
    s3fs.S3FileSystem(use_listings_cache=False).put(str(folder), prefix.removeprefix("s3://"), recursive=True)
    return prefix


def count_sets(table, sets=(("a", "b"), ("c",))):
    return {names: counts.tolist() for names, counts in dp.count_marginals(table, list(sets)).items()}


@pytest.mark.parametrize("suffix", ["", "/year=*", "/year=2021/*.parquet", "/year=2020/x.parquet"])
def test_files_in_store_equal_files_in_directory(folder, prefix, suffix):
    there, here = dp.Table.open(upload(folder, prefix) + suffix, DOMAIN), dp.Table.open(f"{folder}{suffix}", DOMAIN)
    assert [path.removeprefix(prefix) for path in there.files] == [
        path.removeprefix(str(folder)) for path in here.files
    ]
    assert [part.fixed for part in there.partitions] == [part.fixed for part in here.partitions]
    assert count_sets(there) == count_sets(here)
    assert snapshot(there) == snapshot(here)
    assert snapshot(there, footers=True) == snapshot(here, footers=True)
    assert layout(prefix + suffix)["number"] == len(here.files)


def test_large_object_is_split_by_row_groups(folder, prefix, monkeypatch):
    monkeypatch.setattr("dpscale.records.table.SPLIT_BYTES", 1)
    monkeypatch.setattr("dpscale.records.table.SPLIT_ROWS", 30)
    there, here = (dp.Table.open(at, DOMAIN).split() for at in (upload(folder, prefix), folder))
    assert [part.row_groups for part in there.partitions] == [part.row_groups for part in here.partitions]
    assert len(there.partitions) == 6
    assert count_sets(there) == count_sets(here)


def test_only_requested_columns_are_fetched(tmp_path, prefix, monkeypatch):
    rng = np.random.default_rng(0)
    wide = {"a": rng.integers(0, 4, 20_000)} | {f"x{i}": rng.integers(0, 2**60, 20_000) for i in range(20)}
    pq.write_table(pa.table(wide), tmp_path / "wide.parquet")
    s3fs.S3FileSystem().put(str(tmp_path / "wide.parquet"), f"{prefix}/wide.parquet".removeprefix("s3://"))
    fetched = []
    plain = s3fs.core.S3File._fetch_range
    monkeypatch.setattr(s3fs.core.S3File, "_fetch_range",
                        lambda self, start, end: fetched.append(end - start) or plain(self, start, end))  # fmt: skip
    part = dp.Table.open(prefix, DOMAIN).partitions[0]
    assert sum(len(batch["a"]) for batch in part.batches(["a"])) == 20_000
    assert 0 < sum(fetched) < os.path.getsize(tmp_path / "wide.parquet") // 10


def test_csv_in_store(tmp_path, prefix):
    (tmp_path / "t").mkdir()
    frame(50).to_csv(tmp_path / "t" / "x.csv", index=False)
    frame(50, 1).to_csv(tmp_path / "t" / "y.csv", index=False)
    there, here = dp.Table.open(upload(tmp_path / "t", prefix), DOMAIN), dp.Table.open(tmp_path / "t", DOMAIN)
    assert count_sets(there) == count_sets(here)
    assert snapshot(there) == snapshot(here)


def test_run_from_store_has_snapshot_of_directory_and_no_key(tmp_path, prefix, capfd):
    """Contributions are bounded; manifest, log and report contain no key."""
    unit = {"domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 2}
    here = dp.run(write(tmp_path, data={"path": "data", **unit}), tmp_path / "here")
    (tmp_path / "ledger.sqlite").unlink()
    upload(tmp_path / "data", prefix)
    job = write(tmp_path, data={"path": prefix, **unit}, privacy={"privacy_cost": 0.5})
    there = dp.run(job, tmp_path / "there")
    assert there.manifest["snapshot"] == here.manifest["snapshot"]
    np.testing.assert_equal(np.isfinite(there.marginal(("a", "b"))), True)
    assert set(answers(there.path)) == set(answers(here.path))
    assert len(measurements(there.path)) == len(measurements(here.path))
    text = "".join(path.read_text(errors="replace") for path in there.path.rglob("*") if path.is_file())
    assert "AWS_" not in text + "".join(capfd.readouterr())
    assert f'path = "{prefix}"' in (there.path / "job.toml").read_text()
    assert json.loads((there.path / "manifest.json").read_text())["privacy"]["dataset"] == prefix
    assert dp.run(job, tmp_path / "there").manifest == there.manifest


def test_changed_objects_are_detected(tmp_path, prefix):
    write(tmp_path)
    upload(tmp_path / "data", prefix)
    table = dp.Table.open(prefix, DOMAIN)
    before = stamps(table)
    job = write(tmp_path, data={"path": prefix, "domain": "domain.toml"})
    dp.run(job, tmp_path / "run")
    changed = frame(400, 7).iloc[:200]
    changed.to_parquet(tmp_path / "data" / "0.parquet", index=False)
    upload(tmp_path / "data" / "0.parquet", f"{prefix}/0.parquet")
    assert stamps(table) != before
    with refused(dp.DataError):
        dp.run(job, tmp_path / "run")


def test_object_rewritten_while_read_is_refused(tmp_path, prefix):
    """The driver requests the version of the object that was opened."""
    pd.DataFrame({"a": np.zeros(10, int)}).to_parquet(tmp_path / "x.parquet")
    url = upload(tmp_path / "x.parquet", f"{prefix}/x.parquet")
    with objects.opening(url, ahead=0) as file:
        file.read(4)
        pd.DataFrame({"a": np.ones(10, int)}).to_parquet(tmp_path / "x.parquet")
        upload(tmp_path / "x.parquet", url)
        with pytest.raises(OSError):
            file.read(100)


def test_missing_or_mixed_locations_are_refused(prefix):
    with refused(dp.DataError):
        dp.Table.open(f"{prefix}/nothing", DOMAIN)
    with refused(dp.DataError):
        dp.Table.open([prefix, f"s3://other-{uuid.uuid4().hex}/x.parquet"], DOMAIN)
    with refused(dp.DataError):
        dp.Table.open([prefix, "x.parquet"], DOMAIN)
    with refused(dp.DataError):
        dp.Table.open("nowhere://bucket/x", DOMAIN)
    with refused(dp.DataError):
        dp.Table.open("https://host/x.parquet", DOMAIN)


def test_damaged_object_is_reported_without_content(tmp_path, prefix):
    (tmp_path / "x.parquet").write_bytes(b"SECRET" * 100)
    url = upload(tmp_path / "x.parquet", f"{prefix}/x.parquet")
    with refused(dp.DataError) as caught:
        dp.Table.open(url, DOMAIN).require(["a"])
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("keyed", ["s3://AKIAKEY:SECRETKEY@bucket/x", "s3://bucket/x?X-Amz-Signature=SECRETKEY",
                                   "abfs://c@a.dfs.core.windows.net/x?sig=SECRETKEY",
                                   "simplecache::s3://b/SECRETKEY"])  # fmt: skip
def test_address_with_key_is_refused_without_printing_it(tmp_path, keyed):
    for ask in (lambda: dp.Table.open(keyed, DOMAIN), lambda: layout(keyed),
                lambda: dp.run(write(tmp_path, data={"path": keyed, "domain": "domain.toml"}))):  # fmt: skip
        with refused(dp.DpscaleError) as caught:
            ask()
        assert "SECRETKEY" not in str(caught.value)


def test_object_addresses_keep_store_prefix():
    azure = "abfs://container@account.dfs.core.windows.net/folder"
    assert objects._address(azure, "container/folder", "container/folder/x.csv") == f"{azure}/x.csv"
    assert objects._address("gs://bucket/f/*", "bucket/f/*", "bucket/f/x.csv") == "gs://bucket/f/x.csv"
    assert objects._address("hdfs://host:1/f", "/f", "/f/x.csv") == "hdfs://host:1/f/x.csv"
    for url in (azure, "s3://bucket/[ab]/year=?/x=1/*.parquet", "s3://[bucket/x"):
        objects.check_url(url)


def test_unreachable_store_is_transient(prefix, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    with refused(dp.TransientError) as caught:
        dp.Table.open(prefix, DOMAIN)
    assert "tests" not in str(caught.value).replace(prefix, "")
    s3fs.S3FileSystem.clear_instance_cache()


def test_delta_and_iceberg_tables_in_store(tmp_path, prefix, monkeypatch):
    """Delta paths are relative to the table and Iceberg paths are addresses; keys come from the environment."""
    deltalake, sql = pytest.importorskip("deltalake"), pytest.importorskip("pyiceberg.catalog.sql")
    from dpscale.records.origin import Origin

    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")  # the test's server has no certificate
    rows = pa.Table.from_pandas(frame(60, 1), preserve_index=False)
    deltalake.write_deltalake(str(tmp_path / "d"), rows, partition_by=["a"])
    upload(tmp_path / "d", f"{prefix}/d")
    catalog = sql.SqlCatalog("x", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"{prefix}/w",
                             **{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"})  # fmt: skip
    catalog.create_namespace("n")
    catalog.create_table("n.t", schema=rows.schema).append(rows)
    for kind, path in (("delta", f"{prefix}/d"), ("iceberg", f"{prefix}/w/n/t")):
        table = Origin(format=kind).table(path, DOMAIN)
        right = np.histogram2d(frame(60, 1).a, frame(60, 1).b, [range(5), range(4)])[0]
        assert count_sets(table)["a", "b"] == right.tolist()
        assert snapshot(table, footers=True)
        assert stamps(table) == stamps(Origin(format=kind, version=table.lake.version).table(path, DOMAIN))


@pytest.mark.parametrize(("url", "package"), [("gs://b/t", "gcsfs"), ("abfs://b@c/t", "adlfs")])
def test_missing_driver_is_named_with_extra(url, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(importlib.import_module("fsspec.registry"), "_registry", {})
    with refused(dp.DataError):
        dp.Table.open(url, DOMAIN)
