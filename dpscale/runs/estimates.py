"""The estimates of a run, by the reconstruction that its job asks for, and the folder of what that keeps.

model/<release>/…
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from dpscale.base.each import Each
from dpscale.reconstruction.contract import Estimates
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.junction_tree.model import Model
from dpscale.reconstruction.modelfiles import MODEL, read_model
from dpscale.runs.run import Run
from dpscale.storage.files import present


def estimates_of(run: Run) -> Estimates:
    """The estimates that a measured run gives."""
    run.require("measure")
    return run.job.reconstruction.estimates(run.released.evidence(), run.job.estimating, model_folder(run))


def keep_model(run: Run, each: Each) -> None:
    """Make what is dear once, for the tasks that answer from it."""
    run.require("measure")
    released = run.released
    run.job.reconstruction.keep(released.evidence(), run.job.estimating, model_folder(run), released.release, each)


def joint_of(run: Run, each: Each) -> Model | None:
    """The distribution that the run's estimates are marginals of, where its reconstruction has one."""
    joint = run.job.reconstruction.joint
    if joint is None:
        return None
    keep_model(run, each)
    return joint(model_folder(run))


def low_order_of(run: Run) -> LowOrder:
    """Low-order tables of a measured run: those of its estimates, where it has such, or made for rows alone."""
    run.require("measure")
    kept = model_folder(run) / MODEL
    return read_model(kept) if present(kept) else run.released.evidence().low_order()


def model_folder(run: Run) -> Path:
    """Named by the release and its data: what another release left in the directory is not read as this one's."""
    manifest = run.manifest
    name = json.dumps([manifest["release"], manifest["snapshot"]])
    return run.path / "model" / hashlib.sha256(name.encode()).hexdigest()[:16]
