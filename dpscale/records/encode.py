"""Conversion of columns to cell numbers; the cell of a row depends only on that row and the domain file.

A value that the domain refuses raises a DataError that names the column but never reports the value, its row or the
number of such rows. A dropped row is marked for all columns and never counted. A clipped number is assigned to the
nearest cell. A number with a fraction is outside an integer domain and is clipped to the integer below it (34.9 years
are 34). Texts that are not numbers or dates have no nearest cell; the policy `unparsable` applies to them.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import numpy as np

from dpscale.base.arrow import is_text, pa, pc
from dpscale.base.errors import DataError, RefusedValue
from dpscale.base.numerics import Flags, Integers, NDArray
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute, numbered
from dpscale.domain.number import Number
from dpscale.domain.tree import TreeLevel
from dpscale.records import column_values
from dpscale.records.column_values import Numbers, days, numbers
from dpscale.records.searched import DROPPED, NULL, OUTSIDE, UNPARSABLE, field_name, value_codes

TIE = 2.0**-20  # far more than the rounding error of a step
Codes = NDArray[np.unsignedinteger[Any]]
# of the codes of rows without a cell, only the smallest of a column is reported
POLICIES = {OUTSIDE: "outside", UNPARSABLE: "unparsable", NULL: "nulls"}


def code_type(size: int) -> np.dtype[Any]:
    """Return the narrowest unsigned type for the codes of an attribute with `size` cells."""
    narrow = np.uint8 if size <= 1 << 8 else np.uint16 if size <= 1 << 16 else np.uint32
    return np.dtype(narrow if size <= 1 << 32 else np.uint64)


def encode(attribute: Attribute, column: pa.Array, dropped: Flags | None = None) -> Codes:
    """Return the cell numbers of a column in the attribute's narrowest unsigned type.

    Parameters
    ----------
    attribute : Attribute
    column : pyarrow Array or ChunkedArray, or ndarray
        An ndarray contains cells decoded by `pages`, which are only checked. If the cells of the attribute are not
        known yet, the codes only distinguish rows.
    dropped : ndarray of bool, shape (rows,), optional
        Rows that the domain file drops are set to True; their code is 0. Required if the attribute drops rows.

    Raises
    ------
    RefusedValue
        If the domain refuses a value.
    """
    if attribute.search is not None:
        codes, states = value_codes(attribute, column)
        _codes(attribute, np.minimum(states, 0), dropped)
        return codes

    if isinstance(column, np.ndarray):
        return column if column.dtype.kind == "u" else _codes(attribute, column, dropped)

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    column = _with_distinct_texts(attribute, column)
    if pa.types.is_dictionary(column.type):
        return _encode_dictionary(attribute, column, dropped)

    plain = _encode_plain(attribute, column)
    if plain is not None:
        return plain
    return _codes(attribute, _cells(attribute, column), dropped)


def _with_distinct_texts(attribute: Attribute, column: pa.Array) -> pa.Array:
    """Return texts and decimals as a dictionary, each of whose texts is parsed once, and other columns as they are.

    Decimals with a fraction have texts such as 1.00, which are no values that a domain file lists as texts.
    """
    is_decimal = pa.types.is_decimal(column.type)
    if is_decimal and column.type.scale > 0 and attribute.of_texts and not all_null(column):
        raise _wrong_type(attribute, column.type, "texts, since the domain file lists texts")
    return column.cast(pa.large_string()).dictionary_encode() if is_decimal or is_text(column.type) else column


def entries_of(attribute: Attribute, dictionary: pa.Array) -> NDArray[Any]:
    """Return the cells of a dictionary's entries; negative where an entry has none."""
    plain = _encode_plain(attribute, dictionary)
    return _cells(attribute, dictionary) if plain is None else plain


def _encode_plain(attribute: Attribute, column: pa.Array) -> Codes | None:
    """Return the codes of integers that are all inside the domain and not null; None for other columns.

    Only the minimum and maximum are checked, and one subtraction, which is correct modulo 2ⁿ, gives the codes.
    """
    if not attribute.is_whole or not pa.types.is_integer(column.type) or column.null_count:
        return None

    values = column.to_numpy(zero_copy_only=False)
    if not len(values) or int(values.min()) < attribute.low or int(values.max()) > attribute.high:
        return None

    width = code_type(attribute.code_count)
    codes = values.astype(width)
    return codes - width.type(attribute.low % (1 << 8 * width.itemsize)) if attribute.low else codes


def _encode_dictionary(attribute: Attribute, column: pa.DictionaryArray, dropped: Flags | None) -> Codes:
    """Encode the dictionary once, then look up each row; an unused entry outside the domain is harmless."""
    cells, rows = _entries(attribute, column)
    if cells.min() < 0:
        return _codes(attribute, cells[rows], dropped)
    return cells.astype(code_type(attribute.code_count))[rows]


def _entries(attribute: Attribute, column: pa.DictionaryArray) -> tuple[Integers, NDArray[np.integer[Any]]]:
    """Return the cells of the dictionary's entries and the entry of each row; nulls have an additional entry."""
    entries, indices = column.dictionary, column.indices
    cells = _cell_of_name(_Name(attribute, entries)) if _is_name(entries) else _cells(attribute, entries)
    if indices.null_count or not len(cells):
        indices = indices.cast(pa.int64()).fill_null(len(cells))
        cells = np.append(cells, null_cell(attribute))
    return cells, indices.to_numpy(zero_copy_only=False)


def _is_name(entries: pa.Array) -> bool:
    """Return whether entries can be the name of a folder, which many files have."""
    return len(entries) == 1 and entries.type == pa.string() and entries.null_count == 0


class _Name:
    """Hashable cache key: a text, and the attribute that reads it.

    It references the attribute, so that `id(attribute)` is not reused.
    """

    def __init__(self, attribute: Attribute, entries: pa.Array) -> None:
        self.attribute, self.entries = attribute, entries
        self._key = id(attribute), entries[0].as_buffer().to_pybytes()

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Name) and self._key == other._key


@lru_cache(maxsize=1 << 14)
def _cell_of_name(name: _Name) -> Integers:
    """Return the cell of one text, shape (1,)."""
    cells = _cells(name.attribute, name.entries)
    cells.setflags(write=False)
    return cells


def _codes(attribute: Attribute, cells: NDArray[np.signedinteger[Any]], dropped: Flags | None) -> Codes:
    """Convert cells to codes and mark dropped rows. Raises RefusedValue for a refused value.

    DROPPED is the largest of the negative codes: a smaller one is that of a refused value.
    """
    worst = cells.min(initial=0)
    if worst < DROPPED:
        raise _refused(attribute, int(worst))

    if worst == DROPPED:
        assert dropped is not None
        dropped |= cells == DROPPED
        cells = np.maximum(cells, 0)
    return cells.astype(code_type(attribute.code_count))


def _refused(attribute: Attribute, worst: int) -> RefusedValue:
    """Return the error for a refused code of an attribute, with the code for the choice of the worst one."""
    got, takes, remedy = REASONS[worst](attribute)
    error = RefusedValue(f"data column {attribute.name!r}", got, takes, remedy)
    error.worst = worst
    return error


def _null(attribute: Attribute) -> tuple[str, str, str]:
    choices = '"skip", "zero" or "drop"' if attribute.kind == "number" else '"category" or "drop"'
    remedy = f"set nulls = {choices} for {field_name(attribute)}"
    return "a null", "no nulls, as the domain file says", remedy


def _unparsable(attribute: Attribute) -> tuple[str, str, str]:
    """Return what was read, what was expected and the remedy, for a text that is no number or date."""
    kind = "date" if attribute.kind == "date" else "number"
    choices = '"drop"' if attribute.kind == "number" else '"category" or "drop"'
    remedy = f"set unparsable = {choices} for {field_name(attribute)}"
    if attribute.kind == "date":
        formats = 'format = "%d.%m.%Y" or as the texts are written'
        remedy = f"set {formats}, or unparsable = {choices}, for {field_name(attribute)}"
    return f"a text that is no {kind}", f"{kind}s", remedy


def _beyond(attribute: Attribute) -> tuple[str, str, str]:
    """Return the parts of the error for a value outside the domain: found, accepted and remedy."""
    choices = '"category" or "drop"' if attribute.values else '"clip", "category" or "drop"'
    choices = '"clip" or "drop"' if attribute.kind == "number" else choices
    remedy = f"set outside = {choices} for {field_name(attribute)}, or widen its domain"
    return "a value outside the domain", "only values of the domain file", remedy


REASONS = {NULL: _null, UNPARSABLE: _unparsable, OUTSIDE: _beyond}


def refusal(domain: Domain, worst: Mapping[str, int]) -> RefusedValue:
    """Return one error for all attributes with refused values; it states neither the values nor their number.

    Parameters
    ----------
    domain : Domain
    worst : mapping of str to int
        Smallest code (OUTSIDE, UNPARSABLE or NULL) of each attribute.
    """
    if len(worst) == 1:
        [(name, code)] = worst.items()
        return _refused(domain[name], code)

    columns = ", ".join(f"{name!r} ({REASONS[code](domain[name])[0]})" for name, code in worst.items())
    policies = [word for code, word in POLICIES.items() if code in worst.values()]
    return RefusedValue("data columns", columns, "only values that the domain file permits",
                        f"set {' and '.join(policies)} of these attributes, or widen their domains "
                        "(`dpscale check domain FILE DATA` shows the values; its output is private)")  # fmt: skip


def judged(attribute: Attribute, column: pa.Array) -> Integers:
    """Return the cell of every row of a column; negative where a row has none.

    An attribute whose values are searched has no cells yet: 0 for a value that may be found, else negative.
    """
    if attribute.search is not None:
        return np.minimum(value_codes(attribute, column)[1], 0)

    column = _with_distinct_texts(attribute, column)
    if pa.types.is_dictionary(column.type):
        cells, rows = _entries(attribute, column)
        return cells[rows]
    return _cells(attribute, column)


def null_cell(attribute: Attribute) -> int:
    """Return the code of a null; negative if nulls are dropped or refused."""
    if attribute.null_code >= 0:
        return attribute.null_code
    return DROPPED if attribute.nulls == "drop" else NULL


def _outside_cell(attribute: Attribute) -> int:
    return {"category": attribute.outside_cell, "drop": DROPPED}.get(attribute.outside, OUTSIDE)


def _cells(attribute: Attribute, column: pa.Array) -> Integers:
    """Return cell numbers; negative where a row has none."""
    if attribute.of_texts:
        return _text_cells(attribute, column)

    parsed = _parsed(attribute, column)
    if parsed is None and all_null(column):
        parsed = numbers(pa.nulls(len(column)))
    if parsed is None:
        takes = "dates, times, or texts of them" if attribute.kind == "date" else "numbers"
        raise _wrong_type(attribute, column.type, takes)

    cells = parsed.map(partial(_cells_of, attribute))
    cells[parsed.foreign] = {"category": attribute.outside_cell, "drop": DROPPED}.get(attribute.foreign, UNPARSABLE)
    cells[parsed.missing] = null_cell(attribute)
    return cells


def all_null(column: pa.Array) -> bool:
    """Return whether a column has rows and no value, so that its type says nothing."""
    return len(column) > 0 and bool(column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False).all())


def _parsed(attribute: Attribute, column: pa.Array) -> Numbers | None:
    """Return the column as numbers or days; None if its type contains none."""
    if attribute.kind == "date":
        return days(column, attribute.zone, attribute.format)
    return numbers(_answers(column) if attribute.kind == "boolean" else column)


def _answers(column: pa.Array) -> pa.Array:
    """Return the column with texts for yes and no replaced by true and false."""
    if not is_text(column.type):
        return column
    words = pc.ascii_lower(pc.ascii_trim_whitespace(column.cast(pa.large_string())))
    for said, means in ((["yes", "y", "t"], "true"), (["no", "n", "f"], "false")):
        words = pc.if_else(pc.is_in(words, value_set=pa.array(said, pa.large_string())), means, words)
    return words


def _wrong_type(attribute: Attribute, kind: pa.DataType, takes: str) -> DataError:
    remedy = f"change the kind of {field_name(attribute)}, or convert the column"
    return DataError(f"data column {attribute.name!r}", f"type {kind}", takes, remedy)


def _cells_of(attribute: Attribute, values: NDArray[Any]) -> Integers:
    """Return the cells of numbers or days.

    Values between two edges of bins are in the cell of the lower edge; the last edge belongs to the last bin.
    """
    if attribute.values:
        return _number_category_cells(attribute, values)
    if attribute.kind == "bins":
        edges = np.asarray(attribute.edges)
        inside = (values >= edges[0]) & (values <= edges[-1])
        nearest = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, attribute.listed - 1)
        return _outside(attribute, nearest.astype(np.int64), inside)
    if isinstance(attribute, Number):
        return _steps(attribute, values)

    if attribute.kind == "date":
        values = numbered(attribute.by, values)
    return _integer_cells(attribute, values) if attribute.step == 1 else _rounded_cells(attribute, values)


def _integer_cells(attribute: Attribute, values: NDArray[Any]) -> Integers:
    """Return the cells of numbers for an attribute of steps 1; others follow its policy for outside values.

    A number with a fraction is outside the domain. It has the cell of its floor if outside values are clipped.
    """
    nearest = np.clip(values, attribute.low, attribute.high)
    if nearest.dtype.kind == "f":
        nearest = np.floor(nearest)
    return _outside(attribute, nearest.astype(np.int64) - attribute.low, nearest == values)


def _rounded_cells(attribute: Attribute, values: NDArray[Any]) -> Integers:
    """Return the nearest of low, low + step, … high; ties are rounded up."""
    exact = (np.asarray(values, np.float64) - attribute.low) / attribute.step
    steps = _rounded(exact, values, lambda value: (value - attribute.low) / attribute.step)
    nearest = np.clip(steps, 0, attribute.listed - 1)
    return _outside(attribute, nearest.astype(np.int64), nearest == steps)


def _rounded(steps: NDArray[Any], values: NDArray[Any], exact: Callable[[Fraction], Fraction]) -> NDArray[Any]:
    """Return steps rounded to integers, ties up.

    Where an inexact step is near a tie, `exact` computes it from the decimal number that the value states.

    `steps` are quotients of floats, so that a quotient within TIE of one half may be on the wrong side of it.
    """
    below = np.floor(steps)  # adding one half would round large numbers
    fraction = steps - below
    rounded = below + (fraction >= 0.5)
    near_ties = np.flatnonzero((np.abs(fraction - 0.5) < TIE) & (values != np.rint(values)))
    for place in near_ties.tolist():
        rounded[place] = math.floor(exact(Fraction(repr(float(values[place])))) + Fraction(1, 2))
    return rounded


def _steps(number: Number, values: NDArray[Any]) -> Integers:
    """Return the number of steps from the low end to each clipped value, rounded; ties are rounded up.

    `number.low` and `number.high` are the ends as numbers of steps of `number.unit`, and `number.ends` are the same
    ends in units of the column.
    """
    if number.unit == 1 and values.dtype.kind in "iu":
        inside = np.clip(values, number.low, number.high)
        return _outside(number, inside.astype(np.int64) - number.low, inside == values)

    low, high = number.ends
    clipped = np.clip(np.asarray(values, np.float64), low, high)
    per_unit, step = float(1 / number.unit), float(number.unit)
    steps = clipped * per_unit if per_unit >= 1 else clipped / step
    rounded = _rounded(steps, clipped, lambda value: value / number.unit)
    nearest = np.clip(rounded.astype(np.int64) - number.low, 0, number.steps)

    return _outside(number, nearest, clipped == values)


def _outside(attribute: Attribute, nearest: Integers, inside: NDArray[np.bool_]) -> Integers:
    if attribute.outside == "clip":
        return nearest
    return np.where(inside, nearest, _outside_cell(attribute))


def _number_category_cells(attribute: Attribute, values: NDArray[Any]) -> Integers:
    """Return the cells of numbers that are categories of the domain; 2 and 2.0 are one category.

    Other numbers have the cell, or the negative code, of values outside the domain.
    """
    # adding zero converts -0.0 to 0.0, which Arrow distinguishes
    listed = read_values(attribute)
    if values.dtype.kind == "i" and all(type(value) is int for value in listed):
        return _places(attribute, pa.array(values), pa.array(listed, pa.int64()))
    exact = np.array([value if float(value) == value else math.nan for value in listed], np.float64)
    return _places(attribute, pa.array(values + 0.0), pa.array(exact + 0.0))


def _text_cells(attribute: Attribute, column: pa.Array) -> Integers:
    """Return the cells of texts, whole or by their first letters, with the null cell for nulls.

    A text that is not listed has the cell of the value that is equal in Unicode's form NFC, such as a letter with an
    accent that a file system or program stores as two characters.
    """
    if attribute.level is not None:
        return _node_cells(attribute, attribute.level, column)

    if not is_text(column.type) and all_null(column):
        column = pa.nulls(len(column))
    if not (is_text(column.type) or pa.types.is_null(column.type)):
        raise _wrong_type(attribute, column.type, "texts, since the domain file lists texts")

    texts = column.cast(pa.large_string())
    values = read_values(attribute)
    cells = _listed_cells(attribute, texts, values)
    foreign = ~pc.string_is_ascii(texts).fill_null(True).to_numpy(zero_copy_only=False)
    unlisted = (cells == _outside_cell(attribute)) & foreign
    if unlisted.any():
        composed = [unicodedata.normalize("NFC", text) for text in values]
        cells[unlisted] = _listed_cells(attribute, column_values.composed(texts.filter(pa.array(unlisted))), composed)
    cells[texts.is_null().to_numpy(zero_copy_only=False)] = null_cell(attribute)

    return cells


def _listed_cells(attribute: Attribute, texts: pa.Array, values: Sequence[str]) -> Integers:
    """Return the cells of texts, of which an attribute of beginnings reads the first letters."""
    read = _beginnings(texts, attribute.length) if attribute.length else texts
    return _places(attribute, read, pa.array(values, pa.large_string()))


def _node_cells(attribute: Attribute, level: TreeLevel, column: pa.Array) -> Integers:
    """Return the cells of names of a public tree; an empty text is a null."""
    if not column_values.is_name(column.type) and all_null(column):
        column = pa.nulls(len(column), pa.large_string())
    if not column_values.is_name(column.type):
        raise _wrong_type(attribute, column.type, "texts or integers, the names of a hierarchy")

    texts = column.cast(pa.large_string())
    cells: Integers = column_values.node_cells(level, texts)
    cells[cells < 0] = _outside_cell(attribute)
    cells[pc.equal(texts.fill_null(""), "").to_numpy(zero_copy_only=False)] = null_cell(attribute)

    return cells


def _beginnings(texts: pa.Array, length: int) -> pa.Array:
    """Return the first `length` letters of each text; bytes that are not UTF-8 become replacement characters."""
    try:
        return pc.utf8_slice_codeunits(texts, 0, length)
    except pa.ArrowInvalid:
        values = texts.cast(pa.large_binary()).to_pylist()
        cut = [None if value is None else value.decode("utf-8", "replace")[:length] for value in values]
        return pa.array(cut, pa.large_string())


def read_values(attribute: Attribute) -> list[Any]:
    """Return the column values that have a cell, in the order of the cells."""
    return [value for group in attribute.groups for value in group] if attribute.groups else list(attribute.values)


def check_trimmed(attribute: Attribute, title: str) -> None:
    """Raise DataError if a listed value has blanks that are removed from the texts of a file format."""
    for value in read_values(attribute):
        # of a text that begins with the value, the end of the value is within the text
        if isinstance(value, str) and value != (value.lstrip() if attribute.length else value.strip()):
            raise DataError(f"attributes.{attribute.name}.values", f"{value!r}, whose blanks {title} files lose",
                            "values without surrounding blanks", "remove them, or use Parquet")  # fmt: skip


def _places(attribute: Attribute, column: pa.Array, values: pa.Array) -> Integers:
    """Return the cell of each value listed in the domain file."""
    places = np.array(pc.index_in(column, value_set=values).fill_null(-1), dtype=np.int64)
    cell = np.repeat(np.arange(attribute.listed), [len(group) for group in attribute.groups] or 1)
    return np.append(cell, _outside_cell(attribute))[places]
