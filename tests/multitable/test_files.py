"""Tables that are kept in their own ways, and of which some rows alone are there."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import dpscale as dp
from dpscale.engine import resolve
from dpscale.multitable.job import DatabaseJob
from dpscale.multitable.key_checks import check
from dpscale.multitable.run import DatabaseRun
from tests.multitable.small import frames, job, write


def shop(folder: Path) -> Path:
    """Orders in CSV of a dialect, of women alone, and of products the dear ones."""
    folder.mkdir(exist_ok=True)
    orders = frames()["orders"].assign(amount=lambda rows: rows.amount.round(3))
    (folder / "orders.csv").write_text(orders.to_csv(sep=";", index=False, header=False))
    asked = job()
    asked["tables"]["orders"] |= {"path": "orders.csv", "delimiter": ";", "header": False,
                                  "names": ["person", "month", "amount"], "where": "amount < 10"}  # fmt: skip
    asked["tables"]["persons"]["where"] = 'sex = "F"'
    asked["tables"]["products"]["where"] = "dear = 1"
    asked["privacy"] |= {"privacy_cost": 1e5, "allow_weak_privacy": True}
    asked["link"] = [one | {"dangling": "drop"} for one in asked["link"]]
    return write(folder, asked)


def test_a_table_of_a_named_format_and_all_refused_columns_of_a_table(tmp_path: Path) -> None:
    """Orders in a file whose ending says nothing; then two of its columns have values outside the domain."""
    path = shop(tmp_path)
    (tmp_path / "orders.csv").rename(tmp_path / "orders.dat")
    content = tomllib.loads(path.read_text())
    content["tables"]["orders"] |= {"path": "orders.dat", "format": "csv"}
    path.write_text(tomli_w.dumps(content))
    told = check(DatabaseJob.read(path), resolve(scheduler="synchronous"))
    assert {one["name"]: one["rows"] for one in told["tables"]}["orders"] > 0
    lines = (tmp_path / "orders.dat").read_text().splitlines()
    person = lines[0].split(";")[0]
    (tmp_path / "orders.dat").write_text("\n".join([*lines, f"{person};999;1", f"{person};1;-7"]))
    with pytest.raises(dp.DataError, match=r"data columns: 'month' \(.*, 'amount' \("):
        dp.run(path, tmp_path / "run")


def test_a_run_sees_the_rows_that_match_and_no_others(tmp_path: Path) -> None:
    data = frames()
    women = data["persons"][data["persons"].sex == "F"]
    orders = data["orders"][data["orders"].amount.round(3) < 10]
    release = dp.run(shop(tmp_path), tmp_path / "run")
    found = {name: frame.compute() for name, frame in release.synthetic().items()}
    assert set(found["persons"].sex) == {"F"}
    assert len(found["persons"]) == pytest.approx(len(women), abs=3)
    assert release.tables["orders"].total().estimate == pytest.approx(len(orders), rel=0.1)
    assert sorted(found["products"].code) == sorted(data["products"][data["products"].dear == 1].code)
    assert found["ratings"].code.isin(found["products"].code).all()


def test_what_is_checked_before_is_what_is_read(tmp_path: Path) -> None:
    told = check(DatabaseJob.read(shop(tmp_path)), resolve(scheduler="synchronous"))
    data = frames()
    rows = {one["name"]: one["rows"] for one in told["tables"]}
    assert rows["persons"] == (data["persons"].sex == "F").sum()
    assert rows["orders"] == (data["orders"].amount.round(3) < 10).sum()
    [orders] = [one for one in told["links"] if one["name"] == "orders"]
    women = data["persons"][data["persons"].sex == "F"].id
    there = data["orders"][data["orders"].amount.round(3) < 10].person
    assert orders["dangling"] == (~there.isin(women)).sum()


def logged(folder: Path) -> Path:
    """Persons and products in Delta, the latter public; persons at a version before the last."""
    deltalake = pytest.importorskip("deltalake")
    data = frames()
    deltalake.write_deltalake(str(folder / "persons"), data["persons"].iloc[:200])
    deltalake.write_deltalake(str(folder / "persons"), data["persons"].iloc[200:], mode="append")
    deltalake.write_deltalake(str(folder / "products"), data["products"])
    asked = job()
    asked["tables"]["persons"] |= {"path": "persons", "format": "delta", "version": 0}
    asked["tables"]["products"] |= {"path": "products", "format": "delta"}
    for name in ("persons", "orders"):
        asked["tables"][name]["mechanism"] = "residual-planner"
    asked["privacy"] |= {"privacy_cost": 1e5, "allow_weak_privacy": True}
    asked["link"] = [one | {"dangling": "drop"} for one in asked["link"]]
    return write(folder, asked)


def test_tables_with_a_log_are_read_at_their_version(tmp_path: Path) -> None:
    told = check(DatabaseJob.read(logged(tmp_path)), resolve(scheduler="synchronous"))
    rows = {one["name"]: one["rows"] for one in told["tables"]}
    assert (rows["persons"], rows["products"]) == (200, len(frames()["products"]))


def test_a_run_keeps_to_the_version_that_it_began_with(tmp_path: Path) -> None:
    """Also where the table moves on before it is gone on with, and where it is asked for again."""
    deltalake = pytest.importorskip("deltalake")
    path, products = logged(tmp_path), frames()["products"]
    run = DatabaseRun.create(DatabaseJob.read(path), tmp_path / "run")
    with run.locked():
        run.pin_versions()
    assert run.job.tables["products"].version == 0
    deltalake.write_deltalake(str(tmp_path / "products"), products.assign(code=products.code + 1000), mode="append")
    for _ in range(2):
        release = dp.run(path, tmp_path / "run")
        found = {name: frame.compute() for name, frame in release.synthetic().items()}
        assert sorted(found["products"].code) == sorted(products.code)
        assert len(found["persons"]) == pytest.approx(200, abs=3)
        assert found["ratings"].code.isin(found["products"].code).all()
    assert DatabaseRun(tmp_path / "run").job.tables["products"].version == 0
    told = check(DatabaseJob.read(path), resolve(scheduler="synchronous"))
    assert {one["name"]: one["rows"] for one in told["tables"]}["products"] == 2 * len(products)


@pytest.mark.parametrize(("change", "told"), [
    ({"format": "xml"}, "tables.persons.format"),
    ({"format": None, "version": 3}, "version requires format"),
    ({"version": 9}, "data.version"),
    ({"format": "iceberg", "version": None}, "persons"),
])  # fmt: skip
def test_what_is_no_table_of_that_format_is_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    asked = tomllib.loads(logged(tmp_path).read_text())
    persons = {key: value for key, value in (asked["tables"]["persons"] | change).items() if value is not None}
    with pytest.raises((dp.JobError, dp.DataError), match=told) as raised:
        dp.run(write(tmp_path, {"tables": asked["tables"] | {"persons": persons}}), tmp_path / "run")
    assert "\n" not in str(raised.value)
