"""NumPy functions of the rows of units: those of `unit_loops` and `unit_hashes.mixed` for few rows.

To compile or to load the loops would take longer. `number_words` serves any number of rows.

A unit has two *words*, which are its hash of 128 bits; a row has the words of its unit and a *value*, a hash that
orders the rows of the unit. A *bucket* has all rows of some units.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpscale.base.numerics import Flags, Integers, NDArray, Words

FEW = 1 << 15  # most rows of a call
BLOCK = 1 << 13  # rows whose words stay in the cache
# first word of a row's mix, 2^64 over the golden ratio; factor of its steps and of the first step of `_mix`; shift of
# its steps
START, FACTOR, SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(29)
# factor of the second step of `_mix`; difference of the numbers behind the two words of an id
SECOND, CHANGE = np.uint64(0x94D049BB133111EB), np.uint64(0x5DEECE66D1CE4E5B)
# odd factor of the hash for buckets; shift that keeps the high half of a product
ODD, HALF = np.uint64(0xD6E8FEB86659FD93), np.uint64(32)
PERIOD_BITS = 16  # highest bits of a mixed value, which have the period in a growing table
PERIOD_SHIFT = np.uint64(64 - PERIOD_BITS)  # shift that moves the period to these bits and back
Numbers = NDArray[np.uint16]  # bucket numbers


def mixed(codes: NDArray[Any]) -> Words:
    """Return a 64-bit mix of each row's codes; `codes` has shape (attributes, rows)."""
    out = np.full(codes.shape[1], START, np.uint64)
    for codes_of_rows in codes:
        out = (out ^ codes_of_rows.astype(np.uint64)) * FACTOR
        out ^= out >> SHIFT
    return out


def number_words(numbers: Integers) -> Words:
    """Return both words of integers, shape (n, 2).

    `_mix` is that of pandas, which has no key, so the second word is the mix of a modified number. It is bijective, so
    that two numbers never share a first word.
    """
    words = np.empty((len(numbers), 2), np.uint64)
    for first in range(0, len(numbers), BLOCK):
        block = numbers[first : first + BLOCK].astype(np.uint64)
        words[first : first + BLOCK, 0], words[first : first + BLOCK, 1] = _mix(block), _mix(block ^ CHANGE)
    return words


def _mix(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * FACTOR
    words = (words ^ (words >> np.uint64(27))) * SECOND
    return words ^ (words >> np.uint64(31))


def buckets_of(units: Words, separate: NDArray[np.uint8], salt: np.uint64, counts: Integers, out: Numbers) -> None:
    """Compute the bucket of every row, and add the rows to the buckets' `counts`.

    The last two of the buckets take the rows that `separate` marks: 1 for those without a unit, 2 for rows that are
    dropped or belong to later periods. The others are divided by a hash of 32 bits.
    """
    many = np.uint64(len(counts) - 2)
    # multiply-shift: the high half of the product is the hash, and hash · many / 2^32 is a bucket without a division
    hashed = ((units[:, 0] ^ salt) * ODD) >> HALF
    out[:] = np.where(separate > 0, many + separate.astype(np.uint64) - np.uint64(1), (hashed * many) >> HALF)
    counts += np.bincount(out, minlength=len(counts))


def deal(units: Words, values: Words, buckets: Numbers, ends: Integers, out: Words) -> None:
    """Append rows to their buckets in `out`, and advance the buckets' `ends` there.

    Buckets without an end, which have rows that are not stored, are skipped. A row is stored as its unit's two words
    and its value mixed with the second one.
    """
    order, places = _sorted_by_bucket(buckets, ends)
    out[places, :2], out[places, 2] = units[order], values[order] ^ units[order, 1]


def mark(buckets: Numbers, places: Integers, bits: NDArray[np.uint8], flags: Flags) -> None:
    """Flag the rows whose bit is set, and those of the bucket after the last one with a place.

    `places` has the position of each bucket's next decision in `bits`; the bucket after the last one has the rows
    without a unit, which are removed.
    """
    flags[:] = buckets == len(places)
    order, bit = _sorted_by_bucket(buckets, places)
    # the first bit is the highest one of its byte
    flags[order] = (bits[bit >> 3] >> (7 - (bit & 7))) & 1 == 1


def _sorted_by_bucket(buckets: Numbers, ends: Integers) -> tuple[Integers, Integers]:
    """Return the rows that have a bucket, sorted by it, and the place of each; `ends` are advanced.

    `ends` has the position after the last row of each bucket.
    """
    counts = np.bincount(buckets, minlength=len(ends))[: len(ends)]
    order = np.argsort(buckets, kind="stable")[: counts.sum()]
    # the end of the row's bucket, plus the number of the row within it
    places = np.repeat(ends - np.cumsum(counts) + counts, counts) + np.arange(len(order))
    ends += counts
    return order, places


def beyond(rows: Words, bound: int) -> Flags:
    """Return the rows (unit's two words, value) that are not among the `bound` smallest values of their unit."""
    order, is_first = _by_unit(rows)
    flags = np.empty(len(rows), np.bool_)
    flags[order] = _ranks(is_first) >= bound
    return flags


def beyond_periods(rows: Words, bound: int, periods: int) -> Flags:
    """Return the rows beyond `bound` rows in a period or `periods` periods of their unit.

    A row has the two words of its unit and a value, whose highest 16 bits are its period. The rows are sorted by unit
    and value, so that the rows of a period are consecutive.
    """
    order, is_first = _by_unit(rows)
    period = rows[order, 2] >> PERIOD_SHIFT
    begins = is_first | (np.diff(period, prepend=period[:1]) != 0)
    number = np.cumsum(begins)  # of the period, from the first period of the first unit on
    # number of the last period of the units before
    earlier = np.maximum.accumulate(np.where(is_first, number - 1, 0))
    flags = np.empty(len(rows), np.bool_)
    flags[order] = (_ranks(begins) >= bound) | (number - earlier > periods)
    return flags


def _by_unit(rows: Words) -> tuple[Integers, Flags]:
    """Return the numbers of the rows sorted by unit and value, equal ones in their order, and where a unit begins."""
    order = np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))
    units = rows[order, :2]
    return order, np.append(np.ones(len(rows[:1]), np.bool_), (units[1:] != units[:-1]).any(axis=1))


def _ranks(begins: Flags) -> Integers:
    """Return the number of rows of the same group before each row, where groups begin at the flags."""
    places = np.arange(len(begins))
    return places - np.maximum.accumulate(np.where(begins, places, 0))
