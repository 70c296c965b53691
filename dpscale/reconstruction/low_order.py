"""Consistent non-negative low-order tables from noisy residuals, the input of local maximum entropy.

The expectation of a table is the one implied by the tables inside it. Its own noisy residual measures the departure
from that, and `shrinkage` weighs the two. The expectation of a pair is the product of its 1-way marginals, or this
product smoothed over neighbouring cells if the noisy pair supports it (`near`). An alternative expectation is a chain
a — c — b of two other pairs, if it explains the noisy pair better (`chains`); its noise is independent, so it can be
compared with the pair's own. A chain helps much if codes are ordered and misleads if they are not, so a pair is the
mean of the two estimates. A pair that was not measured is its strongest chain, the one farthest from independence.

All pairs are computed together in compiled loops over flat arrays, because adaptive mechanisms recompute the tables in
every round.

`from_estimates` applies this to any plan that measures whole residuals: query-smasher, residual-planner… Its
least-squares estimates are unbiased but may be negative, and residuals that were not measured are uniform. The
low-order tables of the same measurements are biased, and much more accurate for marginals. The noise of a table is
measured on groups of neighbouring cells. `low_order` takes the part of a table over groups that the plain mean leaves;
if groups are uneven or axes are averaged by weights, smaller residuals and their noise contribute to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, stats
from dpscale.domain.rules import DomainConstraint, constraints_on
from dpscale.plans.plan import Plan
from dpscale.reconstruction.consistency import NoisyCounts, non_negative_counts, total_of
from dpscale.reconstruction.entropy import (
    LowOrder,
    coarse_possible,
    constrained_pairs,
    edges,
    known_pair,
    product_of,
    reconcile_one_ways,
)
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.set_arrays import OneWayArrays, PairArrays, PairLinks
from dpscale.reconstruction.shrinkage import NEIGHBOUR_REACHES, NoisyTable, NoisyTables, best_posterior, near
from dpscale.workload.residual import Groups, Residuals, by_mass, center, coarsened, every_cell, profile_of, subsets

Tables = dict[AttributeSet, Floats]
# of a fit: most rounds; L1 distance at which it ends, in shares of the total; then the least expected count, divisor
# and variance
FIT_ROUNDS, FIT_TOLERANCE, LEAST = 20, 1e-6, 1e-6


class NoisyResidual(NamedTuple):
    """Measured residual: centred `values` over groups, each with noise of standard deviation `deviation`."""

    values: Floats
    deviation: float


def low_order(
    ones: Mapping[str, Floats],
    groups: Mapping[str, Groups],
    measured: Mapping[AttributeSet, NoisyResidual],
    wanted: Sequence[AttributeSet] = (),
    chains: int = 1,
    rules: tuple[DomainConstraint, ...] = (),
) -> LowOrder:
    """Return the tables of all measured sets, and of `wanted` pairs whose chains imply more than independence.

    Parameters
    ----------
    ones : mapping of str to ndarray
        Non-negative 1-way marginals of equal sum that obey the rules (`constraints`).
    groups : mapping of str to Groups
    measured : mapping of AttributeSet to NoisyResidual
    wanted : sequence of AttributeSet
    chains : int
        Number of times that pairs are re-estimated with chains as expectations.
    rules : tuple of DomainConstraint
        Closed under implication.
    """
    model = LowOrder(
        ones=ones,
        groups=groups,
        tables={},
        total=float(next(iter(ones.values())).sum()),
        rules=constraints_on(rules, ones),
    )
    pairs: dict[AttributeSet, NoisyResidual] = {names: noisy for names, noisy in measured.items() if len(names) == 2}
    rule_tables = {names: _rule_table(model, names) for names in constrained_pairs(rules, list(ones))}
    if pairs:
        model = replace(model, tables=_pairs(model, pairs, rule_tables, wanted, chains))
    model = replace(model, tables={**rule_tables, **model.tables})

    for size in sorted({len(names) for names in measured if len(names) > 2}):
        larger = {names: noisy for names, noisy in measured.items() if len(names) == size}
        model = replace(model, tables={**model.tables, **_larger_tables(model, larger)})

    known = (names for names in rule_tables if known_pair(model.rules, names, ones, groups) is not None)
    return replace(model, measured=frozenset([*measured, *known]))


def _rule_table(model: LowOrder, names: AttributeSet) -> Floats:
    """Return a pair with rules: determined by the rules, or independent with impossible cells set to zero."""
    known = known_pair(model.rules, names, model.ones, model.groups)
    return (
        known
        if known is not None
        else model.impose_rules(names, product_of([model.coarse[name] for name in names], model.total))
    )


def _pairs(
    model: LowOrder, measured: Mapping[AttributeSet, NoisyResidual], rule_tables: Tables,
    wanted: Sequence[AttributeSet], chains: int,
) -> Tables:  # fmt: skip
    """Return the measured pairs, and `wanted` pairs implied by chains; pairs with rules serve as links.

    `alone` is shrunk towards independence, and each round averages it with the tables shrunk towards the best chains of
    the tables before.
    """
    one_ways = OneWayArrays.of(model.coarse, model.total)
    by_rules = [names for names in rule_tables if names not in measured]
    shrinkage = _PairShrinkage.of(model, PairArrays(one_ways, list(measured)), list(measured.values()), rule_tables)
    linked = PairArrays(one_ways, [*measured, *by_rules])
    others = [rule_tables[names].reshape(-1) for names in by_rules]

    # each pair under the expectation of independence, and averaged with that under its best chain of two pairs
    alone = tables = shrinkage.alone()
    for _ in range(chains):
        tables = (alone + shrinkage.chained(PairLinks.of(linked, np.concatenate([tables, *others])))) / 2
    pairs = shrinkage.paired.split(tables)
    if chains:
        missing = [names for names in wanted
                   if len(names) == 2 and names not in measured and names not in rule_tables]  # fmt: skip
        links = PairLinks.of(linked, np.concatenate([tables, *others]))
        pairs |= links.strongest(PairArrays(one_ways, missing))

    return pairs


@dataclass(frozen=True, eq=False)
class _PairShrinkage:
    """Noisy residuals of pairs, flat, that are shrunk towards expectations and fitted to their 1-way marginals."""

    model: LowOrder
    paired: PairArrays
    residuals: Floats
    deviations: Floats
    rule_tables: Tables

    @classmethod
    def of(
        cls, model: LowOrder, paired: PairArrays, residuals: Sequence[NoisyResidual], rule_tables: Tables
    ) -> _PairShrinkage:
        """`flat` has the residuals of all pairs one after the other; tables by rules are kept for the pairs only."""
        flat = np.concatenate([residual.values.reshape(-1) for residual in residuals])
        with_rules = {names: table for names, table in rule_tables.items() if names in set(paired.names)}
        return cls(model, paired, flat, np.array([residual.deviation for residual in residuals]), with_rules)

    def alone(self) -> Floats:
        """Shrink towards independence, or towards neighbouring cells where there is no better expectation.

        The expectation of a pair with rules is independence on its possible cells, or on all cells.

        `near` smooths an expectation over neighbouring cells; each table takes the way with the most evidence.
        """
        tables = [self._expected(self._place_tables(self.paired.independent(), self.rule_tables))]
        if self.rule_tables:
            tables.append(self._expected(self.paired.independent()))
        smoothed = [near(self.paired, expected, reach) for expected in tables for reach in NEIGHBOUR_REACHES]
        return self._fit([*tables, *smoothed])

    def chained(self, links: PairLinks) -> Floats:
        """Shrink towards the nearest chains.

        `nearest` are the chains nearest to the noisy tables; with tables by rules, an expectation that has these tables
        is tried too.
        """
        noisy = self.paired.noisy(self.residuals, self.paired.independent())
        nearest = self._expected(links.nearest(self.paired, noisy))
        if not self.rule_tables:
            return self._fit([nearest])
        return self._fit([self._expected(self._place_tables(nearest.reference.copy(), self.rule_tables)), nearest])

    def _expected(self, expectation: Floats) -> NoisyTables:
        reference = np.maximum(expectation, LEAST)
        values = self.paired.noisy(self.residuals, reference)
        return NoisyTables(values=values, reference=reference, deviations=self.deviations, starts=self.paired.starts)

    def _fit(self, ways: Sequence[NoisyTables]) -> Floats:
        """Return the shrunk tables of all pairs, flat: without impossible cells, and fitted to the 1-way marginals.

        `ways` are the same measurements with different expectations, towards which they are shrunk.
        """
        tables = best_posterior(ways)
        views = self.paired.split(tables) if self.rule_tables else {}
        for names in self.rule_tables:
            views[names] *= coarse_possible(self.model.rules, names, self.model.groups)
        return self.paired.fit(tables, FIT_ROUNDS, FIT_TOLERANCE * self.model.total)

    def _place_tables(self, tables: Floats, placed: Tables) -> Floats:
        """Write some tables into their positions, in place."""
        views = self.paired.split(tables) if placed else {}
        for names, table in placed.items():
            views[names][:] = table
        return tables


def _larger_tables(model: LowOrder, measured: Mapping[AttributeSet, NoisyResidual]) -> Tables:
    """Return tables of one degree, shrunk towards their expectations and fitted to the tables inside them."""
    expected = model.coarse_marginals(list(measured))
    noisy = [_noisy(residual, np.maximum(expected[names], LEAST)) for names, residual in measured.items()]
    together = NoisyTables.of(noisy)
    means = zip(measured, noisy, np.split(best_posterior([together]), together.starts[1:-1]), strict=True)
    shaped = {names: table.reshape(of_set.values.shape) for names, of_set, table in means}
    return model.fit_tables(shaped, FIT_ROUNDS, FIT_TOLERANCE * model.total)


def _noisy(residual: NoisyResidual, reference: Floats) -> NoisyTable:
    """Return the noisy table: its own residual on the margins of the expectation."""
    values = residual.values + reference - center(reference, range(reference.ndim))
    return NoisyTable(np.asarray(values), reference, residual.deviation)


GRAIN, CHAINS = 0.3, 1  # defaults of `from_estimates`
CHANCE, MOST_BY_CHANCE = 0.3, 300  # probability that noise alone makes a set a law; expected number of these sets
RARELY, PRECISE = 1e-3, 4  # probability for other sets, and that noise separates a cell; least mean count over noise
MOST_TESTED, MOST_TESTED_CELLS = 1 << 16, 1 << 26  # larger sets of one degree that are tested, and their cells together


def from_estimates(estimates: LeastSquaresEstimates, grain: float = GRAIN, chains: int = CHAINS) -> LowOrder:
    """Return low-order tables from the pairs that the plan measures completely, and from its larger sets that are laws.

    Parameters
    ----------
    estimates : LeastSquaresEstimates
    grain : float
        Groups contain at least √(grain · σ · N) counts, σ the noise of a typical cell of a pair; 0: every cell alone.
    chains : int
        As in `low_order`.

    Raises
    ------
    PlanError
        If a 1-way marginal of the workload's attributes was not measured.
    """
    plan = estimates.plan
    sets, names = fully_measured(plan)
    counts = {name: _counts(estimates, name) for name in names}
    total = total_of(counts)
    rules = plan.domain.rules
    ones = {name: non_negative_counts(noisy, total) for name, noisy in counts.items()}
    ones = reconcile_one_ways(ones, {name: noisy.variance for name, noisy in counts.items()}, rules)
    pairs: list[AttributeSet] = [subset for subset in sets if len(subset) == 2]
    groups = _separated(estimates, ones, _groups(estimates, ones, pairs, grain, total), pairs)
    measured: dict[AttributeSet, NoisyResidual] = {subset: _residual(estimates, subset, groups) for subset in pairs}
    model = low_order(ones, groups, measured, chains=chains, rules=rules)

    for degree in sorted({len(subset) for subset in sets if len(subset) > 2}):
        model = _with_laws(model, estimates, [subset for subset in sets if len(subset) == degree])
    return model


def _with_laws(model: LowOrder, estimates: LeastSquaresEstimates, sets: Sequence[AttributeSet]) -> LowOrder:
    """Return the model with tables of the sets of one degree whose residual departs from the model's by a law.

    Without a law the departure D of a measured residual from that of the smaller tables is noise alone, of the mean
    square s² in each of n cells. Then ΣD² · ν / (n s²) has about a χ² distribution with ν = Π (size − 1) degrees of
    freedom. The level is high where the mean count of a cell is at least PRECISE s, because the tables are shrunk
    towards those that the smaller ones imply: it only limits their number. Of many sets those with the fewest cells are
    tested.
    """
    fewest = sorted(sets, key=model.cells)[:MOST_TESTED]
    ends = np.cumsum([model.cells(names) for names in fewest])
    tested = [names for names, end in zip(fewest, ends, strict=True) if end <= MOST_TESTED_CELLS]
    laws: dict[AttributeSet, tuple[float, NoisyResidual]] = {}
    level = min(CHANCE, MOST_BY_CHANCE / max(len(tested), 1))
    for names, expected in model.coarse_marginals(tested).items():
        residual = _residual(estimates, names, dict(model.groups))
        departure = residual.values - center(expected, range(expected.ndim))
        excess = float((departure**2).sum()) / (departure.size * residual.deviation**2)
        freedom = math.prod(size - 1 for size in departure.shape)
        precise = PRECISE * residual.deviation < model.total / departure.size
        if excess * freedom > stats.chi2.isf(level if precise else RARELY, max(freedom, 1)):
            laws[names] = excess, residual
    if not laws:
        return model

    by_excess = sorted(laws.items(), key=lambda item: -item[1][0])
    strongest = {names: residual for names, (_, residual) in by_excess}
    return replace(model, tables={**model.tables, **_larger_tables(model, strongest)},
                   measured=model.measured | strongest.keys())  # fmt: skip


def fully_measured(plan: Plan) -> tuple[list[AttributeSet], list[str]]:
    """Return the residuals that a plan measures completely, and their attributes.

    Raises PlanError unless all 1-way marginals are among them.
    """
    numbers = plan.domain.number_names
    sets = [subset for subset in plan.accuracy.complete_sets() if numbers.isdisjoint(subset)]
    requested = {name for subset in plan.workload.sets for name in subset} - numbers
    measured = {name for subset in sets for name in subset}
    names = [name for name in plan.domain.names if name in requested | measured]
    if not names:
        raise PlanError("workload", "no attribute", "at least one attribute in the workload",
                        "add a family over the attributes of the rows")  # fmt: skip
    if () not in sets or any((name,) not in sets for name in names):
        raise PlanError("reconstruct.method", "maxent for a plan that does not measure every 1-way marginal completely",
                        "a workload with a marginal over every attribute",
                        "add these marginals, or use least-squares")  # fmt: skip
    return sets, names


def _counts(estimates: LeastSquaresEstimates, name: str) -> NoisyCounts:
    """Return the noisy 1-way marginal of an attribute.

    The variance of a cell is that of the residual and that of the total.

    The total is spread by the weights u, so it adds the mean of u² times its variance to the variance of a cell.
    """
    size, weights = estimates.plan.domain[name].size, estimates.accuracy.weights.get(name)
    spread = float((profile_of(weights, size) ** 2).mean())
    variance = estimates.group_variance((name,), {}) + estimates.group_variance((), {}) * spread
    return NoisyCounts(estimates.marginal((name,)), max(variance, LEAST))  # a public total has no variance


def _groups(
    estimates: LeastSquaresEstimates, ones: dict[str, Floats], sets: Sequence[AttributeSet], grain: float, total: float
) -> dict[str, Groups]:
    """Return groups of adjacent cells of each attribute with at least √(grain · σ · N) counts.

    σ is the median noise of a cell of the measured pairs. Cells at which a rule changes begin a group.
    """
    if not sets or grain <= 0:
        return {name: every_cell(len(one_way)) for name, one_way in ones.items()}
    deviation = math.sqrt(float(np.median([_whole_variance(estimates, subset, {}) for subset in sets])))
    least = math.sqrt(grain * deviation * total)
    rules = estimates.plan.domain.rules
    return {name: by_mass(one_way, least, edges(rules, name)) for name, one_way in ones.items()}


def _separated(
    estimates: LeastSquaresEstimates, ones: Mapping[str, Floats], groups: dict[str, Groups], pairs: list[AttributeSet]
) -> dict[str, Groups]:
    """Return the groups, in which cells that have a law of their own are alone.

    Let w be the share of a cell in the records of its group of m cells, x its row of a pair, over the groups of the
    other attribute, and y the row of its group. If the group has one law, D = x − w y, centred, is noise of variance
    s² (1 − 2w + m w²) in each entry, s² that of the residual, and that of the other attribute's 1-way residual. The
    squares are summed over all pairs of the attribute and compared with χ² at the level RARELY over its cells.
    """
    tested = {name for name, grouping in groups.items() if grouping.count < grouping.size}
    excess = {name: np.zeros(groups[name].size) for name in tested}
    freedom = dict.fromkeys(tested, 0)
    for names in pairs:
        for name in tested.intersection(names):
            [other] = set(names) - {name}
            axis, over = names.index(name), groups[other]
            grouping, size = groups[name], groups[name].size
            groupings = [every_cell(size), over] if axis == 0 else [over, every_cell(size)]
            cells = np.moveaxis(coarsened(estimates.marginal(names), groupings), axis, 0)
            # y, the row of the group, repeated for each of its cells
            group_rows = np.add.reduceat(cells, grouping.starts, axis=0)[grouping.labels]
            counts = np.bincount(grouping.labels, ones[name])[grouping.labels]
            shares = ones[name] / np.maximum(counts, LEAST)
            members = np.bincount(grouping.labels)[grouping.labels]

            departures = center(cells - shares[:, None] * group_rows, (1,))
            # s² (1 − 2w + m w²), then the part of the other attribute's 1-way residual
            variance = _whole_variance(estimates, names, {other: over}) * (1 - 2 * shares + members * shares**2)
            of_other = estimates.group_variance((other,), {other: over})
            variance += of_other * ((1 - shares * members) / size) ** 2
            # a centred row of c entries has c − 1 degrees of freedom, and D² / variance sums to c
            share = (over.count - 1) / over.count
            excess[name] += share * (departures**2).sum(axis=1) / np.maximum(variance, LEAST)
            freedom[name] += over.count - 1

    separated = dict(groups)
    for name in tested:
        size, labels = groups[name].size, groups[name].labels
        alone = excess[name] > stats.chi2.isf(RARELY / size, max(freedom[name], 1))
        # a cell that is its group already needs no test
        alone &= np.bincount(labels)[labels] > 1
        cells = np.flatnonzero(alone)
        # a group begins at the cell and another one after it
        starts = {*groups[name].starts, *cells.tolist(), *(cells[cells < size - 1] + 1).tolist()}
        separated[name] = Groups(size, tuple(sorted(starts)))
    return separated


def _residual(estimates: LeastSquaresEstimates, subset: AttributeSet, groups: dict[str, Groups]) -> NoisyResidual:
    groupings = [groups[name] for name in subset]
    values = center(coarsened(estimates.marginal(subset), groupings), range(len(subset)))
    return NoisyResidual(values, math.sqrt(max(_whole_variance(estimates, subset, groups), LEAST)))


def _whole_variance(estimates: LeastSquaresEstimates, subset: AttributeSet, groups: dict[str, Groups]) -> float:
    """Return the mean variance of the part of a table that the plain mean leaves.

    It includes the variance of its residual and, if totals are distributed unevenly, of smaller residuals.

    `uneven` is, for each axis outside a residual, what the plain mean leaves of a total spread by u, as a mean square.
    """
    domain, weights, total = estimates.plan.domain, estimates.accuracy.weights, 0.0
    for inside in subsets(subset):
        outside = [name for name in subset if name not in inside]
        uneven = math.prod(_uneven(profile_of(weights.get(n), domain[n].size), groups.get(n)) for n in outside)
        if uneven > 0 and inside in estimates.complete:
            total += uneven * estimates.group_variance(inside, groups)
    return total


def _uneven(profile: Floats, groups: Groups | None) -> float:
    """Return the mean square of the part of u that the plain mean leaves, over groups if given."""
    values = profile if groups is None else coarsened(profile, [groups])
    return float((center(values, (0,)) ** 2).mean())


def model_of(
    counts: Mapping[str, NoisyCounts],
    groups: Mapping[str, Groups],
    residuals: Residuals,
    wanted: Sequence[AttributeSet] = (),
    chains: int = 1,
    rules: tuple[DomainConstraint, ...] = (),
) -> LowOrder:
    """Return consistent non-negative low-order tables from all measurements.

    Parameters
    ----------
    counts : mapping of str to NoisyCounts
        1-way measurements in the order of attributes.
    groups : mapping of str to Groups
    residuals : Residuals
        Centred, over groups, with the precision 1/σ² of the noise on the marginal; includes the total, (), and 1-ways.
    wanted, chains, rules
        As in `low_order`.
    """
    total = total_of(counts, (float(residuals.values.get((), 0.0)), residuals.precision(())))
    ones = {name: _one_way(noisy, name, groups[name], residuals, total) for name, noisy in counts.items()}
    ones = reconcile_one_ways(ones, {name: noisy.variance for name, noisy in counts.items()}, rules)
    # centring leaves the share 1 − 1/n of the variance along an axis of n groups
    centred_shares = {name: 1 - 1 / grouping.count for name, grouping in groups.items()}
    measured = {names: _noisy_residual(names, values, centred_shares, residuals.precisions)
                for names, values in residuals.values.items() if len(names) > 1}  # fmt: skip
    return low_order(ones, groups, measured, wanted, chains, rules)


def _one_way(noisy: NoisyCounts, name: str, groups: Groups, residuals: Residuals, total: float) -> Floats:
    residual = np.asarray(residuals.values.get((name,), np.zeros(groups.count)))
    precision = residuals.precision((name,))
    return noisy.refine(groups, residual, precision, total)


def _noisy_residual(
    names: AttributeSet, values: Floats, centred_shares: Mapping[str, float], precisions: Mapping[AttributeSet, float]
) -> NoisyResidual:
    """Return a centred residual, whose cells have variance p_τ σ²; p_τ is the product of its `centred_shares`."""
    return NoisyResidual(values, math.sqrt(math.prod([centred_shares[name] for name in names]) / precisions[names]))
