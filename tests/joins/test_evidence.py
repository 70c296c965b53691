"""Evidence bundles of runs with joins: their draws are listed, and forged bounds of joins are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpscale as dp
from dpscale.audit.evidence import bundle, recompute
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import JobError
from dpscale.runs.opening import open_run
from tests.audit.forging import forge, read, records_of, remove, restate
from tests.joins.test_answers import WORKLOAD, run_of
from tests.joins.test_replaced import FILMS, PEOPLE, make_pairs, make_table, write_job
from tests.links.small import make_frames, make_job, write_job as shop_job
from tests.messages import refused
from tests.running import run_stages

PASSED = [{"name": "one", "passed": True}]
PRIVACY = {"epsilon": 4.0, "delta": 1e-6, "dataset": "shop", "ledger": "ledger.db"}


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("joins")
    budget = {"method": "equal", "joins": {"persons-countries": {"share": 0.2}}}
    run = run_of(folder, make_frames(), bound=2, privacy=PRIVACY, budget=budget)
    for stage in ("plan", "measure"):
        run_stages(run, only=stage)
    return bundle.write_bundle(open_run(folder / "run"), PASSED)


def test_joins_are_listed_and_cost_what_was_charged(evidence: Path) -> None:
    found = check_bundle(evidence)
    assert found["own_scripts"]
    assert {"joins.orders-persons-countries", "joins.cut"} <= set(found["parts"])
    assert rows_of(evidence, "joins.ratings-persons-products") == 2
    assert rows_of(evidence, "joins.cut") == 1


def rows_of(folder: Path, part: str) -> int:
    """Number of rows of a join that a unit changes."""
    [[[_, change]]] = read(folder, "parts")[part]["bounds"]["rows"]["changes"]
    return int(change)


@pytest.mark.parametrize("name", ["orders-persons-countries", "ratings-persons-products"])
def test_join_with_a_smaller_bound_is_found(evidence: Path, tmp_path: Path, name: str) -> None:

    def change(files: dict[str, Any]) -> None:
        files["parts"][f"joins.{name}"]["bounds"]["rows"]["changes"] = [[[1, 1]]]
        restate(files)

    with refused(JobError):
        check_bundle(forge(evidence, tmp_path / "copy", change))


def test_smaller_bound_at_the_same_cost_is_found(evidence: Path, tmp_path: Path) -> None:
    """All events and costs are forged, too: only the sealed facts differ."""

    def change(files: dict[str, Any]) -> None:
        files["parts"]["joins.ratings-persons-products"]["bounds"]["rows"]["changes"] = [[[1, 1]]]
        for record in records_of(files, "joins.ratings-persons-products"):
            record["variance"] = str((int(record["variance"]) - 8) // 4 + 9)
        restate(files)

    copy = forge(evidence, tmp_path / "copy", change)
    assert recompute.faults(copy) == ["parts.json differs from the one that was charged"]


@pytest.mark.parametrize("everywhere", [False, True])
def test_lacking_join_is_found(evidence: Path, tmp_path: Path, everywhere: bool) -> None:
    def change(files: dict[str, Any]) -> None:
        gone = records_of(files, "joins.cut")
        remove(files, gone)
        for one in gone:
            files["run-files"].pop(one["file"], None)
        if everywhere:
            del files["parts"]["joins.cut"]
        restate(files)

    with refused(JobError):
        check_bundle(forge(evidence, tmp_path / "copy", change))


def test_joins_of_replaced_rows_are_listed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = {"people": make_table(rng, "person", PEOPLE), "films": make_table(rng, "film", FILMS),
            "pairs": make_pairs(rng)}  # fmt: skip
    write_job(tmp_path / "films", data, privacy=PRIVACY | {"allow_weak_privacy": True},
              budget={"method": "equal"})  # fmt: skip
    dp.run(tmp_path / "films" / "job.toml", tmp_path / "run")
    found = bundle.write_bundle(open_run(tmp_path / "run"), PASSED)
    assert "joins.seen" in check_bundle(found)["parts"]
    assert rows_of(found, "joins.seen") == 4


@pytest.mark.slow
def test_private_bound_of_a_link_is_that_of_its_joins(tmp_path: Path) -> None:
    links = [one | ({"max_degree": "private"} if one["child"] == "orders" else {}) for one in make_job()["link"]]
    tables = {name: {**one, "mechanism": "residual-planner"} for name, one in make_job()["tables"].items()}
    path = shop_job(tmp_path, data=make_frames(), budget={"method": "planned"}, link=links, tables=tables,
                    workload=WORKLOAD, privacy=PRIVACY)  # fmt: skip
    dp.run(path, tmp_path / "run")
    run = open_run(tmp_path / "run")
    bound = next(one.link.bound for one in run.links if one.link.called == "orders")
    assert run.joins["orders-persons-countries"].planning_problem.rows_per_unit == bound
    assert run.joins["per-persons-orders-ratings"].domain["orders.count"].high == bound
    assert check_bundle(bundle.write_bundle(run, PASSED))["sound"]
