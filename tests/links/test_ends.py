"""Children without a parent, and rows linked to themselves, as permitted by the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.engine.schedulers import resolve
from dpscale.job import Job
from dpscale.job.neighbours import neighbour_relation
from dpscale.privacy.streams import PublicStream
from dpscale.relational import assignment
from dpscale.relational.assignment import PairTables, remove_loops, sibling_sums
from dpscale.runs.links import link_sampling
from tests.links.small import make_frames, make_job, table_section, write_job
from tests.messages import refused
from tests.running import link_values, linked

HOMES = make_job()["link"][2]
PRIVACY = {"privacy_cost": 50.0, "dataset": "shop", "allow_weak_privacy": True}


@pytest.mark.parametrize("mechanism", ["maxent", "published"])
def test_number_of_children_without_parent_is_measured(tmp_path: Path, mechanism: str) -> None:
    data, rng = make_frames(), np.random.default_rng(0)
    data["persons"]["country"] = data["persons"].country.where(rng.random(300) < 0.7).astype("Int64")
    link = [*make_job()["link"][:2], HOMES | {"nulls": "keep", "mechanism": mechanism}]
    release = dp.run(write_job(tmp_path, data=data, link=link, privacy=PRIVACY), tmp_path / "run")
    persons = release.synthetic()["persons"].compute()
    assert abs(persons.country.isna().mean() - data["persons"].country.isna().mean()) < 0.03
    measured = link_values(tmp_path / "run", "homes")["links"]
    assert persons.country.notna().sum() == pytest.approx(measured[0], abs=1)


@pytest.mark.parametrize("changes", [
    {"link": [make_job()["link"][0] | {"nulls": "keep"}]},
    {"link": [make_job()["link"][0], make_job()["link"][1] | {"nulls": "keep"}]},
    {"link": [make_job()["link"][0] | {"loops": False}]},
])  # fmt: skip
def test_meaningless_options_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with refused(dp.JobError):
        neighbour_relation(Job.read(write_job(tmp_path, **changes)))


def write_staff(folder: Path, **more: Any) -> Path:
    """Write a job for persons and their managers; a tenth are their own managers."""
    data, rng = make_frames(), np.random.default_rng(1)
    boss = rng.integers(0, 12, 300)
    data["persons"]["boss"] = [f"p{one}" for one in np.where(rng.random(300) < 0.1, np.arange(300), boss)]
    bosses = {"name": "bosses", "kind": "one-to-many", "parent": "persons", "child": "persons", "child_key": "boss",
              "max_degree": 60, **more}  # fmt: skip
    return write_job(
        folder, data=data, tables={"persons": table_section("persons", "id")}, link=[bosses], privacy=PRIVACY
    )


def test_loops_false_prevents_links_to_itself(tmp_path: Path) -> None:
    persons, itself = {}, {}
    for loops in (False, True):
        (tmp_path / str(loops)).mkdir()
        path = write_staff(tmp_path / str(loops), loops=loops)
        persons[loops] = dp.run(path, tmp_path / str(loops) / "run").synthetic()["persons"].compute()
        itself[loops] = int(np.equal(*read_exact_links(path).T).sum())
    assert itself[False] == 0 < itself[True]
    assert not (persons[False].boss == persons[False].id).any()
    assert persons[False].boss.isna().sum() <= 3


def read_exact_links(path: Path) -> np.ndarray:
    """Return the exact links as row numbers; both ends sort keys equally."""
    from dpscale.runs.links.link_data import read_links

    read = Job.read(path)
    return read_links(resolve(scheduler="synchronous"), read, read.link[0], neighbour_relation(read)).rows


@pytest.mark.parametrize("rows", [3, 40])
def test_remove_loops_gives_distinct_pairs_and_same_degrees(rows: int) -> None:
    rng = np.random.default_rng(0)
    pairs = np.unique(rng.integers(0, rows, (rows, 2)), axis=0)
    pairs = np.unique(np.concatenate([pairs, np.repeat(np.arange(rows), 2).reshape(-1, 2)]), axis=0)
    before = pairs.copy()
    after = remove_loops(pairs, rng.integers(0, 2, rows), PublicStream("release", "loops"))
    assert (after[:, 0] != after[:, 1]).all()
    assert len(np.unique(after, axis=0)) == len(after)
    if rows == 40:  # there is room
        assert len(after) == len(before)
        for side in (0, 1):
            assert (np.bincount(after[:, side], minlength=rows) == np.bincount(before[:, side], minlength=rows)).all()


def test_siblings_are_respected_for_grouped_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All orders of a person are in the same month."""
    data, rng = make_frames(), np.random.default_rng(0)
    month = pd.Series(rng.integers(0, 3, 300), [f"p{i}" for i in range(300)])
    data["orders"]["month"] = month[data["orders"].person].to_numpy()
    monkeypatch.setattr(link_sampling, "are_many", lambda *_: True)
    same = {}
    for what in ("with", "without"):
        if what == "without":
            monkeypatch.setattr(assignment, "MOST_WORDS", 0)
        path = write_job(tmp_path, data=data, link=make_job()["link"][:1], privacy=PRIVACY,
                     tables={name: make_job()["tables"][name] for name in ("persons", "orders")})  # fmt: skip
        orders = dp.run(path, tmp_path / what).synthetic()["orders"].compute()
        run = linked(tmp_path / what)
        assert (orders.person.value_counts() <= 6).all()
        parents = pd.factorize(orders.person)[0]
        sums = sibling_sums(orders[["month"]].to_numpy(), parents, PairTables((3,))).reshape(3, 3)
        same[what] = np.trace(sums) / sums.sum()
        assert run.run.done("report")
    assert same["without"] < 0.9  # 0.78 with a standard deviation of 0.02; with siblings 0.975
    assert same["with"] > 0.93


def test_plan_stores_plans_of_several_tables_and_spends_nothing(tmp_path):
    job = write_job(tmp_path)
    done = CliRunner().invoke(main, ["plan", str(job), "--run-dir", str(tmp_path / "run"), "--quiet"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "tables" / "persons" / "plan" / "plan.json").exists()
    assert not list((tmp_path / "run").rglob("measurements"))
    assert not (tmp_path / "ledger.sqlite").exists()
    done = CliRunner().invoke(main, ["run", str(job), "--run-dir", str(tmp_path / "run"), "--quiet"])
    assert done.exit_code == 0, done.output
