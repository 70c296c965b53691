"""Fit of a graphical model: the maximum-entropy distribution among those nearest to noisy measurements.

Minimises L(μ) = ½ Σ ‖K μ_S − y‖² / σ² over the marginals of all distributions of `total` records (McKenna et al.,
2019). The method is implicit entropic mirror descent: the step from p to p' minimises L + τ KL(p' ‖ p), so it uses the
gradient at its end and needs no step length. p' is p times exp(−Kᵀν) with ν = (K μ' − y)/(τ σ²), the maximum of a
smooth concave dual,
    −total · log Z(θ − Kᵀν) − ν·y − τ/2 · σ²‖ν‖²,
which L-BFGS finds with one message passing per evaluation. Starting from the uniform distribution, every p has the
exponential form of the measurements, hence the largest entropy among distributions with the same measured values. τ
decreases from step to step.

Stopping: L is convex, so L(μ) − min L ≤ ⟨∇L, μ⟩ − min over cells (the Frank–Wolfe gap), and one message passing with
maxima finds the best cell. L is a log-likelihood: a gap of 1/2 means that all measured values together are within one
standard deviation of noise of the best fit. The bound is loose if counts are large against their noise; steps therefore
also end when they no longer improve L, and the model stores its bound.

*Terms.* The potentials are the logarithms of the factors of p: one table for each measured set, over groups of cells,
and one for each attribute, over cells. A `joint` measurement has one operator K on all cells of several attributes,
other ones have one for each axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, optimize
from dpscale.domain.rules import DomainConstraint, constraints_on
from dpscale.reconstruction.consistency import LEAST_TOTAL
from dpscale.reconstruction.entropy import coarse_possible
from dpscale.reconstruction.junction_tree import (
    IMPOSSIBLE,
    GraphicalModel,
    JunctionTree,
    assign_factors,
    calibrate,
    collect_messages,
    junction_tree,
    largest,
)
from dpscale.workload.residual import Groups, coarsened, every_cell, expanded


@dataclass(frozen=True, eq=False)
class Observed:
    """Measurement of a marginal.

    Attributes
    ----------
    attributes : AttributeSet
        In the domain's order.
    groups : tuple of Groups
        Groups of cells of each attribute that the operators apply to.
    operators : tuple of ndarray or None
        K of every axis, shape (rows, groups), None for the identity; or a single one over all cells of several
        attributes.
    values : ndarray
        Measured values.
    variance : float
        Noise variance of each value.
    """

    attributes: AttributeSet
    groups: tuple[Groups, ...]
    operators: tuple[Floats | None, ...]
    values: Floats
    variance: float

    @property
    def joint(self) -> bool:
        return len(self.operators) == 1 and len(self.attributes) > 1

    @property
    def column(self) -> float:
        """Largest squared norm of a column of ⊗ K."""
        return math.prod(
            1.0 if operator is None else float((operator**2).sum(axis=0).max()) for operator in self.operators
        )

    @cached_property
    def total(self) -> tuple[float, float]:
        """Estimate of the number of records and its precision 1/σ²; (0, 0) if the measurement does not determine it.

        The unbiased estimate is c·y, where c is the shortest vector with c (⊗ Kᵢ) = 1ᵀ; its noise variance is |c|² σ².
        """
        coefficients = [_summing(operator) for operator in self._matrices()]
        if any(coefficient is None for coefficient in coefficients):
            return 0.0, 0.0

        value, length = np.asarray(self.values).reshape([-1] if self.joint else self.values.shape), 1.0
        for coefficient in coefficients:
            assert coefficient is not None
            value, length = np.tensordot(coefficient, value, axes=(0, 0)), length * float(coefficient @ coefficient)
        return float(value), 1 / (length * self.variance)

    def _matrices(self) -> list[Floats]:
        """Return the matrix K of each axis as an array, (rows, groups); of a joint measurement the only one."""
        if self.joint:
            return [_explicit(self.operators[0], 0)]
        return [
            _explicit(operator, grouping.count) for operator, grouping in zip(self.operators, self.groups, strict=True)
        ]

    def apply(self, marginal: Floats, runs: Sequence[Groups]) -> Floats:
        """Apply K to a marginal over finer groups; `runs` are the measurement's groups as runs of them (`runs_of`)."""
        table = coarsened(marginal, runs)
        if self.joint:
            return np.asarray(_explicit(self.operators[0], 0) @ table.reshape(-1)).reshape(self.values.shape)
        for axis, operator in enumerate(self.operators):
            if operator is not None:
                table = _along(operator, table, axis)
        return np.asarray(table)

    def apply_transpose(self, values: Floats, runs: Sequence[Groups]) -> Floats:
        """Apply Kᵀ to an array of the shape of `values`; return a number for every finer cell.

        K is the strategy of the measured set: one matrix for all axes if `joint`, else one for each axis, None for an
        identity. `runs` are the measured groups in terms of the finer cells.
        """
        table = values
        if self.joint:
            flat = _explicit(self.operators[0], 0).T @ table.reshape(-1)
            table = flat.reshape([grouping.count for grouping in self.groups])
        else:
            for axis, operator in enumerate(self.operators):
                if operator is not None:
                    table = _along(operator.T, table, axis)
        return expanded(table, runs)


def _along(operator: Floats, table: Floats, axis: int) -> Floats:
    """Apply an operator along one axis.

    A matrix product needs the axis at the end or, after a reshape, at the start; other axes need a general contraction.
    """
    if axis == table.ndim - 1:
        return np.asarray(table @ operator.T)
    if axis == 0:
        return (operator @ table.reshape(len(table), -1)).reshape(len(operator), *table.shape[1:])
    return np.moveaxis(np.tensordot(operator, table, axes=(1, axis)), 0, axis)


def _explicit(operator: Floats | None, size: int) -> Floats:
    return np.eye(size) if operator is None else operator


def _summing(operator: Floats) -> Floats | None:
    """Return the shortest c with c K = 1ᵀ, or None if 1ᵀ is not in the row space."""
    ones = np.ones(operator.shape[1])
    combination: Floats = np.asarray(np.linalg.lstsq(operator.T, ones, rcond=None)[0], dtype=np.float64)
    return combination if np.abs(operator.T @ combination - ones).max() < 1e-8 else None


def runs_of(coarse: Sequence[Groups], fine: Sequence[Groups]) -> list[Groups]:
    """Return groups as runs of finer groups: for each group of `coarse` the first of the groups of `fine` in it."""
    runs = []
    for larger, smaller in zip(coarse, fine, strict=True):
        runs.append(Groups(smaller.count, tuple(np.searchsorted(smaller.starts, larger.starts).tolist())))
    return runs


def total_of(observed: Iterable[Observed]) -> float:
    """Return the number of records, the inverse-variance average of all totals, at least LEAST_TOTAL.

    A measurement's total has the precision 1/variance, and 0 if it does not determine the total; 1 record without any.
    """
    totals = [measurement.total for measurement in observed]  # (value, precision)
    precision = sum(weight for _, weight in totals)
    return max(sum(value * weight for value, weight in totals) / precision, LEAST_TOTAL) if precision else 1.0


def common_groups(sizes: Iterable[tuple[str, int]], observed: Sequence[Observed]) -> dict[str, Groups]:
    """Return, for every attribute, the common refinement of the groups of all measurements of several attributes.

    Groups are runs of cells, given by their first cells (`starts`), so the refinement has the union of the starts. An
    attribute without such a measurement has one group.
    """
    starts: dict[str, set[int]] = {}
    for measurement in observed:
        if len(measurement.attributes) > 1:
            for name, grouping in zip(measurement.attributes, measurement.groups, strict=True):
                starts.setdefault(name, set()).update(grouping.starts)
    return {name: Groups(size, tuple(sorted(starts.get(name, {0})))) for name, size in sizes}


Parts = dict[AttributeSet, Floats]


@dataclass(frozen=True)
class FitOptions:
    """Options of the fit.

    Attributes
    ----------
    close : float
        The fit ends when L is certified to be within this of its minimum.
    patience : int
        The fit also ends when so many consecutive steps reduced L by no more than `close`.
    first, falling, least : float
        First τ, its factor per step, and its minimum, in units of records over noise variance (L's largest curvature).
    inner : int
        L-BFGS iterations per step.
    """

    close: float = 1.0
    patience: int = 1
    first: float = 1e-2
    falling: float = 0.3
    least: float = 1e-4
    inner: int = 200


DEFAULT_OPTIONS = FitOptions()


def fit(
    sizes: Mapping[str, int],
    observed: Sequence[Observed],
    options: FitOptions = DEFAULT_OPTIONS,
    start: GraphicalModel | None = None,
    total: float | None = None,
    rules: Sequence[DomainConstraint] = (),
) -> GraphicalModel:
    """Return the fitted model of the attributes in `sizes`.

    τ starts at `options.first` times the curvature of L and decreases. `stalled` counts consecutive steps that reduce L
    by less than `close`. A step has a bound of how far its L is above the least one. The returned potentials have the
    smallest L of all steps, so every bound holds for them, and the certified gap is the smallest bound.

    Parameters
    ----------
    sizes : mapping of str to int
        Number of cells of each attribute.
    observed : sequence of Observed
    options : FitOptions
    start : GraphicalModel, optional
        Model fitted to some of the same measurements, from which the fit starts.
    total : float, optional
        Number of records; estimated from the measurements by default.
    rules : sequence of DomainConstraint
        Rules whose impossible cells have no records, where a measured set contains all their attributes.
    """
    measured = [measurement for measurement in observed if measurement.attributes]
    problem = _Problem(sizes, measured, total or total_of(observed), tuple(rules))
    potentials = problem.potentials(start)
    gap, loss = problem.gap(potentials)
    best, tau, stalled = potentials, options.first * problem.curvature, 0

    while gap > options.close and stalled < options.patience:
        potentials = problem.step(potentials, tau, options.inner)
        bound, new_loss = problem.gap(potentials)
        tau = max(tau * options.falling, options.least * problem.curvature)
        stalled = stalled + 1 if new_loss > loss - options.close else 0
        if new_loss < loss:
            best, loss = potentials, new_loss
        gap = min(gap, bound)

    return problem.model(best, gap)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Fit problem. Potentials are one table per measured set, over groups, and one per attribute, over cells."""

    sizes: Mapping[str, int]
    observed: Sequence[Observed]
    total: float
    rules: tuple[DomainConstraint, ...] = ()
    groups: dict[str, Groups] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", common_groups(self.sizes.items(), self.observed))

    @cached_property
    def sets(self) -> list[AttributeSet]:
        several = [measurement.attributes for measurement in self.observed if len(measurement.attributes) > 1]
        return list(dict.fromkeys(several))

    @cached_property
    def tree(self) -> JunctionTree:
        return junction_tree({name: group.count for name, group in self.groups.items()}, self.sets)

    @cached_property
    def clique_numbers(self) -> dict[AttributeSet, int]:
        return {names: self.tree.smallest_clique(names) for names in [*self.sets, *((name,) for name in self.sizes)]}

    @cached_property
    def _runs(self) -> list[list[Groups]]:
        """The groups of every measurement, as runs of the groups of its set's table."""
        runs = []
        for measurement in self.observed:
            names = measurement.attributes
            finer = [self.groups[name] for name in names]
            if len(names) == 1:  # the table of an attribute is over its cells
                finer = [every_cell(self.sizes[names[0]])]
            runs.append(runs_of(measurement.groups, finer))
        return runs

    @cached_property
    def _scales(self) -> list[float]:
        return [1 / math.sqrt(measurement.variance) for measurement in self.observed]

    @cached_property
    def curvature(self) -> float:
        """Approximate curvature of L: records times the largest squared column norm of any K/σ."""
        return self.total * max(measurement.column / measurement.variance for measurement in self.observed)

    def potentials(self, start: GraphicalModel | None) -> Parts:
        """Return the potentials from which the fit starts: of another model, or those of independent attributes.

        Potentials are logarithms of factors: 0 is the uniform distribution. A start replaces those with the same
        attributes and groups.
        """
        potentials: Parts = {names: np.zeros(self.tree.shape(names)) for names in self.sets}
        potentials |= {(name,): self._initial_cells(name) for name in self.sizes}
        if start is not None:
            potentials |= {(name,): table for name, table in start.cells.items() if name in self.sizes}
            potentials |= {names: table for names, table in start.factors.items()
                      if names in potentials and table.shape == potentials[names].shape}  # fmt: skip
        for names in self.sets:
            if constraints_on(self.rules, names):  # a step scales cells, so that impossible ones stay empty
                potentials[names] = np.where(
                    coarse_possible(self.rules, names, self.groups), potentials[names], IMPOSSIBLE
                )
        return potentials

    def _initial_cells(self, name: str) -> Floats:
        """Return the initial potential of an attribute: the logarithm of its measured cells, or zero."""
        for measurement in self.observed:
            has_cells = measurement.operators[0] is None and len(measurement.values) == self.sizes[name]
            if measurement.attributes == (name,) and has_cells:
                return np.log(np.maximum(measurement.values, 0.1 * math.sqrt(measurement.variance)))
        return np.zeros(self.sizes[name])

    def marginals(self, potentials: Parts) -> tuple[Parts, float]:
        """Return the expected counts of the model, one table for each potential, and log Z.

        Parameters
        ----------
        potentials : mapping of AttributeSet to ndarray
            Of each set over groups of cells, one axis for each attribute; of each attribute, `potentials[name,]`, over
            its cells. Groups are cells with the same factor in every set.
        """
        factors = {names: potentials[names] for names in self.sets}
        cells = {name: potentials[name,] for name in self.sizes}
        model = calibrate(self.tree, self.clique_numbers, self.groups, factors, cells)

        counts: Parts = {}
        one_way_sets = [(name,) for name in self.sizes]
        for names in [*self.sets, *one_way_sets]:
            clique = self.tree.cliques[self.clique_numbers[names]]
            other_axes = tuple(axis for axis, attribute in enumerate(clique) if attribute not in names)
            counts[names] = self.total * model.cliques[self.clique_numbers[names]].sum(axis=other_axes)

        # counts of single attributes are over cells: that of the cell's group, times its share of the group
        for name in self.sizes:
            counts[name,] = counts[name,][self.groups[name].labels] * model.within[name]
        return counts, model.log_total

    def deviations(self, counts: Parts) -> list[Floats]:
        """Return (K μ − y)/σ of every measurement."""
        scaled = []
        for measurement, runs, scale in zip(self.observed, self._runs, self._scales, strict=True):
            expected = measurement.apply(counts[measurement.attributes], runs)
            scaled.append((expected - measurement.values) * scale)
        return scaled

    def apply_transpose(self, scaled: Sequence[Floats]) -> Parts:
        """Return Σ Kᵀ s/σ on every table.

        σ is the deviation of a measured set, s one of its values and K its strategy; sets with the same attributes are
        added.
        """
        sums: Parts = {}
        for measurement, runs, scale, values in zip(self.observed, self._runs, self._scales, scaled, strict=True):
            contribution = measurement.apply_transpose(values * scale, runs)
            sums[measurement.attributes] = (
                sums[measurement.attributes] + contribution if measurement.attributes in sums else contribution
            )
        return sums

    def gap(self, potentials: Parts) -> tuple[float, float]:
        """Return an upper bound of L(μ) − min L, and L(μ), at the counts μ of the potentials.

        L is convex, so with its slope g the gap is at most gᵀμ − min over all tables of gᵀν. The minimum is at a table
        with all records in one cell, which messages of maxima find.

        `tables` has −slope. Cells of one group share a factor, so the maximum over a group's cells (`reduceat`) is the
        table of the group. −max of (−g) is the minimum of g over cells, times the total.
        """
        counts, _ = self.marginals(potentials)
        deviations = self.deviations(counts)
        slope = self.apply_transpose(deviations)
        at_counts = sum(float((table * counts[names]).sum()) for names, table in slope.items())
        tables = {names: -table for names, table in slope.items()}

        for name in self.sizes:
            if (name,) in tables:
                tables[name,] = np.maximum.reduceat(tables[name,], self.groups[name].starts)

        _, best = collect_messages(self.tree, assign_factors(self.tree, tables, self.clique_numbers), largest)
        loss = sum(float((deviation**2).sum()) for deviation in deviations) / 2
        return max(at_counts + self.total * float(best), 0.0), loss

    def step(self, potentials: Parts, tau: float, inner: int) -> Parts:
        """Return the potentials after one step of mirror descent, the maximum of the dual.

        The step minimises L(μ') + τ KL(p' ‖ p) over distributions p' with counts μ'. Its dual has one variable for each
        measured value, s = σν = (K μ' − y)/(τσ), and p' is p times exp(−Kᵀ s/σ).
        """
        ends = np.cumsum([measurement.values.size for measurement in self.observed])

        def moved(scaled: Floats) -> Parts:
            """Return the potentials minus Kᵀ s/σ for a vector s over all measured values."""
            pieces = np.split(scaled, ends[:-1])
            shaped = []
            for piece, measurement in zip(pieces, self.observed, strict=True):
                shaped.append(piece.reshape(measurement.values.shape))
            contribution = self.apply_transpose(shaped)
            return {
                names: table - contribution[names] if names in contribution else table
                for names, table in potentials.items()
            }

        scaled_values = [measurement.values / math.sqrt(measurement.variance) for measurement in self.observed]
        measured = np.concatenate([values.reshape(-1) for values in scaled_values])

        def dual(scaled: Floats) -> tuple[float, Floats]:
            """Return the negative dual function of the step and its slope.

            It is total · (log Z(θ − Kᵀs/σ) − log Z(θ)) + s·y/σ + τ/2 |s|², with `level` = log Z(θ) and `measured` =
            y/σ. Since the slope of log Z by θ is μ/total, the slope of the function is τ s − (K μ − y)/σ.
            """
            counts, log_total = self.marginals(moved(scaled))
            slope = tau * scaled - np.concatenate([values.reshape(-1) for values in self.deviations(counts)])
            return self.total * (log_total - level) + float(scaled @ measured) + tau / 2 * float(scaled @ scaled), slope

        counts, level = self.marginals(potentials)
        # the value that s = (K μ − y)/(τσ) has at the present counts
        start_point = np.concatenate([values.reshape(-1) for values in self.deviations(counts)]) / tau
        end = optimize.minimize(dual, start_point, jac=True, method="L-BFGS-B",
                                options={"maxiter": inner, "maxcor": 20, "ftol": 1e-15, "gtol": 1e-9})  # fmt: skip
        return moved(end.x)

    def model(self, potentials: Parts, gap: float) -> GraphicalModel:
        """Return the model of potentials; `gap` bounds the distance of the objective from its minimum."""
        factors = {names: potentials[names] for names in self.sets}
        return GraphicalModel(
            groups=self.groups,
            factors=factors,
            cells={name: potentials[name,] for name in self.sizes},
            total=self.total,
            gap=gap,
        )
