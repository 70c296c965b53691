"""The end of a run of several tables that is not to go on: every secret of it is destroyed, and what is charged stays.

Finished where all is measured, else abandoned, as a run of one table is (`stages.ending`).
"""

from __future__ import annotations

from typing import Any

from dpscale.base.errors import BudgetError, JobError
from dpscale.multitable.run import DatabaseRun
from dpscale.privacy.secret import destroy_secret
from dpscale.runs.hashes import disk_errors
from dpscale.runs.run import ABANDONED, FINISHED, Run, now
from dpscale.runs.stages import ending
from dpscale.runs.stages.spending import opened_ledger
from dpscale.storage.files import remove_partial


def end(run: DatabaseRun) -> dict[str, Any]:
    """How the run ended and what was spent; TransientError while a process works in it. To repeat it changes nothing.

    The manifest says so first: a kill in between leaves secrets that the next `end` destroys, and nothing goes on.
    """
    with disk_errors(run.path), run.locked():
        if run.manifest.get("ended") is None:
            how = FINISHED if run.done("measure") else ABANDONED
            run.update(ended={"how": how, "at": now()})
        for path in run.table_paths().values():
            ending.end(Run(path))
        remove_partial(run.path)
        for secret in (run.secret_path, run.secret_path.with_suffix(".partial")):
            destroy_secret(secret)
        if run.manifest["secret"] is not None:
            run.update(secret="destroyed")
        return {"run_dir": str(run.path), **run.manifest["ended"], **_spent(run)}


def check_open(run: DatabaseRun) -> None:
    """JobError where the run was abandoned."""
    ended = run.manifest.get("ended")
    if ended and ended["how"] == ABANDONED:
        got = f"{run.path} was ended on {ended['at'][:10]}, before all was measured"
        raise JobError("run directory", got, "a run that was not ended",
                       "start a new run, which is a new release, in another directory")  # fmt: skip


def charged(run: DatabaseRun) -> dict[str, Any] | None:
    """What the ledger holds of the run; None where that is nothing, BudgetError where nobody can say."""
    if run.manifest.get("ledger") is None:
        return None
    with opened_ledger(run) as ledger:
        datasets = ledger.summary()["datasets"].values()
    release = run.manifest["release"]
    return next((one for dataset in datasets for one in dataset["releases"] if one["release"] == release), None)


def _spent(run: DatabaseRun) -> dict[str, Any]:
    """What the ledger holds of the run; what the manifest says where the ledger is not here."""
    try:
        return {"charged": charged(run)}
    except BudgetError as error:
        return {"charged": run.manifest["privacy"], "ledger": str(error)}
