"""Stages in turn: each on what the ones before it left, once, and on an engine that is closed at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpscale.base.discreet import discreetly
from dpscale.engine import Engine, resolve
from dpscale.engine.schedulers import Progress, silent
from dpscale.ledger.place import check_ledger_place, standing
from dpscale.runs.hashes import check_left, disk_errors
from dpscale.runs.run import Run
from dpscale.runs.stage import Stage
from dpscale.runs.stages import STAGES
from dpscale.storage.files import store_errors

Left = Mapping[str, Mapping[str, Any]]


def run_stages(
    run: Run, client: Any = None, scheduler: str | None = None, progress: Progress = silent, only: str | None = None
) -> None:
    """All stages in turn, or one of them."""
    asked = [stage for stage in STAGES.values() if (stage.wanted(run) if only is None else only == stage.name)]
    if any(stage.spends and not run.done(stage.name) for stage in asked):
        check_ledger_place(standing(run.job.privacy.ledger))
    engine = resolve(client, scheduler or run.job.engine.scheduler, progress)
    try:
        with disk_errors(run.path), store_errors(run.path), run.locked():
            left = {name: entry for name, entry in run.manifest["stages"].items() if run.done(name)}
            for stage in asked:
                run_stage(stage, run, engine, left)
    finally:
        engine.close()


def run_stage(stage: Stage, run: Run, engine: Engine, left: Left | None = None) -> None:
    """One stage, unless it is done. `left`: the manifest's entries of what was done before this process came."""
    if not run.done(stage.name):
        run.check_open(stage.name)
    for name in stage.needs:
        run.require(name)
    if run.done(stage.name):
        return
    for name in stage.needs:
        check_left(run.path, name, (left or {}).get(name, {}), engine.each("check"))
    with run.during(stage, engine.each("hash")):
        if stage.spends:  # and so sees records: of an error the kind alone is told
            discreetly(f"stage {stage.name}", _perform, stage, run, engine)
        else:
            stage.perform(run, engine)


def _perform(stage: Stage, run: Run, engine: Engine) -> None:
    """The stage; what a disk or a store says is ours to tell."""
    with disk_errors(run.path), store_errors(run.path):
        stage.perform(run, engine)
