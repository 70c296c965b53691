"""Evidence bundles of runs with joins: their draws are listed, and forged bounds of joins are found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpscale as dp
from dpscale.audit.evidence import bundle, crosscheck
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import JobError
from dpscale.runs.opening import open_run
from tests.joins.test_answers import WORKLOAD, release_of
from tests.joins.test_replaced import FILMS, PEOPLE, make_pairs, make_table, write_job
from tests.links.small import make_frames, make_job, write_job as shop_job

PASSED = [{"name": "one", "passed": True}]
PRIVACY = {"epsilon": 4.0, "delta": 1e-6, "dataset": "shop", "ledger": "ledger.db"}


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("joins")
    release_of(folder, make_frames(), bound=2, privacy=PRIVACY, joins={"persons-countries": {"share": 0.2}})
    return bundle.write_bundle(open_run(folder / "run"), PASSED)


def forge(folder: Path, place: Path, name: str, change: Callable[[Any], None]) -> Path:
    """Return a copy of a bundle with one edited file and new hashes."""
    copy = Path(shutil.copytree(folder, place))
    content = json.loads((copy / name).read_text())
    change(content)
    (copy / name).write_bytes(bundle.canonical(content))
    (copy / "hashes.json").unlink()
    contents = {path.name: path.read_bytes() for path in copy.iterdir()}
    for own, text in bundle._sealed(contents, None).items():
        (copy / own).write_bytes(text)
    return copy


def join_of(draws: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in draws["components"] if one["name"] == f"joins.{name}")


def test_joins_are_listed_and_cost_what_was_charged(evidence: Path) -> None:
    found = check_bundle(evidence)
    assert found["own_scripts"]
    assert "table joins.orders-persons-countries" in found["components"]
    assert "table joins.cut" in found["components"]
    draws = json.loads((evidence / "draws.json").read_text())
    assert join_of(draws, "ratings-persons-products")["rows_per_unit"] == 2
    assert join_of(draws, "cut")["rows_per_unit"] == 1


@pytest.mark.parametrize("name", ["orders-persons-countries", "ratings-persons-products"])
def test_join_with_a_smaller_bound_is_found(evidence: Path, tmp_path: Path, name: str) -> None:
    copy = forge(evidence, tmp_path / "copy", "draws.json", lambda one: join_of(one, name).update(rows_per_unit=1))
    with pytest.raises(JobError, match="is inconsistent"):
        check_bundle(copy)
    found = crosscheck.cross_faults(copy)  # also finds it if all events and costs are forged, too
    assert f"job.toml and draws.json have different values of rows_per_unit of table joins.{name}" in found


def test_lacking_join_is_found(evidence: Path, tmp_path: Path) -> None:
    def remove(draws: dict[str, Any]) -> None:
        draws["components"] = [one for one in draws["components"] if one["name"] != "joins.cut"]

    with pytest.raises(JobError, match="is inconsistent"):
        check_bundle(forge(evidence, tmp_path / "copy", "draws.json", remove))


def test_joins_of_replaced_rows_are_listed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = {"people": make_table(rng, "person", PEOPLE), "films": make_table(rng, "film", FILMS),
            "pairs": make_pairs(rng)}  # fmt: skip
    write_job(tmp_path / "films", data, privacy=PRIVACY | {"allow_weak_privacy": True},
              allocation={"method": "equal"})  # fmt: skip
    dp.run(tmp_path / "films" / "job.toml", tmp_path / "run")
    found = bundle.write_bundle(open_run(tmp_path / "run"), PASSED)
    assert "table joins.seen" in check_bundle(found)["components"]
    assert join_of(json.loads((found / "draws.json").read_text()), "seen")["rows_per_unit"] == 4


@pytest.mark.slow
def test_private_bound_of_a_link_is_that_of_its_joins(tmp_path: Path) -> None:
    links = [one | ({"max_degree": "private"} if one["child"] == "orders" else {}) for one in make_job()["link"]]
    tables = {name: {**one, "mechanism": "residual-planner"} for name, one in make_job()["tables"].items()}
    path = shop_job(tmp_path, data=make_frames(), allocation={"method": "planned"}, link=links, tables=tables,
                    workload=WORKLOAD, privacy=PRIVACY)  # fmt: skip
    dp.run(path, tmp_path / "run")
    run = open_run(tmp_path / "run")
    bound = next(one.link.bound for one in run.links if one.link.called == "orders")
    assert run.joins["orders-persons-countries"].planning_problem.rows_per_unit == bound
    assert run.joins["per-persons-orders-ratings"].domain["orders.count"].high == bound
    assert check_bundle(bundle.write_bundle(run, PASSED))["sound"]
