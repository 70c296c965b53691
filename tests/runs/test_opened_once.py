"""A run is opened once: how often one process reads what it works by, printed and held."""

import builtins
import io
import os
from collections import Counter
from pathlib import Path

import pytest

import dpscale as dp
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.mechanisms import fixed_plan
from dpscale.runs import manifest
from dpscale.runs.run import Run
from dpscale.runs.stages.runner import run_stages
from tests.runs.small import write_job

ONCE = ("job.toml", "domain.toml", "workload", "plan", "schedule")
OWN = {"name": "aim-grem"}


@pytest.fixture
def counted(monkeypatch):
    """How often each file is opened for reading and each thing made, from here on."""
    counts, real = Counter(), io.open

    def opened(file, mode="r", *arguments, **settings):
        if isinstance(file, (str, Path)) and "r" in mode and "+" not in mode:
            counts[Path(file).name] += 1
        return real(file, mode, *arguments, **settings)

    def counting(module, name, what):
        made = getattr(module, name)

        def call(*arguments, **settings):
            counts[what] += 1
            return made(*arguments, **settings)

        monkeypatch.setattr(module, name, call)

    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr(builtins, "open", opened)
    counting(Job, "build_workload", "workload")
    counting(fixed_plan, "make_schedule", "schedule")
    counting(fixed_plan, "read_plan", "plan")
    counting(manifest, "read_manifest", "manifest")
    counting(Ledger, "open", "ledger")
    return counts


@pytest.mark.parametrize("mechanism", [{"name": "query-smasher"}, OWN], ids=["query-smasher", "aim-grem"])
def test_one_process_reads_everything_once(place, counted, mechanism, capsys):
    """Readings of the run's own files; the user's job and domain files are read once too, to make them."""
    path = write_job(place, mechanism=mechanism)
    counted.clear()
    release = dp.run(path, place / "run")
    release.marginal(("age", "sex"))
    with capsys.disabled():
        print(f"\n{mechanism['name']}:", {name: counted[name] for name in (*ONCE, "manifest", "ledger")})
    assert all(counted[name] <= 1 + (name == "domain.toml") for name in ONCE), counted  # it is hashed for the ledger
    assert counted["manifest"] <= 10


def test_a_later_process_reads_the_disk_afresh(place, counted):
    """Nothing is known of an earlier opening: what stands there now is what is read."""
    dp.run(write_job(place), place / "run")
    first = Run(place / "run").measurement_plan
    counted.clear()
    second = Run(place / "run")
    assert second.measurement_plan is not first
    assert counted["job.toml"] == counted["domain.toml"] == counted["plan.json"] == 1


def test_a_manifest_that_another_process_wrote_is_seen(place):
    run, other = (Run.create(Job.read(write_job(place)), place / "run") for _ in range(2))
    assert run.manifest["release"] == other.manifest["release"]
    other.update(release="f" * 32)
    assert run.manifest["release"] == "f" * 32
    run.update(secret="made")
    assert other.manifest["secret"] == "made"


def test_a_run_is_read_again_once_it_is_locked(place, monkeypatch):
    """A network disk tells file attributes from a cache, for seconds; a finished release must not be begun again."""
    path = write_job(place)
    run = Run.create(Job.read(path), place / "run")
    run_stages(run, only="plan")
    status = os.stat(run.path / "manifest.json")
    dp.run(path, place / "run")
    real = Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **how: status if self.name == "manifest.json" else real(self, **how))
    run_stages(run, only="measure")
    monkeypatch.undo()
    assert Run(place / "run").states()["measure"] == "done"
