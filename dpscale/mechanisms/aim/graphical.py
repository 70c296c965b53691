"""Estimator of a graphical model: one distribution fitted to all measurements (`reconstruction.junction_tree`).

Groups of cells and precisions of residuals are those of local maximum entropy. The fit of a round starts from that of
the previous round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, one_thread
from dpscale.mechanisms.aim.estimators import Counts, EntropyEstimator, FittedEstimates, ResidualMeasurement
from dpscale.plans.measurement_plan import TableEstimates
from dpscale.reconstruction.junction_tree.fit import FitOptions, Observed, fit
from dpscale.reconstruction.junction_tree.model import GraphicalModel
from dpscale.workload.residual.grem import Residuals
from dpscale.workload.residual.in_axis import Groups, every_cell


@dataclass(frozen=True)
class GraphicalEstimator:
    """Estimator that fits a graphical model.

    Attributes
    ----------
    grain : float
        Size of groups, as in `EntropyEstimator`.
    close : float
        Tolerance of a round's fit, in nats of the log-likelihood of the noise (`junction_tree.fit`).
    by_cell : bool
        Whether every cell is a group.
    """

    grain: float = 0.45
    close: float = 20.0
    by_cell: bool = False

    def is_determined(self, names: AttributeSet) -> bool:
        return False

    def determined_over_groups(self, names: AttributeSet, groups: Mapping[str, Groups]) -> bool:
        return False

    def groups(self, counts: Counts, deviation: float, runs: Mapping[str, Groups]) -> dict[str, Groups]:
        if self.by_cell:
            return {name: every_cell(len(noisy.values)) for name, noisy in counts.items()}
        return EntropyEstimator(self.grain, expected_noise=1.0).groups(counts, deviation, runs)

    def one_way_residuals(self, counts: Counts) -> list[ResidualMeasurement]:
        return []

    def precisions(
        self, counts: Counts, groups: Mapping[str, Groups], residuals: Residuals
    ) -> dict[AttributeSet, float]:
        return EntropyEstimator(self.grain).precisions(counts, groups, residuals)

    def changed_sets(
        self, before: Residuals, after: Residuals, candidates: Sequence[AttributeSet]
    ) -> list[AttributeSet]:
        return list(candidates)

    def fit(
        self,
        counts: Counts,
        groups: Mapping[str, Groups],
        residuals: Residuals,
        candidates: Sequence[AttributeSet],
        previous: FittedEstimates | None = None,
    ) -> GraphicalEstimates:
        before = previous.model if isinstance(previous, GraphicalEstimates) else None
        return GraphicalEstimates(counts, groups, residuals, self.close, before)


@dataclass(frozen=True, eq=False)
class GraphicalEstimates:
    """Graphical model of all measurements, fitted on first access."""

    counts: Counts
    groups: Mapping[str, Groups]
    residuals: Residuals
    close: float
    start: GraphicalModel | None = None

    @cached_property
    def model(self) -> GraphicalModel:
        sizes = {name: len(noisy.values) for name, noisy in self.counts.items()}
        observations = observed(self.counts, self.groups, self.residuals)
        with one_thread():
            return fit(sizes, observations, FitOptions(close=self.close), self.start)

    def table(self, names: AttributeSet) -> Floats:
        """Return the marginal over the groups of the run.

        The model has the same groups if the set was measured, else one group of all cells.
        """
        return _coarse(self.model, self.groups, names)

    def of(self, sets: Sequence[AttributeSet]) -> TableEstimates:
        return TableEstimates({names: self.table(names) for names in sets})

    def marginal(self, names: Sequence[str]) -> Floats:
        return self.model.marginal(names)


def _coarse(model: GraphicalModel, groups: Mapping[str, Groups], names: AttributeSet) -> Floats:
    """Return the model's marginal over some groups; coarser model groups are divided in proportion to its 1-ways."""
    table = model.coarse_marginal(names)
    for axis, name in enumerate(names):
        own, wanted = model.groups[name], groups[name]
        if own != wanted:
            within = np.add.reduceat(model.calibrated.within[name], wanted.starts)
            labels = own.labels[list(wanted.starts)]
            shares = within.reshape([-1 if i == axis else 1 for i in range(len(names))])
            table = table.take(labels, axis=axis) * shares
    return np.asarray(table)


def _of_cells(name: str, rows: Floats | None, values: Floats, variance: float) -> Observed:
    cells = len(values) if rows is None else rows.shape[1]
    return Observed((name,), (every_cell(cells),), (rows,), values, variance)


def observed(counts: Counts, groups: Mapping[str, Groups], residuals: Residuals) -> list[Observed]:
    """Return the observations of 1-ways over cells, and of residuals over groups as centred marginals."""
    found = [_of_cells(name, *noisy.linear_form()) for name, noisy in counts.items()]
    for names, values in residuals.values.items():
        inside = tuple(groups[name] for name in names)
        centring = tuple(np.eye(one.count) - 1 / one.count for one in inside)
        found.append(Observed(names, inside, centring, np.asarray(values), 1 / residuals.precision(names)))
    return found
