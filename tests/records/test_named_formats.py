"""Files without a known extension are read by the format named in the job."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.job.sections import TableSection
from dpscale.records.origin import layout, snapshot
from dpscale.records.sketch import sketch
from tests.messages import refused
from tests.runs.small import DOMAIN, table, write_job

SMALL = dp.Domain.from_dict({"attributes": {"a": {"kind": "integer", "low": 0, "high": 9}}})
FRAME = pd.DataFrame({"a": np.arange(40) % 10, "b": ["x"] * 40})


def write_file(frame, path, kind):
    """Write a file of the given format, gzipped if the name ends in .gz."""
    if kind in ("csv", "tsv"):
        text = frame.to_csv(index=False, sep="\t" if kind == "tsv" else ",").encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    elif kind == "parquet":
        frame.to_parquet(path, index=False)
    elif kind == "ndjson":
        text = frame.to_json(orient="records", lines=True).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    else:
        feather.write_feather(pa.Table.from_pandas(frame, preserve_index=False), path)


def count_attribute(path, **settings):
    origin = TableSection(path=str(path), domain=".", **settings).origin
    return dp.count_marginals(origin.table(str(path), SMALL), [("a",)])["a",].tolist()


NAMES = [("parquet", "x.dat"), ("parquet", "x"), ("csv", "x.dat"), ("csv", "x.dat.gz"), ("csv", "x.txt"),
         ("tsv", "x.dat"), ("tsv", "x.csv"), ("arrow", "x.dat"), ("parquet", "x.csv"), ("ndjson", "x.json"),
         ("ndjson", "x.dat.gz"), ("ndjson", "x")]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), NAMES)
@pytest.mark.parametrize("path_form", ["file", "folder", "glob"])
def test_file_of_any_name_is_read_by_named_format(tmp_path, kind, name, path_form):
    write_file(FRAME, tmp_path / name, kind)
    write_file(FRAME, tmp_path / f"2{name}", kind)
    (tmp_path / "_SUCCESS").write_text("hidden")
    (tmp_path / ".hidden").write_text("hidden")
    path = {"file": tmp_path / name, "folder": tmp_path, "glob": f"{tmp_path}/*x*"}[path_form]
    assert count_attribute(path, format=kind) == [4 if path_form == "file" else 8] * 10


def test_layout_and_snapshot_use_named_format(tmp_path):
    for number in (1, 2):
        write_file(FRAME, tmp_path / f"{number}.dat", "parquet")
    assert layout(str(tmp_path)) is None
    assert layout(str(tmp_path), named="parquet")["number"] == 2
    found = TableSection(path=str(tmp_path), domain=".", format="parquet").origin.table(str(tmp_path), SMALL)
    assert snapshot(found, footers=True) != snapshot(found)
    assert found.partitions[0].row_bound() == 40


def test_named_format_in_memory_store(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.pipe("/named/1.dat", FRAME.to_csv(index=False).encode())
    store.pipe("/named/_hidden", b"x")
    try:
        assert count_attribute("memory://named", format="csv") == [4] * 10
    finally:
        store.rm("/named", recursive=True)


def test_file_of_other_format_is_refused(tmp_path):
    write_file(FRAME, tmp_path / "x.dat", "csv")
    for kind in ("parquet", "arrow"):
        with refused(dp.DataError):
            count_attribute(tmp_path / "x.dat", format=kind)
    with refused(dp.DataError):
        count_attribute(tmp_path / "x.dat")
    with refused(dp.DataError):
        count_attribute(tmp_path / "x.dat", format="parquet", delimiter=";")
    write_file(FRAME, tmp_path / "x.dat.gz", "csv")
    with refused(dp.DataError):
        count_attribute(tmp_path, format="csv")


@pytest.mark.parametrize("settings", [{"format": "xml"}, {"format": "csv", "version": 1}, {"version": 1}])
def test_unknown_format_and_version_of_plain_files_are_refused(settings):
    with refused(ValueError):
        TableSection(path="x", domain=".", **settings)


def test_run_with_named_format_equals_run_by_extension(place):
    frame, answers = table(), []
    for name, settings in (("x.csv", {}), ("x.dat", {"format": "csv"})):
        (place / name).write_bytes(frame.to_csv(index=False).encode())
        (place / "unit.dat").write_bytes(b"person,home\n" + b"".join(b"%d,%d\n" % (i, i // 2) for i in range(1400)))
        data = {"path": name, "domain": "domain.toml", **settings, "privacy_unit": "person", "max_rows_per_unit": 6}
        data["unit_through"] = [{"path": "unit.dat", "key": "person", "unit": "home", "format": "csv"}]
        privacy = {"epsilon": 1e4, "delta": 1e-9, "dataset": name, "allow_weak_privacy": True}
        job = write_job(place, data=data, privacy=privacy)
        release = dp.run(job, place / f"run-{name}")
        answers.append(np.round(release.marginal(("age",))).tolist())
        assert dp.run(job, place / f"run-{name}").path == release.path
    assert np.allclose(answers[0], answers[1], atol=2)


def test_sketch_and_domain_check_accept_format(tmp_path):
    write_file(FRAME, tmp_path / "x.dat", "csv")
    assert "[attributes.a]" in sketch(str(tmp_path / "x.dat"), TableSection(path="x", domain=".", format="csv").dialect)
    draft = CliRunner().invoke(main, ["domain", "sketch", str(tmp_path / "x.dat"), "--format", "csv"])
    assert draft.exit_code == 0
    (tmp_path / "d.toml").write_text("[attributes.a]\nkind = 'integer'\nlow = 0\nhigh = 9\n")
    call = ["check", "domain", str(tmp_path / "d.toml"), str(tmp_path / "x.dat")]
    assert CliRunner().invoke(main, [*call, "--format", "csv"]).exit_code == 0
    assert 'format = "csv"' in CliRunner().invoke(main, call).stderr
    assert CliRunner().invoke(main, [*call, "--format", "xml"]).exit_code == 2


def test_format_is_omitted_from_job_by_default():
    data_section = TableSection(path="x", domain=".")
    assert data_section.model_dump(exclude_none=True).keys().isdisjoint({"format"})
    assert DOMAIN["attributes"]
