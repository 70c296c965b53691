"""Compiled loops that add a row's word or parts to the counter of its cell, for several sets (`counting.sums`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpscale.base.compilation import njit
from dpscale.base.numerics import Integers, NDArray, Words
from dpscale.counting.kernels import SLICE, Array, last_codes, prefix_codes


@njit(cache=True, nogil=True)
def add_words(
    codes: NDArray[np.unsignedinteger[Any]],
    words: Words,
    columns: Integers,
    sizes: NDArray[Any],
    starts: Integers,
    shared: Integers,
    offsets: Integers,
    counters: Words,
    levels: NDArray[Any],
) -> None:
    """Add the word of each row to the counters of several sets; the other parameters are those of `count_codes`.

    Parameters
    ----------
    words : ndarray of uint64, shape (rows,)
    """
    rows = codes.shape[1]
    last = np.empty(SLICE, dtype=levels.dtype)
    for s in range(len(starts) - 1):
        first, end = starts[s], starts[s + 1]
        prefix_codes(codes, columns, sizes, first, first + shared[s], end - 1, levels)
        mine = counters[offsets[s] :]
        for begin in range(0, rows, SLICE):
            length = last_codes(codes, columns, sizes, first, end, begin, levels, last)
            for r in range(length):
                mine[last[r]] += words[begin + r]


@njit(cache=True, nogil=True)
def _add_two(codes: Array, parts: Integers, counters: Integers) -> None:
    for r in range(len(parts)):
        at = 2 * np.int64(codes[r])
        counters[at] += parts[r, 0]
        counters[at + 1] += parts[r, 1]


@njit(cache=True, nogil=True)
def _add_several(codes: Array, parts: Integers, counters: Integers) -> None:
    size = parts.shape[1]
    for r in range(len(parts)):
        at = size * np.int64(codes[r])
        for k in range(size):
            counters[at + k] += parts[r, k]


@njit(cache=True, nogil=True)
def add_parts(
    codes: NDArray[np.unsignedinteger[Any]],
    parts: Integers,
    columns: Integers,
    sizes: NDArray[Any],
    starts: Integers,
    shared: Integers,
    offsets: Integers,
    counters: Integers,
    levels: NDArray[Any],
) -> None:
    """Add the parts of rows to the counters of several sets; the other parameters are those of `count_codes`.

    Parameters
    ----------
    parts : ndarray of int64, shape (rows, cells)
        Addends of each row to the counters of its cell.
    """
    rows = codes.shape[1]
    for s in range(len(starts) - 1):
        first, end = starts[s], starts[s + 1]
        prefix_codes(codes, columns, sizes, first, first + shared[s], end, levels)
        last, mine = levels[end - first - 1, :rows], counters[offsets[s] :]
        if parts.shape[1] == 2:
            _add_two(last, parts, mine)
        else:
            _add_several(last, parts, mine)
