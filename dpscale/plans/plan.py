"""Measurement plan: blocks, noise, cost and expected errors, before any data are read.

A plan is scale-free: it assigns each block a *share* of the privacy cost β. Block b measures K_b·marginal with noise of
variance Δ_b² / (share_b · β), where Δ_b² is the largest squared column norm of K_b, so the block costs share_b · β
(QuerySmasher, section 3). Laplace noise of scale Δ_b / (share_b · ε), with Δ_b the largest L1 norm, costs share_b · ε,
and the "privacy cost" is ε². The resulting errors are computed by `accuracy`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from numbers import Real
from operator import itemgetter

import numpy as np
from numpy.typing import ArrayLike

from dpscale.base.display import glance, safe_repr
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import MOST_PARTS, Domain
from dpscale.plans.accuracy import Accuracy, accuracy_of
from dpscale.plans.attribute_sets import CountSources, count_sources
from dpscale.plans.blocks import Blocks, Strategy
from dpscale.workload import Workload
from dpscale.workload.residual import kron

SHOWN_CELLS = 4096


def _check_numbers(domain: Domain, blocks: Blocks) -> None:
    """Raise PlanError for a block of numbers that cannot be counted exactly, or whose effect is not bounded."""
    _check_totals(domain, blocks)
    if len(domain.numbers) < 2:
        return

    for names in blocks.sets:
        if (parts := math.prod(domain[name].largest_part for name in names)) > MOST_PARTS:
            both = ", ".join(name for name in names if name in domain.number_names)
            got = f"one measurement of {both} with {parts:,} parts of a record"
            raise PlanError(
                "numbers", got, f"at most {MOST_PARTS:,}", "use larger steps, or mechanism weighted-residuals"
            )


def _check_public_totals(domain: Domain, blocks: Blocks, mechanism: str) -> None:
    """Raise PlanError for public totals beside measurements of several residuals together."""
    if domain.public_totals and not len(blocks):
        raise PlanError("totals", "all queries of the workload", "queries that do not follow from public totals",
                        "add others, or read them from the totals")  # fmt: skip
    if domain.public_totals and not (blocks.commutes and blocks.measures_one_residual):
        raise PlanError("totals", f"given for {mechanism}, which measures several residuals together",
                        "weighted-residuals, query-smasher, residual-planner or weighted-fourier",
                        "use one of them, or leave the totals out")  # fmt: skip


def _check_levels(workload: Workload, blocks: Blocks, mechanism: str) -> None:
    """Raise PlanError for public totals at another level of a hierarchy than a set, in a plan of separate levels."""
    if blocks.has_trees:
        return

    used = {name for names in workload.sets for name in names}
    for total in workload.domain.public_totals:
        for name in total.names:
            own = workload.domain.hierarchy_of(name)
            other = [] if own is None else [level for level in own.names if level in used and level != name]
            if other:
                raise PlanError("totals", f"given by {name}, for estimates of {other[0]} by {mechanism}",
                                "a mechanism that plans levels together", "use weighted-residuals")  # fmt: skip


def _check_totals(domain: Domain, blocks: Blocks) -> None:
    """Raise PlanError for a block that a unit's bounded total of a number does not bound (`dpscale.domain.number`)."""
    bounded = frozenset(total.name for total in domain.totals)
    for attributes, which in zip(blocks.sets, blocks.which.tolist(), strict=True) if bounded else ():
        own = [axis for axis, name in enumerate(attributes) if name in bounded]
        if len(own) > 1:
            raise PlanError("numbers", f"one measurement of {' and '.join(attributes[axis] for axis in own)}",
                            'one number with per_unit = "total"', "use separate workloads for them")  # fmt: skip
        if own and not _is_centred(blocks.strategies[which], own[0]):
            raise PlanError(f"numbers.{attributes[own[0]]}.per_unit", "one measurement of sums and counts together",
                            "mechanism weighted-residuals", "set it, or leave per_unit out")  # fmt: skip


@lru_cache(maxsize=1024)
def _is_centred(strategy: Strategy, axis: int) -> bool:
    """Return whether the rows of a strategy sum to zero along an axis, exactly."""
    joint = len(strategy) == 1
    factor = strategy[0 if joint else axis]
    if factor.matrix is None or factor.kind not in ("matrix", "full"):
        return factor.kind == "center" and len(factor.shape) == 1
    rows = factor.matrix.astype(object).reshape(-1, *factor.shape)
    return not rows.sum(axis=1 + (axis if joint else 0)).any()


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Measurement plan of a matrix mechanism. Immutable; created by `dpscale.plan`.

    Parameters
    ----------
    workload : Workload
    mechanism : str
    blocks : Blocks
    error : float
        Weighted sum of the variances of the queries at privacy cost 1.
    bound : float
        Lower bound on the error of all plans that the mechanism optimises over; 0 if none is known.
    notes : tuple of str
        Remarks for the user.
    stationary : float or None
        If the plan chose weights of the axes: first-order relative change of the error when a thousandth of the weight
        of an axis is moved.
    floor : float
        Lower bound on the error of all matrix mechanisms; 0 if none is known.

    Examples
    --------
    >>> import dpscale as dp
    >>> w = dp.Workload(dp.Domain(a=4, b=3)).add("marginal", degree=1)
    >>> dp.plan(w).mechanism
    'weighted-residuals'
    """

    workload: Workload
    mechanism: str
    blocks: Blocks
    error: float
    bound: float
    notes: tuple[str, ...] = ()
    stationary: float | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        """Convert the blocks to columns."""
        object.__setattr__(self, "blocks", Blocks.of(self.workload.domain.axis_names, self.blocks))
        _check_numbers(self.workload.domain, self.blocks)
        _check_public_totals(self.workload.domain, self.blocks, self.mechanism)
        _check_levels(self.workload, self.blocks, self.mechanism)

    def __repr__(self) -> str:
        return f"Plan({self.mechanism}, {self.query_count} queries, {len(self.blocks)} measurements)"

    def _repr_html_(self) -> str:
        gap = f"{100 * self.optimality_gap:.2g} %" if math.isfinite(self.optimality_gap) else "not known"
        return glance(f"Plan by {self.mechanism}", {
            "queries": f"{self.query_count:,}", "measurements": f"{len(self.blocks):,}", "noise": self.noise,
            "root mean square error at privacy cost 1": f"{self.rmse():.4g}", "above the certified optimum by": gap,
        })  # fmt: skip

    @property
    def domain(self) -> Domain:
        """Domain of the workload."""
        return self.workload.domain

    @property
    def query_count(self) -> int:
        """Number of queries, including duplicates.

        Examples
        --------
        >>> dp.plan([["borough"], ["day"]], domain).query_count
        5
        """
        return self.workload.query_count

    @property
    def optimality_gap(self) -> float:
        """Certified relative gap: error / bound − 1, or inf if no bound is known.

        Examples
        --------
        >>> dp.plan([["borough", "fare"]], domain).optimality_gap < 0.01
        True
        """
        return max(self.error / self.bound - 1, 0.0) if self.bound > 0 else math.inf

    @property
    def noise(self) -> str:
        """Kind of noise of all blocks."""
        return self.blocks[0].noise

    def rmse(self, privacy_cost: float = 1.0) -> float:
        """Return the root of Σ weight · variance over the number of queries.

        Parameters
        ----------
        privacy_cost : float
            Squared Gaussian-DP μ, or ε² for Laplace noise.

        Returns
        -------
        float
            In records.

        Raises
        ------
        PlanError
            If `privacy_cost` is not a finite number above 0.

        Examples
        --------
        >>> plan = dp.plan([["borough"]], domain)
        >>> round(plan.rmse(), 6), round(plan.rmse(privacy_cost=0.25), 6)
        (1.0, 2.0)
        """
        if not isinstance(privacy_cost, Real) or not 0 < privacy_cost < math.inf:
            raise PlanError(
                "privacy_cost", safe_repr(privacy_cost), "a number above 0", "give squared μ, or ε² of Laplace noise"
            )
        return math.sqrt(self.error / privacy_cost / self.query_count)

    @property
    def bound_all(self) -> float | None:
        """Lower bound on the root mean square error of all matrix mechanisms at privacy cost 1; None if not known."""
        return math.sqrt(self.floor / self.query_count) if self.floor > 0 else None

    @cached_property
    def accuracy(self) -> Accuracy:
        """Errors of the planned noise at privacy cost 1."""
        return accuracy_of(self.domain, self.blocks)

    def variance(self, attributes: str | Sequence[str], query: ArrayLike) -> float:
        """Return the variance of one linear query at privacy cost 1.

        Parameters
        ----------
        attributes : str or sequence of str
        query : array_like
            One axis for each attribute.

        Returns
        -------
        float

        Raises
        ------
        PlanError
            If the query lies outside the row space of the strategy.

        Examples
        --------
        >>> round(dp.plan([["borough"]], domain).variance("borough", [1, 0]), 6)
        1.0
        """
        return self.accuracy.variance([attributes] if isinstance(attributes, str) else attributes, query)

    def strategy(self, attributes: str | Sequence[str]) -> Floats:
        """Return the strategy on an attribute set, scaled so the largest column norm is 1.

        Parameters
        ----------
        attributes : str or sequence of str

        Returns
        -------
        ndarray, shape (rows, cells)

        Raises
        ------
        PlanError
            If the set is not measured or has too many cells.

        Examples
        --------
        >>> dp.plan([["borough"]], domain, mechanism="identity").strategy("borough").shape
        (2, 2)
        """
        ordered = self.domain.ordered([attributes] if isinstance(attributes, str) else attributes)
        matching = [self.blocks[index] for index in self.blocks.sets.find(ordered)]
        if not matching or self.domain.cells(ordered) > SHOWN_CELLS:
            why = "not measured" if not matching else f"{self.domain.cells(ordered)} cells"
            raise PlanError(
                "strategy",
                f"{', '.join(ordered)}: {why}",
                f"a measured set of up to {SHOWN_CELLS} cells",
                "use another set",
            )

        stacked = [factor.explicit().astype(np.float64) for factor in matching[0].factors]
        return kron(stacked) / math.sqrt(matching[0].squared_l2_sensitivity)

    @cached_property
    def sources(self) -> CountSources:
        """Attribute sets to count, and the counted set that each block is measured from."""
        return count_sources(self.domain, self.blocks.sets)

    @cached_property
    def counted_sets(self) -> tuple[AttributeSet, ...]:
        """Attribute sets to count, in domain order."""
        return tuple(self.sources.sets)

    @cached_property
    def largest(self) -> AttributeSet:
        """Counted attribute set with the most cells."""
        return max(zip(self.domain.cells_each(self.counted_sets), self.counted_sets, strict=True), key=itemgetter(0))[1]
