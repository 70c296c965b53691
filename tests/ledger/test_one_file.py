"""A ledger is one file with one name: charges through two names could be lost, so a second name is refused."""

import multiprocessing
import os
import subprocess

from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.ledger import Ledger
from dpscale.ledger.sqlite_store import create_file
from dpscale.privacy.accounting import Cost
from tests.audit.small import write
from tests.messages import refused
from tests.runs.disks import needs_mounts

CAP, COST = (1.0, 1e-6), Cost(gaussian="1/50")


def make_capped_ledger(path):
    with Ledger.open(path) as ledger:
        ledger.set_cap("d", *CAP)
    return path


def test_ledger_with_hard_link_is_refused_by_both_names(tmp_path):
    (tmp_path / "other").mkdir()
    first, second = make_capped_ledger(tmp_path / "ledger.sqlite"), tmp_path / "other" / "same.sqlite"
    os.link(first, second)
    for path in (first, second):
        with refused(dp.JobError):
            Ledger.open(path)
        done = CliRunner().invoke(main, ["ledger", "show", str(path)])
        assert (done.exit_code, done.output.count("\n")) == (2, 1)
    second.unlink()
    Ledger.open(first).close()


def test_job_with_linked_ledger_is_refused_before_planning(tmp_path):
    job = write(tmp_path)
    os.link(make_capped_ledger(tmp_path / "ledger.sqlite"), tmp_path / "second.sqlite")
    with refused(dp.JobError) as caught:
        dp.run(job, tmp_path / "run")
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run/plan").exists()


def test_hard_link_made_while_open_stops_next_charge(tmp_path):
    with Ledger.open(make_capped_ledger(tmp_path / "ledger.sqlite")) as ledger:
        ledger.charge("d", "one", COST, "0" * 64)
        os.link(tmp_path / "ledger.sqlite", tmp_path / "second.sqlite")
        with refused(dp.JobError):
            ledger.charge("d", "two", COST, "0" * 64)


def test_leftover_draft_is_not_a_second_name(tmp_path):
    """The process was killed between linking the ledger and removing its draft."""
    path = tmp_path / "ledger.sqlite"
    create_file(path)
    os.link(path, tmp_path / "ledger.sqlite.0123456789abcdef.new")
    Ledger.open(path).close()
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.endswith(".new")] == []


def charge(path, release, barrier, answers):
    barrier.wait()
    try:
        with Ledger.open(path) as ledger:
            ledger.charge("d", release, Cost(gaussian="1/30"), "0" * 64)
        answers.put("charged")
    except dp.DpscaleError as error:
        answers.put(type(error).__name__)


def test_concurrent_charges_through_two_names_are_refused(tmp_path):
    """Regression test: both charges were admitted and one was lost."""
    fork = multiprocessing.get_context("fork")
    for number in range(6):
        (place := tmp_path / str(number)).mkdir()
        names = [make_capped_ledger(place / "ledger.sqlite"), place / "second.sqlite"]
        os.link(*names)
        barrier, answers = fork.Barrier(2), fork.Queue()
        pair = [fork.Process(target=charge, args=(name, f"r{i}", barrier, answers)) for i, name in enumerate(names)]
        for process in pair:
            process.start()
        assert [answers.get(timeout=30) for _ in pair] == ["JobError", "JobError"]
        for process in pair:
            process.join()


@needs_mounts
def test_bind_mounted_file_is_refused_and_directory_is_accepted(tmp_path):
    make_capped_ledger(tmp_path / "ledger.sqlite")
    (mounted := tmp_path / "mounted.sqlite").touch()
    subprocess.run(["mount", "--bind", tmp_path / "ledger.sqlite", mounted], check=True)
    try:
        with refused(dp.JobError):
            Ledger.open(mounted)
    finally:
        subprocess.run(["umount", "-l", mounted], check=True)
    (folder := tmp_path / "folder").mkdir()
    subprocess.run(["mount", "--bind", tmp_path, folder], check=True)
    try:
        Ledger.open(folder / "ledger.sqlite").close()
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
