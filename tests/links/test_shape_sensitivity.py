"""Sensitivity of every shape by brute force: all neighbours of small databases whose bounds are exceeded.

A database of a shape has three units and at most four rows that belong to them; every choice of foreign keys is one
database. Some are tested, beside random ones, and the `slow` tests run them all. Adding or removing a unit changes the
rows and links that count by at most what the noise covers, changes no row of other units, and no row of a side table.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpscale.base.errors import DataError
from dpscale.contributions import links
from dpscale.contributions.links import column_name, with_key_ids
from dpscale.engine.contribution_bounds import read_unit_lookup, rows_beyond
from dpscale.engine.counting import partition_groups
from dpscale.engine.schedulers import resolve
from dpscale.job import Job
from dpscale.job.allocation import Divisible, LinkBudget
from dpscale.job.neighbours import NeighbourRelation, neighbour_relation, table_jobs
from dpscale.relational.assignment import PairTables
from dpscale.relational.budget_shares import degrees_squared
from dpscale.relational.degrees import degree_histogram
from dpscale.runs.links import link_data
from dpscale.runs.links.first_measurement import end_of
from tests.joins.small import exact_counts
from tests.links.shapes import SHAPES, Frames, Shape, write_shape
from tests.running import begin_linked

ENGINE = resolve(scheduler="synchronous")
UNITS, DEPENDENT, OTHERS, MOST = 3, 4, 2, 400
NAMES = [name for name, shape in SHAPES.items() if not any(one.get("protects") == "both" for one in shape.links)]
Cells = Counter[tuple[int, ...]]


def columns_of(key: str | list[str]) -> list[str]:
    return [key] if isinstance(key, str) else list(key)


def bounded(shape: Shape) -> Shape:
    """Return the shape with bounds that small databases exceed; links without a row are dropped."""
    links, parents = [], {one["parent"] for one in shape.links}
    for one in shape.links:
        given: dict[str, Any] = {"max_degree": 2 if one["child"] in parents else 1} if "max_degree" in one else {}
        if "via" in one or not {one["parent"], one["child"]} <= set(shape.public):
            given["dangling"] = "drop"
        links.append({key: value for key, value in one.items() if key not in ("mechanism", "rounds")} | given)
    return replace(shape, links=tuple(links))


class SmallDatabases:
    """Databases of a shape by the rows to which each foreign key refers."""

    def __init__(self, shape: Shape, relation: NeighbourRelation) -> None:
        self.shape, self.relation = shape, relation
        self.owned = [name for name in relation.rows if name != relation.root]
        pairs = ["pairs" for one in shape.links if "via" in one]
        places = itertools.cycle([*self.owned, *pairs] or [""])
        self.rows = Counter(name for _, name in zip(range(DEPENDENT), places, strict=False))
        while self.number > MOST and max(self.rows.values()) > 1:
            self.rows[max(self.rows, key=lambda name: self.rows[name])] -= 1

    def count(self, table: str) -> int:
        return UNITS if table == self.relation.root else self.rows.get(table, OTHERS)

    @property
    def choices(self) -> list[int]:
        """Number of parents from which each foreign key chooses."""
        found = []
        for one in self.shape.links:
            if "via" in one:
                found += [self.count(one[end]) for end in ("parent", "child") for _ in range(self.rows["pairs"])]
            else:
                found += [self.count(one["parent"])] * self.count(one["child"])
        return found

    @property
    def number(self) -> int:
        return int(np.prod([float(one) for one in self.choices]))

    def every(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*map(range, self.choices))

    def sample(self, rng: np.random.Generator) -> tuple[int, ...]:
        return tuple(int(rng.integers(0, one)) for one in self.choices)

    def frames(self, chosen: tuple[int, ...], equal: bool = False) -> Frames:
        """Return the tables; with `equal` attributes rows differ in their keys alone."""
        found: Frames = {}
        for name, key in self.shape.keys.items():
            at = np.arange(self.count(name))
            found[name] = pd.DataFrame({"a": at * (not equal) % 3, "b": at * (not equal) % 2})
            for place, column in enumerate(columns_of(key) if key else []):
                found[name][column] = at + 100 if place == 0 else at % 2
        left = list(chosen)
        for one in self.shape.links:
            self._refer(found, one, left)
        return found

    def _refer(self, found: Frames, one: dict[str, Any], left: list[int]) -> None:
        ends = [(one["child_key"], one["parent"])]
        if "via" in one:
            own = one.get("parent_key", self.shape.keys[one["parent"]])
            ends = [(own, one["parent"]), (one["child_key"], one["child"])]
        name = "pairs" if "via" in one else one["child"]
        made = pd.DataFrame(index=range(self.rows["pairs"])) if name == "pairs" else found[name]
        for columns, parent in ends:
            at, left[:] = left[: len(made)], left[len(made) :]
            for column, source in zip(columns_of(columns), columns_of(self.shape.keys[parent]), strict=True):
                made[column] = found[parent][source].to_numpy()[at]
        found[name] = made

    def without(self, frames: Frames, unit: int) -> Frames:
        """Return the neighbouring database without a unit and all rows that belong to it."""
        root, found = str(self.relation.root), dict(frames)
        gone = {root: frames[root].iloc[[unit]]}
        if root not in self.shape.public:
            found[root] = frames[root].drop(index=gone[root].index)
        for name in self.owned:
            link = self.relation.above[name]
            keys = gone[link.parent][columns_of(self.shape.keys[link.parent])]
            gone[name] = matching(frames[name], columns_of(link.child_key or ""), keys)
            found[name] = frames[name].drop(index=gone[name].index)
        for one in (one for one in self.shape.links if "via" in one):
            own = columns_of(self.shape.keys[one["parent"]])
            mine = matching(frames["pairs"], columns_of(one.get("parent_key", own)), gone[one["parent"]][own])
            found["pairs"] = frames["pairs"].drop(index=mine.index)
        return found


def matching(frame: pd.DataFrame, columns: list[str], keys: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose columns have one of the keys."""
    wanted = set(keys.itertuples(index=False, name=None))
    return frame[[row in wanted for row in frame[columns].itertuples(index=False, name=None)]]


def cells(codes: np.ndarray) -> Cells:
    return Counter(map(tuple, codes.tolist()))


def distance(one: Cells, other: Cells) -> int:
    return sum(abs(one[cell] - other[cell]) for cell in one | other)


def join_of(job: dict[str, Any], relation: NeighbourRelation) -> list[dict[str, Any]]:
    """Return a workload over the last child and its parent, through their link; none without a child of a unit."""
    name = next(reversed(relation.above), None)
    if name is None:
        return []
    link = relation.above[name]
    return [{"family": "marginal", "attributes": [[f"{name}.a", f"{link.parent}.a"]], "through": [link.called],
             "name": "all"}]  # fmt: skip


class Statistics:
    """Exact statistics of a database, from which all noise is drawn around."""

    def __init__(self, folder: Path, shape: Shape, frames: Frames, joins: bool) -> None:
        path = write_shape(folder, shape, frames, 5.0)
        self.job = Job.read(path)
        self.relation = neighbour_relation(self.job)
        self.links = {link.called: link_data.read_links(ENGINE, self.job, link, self.relation)
                      for link in self.job.link}  # fmt: skip
        self.tables = {name: self._table(folder, name) for name in table_jobs(self.job)}
        self.first = {name: self._end(name) for name in self.tables
                      if name not in self.relation.above}  # fmt: skip
        self.joins = self._joins(folder) if joins else {}

    def _end(self, name: str) -> Cells:
        """Return the rows of a table that the first measurement counts."""
        links, side = end_of(self.job, name, self.links)
        assert isinstance(links, link_data.ExactLinks)
        return cells((links.parents, links.children)[side])

    def _table(self, folder: Path, name: str) -> Cells:
        """Return the rows of a table within the bound of its own job."""
        job = table_jobs(self.job)[name]
        domain, data = self.job.domains[name], job.data
        table = with_key_ids(data.origin.table(data.path, domain), data.unit_columns)
        groups = partition_groups(table.partitions, 1)
        dropped: Any = {}
        if data.unit_column is not None and data.max_rows_per_unit is not None:
            hops = [(with_key_ids(hop.origin.table(hop.path, domain), *hop.columns), *map(column_name, hop.columns))
                    for hop in data.unit_through or []]  # fmt: skip
            through = read_unit_lookup(ENGINE, hops) if hops else None
            dropped = rows_beyond(ENGINE, domain, groups, data.unit_column, data.max_rows_per_unit, 100, 1 << 20,
                                  drop=data.unit_nulls == "drop", through=through)  # fmt: skip
        empty = pd.DataFrame({"a": [], "b": []}, dtype=int)
        frame = pd.concat([empty, *(pd.DataFrame({column: batch[column].to_pandas() for column in ("a", "b")})
                                    for batch in table.partitions[0].batches(["a", "b"]))])  # fmt: skip
        gone = [rows.places for rows in dropped.values()]
        return cells((frame.drop(index=np.concatenate(gone)) if gone else frame).to_numpy())

    def _joins(self, folder: Path) -> dict[str, tuple[Cells, int]]:
        wanted = join_of(self.job.to_dict(), self.relation)
        if not wanted:
            return {}
        job = Job.read(self.job.to_dict() | {"workload": wanted})
        runs = begin_linked(job, folder / "run").joins
        return {name: (exact_counts(run, ENGINE), run.planning_problem.rows_per_unit) for name, run in runs.items()}


def check_neighbours(before: Statistics, after: Statistics) -> None:
    """Check that the statistics of two neighbours differ by at most the claimed sensitivities."""
    relation, job = before.relation, before.job
    divisible = Divisible(job, relation)
    for name, counted in before.tables.items():
        other = after.tables[name]
        assert not other - counted, f"rows of {name} appear without the unit"
        assert distance(counted, other) <= (relation.rows.get(name, 1) if name in relation.rows else 0), name
    for name, rows in before.first.items():
        assert distance(rows, after.first[name]) <= (divisible.unit_rows(name) if name in relation.rows else 0), name
    for link in job.link:
        one, other = before.links[link.called], after.links[link.called]
        ends = [cells(np.hstack([own.parents[own.rows[:, 0]], own.children[own.rows[:, 1]]])) for own in (one, other)]
        moved, piece = relation.moved[link.called], LinkBudget(job, relation, link)
        assert distance(*ends) <= moved, link.called
        if link.parent in relation.rows:
            degrees = [np.concatenate([own.by_degree(side, at) for side, at in enumerate(piece.places)])
                       for own in (one, other)]  # fmt: skip
            claimed = degrees_squared(relation.protects.relation, link.bound, piece.roles, len(piece.places))
            assert ((degrees[0] - degrees[1]) ** 2).sum() <= claimed, link.called
        if link.parent in divisible.private and link.parent in relation.rows and link.parent != link.child:
            shares = [degree_histogram(own.unbounded) for own in (one, other)]
            assert ((shares[0] - shares[1]) ** 2).sum() <= relation.rows[link.parent] ** 2, link.called
            if link.via is None:
                tables = PairTables((3, 2))
                sums = [own.siblings(tables) for own in (one, other)]
                claimed = tables.squared(link.bound, relation.rows[link.parent])
                assert ((sums[0] - sums[1]) ** 2).sum() <= claimed, link.called
    for name, (counts, most) in before.joins.items():
        assert not after.joins[name][0] - counts, name
        assert distance(counts, after.joins[name][0]) <= most, name


def databases_of(folder: Path, name: str) -> SmallDatabases:
    shape = bounded(SHAPES[name])
    empty = {table: pd.DataFrame({"a": [0], "b": [0]}) for table in shape.keys}
    job = Job.read(write_shape(folder / "shape", shape, empty, 5.0))
    return SmallDatabases(shape, neighbour_relation(job))


def check_database(folder: Path, databases: SmallDatabases, frames: Frames, joins: bool) -> None:
    """Check all neighbours of a database."""
    before = Statistics(folder / "all", databases.shape, frames, joins)
    for unit in range(UNITS):
        other = databases.without(frames, unit)
        check_neighbours(before, Statistics(folder / f"without {unit}", databases.shape, other, joins))


def check_some(folder: Path, name: str, number: int, joins: bool) -> None:
    """Check some random databases of the list, half of them with equal attributes."""
    databases, rng = databases_of(folder, name), np.random.default_rng(len(name))
    for at in range(number):
        frames = databases.frames(databases.sample(rng), equal=at % 2 == 1)
        check_database(folder / str(at), databases, frames, joins and at == 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_no_neighbour_of_shape_exceeds_sensitivity(tmp_path: Path, name: str) -> None:
    check_some(tmp_path, name, 2, joins=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_neighbour_in_the_whole_list_exceeds_sensitivity(tmp_path: Path, name: str) -> None:
    databases = databases_of(tmp_path, name)
    for number, chosen in enumerate(databases.every()):
        check_database(tmp_path / str(number), databases, databases.frames(chosen), joins=number % 20 == 0)
    check_some(tmp_path / "random", name, 30, joins=True)


def planted(folder: Path, name: str, number: int = 4) -> None:
    """Check that some database shows a fault."""
    with pytest.raises(AssertionError):
        check_some(folder, name, number, joins=False)


@pytest.mark.parametrize("name", ["two private parents", "pairs with attributes"])
def test_planted_truncation_across_units_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Planted fault: the first links of all units, whose places other links take."""
    monkeypatch.setattr(link_data, "at_most", lambda parents, ends, bound: np.arange(len(parents)) < 2 * bound)
    planted(tmp_path, name)


@pytest.mark.parametrize("name", ["two private parents", "below a household"])
def test_planted_bound_of_a_side_table_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Planted fault: rows of a side table have at most one link, so a removed unit frees a place for another unit."""
    exact_links = link_data.read_links

    def read(engine: Any, job: Any, link: Any, relation: NeighbourRelation) -> link_data.ExactLinks:
        sides = dict.fromkeys(relation.sides, 1)
        bound = link.model_copy(update={"max_degree": 1}) if link.parent in sides else link
        return exact_links(engine, job, bound, replace(relation, rows={**relation.rows, **sides}))

    monkeypatch.setattr(link_data, "read_links", read)
    planted(tmp_path, name, 8)


def test_planted_unit_of_one_key_column_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: rows of two units with one value in common are one unit."""
    original = links.key_words
    monkeypatch.setattr(links, "key_words", lambda batch, columns, *rest: original(batch, columns[-1:], *rest))
    with pytest.raises((AssertionError, DataError)):
        check_some(tmp_path, "private composite key", 8, joins=False)
