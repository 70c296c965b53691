"""Commands on a job with joins, as a user calls them."""

from __future__ import annotations

import json
from contextlib import chdir
from pathlib import Path

from click.testing import CliRunner, Result

from dpscale.__main__ import main
from dpscale.audit.evidence.bundle import write_bundle
from dpscale.runs.opening import open_run
from tests.audit.test_bundle import PASSED
from tests.joins.test_answers import WORKLOAD
from tests.links.small import make_job, write_job


def dpscale(folder: Path, *arguments: str) -> Result:
    with chdir(folder):
        return CliRunner().invoke(main, arguments)


def test_plan_run_and_end(tmp_path: Path) -> None:
    tables = {name: {**one, "mechanism": "residual-planner"} for name, one in make_job()["tables"].items()}
    privacy = {"epsilon": 4.0, "delta": 1e-6, "dataset": "shop", "ledger": "ledger.db"}
    write_job(
        tmp_path,
        workload=WORKLOAD,
        tables=tables,
        privacy=privacy,
        budget={"method": "equal", "joins": {"persons-countries": {"share": 0.3}}},
    )
    planned = dpscale(tmp_path, "plan", "job.toml", "--json")
    assert planned.exit_code == 0, planned.stderr
    pieces = {one["name"]: one for one in json.loads(planned.stdout)["pieces"]}
    assert pieces["joins.persons-countries"]["share"] == 0.3
    assert pieces["joins.ratings-persons-products"]["moved"] == 5
    assert sum(one["share"] for one in pieces.values()) <= 1 + 1e-9
    assert all(one["expected"]["rmse"] > 0 for name, one in pieces.items() if name.startswith("joins."))
    done = dpscale(tmp_path, "run", "job.toml", "--run-dir", "run")
    assert done.exit_code == 0, done.stderr
    again = dpscale(tmp_path, "run", "job.toml", "--run-dir", "run")
    assert "nothing spent" in again.stdout + again.stderr
    for command in ("end", "evidence"):
        part = dpscale(tmp_path, command, "run/joins/persons-countries")
        assert part.exit_code == 2, part.stdout
    status = dpscale(tmp_path, "job", "status", "run")
    assert status.exit_code == 0, status.stderr
    write_bundle(open_run(tmp_path / "run"), PASSED)
    checked = dpscale(tmp_path, "evidence", "--check", "run/evidence")
    assert checked.exit_code == 0, checked.stderr
    assert "orders-persons-countries" in (tmp_path / "run/report.html").read_text()


def test_refused_workload_has_exit_code_2(tmp_path: Path) -> None:
    write_job(tmp_path, workload=[{"family": "marginal", "attributes": [["persons.sex", "orders.size"]]}])
    refused = dpscale(tmp_path, "plan", "job.toml")
    assert refused.exit_code == 2
    assert "orders.size" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
