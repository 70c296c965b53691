"""Bytes of measurements of joins: the same for any memory, scheduler and order of files, and after an interruption."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

import dpscale as dp
from dpscale.contributions.joins import JoinedPartition
from dpscale.engine.schedulers import Engine, resolve
from dpscale.ledger import Ledger
from dpscale.privacy.accounting import Cost
from dpscale.runs.join_part import JoinedTable
from dpscale.runs.opening import begin_run, read_job
from dpscale.runs.source import open_table
from tests.joins.test_answers import WORKLOAD
from tests.links.small import make_frames, make_job, write_job
from tests.running import run_stages

LINKS = [one | {"dangling": "drop"} for one in make_job()["link"]]


def digests(run: Path) -> dict[str, str]:
    """Return the digests of all drawn values of joins."""
    found = {str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest()
             for file in sorted(run.glob("joins/*/measurements/**/*.parquet"))}  # fmt: skip
    assert len(found) >= 6
    return found


def write_shop(folder: Path, **changes: Any) -> Path:
    frames = make_frames()
    frames["persons"] = frames["persons"].iloc[:-20]  # orders and ratings without a person are left out
    tables = {name: {**one, "mechanism": "residual-planner"} for name, one in make_job()["tables"].items()}
    sections = {"tables": tables, "link": LINKS, "workload": WORKLOAD} | changes
    return write_job(folder, data=frames, parts=3, **sections)


def engine_settings(**changes: Any) -> dict[str, Any]:
    return {"engine": {"scheduler": "synchronous", "seed": 7} | changes}


def measured(path: Path, folder: Path) -> None:
    """Measure a job, or finish the measure stage of its run."""
    run = begin_run(read_job(path), folder)
    for stage in ("plan", "measure"):
        run_stages(run, only=stage)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and the measured run of a job; the seed and the paths in the job determine the noise."""
    place = tmp_path_factory.mktemp("expected")
    measured(write_shop(place, **engine_settings()), place / "run")
    return place


@pytest.mark.slow
def test_bytes_are_equal_if_keys_are_read_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small part of the memory for other rows, so that a process keeps few parts."""
    monkeypatch.setattr("dpscale.runs.join_part.SHARE", 1 << 17)
    path = write_shop(folder, **engine_settings(memory="1GiB"))
    dp.run(path, folder / "run in parts")
    assert digests(folder / "run in parts") == digests(folder / "run")
    run = begin_run(read_job(path), folder / "run in parts").joins["orders-persons-countries"]
    table = open_table(run, ["orders.month"], resolve(scheduler="synchronous"))
    assert len({one.part for one in table.partitions if isinstance(one, JoinedPartition)}) > 1


def test_bytes_are_equal_with_threads(folder: Path) -> None:
    dp.run(write_shop(folder, **engine_settings(scheduler="threads")), folder / "run threads")
    assert digests(folder / "run threads") == digests(folder / "run")


def test_interrupted_run_resumes_with_the_same_bytes_and_one_charge(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_shop(folder, **engine_settings())
    original = JoinedTable.measure

    def fail_after_pairs(self: JoinedTable, engine: Engine) -> None:
        original(self, engine)
        if "joins.ratings" in self.name:
            raise KeyboardInterrupt

    monkeypatch.setattr(JoinedTable, "measure", fail_after_pairs)
    run = begin_run(read_job(path), tmp_path / "interrupted")
    with pytest.raises(KeyboardInterrupt):
        run_stages(run)
    monkeypatch.setattr(JoinedTable, "measure", original)
    measured(path, tmp_path / "interrupted")
    assert digests(tmp_path / "interrupted") == digests(folder / "run")
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        [entry] = ledger.summary()["datasets"]["shop"]["releases"]  # both have the same id, because of the seed
    assert entry["state"] == "released"
    assert Cost.from_dict(run.manifest["privacy"]["cost"]).squared_mu <= 8


def test_changed_files_of_another_table_are_refused(tmp_path: Path) -> None:
    path = write_shop(tmp_path, **engine_settings())
    run = begin_run(read_job(path), tmp_path / "run")
    run_stages(run, only="plan")
    join = run.joins["orders-persons-countries"]
    assert {"persons", "countries"} <= {Path(file).parent.name for table in join.lookup_tables for file in table.files}
