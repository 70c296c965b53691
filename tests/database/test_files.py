"""Tables that are kept in their own ways, and of which some rows alone are there."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpscale as dp
from dpscale.database.checking import check
from dpscale.database.job import DatabaseJob
from dpscale.engine import resolve
from tests.database.small import frames, job, write


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
    asked["privacy"] |= {"privacy_cost": 1e5, "careless": True}
    asked["link"] = [one | {"dangling": "drop"} for one in asked["link"]]
    return write(folder, asked)


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
