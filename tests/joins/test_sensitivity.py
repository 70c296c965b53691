"""Sensitivity of joins by brute force: all neighbours of small databases whose bounds are exceeded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pytest

from dpscale.contributions import unit_shards
from dpscale.engine.schedulers import resolve
from dpscale.runs.join_part import JoinedTable
from tests.joins.small import PARTS, exact_counts, join_job, joins_of, make_database, remove_person
from tests.links.test_neighbours import PERSONS
from tests.selection import mostly_slow

Counts = Counter[tuple[int, ...]]


def distance(one: Counts, other: Counts) -> int:
    """Return the number of rows that are added or removed."""
    return sum(abs(one[cell] - other[cell]) for cell in one | other)


def worst_changes(
    folder: Path,
    seed: int,
    doubled: bool = False,
    where: dict[str, str] | None = None,
    persons: Iterable[int] = range(PERSONS),
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the largest change of each join over the neighbours without a person, and the change its cost covers."""
    data, engine = make_database(seed), resolve(scheduler="synchronous")
    if doubled:  # rows with the key of another row of the same unit, and repeated pairs
        twice = data["accounts"].head(8).assign(x=0)
        data |= {"accounts": pd.concat([data["accounts"], twice]), "tags": pd.concat([data["tags"], data["tags"]])}
    runs = joins_of(join_job(folder / "all", data, where=where), folder / "run")
    before = {name: exact_counts(run, engine) for name, run in runs.items()}
    worst = dict.fromkeys(runs, 0)
    for person in persons:
        other = join_job(folder / f"without {person}", remove_person(data, person), person, where)
        for name, run in joins_of(other, folder / f"run {person}").items():
            after = exact_counts(run, engine)
            assert not after - before[name], name  # rows of other units stay
            worst[name] = max(worst[name], distance(before[name], after))
    return worst, {name: run.planning_problem.rows_per_unit for name, run in runs.items()}


@pytest.mark.parametrize("case", mostly_slow([(0, False), (1, False), (0, True)], {(0, True)}))
def test_no_neighbour_exceeds_the_rows_of_a_unit(tmp_path: Path, case: tuple[int, bool]) -> None:
    worst, most = worst_changes(tmp_path, *case)
    assert most == {"chain": 6, "star": 6, "bounded": 2, "pairs": 4, "parents": 2, "degrees": 1, "below": 1,
                    "middle": 2, "cut": 1}  # fmt: skip
    assert worst.keys() == {*PARTS, "cut"}
    assert all(0 < worst[name] <= most[name] for name in most), worst
    assert worst == most  # bounds are attained


def test_filters_keep_the_rows_of_a_unit(tmp_path: Path) -> None:
    where = {"accounts": "x = 1", "payments": "y != 1", "kinds": "x = 0"}
    worst, most = worst_changes(tmp_path, 0, where=where)
    assert all(worst[name] <= most[name] for name in most), worst
    assert worst["chain"] > 0


def test_planted_join_without_truncation_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JoinedTable, "contribution_bound", 100)
    worst, most = worst_changes(tmp_path, 0, persons=range(3))
    assert any(worst[name] > most[name] for name in most)


def test_planted_unit_without_its_hops_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the unit of a payment is its account, of which a person has several."""
    original = unit_shards._owners
    monkeypatch.setattr(unit_shards, "_owners", lambda column, unit, through: original(column, unit, None))
    worst, most = worst_changes(tmp_path, 0, persons=range(3))
    assert worst["bounded"] > most["bounded"]
