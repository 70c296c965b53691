"""Answers from estimated marginals alone: of local maximum entropy, graphical models, or biased GReM.

Every query over an attribute set is a sum over the cells of its estimated marginal. The noise alone does not determine
a standard error, because the model completes residuals that were not measured. Standard errors are therefore nan,
unless they were simulated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain.rules import restored
from dpscale.reconstruction.base import Estimates, Evidence
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.joint_intervals import simultaneous_width
from dpscale.reconstruction.public_margins import fit_totals
from dpscale.reconstruction.simulated_errors import SIMULATION_NOTE, Calibration, Departures, SimulatedErrors
from dpscale.storage.files import reading, write_whole, writing
from dpscale.workload import WorkloadPart
from dpscale.workload.residual import Groups, Residuals

NO_ERRORS = (
    "No standard errors are available: the model completes what was not measured, with an error that the noise does "
    "not determine."
)
SIMULATED = f"Standard errors: {SIMULATION_NOTE[0].lower()}{SIMULATION_NOTE[1:]}"


class MarginalModel(Protocol):
    """Interface of a model with estimated marginals."""

    def marginal(self, names: AttributeSet, /) -> Floats:
        """Return estimated counts over the cells, one axis each in the domain's order."""


class ModelEstimates:
    """Estimates of the measured sets and of the workload by a model.

    Parameters
    ----------
    evidence : Evidence
    model : MarginalModel
    known : sequence of str
        Attributes of the model.
    errors : SimulatedErrors, optional
        If the job requests simulated errors.
    """

    def __init__(
        self, evidence: Evidence, model: MarginalModel, known: Sequence[str], errors: SimulatedErrors | None = None
    ) -> None:
        """Take the workload, the noise and the spans of the evidence; the parameters are those of the class."""
        self.workload, self.noise, self.model, self.errors = evidence.workload, evidence.noise, model, errors
        self._known, self._spans = frozenset(known), evidence.spans

    def extrapolates(self, attributes: Sequence[str]) -> bool:
        """Return whether the model completes residuals that the measurements of these attributes leave undetermined."""
        return not self._spans(self.workload.domain.ordered(attributes))

    def marginal(self, attributes: Sequence[str]) -> Floats:
        """Return estimated counts, one axis per attribute in the given order."""
        for name in attributes:
            if name not in self._known:
                raise PlanError("attributes", f"{name} was not measured", "attributes of the workload",
                                "add a family over it to the workload")  # fmt: skip

        ordered = self.workload.domain.ordered(attributes)
        table = self.model.marginal(ordered)
        if self.workload.domain.public_totals:
            table = fit_totals(self.workload.domain, ordered, table)
        return table.transpose([ordered.index(name) for name in attributes])

    def answer(self, attributes: Sequence[str], query: Any) -> tuple[float, float]:
        """Return the estimate and standard error of one linear query, an array over the attributes' cells.

        The standard error is nan if none is available.
        """
        weights = np.asarray(query, dtype=np.float64)
        shape = self.workload.domain.shape(attributes)
        if weights.shape != shape or not np.isfinite(weights).all():
            raise JobError(
                "query", f"shape {weights.shape}", f"finite numbers of shape {shape}", "give one axis per attribute"
            )

        error = math.nan if self.errors is None else self.errors.query_error(attributes, weights)
        return float((weights * self.marginal(attributes)).sum()), error

    def iter_part_answers(self, part: WorkloadPart, sets: Sequence[AttributeSet]) -> Iterator[tuple[Floats, Floats]]:
        """Yield `part_answers` for each of several sets."""
        return (self.part_answers(part, names) for names in sets)

    def part_answers(self, part: WorkloadPart, attributes: AttributeSet) -> tuple[Floats, Floats]:
        """Return estimates of all queries of a part over one set, and standard errors (nan if not available).

        The total (the empty set) has no simulated error.
        """
        answers = part.answers(attributes, self.marginal(attributes))
        if self.errors is None or not attributes:
            return answers, np.full(answers.shape, math.nan)
        return answers, self.errors.part_errors(part, attributes)

    def error_parts(self, attributes: AttributeSet) -> dict[str, Floats]:
        """Return the parts of the standard errors of a marginal's cells by name. Raises PlanError if there are none."""
        if self.errors is None:
            raise PlanError("attributes", f"no standard errors of {', '.join(attributes)}", "simulated errors",
                            'use method "maxent" with an adaptive mechanism and leave out errors = "none"')  # fmt: skip
        return self.errors.cell_parts(attributes)


# weights of `Calibration` for runs whose file has none
FIRST_WEIGHTS = (1.29, 1.26, 1.67, 1.73, 0.66, 0.93, 0.71, 1.04, 0.31, 0.44, 0.0037)
MODEL, BASE, ERRORS = "model.npz", "base.npz", "errors.json"
CONSISTENT, RESIDUALS = "agreed.npz", "residuals.npz"


def write_model(path: Path, model: LowOrder, like: LowOrder | None = None) -> None:
    """Write a model exactly into one file.

    All tables are in one flat array: separate arrays have more overhead than content. The sets and groups of a model
    that has those of `like` are not repeated.
    """
    if like is not None and _same_sets(model, like):
        index: dict[str, Any] = {"total": model.total}
    else:
        groups = {name: [grouping.size, *grouping.starts] for name, grouping in model.groups.items()}
        tables = [list(names) for names in model.tables]
        index = {"groups": groups, "ones": list(model.ones), "tables": tables, "total": model.total,
                 "measured": [list(names) for names in model.tables if names in model.measured]}  # fmt: skip
        if model.rules:
            index["rules"] = [rule.to_dict() for rule in model.rules]
    write_arrays(path, index, {"ones": _flat(model.ones.values()), "cells": _flat(model.tables.values())})


def _same_sets(first: LowOrder, second: LowOrder) -> bool:
    """Return whether two models have the same sets in the same order, groups and rules, so that arrays suffice."""
    return (
        (list(first.tables), list(first.ones)) == (list(second.tables), list(second.ones))
        and (first.measured, first.rules) == (second.measured, second.rules)
        and first.groups == second.groups
    )


def read_model(path: Path, like: LowOrder | None = None) -> LowOrder:
    """Return the model in a file, equal to the last byte; `like` is that with which it was written.

    A file of the same sets as `like` has the cells only; another one has an index of groups, sets, total and rules.
    """
    with reading(path) as file, np.load(file, allow_pickle=False) as arrays:
        index = json.loads(str(arrays["index"]))
        if like is not None and "tables" not in index:
            one_ways = _split(arrays["ones"], [one_way.shape for one_way in like.ones.values()])
            cells = _split(arrays["cells"], [table.shape for table in like.tables.values()])
            ones, tables = dict(zip(like.ones, one_ways, strict=True)), dict(zip(like.tables, cells, strict=True))
            return replace(like, ones=ones, tables=tables, total=index["total"])

        groups = {name: Groups(starts[0], tuple(starts[1:])) for name, starts in index["groups"].items()}
        counts = {name: grouping.count for name, grouping in groups.items()}
        sets = [tuple(names) for names in index["tables"]]
        if "cells" in arrays:
            one_ways = _split(arrays["ones"], [(groups[name].size,) for name in index["ones"]])
            cells = _split(arrays["cells"], [tuple(map(counts.__getitem__, names)) for names in sets])
        else:  # older versions: one array per table
            one_ways = [arrays[f"one{i}"] for i in range(len(index["ones"]))]
            cells = [arrays[f"table{i}"] for i in range(len(sets))]

    measured = index.get("measured", index["tables"])  # older files do not list measured sets
    rules = tuple(restored(rule) for rule in index.get("rules", ()))
    return LowOrder(
        ones=dict(zip(index["ones"], one_ways, strict=True)),
        groups=groups,
        tables=dict(zip(sets, cells, strict=True)),
        total=index["total"],
        measured=frozenset(tuple(names) for names in measured),
        rules=rules,
    )


def _flat(tables: Iterable[Floats]) -> Floats:
    return np.concatenate([np.zeros(0), *(np.asarray(table).reshape(-1) for table in tables)])


def _split(cells: Floats, shapes: Sequence[tuple[int, ...]]) -> list[Floats]:
    """Return the tables of a flat array, as views."""
    ends = np.cumsum([0, *(math.prod(shape) for shape in shapes)]).tolist()
    return [cells[first:end].reshape(shape) for shape, (first, end) in zip(shapes, pairwise(ends), strict=True)]


def write_errors(folder: Path, errors: SimulatedErrors) -> None:
    """Write the tables of the measurements and the replicas, then the file that refers to them."""
    write_model(folder / BASE, errors.base)
    for number, replica in enumerate(errors.replicas):
        write_model(folder / f"replica-{number:02d}.npz", replica, errors.base)
    content = {"replicas": len(errors.replicas), "measured": [list(names) for names in errors.known],
               "known": list(errors.known.values()), "widening": errors.widening,
               "pairs": errors.departures.pairs, "larger": errors.departures.larger,
               "weights": list(astuple(errors.calibration))}  # fmt: skip
    write_whole(folder / ERRORS, json.dumps(content).encode())


def read_errors(folder: Path, model: LowOrder) -> SimulatedErrors:
    """Return the simulated errors in a folder.

    Older runs have one dispersion, no separate base, or no weights: they have the first ones.
    """
    content = json.loads((folder / ERRORS).read_text("utf-8"))
    sets = [tuple(names) for names in content["measured"]]
    known = dict(zip(sets, content.get("known", [1.0] * len(sets)), strict=True))  # older runs: all measured
    base = read_model(folder / BASE) if (folder / BASE).exists() else model
    replicas = tuple(read_model(folder / f"replica-{number:02d}.npz", base) for number in range(content["replicas"]))
    departures = Departures(content.get("pairs", content.get("dispersion")), content.get("larger"))
    calibration = Calibration(*content.get("weights", FIRST_WEIGHTS))
    return SimulatedErrors(
        model=model,
        base=base,
        replicas=replicas,
        known=known,
        widening=content["widening"],
        departures=departures,
        calibration=calibration,
    )


def write_residuals(path: Path, residuals: Residuals) -> None:
    """Write residual values over all cells, without their precisions."""
    index = {"sizes": dict(residuals.sizes), "sets": [list(names) for names in residuals.values]}
    write_arrays(path, index, {f"r{i}": values for i, values in enumerate(residuals.values.values())})


def read_residuals(path: Path) -> Residuals:
    """Return the residuals in a file, without precisions."""
    with reading(path) as file, np.load(file, allow_pickle=False) as content:
        index = json.loads(str(content["index"]))
        values = {tuple(names): content[f"r{i}"] for i, names in enumerate(index["sets"])}
    return Residuals(index["sizes"], values)


def write_arrays(path: Path, index: dict[str, Any], arrays: dict[str, Floats]) -> None:
    """Write a file atomically; it is not flushed to disk, because it can be recomputed for free."""
    with writing(path, durable=False) as file:
        np.savez(file, allow_pickle=False, index=np.array(json.dumps(index)), **arrays)


def has_simultaneous_intervals(estimates: Estimates) -> bool:
    """Return whether simultaneous intervals exist: for least squares and for simulated errors."""
    return isinstance(estimates, LeastSquaresEstimates) or (
        isinstance(estimates, ModelEstimates) and estimates.errors is not None
    )


def simultaneous_widths(
    estimates: Estimates, part: WorkloadPart, names: AttributeSet, std_errors: Floats, level: float, seed: str
) -> Floats:
    """Return the half width of the interval of each query, such that all intervals hold at once.

    The interval of a query is its estimate plus or minus the half width. With probability `level` the intervals of all
    queries of a part of the workload over one attribute set contain the exact answers. Simultaneous intervals exist
    for least squares and for models with simulated errors only (`has_simultaneous_intervals`).

    Parameters
    ----------
    estimates : Estimates
    part : WorkloadPart
    names : AttributeSet
    std_errors : ndarray
        Standard errors of the queries, in the order of the result; product queries in any order.
    level : float
    seed : str
        Any public text, which determines the simulation of the noise.
    """
    if isinstance(estimates, LeastSquaresEstimates):
        # the noise is simulated: all queries have the same half width if it is counted in standard errors
        width_in_std_errors = simultaneous_width(estimates, part, names, level, seed)
        return width_in_std_errors * std_errors

    assert isinstance(estimates, ModelEstimates)
    assert estimates.errors is not None
    # errors of models have too few simulated draws for this, so their half widths follow from a formula
    return estimates.errors.simultaneous_widths(part, names, std_errors, level)
