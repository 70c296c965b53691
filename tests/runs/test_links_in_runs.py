"""No command writes or removes a file through a symbolic link in a run directory.

Each stage is about to run; each folder of the run, and each folder that the stages write, is replaced in turn by a link
to a folder outside with the same content and an incomplete file of another program. Whatever the command says, nothing
outside changes.
"""

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import JobError
from dpscale.runs.opening import open_run
from dpscale.runs.stage import STAGES
from dpscale.storage import files
from tests.audit.small import write, write_selftest
from tests.links import small as shop
from tests.messages import refused
from tests.selection import mostly_slow

STEPS = ("plan", "measure", "reconstruct", "synthesize", "report")
AFTER = ("evidence", "publish", "end", "model", "run")  # commands on a finished run
FOLDERS = ("plan", "measurements", "answers", "synthetic", "evidence", "published")
FILES = ("log.jsonl", ".lock", "manifest.json", "secret.key", "driver.json", ".driver.lock")
FOREIGN = ".index.parquet.0123456789abcdef.partial"


def run_command(*words):
    result = CliRunner().invoke(main, [*map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stderr


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A job, its data, and copies of its run and ledger before each step and after the last."""
    folder = tmp_path_factory.mktemp("job")
    job = write(folder, synthesize={"rows": 50}, engine={"scheduler": "synchronous"},
                privacy={"privacy_cost": 0.5, "dataset": "small", "ledger": "ledger.sqlite"},
                mechanism={"name": "mst"}, reconstruct={"method": "graphical"})  # fmt: skip
    selftest, run = write_selftest(folder), folder / "run"
    assert run_command("plan", job, "--run-dir", run) == (0, "")
    states = {}
    for step in STEPS[1:]:
        states[step] = save(folder, step)
        assert run_command("run", run, "--only", step, "--quiet")[0] == 0
    assert run_command("evidence", run, "--selftest", selftest)[0] == 0
    assert run_command("publish", run)[0] == 0
    return folder, states | dict.fromkeys(AFTER, save(folder, "done"))


def save(folder, name):
    kept = folder / "states" / name
    shutil.copytree(folder / "run", kept / "run")
    if (folder / "ledger.sqlite").exists():
        shutil.copy(folder / "ledger.sqlite", kept)
    return kept


def restore(folder, kept):
    """Restore the run and its ledger, and return the run directory."""
    run = folder / "run"
    run.unlink() if run.is_symlink() else shutil.rmtree(run, ignore_errors=True)
    for end in ("", "-wal", "-shm"):
        Path(f"{folder / 'ledger.sqlite'}{end}").unlink(missing_ok=True)
    shutil.copytree(kept / "run", run)
    if (kept / "ledger.sqlite").exists():
        shutil.copy(kept / "ledger.sqlite", folder)
    return run


def command_of(step, folder):
    run = folder / "run"
    return {"evidence": ("evidence", run, "--selftest", folder / "selftest.json"),
            "publish": ("publish", run), "model": ("model", run),
            "run": ("run", folder / "job.toml", "--run-dir", run, "--quiet"),
            "end": ("job", "end", run)}.get(step, ("run", run, "--only", step, "--quiet"))  # fmt: skip


def link(run, name, outside):
    """Replace a file or folder of the run, or one that it will have, by a link to a copy outside."""
    shutil.rmtree(outside, ignore_errors=True)
    outside.mkdir()
    place, target = run / name, outside / name
    if place.is_file() or name in FILES:
        target.write_bytes(place.read_bytes() if place.exists() else b"of another program")
        place.unlink(missing_ok=True)
    else:
        shutil.copytree(place, target) if place.exists() else target.mkdir()
        (target / FOREIGN).write_bytes(b"of another program")
        shutil.rmtree(place, ignore_errors=True)
    place.symlink_to(target)


@pytest.mark.parametrize("step", [*STEPS[1:], *AFTER])
def test_command_writes_nothing_through_a_link(base, step):
    folder, states = base
    outside, refused = folder / "outside", []
    for name in (*FOLDERS, *FILES):
        run = restore(folder, states[step])
        link(run, name, outside)
        before = content(outside)
        code, said = run_command(*command_of(step, folder))
        assert content(outside) == before, name
        if code:
            assert (code, said.count("symbolic link")) == (2, 1), (name, said)
            refused.append(name)
    own = STAGES[step].folder if step in STAGES else "evidence" if step == "evidence" else ""
    assert not own or own in (*refused, "report.html")
    if step in STEPS:
        assert refused == [*FOLDERS, *FILES], "before anything is charged or written"


def test_link_is_refused_before_the_charge(base):
    folder, states = base
    run = restore(folder, states["measure"])
    link(run, "answers", folder / "outside")
    ledger = (folder / "ledger.sqlite").read_bytes() if (folder / "ledger.sqlite").exists() else b""
    assert run_command("run", run, "--only", "measure")[0] == 2
    assert ((folder / "ledger.sqlite").read_bytes() if ledger else b"") == ledger
    assert open_run(run).manifest["privacy"] is None


def test_link_to_the_run_directory_is_valid(base):
    folder, states = base
    run = restore(folder, states["reconstruct"])
    shutil.rmtree(folder / "elsewhere", ignore_errors=True)
    run.rename(folder / "elsewhere")
    run.symlink_to(folder / "elsewhere")
    assert run_command("run", run, "--only", "reconstruct", "--quiet")[0] == 0
    assert dp.Release.open(run).path == folder / "elsewhere"
    run.unlink()


@pytest.mark.parametrize("name", ["check_tree", "check_real"])
def test_foreign_files_are_removed_without_the_checks(base, monkeypatch, name):
    """Planted: neither check is made, as before; with one of them nothing outside changes."""
    folder, states = base
    run = restore(folder, states["reconstruct"])
    link(run, "answers", folder / "outside")
    before = content(folder / "outside")
    monkeypatch.setattr("dpscale.runs.run.check_tree", lambda *_: None)
    if name == "check_real":
        monkeypatch.setattr(files, "check_real", lambda *_: None)
    run_command("run", run, "--only", "reconstruct", "--quiet")
    assert (content(folder / "outside") == before) == (name == "check_tree")


# Paths


def test_paths_below_the_outermost_run_are_real(tmp_path):
    """Links above a run, to it, and below other folders with a manifest.json are valid."""
    disk, run = tmp_path / "disk", tmp_path / "disk" / "run"
    (run / "tables" / "a" / "answers").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    for place in (run, run / "tables" / "a"):
        (place / "manifest.json").write_text('{"job_sha256": ""}')
    (tmp_path / "manifest.json").write_text('{"name": "an application"}')
    (tmp_path / "home").symlink_to(disk)
    (disk / "last").symlink_to(run)
    for root in (run, tmp_path / "home" / "run", disk / "last"):
        files.check_real(root / "tables" / "a" / "answers" / "index.parquet")
        files.check_real(root / "new" / "file")
    for place in (run / "tables", run / "tables" / "a", run / "tables" / "a" / "answers"):
        moved = place.with_name("moved")
        place.rename(moved)
        place.symlink_to(moved)
        for act in (files.read_bytes, files.reading, files.listed, files.sizes, files.remove_partial, files.remove):
            with refused(JobError):
                act(run / "tables" / "a" / "answers")
        with refused(JobError), files.writing(run / "tables/a/answers/x"):
            pass
        with refused(JobError):
            files.create(run / "tables/a/answers/x", b"")
        with refused(JobError):
            files.open_in_place(run / "tables/a/answers/x", os.O_WRONLY | os.O_CREAT)
        with refused(JobError):
            files.check_tree(run)
        place.unlink()
        moved.rename(place)
    files.check_tree(run)


def test_modules_of_runs_open_files_in_one_place():
    """Files of runs are opened and removed by `storage` alone, which refuses links."""
    root = Path(dp.__file__).parent
    allowed = {
        "runs/opening.py",
        "runs/stages/plan.py",
        "runs/manifest.py",
        "runs/runner.py",
    }  # drafts, cache, key
    calls = ("open(", ".unlink(", "rmtree(", "os.open(", ".write_bytes(", ".write_text(", "os.replace(", ".rename(")
    for folder in ("runs", "measurement", "audit/evidence", "plans", "reconstruction", "synthesis"):
        for path in (root / folder).rglob("*.py"):
            name = str(path.relative_to(root))
            if name not in allowed and path.name not in ("check.py",):
                text = path.read_text().replace("archive.open(", "").replace("Ledger.open(", "")
                found = [call for call in calls if f" {call}" in text or (call[0] == "." and call in text)]
                assert not found, (name, found)


# Bundles and published folders


def test_bundle_with_a_link_is_refused(base, tmp_path):
    _, states = base
    bundle = tmp_path / "bundle"
    shutil.copytree(states["evidence"] / "run" / "evidence", bundle)
    (tmp_path / "alias").symlink_to(bundle)
    check_bundle(tmp_path / "alias")
    (bundle / "claims.json").rename(tmp_path / "claims.json")
    (bundle / "claims.json").symlink_to(tmp_path / "claims.json")
    with refused(JobError):
        check_bundle(bundle)


def test_publication_over_a_link_is_refused(base, tmp_path):
    """An older publication is removed whole, so it is not one elsewhere."""
    folder, states = base
    run = restore(folder, states["publish"])
    shutil.copytree(run / "published", tmp_path / "older")
    (tmp_path / "alias").symlink_to(tmp_path / "older")
    before = content(tmp_path / "older")
    code, said = run_command("publish", run, "--out", tmp_path / "alias")
    assert (code, "symbolic link" in said) == (2, True)
    assert content(tmp_path / "older") == before


# Several tables


@pytest.fixture(scope="module")
def shop_run(tmp_path_factory):
    """A planned run of several tables and a link, and the same run when it is finished."""
    folder = tmp_path_factory.mktemp("shop")
    job = shop.write_job(folder)
    assert run_command("plan", job, "--run-dir", folder / "run")[0] == 0
    planned = save(folder, "planned")
    assert run_command("run", job, "--run-dir", folder / "run", "--quiet")[0] == 0
    return folder, {"planned": planned, "finished": save(folder, "finished")}


@pytest.mark.parametrize("each", mostly_slow([1, 3], {3}))
def test_no_folder_of_several_tables_is_followed(shop_run, each):
    """Every folder at every depth is replaced in turn, of which a third by day."""
    folder, states = shop_run
    outside = folder / "outside"
    for state, steps in (("planned", ("measure",)), ("finished", ("synthesize", "reconstruct", "publish"))):
        kept = states[state] / "run"
        names = [str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_dir()]
        assert any(name.count("/") >= 2 for name in names)
        for step in steps:
            for name in names[::each]:
                run = restore(folder, states[state])
                shutil.rmtree(outside, ignore_errors=True)
                shutil.move(run / name, outside)
                (outside / FOREIGN).write_bytes(b"of another program")
                (run / name).symlink_to(outside)
                before = content(outside)
                code, said = run_command(*command_of(step, folder))
                assert content(outside) == before, (step, name)
                if step == "measure":
                    assert (code, said.count("symbolic link")) == (2, 1), (name, said)
