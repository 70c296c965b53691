"""Graphical models: the maximum-entropy distribution among those nearest to all measurements (Private-PGM).

It takes any linear measurements inside attribute sets: marginals, residuals, strategies of matrix mechanisms. Unlike
`maxent` the model is global, so all its marginals are consistent. Its cells are those of a junction tree, which may be
too many: this is checked before any budget is spent if the measurements are known by then. File in the folder:

    graphical.npz
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from dpscale.base.display import format_bytes
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, ParallelMap, one_thread
from dpscale.base.settings import setting
from dpscale.plans.factor import ImplicitFactor
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.reconstruction.base import BasicOptions, Estimates, Evidence, Reconstruction, check_no_trees
from dpscale.reconstruction.graphical_fit import FitOptions, Observed, fit
from dpscale.reconstruction.junction_tree import GraphicalModel, JunctionTree, cells_of, junction_tree
from dpscale.reconstruction.model_answers import NO_ERRORS, ModelEstimates
from dpscale.storage.files import reading, writing
from dpscale.workload import Workload
from dpscale.workload.residual import Groups, every_cell

NAME, FILE = "graphical", "graphical.npz"
BYTES = 40  # per cell of a clique: potentials, probabilities, gradients and temporary arrays
MOST_DIGITS = 10**12  # cells that a message writes with all digits
PRECISE = 100  # precision of public totals relative to the most precise measurement
SHOWN = 3  # sets named in a message; up to ten times as many are looked for


class Options(BasicOptions):
    """Options of graphical models."""

    close: float = setting(1.0, "a number from 1e-6 to 1000", "the fit ends when a step gains at most this, in nats "
                           "of the noise's log-likelihood", ge=1e-6, le=1000)  # fmt: skip
    most_cells: int = setting(
        1 << 25, "a whole number from 1 to 10^10", "maximum number of cells of all cliques together", ge=1, le=10**10
    )


def check(measurement_plan: MeasurementPlan, options: Options, memory: int) -> None:
    """Raise PlanError if the planned sets need too large a model, or too large a matrix, or levels of hierarchies."""
    check_no_trees(measurement_plan, "reconstruct.method", "graphical")
    if (plan := measurement_plan.evidence_plan) is None:  # not known before the rounds
        return
    sizes = {name: plan.domain[name].size for name in plan.domain.names}
    sets = list(dict.fromkeys([*plan.blocks.sets, *public_sets(plan.workload)]))
    check_size(_sizes_of(sizes, sets), sets, min(options.most_cells, memory // BYTES))
    for factor in {factor for strategy in plan.blocks.strategies for factor in strategy}:
        if isinstance(factor, ImplicitFactor):
            factor.check_matrix()


def check_size(sizes: Mapping[str, int], sets: Iterable[AttributeSet], limit: int) -> JunctionTree:
    """Return the junction tree of some sets.

    Raises PlanError, with the sets that do not fit, if it has too many cells.
    """
    requested = list(dict.fromkeys(sets))
    tree = junction_tree(sizes, requested)
    if tree.cells <= limit:
        return tree

    clique = max(tree.cliques, key=lambda clique: cells_of(sizes, clique))
    over = [", ".join(names) for names in _too_many(sizes, requested, limit)]
    more = f" and {len(over) - SHOWN} more" if len(over) > SHOWN else ""
    largest = f"the largest: {', '.join(clique[:8])}{', …' * (len(clique) > 8)}"
    needed = f"{tree.cells:,} cells, {format_bytes(BYTES * tree.cells)}"
    if tree.cells > MOST_DIGITS:
        needed = f"{tree.cells:.3g} cells, {BYTES * tree.cells / 2**30:.3g} GiB"
    raise PlanError("reconstruct.method", f"graphical, for sets whose cliques have {needed} ({largest})",
                    f"at most {limit:,} cells under engine.memory and reconstruct.most_cells",
                    f"leave out {'; '.join(over[:SHOWN])}{more}, raise the limits, or use maxent")  # fmt: skip


def _too_many(sizes: Mapping[str, int], sets: list[AttributeSet], limit: int) -> list[AttributeSet]:
    """Return the sets that do not fit together with the smaller ones before them."""
    included: list[AttributeSet] = []
    excluded: list[AttributeSet] = []
    for names in sorted(sets, key=lambda names: cells_of(sizes, names)):
        fits = len(excluded) <= 10 * SHOWN and junction_tree(sizes, [*included, names]).cells <= limit
        (included if fits else excluded).append(names)
    return excluded


def _sizes_of(sizes: Mapping[str, int], sets: Iterable[AttributeSet]) -> dict[str, int]:
    used = {name for names in sets for name in names}
    return {name: size for name, size in sizes.items() if name in used}


def prepare(evidence: Evidence, options: Options, folder: Path, release: str, each: ParallelMap) -> None:
    """Fit the model and write it into the folder, once."""
    if not (folder / FILE).exists():
        write_graphical(folder / FILE, fit_model(evidence, options))


def fit_model(evidence: Evidence, options: Options) -> GraphicalModel:
    """Return the model of all measurements; raise PlanError if it is too large.

    The size is checked before the fit, over the largest number of groups that any measurement has of each attribute.
    """
    domain, observed, total = evidence.workload.domain, list(evidence.measurements()), None
    if domain.public_totals and not any(measurement.total[1] for measurement in observed):
        total = float(domain.known_table(()))  # type: ignore[arg-type]
        observed += _public(evidence.workload, observed)
    measured_sets = [measurement.attributes for measurement in observed]
    sizes = _sizes_of({name: domain[name].size for name in domain.names}, measured_sets)

    # the finest groups of each attribute in a measured set of several attributes, for a check of the size
    joint = [measurement for measurement in observed if len(measurement.attributes) > 1]
    grouped = dict.fromkeys(sizes, 1)
    for measurement in joint:
        for name, grouping in zip(measurement.attributes, measurement.groups, strict=True):
            grouped[name] = min(max(grouped[name], grouping.count), sizes[name])
    check_size(grouped, [measurement.attributes for measurement in joint], options.most_cells)
    with one_thread():
        rules = domain.rules if domain.rule_texts else ()  # parents alone change no estimate
        return fit(sizes, observed, FitOptions(close=options.close), total=total, rules=rules)


def public_sets(workload: Workload) -> list[AttributeSet]:
    """Return the largest subsets of the workload's sets whose tables follow from public totals."""
    domain = workload.domain
    shared = dict.fromkeys(
        tuple(name for name in names if name in public.names)
        for names in workload.sets
        for public in domain.public_totals
    )
    return [names for names in shared if names and not any(set(names) < set(other) for other in shared)]


def _public(workload: Workload, observed: Sequence[Observed]) -> list[Observed]:
    """Return public totals as measurements: a fixed plan does not measure the residuals that follow from them.

    They have a hundredth of the noise variance of the most precise measurement. Tables of the estimates are fitted to
    the totals exactly.
    """
    domain = workload.domain
    variance = min(measurement.variance / measurement.column for measurement in observed) / PRECISE
    found = []
    for names in public_sets(workload):
        table = domain.known_table(names)
        assert table is not None
        groups, identities = tuple(every_cell(domain[name].size) for name in names), (None,) * len(names)
        found.append(Observed(names, groups, identities, table.astype(np.float64), variance))
    return found


def estimates(evidence: Evidence, options: Options, folder: Path) -> Estimates:
    """Return estimates from the file in the folder, or from a new fit if there is none."""
    model = read_graphical(folder / FILE) if (folder / FILE).exists() else fit_model(evidence, options)
    return ModelEstimates(evidence, model, tuple(model.cells))


def write_graphical(path: Path, model: GraphicalModel) -> None:
    """Write a model exactly into one file."""
    index = {"groups": {name: [group.size, *group.starts] for name, group in model.groups.items()},
             "factors": [list(names) for names in model.factors], "total": model.total, "gap": model.gap}  # fmt: skip
    arrays = {f"factor{i}": table for i, table in enumerate(model.factors.values())}
    arrays |= {f"cells{i}": model.cells[name] for i, name in enumerate(model.groups)}
    with writing(path, durable=False) as file:
        np.savez(file, allow_pickle=False, index=np.array(json.dumps(index)), **arrays)


def read_graphical(path: Path) -> GraphicalModel:
    """Return the model in a file."""
    with reading(path) as file, np.load(file, allow_pickle=False) as arrays:
        index = json.loads(str(arrays["index"]))
        groups = {name: Groups(starts[0], tuple(starts[1:])) for name, starts in index["groups"].items()}
        factors = {tuple(names): arrays[f"factor{i}"] for i, names in enumerate(index["factors"])}
        cells = {name: arrays[f"cells{i}"] for i, name in enumerate(groups)}
    return GraphicalModel(groups=groups, factors=factors, cells=cells, total=index["total"], gap=index["gap"])


def joint(folder: Path) -> GraphicalModel:
    """Return the model from which rows are drawn."""
    return read_graphical(folder / FILE)


def explain(options: Options) -> str:
    """Return the explanation of these estimates for readers."""
    kind = "a graphical model: the maximum-entropy distribution among those nearest to all measurements"
    return f"Estimates are from {kind}. Its marginals are non-negative and consistent. {NO_ERRORS}"


RECONSTRUCTION = Reconstruction(
    name=NAME,
    Options=Options,
    form="measurements",
    explain=explain,
    estimates=estimates,
    check=check,
    prepare=prepare,
    joint=joint,
)
