"""Every command works on a run of one table and on a run of several tables."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.ledger import Ledger
from tests.audit.small import write_selftest
from tests.links import small as shop
from tests.messages import refused
from tests.runs.small import table, write_job, write_table

FORMS = {"one table": ["data"], "several tables": ["persons", "orders"]}
SEEDED = {"synthesize": {"rows": 50}, "engine": {"scheduler": "synchronous", "seed": 3}}


def write(folder, form):
    """Write data and a job of one form; return the job file."""
    folder.mkdir(exist_ok=True)
    if form == "several tables":
        return shop.write_job(folder)
    write_table(folder / "data", table())
    return write_job(folder, **SEEDED)


@pytest.fixture(scope="module", params=FORMS)
def finished(request, tmp_path_factory):
    """Job, run directory and table names of a finished run."""
    folder = tmp_path_factory.mktemp("forms")
    job = write(folder, request.param)
    run_command("run", job, "--run-dir", folder / "run", "--quiet")
    return SimpleNamespace(job=job, run=folder / "run", tables=FORMS[request.param], folder=folder)


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of the run directory that a test may change."""
    return shutil.copytree(finished.run, tmp_path / "copy")


def run_command(*command, code=0):
    result = CliRunner().invoke(main, [str(word) for word in command], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def run_json(*command):
    return json.loads(run_command(*command, "--json").stdout.splitlines()[-1])


def list_charges(folder):
    """States of all releases on the ledger of a folder."""
    with Ledger.open(next(folder.glob("*.sqlite"))) as ledger:
        return [one["state"] for own in ledger.summary()["datasets"].values() for one in own["releases"]]


def test_status_lists_finished_stages(finished):
    status = run_json("job", "status", finished.run)
    assert set(status["states"].values()) == {"done"}
    assert list(status["states"]) == ["plan", "measure", "reconstruct", "synthesize", "report"]
    assert list(status.get("tables", {"data": None})) == finished.tables


def test_repeated_run_reads_and_spends_nothing(finished):
    again = run_json("run", finished.job, "--run-dir", finished.run, "--quiet")
    assert again["repeated"].endswith("nothing read, nothing spent")
    assert list_charges(finished.folder) == ["released"]


@pytest.mark.parametrize("stage", ["measure", "reconstruct", "synthesize", "report"])
def test_finished_stage_returns_at_once(finished, stage):
    before = (finished.run / "manifest.json").read_bytes()
    assert run_json("run", finished.run, "--only", stage, "--quiet")["state"] == "done"
    assert (finished.run / "manifest.json").read_bytes() == before


def test_stages_lists_table_of_stages(finished):
    listed = run_json("job", "stages", finished.run)["stages"]
    assert [one["name"] for one in listed] == ["plan", "measure", "reconstruct", "synthesize", "report"]
    assert [one["name"] for one in listed if one["spends"]] == ["measure"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", [[], ["--compare"]])
def test_plan_reports_expected_errors_of_each_table(finished, options):
    summary = run_json("plan", finished.job, *options, "--quiet")
    plans = summary.get("tables", {"data": summary})
    assert list(plans) == finished.tables
    assert all(one["queries"] for one in plans.values())
    assert all(bool(one["compared"]) == bool(options) for one in plans.values())
    text = run_command("plan", finished.job, *options, "--quiet").stdout
    assert text.count("queries:") == len(plans)


def test_publish_writes_each_table(finished, tmp_path):
    summary = run_json("publish", finished.run, "--out", tmp_path / "tables")
    assert list(summary["tables"]) == finished.tables
    assert all(one["sets"] for one in summary["tables"].values())


def test_model_writes_graphical_model_of_a_table(tmp_path):
    for form, tables in FORMS.items():
        folder = tmp_path / form.replace(" ", "-")
        folder.mkdir()
        if form == "one table":
            write_table(folder / "data", table())
            job = write_job(folder, **SEEDED | {"mechanism": {"name": "mst"}})
        else:
            content = shop.make_job()
            content["tables"]["persons"]["mechanism"] = "mst"
            job = shop.write_job(folder, content)
        run_command("run", job, "--run-dir", folder / "run", "--quiet")
        release = dp.Release.open(folder / "run")
        written = run_json("model", folder / "run", "--table", tables[0])
        assert Path(written["model"]) == release.tables[tables[0]].path / "model.bif"
        text = Path(written["model"]).read_text()
        assert all(f"variable {name} {{" in text for name in release.tables[tables[0]].domain.names)
        assert set(run_json("job", "status", folder / "run")["states"].values()) == {"done"}
        refused = run_command("model", folder / "run", "--table", "other", code=2).stderr
        assert f"--table: 'other'; expected {', '.join(tables)}" in refused
        if len(tables) > 1:
            assert "--table: not given; expected persons, orders" in run_command("model", folder / "run", code=2).stderr
            refused = run_command("model", folder / "run", "--table", "orders", code=2).stderr
            assert "maxent estimates" in refused
            assert "expected a graphical model" in refused


def test_report_is_written_again(copy):
    (copy / "report.html").unlink()
    run_command("run", copy, "--only", "report", "--quiet")
    assert (copy / "report.html").stat().st_size > 10_000


def test_steps_give_run_of_one_command(finished, tmp_path):
    """A scheduler calls the stages one by one; the release has the same measurements."""
    run_command("plan", finished.job, "--run-dir", tmp_path / "steps", "--quiet")
    for stage in ("measure", "reconstruct", "synthesize", "report"):
        run_command("run", tmp_path / "steps", "--only", stage, "--quiet")
    stepwise = {path.relative_to(tmp_path / "steps"): path.read_bytes()
                for path in (tmp_path / "steps").rglob("measurements/*.parquet")}  # fmt: skip
    assert stepwise
    assert all((finished.run / name).read_bytes() == content for name, content in stepwise.items())


def test_fresh_run_is_new_release_and_new_charge(tmp_path):
    for form in FORMS:
        folder = tmp_path / form.replace(" ", "-")
        job = write(folder, form)
        first = run_json("run", job, "--run-dir", folder / "run", "--quiet")
        second = run_json("run", job, "--run-dir", folder / "run", "--fresh", "--quiet")
        assert second["run_dir"] == str(folder / "run-2")
        assert second["release"] != first["release"]
        values = [{path.relative_to(folder / name): path.read_bytes() for path in (folder / name).rglob("*.parquet")
                   if path.parent.name == "measurements"} for name in ("run", "run-2")]  # fmt: skip
        assert values[0].keys() == values[1].keys()
        assert all(values[0][name] != values[1][name] for name in values[0])  # with a seed as well
        assert list_charges(folder) == ["released", "released"]


def test_fresh_run_requires_finished_run(tmp_path):
    for form in FORMS:
        folder = tmp_path / form.replace(" ", "-")
        job = write(folder, form)
        run_command("plan", job, "--run-dir", folder / "run", "--quiet")
        refused = run_command("run", job, "--run-dir", folder / "run", "--fresh", "--quiet", code=2)
        assert "was started and is not measured" in refused.stderr


def test_end_reports_charge_once(finished, copy):
    ended = run_json("job", "end", copy)
    assert (ended["how"], ended["charged"]["state"]) == ("finished", "released")
    assert run_json("job", "end", copy) == ended
    assert not list(copy.rglob("secret.key"))


def test_abandoned_run_is_not_resumed(tmp_path):
    for form in FORMS:
        folder = tmp_path / form.replace(" ", "-")
        job = write(folder, form)
        run_command("plan", job, "--run-dir", folder / "run", "--quiet")
        assert run_json("job", "end", folder / "run")["how"] == "abandoned"
        refused = run_command("run", job, "--run-dir", folder / "run", "--quiet", code=2)
        assert "was ended on" in refused.stderr


def test_release_opens_every_run(finished):
    release = dp.Release.open(finished.run)
    assert list(release.tables) == finished.tables
    for name, own in release.tables.items():
        names = own.domain.names[:2]
        assert own.marginal(names).shape == own.domain.shape(names), name
        assert own.manifest["release"]
    rows = release.synthetic()
    assert all(len(one) for one in (rows.values() if isinstance(rows, dict) else [rows]))
    assert all(name in repr(release) for name in finished.tables)
    assert all(own.synthetic().shape[1] == (rows[name] if isinstance(rows, dict) else rows).shape[1]
               for name, own in release.tables.items())  # fmt: skip
    assert list(release.links) == ([] if len(finished.tables) == 1 else ["ratings"])
    assert all(len(link.synthetic()) for link in release.links.values())


def test_methods_of_one_table_are_refused_for_several(finished):
    release = dp.Release.open(finished.run)
    if len(finished.tables) == 1:
        assert release.tables["data"] is release
        assert release.total().estimate > 0
        return
    with refused(dp.JobError):
        release.marginal(("age",))


def test_evidence_bundle_is_written_and_checked(copy, finished, tmp_path):
    run_command("evidence", copy, "--selftest", write_selftest(tmp_path))
    checked = run_json("evidence", "--check", copy / "evidence")
    several = len(finished.tables) > 1
    links = ["links.homes", "links.orders", "links.ratings"] if several else []
    assert checked["parts"] == links + sorted(f"tables.{name}" if several else name for name in finished.tables)
    assert checked["sound"]
    assert not checked["private"], "the noise has a seed"
    text = run_command("evidence", "--check", copy / "evidence").stdout
    assert all(name in text for name in checked["parts"])


def test_changed_data_are_refused_by_name(tmp_path):
    for form, field in (("one table", "data.path"), ("several tables", "tables.orders.path")):
        folder = tmp_path / form.replace(" ", "-")
        job = write(folder, form)
        run_command("run", job, "--run-dir", folder / "run", "--quiet")
        file = sorted((folder / "data").rglob("*.parquet" if form == "one table" else "orders/*.parquet"))[0]
        file.write_bytes(file.read_bytes() + b" ")
        refused = run_command("run", job, "--run-dir", folder / "run", "--quiet", code=2)
        assert f"{field}: done on" in refused.stderr
        assert list_charges(folder) == ["released"]


def test_compare_reports_each_table(finished, tmp_path):
    pytest.importorskip("sklearn")
    folder = finished.folder / "data"
    data = [f"{name}={folder / name}" for name in finished.tables] if len(finished.tables) > 1 else [folder]
    printed = run_command("compare", finished.run, *data, "--out", tmp_path / "out", "--quiet", "--json").stdout
    reports = [json.loads(line)["report"] for line in printed.splitlines() if line.startswith("{")]
    assert len(reports) == len(finished.tables)
    assert all((tmp_path / "out") in Path(page).parents and Path(page).stat().st_size > 10_000 for page in reports)


def test_compare_refuses_unnamed_data_of_several_tables(finished, tmp_path):
    if len(finished.tables) == 1:
        return
    for data in ("data/persons", "nobody=data/persons", "persons="):
        refused = run_command("compare", finished.run, data, "--out", tmp_path / "out", code=2)
        assert "expected NAME=PATH, where NAME is persons, orders" in refused.stderr


# tests/pipelines/test_killed.py and tests/discovery/test_runs.py run the script on one table
@pytest.mark.slow
@pytest.mark.parametrize("finished", ["one table", "several tables"], indirect=True)
def test_plain_steps_run_job(finished, tmp_path):
    """`pipelines/steps.py` runs each stage in a process of its own."""
    script = Path(__file__).parents[2] / "pipelines" / "steps.py"
    subprocess.run([sys.executable, script, finished.job, tmp_path / "steps"], check=True, capture_output=True)
    assert set(run_json("job", "status", tmp_path / "steps")["states"].values()) == {"done"}


def test_edited_measurements_of_a_table_are_refused(copy, finished):
    """The hash of a stage of several tables covers the outputs of all tables, and each table checks its own."""
    manifest = json.loads((copy / "manifest.json").read_text())
    assert all(len(stage["sha256"]) == 64 for stage in manifest["stages"].values())
    file = sorted(copy.rglob("measurements/*.parquet"))[0]
    file.write_bytes(file.read_bytes() + b" ")
    shutil.rmtree(file.parents[1] / "answers")
    refused = run_command("run", copy, "--only", "reconstruct", "--quiet", code=2)
    assert "were changed" in refused.stderr
