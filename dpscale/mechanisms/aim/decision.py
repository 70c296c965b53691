"""Measurements of a round, fixed and on disk before any of their noise is drawn.

A run that is continued, or read on another machine, uses the stored decision: recomputed floating point numbers may
differ in their last bits, and a measurement with other noise parameters would be a second measurement.

*Terms.* A *request* is one measurement: the residual of a set over groups of neighbouring cells, or the cells of a
1-way marginal (`by_cell`). β is the squared μ of a selection, `step` that of the measurements of one selected set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise, repeat
from typing import Any

from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.mechanisms.aim.setting import Setting
from dpscale.plans.blocks import Block
from dpscale.plans.factor import FEWEST, MOST, Factor, center_factor, cumulative_factor, identity_factor
from dpscale.plans.measurement_plan import SCALE
from dpscale.privacy.draws import GaussianDraw, gaussian_draw, restored_gaussian, scaled_gaussian
from dpscale.privacy.selection import scale_for
from dpscale.reconstruction.consistency import NoisyCounts, StrategyCounts, least_squares
from dpscale.workload import Family, Workload
from dpscale.workload.query_classes import CellClasses
from dpscale.workload.residual import Groups, center, coarsened, every_cell, isotropic_parts, shares, subsets

SHARE_UNIT = 1 << 40  # shares of the residuals of a marginal are rounded down to multiples of 1 / SHARE_UNIT
VERSION = "aim-grem/6"  # part of every noise record, so another version draws other noise
BY_STRATEGY = "aim-grem/7"  # runs with 1-ways measured by strategies, and the records of these 1-ways
BY_QUERIES = "aim-grem/8"  # runs with candidates that are scored on classes of cells


@dataclass(frozen=True, eq=False)
class ResidualRequest:
    """Request for the residual on `names` over `groups`, or, if `by_cell`, for the cells of a 1-way.

    Attributes
    ----------
    round : int
    rank : int
        Position in the round of the selected set `source`.
    source : AttributeSet
    names : AttributeSet
    groups : tuple of Groups
    draw : GaussianDraw
        Its `cost` is the β of the measurement.
    by_cell : bool
    strategy : Factor or None
        Strategy on the cells of a 1-way; None for the identity.
    """

    round: int
    rank: int
    source: AttributeSet
    names: AttributeSet
    groups: tuple[Groups, ...]
    draw: GaussianDraw
    by_cell: bool = False
    strategy: Factor | None = None

    @cached_property
    def block(self) -> Block:
        return strategy_of(self.names, self.groups, self.by_cell, self.strategy)

    @property
    def cells(self) -> int:
        return math.prod(grouping.count for grouping in self.groups)

    @property
    def variance(self) -> float:
        """Noise variance σ² of the estimated marginal; with a strategy the mean variance of a cell.

        The noise of the draw is in units of 1/multiplier counts. A residual is measured times its number of cells, so
        that it is an integer.
        """
        scale = 1 if self.by_cell else self.cells
        each = 1.0 if self.strategy is None else self.strategy.mean_variance
        return self.draw.variance / (self.draw.multiplier * scale) ** 2 * each

    def scaled(self, factor: float, rows_per_unit: int) -> ResidualRequest:
        """Return the request with `factor` times its noise variance.

        `rows_per_unit` is the number of rows that a unit can change, for the cost of the noise.
        """
        sensitivity = self.block.squared_l2_sensitivity
        return replace(self, draw=scaled_gaussian(self.draw, factor, sensitivity, rows_per_unit))

    def counts(self, estimate: Floats) -> NoisyCounts:
        """Return the estimate of a 1-way by cells, with its noise."""
        if self.strategy is None:
            return NoisyCounts(estimate, self.variance)
        return StrategyCounts(estimate, self.variance, self.strategy)

    @property
    def label(self) -> dict[str, Any]:
        """Canonical noise-key fields other than release, snapshot and domain.

        `rank` is the place of the set in its round; the version differs if the request is measured by a strategy of its
        attributes. Groups are stated by their number of cells and first cells.
        """
        cells = [[grouping.size, *grouping.starts] for grouping in self.groups]
        noise = {"multiplier": str(self.draw.multiplier), **self.draw.noise_spec}
        version = VERSION
        if self.strategy is not None:
            version, noise = BY_STRATEGY, {**noise, "strategy": self.block.digest}
        return {"mechanism": version, "round": self.round, "rank": self.rank, "residual": list(self.names),
                "groups": cells, "whole": self.by_cell, **noise}  # fmt: skip

    def coarsened(self, counts: Integers) -> Integers:
        """Return the counts of the cells of the block."""
        return counts if self.by_cell else coarsened(counts, self.groups)

    def estimate(self, measured: Floats) -> Floats:
        """Return lattice numbers as noisy counts, or as a noisy centred residual.

        Stored numbers are multiplier · K · counts + noise; a residual is centred again, which reduces its noise only.
        """
        if self.strategy is not None:
            return least_squares(self.strategy, measured / self.draw.multiplier)
        if self.by_cell:
            return measured / self.draw.multiplier
        return center(measured / (self.draw.multiplier * self.cells), range(measured.ndim))


def strategy_of(names: AttributeSet, groups: Sequence[Groups], by_cell: bool, strategy: Factor | None = None) -> Block:
    """Return the strategy of a request: the given one, the identity, or the centred marginal times its cells.

    The strategy of a residual is n I − 11ᵀ along every axis, which centres and multiplies by the number of cells.
    """
    if strategy is not None:
        return Block(names, (strategy,), 1.0)
    make = identity_factor if by_cell else center_factor
    return Block(names, tuple(make(grouping.count) for grouping in groups), 1.0)


def one_way_request(
    round_and_rank: tuple[int, int],
    name: str,
    groups: Groups,
    beta: Fraction,
    rows_per_unit: int,
    strategy: Factor | None = None,
) -> ResidualRequest:
    """Return the request for a 1-way over its cells at a cost of β."""
    block = strategy_of((name,), (groups,), True, strategy)
    draw = gaussian_draw(block.squared_l2_sensitivity, beta, rows_per_unit, name)
    return ResidualRequest(*round_and_rank, (name,), (name,), (groups,), draw, True, strategy)


def residual_requests(
    names: AttributeSet,
    groups: Sequence[Groups],
    precisions: dict[AttributeSet, float],
    beta: Fraction,
    rows_per_unit: int,
    round_and_rank: tuple[int, int],
    isotropic: bool = False,
) -> list[ResidualRequest]:
    """Return requests for the residuals inside `names`, which divide β by conditional ResidualPlanner.

    Parameters
    ----------
    names : AttributeSet
    groups : sequence of Groups
    precisions : dict of AttributeSet to float
        Precision of the current estimate of each residual.
    beta : Fraction
    rows_per_unit : int
    round_and_rank : tuple of int
    isotropic : bool
        Whether the residuals have the noise of the marginal measured with equal independent noise in every cell:
        1/β in each cell. `precisions` then has no effect.
    """
    sizes = [grouping.count for grouping in groups]
    if isotropic:
        parts = isotropic_parts(sizes)
    else:
        parts = [int(share * SHARE_UNIT) for share in shares(names, sizes, precisions, float(beta))]

    requests = []
    for residual_set, part in zip(subsets(names), parts, strict=True):
        if part:
            inside = tuple(groups[names.index(name)] for name in residual_set)
            block = strategy_of(residual_set, inside, by_cell=False)
            cost = beta * Fraction(part, sum(parts))
            draw = gaussian_draw(block.squared_l2_sensitivity, cost, rows_per_unit, ", ".join(residual_set))
            requests.append(ResidualRequest(*round_and_rank, names, residual_set, inside, draw))

    return requests


@dataclass(frozen=True, eq=False)
class AimDecision:
    """Measurements of a round: the 1-ways in round 0; later the residuals of the selected sets, or again the 1-ways.

    A selection of the empty set () costs only its selection.

    Attributes
    ----------
    round : int
    chosen : tuple of AttributeSet
    beta : Fraction
        Squared μ of one selection; 0 if nothing was selected.
    step : Fraction
        Squared μ of the measurements of one selected set.
    groups : mapping of str to Groups
        Groups of every attribute.
    requests : tuple of ResidualRequest
    """

    round: int
    chosen: tuple[AttributeSet, ...]
    beta: Fraction
    step: Fraction
    groups: Mapping[str, Groups]
    requests: tuple[ResidualRequest, ...]

    @property
    def spent(self) -> Fraction:
        """Squared μ of the whole round."""
        return self.selection_cost + len(self.measured) * self.step

    @property
    def measured(self) -> tuple[AttributeSet, ...]:
        """Selected sets without the empty set."""
        return tuple(names for names in self.chosen if names)

    @property
    def is_one_way(self) -> bool:
        """Whether the round measures the 1-ways over their cells without a selection."""
        return self.beta == 0 and all(len(names) == 1 for names in self.chosen)

    @property
    def selection_cost(self) -> Fraction:
        """Squared μ of the selections."""
        return len(self.chosen) * self.beta

    def fits(self, other: AimDecision) -> bool:
        """Return whether a process that computed `other` can continue with this one: the groups are equal."""
        return self.groups == other.groups

    def scaled(self, factor: float, rows_per_unit: int) -> AimDecision:
        """Return the decision with `factor` times the noise variance, for a combination of the values of periods.

        The step is at least the mean cost of a measured set after rounding. `step` is the squared μ of a measured set,
        so it falls by the factor; the variances are rounded up to a lattice. `rows_per_unit` is the number of rows that
        a unit can change.
        """
        requests = tuple(request.scaled(factor, rows_per_unit) for request in self.requests)
        cost = sum((request.draw.cost for request in requests), Fraction(0))
        step = max(cost / len(self.measured), self.step / Fraction(factor))
        return replace(self, requests=requests, step=step)

    def to_dict(self) -> dict[str, Any]:
        """Return the exact content as JSON values.

        `beta` is the squared μ of a selection, `step` that of the measurement of a set; the noise of a request is
        stated by its multiplier and variance.
        """
        return {
            "round": self.round,
            "chosen": [list(names) for names in self.chosen],
            "beta": str(self.beta),
            "step": str(self.step),
            "groups": {name: [grouping.size, *grouping.starts] for name, grouping in self.groups.items()},
            "orders": [
                [request.rank, list(request.names), str(request.draw.multiplier), str(request.draw.variance)]
                for request in self.requests
            ],
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], setting: Setting) -> AimDecision:
        """Read a stored decision.

        Raises
        ------
        ValueError
            If the record is not a decision of such a run or does not cost what it states.
        """
        number = int(record["round"])
        groups = {name: Groups(starts[0], tuple(starts[1:])) for name, starts in record["groups"].items()}
        if any(not _partition(grouping, setting.sizes.get(name)) for name, grouping in groups.items()):
            raise ValueError("groups do not fit the domain")

        chosen = tuple(tuple(names) for names in record["chosen"])
        beta = Fraction(record["beta"])
        ones = beta == 0 and all(len(names) == 1 for names in chosen)
        cells = {name: every_cell(size) for name, size in setting.sizes.items()} if ones else None
        requests = tuple(_read_request(setting, number, groups, chosen, cells, *row) for row in record["orders"])
        decision = cls(number, chosen, beta, Fraction(record["step"]), groups, requests)
        _check(decision, setting)

        return decision


def _partition(groups: Groups, size: int | None) -> bool:
    """Return whether the groups are runs of all cells of an attribute."""
    starts = (*groups.starts, groups.size)
    return size == groups.size and starts[0] == 0 and all(a < b for a, b in pairwise(starts))


def _read_request(
    setting: Setting,
    number: int,
    groups: Mapping[str, Groups],
    chosen: tuple[AttributeSet, ...],
    cells: Mapping[str, Groups] | None,
    rank: int,
    names: list[str],
    multiplier: str,
    variance: str,
) -> ResidualRequest:
    """Return a measurement of a stored decision; refuse one that is not a residual of a selected set.

    Parameters
    ----------
    setting : Setting
    number : int
        Number of the round.
    groups : mapping
        Groups of cells of each attribute.
    chosen : tuple
        Selected sets; `rank` is the place of the one that `names` belongs to.
    cells : mapping or None
        Groups that replace `groups`, for measurements by cell.
    multiplier, variance : str
        Integers of the noise.
    """
    if (
        (cells is not None and not names)
        or not 0 <= rank < len(chosen)
        or not chosen[rank]
        or not set(names) <= set(chosen[rank])
        or setting.ordered(names) != tuple(names)
    ):
        raise ValueError("a request outside the selected sets")

    by_cell = cells is not None
    inside = tuple((groups if cells is None else cells)[name] for name in names)
    strategy = setting.strategies.get(names[0]) if by_cell else None
    block = strategy_of(tuple(names), inside, by_cell, strategy)
    draw = restored_gaussian(int(multiplier), int(variance), block.squared_l2_sensitivity, setting.rows_per_unit)

    return ResidualRequest(
        round=number,
        rank=rank,
        source=chosen[rank],
        names=tuple(names),
        groups=inside,
        draw=draw,
        by_cell=by_cell,
        strategy=strategy,
    )


def _check(decision: AimDecision, setting: Setting) -> None:
    """Refuse a stored decision that the mechanism cannot have made: other sets, or a higher cost than its round.

    The first decision measures 1-ways over cells, later ones candidates, or 1-ways again. `step` bounds the mean cost
    of a measured set.
    """
    ones = {(name,) for name in setting.names}
    known = all(names in ones if decision.is_one_way else setting.may_select(names) for names in decision.measured)
    if len(set(decision.measured)) != len(decision.measured) or not known:
        raise ValueError("a selected set that is not a candidate, or a repeated one")
    if not decision.chosen or (() in decision.chosen and not _allows_empty_set(decision, setting)):
        raise ValueError("no selected set, or an empty set that is not a candidate")
    if (
        decision.beta < 0
        or decision.step <= 0
        or sum(request.draw.cost for request in decision.requests) > len(decision.measured) * decision.step
    ):
        raise ValueError("requests that cost more than their round")
    if decision.round == 0 and any(decision.groups[name] != every_cell(setting.sizes[name]) for name in setting.names):
        raise ValueError("1-ways that are not over their cells")


def _allows_empty_set(decision: AimDecision, setting: Setting) -> bool:
    return decision.beta > 0 and setting.schedule.allows_empty((), ())


NOISE_L1 = math.sqrt(2 / math.pi)  # mean absolute value of Gaussian noise, in standard deviations


@dataclass(frozen=True, eq=False)
class AimSelection:
    """Selection of `count` distinct candidates.

    Attributes
    ----------
    round : int
    candidates : tuple of AttributeSet
    weights : mapping of AttributeSet to int
    groups : mapping of str to Groups
    count : int
    beta : Fraction
        Squared μ of one selection.
    step : Fraction
        Squared μ of one measurement.
    penalty : float
        Multiple of the expected noise that is subtracted from a distance.
    rows_per_unit : int
    classes : mapping of AttributeSet to CellClasses
        Classes of cells that no query distinguishes, of the candidates that have such cells.
    price : float
        Logarithm of a number of candidates, which is subtracted from the exponent of every set.
    """

    round: int
    candidates: tuple[AttributeSet, ...]
    weights: Mapping[AttributeSet, int]
    groups: Mapping[str, Groups]
    count: int
    beta: Fraction
    step: Fraction
    penalty: float
    rows_per_unit: int
    classes: Mapping[AttributeSet, CellClasses] = field(default_factory=dict)
    price: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether the round selects nothing: it measures the 1-ways again, or the sets of a public structure."""
        return not self.candidates

    @cached_property
    def sensitivity(self) -> int:
        """Largest effect of one unit on any score."""
        return SCALE * self.rows_per_unit * max(self.weights[names] for names in self.candidates if names)

    def excluded(self, chosen: Sequence[AttributeSet]) -> Iterable[int]:
        """Return no positions: only the selected candidates are excluded."""
        return ()

    def offset(self, names: AttributeSet) -> int:
        """Return the penalty in units of 1/SCALE."""
        if names in self.classes:
            return round(self._cell_penalty * self.classes[names].noise_factor)
        return round(self._cell_penalty * math.prod(self.groups[name].count for name in names)) + self._price

    @cached_property
    def _price(self) -> int:
        """Price of the candidates as a distance, for sets of weight 1."""
        return round(self.price / float(scale_for(self.beta, self.sensitivity))) if self.price else 0

    @cached_property
    def _cell_penalty(self) -> float:
        return SCALE * self.penalty * NOISE_L1 * deviation(self.step, self.rows_per_unit)

    def label(self, rank: int) -> dict[str, Any]:
        """Return the canonical noise-key fields of the draw number `rank`, other than release, snapshot and domain."""
        return {"mechanism": VERSION, "round": self.round, "rank": rank, "beta": str(self.beta),
                "candidates": len(self.candidates), "sensitivity": str(self.sensitivity)}  # fmt: skip


def deviation(step: Fraction, rows_per_unit: int) -> float:
    """Return σ_t: the noise of a measurement of a whole marginal at the cost `step`."""
    return rows_per_unit / math.sqrt(step)


def strategies(workload: Workload) -> Mapping[str, Factor]:
    """Return the strategy of each attribute with cumulative queries only and a suitable number of cells.

    An attribute has a strategy of cumulative sums if all queries on it are cumulative; two-sided ones need sums from
    both ends.
    """
    # the one-way families of each attribute; None for queries that are not products
    families_of: dict[str, set[Family | None]] = {}
    for part in workload.parts:
        for names in part.sets:
            for name, family in zip(names, part.families(names) or repeat(None), strict=False):
                families_of.setdefault(name, set()).add(family)

    sizes = {attribute.name: attribute.size for attribute in workload.domain.attributes}
    return {
        name: cumulative_factor(sizes[name], any(family is not None and family.two_sided for family in families))
        for name, families in families_of.items()
        if FEWEST <= sizes[name] <= MOST and all(family is not None and family.cumulative for family in families)
    }
