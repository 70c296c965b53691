"""The generated hospital: one job with answers across links and rows, and the same job stage by stage."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import dpscale as dp
from dpscale.job import Job
from tests.links.shapes import assert_consistent
from tests.links.sql import load, read_tables

PIPELINES = Path(__file__).parents[2] / "pipelines"
PATIENTS = 300


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, pd.DataFrame]]]:
    """The job beside the data of a few hundred patients, and the tables."""
    place = tmp_path_factory.mktemp("hospital")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PIPELINES)
        tables = importlib.import_module("hospital").prepare(place, PATIENTS)
        importlib.import_module("databases").write(place / "dpscale-hospital", tables)
        shutil.copytree(PIPELINES / "hospital", place / "pipelines/hospital")
        yield place / "pipelines/hospital/job.toml", {name: pd.DataFrame(rows) for name, rows in tables.items()}


@pytest.fixture(scope="module")
def release(hospital: tuple[Path, dict[str, pd.DataFrame]]) -> dp.Release:
    job = hospital[0]
    return dp.run(job, job.parent / "run", scheduler="synchronous")


def test_rows_have_keys_and_load(hospital: tuple[Path, Any], release: dp.Release) -> None:
    job = Job.read(hospital[0])
    assert_consistent(job, {name: frame.compute() for name, frame in release.synthetic().items()})
    load(job, read_tables(release.path / "synthetic"))


def test_encounters_are_in_order(release: dp.Release) -> None:
    made = release.synthetic()["encounters"].compute()
    assert made.groupby("patient", sort=False).month.apply(lambda one: one.is_monotonic_increasing).all()


def test_answers_across_links_equal_data_up_to_noise(hospital: tuple[Path, Any], release: dp.Release) -> None:
    """Every count of diagnoses by specialty is within 5 standard errors, and by what the bounds cut."""
    tables = hospital[1]
    encounters = tables["encounters"].sort_values("encounter")
    bounded = encounters[encounters.groupby("patient").cumcount() < 6]
    cut = 3 * (len(encounters) - len(bounded))
    joined = tables["diagnoses"].merge(encounters, on="encounter").merge(tables["doctors"], on="doctor")
    found = release.table(("doctors.specialty", "diagnoses.chapter"))
    assert len(found) == 16
    for row in found.to_dict("records"):
        specialty, chapter = row["doctors.specialty"], row["diagnoses.chapter"]
        truth = ((joined.specialty == specialty) & (joined.code.str[0] == chapter)).sum()
        assert row["estimate"] - 5 * row["std_error"] <= truth <= row["estimate"] + 5 * row["std_error"] + cut


def test_doctors_are_a_side_table(release: dp.Release) -> None:
    page = (release.path / "report.html").read_text()
    assert "Rows of doctors belong to no row of patients" in page
    assert Job.read(release.path / "job.toml", stored=True).privacy.unit == "patients"


@pytest.mark.slow
def test_stages_run_as_processes(hospital: tuple[Path, Any], tmp_path: Path) -> None:
    """Each stage is a process, as it is a task of the DAG in airflow_dag.py; test_killed.py has a job of one table."""
    run = tmp_path / "run"
    done = subprocess.run([sys.executable, PIPELINES / "steps.py", hospital[0], run], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "manifest.json").read_text())["stages"]["report"]["state"] == "done"
    assert dp.Release.open(run).synthetic()["encounters"].compute().doctor.str.startswith("doctors-").all()
