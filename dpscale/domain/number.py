"""Numbers: columns whose sums and means are queried, as attributes of few cells to which a record belongs in parts.

A value v in low … high is clipped and rounded to a multiple of `step`. With R = (high − low)/step and the integer
T = (v − low)/step, a record adds
    1 − T/R to the cell "low",    T/R to the cell "high",    or 1 to the cell of nulls, if nulls are skipped.
So the sum of the column is low · #low + high · #high, a linear query on two cells, and the number of records is the
sum of all cells, as for every attribute. The parts of a record are not negative and sum to 1: it is a weighted mean of
records that lie in a single cell. A norm is convex, so no record changes a measurement by more than one in a single
cell does, and records at the ends attain this. Strategies, sensitivities, plans and errors are therefore those of an
attribute of two or three cells. Exact counts are integers in units of 1/R records.

Squares, for variances, need four cells. With x = 2T/R the parts of a record in the lower half are
    (1 − x)²,    2x − 3x²/2,    x²/2,    0,
in reverse order with 2 − x in the upper half: the quadratic B-splines of two pieces. They are not negative and sum to
1, and with t = x − 1 every quadratic function is a query on the cells: t has the entries −1, −1/2, 1/2, 1, and t² has
1, 0, 0, 1 (the control points, a polygon around the parabola). The bound by single cells is no longer attained
everywhere: the best strategy for 1, t and t² has 1.2 % more error than one that is bounded on the parabola. Exact
counts are integers in units of 1/R² records.

With `per_unit = "total"` the range −B … B bounds the sum of |v| over the rows of a unit instead of a single value. Let
a unit have at most k rows. The cells then stand for the values −B/k and B/k, and a record adds (1 − t)/2 and
(1 + t)/2 with t = k v/B. A part may be negative, but Σ|t| ≤ k over the rows of a unit. A measurement K whose rows sum
to zero along this axis depends on t alone and is linear in it, so the unit changes it by at most Σ|t| columns, as k
records in single cells do. A measurement of other attributes is not affected. Plans with any other measurement are
refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpscale.base.display import safe_repr
from dpscale.base.errors import DomainError
from dpscale.base.numerics import Floats, Integers, NDArray
from dpscale.domain.attribute import EXACT, MOST_CODES, WORDS, Attribute, read_words
from dpscale.domain.schema_values import check_keys, read_exact, read_policy, read_source
from dpscale.domain.search import PRIVATE, EndSearch, shown

KEYS = {"low", "high"}
RESERVED = ("records",)  # the denominator of a ratio
MORE = {"step", "squares", "outside", "nulls", "unparsable", "from", "per_unit", "rows_per_unit", "clipped", "fallback"}
TOTAL = "total"  # of `per_unit`
POLICIES = {
    "outside": ("clip", "reject", "drop"),
    "nulls": ("reject", "skip", "zero", "drop"),
    "unparsable": ("reject", "drop"),
}
CELLS = {False: ("(low)", "(high)"), True: ("(low)", "(lower)", "(upper)", "(high)")}
PLACES = {False: (0.0, 1.0), True: (0.0, 0.25, 0.75, 1.0)}  # values at the cells, as shares of the range
ASSUMED_STEPS = 1000  # between ends of which some are private; errors in units of the range do not depend on it
MOST_LISTED = 4  # entries of a list that a message shows
MOST_PARTS = (1 << 31) - 1  # of a record: sums of 2^31 records then fit in 62 bits


@dataclass(frozen=True)
class Number(Attribute):
    """Numeric column for sums, means and ratios.

    Parameters
    ----------
    low, high : int
        Ends of the range, in steps.
    unit : Fraction
        Step: values are rounded to multiples of it.
    outside : {"clip", "reject", "drop"}
        Policy for values beyond the ends.
    nulls : {"reject", "skip", "zero", "drop"}
        "skip": the row counts, but its value does not enter sums or means. "zero": the value is 0.
    squares : bool
        Whether squares are measured too, for variances.
    per_unit : {"", "total"}
        "total": the ends bound the sum of absolute values of a privacy unit.
    rows_per_unit : int
        Largest number k of rows of a unit, if `per_unit` is "total".
    clipped : tuple of float, optional
        Upper limits of the parts of a mean that are clipped below and above, in units of the column, if a search has
        found the range. Intervals of means include them.
    """

    unit: Fraction = Fraction(1)
    squares: bool = False
    per_unit: str = ""
    rows_per_unit: int = 1
    clipped: tuple[float, float] = (0.0, 0.0)

    @property
    def steps(self) -> int:
        """Number R of steps from the low to the high end."""
        return self.high - self.low

    @property
    def denominator(self) -> int:
        return self.steps**2 if self.squares else self.steps

    @property
    def largest_part(self) -> int:
        return self.denominator * self.rows_per_unit

    @property
    def code_count(self) -> int:
        """Number of codes of a value: the steps, and one for skipped nulls."""
        return self.steps + 1 + (self.nulls == "skip") if self.search is None else MOST_CODES

    @property
    def is_whole(self) -> bool:
        return self.unit == 1

    @property
    def listed(self) -> int:  # type: ignore[override]
        return len(CELLS[self.squares])

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.listed + (self.nulls == "skip")

    @property
    def outside_cell(self) -> int:
        return -1

    @property
    def null_cell(self) -> int:
        return self.listed if self.nulls == "skip" else -1

    @property
    def null_code(self) -> int:
        if self.nulls == "zero":
            return min(max(-self.low, 0), self.steps)
        return self.steps + 1 if self.nulls == "skip" else -1

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest value, in units of the column."""
        return float(self.low * self.unit), float(self.high * self.unit)

    @property
    def cell_ends(self) -> tuple[float, float]:
        """Values of the first and last cell, in units of the column: the ends, divided by k for the total of a unit."""
        return float(self.low * self.unit / self.rows_per_unit), float(self.high * self.unit / self.rows_per_unit)

    @property
    def half_range(self) -> float:
        """Half the distance of the values of the first and last cell, in units of the column."""
        return float(self.steps * self.unit / 2 / self.rows_per_unit)

    @property
    def _listed_labels(self) -> list[Any]:
        return list(CELLS[self.squares])

    @property
    def _own_keys(self) -> dict[str, Any]:
        """Keys of the table in a domain file that only numbers have, in units of the column; defaults are omitted."""
        ends = {"low": shown(self.low * self.unit), "high": shown(self.high * self.unit), "step": shown(self.unit)}
        bound = {"per_unit": TOTAL, "rows_per_unit": self.rows_per_unit} if self.per_unit == TOTAL else {}
        clipped = {"clipped": list(self.clipped)} if any(self.clipped) else {}
        return ends | ({"squares": True} if self.squares else {}) | bound | clipped

    @property
    def cell_values(self) -> Floats:
        """Value of each cell, from which the sum is computed, in units of the column; 0 for nulls."""
        low, high = self.cell_ends
        return np.array([low + place * (high - low) for place in PLACES[self.squares]] + [0.0] * (self.null_cell >= 0))

    def parts(self, codes: NDArray[Any]) -> Integers:
        """Return the parts of records on the cells, in units of 1/`denominator`, shape (rows, cells).

        With squares, the four parts are those of a quadratic spline in the distance `near` from the nearer end; they
        sum to the denominator, steps².

        Parameters
        ----------
        codes : ndarray of unsigned integers, shape (rows,)
            Steps of each record, or the code of a null.
        """
        steps, total = codes.astype(np.int64), self.steps
        nulls = steps > total
        parts = np.zeros((len(steps), self.size), np.int64)
        if self.squares:
            upper = 2 * steps > total
            near = np.where(upper, total - steps, steps)  # to the nearer end
            spline = (total - 2 * near) ** 2, near * (4 * total - 6 * near), 2 * near**2, 0 * near
            for cell, part in enumerate(spline):
                parts[:, cell] = np.where(upper, spline[3 - cell], part)
        else:
            parts[:, 1] = self.high_part(steps, 1)
            parts[:, 0] = total - parts[:, 1]

        if self.null_cell >= 0:
            parts[nulls] = 0
            parts[nulls, self.null_cell] = self.denominator

        return parts

    def high_part(self, steps: Integers, records: Integers | int) -> Integers:
        """Return the parts of records on the cell of the high end, from the sum of their steps and their number."""
        return self.rows_per_unit * steps - (self.rows_per_unit - 1) * (self.steps // 2) * records

    def describe(self) -> dict[str, Any]:
        """Return the number as a table of the domain file."""
        described = super().describe()
        described.pop("kind")
        if self.search is not None:
            return self._public_keys | described
        return described

    @property
    def extent(self) -> str:
        """Ends of the range, in words."""
        return (
            super().extent
            if self.search is not None
            else f"{shown(self.low * self.unit)} to {shown(self.high * self.unit)}"
        )

    @property
    def _public_keys(self) -> dict[str, Any]:
        """Keys of a number with private ends that are public.

        `low` and `high` are None where an end is searched. `unit` is the step of values. `fallback` are the ends that
        are used if the search sees no values, only for searched ends.
        """
        assert isinstance(self.search, EndSearch)
        ends = {
            key: shown(end * self.unit) for key in ("low", "high") if (end := getattr(self.search, key)) is not None
        }
        fallback_ends = self.search.fallback
        fallback = {} if fallback_ends is None else {
            "fallback": [shown(end * self.unit) for name, end in zip(("low", "high"), fallback_ends, strict=True)
                         if name in self.search.searched]
        }  # fmt: skip

        return {**ends, "step": shown(self.unit), **({"squares": True} if self.squares else {}), **fallback}


def read_numbers(tables: Any) -> list[Number]:
    """Return the numbers of the tables [numbers.NAME] of a domain file.

    Raises
    ------
    DomainError
        If a key is unknown, missing or has a wrong value.
    """
    if not isinstance(tables, Mapping):
        raise DomainError("numbers", "not a table", "tables [numbers.NAME]", "such as [numbers.fare] with low and high")
    return [_read_number(name, table) for name, table in tables.items()]


def _read_number(name: str, table: Any) -> Number:
    """Return the number that a table of the domain file declares: its range, policies and search; refuse faults.

    The total of a unit is bounded on both sides: without `low` it is -high.
    """
    field = f"numbers.{name}"
    if name in RESERVED:
        raise DomainError(field, f"the name {name!r}", "another name", "rename it, and set from to the column")
    if not isinstance(table, Mapping):
        raise DomainError(field, "not a table", "a table with low and high", "such as low = 0 and high = 100")

    check_keys(table, KEYS | MORE | {*WORDS[:3]}, field)
    bound = _read_unit_bound(field, table)
    # `bound` is not empty for a total of a unit
    if bound and "low" not in table and isinstance(table.get("high"), int | float):
        table = {**table, "low": -table["high"]}
    for key in sorted(KEYS - set(table)):
        raise DomainError(f"{field}.{key}", "missing", f'a public number, or "{PRIVATE}"', "add it")
    low, high, step, search = _read_range(field, table)
    if "clipped" in table and search is not None:
        raise DomainError(f"{field}.clipped", "given with a private end", "a public range", "remove it")
    if "fallback" in table and search is None:
        raise DomainError(f"{field}.fallback", "given with public ends", "a private end", "remove it")
    if not isinstance(table.get("squares", False), bool):
        raise DomainError(f"{field}.squares", safe_repr(table["squares"]), "true or false", "write squares = true")

    policies: dict[str, Any] = {
        key: read_policy(field, key, table[key], POLICIES[key]) for key in POLICIES if key in table
    }
    # values outside the range are clipped unless the file says otherwise
    policies.setdefault("outside", "clip")
    squares, source = table.get("squares", False), read_source(field, name, table)
    return checked_number(
        Number(
            name=name,
            kind="number",
            low=low,
            high=high,
            unit=step,
            squares=squares,
            source=source,
            search=search,
            **policies,
            **bound,
            clipped=_read_clipped(f"{field}.clipped", table.get("clipped", [0, 0])),
            words=read_words(field, table),
        )
    )


def _read_unit_bound(field: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a number whose ends bound the total of a unit; none for other numbers.

    TOTAL states that the ends bound the sum of a unit's values. `rows_per_unit` is the number of rows that this sum may
    have, 1 by default.
    """
    if "per_unit" not in table:
        if "rows_per_unit" in table:
            raise DomainError(f"{field}.rows_per_unit", "a bound without per_unit", f'per_unit = "{TOTAL}"', "add it")
        return {}

    rows = table.get("rows_per_unit", 1)
    if table["per_unit"] != TOTAL:
        raise DomainError(
            f"{field}.per_unit", safe_repr(table["per_unit"]), f'"{TOTAL}"', f'write per_unit = "{TOTAL}"'
        )
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        raise DomainError(f"{field}.rows_per_unit", safe_repr(rows), "a whole number above 0", "leave it out")
    return {"per_unit": TOTAL, "rows_per_unit": rows}


def _read_range(field: str, table: Mapping[str, Any]) -> tuple[int, int, Fraction, EndSearch | None]:
    """Return the ends in steps, the step, and the search for private ends, which are assumed to be ASSUMED_STEPS apart.

    Strategies and their errors in units of the range do not depend on the ends.

    `hidden` are the private ends. Ends of 2^53 steps or more would not be exact as floats.
    """
    step = read_exact(f"{field}.step", table.get("step", 1))
    if step <= 0:
        raise DomainError(f"{field}.step", safe_repr(table["step"]), "a number above 0", "write step = 0.5")

    hidden = [key for key in ("low", "high") if table[key] == PRIVATE]
    ends = {key: read_exact(f"{field}.{key}", table[key]) / step for key in ("low", "high") if key not in hidden}
    if not hidden and ends["high"] <= ends["low"]:
        raise DomainError(
            f"{field}.high", safe_repr(table["high"]), f"more than low = {shown(ends['low'] * step)}", "swap them"
        )
    # ends are exact fractions in steps, which must be whole
    if any(end.denominator != 1 for end in ends.values()):
        raise DomainError(f"{field}.step", safe_repr(table.get("step", 1)), "a number of which low and high are"
                          " multiples", "change low, high or step")  # fmt: skip
    if max(map(abs, ends.values()), default=0) >= EXACT:
        raise DomainError(
            f"{field}.step", safe_repr(table.get("step", 1)), "ends of less than 2^53 steps", "use a larger step"
        )
    if not hidden:
        return int(ends["low"]), int(ends["high"]), step, None
    # a searched end is no range of valid values, so values beyond it are clipped
    if table.get("outside", "clip") != "clip":
        raise DomainError(f"{field}.outside", safe_repr(table["outside"]), "clip, with a private end", "leave it out")

    known = {key: int(end) for key, end in ends.items()}
    search = EndSearch(known.get("low"), known.get("high"))
    # ASSUMED_STEPS below the known end, or around 0
    low = known.get("low", known.get("high", 0) - ASSUMED_STEPS if "high" in known else -ASSUMED_STEPS // 2)
    if "fallback" in table:
        search = replace(search, fallback=_read_fallback(f"{field}.fallback", table["fallback"], search, step))

    return low, known.get("high", low + ASSUMED_STEPS), step, search


def _read_fallback(field: str, fallback: object, search: EndSearch, step: Fraction) -> tuple[int, int]:
    """Return the range, in steps, that is used if a search sees no values: a number for each private end.

    `search.searched` names the private ends, "low", "high" or both; the other end is public and already in steps.
    """
    takes = f"a list with a public number for {' and '.join(search.searched)}"
    if not isinstance(fallback, list | tuple) or len(fallback) != len(search.searched):
        raise DomainError(field, _listed(fallback), takes, "write fallback = [0, 100]")

    ends = {name: read_exact(field, end) / step for name, end in zip(search.searched, fallback, strict=True)}
    if any(end.denominator != 1 or abs(end) >= EXACT for end in ends.values()):
        raise DomainError(field, _listed(fallback), "multiples of step, of less than 2^53 steps", "change it or step")

    low, high = (int(ends[name]) if name in ends else getattr(search, name) for name in ("low", "high"))
    if low >= high:
        raise DomainError(field, _listed(fallback), "an upper end above the lower one",
                          "swap them" if len(fallback) > 1 else "state another number")  # fmt: skip
    return low, high


def _listed(value: object) -> str:
    """Return a short list as text, for a message; any other value as `safe_repr` shows it."""
    if not isinstance(value, list | tuple) or len(value) > MOST_LISTED:
        return safe_repr(value)
    return f"[{', '.join(map(safe_repr, value))}]"


def _read_clipped(field: str, limits: object) -> tuple[float, float]:
    """Return the upper limits of the clipped parts of a mean, below and above the range."""
    if isinstance(limits, list | tuple) and len(limits) == 2 and all(
        isinstance(limit, int | float) and not isinstance(limit, bool) and 0 <= limit < math.inf for limit in limits
    ):  # fmt: skip
        return float(limits[0]), float(limits[1])
    raise DomainError(field, _listed(limits), "two numbers of at least 0, as a search writes them", "remove it")


def checked_number(number: Number) -> Number:
    """Return the number; raise DomainError for a wrong bound of a unit's total, or too many steps for exact sums.

    `largest_part` grows with the number of steps from low to high, with squares as its square. MOST_PARTS bounds it so
    that sums are exact.
    """
    if number.per_unit == TOTAL:
        _check_unit_bound(number)
    if number.largest_part > MOST_PARTS:
        most = math.isqrt(MOST_PARTS) if number.squares else MOST_PARTS
        takes = f"at most {most:,}{' for variances' if number.squares else ''}"
        got = f"{number.steps * number.rows_per_unit:,} steps from low to high"
        raise DomainError(f"numbers.{number.name}.step", got, takes, "use a larger step")
    return number


def _check_unit_bound(number: Number) -> None:
    """Raise DomainError unless the ends can bound the total of a unit."""
    field, ends = f"numbers.{number.name}", f'a public range from -high to high, with per_unit = "{TOTAL}"'
    if number.search is not None:
        raise DomainError(f"{field}.high", f'"{PRIVATE}"', ends, "state the largest total of a unit")
    if number.low != -number.high:
        raise DomainError(f"{field}.low", str(shown(number.low * number.unit)), ends, "leave it out")
    if number.squares:
        raise DomainError(f"{field}.squares", "squares of a number whose total is bounded", "sums and means",
                          "leave per_unit out, so that each value is bounded")  # fmt: skip
    if number.nulls == "skip":
        raise DomainError(
            f"{field}.nulls", '"skip"', f'reject, zero or drop, with per_unit = "{TOTAL}"', 'write nulls = "zero"'
        )
