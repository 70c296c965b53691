"""Rows of SELECT statements: estimates of their columns with standard errors and intervals.

Counts, sums and their differences are linear queries. A ratio has Fieller's interval (`dpscale.answers.ratios`), whose
covariance follows from the errors of the two queries and of their sum; a row whose denominator cannot be distinguished
from 0 is missing. Variances have errors of the first order, and quantiles the intervals of `dpscale.answers.quantiles`.
HAVING, ORDER BY and LIMIT are applied to the estimates.

A *block* is one grouping set, whose rows are the combinations of groups of its keys. `width` is the half width of an
interval in standard errors.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np

from dpscale.answers.conclusions import Combination, Ratio
from dpscale.answers.quantiles import CumulativeCounts
from dpscale.answers.ratios import Figures, covariances, fieller
from dpscale.answers.statistics import MissingStatistic
from dpscale.answers.tables import LEVEL, Answered, check_level
from dpscale.base.arrow import pa
from dpscale.base.display import between, rounded
from dpscale.base.numerics import AttributeSet, Floats, Integers, optimize
from dpscale.domain.attribute import OUTSIDE_LABEL
from dpscale.reconstruction.joint_intervals import half_width
from dpscale.reconstruction.tree_estimates import TreeEstimates
from dpscale.workload.sql.aggregates import Quotient, Rank, RatioSum, Rounded, Spread, TermSum, Units, Value
from dpscale.workload.sql.blocks import GroupedQueries, Matrix, blocks_of, unit_of, unrounded
from dpscale.workload.sql.cells import COMPARE, SIGNS, Truth
from dpscale.workload.sql.selection import SUFFIXES, Order, SelectQuery
from dpscale.workload.sql.statements import exp

CountedUnits = Callable[[AttributeSet], Figures]


def selection_table(answered: Answered, selection: SelectQuery, level: float, units: CountedUnits) -> pa.Table:
    """Return the rows of a statement.

    The rows of all grouping sets are joined, then filtered by HAVING, sorted and cut to LIMIT. The columns after the
    first `shown` are only sorted by or compared.

    Parameters
    ----------
    answered : Answered
    selection : SelectQuery
    level : float
        Probability that an interval covers its value.
    units : callable
        Returns the figures of distinct units by the cells of an attribute set.

    Returns
    -------
    pyarrow.Table
        With a column for each column of SELECT; a value has the columns NAME, NAME_low, NAME_high and NAME_std_error.

    Raises
    ------
    PlanError
        If a query lies outside the row space of the measurements.
    """
    check_level(level)
    width = half_width(level, answered.estimates.noise)
    rows = [_Rows(answered=answered, block=block, width=width, units=units) for block in blocks_of(selection)]
    columns = [_column(selection, place, rows) for place in range(len(selection.columns))]
    chosen = np.arange(len(columns[0][0]))
    if selection.having is not None:
        chosen = chosen[_Having(selection, columns).truth(selection.having).true]
    for order in reversed(selection.order):
        chosen = chosen[_sorted(_ranks(selection, order.column, rows, columns), chosen, order)]
    last = None if selection.limit is None else selection.offset + selection.limit
    chosen = chosen[selection.offset : last]

    arrays: dict[str, pa.Array] = {}
    for output, (values, *ends_and_error) in zip(selection.columns[: selection.shown], columns, strict=False):
        arrays[output.name] = _array([values[row] for row in chosen])
        for suffix, figures in zip(SUFFIXES, ends_and_error, strict=False):
            arrays[f"{output.name}_{suffix}"] = pa.array(figures[chosen])
    return pa.table(arrays)


def expected_column_errors(answered: Answered, selection: SelectQuery) -> list[dict[str, Any]]:
    """Return the errors of the ratios, variances and quantiles of a statement, from estimates of a guessed table.

    Parameters
    ----------
    answered : Answered
        Estimates from `dpscale.reconstruction.guessed.GuessedValues`.
    selection : SelectQuery

    Returns
    -------
    list of dict
        For each such column its `statement` and `column`, the number of `rows`, the root mean square `error` and the
        largest error of a row (`worst`), and the number of rows whose records are too few for a value (`missing`). The
        errors are None if every row is missing.
    """
    columns = [output for output in selection.columns[: selection.shown]
               if output.value is not None and not isinstance(unrounded(output.value), TermSum | Units)]  # fmt: skip
    width = half_width(LEVEL, answered.estimates.noise)
    blocks = blocks_of(selection) if columns else []
    rows = [_Rows(answered=answered, block=block, width=width, units=_no_units) for block in blocks]
    expected = []
    for output in columns:
        assert output.value is not None
        errors = np.concatenate([of_block.figures(output.value).errors for of_block in rows])
        known = errors[np.isfinite(errors)]
        error, worst = (math.sqrt(float((known**2).mean())), float(known.max())) if len(known) else (None, None)
        expected.append({"statement": selection.name, "column": output.name, "rows": len(errors), "error": error,
                         "worst": worst, "missing": len(errors) - len(known)})  # fmt: skip
    return expected


def _no_units(names: AttributeSet) -> Figures:
    raise NotImplementedError(f"units by {', '.join(names)}")


def shown_rows(table: pa.Table, most: int) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return the first rows of a statement as texts: values with their intervals.

    Parameters
    ----------
    table : pyarrow.Table
        Result of `selection_table`.
    most : int

    Returns
    -------
    names : list of str
        Columns of SELECT.
    rows : list of list of str
    numeric : list of bool
        Which columns are values.
    """
    known = table.column_names
    names = [name for name in known if not _is_end(name, known)]
    rows = [[_shown(row, name) for name in names] for row in table.slice(0, most).to_pylist()]
    return names, rows, [f"{name}_low" in known for name in names]


def _is_end(name: str, others: Sequence[str]) -> bool:
    return any(name.endswith(f"_{suffix}") and name.removesuffix(f"_{suffix}") in others for suffix in SUFFIXES)


def _shown(row: Mapping[str, Any], name: str) -> str:
    """Return the text of a value in a result row: with its interval if it has one, "too few" if it is unknown.

    A value NAME has its ends in NAME_low and NAME_high and its error in NAME_std_error. A label has none of these
    columns.
    """
    value, low = row[name], row.get(f"{name}_low")
    if f"{name}_low" not in row:
        return "" if value is None else str(value)
    if value is None or math.isnan(value):
        return "too few"
    error = row.get(f"{name}_std_error")
    if low is None or math.isnan(low):
        return rounded(value, error)
    return f"{rounded(value, error)} ({between(low, row[f'{name}_high'], error)})"


def _array(values: list[Any]) -> pa.Array:
    """Return values as an Arrow array; labels of several types become texts."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # labels of several types
        return pa.array([None if value is None else str(value) for value in values])


def _column(selection: SelectQuery, place: int, rows: Sequence[_Rows]) -> list[Any]:
    """Return a column of all grouping sets: labels, or estimates with ends of intervals and standard errors.

    `place` is the position in the SELECT list. A column is a key, the number of a grouping set, or a value; `rows` has
    the rows of each grouping set.
    """
    output = selection.columns[place]
    if output.key is not None:
        return [np.array([label for of_set in rows for label in of_set.labels(output.key)], dtype=object)]
    if output.grouping is not None:
        return [np.array([of_set.grouping(output.grouping) for of_set in rows for _ in of_set.order], dtype=object)]
    assert output.value is not None
    figures = [of_set.figures(output.value) for of_set in rows]
    joined = Figures(*(np.concatenate(parts) for parts in zip(*figures, strict=True)))
    return [joined.estimates, joined.low, joined.high, joined.errors]


def _ranks(selection: SelectQuery, place: int, rows: Sequence[_Rows], columns: Sequence[list[Any]]) -> list[Any]:
    """Return the values by which the rows of all grouping sets are sorted."""
    key = selection.columns[place].key
    return list(columns[place][0]) if key is None else [rank for of_set in rows for rank in of_set.ranks(key)]


class _Rows:
    """Rows of a grouping set."""

    def __init__(self, answered: Answered, block: GroupedQueries, width: float, units: CountedUnits) -> None:
        self.answered, self.block, self.width, self.units = answered, block, width, units
        self.order = block.order

    def labels(self, key: int) -> list[Any]:
        """Return the labels of a key, null if the set has none."""
        return self._of_groups(key, self.block.selection.keys[key].labels)

    def ranks(self, key: int) -> list[Any]:
        """Return the values by which the rows are sorted along a key."""
        return self._of_groups(key, self.block.selection.keys[key].ranks)

    def _of_groups(self, key: int, labels: Sequence[Any]) -> list[Any]:
        """Return the label of each row's group of a key; None for a key that the grouping set sums over."""
        if key not in self.block.groups:
            return [None] * len(self.order)
        return [labels[group] for group in self.block.groups[key][self.order].tolist()]

    def grouping(self, keys: Sequence[int]) -> int:
        """Return the number whose bits say which keys are summed over."""
        return sum(1 << place for place, key in enumerate(reversed(keys)) if key not in self.block.groups)

    def figures(self, value: Value) -> Figures:
        """Return the figures of a value in the order of the rows."""
        unsorted = self._figures(value)
        return Figures(*(np.asarray(figure, np.float64)[self.order] for figure in unsorted))

    def _figures(self, value: Value) -> Figures:
        """Return estimates, errors and intervals of a value of the SELECT list for each row of the result."""
        match value:
            case TermSum():
                return self._linear(value)
            case Quotient():
                return self._quotient(value)
            case RatioSum():
                return self._ratio_sum(value)
            case Spread():
                return self._spread(value)
            case Rank():
                return self._rank(value)
            case Rounded():
                return _rounded(self._figures(value.value), value.digits)
            case Units():
                return self.units(self.block.attributes)
        raise TypeError(value)

    def _linear(self, value: TermSum) -> Figures:
        """Return the figures of a sum of terms; a constant has no error."""
        if not value.terms:
            constant = np.full(math.prod(self.block.shape), value.constant)
            return Figures(estimates=constant, errors=np.zeros_like(constant), low=constant, high=constant)
        (estimates,), moments = self.moments([value])
        errors = np.sqrt(np.maximum(moments[:, 0, 0], 0.0))
        half = self.width * errors
        estimates = estimates + value.constant
        return Figures(estimates=estimates, errors=errors, low=estimates - half, high=estimates + half)

    def _quotient(self, value: Quotient) -> Figures:
        """Return a quotient of two sums, clipped, then shifted and scaled; NaN if the divisor is not far from 0.

        t and n are the estimates of dividend and divisor, and `moments` their variances and covariance. `fieller`
        returns the ends of the interval of t/n. A negative scale exchanges the ends.
        """
        (t, n), moments = self.moments([value.above, value.below])
        t, n = t + value.above.constant, n + value.below.constant
        first, second, both = moments[:, 0, 0], moments[:, 1, 1], moments[:, 0, 1]
        seen = _seen(np.abs(n), second, self.width)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.clip(t / n, *value.ends)
            errors = np.sqrt(np.maximum(first - 2 * ratio * both + ratio**2 * second, 0.0)) / np.abs(n)
            low, high = (np.clip(end, *value.ends) for end in fieller((t, n), (first, second, both), self.width))
        ends = [value.shift + value.scale * end for end in (low, high)]
        figures = (value.shift + value.scale * ratio, abs(value.scale) * errors, np.minimum(*ends), np.maximum(*ends))
        return Figures(*(np.where(seen, figure, np.nan) for figure in figures))

    def _ratio_sum(self, value: RatioSum) -> Figures:
        """Return the figures of a sum of ratios, by the limits of `answers.conclusions`.

        The covariance of t - θn of each two ratios (`shared`) gives the correlations of the combination; see the module
        conclusions.

        A ratio is `above` over `below`, each an estimate plus a constant; queries 2k and 2k + 1 are those of ratio k. A
        row with a denominator that is not distinguished from 0 stays nan.
        """
        sides = [side for quotient in value.ratios for side in (quotient.above, quotient.below)]
        estimates, moments = self.moments(sides)
        constants = [side.constant for side in sides]
        weights = np.array([quotient.scale for quotient in value.ratios])
        shift = sum(quotient.shift for quotient in value.ratios)
        figures = np.full((moments.shape[0], 4), np.nan)
        for row, covariance in enumerate(moments):
            pairs = (estimates[:, row] + constants).reshape(-1, 2)
            # both sides change their sign
            pairs = pairs * np.where(pairs[:, 1:] < 0, -1.0, 1.0)  # of a negative denominator
            ratios = list[Ratio]()
            for k, quotient in enumerate(value.ratios):
                both = slice(2 * k, 2 * k + 2)
                ratios.append(Ratio.of(pairs[k], covariance[both, both], quotient.ends, sampled=False))
            if not all(_seen(ratio.below, ratio.error**2, self.width) for ratio in ratios):
                continue

            contrasts = np.zeros((len(ratios), 2 * len(ratios)))
            for k, ratio in enumerate(ratios):
                contrasts[k, 2 * k : 2 * k + 2] = 1, -ratio.value
            shared = contrasts @ covariance @ contrasts.T
            sizes = np.sqrt(np.maximum(np.diagonal(shared), 1e-300))
            combined = Combination(ratios, weights, np.clip(shared / np.outer(sizes, sizes), -1, 1))
            low, high = combined.limits(self.width)
            # first order: the error of t/n is that of t − θn divided by n
            slopes = weights / np.array([ratio.below for ratio in ratios])
            error = math.sqrt(max(float(slopes @ shared @ slopes), 0.0))
            figures[row] = combined.estimate, error, low, high
        estimate, errors, low_ends, high_ends = figures.T
        return Figures(estimates=shift + estimate, errors=errors, low=shift + low_ends, high=shift + high_ends)

    def _spread(self, value: Spread) -> Figures:
        """Return a variance q / n − (t / n)², or its root, for each row from sums of squares q, sums t and counts n.

        Errors follow from the covariance of the three by the derivatives; rows with too few records are NaN.
        """
        (q, t, n), moments = self.moments([value.squares, value.sums, value.counts])
        seen = _seen(n, moments[:, 2, 2], self.width) & (n > 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean, square = t / n, q / n
            # derivatives by q, t and n, each times n
            slope = np.stack([np.ones_like(mean), -2 * mean, 2 * mean**2 - square], axis=-1)
            errors = np.sqrt(np.maximum(np.einsum("ri,rij,rj->r", slope, moments, slope), 0.0)) / n
            scale = value.scale**2 * (n / (n - 1) if value.sample else 1.0)
            variance = square - mean**2
            low, high = (scale * np.clip(variance + sign * self.width * errors, 0, None) for sign in (-1, 1))
            estimate, errors = scale * np.clip(variance, 0, None), scale * errors
            if value.root:
                estimate, low, high = np.sqrt(estimate), np.sqrt(low), np.sqrt(high)
                # the error of a root is that of the variance over twice the root
                errors = errors / (2 * estimate)
        return Figures(*(np.where(seen, figure, np.nan) for figure in (estimate, errors, low, high)))

    def _rank(self, value: Rank) -> Figures:
        """Return a quantile for each row from noisy cumulative counts, with half of its interval as error.

        Variances of two sums and of their total give the covariances of the counts with the last one.

        `terms` are the cumulative counts; the last is the total. `moments` has Var C, Cov(C, N) and Var N, as in
        `answers.quantiles`.
        """
        attribute, terms = self.block.rank_terms(value)
        up_to = [TermSum(((1.0, term),)) for term in terms]
        # the counts, and then the sum of each with the total
        answers, errors = self._answers([*up_to, *(count.plus(up_to[-1]) for count in up_to)])
        variances, of_sums = np.split(errors**2, 2, axis=1)
        figures = np.full((len(answers), 4), np.nan)
        for row, counts in enumerate(answers[:, : len(terms)]):
            variance, total = variances[row], variances[row, -1]
            moments = np.stack([variance, (of_sums[row] - variance - total) / 2, np.full_like(variance, total)])
            # a row whose records are not distinguished from none stays nan
            if not _seen(counts[-1], total, self.width):
                continue
            known = CumulativeCounts(
                attribute=attribute,
                counts=counts,
                monotone=optimize.isotonic_regression(counts).x,
                places=np.arange(len(counts)),
                moments=moments,
            )
            try:
                estimate, low, high = known.quantile(value.q, self.width)
            except MissingStatistic:
                continue
            figures[row] = estimate, (high - low) / (2 * self.width), low, high
        return Figures(*figures.T)

    def moments(self, values: Sequence[TermSum]) -> tuple[Floats, Floats]:
        """Return estimates of combinations without their constants, shape (values, rows), and their covariance.

        A combination is divided by its unit first, because the error of a sum of very different sizes would lose
        digits.
        """
        units = np.array([unit_of(value) for value in values])
        # combinations of constants alone have no error
        live = [place for place, value in enumerate(values) if value.terms]
        if len(live) < len(values):
            rows = math.prod(self.block.shape)
            estimates, moments = np.zeros((len(values), rows)), np.zeros((rows, len(values), len(values)))
            if live:
                estimates[live], moments[:, np.array(live)[:, None], live] = self.moments(
                    [values[place] for place in live]
                )
            return estimates, moments
        scaled = [value.times(1 / unit) for value, unit in zip(values, units.tolist(), strict=True)]
        sums = [first.plus(second) for first, second in combinations(scaled, 2)]
        answers, errors = self._answers([*scaled, *sums])
        return (answers[:, : len(values)] * units).T, covariances(errors, len(values)) * np.outer(units, units)

    def _answers(self, values: Sequence[TermSum]) -> tuple[Floats, Floats]:
        """Return estimates and standard errors of combinations, shape (rows, values).

        `combined` writes combinations that differ in one attribute as one product of matrices: `arrays` has the rows of
        the differing attribute, which is "" if only factors differ.
        """
        product = self.block.combined(values)
        if product is None:  # the combinations differ in several attributes
            return self._one_by_one(values)
        names, matrices, differing, arrays = product
        if self._over_levels(names, matrices, differing):
            return self._one_by_one(values)
        if not differing:
            answers, errors = self._part(names, matrices)
            factors = arrays[:, 0, 0]
            return answers.reshape(-1, 1) * factors, errors.reshape(-1, 1) * np.abs(factors)

        stacked = arrays.reshape(-1, arrays.shape[-1])
        pair = self._part(names, matrices | {differing: Matrix(stacked)})
        axis, count = names.index(differing), len(values)
        by_value = []  # estimates and errors, the axis of values moved to the end
        for figures in pair:
            shaped = figures.reshape(*figures.shape[:axis], count, -1, *figures.shape[axis + 1 :])
            by_value.append(np.moveaxis(shaped, axis, -1).reshape(-1, count))
        return by_value[0], by_value[1]

    def _part(self, names: AttributeSet, matrices: Mapping[str, Matrix]) -> tuple[Floats, Floats]:
        part = self.block.part(dict(matrices))
        return self.answered.estimates.part_answers(part, names)

    def _over_levels(self, names: AttributeSet, matrices: Mapping[str, Matrix], differing: str) -> bool:
        """Return whether estimates over a tree are asked for sums of the cells of a level, which are no products.

        `matrices` has the queries on each attribute; an array of None takes the cells as they are. `differing` is the
        attribute on which queries of the rows differ.
        """
        if not isinstance(self.answered.estimates, TreeEstimates):
            return False
        return any(self.block.has_levels([name]) and (name == differing or matrices[name].array is not None)
                   for name in names)  # fmt: skip

    def _one_by_one(self, values: Sequence[TermSum]) -> tuple[Floats, Floats]:
        """Return estimates and errors from arrays over all attributes, row by row.

        `rows` is the number of cells of the grouping set; each has an array of queries over all attributes of the
        values.
        """
        names, rows = self.block.names_of(values), math.prod(self.block.shape)
        pairs = [self._of_row(names, values, row) for row in range(rows)]
        answers, errors = (np.stack(figures) for figures in zip(*pairs, strict=True))
        return answers, errors

    def _of_row(self, names: AttributeSet, values: Sequence[TermSum], row: int) -> tuple[Floats, Floats]:
        """Return estimates and standard errors of values in one row, each of shape (values,).

        Estimates over a tree answer one query at a time; other estimates answer all of them together.
        """
        queries = [self.block.array(names, value, row) for value in values]
        if isinstance(self.answered.estimates, TreeEstimates):
            answers = np.array([self.answered.estimates.answer(names, query) for query in queries])
            return answers[:, 0], answers[:, 1]
        return self.answered.spanned(names, np.stack(queries))


def _seen(records: Any, variance: Any, width: float) -> Any:
    """Return where a number of records is distinguished from 0; above 0 where its error is not known."""
    limit = width * np.sqrt(np.maximum(variance, 0.0))
    return records > np.where(np.isfinite(limit), limit, 0.0)


def _rounded(figures: Figures, digits: int) -> Figures:
    """Return figures with `digits` decimals.

    Intervals are rounded outwards, so that their coverage stays. Standard errors are not rounded.
    """
    scale = 10.0**digits
    return Figures(
        estimates=np.round(figures.estimates * scale) / scale,
        errors=figures.errors,
        low=np.floor(figures.low * scale) / scale,
        high=np.ceil(figures.high * scale) / scale,
    )


def _sorted(values: Sequence[Any], chosen: Integers, order: Order) -> Integers:
    """Return the places of chosen rows in the order of a column; equal rows keep their order.

    `values` is the column, `chosen` are the rows, and missing values are first or last by `order.nulls_first`.
    """
    listed = [values[row] for row in chosen]
    missing = np.array([_is_missing(value) for value in listed], np.bool_)
    known, empty = np.flatnonzero(~missing).tolist(), np.flatnonzero(missing).tolist()
    ranked = sorted(known, key=lambda place: listed[place], reverse=order.descending)
    return np.array([*empty, *ranked] if order.nulls_first else [*ranked, *empty], np.int64)


def _is_missing(value: Any) -> bool:
    """Return whether a value is null, outside the domain, or an estimate that is missing."""
    return value is None or value == OUTSIDE_LABEL or (isinstance(value, float) and math.isnan(value))


class _Having:
    """Conditions on the estimates of rows, with three values: a comparison with a missing value is unknown."""

    def __init__(self, selection: SelectQuery, columns: Sequence[Any]) -> None:
        self.selection, self.columns, self.rows = selection, columns, len(columns[0][0])

    def truth(self, node: Any) -> Truth:
        """Return the rows for which a condition of HAVING is true, and where it is known.

        A `Truth` has the rows for which the condition is true and those for which it is known.
        """
        match node:
            case exp.Paren():
                return self.truth(node.this)
            case exp.Not():
                return ~self.truth(node.this)
            case exp.And():
                return self.truth(node.left) & self.truth(node.right)
            case exp.Or():
                return self.truth(node.left) | self.truth(node.right)
            case exp.Is():
                missing = np.array([value is None or _is_nan(value) for value in self.values(node.this)], np.bool_)
                return Truth(missing, np.ones(self.rows, np.bool_))
            case exp.Between():
                low, value, high = map(self.values, (node.args["low"], node.this, node.args["high"]))
                return self._compared("LTE", low, value) & self._compared("LTE", value, high)
            case exp.In():
                value = self.values(node.this)
                equal = [self._compared("EQ", value, self.values(listed)) for listed in node.expressions]
                return reduce(operator.or_, equal)
        return self._compared(type(node).__name__, self.values(node.left), self.values(node.right))

    def values(self, node: Any) -> list[Any]:
        """Return the values of an operand by row.

        A leaf is an expression that is a column of the result, even a hidden one; literals have the same value in all
        rows, and arithmetic with a missing value is missing.
        """
        if (place := self.selection.leaves.get(node.sql())) is not None:
            return list(self.columns[place][0])
        match node:
            case exp.Paren():
                return self.values(node.this)
            case exp.Literal():
                return [str(node.this) if node.is_string else float(node.this)] * self.rows
            case exp.Neg():
                return [value if _is_missing(value) else -value for value in self.values(node.this)]
        function, sides = ARITHMETIC[type(node).__name__], (self.values(node.left), self.values(node.right))
        return [None if _is_missing(a) or _is_missing(b) else function(a, b) for a, b in zip(*sides, strict=True)]

    def _compared(self, sign: str, left: Sequence[Any], right: Sequence[Any]) -> Truth:
        """Return row by row whether a comparison of two columns is true; it is unknown where a value is missing."""
        compare = COMPARE[SIGNS[sign]]
        known = np.array([not (_is_missing(a) or _is_missing(b)) for a, b in zip(left, right, strict=True)], np.bool_)
        true = [bool(flag) and compare(a, b) for flag, a, b in zip(known, left, right, strict=True)]
        return Truth(np.array(true, np.bool_), known)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _quotient(a: float, b: float) -> float:
    return a / b if b else math.nan


ARITHMETIC = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": _quotient}
