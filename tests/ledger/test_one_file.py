"""One ledger is one file with one name: through two names of it charges vanish, so they are refused."""

import multiprocessing
import os
import subprocess

import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.ledger import Ledger
from dpscale.ledger.sqlite_store import create_file
from dpscale.privacy.accounting import Cost
from tests.audit.small import write
from tests.runs.disks import needs_mounts

CAP, COST = (1.0, 1e-6), Cost(gaussian="1/50")


def capped(path):
    with Ledger.open(path) as ledger:
        ledger.set_cap("d", *CAP)
    return path


def test_a_ledger_with_a_second_name_is_refused_by_both(tmp_path):
    (tmp_path / "other").mkdir()
    first, second = capped(tmp_path / "ledger.sqlite"), tmp_path / "other" / "same.sqlite"
    os.link(first, second)
    for path in (first, second):
        with pytest.raises(dp.JobError, match=r"second name \(a hard link\)"):
            Ledger.open(path)
        done = CliRunner().invoke(main, ["ledger", "show", str(path)])
        assert (done.exit_code, done.output.count("\n")) == (2, 1)
    second.unlink()
    Ledger.open(first).close()


def test_a_job_over_it_is_refused_before_it_is_planned(tmp_path):
    job = write(tmp_path)
    os.link(capped(tmp_path / "ledger.sqlite"), tmp_path / "second.sqlite")
    with pytest.raises(dp.JobError, match="hard link") as caught:
        dp.run(job, tmp_path / "run")
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run/plan").exists()


def test_a_name_given_while_it_is_open_stops_the_next_charge(tmp_path):
    with Ledger.open(capped(tmp_path / "ledger.sqlite")) as ledger:
        ledger.charge("d", "one", COST, "0" * 64)
        os.link(tmp_path / "ledger.sqlite", tmp_path / "second.sqlite")
        with pytest.raises(dp.JobError, match="hard link"):
            ledger.charge("d", "two", COST, "0" * 64)


def test_a_draft_that_its_maker_left_is_no_second_name(tmp_path):
    """Killed between the link that makes a ledger and the removal of the draft."""
    path = tmp_path / "ledger.sqlite"
    create_file(path)
    os.link(path, tmp_path / "ledger.sqlite.0123456789abcdef.new")
    Ledger.open(path).close()
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.endswith(".new")] == []


def charge(path, release, barrier, told):
    barrier.wait()
    try:
        with Ledger.open(path) as ledger:
            ledger.charge("d", release, Cost(gaussian="1/30"), "0" * 64)
        told.put("charged")
    except dp.DpscaleError as error:
        told.put(type(error).__name__)


def test_pairs_that_charge_at_once_through_two_names_are_never_both_admitted(tmp_path):
    """Before, both of every pair were, and one charge vanished."""
    fork = multiprocessing.get_context("fork")
    for number in range(6):
        (place := tmp_path / str(number)).mkdir()
        names = [capped(place / "ledger.sqlite"), place / "second.sqlite"]
        os.link(*names)
        barrier, told = fork.Barrier(2), fork.Queue()
        pair = [fork.Process(target=charge, args=(name, f"r{i}", barrier, told)) for i, name in enumerate(names)]
        for process in pair:
            process.start()
        assert [told.get(timeout=30) for _ in pair] == ["JobError", "JobError"]
        for process in pair:
            process.join()


@needs_mounts
def test_a_file_that_is_mounted_by_itself_is_refused_and_its_folder_is_not(tmp_path):
    capped(tmp_path / "ledger.sqlite")
    (mounted := tmp_path / "mounted.sqlite").touch()
    subprocess.run(["mount", "--bind", tmp_path / "ledger.sqlite", mounted], check=True)
    try:
        with pytest.raises(dp.JobError, match=r"a mount point of its own.*mount its folder"):
            Ledger.open(mounted)
    finally:
        subprocess.run(["umount", "-l", mounted], check=True)
    (folder := tmp_path / "folder").mkdir()
    subprocess.run(["mount", "--bind", tmp_path, folder], check=True)
    try:
        Ledger.open(folder / "ledger.sqlite").close()
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
