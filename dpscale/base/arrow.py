"""Modules of Arrow that are imported at their first use, and access to Arrow texts.

Importing pyarrow takes a quarter of a second. Planning, `--help` and `import dpscale` do not need it, so modules that
read or write records import these names instead of pyarrow. Their attributes are those of the module of the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpscale.base.numerics import LazyModule, NDArray

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as pq
    import pyarrow.types as types

__all__ = ["arrow_csv", "buffers_of", "is_text", "pa", "pc", "pq", "types", "without_dictionaries"]


if not TYPE_CHECKING:
    pa, pc, pq = LazyModule("pyarrow"), LazyModule("pyarrow.compute"), LazyModule("pyarrow.parquet")
    arrow_csv, types = LazyModule("pyarrow.csv"), LazyModule("pyarrow.types")


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type contains texts."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


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
