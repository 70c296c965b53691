"""A job is charged once, whatever happens to times, names, folders and run directories; `--fresh` is a new release."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import dpscale as dp
from dpscale.base.errors import BudgetError, DataError
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.ledger.rows import JobEntry
from dpscale.runs.opening import begin_run, read_job
from dpscale.runs.run import Run
from dpscale.runs.runner import check_repeat
from dpscale.runs.table import OneTable
from tests.ledger.test_book import gaussian
from tests.messages import refused
from tests.running import begin_table

JOB = """
[data]
path = "data"
domain = "domain.toml"
[privacy]
epsilon = 1.0
delta = 1e-9
[[workload]]
family = "marginal"
degree = 2
[engine]
scheduler = "synchronous"
"""
DOMAIN = """
[attributes.a]
kind = "coded"
size = 3
[attributes.b]
kind = "coded"
size = 2
"""
DIGEST = "ab" * 32


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Folder of a job with four data files, whose run is finished."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    for part in range(4):
        lines = [f"{(part + row) % 3},{row % 2}" for row in range(200)]
        (folder / f"data/part-{part}.csv").write_text("\n".join(["a,b", *lines]) + "\n")
    (folder / "domain.toml").write_text(DOMAIN)
    (folder / "job.toml").write_text(JOB)
    dp.run(folder / "job.toml", folder / "runs/first")
    return folder


def spent(project: Path) -> float:
    with Ledger.open(project / "ledger.sqlite", create=False) as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    return round(dataset["spent"]["epsilon"], 6)


def move(project: Path) -> Path:
    return project.rename(project.with_name("moved"))


def touch(project: Path) -> Path:
    for path in (project / "data").iterdir():
        os.utime(path, (1, 1))
    return project


def replace_by_copies(project: Path) -> Path:
    shutil.copytree(project / "data", project / "copy")
    shutil.rmtree(project / "data")
    (project / "copy").rename(project / "data")
    return project


def rename_files(project: Path) -> Path:
    for path in (project / "data").iterdir():
        path.rename(path.with_name(f"new-{path.name}"))
    return touch(project)


def change_line(project: Path) -> Path:
    path = project / "data/part-2.csv"
    text = path.read_text()
    path.write_text(text.replace("2,0", "1,0", 1))
    return project


def copy_run(project: Path) -> Path:
    shutil.copytree(project / "runs", project / "copies")
    return project


def remove_run(project: Path) -> Path:
    shutil.rmtree(project / "runs")
    return project


def leave(project: Path) -> Path:
    return project


ROWS: dict[str, tuple[Callable[[Path], Path], str, str | None]] = {
    "touch": (touch, "runs/first", None),
    "identical copies of the files": (replace_by_copies, "runs/first", None),
    "files renamed": (rename_files, "runs/first", None),
    "one line changed": (change_line, "runs/first", "1 of 4 files changed: part-2.csv"),
    "project moved": (move, "runs/first", None),
    "run copied": (copy_run, "copies/first", None),
    "run removed": (remove_run, "runs/first", "charged on .* in .*runs/first; nothing read or spent"),
    "another run directory": (leave, "runs/other", "charged on .* in .*runs/first; nothing read or spent"),
    "moved, and run removed": (lambda one: remove_run(move(one)), "runs/first", "charged on .* in .*runs/first"),
    "the same again": (leave, "runs/first", None),
}


@pytest.mark.parametrize("row", ROWS)
def test_job_is_charged_once(project: Path, row: str) -> None:
    """The spent epsilon is 1 in each row: the run is opened again, or refused with nothing spent."""
    change, run_dir, refusal = ROWS[row]
    answers = dp.Release.open(project / "runs/first").marginal(["a", "b"])
    project = change(project)
    if refusal is None:
        assert (dp.run(project / "job.toml", project / run_dir).marginal(["a", "b"]) == answers).all()
    else:
        with refused((BudgetError, DataError)) as caught:
            dp.run(project / "job.toml", project / run_dir)
        assert "fresh" in str(caught.value)
        assert not (project / "runs/other").exists()
    assert spent(project) == 1


def test_fresh_release_is_charged_again(project: Path) -> None:
    """The other direction: with `fresh` the same rows spend a second time."""
    dp.run(project / "job.toml", project / "runs/other", fresh=True)
    assert spent(project) > 1


def test_moved_project_is_found_in_a_ledger_outside(tmp_path: Path, project: Path) -> None:
    """The ledger stays; the files that it names no longer exist, and the job is the same."""
    outside = tmp_path / "outside.sqlite"
    (project / "job.toml").write_text(JOB.replace("delta = 1e-9", f'delta = 1e-9\nledger = "{outside}"'))
    dp.run(project / "job.toml", project / "runs/second")
    moved = remove_run(move(project))
    with refused(BudgetError):
        dp.run(moved / "job.toml", moved / "runs/second")


def test_equal_projects_on_one_ledger_are_two_datasets(tmp_path: Path) -> None:
    """Two folders with the same job and other files are not taken for one."""
    for name in ("north", "south"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "data").mkdir()
        (folder / "data/rows.csv").write_text("a,b\n" + "1,1\n" * 50)
        (folder / "domain.toml").write_text(DOMAIN)
        (folder / "job.toml").write_text(JOB.replace("delta = 1e-9", 'delta = 1e-9\nledger = "../ledger.sqlite"'))
        dp.run(folder / "job.toml", folder / "run")
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert sorted(ledger.summary()["datasets"]) == ["./north/data", "./south/data"]


def test_identity_has_no_absolute_path(project: Path) -> None:
    """The same job in two folders, one with absolute paths below its own, has one digest; another path has another."""
    first = read_job(project / "job.toml")
    twin = project.with_name("twin")
    shutil.copytree(project, twin)
    (twin / "job.toml").write_text(JOB.replace('"data"', f'"{twin / "data"}"'))
    other = project.with_name("other")
    shutil.copytree(project, other)
    (other / "data").rename(other / "rows")
    (other / "job.toml").write_text(JOB.replace('"data"', '"rows"'))
    digests = [begin_run(read_job(one / "job.toml"), one / "runs/new", True, False).manifest["job_sha256"]
               for one in (project, twin, other)]  # fmt: skip
    assert digests[0] == digests[1] != digests[2]
    assert first.places[str(project / "data")] == "data"
    assert Job.read(other / "job.toml").places[str(other / "rows")] == "rows"


def test_fingerprint_of_another_user_is_one_sentence(project: Path, tmp_path: Path, monkeypatch) -> None:
    """The key of the fingerprint is that of the user who measured; no new release is advised."""
    touch(project)
    monkeypatch.setenv("DPSCALE_STATE", str(tmp_path / "state of another user"))
    with refused(DataError) as caught:
        dp.run(project / "job.toml", project / "runs/first")
    assert "fresh" not in str(caught.value)
    assert spent(project) == 1


def test_changed_data_of_an_uncharged_run_name_no_fresh_release(project: Path, monkeypatch) -> None:
    """The run stops before its charge, and the files change meanwhile."""
    from dpscale.base.errors import TransientError
    from dpscale.runs.stages import measure

    job, folder = project / "job.toml", project / "runs/stopped"
    job.write_text(JOB.replace("epsilon = 1.0", "epsilon = 0.5"))

    def stop(*_: object) -> None:
        raise TransientError("memory", "full", "", "")

    with monkeypatch.context() as patched:
        patched.setattr(measure, "measure", stop)
        with pytest.raises(TransientError):
            dp.run(job, folder)
    change_line(project)
    with refused(DataError) as caught:
        dp.run(job, folder)
    assert "charged nothing" in str(caught.value)
    assert "--fresh" not in str(caught.value)


def test_stopped_run_resumes_with_renamed_files(project: Path, monkeypatch) -> None:
    from dpscale.base.errors import TransientError
    from dpscale.runs import runner

    job, folder = project / "job.toml", project / "runs/stopped"
    job.write_text(JOB.replace("epsilon = 1.0", "epsilon = 0.5"))
    with monkeypatch.context() as patched:
        patched.setattr(runner, "publish", lambda *_: (_ for _ in ()).throw(TransientError("disk", "full", "", "")))
        with pytest.raises(TransientError):
            dp.run(job, folder)
    rename_files(project)
    assert dp.run(job, folder).total().estimate > 0


def test_run_of_an_earlier_version_is_opened_again(project: Path, monkeypatch) -> None:
    """Its digest has absolute paths, and its name on the ledger is the path."""
    from dpscale.job.job import job_digest
    from dpscale.runs.opening import default_base

    old = project / "runs/first"
    manifest = json.loads((old / "manifest.json").read_text())
    job = Job.read(project / "job.toml")
    manifest = {name: value for name, value in manifest.items() if name not in ("job_version", "folder", "from_run",
                                                                                "places")}  # fmt: skip
    (old / "manifest.json").write_text(
        json.dumps(manifest | {"job_sha256": job_digest(job, job.table.read_domain(), 1)})
    )
    monkeypatch.chdir(project)
    assert check_repeat(begin_table(job, old).run) is not None
    old.rename(project / "runs" / job_digest(job, job.table.read_domain(), 1)[:12])
    assert default_base(OneTable.prepare(job).digests).name == job_digest(job, job.table.read_domain(), 1)[:12]


def test_name_of_an_earlier_version_is_taken_over(project: Path) -> None:
    """A ledger that has the path as a name, with its cap, has the next release under it."""
    place, path = project / "old.sqlite", os.path.realpath(project / "data")
    with Ledger.open(place) as ledger:
        ledger.set_cap(path, 1.2, 1e-9)
        ledger.charge(path, "old", gaussian(0.01), DIGEST, 0.5, 1e-9)
    (project / "job.toml").write_text(JOB.replace("delta = 1e-9", 'delta = 1e-9\nledger = "old.sqlite"'))
    dp.run(project / "job.toml", project / "runs/second")
    with Ledger.open(place) as ledger:
        [(name, one)] = ledger.summary()["datasets"].items()
    assert name == path
    assert len(one["releases"]) == 2
    (project / "job.toml").write_text(JOB.replace("delta = 1e-9", 'delta = 1e-9\nledger = "old.sqlite"')
                                      .replace("epsilon = 1.0", "epsilon = 0.9"))  # fmt: skip
    with refused(BudgetError):
        dp.run(project / "job.toml", project / "runs/third")


def test_cap_on_a_folder_holds_for_a_default_name_below(project: Path) -> None:
    place, path = project / "old.sqlite", os.path.realpath(project)
    with Ledger.open(place) as ledger:
        ledger.set_cap(path, 1.2, 1e-9)
    (project / "job.toml").write_text(JOB.replace("delta = 1e-9", 'delta = 1e-9\nledger = "old.sqlite"'))
    with refused(BudgetError):
        dp.run(project / "job.toml", project / "runs/second")


def test_two_jobs_name_the_same_files_alike(project: Path) -> None:
    """A job in another folder that shares the ledger spends the budget of the same dataset."""
    (project / "jobs").mkdir()
    text = JOB.replace('"data"', '"../data"').replace('"domain.toml"', '"../domain.toml"')
    (project / "jobs/job.toml").write_text(text.replace("delta = 1e-9", 'delta = 1e-9\nledger = "../ledger.sqlite"'))
    dp.run(project / "jobs/job.toml", project / "jobs/run")
    assert spent(project) > 1


def test_job_of_a_release_is_in_the_hash_chain(tmp_path: Path) -> None:
    """Another digest, run directory or path on the ledger breaks the chain."""
    import sqlite3

    place = tmp_path / "ledger.sqlite"
    with Ledger.open(place) as ledger:
        entry = JobEntry("2:abc", "one", "/runs/one", "/data")
        ledger.charge("./data", "one", gaussian(0.01), DIGEST, job=entry)
        ledger.verify()
        with refused(BudgetError):
            ledger.charge("./data", "two", gaussian(0.01), DIGEST, job=JobEntry("2:abc", "two", "/runs/two", "/data"))
        ledger.charge("./data", "one-units", gaussian(0.01), DIGEST, job=entry)  # a part of the same run
    for column in ("job", "run_dir", "files"):
        edited = tmp_path / f"{column}.sqlite"
        shutil.copy(place, edited)
        with sqlite3.connect(edited) as db:
            [trigger] = db.execute("SELECT sql FROM sqlite_master WHERE name = 'protections_update'").fetchone()
            db.execute("DROP TRIGGER protections_update")
            db.execute(f"UPDATE protections SET {column} = 'other' WHERE release = 'one'")
            db.execute(trigger)
        with Ledger.open(edited) as ledger, refused(BudgetError):
            ledger.verify()


def test_run_directory_alone_opens_elsewhere(project: Path, tmp_path: Path) -> None:
    """A copy opens where the job and its files are not."""
    answers = dp.Release.open(project / "runs/first").marginal(["a", "b"])
    shutil.copytree(project / "runs/first", tmp_path / "elsewhere")
    shutil.rmtree(project)
    assert (dp.Release.open(tmp_path / "elsewhere").marginal(["a", "b"]) == answers).all()


def test_run_of_several_tables_is_moved(tmp_path: Path) -> None:
    """The domain files are in the run directory, and the parts find the files of a moved project."""
    from tests.links.small import write_job

    (tmp_path / "project").mkdir()
    write_job(tmp_path / "project")
    moved = tmp_path / "moved"
    release = dp.run(tmp_path / "project/job.toml", tmp_path / "project/run")
    name = next(iter(release.tables))
    expected = release.tables[name].total().estimate
    (tmp_path / "project").rename(moved)
    again = dp.run(moved / "job.toml", moved / "run")
    assert again.tables[name].total().estimate == expected
    for path in list(moved.glob("*.toml")):
        path.unlink()
    shutil.copytree(moved / "run", tmp_path / "copy")
    assert dp.Release.open(tmp_path / "copy").tables[name].total().estimate == expected


def test_job_of_several_tables_is_charged_once(tmp_path: Path) -> None:
    """Other times and names of its files are no change; another run directory and a removed run are refused."""
    from tests.links.small import write_job

    path, run = write_job(tmp_path, engine={"scheduler": "synchronous"}), tmp_path / "run"
    dp.run(path, run)
    for file in (tmp_path / "data").rglob("*.parquet"):
        renamed = file.rename(file.with_name(f"new-{file.name}"))
        os.utime(renamed, (1, 1))
    dp.run(path, run)
    with refused(BudgetError):
        dp.run(path, tmp_path / "other")
    shutil.rmtree(run)
    with refused(BudgetError):
        dp.run(path, run)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert len(ledger.summary()["datasets"]["shop"]["releases"]) == 1


def test_growing_table_is_charged_once(tmp_path: Path) -> None:
    """The first charge is made by the run of a period, under the job of the whole run."""
    from tests.periods.test_kills import write_job

    path = write_job(tmp_path, None)
    dp.run(path, tmp_path / "run")
    with refused(BudgetError):
        dp.run(path, tmp_path / "other")


def test_planted_fault_of_the_comparison_is_seen(project: Path, monkeypatch) -> None:
    """With tags that ignore the content, a changed line would open the old release: the check of tags matters."""
    from dpscale.runs import source

    change_line(project)
    monkeypatch.setattr(source, "_difference", lambda *_: "")
    run: Run = begin_run(read_job(project / "job.toml"), project / "runs/first")
    assert check_repeat(run) is not None


# Runs that are not below the folder of their job


def write_project(folder: Path, shift: int = 0) -> Path:
    (folder / "data").mkdir(parents=True)
    lines = [f"{(row + shift) % 3},{row % 2}" for row in range(200)]
    (folder / "data/part.csv").write_text("\n".join(["a,b", *lines]) + "\n")
    (folder / "domain.toml").write_text(DOMAIN)
    (folder / "job.toml").write_text(JOB)
    return folder


@pytest.mark.parametrize("turns", [1, 2])
def test_project_moves_without_its_run(tmp_path: Path, turns: int) -> None:
    """The stored job keeps the paths that it was written with; only the folder is recorded again."""
    place = write_project(tmp_path / "first")
    answers = dp.run(place / "job.toml", tmp_path / "elsewhere/run").marginal(["a", "b"])
    for turn in range(turns):
        place = place.rename(tmp_path / f"moved{turn}")
        for _ in range(2):
            again = dp.run(place / "job.toml", tmp_path / "elsewhere/run")
            assert (again.marginal(["a", "b"]) == answers).all()
            assert (dp.Release.open(tmp_path / "elsewhere/run").marginal(["a", "b"]) == answers).all()
    assert spent(place) == 1


def test_copy_of_a_project_leaves_the_run_to_the_first(tmp_path: Path) -> None:
    place = write_project(tmp_path / "first")
    dp.run(place / "job.toml", tmp_path / "run")
    shutil.copytree(place, tmp_path / "copy")
    dp.run(tmp_path / "copy/job.toml", tmp_path / "run")
    dp.run(place / "job.toml", tmp_path / "run")
    assert json.loads((tmp_path / "run/manifest.json").read_text())["folder"] == str(place)
    assert spent(place) == spent(tmp_path / "copy") == 1


def test_equal_jobs_of_two_projects_have_their_own_default_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    projects = [write_project(tmp_path / name, number) for number, name in enumerate(("jan", "feb"))]
    paths = [dp.run(place / "job.toml").path for place in projects for _ in range(2)]
    assert paths[0] == paths[1] != paths[2] == paths[3]
    assert [spent(place) for place in projects] == [1, 1]
    for path in set(paths):
        assert dp.Release.open(path).total().estimate == pytest.approx(200, abs=60)
    moved = projects[1].rename(tmp_path / "march")
    assert dp.run(moved / "job.toml").path == paths[2]
    assert spent(moved) == 1
