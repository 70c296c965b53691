"""The estimates of a run, by the method that its job asks for. A model is made once and kept, in model.npz."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dpscale.jobs.methods import method_of
from dpscale.jobs.rounds import Rounds
from dpscale.jobs.rundir import RunDirectory
from dpscale.jobs.stages import measured
from dpscale.measure import Measurements
from dpscale.reconstruct import Estimates
from dpscale.reconstruct.from_estimates import from_estimates
from dpscale.reconstruct.maxent import LowOrder
from dpscale.reconstruct.modelled import Modelled
from dpscale.residual.groups import Groups
from dpscale.select.blas import one_thread

AnyEstimates = Estimates | Modelled
FILE = "model.npz"


def estimates_of(run: RunDirectory) -> AnyEstimates:
    """The estimates that a run's measurements give."""
    told, method = measured(run), method_of(run.job)
    if isinstance(told, Rounds) and method == "grem":
        state = told.final(published=True)
        return Modelled(told.plan.workload, state, state.setting.names, told.plan.noise)
    if method == "maxent":
        model = _kept(run.path / FILE) or model_of(told)
        return Modelled(told.plan.workload, model, tuple(model.ones), told.plan.noise)
    return _least_squares(told)


def keep_model(run: RunDirectory) -> None:
    """Make the model once, for the tasks that answer from it; nothing where the method has none."""
    if method_of(run.job) != "maxent" or (run.path / FILE).exists():
        return
    model = model_of(measured(run))
    index = {"groups": {name: [own.size, *own.starts] for name, own in model.groups.items()},
             "tables": [list(names) for names in model.tables], "total": model.total}  # fmt: skip
    arrays = {f"one{i}": own for i, own in enumerate(model.ones.values())}
    arrays |= {f"table{i}": own for i, own in enumerate(model.tables.values())}
    partial = run.path / f".{FILE}.partial"
    with open(partial, "wb") as file:
        np.savez(file, allow_pickle=False, index=np.array(json.dumps(index)), **arrays)
    partial.replace(run.path / FILE)


def model_of(told: Measurements | Rounds) -> LowOrder:
    """Consistent non-negative low-order tables from all that was measured."""
    with one_thread():
        return told.final(published=False).model if isinstance(told, Rounds) else from_estimates(_least_squares(told))


def _least_squares(told: Measurements | Rounds) -> Estimates:
    assert isinstance(told, Measurements)
    return Estimates(told.plan, told.variances, told.read)


def _kept(path: Path) -> LowOrder | None:
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as found:
        index = json.loads(str(found["index"]))
        groups = {name: Groups(starts[0], tuple(starts[1:])) for name, starts in index["groups"].items()}
        ones = {name: found[f"one{i}"] for i, name in enumerate(groups)}
        tables = {tuple(names): found[f"table{i}"] for i, names in enumerate(index["tables"])}
    return LowOrder(ones, groups, tables, index["total"])
