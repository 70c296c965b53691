"""Order of rows by values of declared columns, for histories.

A row is compared by the cell of an attribute, then by the values of columns, then by a hash of its other values: the
order of two rows depends on these rows only. Numbers, dates and times have an order; a text has none beside that of its
cell, which is the order in the domain file. A null follows all values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpscale.base.arrow import pa, types
from dpscale.base.errors import DataError
from dpscale.base.numerics import Floats, Integers, NDArray, Words


def order_values(column: pa.Array | pa.ChunkedArray, name: str, required: bool) -> Floats:
    """Return values that order rows like those of a column; of dates and times, the number of units since 1970.

    Parameters
    ----------
    column : pyarrow.Array or pyarrow.ChunkedArray
    name : str
        Of the column, for messages.
    required : bool
        Whether a text is refused; otherwise all texts are equal.

    Returns
    -------
    ndarray of float64, shape (n,)
        Infinite for nulls.

    Raises
    ------
    DataError
        For a column of another type.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_temporal(column.type) and not types.is_duration(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_decimal(column.type)):
        if required and not types.is_null(column.type):
            raise DataError(f"data column {name!r}", f"type {column.type} in order_by", "numbers, dates or times",
                            "convert the column, or remove it from order_by")  # fmt: skip
        return np.zeros(len(column))
    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.where(np.isnan(values), np.inf, values)


def order_batch(batch: dict[str, pa.Array], columns: Sequence[str]) -> Floats:
    """Return the order of a batch's rows by columns, shape (n, columns); texts are accepted in the first only."""
    return np.stack([order_values(batch[name], name, at > 0) for at, name in enumerate(columns)], axis=1)


def ranks(cells: NDArray[np.integer], values: Floats, words: Words) -> Integers:
    """Return the position of every row in the order of all rows.

    Parameters
    ----------
    cells : ndarray, shape (n,)
        Cells of the attribute.
    values : ndarray, shape (n, k)
        Values of columns, the first one first.
    words : ndarray of uint64, shape (n, 2)
        Hashes of the rows.
    """
    order = np.lexsort((words[:, 1], words[:, 0], *values.T[::-1], cells))
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order))
    return found
