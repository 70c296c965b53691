"""Columns to cell numbers, row by row: what a row becomes depends on that row and the domain file alone.

A value that the domain refuses raises a DataError that names the column; it never tells the value, its row or how many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpscale.domain import Attribute
from dpscale.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

Codes = NDArray[np.unsignedinteger]
REFUSED = -1


def code_type(size: int) -> np.dtype:
    """The narrowest unsigned type for the codes of an attribute."""
    return np.dtype(np.uint8 if size <= 1 << 8 else np.uint16 if size <= 1 << 16 else np.uint32)


def encode(attribute: Attribute, column: pa.Array) -> Codes:
    """Cell numbers of a column, of the attribute's narrowest unsigned type."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        return _encode_dictionary(attribute, column)
    cells = _cells(attribute, column)
    _refuse(attribute, cells, column)
    return cells.astype(code_type(attribute.size))


def _encode_dictionary(attribute: Attribute, column: pa.DictionaryArray) -> Codes:
    """Encode the dictionary once, then look up; an unused entry outside the domain does no harm."""
    table = np.append(_cells(attribute, column.dictionary), attribute.null_cell)
    indices = column.indices.fill_null(len(table) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
    cells = table[indices]
    _refuse(attribute, cells, column)
    return cells.astype(code_type(attribute.size))


def _refuse(attribute: Attribute, cells: NDArray[np.int64], column: pa.Array) -> None:
    if not (cells == REFUSED).any():
        return
    field = f"data column {attribute.name!r}"
    if attribute.nulls == "reject" and column.is_null(nan_is_null=True).true_count:
        remedy = f'set nulls = "category" for attributes.{attribute.name}'
        raise DataError(field, "a null", "no nulls, as the domain file says", remedy)
    choices = '"category"' if attribute.kind == "categories" else '"clip" or "category"'
    remedy = f"set outside = {choices} for attributes.{attribute.name}, or widen its domain"
    raise DataError(field, "a value outside the domain", "only values of the domain file", remedy)


def _cells(attribute: Attribute, column: pa.Array) -> NDArray[np.int64]:
    """Cell numbers, REFUSED where the domain refuses."""
    if attribute.kind == "categories":
        return _category_cells(attribute, column)
    numbers, missing = _numbers(attribute, column)
    cells = _bin_cells(attribute, numbers) if attribute.kind == "bins" else _integer_cells(attribute, numbers)
    cells[missing] = attribute.null_cell
    return cells


def _numbers(attribute: Attribute, column: pa.Array) -> tuple[NDArray, NDArray[np.bool_]]:
    """The column as int64 or float64, and where it is null (NaN counts as null)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_boolean(kind):
        column = pc.cast(column, pa.int8())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_decimal(kind):
        column = _parsed(attribute, column)
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise _wrong_type(attribute, kind, "numbers")
    if pa.types.is_null(kind):
        return np.zeros(len(column), dtype=np.int64), np.ones(len(column), dtype=bool)
    missing = np.asarray(column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False), dtype=bool)
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    if values.dtype == np.uint64:  # beyond int64 is beyond any domain
        values = np.minimum(values, np.uint64(np.iinfo(np.int64).max))
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64), missing


def _parsed(attribute: Attribute, column: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return pc.cast(column, pa.float64())
    except pa.ArrowInvalid:
        raise _wrong_type(attribute, column.type, "numbers") from None


def _wrong_type(attribute: Attribute, kind: pa.DataType, takes: str) -> DataError:
    remedy = f"change the kind of attributes.{attribute.name}, or convert the column"
    return DataError(f"data column {attribute.name!r}", f"type {kind}", takes, remedy)


def _integer_cells(attribute: Attribute, numbers: NDArray) -> NDArray[np.int64]:
    low, high = attribute.low, attribute.high
    numbers = np.where(np.isnan(numbers), low, numbers) if numbers.dtype.kind == "f" else numbers
    whole = numbers == np.rint(numbers) if numbers.dtype.kind == "f" else np.ones(len(numbers), dtype=bool)
    inside = (numbers >= low) & (numbers <= high) & whole
    nearest = np.rint(np.clip(numbers, low, high)).astype(np.int64) - low
    return _outside(attribute, nearest, inside)


def _bin_cells(attribute: Attribute, numbers: NDArray) -> NDArray[np.int64]:
    edges = np.asarray(attribute.edges)
    inside = (numbers >= edges[0]) & (numbers <= edges[-1])
    nearest = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, attribute.listed - 1)
    return _outside(attribute, nearest.astype(np.int64), inside)


def _outside(attribute: Attribute, nearest: NDArray[np.int64], inside: NDArray[np.bool_]) -> NDArray[np.int64]:
    if attribute.outside == "clip":
        return nearest
    return np.where(inside, nearest, attribute.outside_cell)


def _category_cells(attribute: Attribute, column: pa.Array) -> NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pa.array(list(attribute.values))
    if pa.types.is_null(column.type):
        return np.full(len(column), attribute.null_cell, dtype=np.int64)
    missing = np.asarray(column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False), dtype=bool)
    if pa.types.is_string(values.type):
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise _wrong_type(attribute, column.type, "texts, since the domain file lists texts")
        values = values.cast(column.type)
    else:
        numbers, missing = _numbers(attribute, column)
        column, values = pa.array(numbers.astype(np.float64)), values.cast(pa.float64())
    found = pc.index_in(column, value_set=values).fill_null(attribute.outside_cell)
    cells = found.to_numpy(zero_copy_only=False).astype(np.int64)
    cells[missing] = attribute.null_cell
    return cells
