"""Findings of a release: dependences of attributes, means of groups and largest shares that noise cannot explain.

Let N be the estimated table of two attributes with n records, and p and q the shares of its margins. A cell departs
from independence by D = N − n p q, which to first order is the answer of the linear query (e − p 1) ⊗ (e − q 1) with
a known error s; e is 1 in the cell alone, and 1 everywhere. Independent records depart with the variance
n p (1 − p) q (1 − q). A cell is a finding if

    |D| > w √(s² + n p (1 − p) q (1 − q)),

with the half width w of intervals that cover all M candidate cells of the release together (Bonferroni), and if the
joint interval of its share in the group does not contain its share of all records. The cells of one attribute are
compared with equal shares of the values that its domain lists likewise.

For the mean m of a number with the range L … H, the group e departs by the answer of (e − p 1) ⊗ (v − m), with the
values v of the cells of the number. The variance of its values is at most (H − m)(m − L), which takes the place of
q (1 − q). A mean of a group is a finding if the joint interval of it does not contain m.

Candidates follow from the workload alone. Of each table the cell with the largest ratio of D to its error is told,
dependences and means before shares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpscale.answers.number_statistics import mean_table
from dpscale.answers.statistics import TooFewRecords, query_ratio
from dpscale.answers.tables import (
    LEVEL,
    LONGEST,
    LOOKED_AT,
    Answered,
    requested_attributes,
    requested_pairs,
    title_of,
    words_of,
)
from dpscale.base.display import percent, rounded, share_text
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.domain.number import Number
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.joint_intervals import half_width
from dpscale.reconstruction.simulated_errors import LONGER, TAIL
from dpscale.workload.sums import MeanQueries

MOST_FINDINGS = 3  # of a release unless `most` is given


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
        """Return the finding in words.

        `share` has the interval `low` … `high` and a standard error. `group` is (attribute, cell) of the records that
        the finding is about, or None for all records. `expected` is the share with which it is compared: equal shares
        of the cells, or the share of all records. A group by a date is named as a time.
        """
        share, cell = share_text(self.share, self.low, self.high, self.error), _cell(domain, self.name, self.cell)
        if self.group is None:
            return f"{share} of the records have {cell}; equal shares would be {percent(self.expected)}."
        by, at = self.group
        begin = f"Of the records with {_cell(domain, by, at)}, {share}"
        if domain[by].kind == "date":
            begin = f"In {words_of(domain[by])[at]}, {share} of the records"
        return f"{begin} have {cell}; of all records {percent(self.expected)}."


@dataclass(frozen=True)
class MeanFinding:
    """Mean of a number in a group of records.

    Attributes
    ----------
    names : AttributeSet
        Attribute of the group, and the number.
    cell : int
        Of the group.
    mean, low, high : float
        With the joint interval.
    error : float
        Standard error of the mean.
    expected : float
        Mean of all records.
    size : float
        Departure over its error.
    """

    names: AttributeSet
    cell: int
    mean: float
    low: float
    high: float
    error: float
    expected: float
    size: float

    def sentence(self, domain: Domain) -> str:
        """Return the finding in words.

        `names` is (attribute of the groups, number), and `cell` is the group. `expected` is the mean of all records.
        Numbers are rounded to the precision of the standard error.
        """
        by, number = self.names
        ends = [rounded(end, self.error) for end in (self.low, self.high)]
        unit = f" {domain[number].words.unit}" * bool(domain[number].words.unit)
        mean = f"{rounded(self.mean, self.error)}{unit} [{ends[0]} to {ends[1]}]"
        group = f"of the records with {_cell(domain, by, self.cell)}"
        expected = rounded(self.expected, self.error)
        return f"The mean of {title_of(domain, number)} {group} is {mean}; of all records {expected}."


def _cell(domain: Domain, name: str, cell: int) -> str:
    unit = domain[name].words.unit
    return f"{title_of(domain, name)} “{words_of(domain[name])[cell]}" + f" {unit}" * bool(unit) + "”"


def findings(answered: Answered, most: int = MOST_FINDINGS) -> list[Finding | MeanFinding]:
    """Return the largest findings of a release, at most one of a table; none without standard errors.

    Departures are sorted by their size in standard errors. Candidates are all cells looked at, because the largest of
    them is reported. `tail` widens limits of estimates whose errors are simulated.

    `width` is the half width at the level of all candidates together (Bonferroni). `pairs`, `singles` and `means` are
    the first LOOKED_AT sets of the workload of each kind.
    """
    domain, noise = answered.estimates.workload.domain, answered.estimates.noise
    pairs = [names for names in requested_pairs(answered)[:LOOKED_AT] if _may_be_independent(answered, names)]
    singles = [(name,) for name in requested_attributes(answered, LONGEST)[:LOOKED_AT]]
    means = _requested_means(answered)
    candidates = sum(domain.cells(names) for names in (*pairs, *singles)) + sum(domain[by].size for by, _ in means)
    if not candidates:
        return []

    level = 1 - (1 - LEVEL) / candidates
    width, tail = half_width(level, noise), 1.0
    if not isinstance(answered.estimates, LeastSquaresEstimates):  # as of their simultaneous intervals
        tail += TAIL + LONGER * math.log(candidates)

    largest = list[Finding | MeanFinding]()
    # dependences and means before shares
    for sets in ([*pairs, *means], singles):
        departures = {names: _departures(answered, names) for names in sets}
        sizes = {names: float(np.abs(ratios).max()) for names, ratios in departures.items() if ratios.size}
        for names in sorted(sizes, key=lambda names: -sizes[names]):
            # sorted by size: all further ones are smaller
            if len(largest) == most or sizes[names] <= width * tail:
                break
            first = _first_mean if names[-1] in domain.number_names else _first
            largest += first(answered, names, departures[names], width * tail, level)
    return largest


def _requested_means(answered: Answered) -> Sequence[AttributeSet]:
    """Return an attribute and a number for each mean by cells of an attribute that the workload asks for.

    A part of the workload for means is named after its family and number. Attributes with more than LONGEST cells and
    sets that a model extrapolates are left out; at most LOOKED_AT pairs are returned.
    """
    domain = answered.estimates.workload.domain
    titles = {f"{MeanQueries.name}-{number}" for number in domain.number_names}
    sets = [names for part in answered.estimates.workload.parts if part.name in titles for names in part.sets]
    short = [names for names in sets if len(names) == 2 and domain[names[0]].size <= LONGEST]
    return [names for names in short if not answered.estimates.extrapolates(names)][:LOOKED_AT]


def _may_be_independent(answered: Answered, names: AttributeSet) -> bool:
    """Return whether neither the domain determines a dependence of two attributes, nor a model extrapolates them.

    The domain determines a dependence of attributes that have a column in common, or that occur in the same rule. A
    model extrapolates a set if the measurements determine only a part of its counts.
    """
    domain, (first, second) = answered.estimates.workload.domain, names
    implied = set(domain[first].columns) & set(domain[second].columns) or any(
        {first, second} <= set(rule.names) for rule in domain.rules
    )
    return not implied and not answered.estimates.extrapolates(names)


def _departures(answered: Answered, names: AttributeSet) -> Floats:
    """Return the ratio of every cell's departure to its error; empty without estimates, or errors, or records.

    Of one attribute only shares above the equal ones count. Of a mean the cells are those of the group.
    """
    try:
        queries, sampling, shape = _departure_queries(answered, names)
        # a mean has queries over the number too, but cells of the group only
        ask = answered.spanned if len(shape) < len(names) else answered.linear
        departures, errors = ask(names, queries)
    except (PlanError, TooFewRecords):
        return np.zeros(0)

    deviations = np.sqrt(errors**2 + np.ravel(sampling))
    if not np.isfinite(deviations).all():
        return np.zeros(0)
    shown = departures
    if len(names) == 1:
        listed = np.arange(departures.size) < answered.estimates.workload.domain[names[0]].listed
        shown = np.where(listed, np.maximum(departures, 0.0), 0.0)  # not (outside) or nulls
    return np.divide(shown, deviations, out=np.zeros_like(shown), where=deviations > 0).reshape(shape)


def _departure_queries(answered: Answered, names: AttributeSet) -> tuple[Floats, Floats, tuple[int, ...]]:
    """Return the queries D of the cells of a table, their variances without dependence, and the shape of the cells.

    Raises TooFewRecords for a table without estimated records.

    `queries` becomes the Kronecker product of e - p 1 over the attributes (see the module), `sampling` n p (1 - p) q (1
    - q). Of one attribute, p are equal shares of the listed cells.
    """
    domain = answered.estimates.workload.domain
    if names[-1] in domain.number_names:
        return _mean_queries(answered, names)

    values, _ = answered.cells(names)
    total = float(values.sum())
    if total <= 0:
        raise TooFewRecords("findings", "no estimated records", "some", "raise epsilon")

    listed = np.arange(values.size) < domain[names[0]].listed
    shares = [listed / listed.sum()]
    if values.ndim == 2:
        shares = [values.sum(axis=1) / total, values.sum(axis=0) / total]
    queries, sampling = np.ones((1, 1)), np.asarray(total)
    for share in shares:
        queries = np.kron(queries, np.eye(share.size) - share[:, None])
        sampling = np.multiply.outer(sampling, np.clip(share * (1 - share), 0, None))
    return queries.reshape(-1, *values.shape), sampling, values.shape


def _mean_queries(answered: Answered, names: AttributeSet) -> tuple[Floats, Floats, tuple[int, ...]]:
    """Return the queries D of the groups of a mean, and their largest variances without dependence.

    A query is the sum of a number less its mean, in a group less the group's share. The largest variance of values with
    a mean within low and high is (high - mean)(mean - low).

    `valued` marks the cells of records with a value, `counts` are their numbers by group, and `low` and `high` the ends
    of the number's range.
    """
    by, name = names
    domain = answered.estimates.workload.domain
    number, groups = domain[name], domain[by].size
    assert isinstance(number, Number)
    valued = np.arange(number.size) != number.null_cell
    counts, _ = answered.spanned(names, np.multiply.outer(np.eye(groups), valued.astype(float)))
    total = float(counts.sum())
    mean = mean_table(answered, name, (), LEVEL)["estimate"][0].as_py()
    if total <= 0 or math.isnan(mean):
        raise TooFewRecords("findings", "no estimated records", "some", "raise epsilon")

    shares, (low, high) = np.clip(counts / total, 0, 1), number.ends
    queries = np.multiply.outer(np.eye(groups) - shares[:, None], np.where(valued, number.cell_values - mean, 0.0))
    variance = max((high - mean) * (mean - low), 0.0)
    return queries, total * shares * (1 - shares) * variance, (groups,)


def _first(answered: Answered, names: AttributeSet, sizes: Floats, least: float, level: float) -> Iterator[Finding]:
    """Yield the largest finding of a table, if there is any; of equal ones the one above its expectation.

    `sizes` are the departures in errors. `inside` selects the cell and `of_group` the records of its group, so that
    their ratio is the cell's share.

    `least` is the number of errors above which a departure is a finding (w), and `level` that of the joint intervals.
    Ties are compared after rounding to six digits, so that they do not depend on the machine. The other attribute, or
    none, groups.
    """
    domain = answered.estimates.workload.domain
    width = half_width(level, answered.estimates.noise)
    values, _ = answered.cells(names)
    for flat in np.lexsort((sizes.ravel() < 0, -np.round(np.abs(sizes.ravel()), 6))):
        if abs(sizes.flat[flat]) <= least:
            return
        cell = tuple(int(at) for at in np.unravel_index(flat, sizes.shape))
        by = int(len(names) == 2 and domain[names[1]].kind == "date")  # of two attributes, the first or a date groups
        inside, of_group, group = np.zeros(sizes.shape), np.ones(sizes.shape), None
        inside[cell] = 1
        # equal shares of the values, or the share among all records
        expected = 1 / domain[names[0]].listed
        if len(names) == 2:
            of_group = np.moveaxis(np.zeros(sizes.shape), by, 0)
            of_group[cell[by]] = 1
            of_group, group = np.moveaxis(of_group, 0, by), (names[by], cell[by])
            expected = float(values.sum(axis=by)[cell[1 - by]] / values.sum())

        try:
            share, *ends = query_ratio(answered, names, inside, of_group, level)
        except TooFewRecords:
            continue
        low, high = np.clip(ends, 0, 1)
        # the interval must confirm it; otherwise the next cell is tried
        if not low <= expected <= high:
            # number of the attribute that is described; the other one groups
            at = 1 - by if group else 0
            error = (ends[1] - ends[0]) / 2 / width
            figures = float(np.clip(share, 0, 1)), float(low), float(high)
            yield Finding(names, names[at], cell[at], group, *figures, error, expected, abs(float(sizes[cell])))
            return


def _first_mean(
    answered: Answered, names: AttributeSet, sizes: Floats, least: float, level: float
) -> Iterator[MeanFinding]:
    """Yield the largest finding of a table of means, if there is any.

    A mean whose interval contains that of all records is no finding.

    `sizes` are the departures in errors of the groups, `least` the number of errors above which one is a finding, and
    `level` that of the joint intervals.
    """
    by, number = names
    groups, of_all = mean_table(answered, number, (by,), level), mean_table(answered, number, (), level)
    expected = of_all["estimate"][0].as_py()

    for cell in np.argsort(-np.abs(sizes), kind="stable").tolist():
        if abs(sizes[cell]) <= least:
            return
        mean, error, low, high = (groups[name][cell].as_py() for name in ("estimate", "std_error", "low", "high"))
        if math.isfinite(low + high) and not low <= expected <= high:
            yield MeanFinding(
                names=names,
                cell=cell,
                mean=mean,
                low=low,
                high=high,
                error=error,
                expected=expected,
                size=abs(float(sizes[cell])),
            )
            return
