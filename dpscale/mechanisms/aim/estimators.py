"""Estimators of an AIM run, from its 1-ways and residuals: maximum entropy, GReM as published, or a graphical model.

`EntropyEstimator` measures residuals over groups of cells large enough compared with the noise, and estimates local
maximum entropy tables from all measurements. `GremEstimator` estimates sums of residuals (AIM+GReM, algorithm 3): the
1-ways are residuals as well (algorithm 6), and unmeasured residuals count as uniform.

`GraphicalEstimator` fits one distribution to all measurements (`reconstruction.junction_tree`). Its groups of cells and
precisions of residuals are those of local maximum entropy. The fit of a round starts from that of the previous round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, one_thread
from dpscale.domain.rules import DomainConstraint
from dpscale.plans.measurement_plan import CurrentEstimates, TableEstimates
from dpscale.reconstruction.consistency import NoisyCounts, total_of
from dpscale.reconstruction.entropy import LowOrder, determined_by_one, determined_over_groups, edges
from dpscale.reconstruction.graphical_fit import FitOptions, Observed, fit
from dpscale.reconstruction.junction_tree import GraphicalModel
from dpscale.reconstruction.low_order import model_of
from dpscale.workload.residual import Groups, LazyMarginals, Residuals, by_mass, every_cell

Counts = Mapping[str, NoisyCounts]
ABOVE_NOISE = 3.5  # least records of a group of cells, in standard deviations of the expected noise of a cell
EXPECTED_NOISE = 0.5  # of the noise of an even step: budgets that measure few pairs measure them more precisely
ResidualMeasurement = tuple[AttributeSet, Floats, float]


class FittedEstimates(Protocol):
    """Estimates of one state."""

    def table(self, names: AttributeSet, /) -> Floats:
        """Return the estimate of a candidate over groups."""

    def of(self, sets: Sequence[AttributeSet], /) -> CurrentEstimates:
        """Return the estimates of several candidates over groups, for tasks that compare them with counts."""

    def marginal(self, names: Sequence[str], /) -> Floats:
        """Return the estimate over cells, one axis per attribute in the requested order."""


class Estimator(Protocol):
    """Estimator of states, and the grouping of cells that suits it."""

    def is_determined(self, names: AttributeSet, /) -> bool:
        """Return whether the 1-ways and the domain determine a set completely, so it is no candidate."""

    def determined_over_groups(self, names: AttributeSet, groups: Mapping[str, Groups], /) -> bool:
        """Return whether smaller sets determine a set over groups."""

    def groups(self, counts: Counts, deviation: float, runs: Mapping[str, Groups]) -> dict[str, Groups]:
        """Return the groups of every attribute, chosen once; `deviation` is the noise of a first measurement.

        Groups may consist of whole `runs`, in which no query distinguishes two cells.
        """

    def one_way_residuals(self, counts: Counts) -> list[ResidualMeasurement]:
        """Return the residuals that follow from the 1-ways, as arguments of `Residuals.updated`."""

    def fit(
        self,
        counts: Counts,
        groups: Mapping[str, Groups],
        residuals: Residuals,
        candidates: Sequence[AttributeSet],
        previous: FittedEstimates | None = None,
    ) -> FittedEstimates:
        """Return the estimates of a state; `previous` are those of the previous round, as a starting point."""

    def precisions(
        self, counts: Counts, groups: Mapping[str, Groups], residuals: Residuals
    ) -> dict[AttributeSet, float]:
        """Return the precision of the estimate of each residual."""

    def changed_sets(
        self, before: Residuals, after: Residuals, candidates: Sequence[AttributeSet]
    ) -> list[AttributeSet]:
        """Return the candidates whose estimates a round may have changed."""


@dataclass(frozen=True)
class EntropyEstimator:
    """Estimator of local maximum entropy tables over groups of cells.

    Attributes
    ----------
    grain : float
        Groups have at least √(grain · σ · N) counts, and 3.5 σ, with σ the expected noise of a measurement.
    chains : int
        Passes of `low_order`.
    rules : tuple of Excludes
        Structural zeros and functional dependencies of the domain.
    expected_noise : float
        σ as a share of the noise of an even step.
    """

    grain: float = 0.3
    chains: int = 1
    rules: tuple[DomainConstraint, ...] = ()
    expected_noise: float = EXPECTED_NOISE

    def is_determined(self, names: AttributeSet) -> bool:
        return determined_by_one(self.rules, names)

    def determined_over_groups(self, names: AttributeSet, groups: Mapping[str, Groups]) -> bool:
        return determined_over_groups(self.rules, names, groups)

    def groups(self, counts: Counts, deviation: float, runs: Mapping[str, Groups]) -> dict[str, Groups]:
        """Return groups so large that a typical cell of a pair exceeds its expected noise.

        A pair of groups with c counts each has c²/N records on average; it exceeds the noise σ of a cell if c ≥ √(σ N),
        times √grain. Groups also have at least ABOVE_NOISE times σ.
        """
        total, deviation = total_of(counts), self.expected_noise * deviation
        least = max(float(np.sqrt(self.grain * deviation * total)), ABOVE_NOISE * deviation)
        return {
            name: by_mass(noisy.non_negative(total), least, edges(self.rules, name), runs.get(name))
            for name, noisy in counts.items()
        }

    def one_way_residuals(self, counts: Counts) -> list[ResidualMeasurement]:
        return []

    def fit(
        self,
        counts: Counts,
        groups: Mapping[str, Groups],
        residuals: Residuals,
        candidates: Sequence[AttributeSet],
        previous: FittedEstimates | None = None,
    ) -> EntropyEstimates:
        """Return estimates of largest entropy that fit all that was measured."""
        return EntropyEstimates(
            counts=counts,
            groups=groups,
            residuals=residuals,
            candidates=candidates,
            chains=self.chains,
            rules=self.rules,
        )

    def precisions(
        self, counts: Counts, groups: Mapping[str, Groups], residuals: Residuals
    ) -> dict[AttributeSet, float]:
        """Return the precisions including the 1-ways over cells; approximate, since groups differ in width.

        The total follows from every 1-way, with the variance of its sum.
        """
        had = dict(residuals.precisions)
        for name, noisy in counts.items():
            had[(name,)] = had.get((name,), 0.0) + 1 / noisy.grouped_variance(groups[name])
            had[()] = had.get((), 0.0) + 1 / noisy.sum_variance
        return had

    def changed_sets(
        self, before: Residuals, after: Residuals, candidates: Sequence[AttributeSet]
    ) -> list[AttributeSet]:
        return list(candidates)


@dataclass(frozen=True, eq=False)
class EntropyEstimates:
    """Local maximum entropy tables, computed on first access."""

    counts: Counts
    groups: Mapping[str, Groups]
    residuals: Residuals
    candidates: Sequence[AttributeSet]
    chains: int
    rules: tuple[DomainConstraint, ...]

    @cached_property
    def model(self) -> LowOrder:
        """Consistent non-negative low-order tables from all measurements."""
        return model_of(self.counts, self.groups, self.residuals, self.candidates, self.chains, self.rules)

    def table(self, names: AttributeSet) -> Floats:
        return self.model.coarse_marginal(names)

    def of(self, sets: Sequence[AttributeSet]) -> CurrentEstimates:
        return TableEstimates(self.model.coarse_marginals(sets))

    def marginal(self, names: Sequence[str]) -> Floats:
        return self.model.marginal(names)


@dataclass(frozen=True)
class GremEstimator:
    """Estimator of AIM+GReM as published: every cell is a group.

    Attributes
    ----------
    lazy : bool
        Whether marginals are retained and updated by changes (proposition 4.2), which takes the memory of all
        candidates; otherwise each marginal with a changed residual is the sum of its residuals again.
    """

    lazy: bool = False

    def is_determined(self, names: AttributeSet) -> bool:
        return False

    def determined_over_groups(self, names: AttributeSet, groups: Mapping[str, Groups]) -> bool:
        return False

    def groups(self, counts: Counts, deviation: float, runs: Mapping[str, Groups]) -> dict[str, Groups]:
        return {name: every_cell(len(noisy.values)) for name, noisy in counts.items()}

    def one_way_residuals(self, counts: Counts) -> list[ResidualMeasurement]:
        """Return the residual (at σ²) and the total (at n σ²) of every 1-way measured cell by cell (algorithm 6)."""
        measured: list[ResidualMeasurement] = []
        for name, noisy in counts.items():
            measured.append(((name,), noisy.values - noisy.values.mean(), 1 / noisy.variance))
            measured.append(((), np.asarray(noisy.values.sum()), 1 / (noisy.variance * len(noisy.values))))
        return measured

    def fit(
        self,
        counts: Counts,
        groups: Mapping[str, Groups],
        residuals: Residuals,
        candidates: Sequence[AttributeSet],
        previous: FittedEstimates | None = None,
    ) -> GremEstimates:
        """Return the estimates from residuals; marginals of the previous fit that did not change are kept.

        Without `lazy`, marginals are computed anew on each access; `counts`, `groups` and `candidates` are not used.
        """
        before = previous if isinstance(previous, GremEstimates) else None
        if not self.lazy:
            return GremEstimates(residuals)
        if before is None or before.marginals is None:
            return GremEstimates(residuals, LazyMarginals(residuals))
        return GremEstimates(residuals, before.marginals.updated(before.residuals, residuals))

    def precisions(
        self, counts: Counts, groups: Mapping[str, Groups], residuals: Residuals
    ) -> dict[AttributeSet, float]:
        return dict(residuals.precisions)

    def changed_sets(
        self, before: Residuals, after: Residuals, candidates: Sequence[AttributeSet]
    ) -> list[AttributeSet]:
        """Return the candidates that contain a residual set with another value than before."""
        changed = [
            set(residual_set)
            for residual_set, value in after.values.items()
            if value is not before.values.get(residual_set)
        ]
        return [names for names in candidates if any(residual_set <= set(names) for residual_set in changed)]


@dataclass(frozen=True, eq=False)
class GremEstimates:
    """Sums of residuals. Axes are in the order of the attributes' sizes, or transposed to it.

    With lazy marginals, tables of candidates are computed here; otherwise by the tasks that compare them with counts.
    """

    residuals: Residuals
    marginals: LazyMarginals | None = None

    def table(self, names: AttributeSet) -> Floats:
        return (self.residuals if self.marginals is None else self.marginals).marginal(names)

    def of(self, sets: Sequence[AttributeSet]) -> CurrentEstimates:
        if self.marginals is None:
            return self.residuals.within(sets)
        return TableEstimates({names: self.marginals.marginal(names) for names in sets})

    def marginal(self, names: Sequence[str]) -> Floats:
        ordered = tuple(name for name in self.residuals.sizes if name in names)
        return self.residuals.marginal(ordered).transpose([ordered.index(name) for name in names])


@dataclass(frozen=True)
class GraphicalEstimator:
    """Estimator that fits a graphical model.

    Attributes
    ----------
    grain : float
        Size of groups, as in `EntropyEstimator`.
    close : float
        Tolerance of a round's fit, in nats of the log-likelihood of the noise (`graphical_fit`).
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
        """Return the graphical model that fits all that was measured, starting from the previous model."""
        before = previous.model if isinstance(previous, GraphicalEstimates) else None
        return GraphicalEstimates(counts=counts, groups=groups, residuals=residuals, close=self.close, start=before)


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
        """Graphical model of the counts and residuals; its fit begins at `start` and has the tolerance `close`."""
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
    """Return the model's marginal over some groups; coarser model groups are divided in proportion to its 1-ways.

    The share of a wanted group in a group of the model is the probability of its cells given that group.
    """
    table = model.coarse_marginal(names)
    for axis, name in enumerate(names):
        of_model, wanted = model.groups[name], groups[name]
        if of_model != wanted:
            within = np.add.reduceat(model.calibrated.within[name], wanted.starts)
            labels = of_model.labels[list(wanted.starts)]  # group of the model that contains each wanted one
            shares = within.reshape([-1 if i == axis else 1 for i in range(len(names))])
            table = table.take(labels, axis=axis) * shares
    return np.asarray(table)


def _of_cells(name: str, rows: Floats | None, values: Floats, variance: float) -> Observed:
    """Return a noisy 1-way marginal as an observation over single cells; `rows` is its strategy, None for the cells."""
    cells = len(values) if rows is None else rows.shape[1]
    return Observed(
        attributes=(name,), groups=(every_cell(cells),), operators=(rows,), values=values, variance=variance
    )


def observed(counts: Counts, groups: Mapping[str, Groups], residuals: Residuals) -> list[Observed]:
    """Return the observations of 1-ways over cells, and of residuals over groups as centred marginals.

    A residual is a marginal measured by the centring along every axis.
    """
    observations = [_of_cells(name, *noisy.linear_form()) for name, noisy in counts.items()]
    for names, values in residuals.values.items():
        inside = tuple(groups[name] for name in names)
        centring = tuple(np.eye(group.count) - 1 / group.count for group in inside)
        observations.append(
            Observed(
                attributes=names,
                groups=inside,
                operators=centring,
                values=np.asarray(values),
                variance=1 / residuals.precision(names),
            )
        )
    return observations
