"""A truncated write-ahead log gives a shorter valid history, which a charged run detects by its own entry."""

import os
import shutil
import subprocess

import dpscale as dp
from dpscale.base.errors import BudgetError
from dpscale.ledger import Ledger
from dpscale.privacy.accounting import Cost
from dpscale.runs.opening import open_part
from dpscale.runs.runner import ledger_dataset
from tests.audit.small import write, write_selftest
from tests.audit.test_bundle import GAUSSIAN, UNSEEDED, run_command
from tests.messages import refused
from tests.runs.disks import needs_mounts


def test_truncated_log_is_detected_by_charged_run(tmp_path, monkeypatch):
    path, copy = tmp_path / "ledger.sqlite", tmp_path / "cut" / "ledger.sqlite"
    copy.parent.mkdir()
    job = write(tmp_path, privacy=GAUSSIAN, engine=UNSEEDED)
    with Ledger.open(path) as ledger:  # stays open, so that nothing leaves the log
        ledger.charge("small", "first", Cost(gaussian="1/50"), "ab" * 32)
        short = os.path.getsize(f"{path}-wal")
        run = open_part(dp.run(job, tmp_path / "run").path)
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{copy}{end}")
    os.truncate(f"{copy}-wal", short)
    assert ledger_dataset(run)["releases"][-1]["release"] == run.manifest["release"]
    with Ledger.open(copy) as cut:
        assert [row["release"] for row in cut.summary("small")["datasets"]["small"]["releases"]] == ["first"]
        cut.verify()  # the shorter history is sound in itself
    monkeypatch.setenv("DPSCALE_LEDGER", str(copy))
    with refused(BudgetError) as caught:
        ledger_dataset(run)
    assert (caught.value.exit_code, str(caught.value).count("\n")) == (3, 0)
    code, _, message = run_command("evidence", run.path, "--selftest", write_selftest(tmp_path))
    assert (code, message.count("\n")) == (3, 1)


@needs_mounts
def test_bind_mounted_directory_shares_one_ledger(tmp_path):
    """Journal and locks are in the same directory, so charges through both paths see each other."""
    (tmp_path / "own").mkdir()
    (folder := tmp_path / "mounted").mkdir()
    with Ledger.open(tmp_path / "own" / "ledger.sqlite") as ledger:
        ledger.set_cap("d", 1.0, 1e-6)
        subprocess.run(["mount", "--bind", tmp_path / "own", folder], check=True)
        try:
            with Ledger.open(folder / "ledger.sqlite") as other:
                for one, name in ((ledger, "a"), (other, "b"), (ledger, "c")):
                    one.charge("d", name, Cost(gaussian="1/80"), "ab" * 32)
                assert ledger.summary() | {"ledger": ""} == other.summary() | {"ledger": ""}
                with refused(BudgetError):
                    other.charge("d", "e", Cost(gaussian="1/10"), "ab" * 32)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def test_releases_are_shown_at_own_delta_and_totals_at_named_delta(tmp_path):
    """Regression test: a release of epsilon 1 at delta 1e-6 was shown as epsilon 1.31767 at delta 1e-09."""
    job = write(tmp_path, privacy={"epsilon": 1.0, "delta": 1e-6, "dataset": "small"}, engine=UNSEEDED)
    dp.run(job, tmp_path / "run")
    lines = run_command("ledger", "show", tmp_path / "ledger.sqlite")[1].splitlines()
    assert next(line for line in lines if line.startswith("  spent")).split()[1:6] == [
        "epsilon",
        "1",
        "at",
        "delta",
        "1e-06",
    ]
    assert "epsilon 1 at delta 1e-06" in next(line for line in lines if line.startswith("  - "))
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.charge("small", "finer", Cost(gaussian="1/50"), "ab" * 32, delta=1e-9)
        dataset = ledger.summary("small")["datasets"]["small"]
    assert [row["own"]["delta"] for row in dataset["releases"]] == [1e-6, 1e-9]
    assert dataset["spent"]["delta"] == 1e-6
