"""Number of reads of each input of a run in one process."""

import builtins
import io
import os
from collections import Counter
from pathlib import Path

import pytest

import dpscale as dp
from dpscale.job import Job, TableJob
from dpscale.ledger import Ledger
from dpscale.mechanisms import matrix_mechanism
from dpscale.runs import manifest
from dpscale.runs.opening import open_part
from tests.running import begin_table, run_stages
from tests.runs.small import write_job

ONCE = ("job.toml", "domain.toml", "workload", "plan", "schedule")
OWN = {"name": "aim-grem"}


@pytest.fixture
def read_counts(monkeypatch):
    """Counter of file reads and of calls of the functions that build the objects of a run."""
    counts, real = Counter(), io.open

    def counting_open(file, mode="r", *arguments, **settings):
        if isinstance(file, (str, Path)) and "r" in mode and "+" not in mode:
            counts[Path(file).name] += 1
        return real(file, mode, *arguments, **settings)

    def count_calls(module, name, what):
        made = getattr(module, name)

        def call(*arguments, **settings):
            counts[what] += 1
            return made(*arguments, **settings)

        monkeypatch.setattr(module, name, call)

    monkeypatch.setattr(io, "open", counting_open)
    monkeypatch.setattr(builtins, "open", counting_open)
    count_calls(TableJob, "build_workload", "workload")
    count_calls(matrix_mechanism, "plan_draws", "schedule")
    count_calls(matrix_mechanism, "read_plan", "plan")
    count_calls(manifest, "read_manifest", "manifest")
    count_calls(Ledger, "open", "ledger")
    return counts


@pytest.mark.parametrize("mechanism", [{"name": "query-smasher"}, OWN], ids=["query-smasher", "aim-grem"])
def test_each_input_is_read_once(place, read_counts, mechanism, capsys):
    """The run's own files are read once; the user's job and domain files are read once more to create them."""
    path = write_job(place, mechanism=mechanism)
    read_counts.clear()
    release = dp.run(path, place / "run")
    release.marginal(("age", "sex"))
    with capsys.disabled():
        print(f"\n{mechanism['name']}:", {name: read_counts[name] for name in (*ONCE, "manifest", "ledger")})
    # the domain file is also hashed for the ledger
    assert all(read_counts[name] <= 1 + (name == "domain.toml") for name in ONCE), read_counts
    assert read_counts["manifest"] <= 10


def test_reopened_run_reads_from_disk(place, read_counts):
    """Opening a run again reuses nothing of an earlier opening."""
    dp.run(write_job(place), place / "run")
    first = open_part(place / "run").measurement_plan
    read_counts.clear()
    second = open_part(place / "run")
    assert second.measurement_plan is not first
    assert read_counts["job.toml"] == 2  # first for the kind of the job
    assert read_counts["domain.toml"] == read_counts["plan.json"] == 1


def test_manifest_change_by_other_process_is_seen(place):
    run, other = (begin_table(Job.read(write_job(place)), place / "run") for _ in range(2))
    assert run.manifest["release"] == other.manifest["release"]
    other.update(release="f" * 32)
    assert run.manifest["release"] == "f" * 32
    run.update(secret="made")
    assert other.manifest["secret"] == "made"


def test_manifest_is_read_again_under_lock(place, monkeypatch):
    """A network file system may serve cached file attributes for seconds; a finished release must not be started
    again.
    """
    path = write_job(place)
    run = begin_table(Job.read(path), place / "run")
    run_stages(run, only="plan")
    status = os.stat(run.path / "manifest.json")
    dp.run(path, place / "run")
    real = Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **how: status if self.name == "manifest.json" else real(self, **how))
    run_stages(run, only="measure")
    monkeypatch.undo()
    assert open_part(place / "run").states()["measure"] == "done"
