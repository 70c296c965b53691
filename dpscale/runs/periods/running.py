"""Release of one period by name, outside the stages of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpscale.base.error_redaction import discreetly
from dpscale.engine import resolve
from dpscale.engine.schedulers import Progress, silent
from dpscale.ledger.location import check_ledger_place, standing
from dpscale.runs.manifest import disk_errors
from dpscale.runs.periods import stages
from dpscale.runs.periods.stream import StreamRun
from dpscale.storage.files import store_errors

if TYPE_CHECKING:
    from distributed import Client


def release_next(
    run: StreamRun,
    label: str,
    client: Client | None = None,
    scheduler: str | None = None,
    progress: Progress = silent,
) -> None:
    """Release a period with its answers, rows and report; see `stages.release_period`."""
    check_ledger_place(standing(run.job.privacy.ledger))
    engine = resolve(client, scheduler or run.job.engine.scheduler, progress)
    try:
        with disk_errors(run.path), store_errors(run.path), run.locked():
            if not run.done("plan"):
                with run.record_stage(run.stages["plan"]):
                    stages.plan(run, engine)
            discreetly("release-period", stages.release_period, run, engine, label)
            for name in ("reconstruct", *(["synthesize"] if run.synthesis is not None else []), "report"):
                if not run.done(name):
                    with run.record_stage(run.stages[name], engine.each("hash")):
                        run.stages[name].perform(run, engine)
    finally:
        engine.close()
