"""Neighbouring databases by brute force on files.
A row of the root is added or removed with all dependent rows, and the link sums and counts change at most as much as
is charged. Degrees exceed the bounds, so that truncation matters.
"""

from __future__ import annotations

import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w

from dpscale.base.errors import DataError, JobError
from dpscale.engine.contribution_bounds import read_unit_lookup, rows_beyond
from dpscale.engine.counting import partition_groups
from dpscale.engine.schedulers import Engine, resolve
from dpscale.job import Job
from dpscale.job.neighbours import NeighbourRelation, neighbour_relation
from dpscale.relational.assignment import PairTables
from dpscale.relational.budget_shares import degrees_squared
from dpscale.relational.degrees import GRID
from dpscale.relational.features import BITS, Features, squared_distance
from dpscale.runs.links import link_data
from tests.messages import refused
from tests.running import begin_linked

PERSONS = 12
DOMAIN = {"attributes": {"x": {"kind": "coded", "size": 2}, "y": {"kind": "coded", "size": 3}}}


def draw_attributes(rng: np.random.Generator, rows: int) -> dict[str, Any]:
    return {"x": rng.integers(0, 2, rows), "y": rng.integers(0, 3, rows)}


def make_database(seed: int) -> dict[str, pd.DataFrame]:
    """Return persons, their accounts, payments of public kinds, public tags of accounts, and a manager for each
    person.
    """
    rng = np.random.default_rng(seed)
    persons = pd.DataFrame({"id": np.arange(PERSONS), **draw_attributes(rng, PERSONS)})
    persons["boss"] = rng.integers(0, PERSONS, PERSONS)
    owners = np.repeat(np.arange(PERSONS), rng.integers(0, 5, PERSONS))
    accounts = pd.DataFrame(
        {"account": 100 + np.arange(len(owners)), "person": owners, **draw_attributes(rng, len(owners))}
    )
    payers = np.repeat(accounts.account, rng.integers(0, 5, len(accounts))).to_numpy()
    payments = pd.DataFrame(
        {"account": payers, "kind": rng.integers(0, 4, len(payers)), **draw_attributes(rng, len(payers))}
    )
    kinds = pd.DataFrame({"kind": np.arange(4), **draw_attributes(rng, 4)})
    tags = pd.DataFrame({"account": rng.choice(accounts.account, 60), "kind": rng.integers(0, 4, 60)})
    return {"persons": persons, "accounts": accounts, "payments": payments, "kinds": kinds, "tags": tags}


def remove_person(data: dict[str, pd.DataFrame], person: int) -> dict[str, pd.DataFrame]:
    """Return the neighbouring database without a person and the person's accounts, payments and tags."""
    accounts = data["accounts"][data["accounts"].person != person]
    left = {name: data[name][data[name].account.isin(accounts.account)] for name in ("payments", "tags")}
    return data | {"persons": data["persons"][data["persons"].id != person], "accounts": accounts} | left


def write_database(folder: Path, data: dict[str, pd.DataFrame], rng: np.random.Generator,
          where: dict[str, str] | None = None) -> Job:  # fmt: skip
    """Write the tables with shuffled rows, and return the job."""
    folder.mkdir()
    (folder / "domain.toml").write_text(tomli_w.dumps(DOMAIN))
    for name, frame in data.items():
        frame.iloc[rng.permutation(len(frame))].to_parquet(folder / f"{name}.parquet", index=False)
    keys = {"persons": "id", "accounts": "account", "payments": None, "kinds": "kind"}
    tables = {name: {"path": f"{name}.parquet", "domain": "domain.toml", "public": name == "kinds"} for name in keys}
    for name, key in keys.items():
        tables[name] |= ({"key": key} if key else {}) | ({"where": where[name]} if name in (where or {}) else {})
    one = {"kind": "one-to-many", "dangling": "drop"}
    links = [
        one | {"name": "bosses", "parent": "persons", "child": "persons", "child_key": "boss", "max_degree": 2},
        one | {"name": "accounts", "parent": "persons", "child": "accounts", "child_key": "person", "max_degree": 2},
        one | {"name": "payments", "parent": "accounts", "child": "payments", "child_key": "account", "max_degree": 3},
        one | {"name": "kinds", "parent": "kinds", "child": "payments", "child_key": "kind"},
        {"kind": "many-to-many", "name": "tags", "parent": "accounts", "child": "kinds", "via": "tags.parquet",
         "child_key": "kind", "max_degree": 2, "dangling": "drop"},
    ]  # fmt: skip
    job = {"tables": tables, "link": links, "privacy": {"privacy_cost": 1.0}}
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    return Job.read(folder / "job.toml")


def link_statistics(engine: Engine, job: Job, protects: NeighbourRelation) -> dict[str, tuple[np.ndarray, ...]]:
    """Return for every link its number, counts by degree, and sums in natural units."""
    found = {}
    sizes = (2, 3)
    even = Features(sizes, tuple(np.full(size, 1 / size) for size in sizes), None)
    for link in job.link:
        exact = link_data.read_links(engine, job, link, protects)
        u, v, both = exact.sums(even, even)
        unit = 2.0**-BITS
        counts = (
            [exact.by_degree(0, np.arange(link.bound)), exact.by_degree(1, GRID)]
            if link.via
            else [exact.by_degree(0, np.arange(link.bound))]
        )
        if link.called in ("accounts", "payments"):
            found[f"siblings of {link.called}"] = (exact.siblings(PairTables(sizes)),)
        found[link.called] = (np.array([len(exact.rows)]), np.concatenate(counts), u * unit, v * unit, both * unit**2)
    return found


def counted_rows(engine: Engine, job: Job, path: Path, name: str) -> pd.DataFrame:
    """Return the rows of a table that its run counts."""
    run = begin_linked(job, path / f"run-{name}")
    data = run.tables[name].job.data
    table = data.origin.table(data.path, job.domains[name])
    hops = [(hop.origin.table(hop.path, job.domains[name]), hop.key, hop.unit) for hop in data.unit_through or []]
    dropped = rows_beyond(engine, job.domains[name], partition_groups(table.partitions, 1), data.privacy_unit,
                       data.max_rows_per_unit, 1000, 1 << 20, drop=True,
                       through=read_unit_lookup(engine, hops) if hops else None)  # fmt: skip
    batches = table.partitions[0].batches(["x", "y"])
    frame = pd.concat([pd.DataFrame({name: one[name].to_pandas() for name in ("x", "y")}) for one in batches])
    return frame.reset_index(drop=True).drop(index=np.concatenate([rows.places for rows in dropped.values()])
                                             if dropped else [])  # fmt: skip


def squared_changes(before: tuple[np.ndarray, ...], after: tuple[np.ndarray, ...]) -> list[float]:
    return [float(((a - b) ** 2).sum()) for a, b in zip(before, after, strict=True)]


def sensitivity_bounds(job: Job, protects: NeighbourRelation, name: str) -> tuple[int, int]:
    """Return the squared bounds on the change of the number of a link and of its counts by degree."""
    link = next(one for one in job.link if one.called == name)
    roles = 2 if link.parent == link.child else protects.rows.get(link.parent, 1)
    degrees = degrees_squared(protects.protects.relation, link.bound, roles, 2 if link.via else 1)
    return protects.moved[name] ** 2, degrees


FILTERS = [{}, {"persons": "y < 2"}, {"accounts": "x = 1"}, {"payments": "y != 1", "kinds": "x = 0"},
           {"persons": "x = 0", "accounts": "y >= 1", "payments": "x = 1"}]  # fmt: skip


@pytest.mark.parametrize(("seed", "where"), [*((seed, {}) for seed in range(3)), *((0, one) for one in FILTERS[1:])])
def test_no_neighbour_exceeds_sensitivity(tmp_path: Path, seed: int, where: dict[str, str]) -> None:
    rng, data, engine = np.random.default_rng(seed), make_database(seed), resolve(scheduler="synchronous")
    job = write_database(tmp_path / "all", data, rng, where)
    protects = neighbour_relation(job)
    assert protects.root == "persons"
    assert dict(protects.rows) == {"persons": 1, "accounts": 2, "payments": 6}
    before = link_statistics(engine, job, protects)
    bounds = (Fraction(3, 2) - Fraction(1, 3), -Fraction(1, 2) - Fraction(1, 3))  # of x and y, uniformly centred
    for person in range(PERSONS):
        other = write_database(tmp_path / f"without {person}", remove_person(data, person), rng, where)
        after = link_statistics(engine, other, protects)
        for link in job.link[1:3]:
            [far] = squared_changes(before[f"siblings of {link.called}"], after[f"siblings of {link.called}"])
            assert far <= PairTables((2, 3)).squared(link.bound, protects.rows[link.parent]), (link.called, person)
        for name in protects.moved:
            links, degrees, *sums = squared_changes(before[name], after[name])
            most, most_degrees = sensitivity_bounds(job, protects, name)
            assert links <= most, (name, person)
            if name != "kinds":  # whose parents may have any number of children: nothing of theirs is measured
                assert degrees <= most_degrees, (name, person)
            for precisions in ((1, 1, 1), (2, 0, 1), (0, 1, 3)):
                claimed = most * squared_distance(
                    protects.protects.relation, bounds, bounds, list(map(Fraction, precisions))
                )
                assert sum(p * one for p, one in zip(precisions, sums, strict=True)) <= float(claimed) * (1 + 1e-9), (
                    name
                )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("where", FILTERS)
@pytest.mark.parametrize("name", ["accounts", "payments"])
def test_person_has_at_most_charged_number_of_rows(tmp_path: Path, name: str, where: dict[str, str]) -> None:
    """The counted rows of other persons stay the same."""
    rng, data, engine = np.random.default_rng(0), make_database(0), resolve(scheduler="synchronous")
    job = write_database(tmp_path / "all", data, rng, where)
    most = neighbour_relation(job).rows[name]
    before = counted_rows(engine, job, tmp_path / "all", name)
    worst = 0
    for person in range(PERSONS):
        other = write_database(tmp_path / f"without {person}", remove_person(data, person), rng, where)
        after = counted_rows(engine, other, tmp_path / f"without {person}", name)
        dropped = len(before) - len(after)
        columns = ["x", "y"]  # rows of one unit with the same values are equal
        merged = after.groupby(columns).size().sub(before.groupby(columns).size(), fill_value=0)
        assert (merged <= 0).all()
        assert 0 <= dropped <= most
        worst = max(worst, dropped)
    assert worst == most or where


def test_filter_equals_removal_from_files(tmp_path: Path) -> None:
    """The oracle has the rows removed from the files."""
    rng, data, engine = np.random.default_rng(0), make_database(0), resolve(scheduler="synchronous")
    where = FILTERS[-1] | {"kinds": "y > 0"}
    left = {name: frame.query(where[name].replace(" = ", " == ")) if name in where else frame
            for name, frame in data.items()}  # fmt: skip
    job, plain = write_database(tmp_path / "filtered", data, rng, where), write_database(tmp_path / "plain", left, rng)
    assert any(len(left[name]) < len(data[name]) for name in where)
    found, expected = (link_statistics(engine, one, neighbour_relation(one)) for one in (job, plain))
    for name, values in expected.items():
        assert squared_changes(values, found[name]) == [0.0] * len(values), name
    for name in ("persons", "accounts", "payments"):
        rows, alone = (counted_rows(engine, one, tmp_path / folder, name)
                       for one, folder in ((job, "filtered"), (plain, "plain")))  # fmt: skip
        assert sorted(map(tuple, rows[["x", "y"]].to_numpy())) == sorted(map(tuple, alone[["x", "y"]].to_numpy()))


def test_filter_is_refused_for_replaced_rows(tmp_path: Path) -> None:
    job = write_database(tmp_path / "all", make_database(0), np.random.default_rng(0), {"persons": "y < 2"}).to_dict()
    links = [{"kind": "many-to-many", "name": "friends", "parent": "persons", "child": "accounts", "protects": "both",
              "via": "tags.parquet", "child_key": "account"}]  # fmt: skip
    tables = {name: job["tables"][name] for name in ("persons", "accounts")}
    with refused(JobError):
        neighbour_relation(Job.read(job | {"tables": tables, "link": links}))


def test_invalid_setting_names_its_table(tmp_path: Path) -> None:
    for key, value in (("where", "y <"), ("delimiter", "::"), ("encoding", "latin-99")):
        job = write_database(tmp_path / key, make_database(0), np.random.default_rng(0)).to_dict()
        job["tables"]["payments"][key] = value
        with refused(JobError):
            Job.read(job)


def test_planted_truncation_by_row_order_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: for both sides the first links in the files, instead of the smallest hashes of each row."""

    def take_first_of_both(parents: np.ndarray, ends: np.ndarray, bound: int) -> np.ndarray:
        stays = np.ones(len(parents), np.bool_)
        for keys in (parents, ends):
            seen: dict[bytes, int] = {}
            for at in np.flatnonzero(stays):
                seen[keys[at].tobytes()] = seen.get(keys[at].tobytes(), 0) + 1
                stays[at] = seen[keys[at].tobytes()] <= 2 * bound
        return stays

    for module in (link_data, link_data):
        monkeypatch.setattr(module, "at_most", take_first_of_both)
    with pytest.raises(AssertionError):
        test_no_neighbour_exceeds_sensitivity(tmp_path, 0, {})


def test_planted_bound_without_replacement_links_is_detected(tmp_path: Path) -> None:
    """A removed manager frees a place in another's list: links change by more than the manager's own."""
    rng, engine, found = np.random.default_rng(0), resolve(scheduler="synchronous"), 0.0
    for seed in range(4):
        data = make_database(seed)
        job = write_database(tmp_path / f"all {seed}", data, rng)
        before = link_data.read_links(engine, job, job.link[0], neighbour_relation(job))
        for person in range(PERSONS):
            other = write_database(tmp_path / f"{seed} without {person}", remove_person(data, person), rng)
            after = link_data.read_links(engine, other, job.link[0], neighbour_relation(other))
            old, new = map(count_by_values, (before, after))
            found = max(found, old.sub(new, fill_value=0).abs().sum())
    assert found > job.link[0].bound


def count_by_values(links: link_data.ExactLinks) -> pd.Series:
    """Return the number of links by the values at their ends."""
    values = np.hstack([links.parents[links.rows[:, 0]], links.children[links.rows[:, 1]]])
    return pd.Series(list(map(tuple, values))).value_counts()


def test_row_order_has_no_effect_for_equal_attributes(tmp_path: Path) -> None:
    """Rows of equal attributes with different public parents: the selection depends on their content."""
    data, engine, found = make_database(0), resolve(scheduler="synchronous"), []
    same = {"x": 0, "y": 0}
    data |= {name: data[name].assign(**same) for name in ("persons", "accounts", "payments")}
    twice = data["persons"].assign(boss=(data["persons"].boss + 1) % PERSONS)
    data |= {"persons": pd.concat([data["persons"], twice])}
    for seed in range(4):
        job = write_database(tmp_path / str(seed), data, np.random.default_rng(seed))
        found.append(link_statistics(engine, job, neighbour_relation(job)))
    for other in found[1:]:
        for name, values in found[0].items():
            assert all((a == b).all() for a, b in zip(values, other[name], strict=True)), name


def test_links_within_table_below_root_are_refused(tmp_path: Path) -> None:
    """Any number of other persons' accounts could be linked to the accounts of one person."""
    write_database(tmp_path / "all", make_database(0), np.random.default_rng(0))
    content = tomllib.loads((tmp_path / "all/job.toml").read_text())
    content["link"].append({"kind": "one-to-many", "name": "ups", "parent": "accounts", "child": "accounts",
                            "child_key": "up"})  # fmt: skip
    (tmp_path / "all/job.toml").write_text(tomli_w.dumps(content))
    with refused(JobError):
        neighbour_relation(Job.read(tmp_path / "all/job.toml"))


@pytest.mark.parametrize("where", ["links", "rows"])
def test_key_of_two_units_is_refused(tmp_path: Path, where: str) -> None:
    """A joint account would change its unit, and all rows below it, when one of its owners is added or removed."""
    data = make_database(0)
    joint = data["accounts"].head(1).assign(person=PERSONS - 1 - data["accounts"].person.iloc[0])
    job = write_database(
        tmp_path / "all", data | {"accounts": pd.concat([data["accounts"], joint])}, np.random.default_rng(0)
    )
    engine = resolve(scheduler="synchronous")
    read = {"links": lambda: link_statistics(engine, job, neighbour_relation(job)),
            "rows": lambda: counted_rows(engine, job, tmp_path / "all", "payments")}  # fmt: skip
    with refused(DataError):
        read[where]()
