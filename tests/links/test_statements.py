"""Sentences of the report of several tables are true for the link or the job that they describe."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.job import Job
from dpscale.job.neighbours import describe_neighbours, neighbour_relation, refusals
from dpscale.runs.linked_part import describe_rows
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links.report import (
    ReleasedLink,
    describe_bound,
    describe_size,
    not_reproduced,
    reproduced,
    write_report,
)
from tests.links.shapes import SHAPES, Frames, make_frames, write_shape
from tests.running import link_values, linked

SIMILAR, DEGREES, TOGETHER = "the similarity of rows of", "the distribution of the number of links", "go together"


def run_shape(
    folder: Path, name: str, frames: Frames | None = None, epsilon: float = 2.0, **change: int
) -> LinkedTables:
    """Run a shape; `change` are settings of all its links."""
    shape = dataclasses.replace(SHAPES[name], links=tuple(link | change for link in SHAPES[name].links))
    path = write_shape(folder, shape, frames or make_frames(shape, {}, 2), epsilon, method="equal")
    return linked(dp.run(path, folder / "run").path)


def statements(run: LinkedTables, number: int = 0) -> tuple[str, str]:
    link = run.job.link[number]
    rows = ReleasedLink(run, link).rows
    return "; ".join(reproduced(run, link, rows)), "; ".join(not_reproduced(run, link, rows))


CASES: list[tuple[str, float, dict[str, int], bool, list[str]]] = [
    ("star", 2000, {}, True, []),
    ("star", 0.1, {}, True, []),
    ("star", 2, {"max_degree": 32}, True, []),
    ("star", 2000, {"max_degree": 33}, True, ["max_degree is 33"]),
    ("one to one", 2000, {}, False, []),
    ("public parent", 2000, {}, True, ["rows of place have no bound"]),
    ("self link", 2000, {}, True, ["not measured within one table"]),
    ("published chain", 2000, {}, True, ['mechanism = "published"']),
    ("pairs", 2000, {}, False, []),
]


@pytest.mark.parametrize(("name", "epsilon", "change", "siblings", "reasons"), CASES)
def test_only_measured_facts_are_stated(
    tmp_path: Path, name: str, epsilon: float, change: dict[str, int], siblings: bool, reasons: list[str]
) -> None:
    """A fact is stated if its measurement is in the directory; `siblings`: whether rows have any."""
    run = run_shape(tmp_path, name, None, epsilon, **change)
    stated, absent = statements(run)
    measured = set(link_values(run.path, run.job.link[0].called))
    assert (DEGREES in stated, DEGREES in absent) == ("degrees" in measured, "degrees" not in measured)
    assert (SIMILAR in stated) == ("siblings" in measured)
    assert (SIMILAR in absent) == (siblings and "siblings" not in measured)
    assert (TOGETHER in stated) == ("both" in measured)
    assert (TOGETHER in absent) == ("both" not in measured and "published" not in name)
    assert ("the selected counts" in stated) == ("published" in name)
    assert all(reason in absent for reason in reasons), absent
    page = (run.path / "report.html").read_text()
    assert stated.split("; ")[0] in page
    assert ("the similarity" in page) == siblings


def test_statement_needs_the_measurement(tmp_path: Path) -> None:
    run = run_shape(tmp_path, "chain", None, 2000)
    assert SIMILAR in statements(run)[0]
    (run.path / "links/middle/002-00000000-00000001.parquet").unlink()
    stated, absent = statements(run)
    assert SIMILAR not in stated
    assert SIMILAR in absent


@pytest.mark.parametrize(("children", "share"), [(2, 1.0), (1, 0.0)])
def test_share_of_rows_at_the_bound(tmp_path: Path, children: int, share: float) -> None:
    """Every parent of the data has so many children, of at most 2."""
    frames = make_frames(SHAPES["star"], {"root": 200, "left": 200 * children, "right": 200}, 2)
    frames["left"]["root_id"] = np.repeat(frames["root"].id.to_numpy(), children)
    run = run_shape(tmp_path, "star", frames, 20.0)
    found = describe_bound(run, run.job.link[0], len(ReleasedLink(run, run.job.link[0]).degrees[0]))
    assert found is not None
    assert abs(found["share"] - share) < 6 * found["error"] + 0.02
    assert found["warn"] == bool(share)
    assert ("Warning:" in (run.path / "report.html").read_text()) == bool(share)


def test_no_bound_is_stated_where_nothing_is_cut(tmp_path: Path) -> None:
    run = run_shape(tmp_path, "one to one")
    assert describe_bound(run, run.job.link[0], 20) is None


def test_limited_size_is_explained(tmp_path: Path) -> None:
    """The data have about 20 cards, and the job states 5 rows of their parents."""
    shape = SHAPES["one to one"]
    path = write_shape(tmp_path, shape, make_frames(shape, {}, 2), 50.0, root={"rows": 5})
    run = linked(dp.run(path, tmp_path / "run").path)
    rows = {name: len(pd.read_parquet(run.path / f"synthetic/{name}")) for name in ("root", "card")}
    estimate = round(describe_rows(run.tables["card"])["total"])
    assert rows == {"root": 5, "card": 5}
    text = f"card has 5 rows, fewer than the estimated {estimate}"
    assert text in describe_size(run, "card")
    assert text in (run.path / "report.html").read_text()
    assert describe_size(run, "root") == ""


def plant_null(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(root_id=rows.root_id.where(rows.index > 0).astype("Int64"))


def test_null_key_is_not_intact(tmp_path: Path) -> None:
    run = run_shape(tmp_path, "chain")
    link = ReleasedLink(run, run.job.link[0])
    assert link.whole
    file = run.path / "synthetic/middle/part-00000.parquet"
    plant_null(pd.read_parquet(file)).to_parquet(file, index=False)
    planted = ReleasedLink(run, run.job.link[0])
    assert not planted.whole
    write_report(run)
    assert "1 row of middle has no row of root: the key is null" in (run.path / "report.html").read_text()


def test_link_of_a_row_to_itself_is_not_intact(tmp_path: Path) -> None:
    run = run_shape(tmp_path, "self link")
    assert ReleasedLink(run, run.job.link[0]).whole
    file = run.path / "synthetic/root/part-00000.parquet"
    rows = pd.read_parquet(file)
    rows.assign(boss=[0, *rows.boss[1:]]).astype({"boss": "Int64"}).to_parquet(file, index=False)
    assert ReleasedLink(run, run.job.link[0]).loops == 1
    assert not ReleasedLink(run, run.job.link[0]).whole


def neighbours_of(folder: Path, name: str, **tables: dict[str, object]) -> str:
    shape = SHAPES[name]
    return describe_neighbours(neighbour_relation(Job.read(
        write_shape(folder, shape, make_frames(shape, {}, 0), 1.0, **tables))))  # fmt: skip


def test_neighbours_of_each_unit(tmp_path: Path) -> None:
    assert "one row of root, added or removed together with all its links" in neighbours_of(tmp_path, "chain")
    assert "one row of any private table, replaced" in neighbours_of(tmp_path, "pairs of two private tables")
    assert "all links of one row of root, added or removed" in neighbours_of(tmp_path, "public pairs")
    alone = dataclasses.replace(SHAPES["star"], keys={"root": ""}, links=())
    frames = {"root": make_frames(SHAPES["star"], {}, 0)["root"]}
    row = write_shape(tmp_path, alone, frames, 1.0)
    assert describe_neighbours(neighbour_relation(Job.read(row))) == (
        "Neighbours differ by one row of root added or removed.")  # fmt: skip
    unit = write_shape(tmp_path, alone, frames, 1.0, root={"privacy_unit": "id", "max_rows_per_unit": 4})
    assert "the rows of root with one id, at most 4, added or removed" in describe_neighbours(
        neighbour_relation(Job.read(unit))
    )


def test_refusals_follow_the_policies(tmp_path: Path) -> None:
    shape, frames = SHAPES["chain"], make_frames(SHAPES["chain"], {}, 0)
    strict = Job.read(write_shape(tmp_path, shape, frames, 1.0))
    assert refusals(strict, neighbour_relation(strict)) == [
        "a null key (root, middle)", "a null at an end of a link (middle, leaf)", "a key without a row (middle, leaf)"
    ]  # fmt: skip
    links = tuple(link | {"nulls": "drop", "dangling": "drop"} for link in shape.links)
    lenient = Job.read(write_shape(tmp_path, dataclasses.replace(shape, links=links), frames, 1.0,
                                            root={"nulls": "drop"}, middle={"nulls": "drop"}))  # fmt: skip
    assert refusals(lenient, neighbour_relation(lenient)) == []
    both = Job.read(write_shape(tmp_path, SHAPES["pairs of two private tables"],
                                         make_frames(SHAPES["pairs of two private tables"], {}, 0), 1.0))  # fmt: skip
    assert refusals(both, neighbour_relation(both))[1:] == [
        "two rows with one key (root, film)", "a null at an end of a link (pairs)", "a key without a row (pairs)",
        "more links of a row than max_degree (pairs)"]  # fmt: skip
