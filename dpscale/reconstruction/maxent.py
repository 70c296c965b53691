"""Local maximum entropy: low-order tables from all measurements, and the maximum-entropy marginals that they imply.

Files in the folder, written once so that tasks need not recompute them; all but the first only if the job needs them:

    model.npz  replica-00.npz …  errors.json  agreed.npz
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from dpscale.base.display import format_bytes
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, NDArray, ParallelMap, one_thread
from dpscale.base.settings import Settings, setting
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.reconstruction.base import Estimates, Evidence, Reconstruction, check_low_order
from dpscale.reconstruction.consistency import (
    ConsistentMarginals,
    Disagreement,
    disagreement,
    make_consistent,
    read_consistent,
    write_consistent,
)
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.model_answers import (
    CONSISTENT,
    ERRORS,
    MODEL,
    NO_ERRORS,
    SIMULATED,
    ModelEstimates,
    read_errors,
    read_model,
    write_errors,
    write_model,
)
from dpscale.reconstruction.public_margins import fit_model

NAME = "maxent"
SAMPLED = 200  # pairs of targets compared
# memory of the learnt pairs; additions of learning, of which 10⁹ take about a second
LEARNING_BYTES, LEARNING_STEPS = 1 << 29, 1 << 35


class Options(Settings):
    """Options of local maximum entropy."""

    errors: Literal["auto", "simulated", "none"] = setting(
        "auto",
        "auto, simulated or none",
        "simulated: approximate errors, by redrawing all noise of an adaptive mechanism; auto: simulated for adaptive "
        "mechanisms, none for others",
    )
    implied: Literal["model", "chains"] = setting(
        "model",
        "model or chains",
        "unmeasured pairs and sets of three: from one model of all pairs (if it is learnt in about a minute), or pairs "
        "from their strongest chain",
    )
    agree: bool = setting(False, "true or false", "true: targets are made consistent on their common attributes")


def check(measurement_plan: MeasurementPlan, options: Options, memory: int) -> None:
    """Raise an error if the plan cannot be reconstructed, or not within the memory."""
    if options.errors == "simulated" and measurement_plan.evidence_plan is not None:
        raise JobError("reconstruct.errors", f"'simulated' for {measurement_plan.mechanism} by {NAME}",
                       "an adaptive mechanism by maxent", "leave it out")  # fmt: skip

    check_low_order(measurement_plan)
    workload = measurement_plan.workload
    needed = 16 * sum(workload.domain.cells(names) for names in workload.sets)
    if options.agree and needed > memory:
        raise PlanError("reconstruct.agree", f"targets that need {format_bytes(needed)} together",
                        f"the {format_bytes(memory)} of engine.memory", "raise it, or leave out agree")  # fmt: skip


def prepare(evidence: Evidence, options: Options, folder: Path, release: str, each: ParallelMap) -> None:
    """Write the model, and the errors and consistent targets that the options request, once.

    Each file is written only if it is missing, so that an interrupted run continues. `options.implied` "model" adds
    pairs from a pairwise model.
    """
    if (folder / MODEL).exists():
        model = read_model(folder / MODEL)
    else:
        model, sets = _model(evidence), evidence.workload.sets if options.implied == "model" else ()
        model = _complete(model, sets, folder, release, each) if sets else model
        write_model(folder / MODEL, model)

    if options.errors == "simulated" and not (folder / ERRORS).exists():
        with one_thread():
            write_errors(folder, evidence.simulate_errors(model, _seed(release), each))

    if options.agree and not (folder / CONSISTENT).exists():
        write_consistent(folder / CONSISTENT, _consistent_targets(evidence, model))


def estimates(evidence: Evidence, options: Options, folder: Path) -> Estimates:
    """Return estimates from the files in the folder; if there is none, from the model of the measurements alone."""
    model = read_model(folder / MODEL) if (folder / MODEL).exists() else _model(evidence)
    errors = read_errors(folder, model) if (folder / ERRORS).exists() else None
    source = (
        ConsistentMarginals(model, read_consistent(folder / CONSISTENT)) if (folder / CONSISTENT).exists() else model
    )
    return ModelEstimates(evidence=evidence, model=source, known=tuple(model.ones), errors=errors)


def explain(options: Options) -> str:
    """Return the explanation of these estimates for readers."""
    kind = "from local maximum entropy: non-negative, and biased in favour of a smaller error"
    return f"Estimates are {kind}. {SIMULATED if options.errors == 'simulated' else NO_ERRORS}"


def target_disagreement(measurement_plan: MeasurementPlan, options: Options, folder: Path) -> Disagreement | None:
    """Return the disagreement of targets over a sample of pairs; None if they are consistent by construction."""
    if options.agree or not (folder / MODEL).exists():
        return None
    targets = [names for names in measurement_plan.workload.sets if len(names) > 1]
    return disagreement(read_model(folder / MODEL).coarse_marginal, targets, SAMPLED)


def _complete(model: LowOrder, sets: Sequence[AttributeSet], folder: Path, release: str, each: ParallelMap) -> LowOrder:
    """Add pairs and wanted triples that were not measured, from a pairwise model, if it is learnt in about a minute.

    Learning is skipped if nothing is missing, or if it would take more than LEARNING_STEPS.
    """
    from dpscale.reconstruction.pairwise import (  # loads the compiled loops
        PAIRWISE,
        CellDistribution,
        add_triples,
        complete_pairs,
        consistent_pairs,
        learn,
        learning_steps,
        missing_triples,
        pair_targets,
        write_pairwise,
    )

    targets, triples = pair_targets(model, LEARNING_BYTES), missing_triples(model, sets)
    nothing_missing = not triples and all(targets.known[i, j] for i, j in targets.layout.pairs)
    if nothing_missing or learning_steps(targets) > LEARNING_STEPS:
        return model

    pairwise = learn(targets, release, each=each)
    write_pairwise(folder / PAIRWISE, pairwise, CellDistribution(model.groups, model.ones, model.rules), model.total)
    model = complete_pairs(consistent_pairs(model, pairwise, release, each), pairwise)
    return add_triples(model, pairwise, triples, release, each)


def _model(evidence: Evidence) -> LowOrder:
    with one_thread():
        return fit_model(evidence.workload.domain, evidence.low_order())


def _seed(release: str) -> int:
    """Return a seed from the release's public name, so that the errors are reproducible."""
    return int(hashlib.sha256(release.encode()).hexdigest()[:12], 16)


def _consistent_targets(evidence: Evidence, model: LowOrder) -> dict[AttributeSet, NDArray[np.float64]]:
    """Return the sets of the workload as consistent tables, without sets that are inside a larger one."""
    sets = [names for names in evidence.workload.sets if names]
    largest = [names for names in sets if not any(set(names) < set(other) for other in sets)]
    with one_thread():
        return make_consistent({names: model.marginal(names) for names in largest})


def with_errors(options: Options) -> Options:
    """Return the options of an adaptive mechanism: errors are simulated unless the job says otherwise."""
    return options.model_copy(update={"errors": "simulated"}) if options.errors == "auto" else options


RECONSTRUCTION = Reconstruction(
    name=NAME,
    Options=Options,
    form="low_order",
    explain=explain,
    estimates=estimates,
    check=check,
    prepare=prepare,
    disagreement=target_disagreement,
    adaptive=with_errors,
)
