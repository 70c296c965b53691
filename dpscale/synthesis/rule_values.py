"""Values inside the cells of rows, so that the rules between attributes hold.

Values are first drawn independently (`decode`). Rows that break a rule get others, in three steps:

1. *Rejection.* All values that the rule is connected with are drawn again, uniformly in their cells. Accepted values
   are uniform in the region that the rules permit.
2. *Conditional draws.* One value after the other is drawn uniformly between the ends that the rules leave it. For
   Σ_j c_j v_j + d ≤ 0 and c_i > 0 the upper end of v_i is −(d + Σ_{j≠i} min c_j v_j) / c_i, and so on until no end
   changes. The last term of a sum follows from the others. Without cycles of sums the ends are exact, and no draw
   fails. Of several alternatives that are possible one is chosen at random.
3. *Fixed shares.* Rows that random draws do not satisfy take the middle of the remaining range for each value, or an
   end. Rows for which this fails are not drawn at all: `one_way_rounding.RuleRepair` repairs their cells.

Numbers are moved as little as the ends require, because their sums are released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dpscale.base.display import quantity
from dpscale.base.numerics import Flags, Floats, Integers, Integers32, NDArray
from dpscale.domain.rule_text import Linear
from dpscale.domain.rules import ValueRule
from dpscale.privacy.streams import PublicStream

REJECTIONS, ATTEMPTS = 16, 4  # attempts by rejection; then by conditional draws
FIXED = (0.5, 0.0, 1.0, 0.25, 0.75)  # shares of the remaining ranges, which decide whether cells are possible
CLOSE = 1e-9  # of the largest term: rounding of a sum of floats, and of a lattice
Draw = Callable[[int], Floats]
Values = Mapping[str, Floats]


def is_true(linear: Linear, values: Values) -> Flags:
    """Return where values satisfy a comparison; equal sums of floats may differ by rounding."""
    total, _ = linear.sums(values, values)
    if linear.sign != "=":
        return np.asarray(linear.permits(total, total))
    size = sum(abs(factor) * np.abs(values[name]) for name, factor in linear.terms) + abs(linear.constant)
    return np.asarray(np.abs(total) <= CLOSE * np.maximum(size, 1))


@dataclass(frozen=True, eq=False)
class RowCells:
    """Cells of some rows, and which of their values are null or have narrower ends than their cells.

    Attributes
    ----------
    cells : mapping of str to ndarray
        Cells of each attribute, shape (n,).
    nulls : mapping of str to ndarray of bool
        Nulls of numbers, and of attributes whose cell does not tell it, shape (n,).
    count : int
        Number n of rows.
    bounds : mapping of str to (ndarray, ndarray)
        Ends of values in place of those of the cells, each of shape (n,).
    """

    cells: Mapping[str, NDArray[np.integer]]
    nulls: Mapping[str, Flags]
    count: int
    bounds: Mapping[str, tuple[Floats, Floats]] = field(default_factory=dict)

    @classmethod
    def of(cls, names: Sequence[str], rows: Integers32, numbers: Mapping[str, Integers] | None = None) -> RowCells:
        """Return the cells of rows, shape (n, attributes), with the steps of their numbers."""
        nulls = {name: steps < 0 for name, steps in (numbers or {}).items()}
        return cls({name: rows[:, at] for at, name in enumerate(names)}, nulls, len(rows))

    def select(self, chosen: Integers) -> RowCells:
        """Return the chosen rows; `chosen` are their places."""
        return RowCells(
            cells={name: values[chosen] for name, values in self.cells.items()},
            nulls={name: values[chosen] for name, values in self.nulls.items()},
            count=len(chosen),
            bounds={name: (low[chosen], high[chosen]) for name, (low, high) in self.bounds.items()},
        )

    def satisfied(self, rule: ValueRule) -> Flags:
        """Return the rows whose cells alone satisfy a rule, or that have a null in it."""
        flags = np.broadcast_to(rule.satisfied_by_cells(self.cells), self.count).copy()
        for name in rule.clause.names:
            if name in self.nulls:
                flags |= self.nulls[name]
        return flags


@dataclass(frozen=True, eq=False)
class RuleValues:
    """Value rules over the columns of rows; those that involve other columns are ignored.

    Attributes
    ----------
    rules : sequence of ValueRule
        With the ranges of the values that rows have.
    """

    rules: Sequence[ValueRule]

    @classmethod
    def over(cls, rules: Iterable[ValueRule], names: Iterable[str]) -> RuleValues:
        known = set(names)
        return cls([rule for rule in rules if known.issuperset(rule.clause.names)])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Attributes and numbers that are compared, in the order of the rules."""
        return tuple(
            dict.fromkeys(name for rule in self.rules for linear in rule.clause.linear for name in linear.names)
        )

    @cached_property
    def numbers(self) -> frozenset[str]:
        return frozenset(name for rule in self.rules for name in rule.numbers)

    @cached_property
    def _steps(self) -> dict[str, float]:
        return {name: ranges.step for rule in self.rules for name, ranges in rule.ranges.items()}

    @cached_property
    def components(self) -> list[RuleValues]:
        """The rules in groups without a common value."""
        groups = list[tuple[set[str], list[ValueRule]]]()
        for rule in self.rules:
            compared = {name for linear in rule.clause.linear for name in linear.names}
            names, members, disjoint = compared, list[ValueRule](), list[tuple[set[str], list[ValueRule]]]()
            for names_of_group, rules in groups:
                if names_of_group & compared:  # the rule joins all groups with which it has a value in common
                    names = names | names_of_group
                    members += rules
                else:
                    disjoint.append((names_of_group, rules))
            groups = [*disjoint, (names, [*members, rule])]
        return [RuleValues(rules) for _, rules in groups]

    def broken(self, rows: RowCells, values: Values) -> Flags:
        """Return the rows whose values break a rule, shape (n,)."""
        broken = np.zeros(rows.count, np.bool_)
        for rule in self.rules:
            holds = rows.satisfied(rule)
            for linear in rule.clause.linear:
                holds |= is_true(linear, values)
            broken |= ~holds
        return broken

    def are_possible(self, rows: RowCells) -> Flags:
        """Return the rows whose cells have values that satisfy all rules, shape (n,).

        A row is certain if the largest value of a comparison's left side still satisfies it; other rows are tried at
        fixed shares of the ranges. An equation is never certain.
        """
        possible = np.ones(rows.count, np.bool_)
        for group in self.components:
            # first the rows that satisfy the rules with all values of their cells, at no draw
            low, high = group._ends(rows)
            undecided = np.zeros(rows.count, np.bool_)
            for rule in group.rules:
                certain = rows.satisfied(rule)
                for linear in rule.clause.linear:
                    _, largest = linear.sums(low, high)
                    certain |= False if linear.sign == "=" else linear.permits(largest, largest)
                undecided |= ~certain
            chosen = np.flatnonzero(undecided)
            if len(chosen):
                possible[chosen] = group._at_fixed_shares(rows.select(chosen))
        return possible

    def _at_fixed_shares(self, rows: RowCells) -> Flags:
        """Return the rows for which some of the fixed shares satisfy the rules, shape (n,)."""
        impossible = np.arange(rows.count)
        for share in FIXED:
            tried = rows.select(impossible)
            impossible = impossible[self.broken(tried, self._conditional(tried, _constant(share), {}))]
            if not len(impossible):
                break
        possible = np.ones(rows.count, np.bool_)
        possible[impossible] = False
        return possible

    def narrowed(self, rows: RowCells) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Return the ends of values that the rules leave in the cells of rows, by name, each of shape (n,)."""
        low, high = self._ends(rows)
        single = [(rule.clause.linear[0], ~rows.satisfied(rule)) for rule in self.rules if len(rule.clause.linear) == 1]
        self._tighten(single, low, high)
        return low, high

    def fitted(
        self,
        rows: RowCells,
        values: Values,
        stream: PublicStream,
        wider: Mapping[str, tuple[float, float]] | None = None,
    ) -> dict[str, Floats]:
        """Return values of which none breaks a rule; rows that break none keep theirs.

        Parameters
        ----------
        rows : RowCells
        values : mapping of str to ndarray
            Values of the attributes and numbers that are compared, shape (n,), in their cells.
        stream : PublicStream
        wider : mapping of str to (float, float), optional
            Ends of attributes whose values may leave their cells in rows that have no values otherwise.

        Raises
        ------
        RuntimeError
            If no values satisfy the rules for some row, which `are_possible` excludes.
        """
        fitted = {name: np.array(values[name], np.float64) for name in self.names}
        for group in self.components:
            broken = group._fit(rows, fitted, stream)
            if len(broken) and wider:
                bounds = {
                    name: (np.full(rows.count, low), np.full(rows.count, high)) for name, (low, high) in wider.items()
                }
                broken = group._fit(replace(rows, bounds={**bounds, **rows.bounds}), fitted, stream, frozenset(wider))
            if len(broken):
                raise RuntimeError(f"no values satisfy the rules for {quantity(len(broken), 'row')}")
        return fitted

    def _fit(
        self, rows: RowCells, values: dict[str, Floats], stream: PublicStream, nearest: frozenset[str] = frozenset()
    ) -> Integers:
        """Change the values of rows that break a rule, in place; return the rows that still do.

        Those in `nearest` move as little as possible, as numbers do.
        """
        broken = np.flatnonzero(self.broken(rows, values))
        end_of_random = REJECTIONS + ATTEMPTS
        for attempt in range(REJECTIONS if nearest else 0, end_of_random + len(FIXED)):
            if not len(broken):
                break
            tried = rows.select(broken)
            current = {name: values[name][broken] for name in self.names}
            # the three steps of the module: rejection, conditional draws, fixed shares
            if attempt < REJECTIONS:
                drawn = self._independent(tried, stream.uniforms, current)
            elif attempt < end_of_random:
                drawn = self._conditional(tried, stream.uniforms, current, nearest | self.numbers)
            else:
                drawn = self._conditional(tried, _constant(FIXED[attempt - end_of_random]), {})
            accepted = ~self.broken(tried, drawn)
            for name in self.names:
                values[name][broken[accepted]] = drawn[name][accepted]
            broken = broken[~accepted]
        return broken

    def _ends(self, rows: RowCells) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Return the least and the largest value that the cell of every row admits, by column.

        The ends of a column are those of its cell, so all rules give the same. Bounds of the rows lie within the cell.
        """
        low, high = dict[str, Floats](), dict[str, Floats]()
        for rule in self.rules:
            names = [name for linear in rule.clause.linear for name in linear.names]
            lower, upper = rule.ends(names, rows.cells)
            for name in lower:
                low[name] = np.broadcast_to(lower[name], rows.count).astype(np.float64)
                high[name] = np.broadcast_to(upper[name], rows.count).astype(np.float64)

        for name in low.keys() & rows.bounds.keys():
            low[name], high[name] = rows.bounds[name]
        return low, high

    def _independent(self, rows: RowCells, draw: Draw, current: Values) -> dict[str, Floats]:
        """Return values drawn uniformly in their cells; numbers keep theirs."""
        low, high = self._ends(rows)
        return {name: current[name] if name in self.numbers else self._between(name, low[name], high[name],
                                                                               draw(rows.count))
                for name in self.names}  # fmt: skip

    def _between(self, name: str, low: Floats, high: Floats, shares: Floats) -> Floats:
        """Return the values at shares of the ranges, on the lattice of a column; nan for empty ranges.

        On a lattice the share selects one of the multiples of the step in the range.
        """
        step = self._steps[name]
        if not step:
            values = np.clip(low + shares * (high - low), low, np.maximum(low, high))
        else:
            count = np.maximum(np.rint((high - low) / step), 0) + 1
            values = np.rint(low / step + np.minimum(np.floor(shares * count), count - 1)) * step
        values = np.where(low == high, low, values)
        return np.asarray(np.where(high < low - CLOSE * np.maximum(np.abs(low), 1), np.nan, values))

    def _conditional(
        self, rows: RowCells, draw: Draw, current: Values, nearest: frozenset[str] = frozenset()
    ) -> dict[str, Floats]:
        """Return values drawn one after the other between the ends that the rules leave.

        Those in `nearest` take the nearest value to their current one.

        Rules with one comparison are active in all rows that their cells do not satisfy. Of several alternatives one is
        chosen by row. A drawn value narrows its range to a point, and the other ends follow.
        """
        low, high = self._ends(rows)
        ends = {name: (low[name], high[name]) for name in self.names}
        active = [(rule.clause.linear[0], ~rows.satisfied(rule)) for rule in self.rules if len(rule.clause.linear) == 1]
        self._tighten(active, low, high)
        for rule in self.rules:
            if len(rule.clause.linear) > 1:
                active += _chosen(rule, ~rows.satisfied(rule), low, high, draw(rows.count))
                self._tighten(active, low, high)

        for name in self.names:
            value = self._between(name, low[name], high[name], draw(rows.count))
            if name in nearest:
                closest = np.clip(current[name], low[name], np.maximum(low[name], high[name]))
                value = np.where(np.isnan(value), np.nan, closest)
            low[name] = high[name] = np.clip(value, *ends[name])
            self._tighten(active, low, high)
        return low

    def _tighten(self, active: Sequence[tuple[Linear, Flags]], low: dict[str, Floats], high: dict[str, Floats]) -> None:
        """Move the ends of values, in place, as far as comparisons require in the rows in which they are active.

        Sweeps over all comparisons are repeated until no end moves; their number is limited.
        """
        for _ in range(len(active) * len(self.names) + 1):
            changed = False
            for linear, rows in active:
                changed |= self._tighten_one(linear, rows, low, high)
            if not changed:
                return

    def _tighten_one(self, linear: Linear, rows: Flags, low: dict[str, Floats], high: dict[str, Floats]) -> bool:
        """Move the ends of values, in place, to those that a comparison permits; return whether one moved.

        For Σ_j c_j v_j + d ≤ 0 the end of v_i is −(d + Σ_{j≠i} min c_j v_j) / c_i: the upper one for c_i > 0, else the
        lower one. An equation is two such comparisons.

        `rows` are the rows in which the comparison must hold; `low` and `high` are the ends of each value by column.
        Ends move inwards only, and for columns of a grid to its next value (`_on_lattice`).
        """
        changed = False
        strict = linear.sign == "<"
        for sign in (1, -1) if linear.sign == "=" else (1,):
            signed = Linear(tuple((name, sign * factor) for name, factor in linear.terms), sign * linear.constant, "<=")
            for name, factor in signed.terms:
                others = Linear(tuple(term for term in signed.terms if term[0] != name), signed.constant, "<=")
                # the least that the other terms can contribute
                least_sum, _ = others.sums(low, high)
                bound = np.broadcast_to(-least_sum / factor, len(rows))
                if factor > 0:
                    bound, ends = self._on_lattice(name, bound, math.floor, strict), high
                    nearer = rows & (bound < ends[name])
                else:
                    bound, ends = self._on_lattice(name, bound, math.ceil, strict), low
                    nearer = rows & (bound > ends[name])
                # ends that are equal already cannot move, which ends the caller's rounds
                if nearer.any() and (low[name] < high[name])[nearer].any():
                    ends[name] = np.where(nearer, bound, ends[name])
                    changed = True
        return changed

    def _on_lattice(self, name: str, bound: Floats, towards: Callable[[float], int], strict: bool) -> Floats:
        """Return the last value of a column up to a bound, which itself is excluded if `strict`."""
        step, sign = self._steps[name], 1.0 if towards is math.floor else -1.0
        if not step:  # not a lattice
            return np.nextafter(bound, -sign * np.inf) if strict else bound
        steps = sign * bound / step
        last = np.ceil(steps - CLOSE) - 1 if strict else np.floor(steps + CLOSE)
        return np.asarray(sign * last * step)


def _constant(share: float) -> Draw:
    return lambda count: np.full(count, share)


def _chosen(
    rule: ValueRule, rows: Flags, low: Mapping[str, Floats], high: Mapping[str, Floats], shares: Floats
) -> list[tuple[Linear, Flags]]:
    """Return the comparisons of a rule, each with a mask of the rows that must satisfy it.

    In a row a comparison is possible if some values between `low` and `high` satisfy it. Of k possible ones the row
    takes that of number ⌊k s⌋, with its entry s of `shares` in [0, 1].
    """
    possible = np.stack([linear.fits(low, high) for linear in rule.clause.linear])
    count = possible.sum(axis=0)
    number = np.minimum(np.floor(shares * count), np.maximum(count - 1, 0))  # the last one for a share of 1
    number_of = np.cumsum(possible, axis=0) - 1  # number of each comparison among the possible ones of a row

    chosen = rows & possible & (number_of == number)
    return list(zip(rule.clause.linear, chosen, strict=True))
