"""The pipelines of real databases, on a few hundred rows of each; skipped without the data."""

from __future__ import annotations

import importlib
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import dpscale as dp
from dpscale.job import Job
from tests.links.shapes import assert_consistent
from tests.links.sql import load, read_tables
from tests.real_data import DATA, needs_real_data
from tests.selection import mostly_slow

PIPELINES = Path(__file__).parents[2] / "pipelines"
SOURCES = {"movielens": "movielens/ml-100k", "berka": "berka", "chinook": "chinook/Chinook_Sqlite.sqlite"}
ROWS = {"movielens": 200, "berka": 300, "chinook": 59}
Frames = dict[str, pd.DataFrame]
pytestmark = needs_real_data


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """The module that the pipelines share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PIPELINES)
        yield importlib.import_module("databases")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory, shared: Any) -> Callable[[str, str], dp.Release]:
    """Function that returns the release of a small version of a database; each is run once, in its own directory."""
    found: dict[tuple[str, str], dp.Release] = {}

    def run(name: str, job: str) -> dp.Release:
        if (name, job) not in found:
            place = tmp_path_factory.mktemp(name)
            prepare = importlib.import_module(name).prepare
            shared.write(place / f"dpscale-{name}", prepare(DATA / SOURCES[name], ROWS[name]))
            shutil.copytree(PIPELINES / name, place / "pipelines" / name)
            path = place / f"pipelines/{name}/{job}.toml"
            found[name, job] = dp.run(path, place / "run", scheduler="synchronous")
        return found[name, job]

    return run


@pytest.fixture
def release(released: Callable[[str, str], dp.Release], request: pytest.FixtureRequest) -> dp.Release:
    return released(*request.param)


def read_frames(release: dp.Release) -> Frames:
    return {name: frame.compute() for name, frame in release.synthetic().items()}


def assert_foreign_key(child: pd.DataFrame, column: str, parent: pd.DataFrame, key: str, most: int) -> None:
    """Check that keys refer to parents and that no parent exceeds the degree bound."""
    assert child[column].isin(parent[key]).all()
    assert child[column].value_counts().max() <= most


@pytest.mark.slow
@pytest.mark.parametrize("release", [("movielens", "both"), ("movielens", "catalogue")], indirect=True)
def test_movielens_pipeline(release: dp.Release, shared: Any) -> None:
    found = read_frames(release)
    assert_foreign_key(found["ratings"], "user_id", found["users"], "user_id", 50)
    assert found["ratings"].movie_id.isin(found["movies"].movie_id).all()
    assert not found["ratings"].duplicated().any()
    assert "ratings" in shared.summary(release)


@pytest.mark.slow
@pytest.mark.parametrize("release", [("movielens", "ratings")], indirect=True)
def test_movielens_ratings_as_rows(release: dp.Release) -> None:
    found = read_frames(release)
    assert_foreign_key(found["ratings"], "user_id", found["users"], "user_id", 50)
    assert found["ratings"].movie_id.isin(found["movies"].movie_id).all()
    assert found["ratings"].stars.between(1, 5).all()


@pytest.mark.slow
@pytest.mark.parametrize("release", [("movielens", "answers")], indirect=True)
def test_movielens_answers_across_links(release: dp.Release) -> None:
    assert list(release.joins) == ["stars", "numbers", "means", "cut"]
    rows = release.table(("users.sex", "movies.drama", "ratings.stars"))
    assert len(rows) == 2 * 2 * 5
    assert (rows.std_error > 0).all()
    means = release.mean("ratings.count", by="users.sex").dropna(subset="low")  # a group may be too small
    assert ((means.low <= means.estimate) & (means.estimate <= means.high)).all()
    assert 0 <= release.cut("stars").low <= release.cut("stars").high <= 1


@pytest.mark.slow
@pytest.mark.parametrize("release", [("berka", "job")], indirect=True)
def test_berka_pipeline(release: dp.Release, shared: Any) -> None:
    found = read_frames(release)
    for name, most in {"clients": 2, "loans": 1, "orders": 5, "transactions": 50}.items():
        assert_foreign_key(found[name], "account_id", found["accounts"], "account_id", most)
    assert_foreign_key(found["cards"], "disp_id", found["clients"], "disp_id", 1)
    for name in ("accounts", "clients"):
        assert found[name].district_id.isin(found["districts"].district_id).all()
    text = shared.compare_links(release.path.parent / "pipelines/berka/job.toml", release)
    assert "PRIVATE" in text
    assert text.count("links at random") == 7


@pytest.mark.parametrize("release", [("chinook", "customers")], indirect=True)
def test_chinook_customers_pipeline(release: dp.Release) -> None:
    found = read_frames(release)
    assert_foreign_key(found["invoices"], "CustomerId", found["customers"], "CustomerId", 10)
    assert_foreign_key(found["lines"], "InvoiceId", found["invoices"], "InvoiceId", 10)
    assert found["lines"].TrackId.isin(found["tracks"].TrackId).all()
    with closing(sqlite3.connect(next(release.path.parent.rglob("ledger.sqlite")))) as ledger:
        assert set(ledger.execute("SELECT dataset, state FROM releases")) == {("chinook", "released")}


@pytest.mark.slow
@pytest.mark.parametrize("release", [("chinook", "employees")], indirect=True)
def test_chinook_self_reference(release: dp.Release) -> None:
    found = read_frames(release)["employees"]
    assert found.ReportsTo.dropna().isin(found.EmployeeId).all()
    assert not (found.ReportsTo == found.EmployeeId).any()


EXAMPLES = [("chinook", "customers")]
NIGHTLY = [("movielens", "both"), ("movielens", "ratings"), ("movielens", "catalogue"), ("chinook", "employees"),
           ("berka", "job")]  # fmt: skip


@pytest.mark.parametrize("release", mostly_slow(EXAMPLES + NIGHTLY, EXAMPLES), indirect=True)
def test_rows_load_with_constraints(release: dp.Release) -> None:
    job = Job.read(release.path / "job.toml", stored=True)
    assert_consistent(job, read_frames(release))
    load(job, read_tables(release.path / "synthetic"))


@pytest.mark.parametrize("name", SOURCES)
def test_missing_data_are_reported(name: str, tmp_path: Path) -> None:
    shutil.copytree(PIPELINES, tmp_path / "pipelines", ignore=shutil.ignore_patterns("runs"))
    script = [sys.executable, str(tmp_path / f"pipelines/{name}.py"), str(tmp_path / "nowhere")]
    done = subprocess.run(script, capture_output=True, text=True, env={"PYTHONPATH": str(PIPELINES.parent)})
    assert done.returncode == 1
    assert done.stderr.startswith(f"{name}: there is no ")
    assert done.stderr.count("\n") == 1
