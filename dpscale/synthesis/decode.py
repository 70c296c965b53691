"""Values of cells as listed in the domain file, in the input's types only if the job declares those public.

A column's type may depend on its records: one null turns whole numbers of pandas into floats.

The value of a bin is a number drawn uniformly inside it, whole if the column's numbers are; of an integer, a code or a
category its own value; of a period a day in it; of nulls null. Values outside the domain become one text in text
columns, else null. A file has the columns' names, types and order, and no metadata or dictionaries of the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrow import pa
from dpscale.base.numerics import Integers, Integers32
from dpscale.domain import Domain
from dpscale.domain.attribute import EPOCH, OUTSIDE_LABEL, Attribute, first_day
from dpscale.domain.number import Number
from dpscale.privacy.streams import PublicStream
from dpscale.synthesis.dates import date_column


def column(
    attribute: Attribute,
    cells: Integers32,
    stream: PublicStream,
    wanted: pa.DataType | None = None,
    numbers: Sequence[tuple[Number, Integers]] = (),
) -> pa.Array:
    """Return the values of a column of cells, shape (n,), in the type `wanted` if they fit it.

    `numbers` are those of the same input column with the steps of each row; a value of theirs inside the row's bin is
    the value of both columns.
    """
    return column_of(attribute, cells, values_inside(attribute, cells, stream, wanted, numbers), wanted)


def values_inside(
    attribute: Attribute,
    cells: Integers32,
    stream: PublicStream,
    wanted: pa.DataType | None = None,
    numbers: Sequence[tuple[Number, Integers]] = (),
) -> NDArray[Any] | None:
    """Return values drawn inside bins, and days in periods, shape (n,); None where a cell is a single value.

    The parameters are those of `column`. `cells` beyond the listed ones are treated as the last one. `numbers` are
    numbers of the same column, whose values are shared with the bins.
    """
    inside = np.minimum(cells, attribute.listed - 1)
    if attribute.kind == "date":
        return _days(attribute, inside, stream)
    if attribute.kind != "bins":
        return None

    values = _inside(attribute, inside, row_step(attribute, wanted), stream)
    for number, steps in numbers:
        values = _shared_values(attribute, inside, values, number, steps)
    return values


def column_of(
    attribute: Attribute,
    cells: Integers32,
    inside: NDArray[Any] | None,
    wanted: pa.DataType | None = None,
    times: PublicStream | None = None,
) -> pa.Array:
    """Return the column of cells with given values inside them, as `values_inside` returns them.

    `times` is the stream of times of day; without it times are midnight.
    """
    null = cells >= attribute.listed
    if attribute.values:
        return _cast(_categories(attribute, cells), wanted)
    if inside is None:
        return _cast(pa.array(cells.astype(np.int64) * attribute.step + attribute.low, mask=null), wanted)
    if attribute.kind == "date":
        return date_column(attribute, inside, null, wanted, times)
    return _cast(pa.array(inside, mask=null), wanted)


def _shared_values(
    attribute: Attribute, bins: Integers32, values: NDArray[np.float64], number: Number, steps: Integers
) -> NDArray[np.float64]:
    """Return the values of a number where they lie inside the bins of the rows, else the given values."""
    edges, exact = np.asarray(attribute.edges), number_values(number, steps)
    return np.where((steps >= 0) & (exact >= edges[bins]) & (exact < edges[bins + 1]), exact, values)


def number_values(number: Number, steps: Integers) -> NDArray[np.float64]:
    """Return values from steps above the low end, each the nearest float."""
    return (steps + number.low) * number.unit.numerator / number.unit.denominator


def number_column(number: Number, steps: Integers, wanted: pa.DataType | None = None) -> pa.Array:
    """Return the values of a number, in the type `wanted` if they fit it; null where `steps` is below 0."""
    values = number_values(number, steps)
    if number.unit.denominator == 1:
        return _cast(pa.array(values.astype(np.int64), mask=steps < 0), wanted)
    return _cast(pa.array(values, mask=steps < 0), wanted)


def read_column(domain: Domain, types: Mapping[str, str], name: str, texts: pa.Array) -> pa.Array:
    """Return a column of rows from its texts in a file, as `column` and `number_column` make it.

    Parameters
    ----------
    domain : Domain
    types : mapping of str to str
        Public types of the input's columns.
    name : str
        Name of the column; that of a format contains texts, one that the domain lacks weights.
    texts : pyarrow Array
        Values as written; null for a null.
    """
    if name not in domain.axis_names:
        return texts if any(name == text_format.name for text_format in domain.formats) else texts.cast(pa.float64())

    attribute, nothing = domain[name], np.empty(0, np.int32)
    if isinstance(attribute, Number):
        plain = number_column(attribute, nothing.astype(np.int64)).type
    else:
        plain = column(attribute, nothing, PublicStream("", "values")).type
    wanted = type_of(types.get(name, ""))
    if wanted is not None and plain == pa.date32():
        return _cast(texts, wanted)
    return _cast(texts.cast(plain), wanted)


def _categories(attribute: Attribute, cells: Integers32) -> pa.Array:
    """Return the listed values, the text for values outside the domain if they are texts, or null."""
    listed: list[Any] = list(attribute.values)
    if attribute.outside_cell >= 0:
        listed.append(OUTSIDE_LABEL if isinstance(listed[0], str) else None)
    if attribute.null_cell >= 0:
        listed.append(None)
    return pa.array(listed).take(pa.array(cells))


def _days(attribute: Attribute, cells: Integers32, stream: PublicStream) -> NDArray[np.int32]:
    """Return days since 1970 drawn uniformly from each period, given the cells of a date attribute (its periods)."""
    numbers = range(attribute.low, attribute.high + 2)
    begins = np.array([(first_day(attribute.by, number) - EPOCH).days for number in numbers])
    first, following = begins[cells], begins[cells + 1]
    return np.asarray(first + np.floor(stream.uniforms(len(cells)) * (following - first)), np.int32)


def row_step(attribute: Attribute, wanted: pa.DataType | None) -> float:
    """Return the distance between a column's numbers; 0 for real numbers.

    Without a type, whole edges mean whole numbers.
    """
    if wanted is None:
        return float(all(edge == round(edge) for edge in attribute.edges))
    return 10.0**-wanted.scale if pa.types.is_decimal(wanted) else float(pa.types.is_integer(wanted))


def _inside(attribute: Attribute, bins: Integers32, step: float, stream: PublicStream) -> NDArray[np.float64]:
    """Return uniform numbers in each bin, without its right edge; multiples of `step` if it is above 0.

    Multiples of `step` are drawn from the first in the bin to the last below its right edge; a bin without one uses the
    next.
    """
    edges = np.asarray(attribute.edges)
    low, high, share = edges[bins], edges[bins + 1], stream.uniforms(len(bins))
    if step:
        first, following = np.ceil(low / step), np.ceil(high / step)
        return np.asarray(np.floor(first + share * np.maximum(following - first, 1)) * step)
    return np.asarray(np.clip(low + share * (high - low), low, np.nextafter(high, low)))


def _cast(values: pa.Array, wanted: pa.DataType | None) -> pa.Array:
    """Return values with the data type of the input if every one fits it, else as they are."""
    if wanted is None or values.type == wanted:
        return values
    try:
        return values.cast(wanted, safe=not pa.types.is_decimal(wanted))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # for example a text with another spelling in the input
        return values


def type_of(name: str) -> pa.DataType | None:
    """Return the type with this name (`str(type)`); None if values cannot be converted to it."""
    try:
        return pa.type_for_alias(name)
    except ValueError:
        return _with_parameters(name)


def _with_parameters(name: str) -> pa.DataType | None:
    """Return the Arrow type of a name such as "decimal128(10, 2)" or "timestamp[us, tz=UTC]"; None for others."""
    import re

    if timestamp := re.fullmatch(r"timestamp\[(s|ms|us|ns), tz=(.+)\]", name):
        return pa.timestamp(timestamp[1], timestamp[2])
    decimal = re.fullmatch(r"decimal128\((\d+), (\d+)\)", name)
    return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else None


def table_of(columns: Mapping[str, pa.Array]) -> pa.Table:
    """Return a table of the columns under their names, without metadata."""
    schema = pa.schema([pa.field(name, values.type) for name, values in columns.items()])
    return pa.table(list(columns.values()), schema=schema)
