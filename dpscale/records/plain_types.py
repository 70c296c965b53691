"""Columns in the few types that attributes, ids and filters know: numbers, texts, dates and times.

Other types that state the same values are converted where a column is read: bytes without the mark UTF-8 are texts, as
are JSON documents, and a UUID is its usual text, so that it equals a UUID that another file stores as a text. Texts in
views become plain texts. Other types are left as they are, and refused where they are used.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any

import numpy as np

from dpscale.base.arrow import pa, types
from dpscale.base.numerics import NDArray

UUID = "arrow.uuid"
WIDTH = 16  # bytes of a UUID
DASHES = (4, 6, 8, 10)  # bytes before which the text of a UUID has a dash


@cache
def plain_kind(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column of this type is read."""
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, plain_kind(kind.value_type))
    if isinstance(kind, pa.BaseExtensionType):
        is_uuid = kind.extension_name == UUID and kind.storage_type == pa.binary(WIDTH)
        return pa.large_string() if is_uuid else plain_kind(kind.storage_type)
    if types.is_binary(kind) or types.is_fixed_size_binary(kind) or types.is_string_view(kind):
        return pa.string()
    return pa.large_string() if types.is_large_binary(kind) or types.is_binary_view(kind) else kind


def plain(column: Any) -> Any:
    """Return a column in its plain type; cells that are decoded already are returned as they are."""
    if isinstance(column, np.ndarray) or plain_kind(column.type) == column.type:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([plain(chunk) for chunk in column.chunks], plain_kind(column.type))
    if types.is_dictionary(column.type):
        return pa.DictionaryArray.from_arrays(column.indices, plain(column.dictionary))
    if isinstance(column.type, pa.BaseExtensionType):
        is_uuid = plain_kind(column.type) == pa.large_string() and column.type.extension_name == UUID
        return _uuid_texts(column.storage) if is_uuid else plain(column.storage)

    if types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    if types.is_string_view(column.type):
        return column.cast(pa.string())

    if types.is_binary_view(column.type):
        column = column.cast(pa.large_binary())
    return column.view(plain_kind(column.type))  # a view does not require valid UTF-8


def _uuid_texts(column: pa.Array) -> pa.Array:
    """Return UUIDs as texts of 36 letters."""
    stored = np.frombuffer(b"".join(value or bytes(WIDTH) for value in column.to_pylist()), np.uint8)
    octets: NDArray[np.uint8] = stored.reshape(-1, WIDTH)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    letters = np.stack([digits[octets >> 4], digits[octets & 15]], axis=2).reshape(len(octets), -1)
    texts = np.insert(letters, [2 * place for place in DASHES], ord("-"), axis=1)
    whole = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(texts.shape[1]), len(texts), [None, pa.py_buffer(np.ascontiguousarray(texts).tobytes())]
    )
    found = whole.cast(pa.large_binary()).view(pa.large_string())

    return pa.compute.if_else(column.is_valid(), found, None) if column.null_count else found


def repeated(value: str | None, rows: int) -> pa.Array:
    """Return a column that has one value in every row."""
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array([value], pa.string()))


def same_value(value: Any, text: str | None) -> bool:
    """Return whether a value of a column is the one that a folder's name states."""
    if value is None or text is None:
        return value is None and text is None
    if isinstance(value, bool):
        return text.lower() == str(value).lower()

    if isinstance(value, int | float | Decimal):
        try:
            return Decimal(text) == Decimal(str(value))
        except InvalidOperation:
            return False

    if isinstance(value, datetime):
        midnight = value.time() == datetime.min.time()
        return text in {str(value), value.isoformat()} or (midnight and text == value.date().isoformat())
    return text == (value.isoformat() if isinstance(value, date) else str(value))
