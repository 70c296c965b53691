"""Counting by bit planes: a bit a row for each value of an attribute, and a word holds 64 rows.

A cell of a marginal is the number of ones in the AND of its values' planes. Only cells without a value 0 are counted
(of a binary triple: one in eight); the rest are differences from the marginals of fewer attributes, found at the end.
Padded rows have the code 0 everywhere and so are in no plane.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dpscale.base.arrays import Integers, Words
from dpscale.base.jit import njit

WORDS = 256
ONES = np.uint64(0x0101010101010101)
GATHER = np.uint64(0x0102040810204080)


@intrinsic
def popcount(typing: Any, word: Any) -> Any:
    """The number of ones of a word: LLVM's own, which it turns into vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


ones: Any = popcount


@njit(cache=True, nogil=True)
def _slices(eights: Words, first: int, words: int, bits: int, slices: Words) -> None:
    """Bit b of each row's code, 64 rows to a word: eight codes are taken at once."""
    for b in range(bits):
        shift = np.uint64(b)
        for w in range(words):
            word = np.uint64(0)
            for k in range(8):
                eight = (eights[first + 8 * w + k] >> shift) & ONES
                word |= ((eight * GATHER) >> np.uint64(56)) << np.uint64(8 * k)
            slices[b, w] = word


@njit(cache=True, nogil=True)
def fill_planes(eights: Words, first: int, words: int, sizes: Integers, starts: Integers, planes: Words) -> None:
    """planes[starts[x] + v - 1]: which rows have value v of attribute x, for v > 0.

    `eights`: attributes × words of eight codes of a byte each, `first` the first of them.
    """
    slices = np.empty((8, words), dtype=np.uint64)
    for x in range(len(sizes)):
        bits = 0
        while (1 << bits) < sizes[x]:
            bits += 1
        _slices(eights[x], first, words, bits, slices)
        for value in range(1, sizes[x]):
            plane = planes[starts[x] + value - 1]
            for b in range(bits):
                flip = np.uint64(0) if (value >> b) & 1 else ~np.uint64(0)
                for w in range(words):
                    plane[w] = slices[b, w] ^ flip if b == 0 else plane[w] & (slices[b, w] ^ flip)


@njit(cache=True, nogil=True)
def _ones(left: Words, right: Words, words: int) -> np.int64:
    total = np.uint64(0)
    for w in range(words):
        total += ones(left[w] & right[w])
    return np.int64(total)


@njit(cache=True, nogil=True)
def count_planes(
    eights: Words,
    sizes: Integers,
    starts: Integers,
    node_axis: Integers,
    node_depth: Integers,
    node_inner: NDArray[np.bool_],
    node_offsets: Integers,
    most_inner: int,
    counts: Integers,
) -> None:
    """Add the rows' reduced marginals of every node to `counts`.

    Nodes are attribute sets as a tree in depth-first order: node n adds the attribute node_axis[n] to the set of its
    parent, the last node of depth node_depth[n] − 1. Inner nodes keep their planes for their children.
    """
    planes = np.empty((starts[-1], WORDS), dtype=np.uint64)
    deepest = np.max(node_depth) + 1
    held = np.empty((deepest, most_inner, WORDS), dtype=np.uint64)
    widths = np.ones(deepest + 1, dtype=np.int64)
    total = eights.shape[1] // 8
    for first in range(0, total, WORDS):
        words = min(WORDS, total - first)
        fill_planes(eights, 8 * first, words, sizes, starts, planes)
        for n in range(len(node_axis)):
            x, depth = node_axis[n], node_depth[n]
            values = sizes[x] - 1
            at = node_offsets[n]
            if depth == 0:
                for q in range(values):
                    plane = planes[starts[x] + q]
                    counts[at + q] += _ones(plane, plane, words)
                    if node_inner[n]:
                        held[0, q, :words] = plane[:words]
            else:
                for p in range(widths[depth - 1]):
                    above = held[depth - 1, p]
                    for q in range(values):
                        plane = planes[starts[x] + q]
                        counts[at + p * values + q] += _ones(above, plane, words)
                        if node_inner[n]:
                            kept = held[depth, p * values + q]
                            for w in range(words):
                                kept[w] = above[w] & plane[w]
            widths[depth] = values * (widths[depth - 1] if depth else 1)


@njit(cache=True, nogil=True)
def assemble(
    rows: int,
    counts: Integers,
    node_offsets: Integers,
    sizes: Integers,
    set_starts: Integers,
    set_axes: Integers,
    set_nodes: Integers,
    node_starts: Integers,
    offsets: Integers,
    flat: Integers,
) -> None:
    """Add each set's whole marginal to `flat` from offsets[s] on.

    Where a digit of a cell is 0, the marginal without that axis stands first; then the other values are taken off it.
    set_nodes[node_starts[s] + mask]: the node of the axes in `mask`, bit i for axis i; mask 0 is the number of rows.
    """
    for s in range(len(offsets)):
        axes = set_axes[set_starts[s] : set_starts[s + 1]]
        cells = 1
        for x in axes:
            cells *= sizes[x]
        marginal = np.empty(cells, dtype=np.int64)
        for cell in range(cells):
            marginal[cell] = _reduced_count(cell, axes, sizes, rows, counts, node_offsets, set_nodes[node_starts[s] :])
        stride = 1
        for i in range(len(axes) - 1, -1, -1):
            _take_off(marginal, stride, sizes[axes[i]])
            stride *= sizes[axes[i]]
        for cell in range(cells):
            flat[offsets[s] + cell] += marginal[cell]


@njit(cache=True, nogil=True)
def _reduced_count(
    cell: int, axes: Integers, sizes: Integers, rows: int, counts: Integers, node_offsets: Integers, nodes: Integers
) -> int:
    mask, place, stride = 0, 0, 1
    for i in range(len(axes) - 1, -1, -1):
        size = sizes[axes[i]]
        digit = cell % size
        cell //= size
        if digit:
            mask |= 1 << i
            place += (digit - 1) * stride
            stride *= size - 1
    return rows if mask == 0 else counts[node_offsets[nodes[mask]] + place]


@njit(cache=True, nogil=True)
def _take_off(marginal: Integers, stride: int, size: int) -> None:
    for block in range(0, len(marginal), stride * size):
        for value in range(1, size):
            for i in range(block, block + stride):
                marginal[i] -= marginal[i + value * stride]
