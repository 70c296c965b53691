"""A distribution outside dpscale registers a mechanism, a reconstruction, a family and a format by entry points."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dpscale as dp
from tests.audit.small import frame, write, write_selftest
from tests.toys.lines import write_lines

ROOT = Path(__file__).parents[2]
MODULE = """
from dataclasses import replace
from dpscale.mechanisms.contract import NoOptions
from dpscale.mechanisms.matrix_mechanism import matrix_mechanism
from dpscale.mechanisms.identity import MECHANISM as IDENTITY
from tests.toys.cut_at_zero import RECONSTRUCTION as CUT
from tests.toys.lines import LinesFormat
from tests.toys.window import Window

def plan(problem, options, tools):
    return replace(IDENTITY.plan(problem, IDENTITY.Options(), tools).plan, mechanism="toy-identity")

MECHANISM = replace(matrix_mechanism("toy-identity", NoOptions, plan), version="7")
RECONSTRUCTION = replace(CUT, name="toy-cut")

class ToyWindow(Window):
    name = "toy-window"

FAMILY = ToyWindow()

class ToyLines(LinesFormat):
    name = "toy-lines"

FORMAT = ToyLines()
"""
ENTRY_POINTS = """
[dpscale.mechanisms]
toy-identity = toy_dpscale:MECHANISM
identity = toy_dpscale:MECHANISM
toy-broken = toy_nowhere:MECHANISM
toy-other-name = toy_dpscale:MECHANISM

[dpscale.reconstructions]
toy-cut = toy_dpscale:RECONSTRUCTION

[dpscale.families]
toy-window = toy_dpscale:FAMILY
prefix = toy_dpscale:FAMILY
toy-other-family = toy_dpscale:FAMILY

[dpscale.formats]
toy-lines = toy_dpscale:FORMAT
"""
JOB = {"workload": [{"family": "marginal", "degree": 1}], "mechanism": {"name": "toy-identity"},
       "reconstruct": {"method": "toy-cut"}}  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Directory of installed packages with the toy distribution, as pip writes it."""
    site = tmp_path_factory.mktemp("site")
    (site / "toy_dpscale.py").write_text(MODULE)
    info = site / "toy_dpscale-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-dpscale\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return site


def run_python(site, *arguments, code=0):
    """Run a process in which the toy distribution is installed; return its output and error."""
    environment = os.environ | {"PYTHONPATH": f"{site}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def run_dpscale(site, *arguments, code=0):
    return run_python(site, "-m", "dpscale", *arguments, code=code)


def test_foreign_mechanism_is_listed_in_schema_and_comparison(site, tmp_path):
    schema = json.loads(run_dpscale(site, "job", "schema")[0])
    names = {name: {one["properties"][key]["const"] for one in schema["$defs"][name]["oneOf"]}
             for name, key in (("MechanismTable", "name"), ("ReconstructTable", "method"))}  # fmt: skip
    assert "toy-identity" in names["MechanismTable"]
    assert "toy-cut" in names["ReconstructTable"]


@pytest.mark.slow
def test_foreign_family_is_in_schema_workload_and_errors(site, tmp_path):
    part = json.loads(run_dpscale(site, "job", "schema")[0])["$defs"]["WorkloadSection"]
    assert {"prefix", "toy-window", "predicates"} <= set(part["properties"]["family"]["enum"])
    assert part["properties"]["width"]["minimum"] == 1
    assert not part["additionalProperties"]
    code = (
        "import dpscale as dp; w = dp.Workload(dp.Domain({'a': 6})).add('toy-window', degree=1, width=2); "
        "own = w.query_count; print(own, dp.plan(w).error > 0, w.add('prefix', degree=1).query_count - own)"
    )
    assert run_python(site, "-c", code)[0].split() == ["5", "True", "6"]
    for family, message in (("toy-windw", "did you mean 'toy-window'"),
                            ("toy-other-family", "which is not a plug-in with this name")):  # fmt: skip
        job = write(tmp_path, workload=[{"family": family, "degree": 1}])
        _, error = run_dpscale(site, "run", job, "--run-dir", tmp_path / "run", "--quiet", code=2)
        assert error.startswith("dpscale: workload.family: ")
        assert message in error


@pytest.mark.slow
def test_run_of_foreign_family_records_its_version(site, tmp_path):
    job = write(tmp_path, workload=[{"family": "toy-window", "degree": 1, "width": 2}])
    run = tmp_path / "run"
    run_dpscale(site, "run", job, "--run-dir", run, "--quiet")
    assert json.loads((run / "manifest.json").read_text())["versions"]["toy-dpscale"] == "1.2"
    assert (run / "answers/toy-window-1").exists()
    run_dpscale(site, "run", run, "--only", "report")
    run_dpscale(site, "evidence", run, "--selftest", write_selftest(tmp_path))
    run_dpscale(site, "evidence", "--check", run / "evidence")


@pytest.mark.slow
def test_run_of_foreign_format_records_its_version(site, tmp_path):
    data = json.loads(run_dpscale(site, "job", "schema")[0])["$defs"]["Data"]
    assert {"csv", "delta", "toy-lines"} <= set(data["properties"]["format"]["anyOf"][0]["enum"])
    job = write(tmp_path, data={"path": "data.toy-lines", "format": "toy-lines", "domain": "domain.toml"})
    write_lines(tmp_path / "data.toy-lines", frame())
    run = tmp_path / "run"
    run_dpscale(site, "run", job, "--run-dir", run, "--quiet")
    assert json.loads((run / "manifest.json").read_text())["versions"]["toy-dpscale"] == "1.2"
    run_dpscale(site, "evidence", run, "--selftest", write_selftest(tmp_path))
    run_dpscale(site, "evidence", "--check", run / "evidence")
    unnamed = write(tmp_path, "unnamed.toml", data={"path": "data.toy-lines", "domain": "domain.toml"})
    code = (f"import sys, dpscale\ntry: dpscale.run({str(unnamed)!r}, {str(tmp_path / 'other')!r})\n"
            "except dpscale.DataError: print('toy_dpscale' in sys.modules)")  # fmt: skip
    assert run_python(site, "-c", code)[0].split() == ["False"]


@pytest.fixture(scope="module")
def finished(site, tmp_path_factory):
    """Run directory of a job with both plug-ins."""
    folder = tmp_path_factory.mktemp("finished")
    run_dpscale(site, "run", write(folder, **JOB), "--run-dir", folder / "run", "--quiet")
    return folder / "run"


def test_run_records_distribution_and_version(site, finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["mechanism"] == {"name": "toy-identity", "version": "7"}
    assert manifest["versions"]["toy-dpscale"] == "1.2"
    run_dpscale(site, "evidence", run, "--selftest", write_selftest(tmp_path))
    run_dpscale(site, "evidence", "--check", run / "evidence")
    assert json.loads((run / "evidence/versions.json").read_text())["run"]["toy-dpscale"] == "1.2"


def test_core_charges_cost_of_foreign_plan(site, tmp_path):
    """The cost on the ledger is recomputed from the draws, as for a mechanism of dpscale with the same plan."""
    run_dpscale(site, "run", write(tmp_path, **JOB | {"reconstruct": {}}), "--run-dir", tmp_path / "run", "--quiet")
    charged = json.loads((tmp_path / "run/manifest.json").read_text())["privacy"]["cost"]
    (other := tmp_path / "other").mkdir()
    expected = dp.run(write(other, **JOB | {"mechanism": {"name": "identity"}, "reconstruct": {}}), other / "run")
    assert charged == expected.manifest["privacy"]["cost"]


def test_only_named_plugin_is_loaded(site, tmp_path):
    job = write(tmp_path, **JOB | {"mechanism": {"name": "identity"}, "reconstruct": {}})
    code = (f"import sys, dpscale; dpscale.run({str(job)!r}, {str(tmp_path / 'run')!r}); "
            "print('toy_dpscale' in sys.modules)")  # fmt: skip
    assert run_python(site, "-c", code)[0].splitlines()[-1] == "False"
    assert "toy-dpscale" not in json.loads((tmp_path / "run/manifest.json").read_text())["versions"]


@pytest.mark.parametrize(("name", "message"), [
    ("toy-broken", "of toy-dpscale 1.2, which fails to import (ModuleNotFoundError)"),
    ("toy-other-name", "of toy-dpscale 1.2, which is not a plug-in with this name"),
    ("toy-identitty", "toy-identity"),
])  # fmt: skip
def test_wrong_plugin_is_refused_in_one_sentence(site, tmp_path, name, message):
    job = write(tmp_path, **JOB | {"mechanism": {"name": name}})
    _, error = run_dpscale(site, "run", job, "--run-dir", tmp_path / "run", "--quiet", code=2)
    assert error.count("\n") == 1
    assert error.startswith("dpscale: mechanism.name: ")
    assert message in error
    assert not (tmp_path / "run").exists()


def test_missing_plugin_of_a_finished_run_is_named(finished, tmp_path):
    """Without the distribution, a finished run says which mechanism is missing."""
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "answers" / "index.parquet").unlink()
    _, error = run_dpscale(ROOT, "run", run, "--only", "reconstruct", code=2)
    assert "'toy-identity'" in error
