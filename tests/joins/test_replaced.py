"""Joins over pairs whose both ends are protected: a neighbour has a row of either end replaced with all its links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

import dpscale as dp
from dpscale.base.errors import DataError, JobError
from dpscale.engine.schedulers import resolve
from dpscale.job import Job
from dpscale.job.join_job import join_job
from dpscale.job.neighbours import neighbour_relation
from tests.joins.small import exact_counts, joins_of
from tests.joins.test_sensitivity import distance
from tests.messages import refused

PEOPLE, FILMS, BOUND = 6, 5, 2
DOMAIN = {"attributes": {"x": {"kind": "coded", "size": 2}, "y": {"kind": "coded", "size": 3}}}
WORKLOAD = [{"family": "marginal", "name": "seen", "attributes": [["people.x", "people.y", "films.x"]]}]


def make_pairs(rng: np.random.Generator, given: list[tuple[int, int]] | None = None, free: int = 30) -> pd.DataFrame:
    """Return random pairs within the bounds of both sides, in addition to some."""
    pairs = list(given or [])
    for person, film in zip(rng.integers(0, PEOPLE, free).tolist(), rng.integers(0, FILMS, free).tolist(), strict=True):
        degrees = [sum(one[side] == own for one in pairs) for side, own in enumerate((person, film))]
        if max(degrees) < BOUND and (person, film) not in pairs:
            pairs.append((person, film))
    return pd.DataFrame(pairs, columns=["person", "film"])


def make_table(rng: np.random.Generator, key: str, rows: int) -> pd.DataFrame:
    return pd.DataFrame({key: np.arange(rows), "x": rng.integers(0, 2, rows), "y": rng.integers(0, 3, rows)})


def write_job(folder: Path, data: dict[str, pd.DataFrame], **changes: Any) -> Job:
    folder.mkdir()
    (folder / "domain.toml").write_text(tomli_w.dumps(DOMAIN))
    for name, frame in data.items():
        frame.to_parquet(folder / f"{name}.parquet", index=False)
    tables = {name: {"path": f"{name}.parquet", "domain": "domain.toml", "key": key, "mechanism": "residual-planner"}
              for name, key in (("people", "person"), ("films", "film"))}  # fmt: skip
    link = {"kind": "many-to-many", "name": "seen", "parent": "people", "child": "films", "via": "pairs.parquet",
            "child_key": "film", "max_degree": BOUND, "protects": "both"}  # fmt: skip
    privacy = {"privacy_cost": 1e12, "allow_weak_privacy": True, "dataset": "films", "ledger": "ledger.db"}
    job = {"tables": tables, "link": [link], "workload": WORKLOAD, "privacy": privacy,
           "engine": {"scheduler": "synchronous", "seed": 1}}  # fmt: skip
    (folder / "job.toml").write_text(tomli_w.dumps(job | changes))
    return Job.read(folder / "job.toml")


def replaced(data: dict[str, pd.DataFrame], side: str, row: int, rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    """Return a neighbour: one row of a side has other attributes and other links."""
    key, table = ("person", "people") if side == "people" else ("film", "films")
    frame = data[table].copy()
    frame.loc[row, ["x", "y"]] = [1 - frame.x[row], rng.integers(0, 3)]
    pairs = data["pairs"]
    rest = list(pairs[pairs[key] != row].itertuples(index=False, name=None))
    own = make_pairs(rng, rest)
    more = own[(own[key] == row) | own.index.isin(range(len(rest)))]
    return data | {table: frame, "pairs": more}


def test_no_neighbour_changes_more_than_twice_the_bound(tmp_path: Path) -> None:
    rng, engine, worst = np.random.default_rng(0), resolve(scheduler="synchronous"), 0
    for number in range(4):
        data = {"people": make_table(rng, "person", PEOPLE), "films": make_table(rng, "film", FILMS),
                "pairs": make_pairs(rng)}  # fmt: skip
        run = joins_of(write_job(tmp_path / f"{number}", data), tmp_path / f"run {number}")["seen"]
        assert run.planning_problem.rows_per_unit == 2 * BOUND
        before = exact_counts(run, engine)
        assert sum(before.values()) == len(data["pairs"])
        for side, rows in (("people", PEOPLE), ("films", FILMS)):
            for row in range(rows):
                place = tmp_path / f"{number}{side}{row}"
                other = joins_of(write_job(place, replaced(data, side, row, rng)), place / "run")["seen"]
                worst = max(worst, distance(before, exact_counts(other, engine)))
    assert BOUND < worst <= 2 * BOUND  # a planted bound without the factor of 2 would be exceeded


def test_repeated_pairs_count_once_and_data_beyond_the_bound_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    data = {"people": make_table(rng, "person", PEOPLE), "films": make_table(rng, "film", FILMS),
            "pairs": make_pairs(rng)}  # fmt: skip
    twice = data | {"pairs": pd.concat([data["pairs"], data["pairs"]])}
    write_job(tmp_path / "twice", twice)
    release = dp.run(tmp_path / "twice" / "job.toml", tmp_path / "run")
    joined = data["pairs"].merge(data["people"], on="person").merge(data["films"], on="film", suffixes=("", "_film"))
    expected = np.zeros((2, 2))
    np.add.at(expected, (joined.x, joined.x_film), 1)
    assert np.allclose(release.marginal(("people.x", "films.x")), expected, atol=0.01)
    many = pd.DataFrame({"person": [0] * FILMS, "film": range(FILMS)})
    write_job(tmp_path / "many", data | {"pairs": many})
    with refused(DataError):
        dp.run(tmp_path / "many" / "job.toml", tmp_path / "run many")


def test_numbers_of_links_and_other_bounds_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    data = {"people": make_table(rng, "person", PEOPLE), "films": make_table(rng, "film", FILMS),
            "pairs": make_pairs(rng)}  # fmt: skip
    per = [{"family": "marginal", "per": "people", "attributes": [["people.x", "seen.count"]]}]
    bounded = [WORKLOAD[0] | {"max_rows_per_unit": 3}]
    for number, workload in enumerate((per, bounded)):
        job = write_job(tmp_path / str(number), data, workload=workload)
        with refused(JobError):
            join_job(job, neighbour_relation(job), next(iter(job.joined)))
