"""Workloads over several tables that are refused, each with one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dpscale.base.errors import DataError, JobError
from dpscale.engine.schedulers import resolve
from dpscale.job import Job
from dpscale.job.join_job import join_jobs
from dpscale.job.neighbours import neighbour_relation
from tests.joins.small import exact_counts, join_job, joins_of, make_database, sets
from tests.links.small import make_job, write_job
from tests.links.test_neighbours import PERSONS
from tests.messages import refused

BIRTHS = {"kind": "one-to-many", "name": "births", "parent": "countries", "child": "persons", "child_key": "birth"}
BOSSES = {"kind": "one-to-many", "name": "bosses", "parent": "persons", "child": "persons", "child_key": "boss",
          "max_degree": 3}  # fmt: skip
FRIENDS = {"kind": "many-to-many", "name": "friends", "parent": "persons", "child": "persons",
           "via": "data/friends/*.parquet", "parent_key": "one", "child_key": "other"}  # fmt: skip
MORE = [*make_job()["link"], BIRTHS, BOSSES]
REFUSED: list[dict[str, Any]] = [
    {"attributes": [["persons.sex", "orders.size"]]},
    {"attributes": [["sex", "orders.month"]]},
    {"attributes": [["persons.sex", "persons.age"]]},
    {"degree": 2},
    {"attributes": [["persons.sex", "orders.month"]], "count": "units"},
    {"attributes": [["persons.sex", "orders.month"]], "name": "cut"},
    {"attributes": [["countries.north", "orders.month"]]},
    {"attributes": [["persons.sex", "products.kind", "orders.month"]]},
    {"attributes": [["persons.sex", "countries.north"]], "through": ["home"]},
    {"attributes": [["persons.sex", "persons.age"]], "through": ["bosses"]},
    {"attributes": [["persons.sex", "orders.count"]], "per": "person"},
    {"attributes": [["persons.sex", "products.count"]], "per": "orders"},
    {"attributes": [["persons.sex"]], "per": "persons"},
    {"attributes": [["countries.north", "homes.count"]], "per": "countries"},
    {"attributes": [["persons.sex", "bosses.count"]], "per": "persons"},
    {"attributes": [["persons.sex", "orders.count"]], "per": "persons", "max_rows_per_unit": 2},
    {"family": "mean", "of": "orders.count", "attributes": [["persons.sex", "orders.count"]], "per": "persons"},
]  # fmt: skip


def jobs_of(folder: Path, *parts: dict[str, Any], **changes: Any) -> None:
    workload = [{"family": "marginal", **part} for part in parts]
    job = Job.read(write_job(folder, workload=workload, **changes))
    join_jobs(job, neighbour_relation(job))


@pytest.mark.parametrize("part", REFUSED)
def test_workload_is_refused_with_one_sentence(tmp_path: Path, part: dict[str, Any]) -> None:
    with refused(JobError) as caught:
        jobs_of(tmp_path, part, link=MORE)
    assert "\n" not in str(caught.value)


def test_path_between_tables_is_named(tmp_path: Path) -> None:
    part = {"attributes": [["countries.north", "orders.month"]], "through": ["orders", "births"]}
    job = Job.read(write_job(tmp_path, workload=[{"family": "marginal", **part}], link=MORE))
    [join] = job.joined.values()
    assert [edge.link.called for edge in join.edges] == ["orders", "births"]


def test_two_ends_in_one_table_are_refused(tmp_path: Path) -> None:
    with refused(JobError):
        jobs_of(tmp_path, {"attributes": [["persons.sex", "persons.age"]], "through": ["friends"]},
                link=[FRIENDS | {"protects": "both"}])  # fmt: skip


def test_sections_and_names_of_joins_are_checked(tmp_path: Path) -> None:
    part = {"attributes": [["persons.sex", "orders.month"]]}
    with refused(JobError):
        jobs_of(tmp_path, part, joins={"orders": {"output": {"level": 0.9}}})
    with refused(JobError):
        jobs_of(tmp_path, part, budget={"method": "equal", "joins": {"orders": {"share": 0.1}}})
    other = {"attributes": [["persons.sex", "products.kind"]], "name": "orders-persons"}
    with refused(JobError):
        jobs_of(tmp_path, part, other)


def test_parts_with_one_name_are_one_join(tmp_path: Path) -> None:
    parts = [{"attributes": [["persons.sex", "orders.month"]], "name": "orders"},
             {"attributes": [["countries.north", "orders.month"]], "name": "orders"}]  # fmt: skip
    links = [one | ({"counts": ["orders"]} if one.get("name") == "ratings" else {}) for one in make_job()["link"]]
    job = Job.read(write_job(tmp_path, workload=[{"family": "marginal", **one} for one in parts], link=links))
    [join] = job.joined.values()
    assert [edge.target for edge in join.edges] == ["persons", "countries"]
    assert len(join.parts) == 2
    assert join_jobs(job, neighbour_relation(job)).keys() == {"orders", "cut"}


def test_attributes_with_private_cells_are_refused(tmp_path: Path) -> None:
    path = write_job(tmp_path, workload=[{"family": "marginal", "attributes": [["persons.sex", "orders.item"]]}],
                     privacy={"epsilon": 1.0, "delta": 1e-6})  # fmt: skip
    text = (tmp_path / "orders.toml").read_text()
    (tmp_path / "orders.toml").write_text(f'{text}\n[attributes.item]\nkind = "discover"\n')
    with refused(JobError):
        Job.read(path)


def test_children_of_a_key_of_two_units_are_refused(tmp_path: Path) -> None:
    """The pairs of a joint account would belong to both of its owners."""
    data, engine = make_database(0), resolve(scheduler="synchronous")
    joint = data["accounts"].head(1).assign(person=PERSONS - 1 - data["accounts"].person.iloc[0])
    both = data | {"accounts": pd.concat([data["accounts"], joint])}
    part = {"attributes": [["accounts.x", "tags.count"]], "per": "accounts"}
    found = []
    for name, frames in (("one", data), ("both", both)):
        job = join_job(tmp_path / name, frames, workload=sets(tags=part))
        found.append(joins_of(job, tmp_path / f"run {name}")["tags"])
    assert exact_counts(found[0], engine)
    with refused(DataError):
        exact_counts(found[1], engine)
