"""Cells of values that name a node of a public tree, from a hash table of the leaves.

Arrow would make a table of a million leaves for every batch. This one is made once for each tree and process. The
module is separate so that Numba is loaded where a tree is used.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dpscale.base.arrow import buffers_of, is_text, pa, pc
from dpscale.base.compilation import njit
from dpscale.base.numerics import Integers, Integers32, NDArray
from dpscale.domain.tree import SEPARATOR, LevelTree, TreeLevel

Bytes = NDArray[np.uint8]
OFFSET, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
LEAST, LOAD = 16, 2  # entries of a table, and entries for each leaf

_tables: WeakKeyDictionary[LevelTree, Integers32] = WeakKeyDictionary()


def node_cells(level: TreeLevel, texts: Any) -> Integers:
    """Return the cell of the node at a level for each text; −1 where it states no leaf.

    Parameters
    ----------
    level : TreeLevel
    texts : pyarrow.Array
        Of type large_string, as `path_texts` returns it if records state paths; nulls have no node.
    """
    texts = texts.dictionary_encode()
    values = buffers_of(texts.dictionary)
    leaves = np.full(len(texts.dictionary) + 1, -1, np.int64)
    _find(*buffers_of(level.tree.keys), _table_of(level.tree), *values, leaves)
    starts = level.tree.starts[level.level]
    cells = leaves if level.is_leaf else np.searchsorted(starts, leaves, side="right") - 1
    return np.asarray(cells[texts.indices.fill_null(len(leaves) - 1).to_numpy(zero_copy_only=False)])


def _table_of(tree: LevelTree) -> Integers32:
    """Return the hash table of a tree: leaves by the hash of their keys, −1 for a free entry."""
    if tree not in _tables:
        table = np.full(max(LEAST, 1 << (LOAD * len(tree.keys) - 1).bit_length()), -1, np.int32)
        _fill(*buffers_of(tree.keys), table)
        _tables[tree] = table
    return _tables[tree]


def is_name(kind: pa.DataType) -> bool:
    """Return whether values of a type can be names: texts, integers or nulls."""
    return bool(is_text(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind))


def path_texts(columns: list[Any]) -> Any:
    """Return the joined texts of the columns of a path, the leaf last; null where all of them are missing.

    Parameters
    ----------
    columns : list of pyarrow.Array
        Texts or integers, which may be dictionary-encoded.
    """
    decoded = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column for column in columns
    ]
    parts = [one.cast(pa.large_string()).fill_null("") for one in decoded]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(SEPARATOR, pa.large_string()))
    empty = pc.equal(joined, SEPARATOR * (len(parts) - 1))
    return pc.if_else(empty, pa.scalar(None, pa.large_string()), joined)


@njit(cache=True, nogil=True)
def _hash(data: Bytes, start: int, end: int) -> Any:
    """Return a hash of some bytes whose low bits depend on all of them."""
    found = OFFSET
    for at in range(start, end):
        found = (found ^ np.uint64(data[at])) * PRIME
    return found ^ (found >> np.uint64(32))


@njit(cache=True, nogil=True)
def _fill(keys: Bytes, ends: Integers, table: Integers32) -> None:
    """Enter the place of each key in the first free entry from that of its hash."""
    mask = np.uint64(len(table) - 1)
    for key in range(len(ends) - 1):
        entry = _hash(keys, ends[key], ends[key + 1]) & mask
        while table[entry] >= 0:
            entry = (entry + np.uint64(1)) & mask
        table[entry] = key


@njit(cache=True, nogil=True)
def _find(keys: Bytes, key_ends: Integers, table: Integers32, data: Bytes, ends: Integers, places: Integers) -> None:
    """Set the place of each text among the keys; it stays as it is if the text is none of them."""
    mask = np.uint64(len(table) - 1)
    for text in range(len(ends) - 1):
        start, length = ends[text], ends[text + 1] - ends[text]
        entry = _hash(data, start, start + length) & mask
        while table[entry] >= 0:
            key = key_ends[table[entry]]
            same = key_ends[table[entry] + 1] - key == length
            at = 0
            while same and at < length:
                same = keys[key + at] == data[start + at]
                at += 1

            if same:
                places[text] = table[entry]
                break
            entry = (entry + np.uint64(1)) & mask
