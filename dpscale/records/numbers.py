"""Columns as numbers, row by row: the one place that says which number a value of any column type stands for.

Integers and floats are themselves; true and false are 1 and 0; NaN is a null. Texts are parsed one by one by a fixed
grammar (never by a type guessed from other rows): a decimal number, `inf`, `true` or `false` in any case, with blanks
around; a text that says there is nothing (empty, NA, NaN, null, none) is a null; any other text is *foreign*: a value
that no number is near to. Decimals are parsed as their texts are, because that rounds correctly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Flags

if TYPE_CHECKING:
    import pyarrow as pa

NUMBER = r"^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)$"
NOTHING = ("", "na", "n/a", "nan", "null", "none")
LARGEST = np.uint64(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Numbers:
    """Values as int64 or float64 (0 where there is none), and which rows are null or foreign to numbers."""

    values: NDArray[Any]
    missing: Flags
    foreign: Flags


def is_text(kind: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def bytes_of(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of large texts, and where each begins and the last ends."""
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return np.empty(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    return np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int64, len(texts) + 1, 8 * texts.offset)


def numbers(column: pa.Array) -> Numbers | None:
    """The column's numbers; None where its type holds none."""
    import pyarrow as pa
    import pyarrow.types as types

    kind = column.type
    if types.is_null(kind):
        return _without_foreign(np.zeros(len(column), dtype=np.int64), np.ones(len(column), dtype=bool))
    if is_text(kind) or types.is_decimal(kind):
        return _parsed(column.cast(pa.large_string()))
    if types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not (types.is_integer(kind) or types.is_floating(kind)):
        return None
    missing = _flags(column.is_null(nan_is_null=True))
    values = np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False))
    if values.dtype.kind == "f":
        return _without_foreign(np.where(missing, 0.0, values.astype(np.float64)), missing)
    if values.dtype == np.uint64:  # beyond int64 is beyond any domain
        values = np.minimum(values, LARGEST)
    return _without_foreign(values.astype(np.int64), missing)


def _without_foreign(values: NDArray[Any], missing: Flags) -> Numbers:
    return Numbers(values, missing, np.zeros(len(values), dtype=bool))


def _flags(column: pa.Array) -> Flags:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=bool)


def _parsed(texts: pa.Array) -> Numbers:
    import pyarrow as pa
    import pyarrow.compute as pc

    words = pc.ascii_lower(pc.ascii_trim_whitespace(texts))  # ASCII: bytes that are no UTF-8 are just foreign
    words = pc.if_else(pc.equal(words, "true"), "1", pc.if_else(pc.equal(words, "false"), "0", words))
    nothing = pc.is_in(words, value_set=pa.array([*NOTHING, None], pa.large_string()))
    number = pc.match_substring_regex(words, NUMBER).fill_null(False)
    values = pc.if_else(number, words, "0").cast(pa.float64())
    return Numbers(values.to_numpy(zero_copy_only=False), _flags(nothing), ~(_flags(number) | _flags(nothing)))
