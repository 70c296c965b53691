"""Values of columns whose cells are not known yet: entries of texts, and steps of numbers.

A row has a state: VALUE, or EMPTY for a null that the domain file accepts, or the negative code of `encode` for a row
that the domain file drops or refuses. The policies are those of the domain file, as for public cells, so that every
reading of the table drops and refuses the same rows. A text that no search can find, because it is too long or not
valid UTF-8, is a value without an entry.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpscale.base.arrow import is_text, pa, pc, text_kind
from dpscale.base.errors import DataError
from dpscale.base.numerics import Integers, NDArray
from dpscale.domain.attribute import NULL_LABEL, OUTSIDE_LABEL, Attribute
from dpscale.domain.number import Number
from dpscale.domain.schema_values import MOST
from dpscale.domain.search import EdgeSearch, NodeSearch, ValueSearch
from dpscale.records.column_values import numbers

DROPPED, OUTSIDE, UNPARSABLE, NULL = -1, -2, -3, -4  # codes of rows without a cell
VALUE, EMPTY = 0, 1  # states of rows; negative ones are codes of `encode`
LOWEST, HIGHEST = 1 - (1 << 63), (1 << 63) - 1  # -2^63 is the code of a row without a value
UNFOUND, EMPTY_TEXT = 1, 2  # codes of texts that cannot be found, and of nulls
FLOAT_END = float(1 << 63)  # a step from here on is not a 64-bit integer


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


def text_type(attribute: Attribute, column_type: pa.DataType) -> str:
    """Return what the column of an attribute contains: "text", "integer", or "" if it has only nulls.

    The attribute's values are not public: its search finds them in the column. A NodeSearch finds codes of a public
    tree, which must be texts. A ValueSearch finds texts or integers, and may begin with public values of the domain
    file; if these are texts, a column of integers is refused. Raises DataError for any other column.
    """
    field, search = f"data column {attribute.name!r}", attribute.search
    # of the values: a dictionary of texts contains texts, and bytes are read as texts
    value_type = text_kind(column_type.value_type if pa.types.is_dictionary(column_type) else column_type)
    if pa.types.is_null(value_type):
        return ""
    if is_text(value_type):
        return "text"

    if isinstance(search, NodeSearch):
        raise DataError(field, f"type {value_type}", "texts, which are codes of a tree", "convert the column")
    if not pa.types.is_integer(value_type):
        raise DataError(field, f"type {value_type}", "texts or integers, whose values are searched",
                        f"change the kind of attributes.{attribute.name}, or convert the column")  # fmt: skip
    public_values = search.values if isinstance(search, ValueSearch) else ()
    if public_values and isinstance(public_values[0], str):
        raise DataError(field, "integers, but the domain file lists texts", "one type",
                        f"write the values of attributes.{attribute.name} as integers")  # fmt: skip
    return "integer"


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
        column = (column.cast(pa.large_binary()) if is_text(column.type) else column).dictionary_encode()
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
        if pa.types.is_integer(dictionary.type):
            long = pc.or_(long, _large(dictionary))
        reserved = pc.is_in(texts, value_set=pa.array([OUTSIDE_LABEL, NULL_LABEL], pa.large_string()))
        texts = pc.if_else(pc.or_(long, reserved), pa.scalar(None, pa.large_string()), texts)
    return texts, null


def _large(dictionary: pa.Array) -> pa.Array:
    """Return which integers are too large for labels of 64 bits."""
    most = MOST - 1
    if pa.types.is_unsigned_integer(dictionary.type):
        return pc.greater(dictionary.cast(pa.uint64()), pa.scalar(most, pa.uint64()))
    integers = dictionary.cast(pa.int64())
    return pc.or_(pc.greater(integers, most), pc.less(integers, -most))


def _texts(dictionary: pa.Array) -> pa.Array:
    """Return entries as valid texts; null for bytes that are not UTF-8."""
    try:
        texts = dictionary.cast(pa.large_string())
        texts.validate(full=True)
        return texts
    except pa.ArrowInvalid:
        return pa.array(
            [_decoded(value) for value in dictionary.cast(pa.large_binary()).to_pylist()], pa.large_string()
        )


def _decoded(text: bytes | None) -> str | None:
    """Return the text of UTF-8 bytes; None for a null and for other bytes."""
    try:
        return None if text is None else text.decode()
    except UnicodeDecodeError:
        return None


def entries_of_rows(rows: Integers, entries: pa.Array) -> Integers:
    """Return the entry of each row; −1 where the entry is null."""
    is_valid = np.append(np.asarray(entries.is_valid().to_numpy(zero_copy_only=False), dtype=bool), False)
    return np.where(is_valid[rows], rows, -1)


def step_values(attribute: Attribute, column: pa.Array) -> tuple[Integers, Integers]:
    """Return the steps of a column of numbers and the state of each row.

    Steps of bins are rounded down, those of a number to the nearest one, and clipped to 64 bits and to public ends.

    A step is the number of a multiple of the search's unit. `large` has the exact integers of a column of floats that
    64-bit floats cannot represent; the steps of those rows are computed again from them.

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

    steps, beyond = _steps(attribute, parsed.values)
    if parsed.large is not None:
        has_integer = parsed.large != 0
        steps[has_integer], beyond[has_integer] = _steps(attribute, parsed.large[has_integer])

    steps, outside = _inside(attribute, steps)
    # values outside first; foreign texts and nulls then replace them
    states = np.where(outside | beyond, _outside_state(attribute), VALUE)
    states[parsed.foreign] = DROPPED if attribute.foreign == "drop" else UNPARSABLE
    states[parsed.missing] = _null_state(attribute)
    if isinstance(attribute, Number) and attribute.nulls == "zero":
        steps[parsed.missing] = 0

    return steps, states


def field_name(attribute: Attribute) -> str:
    """Return the table of the domain file that defines an attribute."""
    return f"{'numbers' if isinstance(attribute, Number) else 'attributes'}.{attribute.name}"


def _steps(attribute: Attribute, values: NDArray[Any]) -> tuple[Integers, NDArray[np.bool_]]:
    """Return the steps of values, and which are beyond 64 bits.

    A step is the value divided by the unit, rounded to the nearest integer for a number and down for bins. The unit is
    a fraction.
    """
    nearest = isinstance(attribute, Number)
    unit = attribute.unit if isinstance(attribute, Number) else _search(attribute).unit
    if values.dtype.kind in "iu" and unit == 1:
        return values.astype(np.int64), np.zeros(len(values), bool)

    floats = np.asarray(values, np.float64)
    steps = floats * unit.denominator / unit.numerator
    beyond = (steps >= FLOAT_END) | (steps < -FLOAT_END)
    bounded = np.clip(steps, -FLOAT_END, np.nextafter(FLOAT_END, 0))
    below = np.floor(bounded)
    if nearest:  # adding one half would round large numbers
        return (below + (bounded - below >= 0.5)).astype(np.int64), beyond

    edge = below * unit.numerator / unit.denominator  # as the edges of bins, which are compared with the values
    # the division may have rounded over an edge: one step back or forward puts the value between its edges
    below -= floats < edge
    below += floats >= (below + 1) * unit.numerator / unit.denominator
    return np.clip(below, -FLOAT_END, np.nextafter(FLOAT_END, 0)).astype(np.int64), beyond


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


def value_codes(attribute: Attribute, column: pa.Array) -> tuple[NDArray[np.uint64], Integers]:
    """Return a 64-bit code of each row's value, and the state of each row.

    Rows of a privacy unit that a search counts differently have different codes: numbers have distinct codes, texts
    a hash. They are not secret and never leave a task.

    The code of a text without an entry is UNFOUND, that of a null EMPTY_TEXT; a row without an entry has the index -1.
    """
    if isinstance(attribute.search, ValueSearch | NodeSearch):
        entries = text_entries(attribute, column)
        words = [0 if text is None else _hash(text) for text in entries.texts.to_pylist()]
        # UNFOUND is the last word, so that the index -1 selects it
        codes, none = np.array([*words, UNFOUND], np.uint64)[entries.rows], EMPTY_TEXT
        return np.where(entries.states == EMPTY, np.uint64(none), codes), entries.states
    steps, states = step_values(attribute, column)
    # a null has the code of the smallest 64-bit integer, -2^63
    return np.where(states == EMPTY, np.uint64(1 << 63), steps.view(np.uint64)), states


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
