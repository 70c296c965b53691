"""Rules between attributes in the synthetic rows of a run: repair of cells, values inside cells, and their check.

Rules that involve an attribute or a number that the rows do not have are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpscale.base.arrow import pa
from dpscale.base.numerics import Flags, Floats, Integers, Integers32, NDArray
from dpscale.domain.attribute import Attribute
from dpscale.domain.number import Number
from dpscale.domain.rule_text import ValueRanges, kind_of_values, value_ranges
from dpscale.domain.rules import DomainConstraint, ValueRule, constraints_on
from dpscale.privacy.streams import PublicStream
from dpscale.records.column_values import days
from dpscale.runs.table import TablePart
from dpscale.synthesis.decode import number_values, row_step, type_of
from dpscale.synthesis.draw import RowSampler
from dpscale.synthesis.one_way_rounding import RuleRepair
from dpscale.synthesis.rule_values import RowCells, RuleValues, is_true

Inside = dict[str, NDArray[Any] | None]


def repaired(run: TablePart, sampler: RowSampler, rows: Integers32, stream: PublicStream) -> Integers32:
    """Return the cells of rows, shape (n, attributes), with rows that break a rule repaired."""
    if not run.domain.rules:
        return rows
    values = rule_values(run, [*sampler.names, *run.workload.numbers])
    rules = with_row_ranges(run, constraints_on(run.domain.rules, sampler.names))
    return RuleRepair(rules=rules, names=sampler.names, ones=sampler.ones, values=values).repair(rows, stream)


def rule_values(run: TablePart, names: Sequence[str]) -> RuleValues:
    """Return the value rules over columns of rows, for the values that these columns have."""
    return RuleValues.over(with_row_ranges(run, run.domain.value_rules), names)


def with_row_ranges(run: TablePart, rules: Sequence[Any], prefix: str = "") -> list[Any]:
    """Return rules with the ranges of the values that synthetic rows have, which may be narrower than their cells.

    `prefix` is before the names of the table's attributes in rules across tables.
    """
    names = set[str]()
    for rule in rules:
        if isinstance(rule, ValueRule):
            names.update(name for name in rule.names if name.startswith(prefix))
    ranges = {name: _row_ranges(run, name.removeprefix(prefix)) for name in sorted(names)}

    changed = []
    for rule in rules:
        if isinstance(rule, ValueRule):
            rule = rule.with_ranges({name: ranges[name] for name in rule.names if name in ranges})
        changed.append(rule)
    return changed


def _row_ranges(run: TablePart, name: str) -> ValueRanges:
    """Return the ranges of values in the cells of an attribute.

    The values are multiples of a step: the unit of a number that is read from the same column, or else the step of the
    column's type for bins. None is the step of other attributes.
    """
    attribute = run.domain[name]
    units = [float(number.unit) for number in _same_column(run, name)]
    types = run.manifest.get("columns") or {}
    step = row_step(attribute, type_of(types.get(name, ""))) if attribute.kind == "bins" else None
    return value_ranges(attribute, units[0] if units else step)


def _same_column(run: TablePart, name: str) -> list[Number]:
    """Return the numbers of the rows that are read from the column of an attribute."""
    return [number for number in run.domain.numbers
            if number.name in run.workload.numbers and number.column == run.domain[name].column]  # fmt: skip


def fit_values(
    run: TablePart, names: Sequence[str], rows: Integers32, steps: dict[str, Integers], inside: Inside,
    stream: PublicStream,
) -> None:  # fmt: skip
    """Change the values inside cells, and the steps of numbers, in place, so that no row breaks a rule.

    Parameters
    ----------
    run : TablePart
    names : sequence of str
        Attributes of the rows.
    rows : ndarray of int32, shape (n, attributes)
    steps : dict of str to ndarray
        Steps of each number, shape (n,); -1 for null.
    inside : dict of str to ndarray
        Values inside the cells of each attribute; None where a cell is a single value.
    stream : PublicStream
    """
    rules = rule_values(run, [*names, *steps])
    if not rules.rules:
        return
    cells, ranges = RowCells.of(names, rows, steps), dict[str, Any]()
    for rule in rules.rules:
        ranges |= rule.ranges
    before = dict[str, Floats]()  # value of each row; of a cell with a single value the low end of its range
    for name in rules.names:
        values = number_values(_number(run, name), steps[name]) if name in steps else inside[name]
        before[name] = ranges[name].low[cells.cells[name]] if values is None else np.asarray(values, np.float64)

    after = rules.fitted(cells, before, stream)
    # a number of the same column as an attribute has the same value
    for name, values in after.items():
        changed = values != before[name]
        if name in steps:
            _set_steps(_number(run, name), steps, values, changed)
        elif inside[name] is not None:
            inside[name] = values
            for number in _same_column(run, name):
                if number.name in steps:
                    _set_steps(number, steps, values, changed)


def _number(run: TablePart, name: str) -> Number:
    number = run.domain[name]
    assert isinstance(number, Number)
    return number


def _set_steps(number: Number, steps: dict[str, Integers], values: Floats, changed: Flags) -> None:
    """Set the steps of a number, in place, to those of `values` in the rows that changed and are not null (-1)."""
    in_steps = np.clip(np.rint(values / float(number.unit)) - number.low, 0, number.steps).astype(np.int64)
    known = changed & (steps[number.name] >= 0)
    steps[number.name][known] = in_steps[known]


def broken_rows(run: TablePart, names: Sequence[str], rows: Integers32, table: pa.Table) -> int:
    """Return the number of rows that break a rule, from their cells and the values of their columns as written.

    A rule on cells is checked by cells alone. A rule on values is a clause, alternatives of which one must hold:
    conditions on cells, and comparisons of linear terms (`linear`). A comparison with an unknown value (null) holds.
    Rules over attributes that the rows do not have are left out.
    """
    cells = RowCells.of(names, rows)
    rules: Sequence[DomainConstraint] = constraints_on(run.domain.rules, names)
    broken = np.zeros(len(rows), np.bool_)
    for rule in rules:
        broken |= rule.broken(cells.cells.__getitem__)

    values = dict[str, Floats]()  # by column that a rule compares
    for name in rule_values(run, table.column_names).names:
        values[name] = _written(run.domain[name], table.column(name).combine_chunks())
    for rule in run.domain.value_rules:
        compared = {name for linear in rule.clause.linear for name in linear.names}
        is_of_rows = compared <= values.keys() and set(rule.names) <= set(names)
        if not is_of_rows:
            continue
        holds = cells.satisfied(rule)
        for linear in rule.clause.linear:
            unknown = np.any([np.isnan(values[name]) for name in linear.names], axis=0)
            holds |= unknown | is_true(linear, values)
        broken |= ~holds
    return int(broken.sum())


def _written(attribute: Attribute | Number, column: pa.Array) -> Floats:
    """Return the values of a column as numbers, dates as days since 1970, nulls as nan."""
    if kind_of_values(attribute) == "date" and (read := days(column, attribute.zone, attribute.format)) is not None:
        return np.where(read.missing, np.nan, read.values.astype(np.float64))
    return np.asarray(column.cast(pa.float64()).to_numpy(), np.float64)
