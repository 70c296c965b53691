"""Cells of values that name a node of a public tree: binary search among the sorted texts of the tree.

A hash table of a million leaves would be made again for every batch. The texts of a tree are sorted once, and only the
distinct values of a batch are searched. This module is separate so that Numba is loaded where a tree is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpscale.base.arrow import buffers_of, is_text, pa, pc
from dpscale.base.numerics import Integers, NDArray, njit
from dpscale.domain.tree import SEPARATOR, TreeLevel

Bytes = NDArray[np.uint8]


def node_cells(level: TreeLevel, texts: Any) -> Integers:
    """Return the cell of the node at a level for each text; −1 where it states no leaf.

    Parameters
    ----------
    level : TreeLevel
    texts : pyarrow.Array
        Of type large_string, as `path_texts` returns it if records state paths; nulls have no node.
    """
    keys, leaves = level.tree.keys
    texts = texts.dictionary_encode()
    data, offsets = buffers_of(texts.dictionary)
    places = np.empty(len(offsets), np.int64)
    places[-1] = -1
    _find(*buffers_of(keys), data, offsets, places)
    cells = np.searchsorted(level.tree.starts[level.level], leaves[places], side="right") - 1
    found = np.where(places < 0, -1, cells)
    return np.asarray(found[texts.indices.fill_null(len(offsets) - 1).to_numpy(zero_copy_only=False)])


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
    decoded = [one.cast(one.type.value_type) if pa.types.is_dictionary(one.type) else one for one in columns]
    parts = [one.cast(pa.large_string()).fill_null("") for one in decoded]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(SEPARATOR, pa.large_string()))
    empty = pc.equal(joined, SEPARATOR * (len(parts) - 1))
    return pc.if_else(empty, pa.scalar(None, pa.large_string()), joined)


@njit(cache=True, nogil=True)
def _find(keys: Bytes, key_ends: Integers, data: Bytes, ends: Integers, places: Integers) -> None:
    """Set the place of each text among the sorted keys; −1 where it is not one of them."""
    for text in range(len(ends) - 1):
        low, high, length = 0, len(key_ends) - 1, ends[text + 1] - ends[text]
        while low < high:  # the first key that is not below the text
            middle = (low + high) // 2
            own = key_ends[middle + 1] - key_ends[middle]
            at = 0
            while at < min(own, length) and keys[key_ends[middle] + at] == data[ends[text] + at]:
                at += 1
            tied = at == min(own, length)
            below = own < length if tied else keys[key_ends[middle] + at] < data[ends[text] + at]
            if below:
                low = middle + 1
            else:
                high = middle
        same = low < len(key_ends) - 1 and key_ends[low + 1] - key_ends[low] == length
        if same:
            for at in range(length):
                same = same and keys[key_ends[low] + at] == data[ends[text] + at]
        places[text] = low if same else -1
