"""Compiled loops that distribute rows to buckets of privacy units and find the rows beyond the contribution bound.

This module is separate so that Numba is loaded where units are used and not by the import. `few_rows` has the same
functions for few rows and explains their terms.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.compilation import njit
from dpscale.base.numerics import Flags, Integers, NDArray, Words
from dpscale.contributions.few_rows import HALF, ODD, PERIOD_SHIFT, Numbers

PAIRWISE = 16  # up to so many rows of a unit are compared pairwise


@njit(cache=True, nogil=True)
def buckets_of(units: Words, separate: NDArray[np.uint8], salt: np.uint64, counts: Integers, out: Numbers) -> None:
    """Compute the bucket of every row from the two words of its unit, and add the rows to the buckets' `counts`.

    A unit's bucket is one of all but the last two, by its first word and the salt. Rows marked as separate (1 or 2) are
    assigned to the last two.
    """
    many = np.uint64(len(counts) - 2)
    for row in range(len(units)):
        hashed = ((units[row, 0] ^ salt) * ODD) >> HALF
        out[row] = many + np.uint64(separate[row]) - np.uint64(1) if separate[row] else (hashed * many) >> HALF
    for bucket in out:
        counts[bucket] += 1


@njit(cache=True, nogil=True)
def deal(units: Words, values: Words, buckets: Numbers, ends: Integers, out: Words) -> None:
    """Append rows to their buckets and advance the ends; buckets without an end are skipped.

    A row consists of its unit's two words and its value mixed with the unit's second word.
    """
    many = len(ends)
    for row in range(len(values)):
        bucket = buckets[row]
        if bucket < many:
            place = ends[bucket]
            ends[bucket] = place + 1
            out[place, 0], out[place, 1], out[place, 2] = units[row, 0], units[row, 1], values[row] ^ units[row, 1]


@njit(cache=True, nogil=True)
def gather(rows: Words, starts: Integers, ends: Integers, out: Words) -> None:
    """Append rows sorted by bucket to the existing rows of each bucket, and advance the ends.

    `starts` are those of the buckets in `rows`; `ends` are the positions after the rows of each bucket in `out`.
    """
    for bucket in range(len(ends)):
        place = ends[bucket]
        for row in range(starts[bucket], starts[bucket + 1]):
            out[place, 0], out[place, 1], out[place, 2] = rows[row, 0], rows[row, 1], rows[row, 2]
            place += 1
        ends[bucket] = place


@njit(cache=True, nogil=True)
def returned(flags: Flags, starts: Integers, ends: Integers, out: Flags) -> None:
    """Copy the flags of gathered rows back to their original order.

    `starts` are the starts of the buckets in the original order of a piece, `ends` those of its rows among the gathered
    ones.
    """
    for bucket in range(len(ends)):
        count = starts[bucket + 1] - starts[bucket]
        for k in range(count):
            out[starts[bucket] + k] = flags[ends[bucket] + k]
        ends[bucket] += count


@njit(cache=True, nogil=True)
def beyond(rows: Words, bound: int) -> Flags:
    """Return the rows (unit's two words, value) that are not among the `bound` smallest values of their unit.

    Of rows with equal values, the first remain. Units are found in a hash table with open addressing; only those with
    more rows than the bound are examined further.

    The ranks of up to PAIRWISE rows are computed pairwise, in four bits each; a heap finds the smallest of more rows.
    """
    counts, starts, order, values = _by_unit(rows)
    flags = np.zeros(len(rows), np.bool_)
    for unit in range(len(counts)):
        start, count = starts[unit], counts[unit]
        if count <= bound:
            continue
        if count > PAIRWISE:
            _largest(rows, order[start : start + count], bound, flags)
            continue
        ranks = _ranks(values[start : start + count])
        for k in range(count):
            flags[order[start + k]] = np.int64((ranks >> np.uint64(4 * k)) & np.uint64(15)) >= bound

    return flags


@njit(cache=True, nogil=True)
def beyond_periods(rows: Words, bound: int, periods: int) -> Flags:
    """Return the rows (unit's two words, value) beyond `bound` rows in a period or `periods` periods of their unit.

    The highest 16 bits of a value are the period. The first periods of a unit remain, and in each period the rows with
    the smallest values; of rows with equal values, the first ones.

    `_by_unit` sorts the rows by unit: unit i has counts[i] rows from starts[i] on, `order` their places and `values`
    their words. `number` counts the periods of the unit and `within` the rows in the present one.
    """
    counts, starts, order, values = _by_unit(rows)
    flags = np.zeros(len(rows), np.bool_)
    for unit in range(len(counts)):
        start, count = starts[unit], counts[unit]
        # too few rows to exceed either bound
        if count <= bound and count <= periods:
            continue

        ranked = np.argsort(values[start : start + count], kind="mergesort")
        period, number, within = np.int64(-1), 0, 0
        for place in ranked:
            period_of_row = np.int64(values[start + place] >> PERIOD_SHIFT)
            if period_of_row != period:
                period, number, within = period_of_row, number + 1, 0
            within += 1
            flags[order[start + place]] = within > bound or number > periods

    return flags


@njit(cache=True, nogil=True)
def _by_unit(rows: Words) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], Words]:
    """Return the number of rows of each unit, where its rows start, and the rows and their values grouped by unit.

    A counting sort: `ends[u]` is the next free place of unit u. Columns 0 and 1 of `rows` identify the unit, and column
    2 is the value.
    """
    units, counts = _distinguish_rows(rows)
    ends, order, values = np.zeros(len(counts), np.int32), np.empty(len(rows), np.int32), np.empty(len(rows), np.uint64)
    for unit in range(1, len(counts)):
        ends[unit] = ends[unit - 1] + counts[unit - 1]
    starts = ends.copy()

    for row in range(len(rows)):
        place = ends[units[row]]
        ends[units[row]] = place + 1
        order[place], values[place] = row, rows[row, 2]
    return counts, starts, order, values


@njit(cache=True, nogil=True)
def _ranks(values: Words) -> np.uint64:
    """Return the rank of each of up to 16 values in four bits; equal values are ranked in their order.

    Of each pair of values, the larger one has its rank increased by 1. There is no branch on values, because it would
    be mispredicted.
    """
    ranks = np.uint64(0)
    for i in range(1, len(values)):
        value, rank = values[i], np.uint64(0)
        for j in range(i):
            less = np.uint64(value < values[j])
            ranks += less << np.uint64(4 * j)
            rank += np.uint64(1) - less
        ranks += rank << np.uint64(4 * i)
    return ranks


@njit(cache=True, nogil=True)
def mark(buckets: Numbers, places: Integers, bits: NDArray[np.uint8], flags: Flags) -> None:
    """Flag the rows whose bit is set, where the first bit is a byte's highest.

    `places` contains the bit of the next row of each bucket and is advanced. The bucket after these contains rows that
    are all flagged; rows of later buckets are not flagged.
    """
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
    """Return the number of every row's unit, and the number of rows per unit.

    Units are numbered in the order of their first rows, which `firsts` has. `slots` is a hash table with open
    addressing, whose entries are numbers of units, or −1; it has at least twice as many entries as rows, a power of
    two. A row starts at the slot of the lower bits of its second word and moves on by one while another unit is there.
    """
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

        # an empty slot: the first row of a new unit
        if slots[slot] < 0:
            slots[slot], firsts[number] = number, row
            number += 1

        units[row] = slots[slot]
        counts[units[row]] += 1

    return units, counts[:number]


@njit(cache=True, nogil=True)
def _largest(rows: Words, of_unit: NDArray[np.int32], bound: int, flags: Flags) -> None:
    """Flag all rows of a unit except the `bound` smallest, which are in a heap with the largest on top.

    `of_unit` are the numbers of the unit's rows, and the value that is compared is the third word of a row.
    """
    heap = of_unit[:bound].copy()
    for place in range(bound // 2 - 1, -1, -1):
        _sink(rows, heap, place)
    for row in of_unit[bound:]:
        if rows[row, 2] < rows[heap[0], 2]:
            flags[heap[0]] = True
            heap[0] = row
            _sink(rows, heap, 0)
        else:
            flags[row] = True


@njit(cache=True, nogil=True)
def _sink(rows: Words, heap: NDArray[np.int32], place: int) -> None:
    """Restore the heap below a position.

    The children of the place p are 2p + 1 and 2p + 2; `_above` decides which row belongs above the other.
    """
    while 2 * place + 1 < len(heap):
        below = 2 * place + 1
        if below + 1 < len(heap) and _above(rows, heap[below + 1], heap[below]):
            below += 1
        if not _above(rows, heap[below], heap[place]):
            return
        heap[place], heap[below] = heap[below], heap[place]
        place = below


@njit(cache=True, nogil=True)
def _above(rows: Words, row: int, other: int) -> bool:
    """Return whether a row is larger than another, by value and then by position."""
    value, other_value = rows[row, 2], rows[other, 2]
    return value > other_value or (value == other_value and row > other)
