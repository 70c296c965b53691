"""The compiled loops that deal rows to buckets of privacy units, and find the rows beyond a unit's bound.

Apart from the rest so that numba is loaded where units are, and not by the import.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Flags, Integers, Words
from dpscale.base.jit import njit

Numbers = NDArray[np.uint16]  # of buckets
ODD, HALF = np.uint64(0xD6E8FEB86659FD93), np.uint64(32)
FEW = 16  # rows of a unit that are compared each with each


@njit(cache=True, nogil=True)
def buckets_of(units: Words, separate: NDArray[np.uint8], salt: np.uint64, counts: Integers, out: Numbers) -> None:
    """The bucket of every row, of its unit's two words; `counts` has a place for each, and these rows are added there.

    A unit's bucket is one of all but the last two, by its first word and the salt; rows that are set apart (1, 2) are
    in those.
    """
    many = np.uint64(len(counts) - 2)
    for row in range(len(units)):
        hashed = ((units[row, 0] ^ salt) * ODD) >> HALF
        out[row] = many + np.uint64(separate[row]) - np.uint64(1) if separate[row] else (hashed * many) >> HALF
    for bucket in out:
        counts[bucket] += 1


@njit(cache=True, nogil=True)
def deal(units: Words, values: Words, buckets: Numbers, ends: Integers, out: Words) -> None:
    """Put rows (unit's two words, value with its unit's second word in it) behind those that their buckets have
    already, and move the ends; not rows of the buckets that have no end."""
    many = len(ends)
    for row in range(len(values)):
        bucket = buckets[row]
        if bucket < many:
            place = ends[bucket]
            ends[bucket] = place + 1
            out[place, 0], out[place, 1], out[place, 2] = units[row, 0], units[row, 1], values[row] ^ units[row, 1]


@njit(cache=True, nogil=True)
def gather(rows: Words, starts: Integers, ends: Integers, out: Words) -> None:
    """Put rows, which are in the order of buckets, behind those that each bucket has already, and move the ends."""
    for bucket in range(len(ends)):
        place = ends[bucket]
        for row in range(starts[bucket], starts[bucket + 1]):
            out[place, 0], out[place, 1], out[place, 2] = rows[row, 0], rows[row, 1], rows[row, 2]
            place += 1
        ends[bucket] = place


@njit(cache=True, nogil=True)
def returned(flags: Flags, starts: Integers, ends: Integers, out: Flags) -> None:
    """The flags of rows that were gathered, in their own order."""
    for bucket in range(len(ends)):
        count = starts[bucket + 1] - starts[bucket]
        out[starts[bucket] : starts[bucket + 1]] = flags[ends[bucket] : ends[bucket] + count]
        ends[bucket] += count


@njit(cache=True, nogil=True)
def beyond(rows: Words, bound: int) -> Flags:
    """Which rows (unit's two words, value) are not among the `bound` of smallest value of their unit.

    Of rows of one value the first stay. Units are told apart in a table of open addresses; only those that have more
    rows than the bound are looked at again.
    """
    counts, starts, order, values = _by_unit(rows)
    flags = np.zeros(len(rows), np.bool_)
    for unit in range(len(counts)):
        start, count = starts[unit], counts[unit]
        if count <= bound:
            continue
        if count > FEW:
            _largest(rows, order[start : start + count], bound, flags)
            continue
        ranks = _ranks(values[start : start + count])
        for k in range(count):
            flags[order[start + k]] = np.int64((ranks >> np.uint64(4 * k)) & np.uint64(15)) >= bound
    return flags


@njit(cache=True, nogil=True)
def _by_unit(rows: Words) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], Words]:
    """How many rows each unit has, and where its rows and their values start among all, unit by unit."""
    units, counts = _distinguish_rows(rows)
    ends, order, values = np.zeros(len(counts), np.int32), np.empty(len(rows), np.int32), np.empty(len(rows), np.uint64)
    ends[1:] = np.cumsum(counts[:-1])
    starts = ends.copy()
    for row in range(len(rows)):
        place = ends[units[row]]
        ends[units[row]] = place + 1
        order[place], values[place] = row, rows[row, 2]
    return counts, starts, order, values


@njit(cache=True, nogil=True)
def _ranks(values: Words) -> np.uint64:
    """How many of up to 16 values stand before each, in four bits for each: of those alike the first stand before.

    There is no branch on values, which would be guessed wrong.
    """
    ranks = np.uint64(0)
    for i in range(1, len(values)):
        value, own = values[i], np.uint64(0)
        for j in range(i):
            less = np.uint64(value < values[j])
            ranks += less << np.uint64(4 * j)
            own += np.uint64(1) - less
        ranks += own << np.uint64(4 * i)
    return ranks


@njit(cache=True, nogil=True)
def mark(buckets: Numbers, places: Integers, bits: NDArray[np.uint8], flags: Flags) -> None:
    """Flag the rows whose bit is set, the first being a byte's highest; `places` is of each bucket its next row's bit,
    and is moved on. Behind these buckets is that of rows which all go; others have none that does."""
    many = len(places)
    for row in range(len(buckets)):
        bucket = buckets[row]
        if bucket < many:
            bit = places[bucket]
            places[bucket] = bit + 1
            flags[row] = (bits[bit >> 3] >> (7 - (bit & 7))) & 1 == 1
        else:
            flags[row] = bucket == many


@njit(cache=True, nogil=True)
def _distinguish_rows(rows: Words) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The unit of every row, by number, and how many rows each has."""
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
    return units, counts[:number]


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
