"""A format in one module and one line: the same counts, refusals and units as the same records in Parquet."""

import numpy as np
import pytest
import tomli_w

import dpscale as dp
from dpscale.records import Table
from dpscale.records.files import Dialect
from dpscale.records.formats import FORMATS
from tests.audit.small import frame, write
from tests.links.small import make_frames, make_job, write_job
from tests.messages import refused
from tests.toys.lines import write_lines

LINES = Dialect(format="lines")
JOB = {"workload": [{"family": "marginal", "degree": 2}], "mechanism": {"name": "residual-planner"}}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(FORMATS, "lines", "tests.toys.lines")


def write_data(folder, rows):
    """Write two files of lines and a job file; return the path of the folder of data."""
    write(folder)
    lines = folder / "lines"
    lines.mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(rows)), 2)):
        write_lines(lines / f"{number}.dat", rows.iloc[part])
    return lines


def test_counts_equal_those_of_parquet(tmp_path):
    lines = write_data(tmp_path, frame())
    domain = dp.Domain.read(tmp_path / "domain.toml")
    sets = [("a", "b"), ("c",), ()]
    wanted = dp.count_marginals(Table.open(tmp_path / "data", domain), sets)
    found = dp.count_marginals(Table.open(lines, domain, dialect=LINES), sets)
    assert all((found[names] == wanted[names]).all() for names in sets)


def test_run_has_same_rows_of_units_and_filter(tmp_path):
    """With little noise, the answers of a run with units and a filter are the counts of the same run on Parquet."""
    lines, found = write_data(tmp_path, frame()), []
    privacy = {"privacy_cost": 1e6, "allow_weak_privacy": True}
    unit = {"domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 2, "where": "c < 4"}
    for name, data in (("data", {"path": "data"}), ("lines", {"path": str(lines), "format": "lines"})):
        job = write(tmp_path, f"{name}.toml", **JOB, data=data | unit, privacy=privacy | {"dataset": name})
        found.append(np.rint(dp.run(job, tmp_path / f"run-{name}").marginal(("a", "b"))).tolist())
    assert found[0] == found[1]
    assert 0 < np.sum(found[0]) < len(frame())


def test_value_outside_the_domain_is_refused_without_its_text(tmp_path):
    rows = frame().astype(str)
    rows.loc[7, "a"] = "secret99"
    lines = write_data(tmp_path, rows)
    job = write(tmp_path, **JOB, data={"path": str(lines), "format": "lines", "domain": "domain.toml"})
    with pytest.raises(dp.DataError) as refused:
        dp.run(job, tmp_path / "run")
    assert "secret99" not in str(refused.value)


def test_missing_word_is_a_null(tmp_path):
    rows = frame().astype({"a": float})
    rows.loc[:9, "a"] = np.nan
    rows = rows.astype({"a": "Int64"}).astype(object).where(rows.notna(), float("nan"))
    lines = write_data(tmp_path, rows)
    (tmp_path / "domain.toml").write_text(
        tomli_w.dumps({"attributes": {"a": {"kind": "coded", "size": 4, "nulls": "category"}}})
    )
    domain = dp.Domain.read(tmp_path / "domain.toml")
    counts = dp.count_marginals(Table.open(lines, domain, dialect=LINES), [("a",)])[("a",)]
    assert (counts[-1], counts.sum()) == (10, len(rows))


def test_tables_of_linked_job_are_read(tmp_path):
    content = make_job()
    orders = make_frames()["orders"]
    path = write_job(tmp_path)
    write_lines(tmp_path / "orders.dat", orders)
    content["tables"]["orders"] |= {"path": "orders.dat", "format": "lines"}
    (tmp_path / "lines.toml").write_text(
        tomli_w.dumps(content | {"privacy": {"privacy_cost": 8.0, "dataset": "other"}})
    )
    runs = [dp.run(job, tmp_path / job.stem) for job in (path, tmp_path / "lines.toml")]
    totals = [run.tables["orders"].total().estimate for run in runs]
    assert totals[1] == pytest.approx(totals[0], abs=60)


def test_unknown_format_is_refused_in_one_sentence(tmp_path):
    lines = write_data(tmp_path, frame())
    job = write(tmp_path, **JOB, data={"path": str(lines), "format": "line", "domain": "domain.toml"})
    with refused(dp.JobError):
        dp.run(job, tmp_path / "run")
    job = write(tmp_path, **JOB, data={"path": str(lines), "domain": "domain.toml"})
    with refused(dp.DataError):  # an ending loads no foreign format
        dp.run(job, tmp_path / "run")
