"""Shapes that are refused, each with a sentence that names the remedy, and what is said of rows of no unit."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import dpscale as dp
from dpscale.audit.evidence.bundle import write_bundle
from dpscale.base.errors import JobError
from dpscale.job import Job
from dpscale.job.neighbours import describe_neighbours, neighbour_relation
from dpscale.runs.links.planning import overview
from dpscale.runs.opening import open_run
from tests.links.shapes import SHAPES, Shape, make_frames, one, pairs, single, write_shape

REFUSED: dict[str, tuple[Shape, str]] = {
    "two roots": (Shape(SHAPES["two private parents"].keys, SHAPES["two private parents"].links), "privacy.unit"),
    "unit in two tables": (Shape({"order": "k", "visit": "v"}, ()), "rows of order, visit to protect"),
    "winner and loser of units": (
        Shape({"root": "id", "game": ""}, (one("root", "game", "winner", name="w"),
                                           one("root", "game", "loser", name="l"))),
        "a second link of game to rows of root"),
    "links below the root": (
        Shape({"root": "id", "middle": "m"}, (one("root", "middle", "root_id"),
                                              one("middle", "middle", "up", name="ups"))),
        "within middle, whose rows belong to those of root"),
    "attribute that is a key": (Shape({"root": "a"}, ()), "which is in the domain"),
    "root that refers to a row below it": (
        Shape({"root": "id", "card": "k"}, (one("root", "card", "root_id"),
                                            one("card", "root", "first", name="firsts")), unit="root"),
        "which belong to others of root"),
    "side tables in a cycle": (
        Shape({"root": "id", "x": "k", "y": "k"}, (one("x", "y", "x_id", name="xs"), one("y", "x", "y_id", name="ys")),
              unit="root"), "that lead back to x"),
    "side table without key": (Shape({"root": "id", "x": ""}, (), unit="root"), "the key by which a row is protected"),
    "pairs from a side table": (Shape({"root": "id", "x": "k"}, (pairs("x", "root", "id"),), unit="root"),
                                "exchange parent and child"),
    "unknown unit": (Shape({"root": "id"}, (), unit="roots"), "privacy.unit: 'roots'"),
    "many rows with the key of their parent": (
        Shape({"root": "id", "card": "root_id"}, (one("root", "card", "root_id"),)), '"one-to-one", because each key'),
    "key that may be absent": (
        Shape({"root": "id", "card": "root_id"}, (single("root", "card", "root_id", nulls="keep"),)), 'nulls = "keep"'),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_shape_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    shape, text = REFUSED[name]
    frames = {table: pd.DataFrame({"a": [0], "b": [0]}) for table in shape.keys}
    with pytest.raises(JobError) as met:
        neighbour_relation(Job.read(write_shape(tmp_path, shape, frames, 1.0)))
    assert text in str(met.value)
    assert "\n" not in str(met.value)


def test_most_shapes_are_supported() -> None:
    """The shapes of the requirements: 4 of 24 are refused."""
    refused = {"unit in two tables", "winner and loser of units", "links below the root", "attribute that is a key"}
    assert refused < set(REFUSED)
    assert len(refused) <= 4
    assert len(SHAPES) >= 20


def test_rows_of_no_unit_are_described(tmp_path: Path) -> None:
    """Plan, report and evidence say what is protected of a doctor."""
    shape = SHAPES["two private parents"]
    path = write_shape(tmp_path, shape, make_frames(shape, {}, 0), 5.0)
    sentence = "Rows of doctor belong to no row of root: each is protected in its own table"
    assert sentence in describe_neighbours(neighbour_relation(Job.read(path)))
    assert sentence in overview(Job.read(path))["neighbours"]
    run = dp.run(path, tmp_path / "run").path
    assert sentence in (run / "report.html").read_text()
    assert sentence in (write_bundle(open_run(run), []) / "README.md").read_text()
