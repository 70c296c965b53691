"""The compiled loops of privacy units: hashes of rows, rows dealt to buckets, and rows beyond a unit's bound.

SipHash-2-4 of texts (Aumasson & Bernstein, 2012) and the mix of whole numbers are those of pandas' `hash_array`.
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
SECOND, CHANGE = np.uint64(0x94D049BB133111EB), np.uint64(0x5DEECE66D1CE4E5B)
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
def plain_words(data: NDArray[np.uint8], offsets: NDArray[np.int64], longest: int, keys: Words) -> tuple[Words, Flags]:
    """Both words of every text that is plainly an id or a whole number, and which texts are.

    A plain id is of ASCII letters that are seen, one of them in no number; and it has a digit, or is longer than
    `longest`, so that it is no name for a number or for nothing. `keys`: two words for each of the two hashes.
    """
    rows = len(offsets) - 1
    words, plain = np.zeros((rows, 2), np.uint64), np.zeros(rows, np.bool_)
    for row in range(rows):
        start, end = offsets[row], offsets[row + 1]
        seen, within, digit = _looked_at(data, start, end)
        if seen and not within and (digit or end - start > longest):
            words[row, 0], words[row, 1] = _hashed(data, start, end, keys)
            plain[row] = True
        elif within and _is_whole(data, start, end):
            number = _whole(data, start, end)
            words[row, 0], words[row, 1], plain[row] = _mixed(number), _mixed(number ^ CHANGE), True
    return words, plain


@njit(cache=True, nogil=True)
def _looked_at(data: NDArray[np.uint8], start: int, end: int) -> tuple[bool, bool, bool]:
    """Whether all letters are seen and ASCII, whether all are letters of numbers (digits, + - . e E), whether one is a
    digit."""
    seen, within, found = True, True, False
    for place in range(start, end):
        letter = data[place]
        seen &= 0x21 <= letter <= 0x7E
        digit = 48 <= letter <= 57
        found |= digit
        within &= digit or letter == 43 or letter == 45 or letter == 46 or letter == 69 or letter == 101
    return seen, within, found


@njit(cache=True, nogil=True)
def _is_whole(data: NDArray[np.uint8], start: int, end: int) -> bool:
    """0, or an optional minus and up to 18 digits of which the first is not 0."""
    if end - start == 1 and data[start] == 48:
        return True
    if end > start and data[start] == 45:
        start += 1
    if not 1 <= end - start <= 18 or data[start] == 48:
        return False
    digits = True
    for place in range(start, end):
        digits &= 48 <= data[place] <= 57
    return digits


@njit(cache=True, nogil=True)
def _whole(data: NDArray[np.uint8], start: int, end: int) -> np.uint64:
    minus, value = data[start] == 45, np.int64(0)
    for place in range(start + minus, end):
        value = value * 10 + (np.int64(data[place]) - 48)
    return np.uint64(-value if minus else value)


@njit(cache=True, nogil=True)
def _mixed(word: np.uint64) -> np.uint64:
    word = (word ^ (word >> np.uint64(30))) * FACTOR
    word = (word ^ (word >> np.uint64(27))) * SECOND
    return word ^ (word >> np.uint64(31))


@njit(cache=True, nogil=True, inline="always")
def _turned(word: np.uint64, by: int) -> np.uint64:
    return (word << np.uint64(by)) | (word >> np.uint64(64 - by))


State = tuple[np.uint64, np.uint64, np.uint64, np.uint64]


@njit(cache=True, nogil=True, inline="always")
def _round(state: State) -> State:
    a, b, c, d = state
    a, c = a + b, c + d
    b, d = _turned(b, 13) ^ a, _turned(d, 16) ^ c
    a = _turned(a, 32)
    c, a = c + b, a + d
    b, d = _turned(b, 17) ^ c, _turned(d, 21) ^ a
    return a, b, _turned(c, 32), d


@njit(cache=True, nogil=True, inline="always")
def _begun(key: Words) -> State:
    return (key[0] ^ np.uint64(0x736F6D6570736575), key[1] ^ np.uint64(0x646F72616E646F6D),
            key[0] ^ np.uint64(0x6C7967656E657261), key[1] ^ np.uint64(0x7465646279746573))  # fmt: skip


@njit(cache=True, nogil=True, inline="always")
def _absorbed(state: State, word: np.uint64) -> State:
    a, b, c, d = _round(_round((state[0], state[1], state[2], state[3] ^ word)))
    return a ^ word, b, c, d


@njit(cache=True, nogil=True, inline="always")
def _ended(state: State) -> np.uint64:
    a, b, c, d = _round(_round(_round(_round((state[0], state[1], state[2] ^ np.uint64(0xFF), state[3])))))
    return a ^ b ^ c ^ d


@njit(cache=True, nogil=True)
def _hashed(data: NDArray[np.uint8], start: int, end: int, keys: Words) -> tuple[np.uint64, np.uint64]:
    """SipHash-2-4 of some bytes, mixed, under each of two keys."""
    one, other = _begun(keys[0]), _begun(keys[1])
    for first in range(start, end + 1, 8):
        word = np.uint64(0) if end - first >= 8 else np.uint64((end - start) & 0xFF) << np.uint64(56)
        for place in range(min(8, end - first)):
            word |= np.uint64(data[first + place]) << np.uint64(8 * place)
        one, other = _absorbed(one, word), _absorbed(other, word)
    return _mixed(_ended(one)), _mixed(_ended(other))


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
