"""Nothing is charged for no rows, unless the job is released as empty."""

from pathlib import Path

import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale.base.errors import DataError, JobError
from dpscale.ledger import Ledger
from tests.links.small import make_frames, make_job, table_section, write_job
from tests.messages import refused
from tests.periods import growing
from tests.running import release_next
from tests.runs.test_spent_once import DOMAIN, JOB

DROPPING = DOMAIN.replace("size = 3", 'size = 3\noutside = "drop"')
UNITS = JOB.replace('"data"', '"data"\nprivacy_unit = "u"\nmax_rows_per_unit = 1\nunit_nulls = "drop"')
CASES = {
    "a unit that no row has": ("a,b,u\n" + "1,1,\n" * 20, DOMAIN, UNITS),
    "a header only": ("a,b\n", DOMAIN, JOB),
    "a rule that drops every row": ("a,b\n" + "7,1\n" * 20, DROPPING, JOB),
    "a filter that no row matches": ("a,b\n" + "1,1\n" * 20, DOMAIN, JOB.replace('"data"', '"data"\nwhere = "a = 2"')),
}


def write(folder: Path, rows: str, domain: str, job: str) -> Path:
    (folder / "data").mkdir()
    (folder / "data/rows.csv").write_text(rows)
    (folder / "domain.toml").write_text(domain)
    (folder / "job.toml").write_text(job)
    return folder / "job.toml"


def charged(place: Path) -> int:
    if not place.exists():
        return 0
    with Ledger.open(place) as ledger:
        return sum(len(one["releases"]) for one in ledger.summary()["datasets"].values())


@pytest.mark.parametrize("case", CASES)
def test_no_rows_no_charge(tmp_path, case):
    job = write(tmp_path, *CASES[case])
    with refused(DataError):
        dp.run(job, tmp_path / "run")
    assert charged(tmp_path / "ledger.sqlite") == 0
    assert abs(dp.run(job, tmp_path / "run", empty=True).total().estimate) < 100
    assert charged(tmp_path / "ledger.sqlite") == 1


def test_empty_frame_is_not_charged(tmp_path):
    plan = dp.plan([["a", "b"]], dp.Domain(a=3, b=2), epsilon=1, ledger=tmp_path / "ledger.sqlite")
    frame = pd.DataFrame({"a": [1], "b": [1]})
    with refused(DataError):
        dp.run(plan, tmp_path / "run", data=frame.iloc[:0])
    assert charged(tmp_path / "ledger.sqlite") == 0
    dp.run(plan, tmp_path / "run", data=frame)
    assert charged(tmp_path / "ledger.sqlite") == 1


def test_files_that_state_no_rows_are_released(tmp_path):
    job = write(tmp_path, "a,b\n", DOMAIN, JOB)
    (tmp_path / "data/rows.csv").unlink()
    pd.DataFrame({"a": [1], "b": [1]}).iloc[:0].to_parquet(tmp_path / "data/rows.parquet")
    with pytest.warns(UserWarning, match="state that they have no rows"):
        dp.run(job, tmp_path / "run")
    assert charged(tmp_path / "ledger.sqlite") == 1


def test_one_row_in_the_last_file_is_charged(tmp_path):
    """The search for a row reads every file before it refuses."""
    job = write(tmp_path, "a,b\n", DOMAIN, JOB)
    (tmp_path / "data/second.csv").write_text("a,b\n")
    (tmp_path / "data/third.csv").write_text("a,b\n2,1\n")
    dp.run(job, tmp_path / "run")
    assert charged(tmp_path / "ledger.sqlite") == 1


def test_date_that_is_not_read_names_its_format_first(tmp_path):
    domain = '[attributes.d]\nkind = "date"\nby = "month"\nlow = "2024-01"\nhigh = "2024-12"\n'
    job = write(tmp_path, "d\n24.05.2024\n", domain, JOB.replace("degree = 2", "degree = 1"))
    with refused(DataError) as caught:
        dp.run(job, tmp_path / "run")
    text = str(caught.value)
    assert text.index('format = "%d.%m.%Y"') < text.index('"category"') < text.index('"drop"')
    assert charged(tmp_path / "ledger.sqlite") == 0


def shop_job(folder: Path, orders: dict[str, str], parts: str) -> Path:
    """Write a database whose orders are in CSV files; `parts` names the release that is charged first."""
    base = make_job("planned" if parts == "division" else "equal")
    tables = base["tables"] | {"orders": table_section("orders") | {"path": "orders.csv"} | orders}
    job = write_job(folder, base | {"tables": tables, "engine": {"scheduler": "synchronous"}})
    if parts == "searches":
        domain = {"age": {"kind": "discover"}, "sex": {"kind": "categories", "values": ["F", "M"]}}
        (folder / "persons.toml").write_text(tomli_w.dumps({"attributes": domain}))
        privacy = {"epsilon": 8.0, "delta": 1e-6, "dataset": "shop"}
        job.write_text(tomli_w.dumps(base | {"tables": tables, "privacy": privacy}))
    return job


@pytest.mark.parametrize("parts", ["tables", "searches", "division"])
@pytest.mark.parametrize("case", ["header", "filter"])
def test_table_without_rows_in_a_database_is_not_charged(tmp_path, case, parts):
    orders = make_frames()["orders"].iloc[: 0 if case == "header" else 100]
    orders.to_csv(tmp_path / "orders.csv", index=False)
    job = shop_job(tmp_path, {"where": "amount > 1e6"} if case == "filter" else {}, parts)
    with refused(DataError):
        dp.run(job, tmp_path / "run")
    assert charged(tmp_path / "ledger.sqlite") == 0


def test_table_without_rows_in_a_database_is_released_if_that_is_allowed(tmp_path):
    make_frames()["orders"].iloc[:0].to_csv(tmp_path / "orders.csv", index=False)
    release = dp.run(shop_job(tmp_path, {}, "tables"), tmp_path / "run", empty=True)
    assert len(release.tables) == 2
    assert charged(tmp_path / "ledger.sqlite") == 1


def growing_job(folder: Path, months: dict[str, str]) -> dict:
    for month, rows in months.items():
        (folder / f"data/month={month}").mkdir(parents=True, exist_ok=True)
        (folder / f"data/month={month}/rows.csv").write_text("a,b\n" + rows)
    return growing.make_job(folder)


def test_growing_table_without_rows_is_not_charged(tmp_path):
    job = growing_job(tmp_path, {"2026-01": "", "2026-02": ""})
    with refused(DataError):
        dp.run(job, tmp_path / "run")
    assert charged(tmp_path / "ledger.sqlite") == 0
    release_next(growing.start(job, tmp_path / "run"), "2026-01", empty=True)
    assert charged(tmp_path / "ledger.sqlite") == 1


def test_growing_table_has_periods_without_rows_after_its_charge(tmp_path):
    job = growing_job(tmp_path, {"2026-01": "1,2\n" * 9, "2026-02": "", "2026-03": "1,2\n" * 9})
    dp.run(job, tmp_path / "run")
    assert list(growing.start(job, tmp_path / "run").released) == ["2026-01", "2026-02", "2026-03"]
    assert charged(tmp_path / "ledger.sqlite") == 1


def test_unit_that_a_table_does_not_map_is_not_charged(tmp_path):
    """All rows are dropped, because their keys lead to no unit."""
    rows = "a,b,u\n" + "1,1,7\n" * 20
    (tmp_path / "homes.csv").write_text("u,home\n8,1\n")
    through = 'unit_through = [{path = "homes.csv", key = "u", unit = "home"}]'
    job = write(tmp_path, rows, DOMAIN, UNITS.replace("unit_nulls", through + "\nunit_nulls"))
    with refused(DataError):
        dp.run(job, tmp_path / "run")
    assert charged(tmp_path / "ledger.sqlite") == 0
    dp.run(job, tmp_path / "run", empty=True)
    assert charged(tmp_path / "ledger.sqlite") == 1


def test_table_of_a_database_without_units_is_not_charged(tmp_path):
    (tmp_path / "x.toml").write_text(DOMAIN)
    (tmp_path / "x.csv").write_text("a,b,u\n" + "1,1,\n" * 20)
    (tmp_path / "y.csv").write_text("a,b\n" + "1,1\n" * 20)
    section = {"path": "x.csv", "domain": "x.toml", "privacy_unit": "u", "max_rows_per_unit": 1, "unit_nulls": "drop"}
    tables = {"x": section, "y": {"path": "y.csv", "domain": "x.toml", "public": True}}
    job = {"tables": tables, "privacy": {"epsilon": 2.0, "delta": 1e-6, "dataset": "two"},
           "engine": {"scheduler": "synchronous"}}  # fmt: skip
    (tmp_path / "job.toml").write_text(tomli_w.dumps(job))
    with refused(DataError):
        dp.run(tmp_path / "job.toml", tmp_path / "run")
    assert charged(tmp_path / "ledger.sqlite") == 0


def test_growing_table_of_which_all_dates_are_dropped_is_not_charged(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/rows.csv").write_text("month,a,b\n" + "2031-05-01,1,2\n" * 20)
    job = growing.make_job(tmp_path)
    domain = (tmp_path / "domain.toml").read_text().replace('high = "2026-06"', 'high = "2026-06", outside = "drop"')
    (tmp_path / "domain.toml").write_text(domain)
    with pytest.raises((DataError, JobError)):
        dp.run(job, tmp_path / "run")
    assert charged(tmp_path / "ledger.sqlite") == 0
