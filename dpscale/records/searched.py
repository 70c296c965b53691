"""Values of columns whose cells are not known yet: entries of texts, and steps of numbers.

A row has a state: VALUE, or EMPTY for a null that the domain file accepts, or the negative code of `encode` for a row
that the domain file drops or refuses. The policies are those of the domain file, as for public cells, so that every
reading of the table drops and refuses the same rows. A text that no search can find, because it is too long or not
valid UTF-8, is a value without an entry.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpscale.base.arrow import is_text, pa, pc
from dpscale.base.errors import DataError
from dpscale.base.numerics import Integers, NDArray
from dpscale.domain.attribute import NULL_LABEL, OUTSIDE_LABEL, Attribute
from dpscale.domain.number import Number
from dpscale.domain.search import EdgeSearch, NodeSearch, ValueSearch
from dpscale.records.column_values import numbers

DROPPED, OUTSIDE, UNPARSABLE, NULL = -1, -2, -3, -4  # codes of rows without a cell
VALUE, EMPTY = 0, 1
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
FLOAT_END = float(1 << 63)
MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class Entries:
    """Texts of a column by their distinct entries. Private, so its repr shows nothing.

    Attributes
    ----------
    texts : pyarrow.LargeStringArray
    rows : ndarray of int64, shape (rows,)
        Entry of each row; −1 where there is none.
    states : ndarray of int64, shape (rows,)
    """

    texts: Any = field(repr=False)
    rows: Integers = field(repr=False)
    states: Integers = field(repr=False)


def text_type(attribute: Attribute, kind: pa.DataType) -> str:
    """Return "text" or "integer"; raise DataError for a column of any other type."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if is_text(kind) or pa.types.is_null(kind):
        return "text"
    if pa.types.is_integer(kind):
        return "integer"
    raise DataError(f"data column {attribute.name!r}", f"type {kind}", "texts or integers, whose values are searched",
                    f"change the kind of attributes.{attribute.name}, or convert the column")  # fmt: skip


def text_entries(attribute: Attribute, column: pa.Array) -> Entries:
    """Return the texts of a column; integers are written in decimal digits.

    Parameters
    ----------
    attribute : Attribute
        With a ValueSearch or a NodeSearch.
    column : pyarrow Array or ChunkedArray

    Raises
    ------
    DataError
        If the column contains neither texts nor integers.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    text_type(attribute, column.type)
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.large_binary() if is_text(column.type) else pa.large_string()).dictionary_encode()
    indices = column.indices.cast(pa.int64())
    rows = np.asarray(indices.fill_null(-1).to_numpy(zero_copy_only=False))
    entries, null = _searchable(attribute, column.dictionary)
    missing = (rows < 0) | null[rows]
    states = np.where(missing, _null_state(attribute), VALUE)
    return Entries(entries, np.where(missing, -1, entries_of_rows(rows, entries)), states)


def _searchable(attribute: Attribute, dictionary: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return the entries as texts, null where none can be found, and which entries are null themselves.

    The flags have one more element, for rows without an entry.
    """
    null = np.append(np.asarray(dictionary.is_null().to_numpy(zero_copy_only=False), dtype=bool), False)
    texts = _texts(dictionary)
    if isinstance(attribute.search, ValueSearch):
        long = pc.greater(pc.utf8_length(texts), attribute.search.max_length)
        reserved = pc.is_in(texts, value_set=pa.array([OUTSIDE_LABEL, NULL_LABEL], pa.large_string()))
        texts = pc.if_else(pc.or_(long, reserved), pa.scalar(None, pa.large_string()), texts)
    return texts, null


def _texts(dictionary: pa.Array) -> pa.Array:
    """Return entries as valid texts; null for bytes that are not UTF-8."""
    try:
        texts = dictionary.cast(pa.large_string())
        texts.validate(full=True)
        return texts
    except pa.ArrowInvalid:
        return pa.array([_decoded(one) for one in dictionary.cast(pa.large_binary()).to_pylist()], pa.large_string())


def _decoded(text: bytes | None) -> str | None:
    try:
        return None if text is None else text.decode()
    except UnicodeDecodeError:
        return None


def entries_of_rows(rows: Integers, entries: pa.Array) -> Integers:
    """Return the entry of each row; −1 where the entry is null."""
    found = np.append(np.asarray(entries.is_valid().to_numpy(zero_copy_only=False), dtype=bool), False)
    return np.where(found[rows], rows, -1)


def step_values(attribute: Attribute, column: pa.Array) -> tuple[Integers, Integers]:
    """Return the steps of a column of numbers and the state of each row.

    Steps of bins are rounded down, those of a number to the nearest one, and clipped to 64 bits and to public ends.

    Parameters
    ----------
    attribute : Attribute
        With an EdgeSearch or an EndSearch.
    column : pyarrow Array or ChunkedArray

    Raises
    ------
    DataError
        If the column contains no numbers.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    parsed = numbers(column)
    if parsed is None:
        raise DataError(f"data column {attribute.name!r}", f"type {column.type}", "numbers",
                        f"change the kind of {field_name(attribute)}, or convert the column")  # fmt: skip
    steps, outside = _inside(attribute, _steps(attribute, parsed.values))
    states = np.where(outside, _outside_state(attribute), VALUE)
    states[parsed.foreign] = DROPPED if attribute.foreign == "drop" else UNPARSABLE
    states[parsed.missing] = _null_state(attribute)
    if isinstance(attribute, Number) and attribute.nulls == "zero":
        steps[parsed.missing] = 0
    return steps, states


def field_name(attribute: Attribute) -> str:
    """Return the table of the domain file that defines an attribute."""
    return f"{'numbers' if isinstance(attribute, Number) else 'attributes'}.{attribute.name}"


def _steps(attribute: Attribute, values: NDArray[Any]) -> Integers:
    whole = isinstance(attribute, Number)
    unit = attribute.unit if isinstance(attribute, Number) else _search(attribute).unit
    if values.dtype.kind in "iu" and unit == 1:
        return values.astype(np.int64)
    steps = (
        np.asarray(values, np.float64) * float(1 / unit) if unit < 1 else np.asarray(values, np.float64) / float(unit)
    )
    bounded = np.clip(steps, -FLOAT_END, np.nextafter(FLOAT_END, 0))
    below = np.floor(bounded)  # adding one half would round large numbers
    return (below + (bounded - below >= 0.5) if whole else below).astype(np.int64)


def _search(attribute: Attribute) -> EdgeSearch:
    assert isinstance(attribute.search, EdgeSearch)
    return attribute.search


def _inside(attribute: Attribute, steps: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Return the steps clipped to the public ends, and which rows were outside."""
    search: Any = attribute.search
    low = LOWEST if search.low is None else search.low
    high = HIGHEST if search.high is None else search.high
    clipped = np.clip(steps, low, high)
    return clipped, clipped != steps


def _outside_state(attribute: Attribute) -> int:
    return {"clip": VALUE, "drop": DROPPED, "category": EMPTY}.get(attribute.outside, OUTSIDE)


def _null_state(attribute: Attribute) -> int:
    if attribute.nulls == "reject":
        return NULL
    return {"drop": DROPPED, "zero": VALUE}.get(attribute.nulls, EMPTY)


def value_hashes(attribute: Attribute, column: pa.Array) -> Integers:
    """Return a 32-bit hash of each row's value, or the negative code of a row that is dropped or refused.

    The hash distinguishes the rows of a privacy unit. It is not secret and never leaves a task.
    """
    if isinstance(attribute.search, ValueSearch | NodeSearch):
        found = text_entries(attribute, column)
        words = [0 if one is None else zlib.crc32(one.encode()) for one in found.texts.to_pylist()]
        return _coded(np.array([*words, 0], np.int64)[found.rows], found.states)
    steps, states = step_values(attribute, column)
    return _coded(((steps.view(np.uint64) * MIX) >> np.uint64(32)).astype(np.int64), states)


def _coded(hashes: Integers, states: Integers) -> Integers:
    return np.where(states < 0, states, np.where(states == EMPTY, 0, hashes))
