"""Compiled counting loops: joint codes of attribute sets with one increment per row, and sums over a joint's axes.

Sets are sorted so that neighbours share a prefix, whose codes are computed once. Prefix codes are stored for a whole
block (L2 cache); the last attribute is added for a slice of it (L1 cache) immediately before the increments. A block is
long, so that the counters of a set, once cached, are used often. Wide counters are replaced by narrow ones that fit in
the L2 cache. Counters with few cells have four copies, because consecutive increments of one counter would stall.

Sums of numbers have loops that add the word or the parts of a row to the counter of its cell (`counting.count`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from dpscale.base.compilation import njit
from dpscale.base.numerics import Integers, NDArray, Words

SLICE = 4096  # rows whose codes are in the cache at once
COPIES = 4  # counters of a cell for consecutive rows, so that equal codes do not wait for each other
FEW = 1024  # most cells with copies
STAND_IN = 1 << 16  # most cells that are counted in 32 bits first, because narrow counters stay in the cache

Array = NDArray[Any]


@njit(cache=True, nogil=True)
def _extend(codes: Array, before: Array, column: int, size: int, out: Array, rows: int) -> None:
    """Compute out = before × size + column, in the width of `out`."""
    for r in range(rows):
        out[r] = before[r] * size + codes[column, r]


@njit(cache=True, nogil=True)
def prefix_codes(
    codes: Array, columns: Integers, sizes: Array, first: int, begin: int, end: int, levels: Array
) -> None:
    """Fill levels[k − first] with the codes of the attributes first … k of a set, for k = begin … end − 1.

    The code of a cell in the first attributes is extended by one more: code · size + value. Row k of `levels` belongs
    to the set's attribute `first + k`.
    """
    rows = codes.shape[1]
    for k in range(begin, end):
        if k == first:
            for r in range(rows):
                levels[0, r] = codes[columns[k], r]
        else:
            _extend(codes, levels[k - first - 1], columns[k], sizes[k], levels[k - first], rows)


@njit(cache=True, nogil=True)
def last_codes(
    codes: Array, columns: Integers, sizes: Array, first: int, end: int, begin: int, levels: Array, out: Array
) -> int:
    """Write the codes of a set for a slice of rows from `begin` on, from those of its prefix; return their number.

    `levels` is that of `prefix_codes`; the set has the attributes `first` to `end - 1`.
    """
    length = min(SLICE, codes.shape[1] - begin)
    part = codes[:, begin : begin + length]
    if end - first == 1:
        for r in range(length):
            out[r] = part[columns[first], r]
    else:
        before = levels[end - first - 2, begin : begin + length]
        _extend(part, before, columns[end - 1], sizes[end - 1], out, length)
    return length


@njit(cache=True, nogil=True)
def _increment(codes: Array, rows: int, counters: Array) -> None:
    for r in range(rows):
        counters[codes[r]] += 1


@njit(cache=True, nogil=True)
def _increment_copies(codes: Array, rows: int, cells: int, copies: Array) -> None:
    """Count codes into several copies of the counters in turn, so that equal codes in a row do not wait for each other.

    `copies` has `cells` counters for each copy, which are added up later.
    """
    in_copies = rows - rows % COPIES
    for r in range(0, in_copies, COPIES):
        copies[codes[r]] += 1
        copies[cells + codes[r + 1]] += 1
        copies[2 * cells + codes[r + 2]] += 1
        copies[3 * cells + codes[r + 3]] += 1

    for r in range(in_copies, rows):
        copies[codes[r]] += 1


@njit(cache=True, nogil=True)
def count_codes(
    codes: NDArray[np.unsignedinteger[Any]],
    columns: Integers,
    sizes: NDArray[Any],
    starts: Integers,
    shared: Integers,
    offsets: Integers,
    cell_counts: Integers,
    counters: NDArray[Any],
    levels: NDArray[Any],
) -> None:
    """Add rows to the counters of several sets.

    Sets of few cells are counted in several copies, and other small sets in narrow counters; both are added to the
    counters after the last row.

    Parameters
    ----------
    codes : ndarray of unsigned integers, shape (attributes, rows)
        At most a block of rows.
    columns, sizes, starts : ndarray of int64
        Set s has the attributes columns[starts[s]:starts[s+1]] of these sizes.
    shared : ndarray of int64
        Number of leading attributes that set s shares with the previous set.
    offsets, cell_counts : ndarray of int64
        Set s has cell_counts[s] counters from offsets[s] on.
    counters : ndarray
    levels : ndarray, shape (depth, block)
        Work space for the prefix codes.
    """
    rows = codes.shape[1]
    last = np.empty(SLICE, dtype=levels.dtype)
    narrow = np.empty(STAND_IN, dtype=np.uint32)
    for s in range(len(starts) - 1):
        first, end, cells = starts[s], starts[s + 1], cell_counts[s]
        prefix_codes(codes, columns, sizes, first, first + shared[s], end - 1, levels)
        mine = counters[offsets[s] : offsets[s] + cells]
        # few cells: consecutive equal codes would wait for each other in one counter
        copies = COPIES if cells <= FEW else 0
        # 32-bit counters that fit the cache are summed at the end
        if not copies and counters.itemsize > 4 and cells <= min(STAND_IN, rows // 2):
            copies = 1

        narrow[: copies * cells] = 0
        for begin in range(0, rows, SLICE):
            length = last_codes(codes, columns, sizes, first, end, begin, levels, last)
            if copies == COPIES:
                _increment_copies(last, length, cells, narrow)
            elif copies:
                _increment(last, length, narrow)
            else:
                _increment(last, length, mine)

        for c in range(copies):
            for i in range(cells):
                mine[i] += narrow[c * cells + i]


@njit(cache=True, nogil=True)
def fold(
    counters: NDArray[Any], offsets: Integers, cells: Integers, sizes: Integers, starts: Integers,
    owners: Integers, strides: Integers, stride_starts: Integers, places: Integers, flat: Integers,
) -> None:  # fmt: skip
    """Add the sum of each set's joint over the axes that the set lacks to `flat`, from places[s] on.

    Set s is a part of the joint owners[s] = j. Joint j has sizes[starts[j]:starts[j+1]] and its cells in `counters`
    from offsets[j] on; strides[stride_starts[s]:] are the set's strides for the joint's axes, 0 for those summed over.

    Cells of a joint are visited in order, as an odometer with the digits `digits`; `to` is the place in `flat` of the
    sum to which the cell belongs.
    """
    for s in range(len(owners)):
        j = owners[s]
        width = starts[j + 1] - starts[j]
        size = sizes[starts[j] : starts[j + 1]]
        stride = strides[stride_starts[s] : stride_starts[s] + width]
        digits = np.zeros(width, dtype=np.int64)
        inner, step, to = size[-1], stride[-1], places[s]

        # the last axis in an inner loop: summed to one place, or spread with its stride
        for cell in range(offsets[j], offsets[j] + cells[j], inner):
            if step == 0:
                total = np.int64(0)
                for i in range(inner):
                    total += np.int64(counters[cell + i])
                flat[to] += total
            else:
                for i in range(inner):
                    flat[to + i * step] += np.int64(counters[cell + i])

            # next combination of the other axes; a digit that ends returns to 0 and carries
            axis = width - 2
            while axis >= 0:
                digits[axis] += 1
                to += stride[axis]
                if digits[axis] < size[axis]:
                    break
                to -= size[axis] * stride[axis]
                digits[axis] = 0
                axis -= 1


WORDS = 256  # words of a bit plane that are processed at a time, 64 rows each
ONES = np.uint64(0x0101010101010101)  # lowest bit of each byte
# factor that collects the lowest bits of eight bytes in the highest byte of the product
GATHER = np.uint64(0x0102040810204080)


@intrinsic
def popcount(typing: Any, word: Any) -> Any:
    """Return the number of ones of a word, with LLVM's intrinsic, which is vectorised."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


ones: Any = popcount


@njit(cache=True, nogil=True)
def _slices(eights: Words, first: int, words: int, bits: int, slices: Words) -> None:
    """Extract bit b of each row's code, 64 rows per word, from eight codes at a time.

    `eights` are words with eight codes of 8 bits, from position `first`; `words` is the number of words per bit and
    `bits` the number of bits. The result is slices[bit, word].
    """
    for b in range(bits):
        shift = np.uint64(b)
        for w in range(words):
            word = np.uint64(0)
            for k in range(8):
                eight = (eights[first + 8 * w + k] >> shift) & ONES
                # the product collects the lowest bits of eight bytes in its highest byte
                word |= ((eight * GATHER) >> np.uint64(56)) << np.uint64(8 * k)
            slices[b, w] = word


@njit(cache=True, nogil=True)
def fill_planes(eights: Words, first: int, words: int, sizes: Integers, starts: Integers, planes: Words) -> None:
    """Set planes[starts[x] + v - 1] to the rows that have value v of attribute x, for v > 0.

    `eights` has shape (attributes, words) with eight one-byte codes per word; `first` is the first word used.

    A plane is the AND over the bits of a value of the slice of this bit, inverted if the bit is 0.

    x is an attribute, b a bit of its codes and w a word of 64 rows.
    """
    slices = np.empty((8, words), dtype=np.uint64)
    for x in range(len(sizes)):
        bits = 0
        # bits of the largest code
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
    """Return the number of rows whose bits are 1 in both of two bit planes."""
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

    A reduced marginal lacks the first value of every attribute, whose counts follow by subtraction: an attribute of
    size s has s − 1 planes of bits, one bit per row. Nodes are attribute sets as a tree in depth-first order: node n
    adds the attribute node_axis[n] to the set of its parent, the last node of depth node_depth[n] − 1. Inner nodes
    store their planes for their children.

    The planes of a node are those of its parent combined by AND with each value of its attribute; `counts` has the ones
    of each plane. `held` has the planes of the nodes on the path, by depth, and `widths` their numbers. `eights` are
    the one-byte codes of the rows (`fill_planes`), and node n's counts begin at node_offsets[n].
    """
    planes = np.empty((starts[-1], WORDS), dtype=np.uint64)
    deepest = np.max(node_depth) + 1
    held = np.empty((deepest, most_inner, WORDS), dtype=np.uint64)
    widths = np.ones(deepest + 1, dtype=np.int64)
    total = eights.shape[1] // 8

    # rows in blocks of WORDS words, so that planes stay in the cache
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
                        for w in range(words):
                            held[0, q, w] = plane[w]
            else:
                # p is a cell of the parent, q a value of the attribute x, w a word
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
    """Add each set's complete marginal to `flat` from offsets[s] on.

    A cell with a digit 0 first receives the marginal without that axis; the other values are then subtracted from it.
    set_nodes[node_starts[s] + mask] is the node of the axes in `mask`, bit i for axis i; mask 0 is the number of rows.

    Reduced counts exist for cells without a digit 0 only: `counts[node_offsets[n]:]` has those of node n. Rows with
    other values are the rest of the marginal without the axis.

    `stride` is the distance of neighbouring values of an axis in the marginal; axes are completed from the last one on.
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
    """Return the count of a cell of a set from counts without the first cell of each axis.

    The axes on which the cell is not the first are a subset, whose counts start at its node's offset.
    """
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
    """Subtract from cell 0 of an axis the counts of its other cells, in place; the axis has `size` cells at `stride`.

    Before, cell 0 has the count over all cells of the axis, because only the other cells have bit planes.
    """
    for block in range(0, len(marginal), stride * size):
        for value in range(1, size):
            for i in range(block, block + stride):
                marginal[i] -= marginal[i + value * stride]


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
    """Add the word of each row to the counters of its cells in several sets; other parameters as in `count_codes`.

    A word stands for the row's number in place of 1, so a counter has the sum of the numbers in its cell.

    Parameters
    ----------
    words : ndarray of uint64, shape (rows,)
    """
    rows = codes.shape[1]
    last = np.empty(SLICE, dtype=levels.dtype)
    for s in range(len(starts) - 1):
        first, end = starts[s], starts[s + 1]
        # codes of all attributes but the last, of which the first `shared` are those of the set before
        prefix_codes(codes, columns, sizes, first, first + shared[s], end - 1, levels)
        mine = counters[offsets[s] :]
        for begin in range(0, rows, SLICE):
            length = last_codes(codes, columns, sizes, first, end, begin, levels, last)
            for r in range(length):
                mine[last[r]] += words[begin + r]


@njit(cache=True, nogil=True)
def _add_two(codes: Array, parts: Integers, counters: Integers) -> None:
    """Add the two parts of each row to the two counters of its cell, without a loop over parts."""
    for r in range(len(parts)):
        at = 2 * np.int64(codes[r])
        counters[at] += parts[r, 0]
        counters[at + 1] += parts[r, 1]


@njit(cache=True, nogil=True)
def _add_several(codes: Array, parts: Integers, counters: Integers) -> None:
    """Add the parts of each row, shape (rows, size), to the `size` counters of its cell."""
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

    Two parts per row, those of a number without squares and nulls, have a loop of their own.

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
