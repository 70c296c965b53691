"""Sizes of synthetic tables that fit together: every child has a parent within the parent's bound, at any budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.job import Job
from dpscale.job.table_sizes import decreasing_sizes, least_rows
from dpscale.privacy.streams import PublicStream
from dpscale.relational import link_estimation
from dpscale.relational.assignment import remove_loops
from dpscale.runs import linked_part
from dpscale.runs.charge import parts_of_entry
from dpscale.runs.stages.row_numbers import limited_rows
from tests.links.shapes import SHAPES, Frames, assert_consistent, make_frames, write_shape
from tests.messages import refused
from tests.running import linked

EPSILONS, SIZES = (0.05, 0.5, 4.0), (1, 2, 5, 40)
METHODS = ("equal", "planned")
CASES = [(name, seed) for name in SHAPES for seed in range(6)]


def run_shape(folder: Path, name: str, sizes: dict[str, int], epsilon: float, seed: int, **more: Any) -> Path:
    shape = SHAPES[name]
    return write_shape(folder, shape, make_frames(shape, sizes, seed), epsilon, seed, **more)


def synthetic(path: Path) -> Frames:
    return {name: frame.compute() for name, frame in dp.run(path, path.parent / "run").synthetic().items()}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "seed"), CASES)
def test_every_child_has_a_parent(tmp_path: Path, name: str, seed: int) -> None:
    """Random sizes and budgets; at the smallest, sizes are mostly noise. The planned division is slow: only at night
    and in the tests below.
    """
    rng, epsilon, method = np.random.default_rng([seed, len(name)]), EPSILONS[seed % 3], METHODS[bool(seed)]
    sizes = {table: int(rng.choice(SIZES)) for table in SHAPES[name].keys}
    path = run_shape(tmp_path, name, sizes, epsilon, seed, method=method)
    assert_consistent(Job.read(path), synthetic(path))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["chain", "one to one", "public parent of one row each", "star",
                                  "self link of every row", "public composite key"])  # fmt: skip
def test_every_child_has_a_parent_by_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Links between groups of profiles, as with too many pairs of profiles for an array."""
    monkeypatch.setattr(link_estimation, "MOST_CELLS", 0)
    sizes = dict.fromkeys(SHAPES[name].keys, 40) | {"place": 45}
    path = run_shape(tmp_path, name, sizes, 0.3, 4, method="planned")
    assert_consistent(Job.read(path), synthetic(path))


CHILDREN = dict.fromkeys(("card", "middle", "leaf", "left", "right"), 40)
MANY = ("star", "one to one", "chain", "chain of one to one", "public parent of one row each", "published chain")


@pytest.mark.parametrize("name", MANY)
def test_more_children_than_places(tmp_path: Path, name: str) -> None:
    """Children that the data's bounds cut, or whose estimated number is above: as many rows as there are places."""
    nulls = [{**link, "nulls": "drop", "dangling": "drop"} for link in SHAPES[name].links]
    shape = type(SHAPES[name])(SHAPES[name].keys, tuple(nulls), SHAPES[name].public)
    frames = make_frames(shape, CHILDREN | ({"root": 40, "place": 1} if "place" in shape.keys else {"root": 2}), 3)
    path = write_shape(tmp_path, shape, frames, 0.05, 1, "planned")
    job, found = Job.read(path), synthetic(path)
    assert_consistent(job, found)
    files = [file for table in found for file in (tmp_path / f"run/synthetic/{table}").glob("*.parquet")]
    kinds = {field.type for file in files for field in pq.read_schema(file) if field.name not in ("a", "b")}
    assert {str(kind) for kind in kinds} == {"int64"}


def test_unlimited_rows_leave_children_without_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: sizes are drawn apart."""
    monkeypatch.setattr(linked_part, "row_limits", lambda run, name: {"least": 1 + 49 * (name == "card"), "most": None})
    path = run_shape(tmp_path, "one to one", {"root": 5, "card": 5}, 50.0, 1)
    with pytest.raises(AssertionError):
        assert_consistent(Job.read(path), synthetic(path))


def test_stated_children_enlarge_parents(tmp_path: Path) -> None:
    """30 leaves need 15 rows above them, and these 8 at the root, although the data have 3."""
    path = run_shape(tmp_path, "chain", {"root": 3, "middle": 3, "leaf": 3}, 50.0, 1, leaf={"rows": 30})
    job, found = Job.read(path), synthetic(path)
    assert [least_rows(job, name) for name in ("leaf", "middle", "root")] == [30, 15, 8]
    assert {name: len(frame) for name, frame in found.items()} == {"leaf": 30, "middle": 15, "root": 8}
    assert_consistent(job, found)


@pytest.mark.parametrize("seed", range(12))
def test_joint_sizes_equal_a_convex_solver(seed: int) -> None:
    """Random trees, against the projection by cvxpy."""
    import cvxpy

    rng, number = np.random.default_rng(seed), 2 + seed % 5
    names = [f"t{i}" for i in range(number)]
    above = {names[i]: names[int(rng.integers(0, i))] for i in range(1, number)}
    values, weights = rng.normal(100, 40, number), rng.uniform(0.01, 3, number)
    given = (dict(zip(names, own, strict=True)) for own in (values, weights))
    found = decreasing_sizes(*given, above)
    x = cvxpy.Variable(number)
    order = [x[names.index(child)] <= x[names.index(parent)] for child, parent in above.items()]
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(cvxpy.multiply(weights, (x - values) ** 2))), order).solve(solver="CLARABEL")
    assert list(found.values()) == pytest.approx(x.value, abs=1e-3)
    assert all(found[child] <= found[parent] + 1e-6 for child, parent in above.items())


def test_consistent_sizes_are_not_changed() -> None:
    sizes, above = {"root": 10.0, "middle": 10.0, "leaf": 3.0}, {"middle": "root", "leaf": "middle"}
    assert decreasing_sizes(sizes, dict.fromkeys(sizes, 1.0), above) == sizes
    found = decreasing_sizes({"root": 10.0, "leaf": 16.0}, {"root": 1.0, "leaf": 2.0}, {"leaf": "root"})
    assert found == {"root": pytest.approx(14.0), "leaf": pytest.approx(14.0)}


STATED: list[tuple[str, dict[str, Any], str]] = [
    ("chain", {"root": {"rows": 3}, "middle": {"rows": 7}}, "middle has 7 rows, at most 2 per row of root"),
    ("chain", {"root": {"rows": 3}, "leaf": {"synthesize": {"rows": 13}}}, "at least 4"),
    ("one to one", {"root": {"rows": 9}, "card": {"rows": 10}}, "tables.root.rows: 9"),
    ("self link of every row", {"root": {"rows": 1}}, "no row of root is linked to itself"),
]


@pytest.mark.parametrize(("name", "more", "message"), STATED)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_stated_rows_that_do_not_fit_are_refused_early(
    tmp_path: Path, name: str, more: dict[str, Any], message: str, command: str
) -> None:
    path = run_shape(tmp_path, name, {}, 1.0, 1, **more)
    directory = ["--run-dir", str(tmp_path / "run"), "--quiet"] if command == "run" else []
    done = CliRunner().invoke(main, [command, str(path), *directory])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), (done.output, done.exception)
    assert message in done.stderr
    assert not (tmp_path / "run").exists()


def test_more_stated_rows_than_public_parents_are_refused_without_charge(tmp_path: Path) -> None:
    path = run_shape(tmp_path, "public parent of one row each", {"place": 4, "root": 3}, 1.0, 1, root={"rows": 5})
    with refused(dp.JobError):
        dp.run(path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_public_table_without_remaining_rows_is_refused(tmp_path: Path) -> None:
    path = run_shape(tmp_path, "public parent", {}, 1.0, 1, place={"where": "p > 1000"})
    with refused(dp.DataError):
        dp.run(path, tmp_path / "run")


def test_charge_does_not_depend_on_order_of_components(tmp_path: Path) -> None:
    """A child that precedes its parent in the job is sampled after it; the ledger's digest has the order of the job."""
    path = run_shape(tmp_path, "chain of one to one", {}, 1.0, 1, method="planned")
    run = linked(dp.run(path, tmp_path / "run").path)
    assert [name for name in run.parts if "tables" in name] == ["tables.root", "tables.middle", "tables.leaf"]
    terms = {name: terms for name, (_, terms) in parts_of_entry(run.run, "privacy").items()}
    assert set(terms) == {
        "tables.root",
        "tables.middle",
        "tables.leaf",
        *(f"links.{one.called}" for one in run.job.link),
    }
    assert all(terms[f"tables.{name}"] == run.tables[name].measurement_plan.digest for name in run.tables)


def test_rows_of_a_run_without_limits_stay(tmp_path: Path) -> None:
    """A table's run of an earlier version has no limits, and its rows are sampled again identically."""
    path = run_shape(tmp_path, "one to one", {"root": 5, "card": 5}, 50.0, 1)
    run = linked(dp.run(path, tmp_path / "run").path)
    limits, rows = run.tables["card"].manifest["row_limits"], linked_part.describe_rows(run.tables["root"])["rows"]
    assert (limits["least"], limits["most"]) == (0, rows)
    assert limited_rows(run.tables["card"], 1e6) <= rows
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    manifest["parts"]["tables.card"].pop("row_limits")
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
    assert limited_rows(linked(tmp_path / "run").tables["card"], 1e6) == 1_000_000


@pytest.mark.parametrize("pairs", [
    [(0, 0), (0, 1)], [(0, 0), (0, 1), (0, 2)], [(0, 0), (1, 1)], [(0, 0), (1, 1), (2, 2)], [(1, 0), (1, 1), (0, 2)],
])  # fmt: skip
def test_every_loop_is_removed_if_a_row_has_one_parent(pairs: list[tuple[int, int]]) -> None:
    stream = PublicStream("loops", "rows")
    found = remove_loops(np.array(pairs), np.zeros(len(pairs), np.int64), stream, one_parent=True)
    assert sorted(found[:, 1]) == sorted(second for _, second in pairs)
    assert (found[:, 0] != found[:, 1]).all()
    before, after = (pd.Series([first for first, _ in own]).value_counts() for own in (pairs, found.tolist()))
    assert after.max() <= before.max()
