"""Order of rows by values of declared columns, for histories.

A row is compared by the cell of an attribute, then by the values of columns, then by a hash of its other values: the
order of two rows depends on these rows only. Numbers, dates and times have an order. A text has that of its cell, which
is the order in the domain file; in files without types, texts that are numbers or ISO dates and times have the order of
these. A null, and a text without a number, follows all values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpscale.base.arrow import is_text, pa, pc, types
from dpscale.base.errors import DataError
from dpscale.base.numerics import Floats, Integers, NDArray, Words
from dpscale.records.table import Partition

NUMBER = r"^\s*[-+]?\d+(\.\d*)?([eE][-+]?\d+)?\s*$"
TIMES = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")


def check_order(partition: Partition, columns: Sequence[str]) -> None:
    """Raise DataError for a column that is missing or has no order; the first may be a text."""
    kinds = partition.kinds(columns)
    for at, name in enumerate(columns):
        kind = kinds[name]
        kind = kind.value_type if types.is_dictionary(kind) else kind
        text = is_text(kind) and (at == 0 or not partition.format.typed)
        if not (text or _is_ordered(kind)):
            raise DataError(f"data column {name!r}", f"type {kind} in order_by", "numbers, dates or times",
                            "convert the column, or remove it from order_by")  # fmt: skip


def _is_ordered(kind: pa.DataType) -> bool:
    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind)
    return numbers or (types.is_temporal(kind) and not types.is_duration(kind))


def order_values(column: pa.Array | pa.ChunkedArray, typed: bool) -> Floats:
    """Return values that order rows like those of a column; of dates and times, the number of units since 1970.

    Parameters
    ----------
    column : pyarrow.Array or pyarrow.ChunkedArray
    typed : bool
        Whether the file has types; a text is then not read as a number, and all texts are equal.

    Returns
    -------
    ndarray of float64, shape (n,)
        Infinite for nulls.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_text(column.type):
        return np.zeros(len(column)) if typed else _of_texts(column)

    if types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return _with_infinity(column.cast(pa.float64(), safe=False))


def _of_texts(column: pa.Array) -> Floats:
    """Return the numbers, or the times in seconds, that texts are."""
    found = pc.if_else(pc.match_substring_regex(column, NUMBER), pc.utf8_trim_whitespace(column), None)
    found = found.cast(pa.float64())
    for form in TIMES:
        times = pc.strptime(column, format=form, unit="s", error_is_null=True)
        found = pc.coalesce(found, times.cast(pa.int64()).cast(pa.float64()))
    return _with_infinity(found)


def _with_infinity(column: pa.Array) -> Floats:
    values = column.to_numpy(zero_copy_only=False)
    return np.where(np.isnan(values), np.inf, values)


def order_batch(batch: dict[str, pa.Array], columns: Sequence[str], typed: bool) -> Floats:
    """Return the order of a batch's rows by columns, shape (n, columns)."""
    return np.stack([order_values(batch[name], typed) for name in columns], axis=1)


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
