"""The compiled loops of privacy units: hashes of rows, rows dealt to buckets, and rows beyond a unit's bound.

Apart from the rest so that numba is loaded where units are, and not by the import.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]
START, FACTOR, SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(29)
ODD, HALF = np.uint64(0xD6E8FEB86659FD93), np.uint64(32)


@njit(cache=True, nogil=True)
def mixed(codes: NDArray[Any]) -> Words:
    """A 64 bit mix of each row's codes, (attributes, rows); four rows at a time, for speed."""
    columns, rows = codes.shape
    out, in_fours = np.empty(rows, np.uint64), rows - rows % 4
    for row in range(0, in_fours, 4):
        a, b, c, d = START, START, START, START
        for column in range(columns):
            a = (a ^ np.uint64(codes[column, row])) * FACTOR
            b = (b ^ np.uint64(codes[column, row + 1])) * FACTOR
            c = (c ^ np.uint64(codes[column, row + 2])) * FACTOR
            d = (d ^ np.uint64(codes[column, row + 3])) * FACTOR
            a, b, c, d = a ^ (a >> SHIFT), b ^ (b >> SHIFT), c ^ (c >> SHIFT), d ^ (d >> SHIFT)
        out[row], out[row + 1], out[row + 2], out[row + 3] = a, b, c, d
    for row in range(in_fours, rows):
        a = START
        for column in range(columns):
            a = (a ^ np.uint64(codes[column, row])) * FACTOR
            a ^= a >> SHIFT
        out[row] = a
    return out


@njit(cache=True, nogil=True)
def dealt(
    units: Words, values: Words, places: NDArray[np.uint32], nobody: Flags, salt: np.uint64, count: int
) -> tuple[Words, NDArray[np.uint32], NDArray[np.int64]]:
    """Rows (unit's two words, value) and their places by bucket, in the order given; where each bucket starts.

    A unit's bucket is one of `count`, by its first word and the salt; rows of nobody are in a last one.
    """
    rows, many = len(values), np.uint64(count)
    buckets, starts = np.empty(rows, np.int32), np.zeros(count + 3, np.int64)
    for row in range(rows):
        hashed = ((units[row, 0] ^ salt) * ODD) >> HALF
        buckets[row] = count if nobody[row] else np.int32((hashed * many) >> HALF)
        starts[buckets[row] + 2] += 1
    for bucket in range(count):
        starts[bucket + 2] += starts[bucket + 1]
    out, at = np.empty((rows, 3), np.uint64), np.empty(rows, np.uint32)
    for row in range(rows):
        place = starts[buckets[row] + 1]
        starts[buckets[row] + 1] += 1
        out[place, 0], out[place, 1], out[place, 2] = units[row, 0], units[row, 1], values[row]
        at[place] = places[row]
    return out, at, starts[: count + 2]


@njit(cache=True, nogil=True)
def beyond(rows: Words, bound: int) -> Flags:
    """Which rows (unit's two words, value) are not among the `bound` of smallest value of their unit.

    Of rows of one value the first stay. Units are told apart in a table of open addresses; only rows of those that have
    more than the bound are looked at again.
    """
    units, counts, number = _told_apart(rows)
    starts = np.zeros(number + 1, np.int64)
    for unit in range(number):
        starts[unit + 1] = starts[unit] + (counts[unit] if counts[unit] > bound else 0)
    ends, order = starts[:-1].copy(), np.empty(starts[-1], np.int32)
    for row in range(len(rows)):
        unit = units[row]
        if counts[unit] > bound:
            order[ends[unit]] = row
            ends[unit] += 1
    flags = np.zeros(len(rows), np.bool_)
    for unit in range(number):
        if counts[unit] > bound:
            _largest(rows, order[starts[unit] : starts[unit + 1]], bound, flags)
    return flags


@njit(cache=True, nogil=True)
def _told_apart(rows: Words) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    """The unit of every row, by number; how many rows each has; how many units there are."""
    capacity = 16
    while capacity < 2 * len(rows):
        capacity *= 2
    slots, last = np.full(capacity, -1, np.int32), np.uint64(capacity - 1)
    firsts, units = np.empty(len(rows), np.int32), np.empty(len(rows), np.int32)
    counts, number = np.zeros(len(rows), np.int32), 0
    for row in range(len(rows)):
        slot = rows[row, 1] & last
        while slots[slot] >= 0:
            first = firsts[slots[slot]]
            if rows[first, 0] == rows[row, 0] and rows[first, 1] == rows[row, 1]:
                break
            slot = (slot + np.uint64(1)) & last
        if slots[slot] < 0:
            slots[slot], firsts[number] = number, row
            number += 1
        units[row] = slots[slot]
        counts[units[row]] += 1
    return units, counts, number


@njit(cache=True, nogil=True)
def _largest(rows: Words, own: NDArray[np.int32], bound: int, flags: Flags) -> None:
    """Flag all rows but the `bound` smallest, which are kept in a heap with the largest on top."""
    heap = own[:bound].copy()
    for place in range(bound // 2 - 1, -1, -1):
        _sink(rows, heap, place)
    for row in own[bound:]:
        if rows[row, 2] < rows[heap[0], 2]:
            flags[heap[0]] = True
            heap[0] = row
            _sink(rows, heap, 0)
        else:
            flags[row] = True


@njit(cache=True, nogil=True)
def _sink(rows: Words, heap: NDArray[np.int32], place: int) -> None:
    """Let a row down to where none below is larger."""
    while 2 * place + 1 < len(heap):
        below = 2 * place + 1
        if below + 1 < len(heap) and _above(rows, heap[below + 1], heap[below]):
            below += 1
        if not _above(rows, heap[below], heap[place]):
            return
        heap[place], heap[below] = heap[below], heap[place]
        place = below


@njit(cache=True, nogil=True)
def _above(rows: Words, one: int, other: int) -> bool:
    """Whether a row is larger than another: by value, then by its place."""
    a, b = rows[one, 2], rows[other, 2]
    return a > b or (a == b and one > other)
