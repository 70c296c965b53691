"""Tables in several formats (CSV dialects, Delta), with filters on their rows."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import dpscale as dp
from dpscale.engine.schedulers import resolve
from dpscale.evaluation.inputs import check_keys
from dpscale.job import Job
from tests.links.small import make_frames, make_job, write_job
from tests.messages import refused
from tests.running import begin_linked, linked


def write_filtered_job(folder: Path) -> Path:
    """Write a job with orders of a CSV dialect, of women only, and expensive products only."""
    folder.mkdir(exist_ok=True)
    orders = make_frames()["orders"].assign(amount=lambda rows: rows.amount.round(3))
    (folder / "orders.csv").write_text(orders.to_csv(sep=";", index=False, header=False))
    content = make_job()
    content["tables"]["orders"] |= {"path": "orders.csv", "delimiter": ";", "header": False,
                                  "names": ["person", "month", "amount"], "where": "amount < 10"}  # fmt: skip
    content["tables"]["persons"]["where"] = 'sex = "F"'
    content["tables"]["products"]["where"] = "dear = 1"
    content["privacy"] |= {"privacy_cost": 1e5, "allow_weak_privacy": True}
    content["link"] = [one | {"dangling": "drop"} for one in content["link"]]
    return write_job(folder, content)


def test_named_format_is_read_and_invalid_columns_are_refused(tmp_path: Path) -> None:
    """The name of the orders file has no known extension; then two of its columns have values outside the domain."""
    path = write_filtered_job(tmp_path)
    (tmp_path / "orders.csv").rename(tmp_path / "orders.dat")
    content = tomllib.loads(path.read_text())
    content["tables"]["orders"] |= {"path": "orders.dat", "format": "csv"}
    path.write_text(tomli_w.dumps(content))
    summary = check_keys(Job.read(path), resolve(scheduler="synchronous"))
    assert {one["name"]: one["rows"] for one in summary["tables"]}["orders"] > 0
    lines = (tmp_path / "orders.dat").read_text().splitlines()
    person = lines[0].split(";")[0]
    (tmp_path / "orders.dat").write_text("\n".join([*lines, f"{person};999;1", f"{person};1;-7"]))
    with refused(dp.DataError):
        dp.run(path, tmp_path / "run")


def test_run_uses_filtered_rows_only(tmp_path: Path) -> None:
    data = make_frames()
    women = data["persons"][data["persons"].sex == "F"]
    orders = data["orders"][data["orders"].amount.round(3) < 10]
    release = dp.run(write_filtered_job(tmp_path), tmp_path / "run")
    found = {name: frame.compute() for name, frame in release.synthetic().items()}
    assert set(found["persons"].sex) == {"F"}
    assert len(found["persons"]) == pytest.approx(len(women), abs=3)
    assert release.tables["orders"].total().estimate == pytest.approx(len(orders), rel=0.1)
    assert sorted(found["products"].code) == sorted(data["products"][data["products"].dear == 1].code)
    assert found["ratings"].code.isin(found["products"].code).all()


def test_check_counts_filtered_rows(tmp_path: Path) -> None:
    summary = check_keys(Job.read(write_filtered_job(tmp_path)), resolve(scheduler="synchronous"))
    data = make_frames()
    rows = {one["name"]: one["rows"] for one in summary["tables"]}
    assert rows["persons"] == (data["persons"].sex == "F").sum()
    assert rows["orders"] == (data["orders"].amount.round(3) < 10).sum()
    [orders] = [one for one in summary["links"] if one["name"] == "orders"]
    women = data["persons"][data["persons"].sex == "F"].id
    there = data["orders"][data["orders"].amount.round(3) < 10].person
    assert orders["dangling"] == (~there.isin(women)).sum()


def write_delta_job(folder: Path) -> Path:
    """Write a job with persons and public products in Delta; persons at a version before the last."""
    deltalake = pytest.importorskip("deltalake")
    data = make_frames()
    deltalake.write_deltalake(str(folder / "persons"), data["persons"].iloc[:200])
    deltalake.write_deltalake(str(folder / "persons"), data["persons"].iloc[200:], mode="append")
    deltalake.write_deltalake(str(folder / "products"), data["products"])
    content = make_job()
    content["tables"]["persons"] |= {"path": "persons", "format": "delta", "version": 0}
    content["tables"]["products"] |= {"path": "products", "format": "delta"}
    for name in ("persons", "orders"):
        content["tables"][name]["mechanism"] = "residual-planner"
    content["privacy"] |= {"privacy_cost": 1e5, "allow_weak_privacy": True}
    content["link"] = [one | {"dangling": "drop"} for one in content["link"]]
    return write_job(folder, content)


def test_delta_tables_are_read_at_their_version(tmp_path: Path) -> None:
    summary = check_keys(Job.read(write_delta_job(tmp_path)), resolve(scheduler="synchronous"))
    rows = {one["name"]: one["rows"] for one in summary["tables"]}
    assert (rows["persons"], rows["products"]) == (200, len(make_frames()["products"]))


def test_run_is_pinned_to_delta_version(tmp_path: Path) -> None:
    """The version also applies if the table changes before the run is resumed or repeated."""
    deltalake = pytest.importorskip("deltalake")
    path, products = write_delta_job(tmp_path), make_frames()["products"]
    run = begin_linked(Job.read(path), tmp_path / "run")
    with run.run.locked():
        run.pin_versions()
    assert run.job.tables["products"].version == 0
    deltalake.write_deltalake(str(tmp_path / "products"), products.assign(code=products.code + 1000), mode="append")
    for _ in range(2):
        release = dp.run(path, tmp_path / "run")
        found = {name: frame.compute() for name, frame in release.synthetic().items()}
        assert sorted(found["products"].code) == sorted(products.code)
        assert len(found["persons"]) == pytest.approx(200, abs=3)
        assert found["ratings"].code.isin(found["products"].code).all()
    assert linked(tmp_path / "run").job.tables["products"].version == 0
    summary = check_keys(Job.read(path), resolve(scheduler="synchronous"))
    assert {one["name"]: one["rows"] for one in summary["tables"]}["products"] == 2 * len(products)


@pytest.mark.parametrize("change", [
    {"format": "xml"},
    {"format": None, "version": 3},
    {"version": 9},
    {"format": "iceberg", "version": None},
])  # fmt: skip
def test_invalid_table_format_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    content = tomllib.loads(write_delta_job(tmp_path).read_text())
    persons = {key: value for key, value in (content["tables"]["persons"] | change).items() if value is not None}
    with refused((dp.JobError, dp.DataError)) as raised:
        dp.run(write_job(tmp_path, {"tables": content["tables"] | {"persons": persons}}), tmp_path / "run")
    assert "\n" not in str(raised.value)
