"""Findings of a release: the dependences of two attributes, and the largest shares, that its noise cannot explain.

Let N be the estimated table of two attributes with n records, and p and q the shares of its margins. A cell departs
from independence by D = N − n p q, which to first order is the answer of the linear query (e − p 1) ⊗ (e − q 1) with
a known error s; e is 1 in the cell alone, and 1 everywhere. Independent records depart with the variance
n p (1 − p) q (1 − q). A cell is a finding if

    |D| > w √(s² + n p (1 − p) q (1 − q)),

with the half width w of intervals that cover all M candidate cells of the release together (Bonferroni), and if the
joint interval of its share in the group does not contain its share of all records. The cells of one attribute are
compared with equal shares likewise. Candidates follow from the workload alone. Of each table the cell with the largest
ratio of D to its error is told, dependences before shares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpscale.answers.statistics import TooFewRecords, query_ratio
from dpscale.answers.tables import LEVEL, LONGEST, LOOKED_AT, Answered, requested_attributes, requested_pairs
from dpscale.answers.words import title_of, words_of
from dpscale.base.display import percent, share_text
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.joint_intervals import half_width
from dpscale.reconstruction.simulated_errors import LONGER, TAIL

MOST = 3


@dataclass(frozen=True)
class Finding:
    """Share of a cell of one attribute, of all records or of those with a cell of another one.

    Attributes
    ----------
    names : AttributeSet
        Of the table.
    name : str
        Attribute of the share.
    cell : int
    group : tuple of (str, int), optional
        Attribute and cell of the records of which the share is; None for all records.
    share, low, high : float
        With the joint interval.
    error : float
        Standard error of the share.
    expected : float
        Share of all records, or equal shares.
    size : float
        Departure over its error.
    """

    names: AttributeSet
    name: str
    cell: int
    group: tuple[str, int] | None
    share: float
    low: float
    high: float
    error: float
    expected: float
    size: float

    def sentence(self, domain: Domain) -> str:
        """Return the finding in words."""
        share, cell = share_text(self.share, self.low, self.high, self.error), _cell(domain, self.name, self.cell)
        if self.group is None:
            return f"{share} of the records have {cell}; equal shares would be {percent(self.expected)}."
        by, at = self.group
        of = f"Of the records with {_cell(domain, by, at)}, {share}"
        if domain[by].kind == "date":
            of = f"In {words_of(domain[by])[at]}, {share} of the records"
        return f"{of} have {cell}; of all records {percent(self.expected)}."


def _cell(domain: Domain, name: str, cell: int) -> str:
    unit = domain[name].words.unit
    return f"{title_of(domain, name)} “{words_of(domain[name])[cell]}" + f" {unit}" * bool(unit) + "”"


def findings(answered: Answered, most: int = MOST) -> list[Finding]:
    """Return the largest findings of a release, at most one of a table; none without standard errors."""
    domain, noise = answered.estimates.workload.domain, answered.estimates.noise
    pairs = [names for names in requested_pairs(answered)[:LOOKED_AT] if _may_be_independent(answered, names)]
    singles = [(name,) for name in requested_attributes(answered, LONGEST)[:LOOKED_AT]]
    candidates = sum(domain.cells(names) for names in (*pairs, *singles))
    if not candidates:
        return []

    level = 1 - (1 - LEVEL) / candidates
    width, tail = half_width(level, noise), 1.0
    if not isinstance(answered.estimates, LeastSquaresEstimates):  # as of their simultaneous intervals
        tail += TAIL + LONGER * math.log(candidates)
    found = list[Finding]()
    for sets in (pairs, singles):
        sizes = [(np.abs(one).max(), names, one) for names in sets if (one := _departures(answered, names)).size]
        for largest, names, own in sorted(sizes, key=lambda one: -one[0]):
            if len(found) == most or largest <= width * tail:
                break
            found += _first(answered, names, own, width * tail, level)
    return found


def _may_be_independent(answered: Answered, names: AttributeSet) -> bool:
    """Return whether neither the domain determines a dependence of two attributes, nor a model extrapolates them."""
    domain, (one, other) = answered.estimates.workload.domain, names
    implied = set(domain[one].columns) & set(domain[other].columns) or any(
        {one, other} <= set(rule.names) for rule in domain.rules
    )
    return not implied and not answered.estimates.extrapolates(names)


def _departures(answered: Answered, names: AttributeSet) -> Floats:
    """Return the ratio of every cell's departure to its error; empty without estimates, or errors, or records.

    Of one attribute only shares above the equal ones count.
    """
    nothing = np.zeros(0)
    try:
        values, _ = answered.cells(names)
        total = float(values.sum())
        if total <= 0:
            return nothing
        shares = [np.full(values.size, 1 / values.size)]
        if values.ndim == 2:
            shares = [values.sum(axis=1) / total, values.sum(axis=0) / total]
        queries, sampling = np.ones((1, 1)), total
        for own in shares:
            queries = np.kron(queries, np.eye(own.size) - own[:, None])
            sampling = np.multiply.outer(sampling, np.clip(own * (1 - own), 0, None))
        departures, errors = answered.linear(names, queries.reshape(-1, *values.shape))
    except PlanError:
        return nothing
    deviations = np.sqrt(errors**2 + np.ravel(sampling))
    if not np.isfinite(deviations).all():
        return nothing
    found = departures if values.ndim > 1 else np.maximum(departures, 0.0)
    return np.divide(found, deviations, out=np.zeros_like(found), where=deviations > 0).reshape(values.shape)


def _first(answered: Answered, names: AttributeSet, sizes: Floats, least: float, level: float) -> Iterator[Finding]:
    """Yield the largest finding of a table, if there is any; of equal ones the one above its expectation."""
    domain = answered.estimates.workload.domain
    width = half_width(level, answered.estimates.noise)
    values, _ = answered.cells(names)
    for flat in np.lexsort((sizes.ravel() < 0, -np.round(np.abs(sizes.ravel()), 6))):
        if abs(sizes.flat[flat]) <= least:
            return
        cell = tuple(int(at) for at in np.unravel_index(flat, sizes.shape))
        by = int(len(names) == 2 and domain[names[1]].kind == "date")  # of two attributes, the first or a date groups
        inside, every, group = np.zeros(sizes.shape), np.ones(sizes.shape), None
        inside[cell] = 1
        expected = 1 / sizes.size
        if len(names) == 2:
            every = np.moveaxis(np.zeros(sizes.shape), by, 0)
            every[cell[by]] = 1
            every, group = np.moveaxis(every, 0, by), (names[by], cell[by])
            expected = float(values.sum(axis=by)[cell[1 - by]] / values.sum())
        try:
            share, *ends = query_ratio(answered, names, inside, every, level)
        except TooFewRecords:
            continue
        low, high = np.clip(ends, 0, 1)
        if not low <= expected <= high:
            at = 1 - by if group else 0
            error = (ends[1] - ends[0]) / 2 / width
            told = float(np.clip(share, 0, 1)), float(low), float(high)
            yield Finding(names, names[at], cell[at], group, *told, error, expected, abs(float(sizes[cell])))
            return
