"""Values of numbers in synthetic rows, with the released sums by group.

Values are drawn from one distribution on the range with the released mean: the one of largest entropy (a truncated
exponential), or with a released variance a beta distribution. Then they are raked: for each set of attributes, largest
first, a value u of a row becomes u f/(1 − u + u f), with one f > 0 for each group, by a Newton step towards the
released sum. This is a logistic tilt: values stay inside their range, and small values are scaled. With variances the
distances from the mean of a group are scaled too. At the end values are rounded to the grid, up or down, so that the
sums of groups change by less than a step or two. Rows of a part match the part's share of each sum.

Nulls are drawn in the same way, as values 0 and 1 whose sums are the released numbers of records with a value.

Functions of many rows use exact arithmetic operations of IEEE 754 only, or round: the last bits of another machine's
exponential do not change rows.

*Targets.*
Values are shares of the number's range, 0 at its low end and 1 at its high end. A group is visible if its number of
records with a value can be distinguished from 0, as for means. Groups that are not visible have no target: their values
follow from the smaller sets of attributes, which are targets too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Flags, Floats, Integers, Integers32, optimize, special
from dpscale.domain.attribute import Attribute
from dpscale.domain.number import Number
from dpscale.privacy.streams import PublicStream
from dpscale.storage.files import reading, writing
from dpscale.synthesis import loops

MOST_SETS = 64  # of a number, beside the total
MOST_REPORTED = 1 << 14  # groups of a number whose sums are compared with the estimates
FIELDS = ("known", "known_errors", "sums", "errors", "value_errors", "squares")


@dataclass(frozen=True, eq=False)
class GroupTargets:
    """Estimates for the groups of one set of attributes, flat and in records of the data.

    Attributes
    ----------
    names : attributes of the groups, () for all records.
    sizes : number of cells of each attribute.
    known, known_errors : number of records with a value, and its standard error.
    sums, errors : sum of their values, and its standard error.
    value_errors : standard error of the sum in units of the column, as a share of the range.
    squares : sum of their squared values; empty if it was not measured.
    width : half width of an interval in standard errors.
    """

    names: AttributeSet
    sizes: tuple[int, ...]
    known: Floats
    known_errors: Floats
    sums: Floats
    errors: Floats
    value_errors: Floats
    squares: Floats
    width: float

    @property
    def visible(self) -> Flags:
        return np.asarray(self.known > self.width * self.known_errors)

    @property
    def means(self) -> Floats:
        """Means of visible groups, within 0 … 1; nan for others."""
        return np.clip(self._ratio(self.sums), 0, 1)

    @property
    def variances(self) -> Floats:
        """Variances of visible groups, at most those of values at the ends; nan if unknown.

        Values are scaled to [0, 1], so the variance with mean m is at most m (1 − m); `squares` are the released sums
        of squares.
        """
        if not self.squares.size:
            return np.full(len(self.known), np.nan)
        means = self.means
        return np.clip(self._ratio(self.squares) - means**2, 0, means * (1 - means))

    def _ratio(self, sums: Floats) -> Floats:
        return np.divide(sums, self.known, out=np.full(len(sums), np.nan), where=self.visible)

    def layout(self, names: Sequence[str]) -> tuple[Integers, Integers]:
        """Return the columns of the attributes among `names` and their strides: a row's group is Σ cell · stride."""
        columns = np.array([list(names).index(name) for name in self.names], np.int64)
        strides = np.array([np.prod(self.sizes[at + 1 :], dtype=np.int64) for at in range(len(self.sizes))], np.int64)
        return columns, strides

    def index(self, cells: Integers32, names: Sequence[str]) -> Integers:
        """Return the group of each row, shape (n,); `names` are the columns of `cells`."""
        columns, strides = self.layout(names)
        return np.asarray(cells[:, columns] @ strides, np.int64)


@dataclass(frozen=True, eq=False)
class NumberTargets:
    """Targets of one number.

    Attributes
    ----------
    name : str
    sets : sequence of GroupTargets
        Largest sets first; the last one is all records.
    """

    name: str
    sets: tuple[GroupTargets, ...]

    @property
    def reported(self) -> list[GroupTargets]:
        """The smallest sets, of at most MOST_REPORTED groups together."""
        reported, groups = list[GroupTargets](), 0
        for set_targets in reversed(self.sets):
            groups += len(set_targets.known)
            if groups <= MOST_REPORTED:
                reported.append(set_targets)
        return reported


def select_sets(candidates: Sequence[GroupTargets], most_groups: int) -> tuple[GroupTargets, ...]:
    """Return at most MOST_SETS sets of at most `most_groups` groups together, largest first, and all records.

    Small sets come first, and among those of one size the ones whose means differ most from that of all records.
    """
    (total,) = [targets for targets in candidates if not targets.names]
    by_attributes = [targets for targets in candidates if targets.names]
    ranked = sorted(by_attributes, key=lambda targets: (len(targets.names), -_signal(targets, total)))

    chosen, groups = list[GroupTargets](), 1
    for targets in ranked[:MOST_SETS]:
        groups += len(targets.known)
        if groups <= most_groups:
            chosen.append(targets)
    return (*reversed(chosen), total)


def _signal(targets: GroupTargets, total: GroupTargets) -> float:
    """Return how much the means of groups differ from the mean of all records, beyond noise.

    It is Σ (sum − n · mean)² in squared standard errors, less one for each visible group.
    """
    if not total.visible[0]:
        return 0.0
    seen = targets.visible
    expected = targets.known[seen] * total.means[0]
    return float((((targets.sums[seen] - expected) / targets.errors[seen]) ** 2 - 1).sum())


def write_number_targets(path: Path, numbers: Sequence[NumberTargets]) -> None:
    """Write targets exactly into one file; it is not flushed to disk, because it can be recomputed for free."""
    index, arrays = [], {}
    for i, number in enumerate(numbers):
        index.append(
            {
                "name": number.name,
                "sets": [[set_targets.names, set_targets.sizes, set_targets.width] for set_targets in number.sets],
            }
        )
        for j, set_targets in enumerate(number.sets):
            for field in FIELDS:
                arrays[f"{i} {j} {field}"] = getattr(set_targets, field)
    with writing(path, durable=False) as file:
        np.savez(file, allow_pickle=False, index=np.array(json.dumps(index)), **arrays)


def read_number_targets(path: Path) -> tuple[NumberTargets, ...]:
    """Return the targets in a file.

    The array of a field is named by the numbers of its number and set, and the field.
    """
    with reading(path) as file, np.load(file, allow_pickle=False) as arrays:
        index: list[dict[str, Any]] = json.loads(str(arrays["index"]))
        numbers = []
        for i, number in enumerate(index):
            sets = []
            for j, (names, sizes, width) in enumerate(number["sets"]):
                fields = {field: arrays[f"{i} {j} {field}"] for field in FIELDS}
                sets.append(GroupTargets(tuple(names), tuple(sizes), width=width, **fields))
            numbers.append(NumberTargets(number["name"], tuple(sets)))
        return tuple(numbers)


# most sweeps of raking; the first of them, which scale distances too; largest log f at the end
SWEEPS, SPREADS, CLOSE = 24, 16, 1e-7
MOST_TILT, MOST_SPREAD = 2.0, 2.0  # of a step: the logarithm of f, and the factor of distances from the mean
UNIT = 2.0**40  # factors and quantiles are rounded to multiples of 1/UNIT
EDGE = 2.0**-30  # distance of values from the ends of their range during raking
MOST_RATE = 1e7  # of the exponential distribution
CONCENTRATIONS = 0.05, 1e6  # of the beta distribution
NUMERIC = ("bins", "integer", "coded")


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Rows of a part, and the share of the table's records that they represent.

    Attributes
    ----------
    cells : ndarray of int32, shape (n, d)
    names : attributes of the columns of `cells`.
    weights : ndarray, shape (n,)
        Number of records that a row represents, or 1.
    scale : float
        Weight of all rows of the table for each record of the data.
    totals : list of ndarray, or None
        Number of rows of the whole table in each group of each set, largest set first; None if the part is the table.
    """

    cells: Integers32
    names: Sequence[str]
    weights: Floats
    scale: float
    totals: Sequence[Integers] | None = None

    def select(self, chosen: Flags) -> RowGroups:
        """Return some of the rows."""
        return RowGroups(
            cells=np.ascontiguousarray(self.cells[chosen]),
            names=self.names,
            weights=self.weights[chosen],
            scale=self.scale,
            totals=self.totals,
        )

    def present(self, set_targets: GroupTargets) -> Floats:
        """Return the weight of the rows in each group of a set."""
        group_of_row = set_targets.index(self.cells, self.names)
        return np.asarray(np.bincount(group_of_row, self.weights, len(set_targets.known)), np.float64)


@dataclass(frozen=True, eq=False)
class Ranges:
    """Ranges of rows as shares of the number's range, shape (n,); a row with `span` 0 has the value `low`."""

    low: Floats
    span: Floats

    def values(self, shares: Floats) -> Floats:
        return np.asarray(self.low + self.span * shares)

    def select(self, chosen: Flags) -> Ranges:
        return Ranges(self.low[chosen], self.span[chosen])


def draw_steps(
    number: Number, targets: NumberTargets, rows: RowGroups, attributes: Sequence[Attribute], stream: PublicStream
) -> Integers:
    """Return the value of every row in steps from the low end of the number; -1 for null.

    Parameters
    ----------
    number : Number
    targets : NumberTargets
    rows : RowGroups
    attributes : sequence of Attribute
        Attributes of the rows that are read from the number's column: their cells restrict the value, and tell nulls.
    stream : PublicStream
    """
    first, last = _restrict(number, rows, attributes)
    order = np.lexsort((stream.uniforms(len(rows.cells)), *_indices(targets, rows)))
    known = last >= first
    if number.nulls == "skip" and not attributes:
        known = _draw_known(targets, rows, order, stream)

    # only rows with a value from here on; `order_of_known` has their numbers among these rows
    ranges = Ranges(first / number.steps, (last - first) / number.steps).select(known)
    chosen, order_of_known = rows.select(known), (np.cumsum(known) - 1)[order[known[order]]]
    shares = _start(targets.sets[-1], ranges, order_of_known, stream)
    low = number.low / number.steps
    sums = [_part_sums(set_targets, chosen, totals, low) for set_targets, totals in _with_totals(targets, rows)]
    shares = _rake(shares, ranges, chosen, targets.sets, sums)

    exact = np.clip(ranges.values(shares) * number.steps, first[known], last[known])
    steps = np.full(len(rows.cells), -1, np.int64)
    steps[known] = np.clip(stream.rounded_in_order(exact, order_of_known, EDGE), first[known], last[known])
    return steps


def _indices(targets: NumberTargets, rows: RowGroups) -> list[Integers]:
    """Return the groups of the largest two sets, the largest last."""
    return [set_targets.index(rows.cells, rows.names) for set_targets in reversed(targets.sets[:2])]


def _with_totals(targets: NumberTargets, rows: RowGroups) -> list[tuple[GroupTargets, Integers | None]]:
    totals = [None] * len(targets.sets) if rows.totals is None else rows.totals
    return list(zip(targets.sets, totals, strict=True))


def _draw_known(targets: NumberTargets, rows: RowGroups, order: Integers, stream: PublicStream) -> Flags:
    """Return which rows have a value, with the released number of them in each group that has rows beyond the noise.

    Presence is a value 0 or 1 with the released sums. A group has a target only if it has more rows than the error of
    its number; others follow from smaller sets. `width` times the error of a number of rows (`known_errors`) is the
    limit; `scale` converts released numbers to these rows. A group without a target has nan.
    """
    aims = list[Floats]()
    for set_targets, totals in _with_totals(targets, rows):
        present, aim = rows.present(set_targets), set_targets.known * rows.scale
        if totals is not None:
            aim = np.divide(aim * present, totals, out=np.zeros(len(aim)), where=totals > 0)
        seen = present > set_targets.width * set_targets.known_errors * rows.scale
        aims.append(np.where(seen, np.clip(aim, 0, present), np.nan))

    count = len(rows.cells)
    start, ranges = np.full(count, 0.5), Ranges(np.zeros(count), np.ones(count))
    shares = _rake(start, ranges, rows, targets.sets, aims, spreads=False)
    return stream.rounded_in_order(shares, order, EDGE) > 0


def _part_sums(targets: GroupTargets, rows: RowGroups, totals: Integers | None, low: float) -> Floats:
    """Return the sums of the part's rows in the groups of a set; nan for groups that are not visible.

    With the low end L of the range, the sum of the column is Σ (L + u). If a group has more or fewer rows than released
    records, Σ u makes up for L times the difference, up to one standard error of the sum: means stay near their
    estimates even if L is far from 0.
    """
    present, records = rows.present(targets), targets.known * rows.scale  # in the part, and in all parts as released
    share = np.ones(len(present))  # of the part in all parts
    if totals is not None:
        of_all = np.minimum(np.maximum(records, 1e-9), totals)
        share = np.divide(present, of_all, out=np.zeros(len(present)), where=of_all > 0)

    largest = targets.value_errors * rows.scale * share
    offset = np.clip(low * (records * share - present), -largest, largest)
    sums = targets.sums * rows.scale * share + offset
    return np.where(targets.visible & (present > 0), np.clip(sums, 0, present), np.nan)


def _restrict(number: Number, rows: RowGroups, attributes: Sequence[Attribute]) -> tuple[Integers, Integers]:
    """Return the first and the last step of each row; the last is before the first for null.

    `latest` and `earliest` are the narrowed ends of a row's range of steps. If cells contradict each other, the range
    stays that of the attributes before.
    """
    first, last = np.zeros(len(rows.cells), np.int64), np.full(len(rows.cells), number.steps)
    for attribute in attributes:
        cells = rows.cells[:, list(rows.names).index(attribute.name)]
        low, high = _cell_steps(number, attribute)
        latest, earliest = np.maximum(first, low[cells]), np.minimum(last, high[cells])
        null = (high < low)[cells]
        fits = (latest <= earliest) & ~null  # cells of two attributes may contradict each other
        first, last = np.where(fits, latest, first), np.where(fits, earliest, last)
        first, last = np.where(null, 1, first), np.where(null, 0, last)

    return first, last


def _cell_steps(number: Number, attribute: Attribute) -> tuple[Integers, Integers]:
    """Return the first and the last step of the values in each cell of an attribute of the same column.

    A value is number.low + step · unit. An empty interval (1, 0) marks a cell whose rows have no value; attributes that
    do not show a range leave all steps.
    """
    low, high = np.zeros(attribute.size, np.int64), np.full(attribute.size, number.steps)
    # nulls are skipped by the number, or count as a value
    if attribute.null_cell >= 0 and number.null_code > number.steps:
        low[attribute.null_cell], high[attribute.null_cell] = 1, 0
    elif attribute.null_cell >= 0 and number.null_code >= 0:
        low[attribute.null_cell] = high[attribute.null_cell] = number.null_code

    if attribute.kind not in NUMERIC or attribute.values or attribute.groups:
        return low, high

    # ends of the cells in steps; the last step of a cell is the one before the first of the next
    ends = np.array([_ends(attribute, cell) for cell in range(attribute.listed)]) / float(number.unit) - number.low
    first, following = np.ceil(ends[:, 0]), np.ceil(ends[:, 1])
    middle = np.rint(ends.mean(axis=1))
    empty = following <= first  # a cell between two steps
    first, last = np.where(empty, middle, first), np.where(empty, middle, following - 1)
    low[: attribute.listed], high[: attribute.listed] = (np.clip(step, 0, number.steps) for step in (first, last))
    # values beyond the range are in the first and the last cell
    if attribute.outside == "clip":
        low[0], high[attribute.listed - 1] = 0, number.steps

    return low, high


def _ends(attribute: Attribute, cell: int) -> tuple[float, float]:
    """Return the lower end and the excluded upper end of the values of a cell."""
    if attribute.kind == "bins":
        return attribute.edges[cell], attribute.edges[cell + 1]
    value = attribute.low + attribute.step * cell
    half = attribute.step / 2 if attribute.step > 1 else 0.0
    return value - half, value + half


def _start(total: GroupTargets, ranges: Ranges, order: Integers, stream: PublicStream) -> Floats:
    """Return values inside their ranges, before raking: quantiles that are evenly spread in `order`.

    The distribution has the mean and variance of all records: a beta distribution, or without a variance the one of
    largest entropy. Rows with a narrower range have uniform quantiles.

    A beta distribution with mean m and variance v has the parameters m c and (1 − m) c, c = m (1 − m)/v − 1. UNIT
    rounds quantiles, so that the last bits of another machine's functions do not matter.
    """
    places = np.empty(len(order))
    places[order] = _spread_out(len(order), stream)
    mean = float(np.clip(total.means[0], 2 / MOST_RATE, 1 - 2 / MOST_RATE)) if total.visible[0] else 0.5
    variance = float(total.variances[0])

    if np.isnan(variance):
        quantiles = _exponential(mean, places)
    else:
        concentration = float(np.clip(mean * (1 - mean) / max(variance, 1e-12) - 1, *CONCENTRATIONS))
        quantiles = special.betaincinv(mean * concentration, (1 - mean) * concentration, places)

    shares = np.where(ranges.span < 1, places, quantiles)
    return np.asarray(np.clip(np.rint(shares * UNIT) / UNIT, EDGE, 1 - EDGE))


def _spread_out(count: int, stream: PublicStream) -> Floats:
    """Return numbers in 0 … 1 of which any consecutive ones are evenly spread: a golden-ratio sequence."""
    return np.asarray((stream.uniforms(1)[0] + np.arange(count) * ((5**0.5 - 1) / 2)) % 1.0)


def _exponential(mean: float, places: Floats) -> Floats:
    """Return quantiles of the distribution on 0 … 1 of largest entropy with a mean, a truncated exponential.

    The density is proportional to e^(rate · x); the quantile of p is log(1 + p (e^rate − 1))/rate. A mean above ½ is
    mirrored, and one near ½ is uniform.
    """
    if mean > 0.5:
        return 1 - _exponential(1 - mean, 1 - places)
    if mean > 0.5 - 1e-6:
        return places
    rate = float(optimize.brentq(lambda rate: _exponential_mean(rate) - mean, -MOST_RATE, -1e-6))
    return np.asarray(np.log1p(places * np.expm1(rate)) / rate)


def _exponential_mean(rate: float) -> float:
    """Return the mean of the density ∝ exp(rate · u) on 0 … 1, for a rate below 0."""
    return 0.5 + rate / 12 if rate > -1e-3 else float(-1 / np.expm1(-rate) - 1 / rate) if rate > -50 else -1 / rate


def _rake(
    shares: Floats, ranges: Ranges, rows: RowGroups, sets: Sequence[GroupTargets], sums: Sequence[Floats],
    spreads: bool = True,
) -> Floats:  # fmt: skip
    """Return the values of rows, as shares of their ranges, with the sums of each set as nearly as possible."""
    if not len(shares):
        return shares

    spreads = spreads and any(set_targets.squares.size for set_targets in sets)
    shares = shares.copy()
    for sweep in range(SWEEPS):
        change = 0.0
        for set_targets, aims in zip(sets, sums, strict=True):
            if spreads and set_targets.squares.size and sweep < SPREADS:  # sums come last
                index = set_targets.index(rows.cells, rows.names)
                shares = _spread(shares, ranges, rows.weights, index, set_targets.variances)
            change = max(change, _tilt(shares, ranges, rows, set_targets, aims))
        if change < CLOSE and not (spreads and sweep < SPREADS):
            break

    return shares


def _tilt(shares: Floats, ranges: Ranges, rows: RowGroups, set_targets: GroupTargets, aims: Floats) -> float:
    """Move values, in place, by a step towards the sums of groups; return the largest logarithm of a factor.

    A Newton step in the logarithm of a group's factor f: (aim − sum)/slope, where the slope of the sum is that of the
    logistic tilt, limited to MOST_TILT. `shares` are the places of values in their ranges; `present` are the sums of
    the groups and `aims` the wanted ones, nan without a target.
    """
    columns, strides = set_targets.layout(rows.names)
    present, slopes = np.zeros(len(aims)), np.zeros(len(aims))
    loops.sum_values(rows.cells, columns, strides, shares, ranges.low, ranges.span, rows.weights, present, slopes)
    steps = np.divide(aims - present, slopes, out=np.zeros(len(aims)), where=np.isfinite(aims) & (slopes > 0))
    steps = np.clip(steps, -MOST_TILT, MOST_TILT)
    loops.tilt_values(rows.cells, columns, strides, np.rint(np.exp(steps) * UNIT) / UNIT, EDGE, shares)
    return float(np.abs(steps).max(initial=0))


def _spread(shares: Floats, ranges: Ranges, weights: Floats, index: Integers, variances: Floats) -> Floats:
    """Return values whose distances from the mean of their group are scaled towards a variance.

    Distances from the weighted mean of a group are multiplied by √(wanted variance/present one), within limits. `index`
    is the group of each row; a distance changes by at most the factor MOST_SPREAD, and values stay inside their ranges
    by EDGE.
    """
    values, size = ranges.values(shares), len(variances)
    count = np.maximum(np.bincount(index, weights, size), 1e-300)
    means = np.bincount(index, weights * values, size) / count
    current = np.bincount(index, weights * (values - means[index]) ** 2, size) / count
    ratio = np.divide(variances, current, out=np.ones(size), where=np.isfinite(variances) & (current > 1e-15))
    factors = np.sqrt(np.clip(ratio, MOST_SPREAD**-2, MOST_SPREAD**2))[index]
    moved = means[index] + factors * (values - means[index])
    inside = np.divide(moved - ranges.low, ranges.span, out=shares.copy(), where=ranges.span > 0)

    return np.asarray(np.clip(inside, EDGE, 1 - EDGE))
