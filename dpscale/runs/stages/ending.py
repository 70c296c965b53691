"""The end of a run that is not to go on: finished where all is measured, else abandoned; then its secret is gone.

Without the secret nothing can be drawn any more, here or from a copy made later. What was charged stays spent: the
release stays on the ledger as it is, since some of its noise may be known. A finished run is a release like any other.
No ledger is needed for that: one that cannot be told that a run is finished is told by the next `end`.
"""

from __future__ import annotations

from typing import Any

from dpscale.base.errors import BudgetError, DataError, JobError, PlanError
from dpscale.ledger import Ledger
from dpscale.ledger.place import standing
from dpscale.privacy.secret import destroy_secret
from dpscale.runs.hashes import disk_errors
from dpscale.runs.run import ABANDONED, FINISHED, Run, now
from dpscale.runs.stages import STAGES
from dpscale.runs.stages.spending import check_link, check_there, publish
from dpscale.runs.trace import write_trace
from dpscale.storage.files import flush_names, remove_partial, store_errors

BROKEN = (DataError, JobError, PlanError)


def end(run: Run) -> dict[str, Any]:
    """How the run ended and what was spent; TransientError while a process works in it. To repeat it changes nothing.

    The manifest says so first: a kill in between leaves a secret that the next `end` destroys, and nothing goes on.
    """
    with disk_errors(run.path), store_errors(run.path), run.locked():
        if run.ended is None:
            whole = run.done("measure") or _finished(run)
            run.update(ended={"how": FINISHED if whole else ABANDONED, "at": now()})
        remove_partial(run.path)
        _forget(run)
        return {"run_dir": str(run.path), **(run.ended or {}), **_spent(run)}


def _forget(run: Run) -> None:
    """Destroy the secret; to repeat it changes nothing."""
    for secret in (run.secret_path, run.secret_path.with_suffix(".partial")):  # one may have been half made
        destroy_secret(secret)
    if run.manifest["secret"] not in (None, "destroyed"):
        run.update(secret="destroyed")


def _spent(run: Run) -> dict[str, Any]:
    """What the ledger holds of the run: nothing, the whole charge, or what the manifest says where it is not here.

    A finished run is published first, unless it is.
    """
    try:
        entry = entry_of(run)
        if run.ended and run.ended["how"] == FINISHED and (entry is None or entry["state"] != "released"):
            publish(run, run.released)
            entry = entry_of(run)
        return {"charged": entry}
    except (BudgetError, *BROKEN) as error:
        return {"charged": run.manifest["privacy"], "ledger": str(error)}


def entry_of(run: Run) -> dict[str, Any] | None:
    """The run's release on its ledger: state and cost; None where it was never charged."""
    dataset, release = dataset_of(run), released_as(run)
    return next((one for one in dataset.get("releases", ()) if one["release"] == release), None)


def released_as(run: Run) -> str:
    """The name on the ledger: its own, or that of the whole that it is a table of."""
    return str((run.manifest.get("within") or run.manifest)["release"])


def dataset_of(run: Run, chained: bool = False) -> dict[str, Any]:
    """All that the run's ledger says of the dataset; nothing where the run never came to one.

    `chained`: with the links of its hash chain.
    """
    manifest = run.manifest
    known = manifest.get("ledger")
    if known is None and manifest["privacy"] is None:
        return {}
    check_there(run)
    with Ledger.open(standing(run.job.privacy.ledger), create=False) as ledger:
        if known not in (None, ledger.name):  # older runs did not keep its name
            raise BudgetError("privacy.ledger", f"{ledger.path} is not the ledger that this run was begun with",
                              "that one, on the machine where it is", "run it there")  # fmt: skip
        check_link(run, ledger)
        datasets: dict[str, dict[str, Any]] = ledger.summary()["datasets"]
        release = released_as(run)
        holding = ((name, one) for name, one in datasets.items()
                   if any(row["release"] == release for row in one["releases"]))  # fmt: skip
        name, found = next(holding, ("", {}))
        return found | {"chain": ledger.chain(name)} if chained and found else found


def _finished(run: Run) -> bool:
    """Whether all was measured but not published, as after a kill at the very end: its secret is not needed any more.

    A power cut must not take what cannot be drawn again.
    """
    try:
        state, left = _state_of(run)
    except BROKEN:  # what cannot be read can be abandoned all the same
        return False
    if left:
        return False
    with run.during(STAGES["measure"]):
        write_trace(run.path / "trace.parquet", run.released.planned.trace(state))
        remove_partial(run.measurements_path)
        for folder in (run.measurements_path, run.path):
            flush_names(folder)
        _forget(run)
    return True


def _state_of(run: Run) -> tuple[Any, bool]:
    """The last state that the measurements give, and whether something is left to measure."""
    released = run.released
    state, waiting = released.replayed()
    return state, waiting is not None or released.planned.selection(state) is not None
