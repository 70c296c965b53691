"""`dpscale job end` finishes a measured run and abandons any other; its secret is gone, no noise is drawn again."""

import json
import threading

import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.cli import driver
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.measurement import measurement
from dpscale.runs import charge, run as runs, runner
from dpscale.runs.opening import open_part
from tests.audit.small import answers, measurements, write
from tests.messages import refused
from tests.running import begin_table, end, run_stages


def run_command(code, *arguments):
    """Run a command, check its exit code and return stderr (one line) on failure, stdout on success."""
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    assert code == 0 or (result.stderr.startswith("dpscale: ") and result.stderr.count("\n") == 1), result.stderr
    return result.stderr if code else result.stdout


def ledger_releases(job):
    path = job.parent / "ledger.sqlite"
    if not path.exists():
        return []
    with Ledger.open(path) as ledger:
        return [row for dataset in ledger.summary()["datasets"].values() for row in dataset["releases"]]


def interrupt_run(job, where, step):
    """Return a run interrupted before the charge, during measurement or before publishing."""
    run = begin_table(Job.read(job), where)
    with pytest.MonkeyPatch.context() as patch:
        home, name, after = {"uncharged": (charge, "charge", 0), "amid": (measurement, "write_values", 2),
                             "unpublished": (runner, "publish", 0)}[step]  # fmt: skip
        real, calls = getattr(home, name), []

        def interrupt(*arguments, **options):
            calls.append(0)
            if len(calls) > after:
                raise KeyboardInterrupt
            return real(*arguments, **options)

        patch.setattr(home, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_stages(run)
    return run


KINDS = [{"name": "residual-planner"}, {"name": "aim-grem"}]
PRIVACY = {"epsilon": 1.0, "delta": 1e-9, "dataset": "small"}


@pytest.mark.parametrize("mechanism", KINDS, ids=lambda one: one["name"])
@pytest.mark.parametrize("step", ["uncharged", "amid"])
def test_unmeasured_run_is_abandoned_and_cannot_resume(tmp_path, mechanism, step):
    job = write(tmp_path, mechanism=mechanism, privacy=PRIVACY, engine={"scheduler": "synchronous"})
    run = interrupt_run(job, tmp_path / "run", step)
    assert run.secret_path.exists()
    before = measurements(run.path)
    spoken = run_command(0, "job", "end", run.path)
    assert spoken.startswith("abandoned: ")
    assert ("nothing was spent" in spoken) == (step == "uncharged")
    assert ("the whole charge is spent (epsilon 1, delta 1e-09)" in spoken) == (step == "amid")
    assert not run.secret_path.exists()
    assert [row["state"] for row in ledger_releases(job)] == ["reserved"] * (step == "amid")
    stages = [["run", run.path, "--only", stage] for stage in ("measure", "reconstruct", "report")]
    for command in (*stages, ["run", run.path], ["run", job, "--run-dir", run.path]):
        caught = run_command(2, *command)
        assert f"{run.path} was ended on " in caught
        assert "--fresh" in caught
    with refused(dp.JobError):
        dp.Release.open(run.path)
    assert measurements(run.path) == before
    assert "ended: abandoned" in run_command(0, "job", "status", run.path)
    assert json.loads(run_command(0, "job", "status", run.path, "--json"))["ended"]["how"] == "abandoned"


def test_planned_run_is_abandoned_without_charge(tmp_path):
    job = write(tmp_path)
    run_command(0, "plan", job, "--run-dir", tmp_path / "run")
    assert run_command(0, "job", "end", tmp_path / "run") == "abandoned: nothing was spent\n"
    assert "was ended on" in run_command(2, "run", tmp_path / "run", "--only", "measure")
    assert ledger_releases(job) == []


@pytest.mark.parametrize("mechanism", KINDS, ids=lambda one: one["name"])
@pytest.mark.parametrize("data_missing", [False, True], ids=["data there", "data gone"])
def test_measured_run_is_finished_without_data(tmp_path, mechanism, data_missing):
    settings = {"mechanism": mechanism, "privacy": PRIVACY}
    expected = dp.run(write(tmp_path / "one", **settings), tmp_path / "one" / "run").path
    job = write(tmp_path / "two", **settings)
    run = interrupt_run(job, tmp_path / "two" / "run", "unpublished")
    assert run.states()["measure"] == "stopped"
    if data_missing:
        (tmp_path / "two" / "data").rename(tmp_path / "away")
    assert run_command(0, "job", "end", run.path).startswith("finished: the whole charge is spent")
    assert not run.secret_path.exists()
    assert [row["state"] for row in ledger_releases(job)] == ["released"]
    assert run.states()["measure"] == "done"
    run_command(0, "run", run.path, "--only", "reconstruct")
    run_command(0, "run", run.path, "--only", "report")
    assert len(answers(run.path)) == len(answers(expected))


def test_done_run_is_finished_and_can_be_reconstructed(tmp_path):
    job = write(tmp_path)
    run = dp.run(job, tmp_path / "run").path
    before = answers(run)
    assert run_command(0, "job", "end", run).startswith("finished: ")
    (run / "answers" / "index.parquet").unlink()
    run_command(0, "run", run, "--only", "reconstruct")
    assert answers(run) == before
    assert dp.Release.open(run).marginal(("a",)).shape == (4,)


def test_second_end_changes_nothing(tmp_path):
    job = write(tmp_path)
    run = interrupt_run(job, tmp_path / "run", "amid")
    first = json.loads(run_command(0, "job", "end", run.path, "--json"))
    before = (run.path / "manifest.json").read_bytes()
    assert json.loads(run_command(0, "job", "end", run.path, "--json")) == first
    assert (run.path / "manifest.json").read_bytes() == before
    assert first["charged"]["state"] == "reserved"


@pytest.mark.parametrize("killed", ["destroy_secret", "update"])
def test_killed_end_is_completed_by_next_end(tmp_path, monkeypatch, killed):
    """Once the manifest says that the run is ended, no stage runs, even while the secret still exists."""
    run = interrupt_run(write(tmp_path), tmp_path / "run", "amid")
    with monkeypatch.context() as patch:
        real, calls = run.run.update, []

        def update(**changes):
            calls.append(changes)
            if len(calls) > 1:
                raise KeyboardInterrupt
            real(**changes)

        def destroy(path):
            raise KeyboardInterrupt

        patch.setattr(run.run, "update", update) if killed == "update" else patch.setattr(runs, killed, destroy)
        with pytest.raises(KeyboardInterrupt):
            end(run)
    assert "was ended on" in run_command(2, "run", run.path, "--only", "measure")
    assert run_command(0, "job", "end", run.path).startswith("abandoned")
    assert not run.secret_path.exists()
    assert open_part(run.path).manifest["secret"] == "destroyed"


def test_running_run_is_not_ended(tmp_path):
    run = interrupt_run(write(tmp_path), tmp_path / "run", "amid")
    with run.run.locked():
        assert "another process works in" in run_command(75, "job", "end", run.path)
    driver.change(
        run.path, lambda _: True, submission="s", driver="d", state="running", exit_code=None, error=None,
                 working=None)  # fmt: skip
    assert "a driver on the cluster works in" in run_command(75, "job", "end", run.path)
    assert run.secret_path.exists()
    assert run.ended is None


def test_run_without_end_mark_cannot_draw_without_secret(tmp_path):
    """Deleting the end mark from the manifest by hand does not bring the secret back."""
    run = interrupt_run(write(tmp_path), tmp_path / "run", "amid")
    run_command(0, "job", "end", run.path)
    path = run.path / "manifest.json"
    manifest = {key: value for key, value in json.loads(path.read_text()).items() if key != "ended"}
    path.write_text(json.dumps(manifest))
    assert "the secret of the release is lost" in run_command(2, "run", run.path, "--only", "measure")


def test_end_destroys_secret_without_ledger(tmp_path):
    job = write(tmp_path)
    run = interrupt_run(job, tmp_path / "run", "amid")
    for path in tmp_path.glob("ledger.sqlite*"):
        path.unlink()
    assert "the ledger is not available" in run_command(0, "job", "end", run.path)
    assert not run.secret_path.exists()


def link_ledger(place):
    """Add a hard link to the ledger, which makes it unusable, and return a function that removes the link."""
    (place / "second.sqlite").hardlink_to(place / "ledger.sqlite")
    return lambda: (place / "second.sqlite").unlink()


def move_ledger(place):
    """Move the ledger files away and return a function that moves them back."""
    (place / "away").mkdir()
    for path in place.glob("ledger.sqlite*"):
        path.rename(place / "away" / path.name)
    return lambda: [path.rename(place / path.name) for path in (place / "away").iterdir()]


@pytest.mark.parametrize("lose", [move_ledger, link_ledger])
@pytest.mark.parametrize("step", ["amid", "unpublished"])
def test_end_without_ledger_reports_charge_when_ledger_is_back(tmp_path, lose, step):
    job = write(tmp_path)
    run = interrupt_run(job, tmp_path / "run", step)
    back = lose(tmp_path)
    how = {"amid": "abandoned", "unpublished": "finished"}[step]
    for _ in range(2):
        assert run_command(0, "job", "end", run.path).startswith(
            f"{how}: the ledger is not available to state the spent budget (privacy.ledger"
        )
        assert not run.secret_path.exists()
        assert (open_part(run.path).ended["how"], open_part(run.path).manifest["secret"]) == (how, "destroyed")
    back()
    assert run_command(0, "job", "end", run.path).startswith(f"{how}: the whole charge is spent")
    assert [row["state"] for row in ledger_releases(job)] == ["reserved" if step == "amid" else "released"]
    if step == "unpublished":
        run_command(0, "run", run.path, "--only", "reconstruct")


def test_end_of_older_run_without_ledger_name_reports_charge(tmp_path):
    run = interrupt_run(write(tmp_path), tmp_path / "run", "amid")
    path = run.path / "manifest.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "ledger"}))
    assert "the whole charge is spent" in run_command(0, "job", "end", run.path)


def test_concurrent_ends_end_run_once(tmp_path):
    run = interrupt_run(write(tmp_path), tmp_path / "run", "amid")
    found = []
    threads = [threading.Thread(target=lambda: found.append(CliRunner().invoke(main, ["job", "end", str(run.path)])))
               for _ in range(2)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.exit_code for one in found} <= {0, 75}
    assert not run.secret_path.exists()
