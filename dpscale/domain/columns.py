"""Attributes of a domain that is written in Python: sizes, lists of values, bins and dates.

A value of `Domain(name=value)` is a number of codes, a list of values, `bool`, an `Attribute`, or the content of a
table [attributes.NAME] of a domain file, which `bins` and `dates` return; or a number, which `number` returns.

>>> bins(0, 20, 5)
{'kind': 'bins', 'edges': [0, 5, 10, 15, 20], 'outside': 'reject'}
>>> dates("2019-03", "2019-12", by="month")
{'kind': 'date', 'by': 'month', 'low': '2019-03', 'high': '2019-12', 'outside': 'reject'}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

from dpscale.base.display import safe_repr
from dpscale.base.errors import DomainError
from dpscale.domain.attribute import Attribute
from dpscale.domain.domain_schema import coded, from_tables
from dpscale.domain.number import read_numbers

EXPECTED = "a number of codes, a list of values, bool, dp.bins, dp.dates, dp.number, or a table of a domain file"
MOST_BINS = 1_000_000  # from low to high by a width
NUMBER = "number"  # kind of a value that `number` returns


def bins(low: float, high: float, width: float, outside: str = "reject", nulls: str = "reject") -> dict[str, Any]:
    """Return bins of equal width from `low` to `high`.

    Parameters
    ----------
    low, high : float
        Ends of the first and the last bin.
    width : float
        Width of each bin; `high - low` is a multiple of it.
    outside : {"reject", "clip", "category", "drop"}
        What happens to a number outside: it is refused, moved to the nearest bin, counted in a cell of its own, or not
        counted.
    nulls : {"reject", "category", "drop"}
        What happens to a null: it is refused, counted in a cell of its own, or its row is not counted.

    Returns
    -------
    dict
        Content of a table [attributes.NAME] of a domain file.

    Raises
    ------
    DomainError
        If the ends are not increasing numbers, or the width does not divide their distance.

    Examples
    --------
    >>> bins(0, 1, 0.25)["edges"]
    [0, 0.25, 0.5, 0.75, 1]
    >>> bins(0, 10, 10, outside="clip", nulls="category")
    {'kind': 'bins', 'edges': [0, 10], 'outside': 'clip', 'nulls': 'category'}
    """
    for name, value in {"low": low, "high": high, "width": width}.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not abs(value) < float("inf"):
            raise DomainError(f"bins.{name}", safe_repr(value), "a finite number", "write dp.bins(0, 100, 5)")

    first, last, step = (Fraction(str(value)) for value in (low, high, width))
    if last <= first or step <= 0:
        raise DomainError("bins", f"low {low:g}, high {high:g}, width {width:g}", "low below high and a width above 0",
                          "write dp.bins(0, 100, 5)")  # fmt: skip

    count = (last - first) / step
    if count.denominator != 1 or count > MOST_BINS:
        raise DomainError("bins.width", f"{width:g}", f"a part of {high - low:g}, the distance from low to high",
                          "change high or width")  # fmt: skip

    edges = [first + step * i for i in range(count.numerator + 1)]
    numbers = [int(edge) if edge.denominator == 1 else float(edge) for edge in edges]
    return {"kind": "bins", "edges": numbers, **_policies(outside, nulls)}


def _policies(outside: str, nulls: str) -> dict[str, str]:
    """Return the keys for values that a kind does not list."""
    return {"outside": outside, **({} if nulls == "reject" else {"nulls": nulls})}


def dates(first: str, last: str, by: str = "day", outside: str = "reject", nulls: str = "reject") -> dict[str, Any]:
    """Return the periods of a calendar from `first` to `last`.

    Parameters
    ----------
    first, last : str
        First and last period, such as "2019-03-01", "2019-03" or "2019".
    by : str
        "year", "quarter", "month", "week", "day" or another period of a domain file.
    outside : {"reject", "clip", "category", "drop"}
        What happens to a date outside.
    nulls : {"reject", "category", "drop"}
        What happens to a null.

    Returns
    -------
    dict
        Content of a table [attributes.NAME] of a domain file. The domain checks it.

    Examples
    --------
    >>> dates("2019", "2021", by="year", outside="drop")
    {'kind': 'date', 'by': 'year', 'low': '2019', 'high': '2021', 'outside': 'drop'}
    """
    return {"kind": "date", "by": by, "low": first, "high": last, **_policies(outside, nulls)}


def number(
    low: float, high: float, step: float = 1, outside: str = "clip", nulls: str = "reject", column: str | None = None
) -> dict[str, Any]:
    """Return a number for sums and means, with the range to which its values are clipped.

    Parameters
    ----------
    low, high : float
        Ends of the range, in units of the column.
    step : float
        Values are rounded to multiples of it.
    outside : {"clip", "reject", "drop"}
        Policy for a value outside: it is moved to the nearest end, refused, or its row is not counted.
    nulls : {"reject", "skip", "zero", "drop"}
        Policy for a null: it is refused, its row counts without a value, it is 0, or its row is not counted.
    column : str, optional
        Column of the values; default: the name of the number. An attribute may have the same column.

    Returns
    -------
    dict
        Content of a table [numbers.NAME] of a domain file. The domain checks it.

    Examples
    --------
    >>> number(0, 400, step=0.01)
    {'kind': 'number', 'low': 0, 'high': 400, 'step': 0.01, 'outside': 'clip'}
    """
    steps = {} if step == 1 else {"step": step}
    source = {} if column is None else {"from": column}
    return {"kind": NUMBER, "low": low, "high": high, **steps, **source, **_policies(outside, nulls)}


def axes_of(attributes: object, columns: Mapping[str, object]) -> tuple[Attribute, ...]:
    """Return the attributes of a domain from the arguments of its constructor.

    Raises
    ------
    DomainError
        If a value is none of those that a domain takes.
    """
    if attributes is None and columns:
        return _named(columns)
    if isinstance(attributes, str) or not isinstance(attributes, Iterable):
        raise DomainError("attributes", safe_repr(attributes), "values by name, or attributes",
                          'write dp.Domain(a=10, b=["x", "y"]), or read a file: Domain.read(path)')  # fmt: skip
    if isinstance(attributes, Mapping):
        return _named({**attributes, **columns})

    axes = tuple(attributes)
    if strange := [axis for axis in axes if not isinstance(axis, Attribute)]:
        raise DomainError("attributes", f"an item of type {type(strange[0]).__name__}",
                          "values by name, or attributes", 'write them as {"a": 10}')  # fmt: skip
    return axes + _named(columns)


def _named(columns: Mapping[Any, object]) -> tuple[Attribute, ...]:
    return tuple(one for name, value in columns.items() for one in _attributes(name, value))


def _attributes(name: Any, value: object) -> list[Attribute]:
    """Return the attributes of one column: its own, and those of its parents.

    A value is an Attribute, bool, a table of the domain file, a number of cells, or a list of values. Arrays and frames
    are refused because their values may be those of records; a pair of numbers because it may be a range.
    """
    if isinstance(value, Attribute):
        return [value]
    if value is bool:
        return from_tables({name: {"kind": "boolean"}})
    if isinstance(value, Mapping) and value.get("kind") == NUMBER:
        return [*read_numbers({name: {key: one for key, one in value.items() if key != "kind"}})]
    if isinstance(value, Mapping):
        return from_tables({name: dict(value)})
    dimensions: Any = getattr(value, "ndim", 0)
    if hasattr(value, "__array__") and dimensions:
        raise DomainError(f"attributes.{name}", f"an object of type {type(value).__name__}, whose values may be those"
                          " of records", "public values, as a list that you wrote",
                          f'write dp.Domain({name}=["x", "y"]),' " or review a draft of dp.sketch_domain")  # fmt: skip
    if isinstance(value, tuple) and len(value) == len(("low", "high")) and _are_ends(*value):
        low, high = value
        raise DomainError(f"attributes.{name}", f"({low}, {high}), which may be two values or a range",
                          "a list for two values, or a table for whole numbers of a range",
                          f'write [{low}, {high}], or {{"kind": "integer", "low": {low}, "high": {high}}}')  # fmt: skip
    if isinstance(value, Integral) or hasattr(value, "__index__"):
        return [coded(name, value)]  # type: ignore[arg-type]
    if isinstance(value, list | tuple | range):  # anything else may contain records
        return from_tables({name: {"kind": "categories", "values": list(value)}})
    raise DomainError(f"attributes.{name}", safe_repr(value), EXPECTED, f"write dp.Domain({name}=10) or a list")


def _are_ends(low: object, high: object) -> bool:
    """Return whether two values may be the ends of a range."""
    return isinstance(low, Integral) and isinstance(high, Integral) and int(high) > int(low) + 1
