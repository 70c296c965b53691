"""`dpscale end`: a measured run is finished, any other abandoned; its secret is gone and nothing is drawn again."""

import json
import threading

import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.cli import driver_status
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.measurement import measurement
from dpscale.runs.run import Run
from dpscale.runs.stages import measure
from dpscale.runs.stages.runner import end, run_stages
from tests.audit.small import answers, measurements, write


def told(code, *arguments):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    assert code == 0 or (result.stderr.startswith("dpscale: ") and result.stderr.count("\n") == 1), result.stderr
    return result.stderr if code else result.stdout


def releases(job):
    path = job.parent / "ledger.sqlite"
    if not path.exists():
        return []
    with Ledger.open(path) as ledger:
        return [row for dataset in ledger.summary()["datasets"].values() for row in dataset["releases"]]


def stopped(job, where, step):
    """A run whose process was interrupted: before any draw, amid them, or before it was published."""
    run = Run.create(Job.read(job), where)
    with pytest.MonkeyPatch.context() as patch:
        home, name, after = {"uncharged": (measure, "charge", 0), "amid": (measurement, "write_values", 2),
                             "unpublished": (measure, "publish", 0)}[step]  # fmt: skip
        real, calls = getattr(home, name), []

        def interrupted(*arguments, **options):
            calls.append(0)
            if len(calls) > after:
                raise KeyboardInterrupt
            return real(*arguments, **options)

        patch.setattr(home, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_stages(run)
    return run


KINDS = [{"name": "residual-planner"}, {"name": "aim-grem"}]
PRIVACY = {"epsilon": 1.0, "delta": 1e-9, "dataset": "small"}


@pytest.mark.parametrize("mechanism", KINDS, ids=lambda one: one["name"])
@pytest.mark.parametrize("step", ["uncharged", "amid"])
def test_what_is_not_measured_is_abandoned_and_cannot_go_on(tmp_path, mechanism, step):
    job = write(tmp_path, mechanism=mechanism, privacy=PRIVACY, engine={"scheduler": "synchronous"})
    run = stopped(job, tmp_path / "run", step)
    assert run.secret_path.exists()
    before = measurements(run.path)
    spoken = told(0, "end", run.path)
    assert spoken.startswith("abandoned: ")
    assert ("nothing was spent" in spoken) == (step == "uncharged")
    assert ("the whole charge is spent (epsilon 1, delta 1e-09)" in spoken) == (step == "amid")
    assert not run.secret_path.exists()
    assert [row["state"] for row in releases(job)] == ["reserved"] * (step == "amid")
    for command in (["measure", run.path], ["reconstruct", run.path], ["report", run.path],
                    ["run", job, "--run-dir", run.path]):  # fmt: skip
        refused = told(2, *command)
        assert f"{run.path} was ended on " in refused
        assert "--fresh" in refused
    with pytest.raises(dp.JobError, match="was ended on"):
        dp.Release.open(run.path)
    assert measurements(run.path) == before
    assert "ended: abandoned" in told(0, "status", run.path)
    assert json.loads(told(0, "status", run.path, "--json"))["ended"]["how"] == "abandoned"


def test_a_planned_run_is_abandoned_for_nothing(tmp_path):
    job = write(tmp_path)
    told(0, "plan", job, "--run-dir", tmp_path / "run")
    assert told(0, "end", tmp_path / "run") == "abandoned: nothing was spent\n"
    assert "was ended on" in told(2, "measure", tmp_path / "run")
    assert releases(job) == []


@pytest.mark.parametrize("mechanism", KINDS, ids=lambda one: one["name"])
@pytest.mark.parametrize("gone", [False, True], ids=["data there", "data gone"])
def test_what_is_measured_and_not_published_is_finished_without_the_data(tmp_path, mechanism, gone):
    settings = {"mechanism": mechanism, "privacy": PRIVACY}
    expected = dp.run(write(tmp_path / "one", **settings), tmp_path / "one" / "run").path
    job = write(tmp_path / "two", **settings)
    run = stopped(job, tmp_path / "two" / "run", "unpublished")
    assert run.states()["measure"] == "stopped"
    if gone:
        (tmp_path / "two" / "data").rename(tmp_path / "away")
    assert told(0, "end", run.path).startswith("finished: the whole charge is spent")
    assert not run.secret_path.exists()
    assert [row["state"] for row in releases(job)] == ["released"]
    assert run.states()["measure"] == "done"
    told(0, "reconstruct", run.path)
    told(0, "report", run.path)
    assert len(answers(run.path)) == len(answers(expected))


def test_a_done_run_is_finished_and_answers_can_still_be_made(tmp_path):
    job = write(tmp_path)
    run = dp.run(job, tmp_path / "run").path
    before = answers(run)
    assert told(0, "end", run).startswith("finished: ")
    (run / "answers" / "index.parquet").unlink()
    told(0, "reconstruct", run)
    assert answers(run) == before
    assert dp.Release.open(run).marginal(("a",)).shape == (4,)


def test_to_end_it_again_changes_nothing(tmp_path):
    job = write(tmp_path)
    run = stopped(job, tmp_path / "run", "amid")
    first = json.loads(told(0, "end", run.path, "--json"))
    kept = (run.path / "manifest.json").read_bytes()
    assert json.loads(told(0, "end", run.path, "--json")) == first
    assert (run.path / "manifest.json").read_bytes() == kept
    assert first["charged"]["state"] == "reserved"


@pytest.mark.parametrize("killed", ["destroy_secret", "update"])
def test_an_end_that_was_killed_is_made_good_by_the_next(tmp_path, monkeypatch, killed):
    """After the word that it is ended nothing goes on, though the secret is there still."""
    from dpscale.runs.stages import runner

    run = stopped(write(tmp_path), tmp_path / "run", "amid")
    with monkeypatch.context() as patch:
        real, calls = run.update, []

        def update(**changes):
            calls.append(changes)
            if len(calls) > 1:
                raise KeyboardInterrupt
            real(**changes)

        def destroy(path):
            raise KeyboardInterrupt

        patch.setattr(run, "update", update) if killed == "update" else patch.setattr(runner, killed, destroy)
        with pytest.raises(KeyboardInterrupt):
            end(run)
    assert "was ended on" in told(2, "measure", run.path)
    assert told(0, "end", run.path).startswith("abandoned")
    assert not run.secret_path.exists()
    assert Run(run.path).manifest["secret"] == "destroyed"


def test_a_run_at_work_is_not_ended(tmp_path):
    run = stopped(write(tmp_path), tmp_path / "run", "amid")
    with run.locked():
        assert "another process works in" in told(75, "end", run.path)
    driver_status.change(
        run.path, lambda _: True, submission="s", driver="d", state="running", exit_code=None, error=None,
                 working=None)  # fmt: skip
    assert "a driver on the cluster works in" in told(75, "end", run.path)
    assert run.secret_path.exists()
    assert run.ended is None


def test_a_copy_that_met_the_end_elsewhere_has_no_other_secret_to_draw_with(tmp_path):
    """Taken out by hand, the word of the end does not bring the secret back."""
    run = stopped(write(tmp_path), tmp_path / "run", "amid")
    told(0, "end", run.path)
    path = run.path / "manifest.json"
    manifest = {key: value for key, value in json.loads(path.read_text()).items() if key != "ended"}
    path.write_text(json.dumps(manifest))
    assert "the secret of the release is lost" in told(2, "measure", run.path)


def test_where_the_ledger_is_gone_the_secret_is_destroyed_all_the_same(tmp_path):
    job = write(tmp_path)
    run = stopped(job, tmp_path / "run", "amid")
    for path in tmp_path.glob("ledger.sqlite*"):
        path.unlink()
    assert "the ledger is not available" in told(0, "end", run.path)
    assert not run.secret_path.exists()


def linked(place):
    (place / "second.sqlite").hardlink_to(place / "ledger.sqlite")
    return lambda: (place / "second.sqlite").unlink()


def away(place):
    (place / "away").mkdir()
    for path in place.glob("ledger.sqlite*"):
        path.rename(place / "away" / path.name)
    return lambda: [path.rename(place / path.name) for path in (place / "away").iterdir()]


@pytest.mark.parametrize("lose", [away, linked])
@pytest.mark.parametrize("step", ["amid", "unpublished"])
def test_no_ledger_is_needed_to_destroy_a_secret_and_it_is_told_when_it_is_back(tmp_path, lose, step):
    job = write(tmp_path)
    run = stopped(job, tmp_path / "run", step)
    back = lose(tmp_path)
    how = {"amid": "abandoned", "unpublished": "finished"}[step]
    for _ in range(2):
        assert told(0, "end", run.path).startswith(
            f"{how}: the ledger is not available to state the spent budget (privacy.ledger"
        )
        assert not run.secret_path.exists()
        assert (Run(run.path).ended["how"], Run(run.path).manifest["secret"]) == (how, "destroyed")
    back()
    assert told(0, "end", run.path).startswith(f"{how}: the whole charge is spent")
    assert [row["state"] for row in releases(job)] == ["reserved" if step == "amid" else "released"]
    if step == "unpublished":
        told(0, "reconstruct", run.path)


def test_of_an_older_run_that_kept_no_name_of_its_ledger_the_charge_is_told_as_well(tmp_path):
    run = stopped(write(tmp_path), tmp_path / "run", "amid")
    path = run.path / "manifest.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "ledger"}))
    assert "the whole charge is spent" in told(0, "end", run.path)


def test_two_at_once_end_it_once(tmp_path):
    run = stopped(write(tmp_path), tmp_path / "run", "amid")
    found = []
    threads = [threading.Thread(target=lambda: found.append(CliRunner().invoke(main, ["end", str(run.path)])))
               for _ in range(2)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.exit_code for one in found} <= {0, 75}
    assert not run.secret_path.exists()
