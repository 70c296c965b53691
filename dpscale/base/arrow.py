"""Modules of Arrow that are imported at their first use, and access to Arrow texts.

Importing pyarrow takes a quarter of a second. Planning, `--help` and `import dpscale` do not need it, so modules that
read or write records import these names instead of pyarrow. Their attributes are those of the module of the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.numerics import LazyModule, NDArray

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as pq
    import pyarrow.types as types

__all__ = ["arrow_csv", "as_text", "buffers_of", "is_bytes", "is_text", "pa", "pc", "pq", "text_kind", "types",
           "without_dictionaries"]  # fmt: skip


if not TYPE_CHECKING:
    pa, pc, pq = LazyModule("pyarrow"), LazyModule("pyarrow.compute"), LazyModule("pyarrow.parquet")
    arrow_csv, types = LazyModule("pyarrow.csv"), LazyModule("pyarrow.types")


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type contains texts."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a type contains bytes of any length."""
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def as_text(column: Any) -> Any:
    """Return bytes as texts, which need not be valid UTF-8; any other column as it is.

    Some programs store texts without saying that they are texts.
    """
    kind = getattr(column, "type", None)
    if kind is None:  # cells that are decoded already
        return column
    if text_kind(kind) == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([as_text(chunk) for chunk in column.chunks], text_kind(kind))
    if types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(column.indices, as_text(column.dictionary))
    return column.view(text_kind(kind))  # a view does not require valid UTF-8


def text_kind(kind: pa.DataType) -> pa.DataType:
    """Return the type of texts in which bytes are read; any other type as it is."""
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, text_kind(kind.value_type)) if is_bytes(kind.value_type) else kind
    if types.is_binary(kind):
        return pa.string()
    return pa.large_string() if types.is_large_binary(kind) else kind


def buffers_of(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes and the offsets of texts without copying them.

    Parameters
    ----------
    texts : pyarrow.Array
        Of type large_string.

    Returns
    -------
    bytes : ndarray of uint8
    offsets : ndarray of int64, shape (len(texts) + 1,)
    """
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return np.empty(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    return np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int64, len(texts) + 1, 8 * texts.offset)


def without_dictionaries(table: pa.Table) -> pa.Table:
    """Return a table with texts instead of dictionary-encoded texts.

    Other columns are unchanged, and so are the names and the order of columns.
    """
    fields = [pa.field(one.name, pa.string()) if pa.types.is_dictionary(one.type) else one for one in table.schema]
    return table.cast(pa.schema(fields))
