"""The estimates of a run, by the method that its job asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from dpscale.blas import one_thread
from dpscale.measure import Measurements
from dpscale.measure.rounds import Rounds
from dpscale.names import AttributeSet as Names
from dpscale.reconstruct import Estimates
from dpscale.reconstruct.agreement import agreeing
from dpscale.reconstruct.from_estimates import from_estimates
from dpscale.reconstruct.maxent import LowOrder
from dpscale.reconstruct.modelled import Agreed, Modelled
from dpscale.reconstruct.simulated import Simulated, simulated
from dpscale.runs.models import (
    AGREED,
    ERRORS,
    MODEL,
    model_folder,
    read_agreed,
    read_errors,
    read_model,
    write_agreed,
    write_errors,
    write_model,
)
from dpscale.runs.run import RunDirectory
from dpscale.stages.measure import measured
from dpscale.stages.methods import method_of

AnyEstimates = Estimates | Modelled
Each = Callable[[Callable[..., Any], Iterable[Any]], list[Any]]


def estimates_of(run: RunDirectory) -> AnyEstimates:
    """The estimates that a run's measurements give."""
    told, method = measured(run), method_of(run.job)
    if isinstance(told, Rounds) and method == "grem":
        state = told.final(published=True)
        return Modelled(told.plan.workload, state, state.setting.names, told.plan.noise)
    if method == "maxent":
        return _modelled(run, told)
    return _least_squares(told)


def keep_model(run: RunDirectory, each: Each) -> None:
    """Make what the job asks of a model once, for the tasks that answer from it; nothing where the method has none."""
    folder, asked = model_folder(run), run.job.reconstruct
    if method_of(run.job) != "maxent":
        return
    told = measured(run)
    if not (folder / MODEL).exists():
        write_model(folder / MODEL, model_of(told))
    if asked.errors == "simulated" and not (folder / ERRORS).exists():
        write_errors(folder, _simulated(run, told, read_model(folder / MODEL), each))
    if asked.agree and not (folder / AGREED).exists():
        write_agreed(folder / AGREED, _agreed(told, read_model(folder / MODEL)))


def model_of(told: Measurements | Rounds) -> LowOrder:
    """Consistent non-negative low-order tables from all that was measured."""
    with one_thread():
        return told.final(published=False).model if isinstance(told, Rounds) else from_estimates(_least_squares(told))


def _modelled(run: RunDirectory, told: Measurements | Rounds) -> Modelled:
    """Of the files in the model folder; where it has none yet the bare model is made."""
    folder = model_folder(run)
    model = read_model(folder / MODEL) if (folder / MODEL).exists() else model_of(told)
    errors = read_errors(folder, model) if (folder / ERRORS).exists() else None
    source = Agreed(model, read_agreed(folder / AGREED)) if (folder / AGREED).exists() else model
    return Modelled(told.plan.workload, source, tuple(model.ones), told.plan.noise, errors)


def _simulated(run: RunDirectory, told: Measurements | Rounds, model: LowOrder, each: Each) -> Simulated:
    """Streams follow the release's public name: whoever makes the errors again has the same."""
    assert isinstance(told, Rounds)
    state, seed = told.final(published=False), int(hashlib.sha256(told.release.encode()).hexdigest()[:12], 16)
    chains = state.setting.options.chains
    with one_thread():
        return simulated(model, state.counts, state.residuals, state.setting.candidates, chains, seed=seed, each=each)


def _agreed(told: Measurements | Rounds, model: LowOrder) -> dict[Names, Any]:
    """The workload's sets, made to agree. Those that a larger one holds are its margins."""
    sets = [names for names in told.plan.workload.sets if names]
    largest = [names for names in sets if not any(set(names) < set(other) for other in sets)]
    with one_thread():
        return agreeing({names: model.marginal(names) for names in largest})


def _least_squares(told: Measurements | Rounds) -> Estimates:
    assert isinstance(told, Measurements)
    return Estimates(told.plan, told.variances, told.read)
