"""Delta and Iceberg tables at a fixed version: the rows that their own libraries return, and one-line errors."""

import datetime as dt
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tomli_w

import dpscale as dp
from dpscale.records.origin import Origin, snapshot, stamps
from dpscale.records.where import read_where
from tests.messages import refused

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
DOMAIN = dp.Domain.from_dict({"attributes": {
    "a": {"kind": "coded", "size": 4},
    "town": {"kind": "categories", "values": ["Köln / x", "Ulm"], "nulls": "category"},
    "new": {"kind": "integer", "low": 0, "high": 2, "nulls": "category"}}})  # fmt: skip
SETS = [("a", "town"), ("a", "new")]
DAYS = [dt.date(2025, 1, 1), dt.date(2025, 1, 2)]


def make_rows(seed, new=False, count=200):
    rng = np.random.default_rng(seed)
    town = np.array(["Köln / x", "Ulm", None], object)[rng.integers(0, 3, count)]
    columns = {"a": rng.integers(0, 4, count), "town": pa.array(town, pa.string()), "id": rng.integers(0, 60, count),
               "day": pa.array([DAYS[one] for one in rng.integers(0, 2, count)], pa.date32())}  # fmt: skip
    return pa.table(columns | ({"new": rng.integers(0, 3, count)} if new else {}))


def write_delta(folder):
    """Write version 0, then a version with another column and more rows."""
    path = str(folder / "t")
    deltalake.write_deltalake(path, make_rows(1), partition_by=["town", "day"])
    deltalake.write_deltalake(path, make_rows(2, new=True), mode="append", schema_mode="merge")
    return path


class Iceberg:
    """The same versions as an Iceberg table with its catalog."""

    def __init__(self, folder):
        from pyiceberg.catalog.sql import SqlCatalog

        (folder / "w").mkdir()
        catalog = SqlCatalog("x", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/w")
        catalog.create_namespace("n")
        self.table = catalog.create_table("n.t", schema=make_rows(1).schema)
        with self.table.update_spec() as spec:
            spec.add_identity("town")
            spec.add_identity("day")
        self.append(make_rows(1))
        with self.table.update_schema() as schema:
            from pyiceberg.types import LongType

            schema.add_column("new", LongType())
        self.append(make_rows(2, new=True))
        self.path = f"{folder}/w/n/t"

    def append(self, table):
        self.table.append(table)

    @property
    def versions(self):
        return [one.snapshot_id for one in self.table.metadata.snapshots]


@pytest.fixture(params=["delta", "iceberg"])
def lake(request, tmp_path):
    """Kind, path, versions in order, and a function that appends rows."""
    if request.param == "delta":
        path = write_delta(tmp_path)
        return "delta", path, [0, 1], lambda table: deltalake.write_deltalake(path, table, mode="append")
    made = Iceberg(tmp_path)
    return "iceberg", made.path, made.versions, made.append


def oracle(tables, names):
    whole = pd.concat([table.to_pandas() for table in tables])
    if "new" not in whole:
        whole["new"] = None
    cells = {"a": whole.a, "town": whole.town.map({"Köln / x": 0, "Ulm": 1}).fillna(2), "new": whole.new.fillna(3)}
    edges = [np.arange(DOMAIN[name].size + 1) - 0.5 for name in names]
    return np.histogram2d(*(cells[name].astype(float) for name in names), edges)[0]


def assert_counts(table, tables):
    for names, counts in dp.count_marginals(table, SETS).items():
        np.testing.assert_array_equal(counts, oracle(tables, names))


def test_versions_partitions_and_added_columns(lake):
    kind, path, versions, append = lake
    latest = Origin(format=kind).table(path, DOMAIN)
    assert_counts(latest, [make_rows(1), make_rows(2, new=True)])
    first = Origin(format=kind, version=versions[0])
    if kind == "delta":  # whose first schema has no such column
        with refused(dp.DataError):
            first.table(path, DOMAIN).require(["new"])
    names = snapshot(latest), stamps(latest)
    append(make_rows(3, new=True))
    again = Origin(format=kind, version=versions[-1]).table(path, DOMAIN)
    assert (snapshot(again), stamps(again)) == names
    moved = Origin(format=kind).table(path, DOMAIN)
    assert_counts(moved, [make_rows(1), make_rows(2, new=True), make_rows(3, new=True)])
    assert snapshot(moved) != names[0]
    assert moved.lake.uuid == latest.lake.uuid


def test_pruned_partitions_are_not_opened(lake):
    kind, path, *_ = lake
    text = "day = 2025-01-02 and town = 'Köln / x' and a > 0"
    right = [table.filter((pa.compute.field("day") == DAYS[1]) & (pa.compute.field("town") == "Köln / x")
                          & (pa.compute.field("a") > 0))
             for table in (make_rows(1), make_rows(2, new=True))]  # fmt: skip
    whole = Origin(format=kind).table(path, DOMAIN)
    for file in whole.files:
        if "2025-01-02" not in file or "=K" not in file:
            Path(file).write_bytes(b"broken")
    table = Origin(format=kind, where=read_where(text)).table(path, DOMAIN)
    assert 0 < len(table.files) < len(whole.files)
    assert_counts(table, right)


def make_job(folder, kind, path, **data):
    (folder / "domain.toml").write_text(tomli_w.dumps(DOMAIN.to_dict()))
    return {"data": {"path": path, "domain": str(folder / "domain.toml"), "format": kind} | data,
            "privacy": {"privacy_cost": 1e11, "ledger": str(folder / "ledger.sqlite"), "allow_weak_privacy": True},
            "workload": [{"family": "marginal", "attributes": [["a", "town"]]}],
            "mechanism": {"name": "residual-planner"}, "engine": {"scheduler": "synchronous"}}  # fmt: skip


def test_stopped_run_resumes_at_its_version(lake, tmp_path, monkeypatch):
    """The run is stopped after it has read its data; then the table gets a new version."""
    kind, path, versions, append = lake
    made = make_job(tmp_path, kind, path, privacy_unit="id", max_rows_per_unit=50)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpscale.runs.stages.measure.measure", interrupt)
        with pytest.raises(KeyboardInterrupt):
            dp.run(made, tmp_path / "run")
    append(make_rows(3, new=True))
    release = dp.run(made, tmp_path / "run")
    np.testing.assert_allclose(
        release.marginal(("a", "town")), oracle([make_rows(1), make_rows(2)], ("a", "town")), atol=0.1
    )
    assert release.manifest["table"]["version"] == release.manifest["data"]["version"] == versions[-1]
    with refused(dp.DataError):
        dp.run(made, tmp_path / "run")


def test_changed_commit_is_detected(lake):
    kind, path, *_ = lake
    table = Origin(format=kind).table(path, DOMAIN)
    before = stamps(table)
    with open(table.lake.commit, "ab") as file:
        file.write(b"\n")
    assert stamps(table) != before
    os.remove(table.lake.commit)
    with refused(dp.DataError):
        stamps(table)


def write_commit(path, number, *actions):
    """Write a commit of the Delta protocol, as another engine does."""
    at = Path(path) / "_delta_log" / f"{number:020}.json"
    at.write_text("\n".join(json.dumps(one) for one in actions))


def test_unsupported_delta_feature_is_refused(tmp_path):
    path = write_delta(tmp_path)
    features = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors"]}  # fmt: skip
    write_commit(path, 2, {"protocol": features})
    with refused(dp.DataError):
        Origin(format="delta").table(path, DOMAIN)
    assert_counts(Origin(format="delta", version=1).table(path, DOMAIN), [make_rows(1), make_rows(2, new=True)])


def test_deleted_delta_rows_are_not_counted(tmp_path):
    path = write_delta(tmp_path)
    deltalake.DeltaTable(path).delete("a = 2")
    remaining = [table.filter(pa.compute.field("a") != 2) for table in (make_rows(1), make_rows(2, new=True))]
    assert_counts(Origin(format="delta").table(path, DOMAIN), remaining)


def test_renamed_iceberg_column_is_refused(tmp_path):
    made = Iceberg(tmp_path)
    before = made.versions[-1]
    with made.table.update_schema() as schema:
        schema.rename_column("new", "newer")
        schema.rename_column("id", "key")
    made.append(make_rows(3, new=True).rename_columns(["a", "town", "key", "day", "newer"]))
    table = Origin(format="iceberg").table(made.path, DOMAIN)
    table.require(["a", "town"])
    for name in ("newer", "new", "key"):
        with refused(dp.DataError):
            table.require([name])
    assert_counts(
        Origin(format="iceberg", version=before).table(made.path, DOMAIN), [make_rows(1), make_rows(2, new=True)]
    )


def test_iceberg_delete_files_are_refused(tmp_path, monkeypatch):
    """pyiceberg writes no delete files, so one is added to the scan plan."""
    from pyiceberg.table import DataScan

    made, plan = Iceberg(tmp_path), DataScan.plan_files

    def plan_with_delete_file(scan):
        tasks = list(plan(scan))
        tasks[0].delete_files = {tasks[0].file}
        return tasks

    monkeypatch.setattr(DataScan, "plan_files", plan_with_delete_file)
    with refused(dp.DataError):
        Origin(format="iceberg").table(made.path, DOMAIN)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_missing_table_is_refused(tmp_path, kind):
    with refused(dp.DataError):
        Origin(format=kind).table(str(tmp_path), DOMAIN)


def test_missing_version_and_package_are_refused(lake, monkeypatch):
    kind, path, *_ = lake
    with refused(dp.DataError):
        Origin(format=kind, version=99).table(path, DOMAIN)
    monkeypatch.setitem(__import__("sys").modules, {"delta": "deltalake", "iceberg": "pyiceberg"}[kind], None)
    with refused(dp.DataError):
        Origin(format=kind).table(path, DOMAIN)


def test_ambiguous_iceberg_metadata_is_refused(tmp_path):
    made = Iceberg(tmp_path)
    latest = Path(made.table.metadata_location.removeprefix("file://"))
    (latest.parent / (latest.name[:6] + "other.metadata.json")).write_bytes(latest.read_bytes())
    with refused(dp.DataError):
        Origin(format="iceberg").table(made.path, DOMAIN)
    assert_counts(Origin(format="iceberg").table(str(latest), DOMAIN), [make_rows(1), make_rows(2, new=True)])
