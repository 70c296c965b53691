"""Compiled loops over definition levels of Parquet pages: null rows, and expansion of values to the other rows.

A level is one bit. Levels are a hybrid of runs: a repeated bit, or groups of eight bits, lowest first; most runs are
short. They are collected in words of 64 bits. Eight one-byte codes at a time are then moved to their rows: each moves
up by the number of nulls before it, in steps of 4, 2 and 1 (Warren, Hacker's Delight, 7-5). No field of a file is
trusted.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.compilation import njit
from dpscale.base.numerics import Integers
from dpscale.records.parquet.headers import COMPRESSED, LENGTH, LEVELS, MOST, PACKED, PLACE, Array, Int, U, varint, word

STEPS = (4, 2, 1)  # rows by which a code moves up, in sum up to 7


def _moves() -> Array:
    """Return a table of masks for every byte of levels, shape (256, 5).

    Columns 0 to 2 mark the bytes to which the steps of 4, 2 and 1 move values, column 3 the bytes that have a value,
    and column 4 is their number.
    """
    moves = np.zeros((256, 5), np.uint64)
    for levels in range(256):
        places = [place for place in range(8) if levels >> place & 1]
        moves[levels, 4] = len(places)
        for value, place in enumerate(places):
            # a value moves up from its number to its place
            at, left = value, place - value
            for number, step in enumerate(STEPS):
                if left & step:
                    at += step
                    moves[levels, number] |= U(255 << 8 * at)
            moves[levels, 3] |= U(255 << 8 * place)

    return moves


MOVES = _moves()


@njit(cache=True, nogil=True)
def all_there(data: Array, at: Int, end: Int, values: Int) -> bool:
    """Return whether the levels are one run of ones, so that the page has no nulls."""
    head, at = varint(data, at, end)
    return 0 <= at < end and head & 1 == 0 and head >> 1 >= values and data[at] == 1


@njit(cache=True, nogil=True)
def level_bits(data: Array, at: Int, end: Int, count: Int, bits: Array) -> bool:
    """Decode `count` levels into the words `bits`; return False if the data end too early.

    `bits` must be zero and have two more words than needed.

    The head of a run is a varint: with a lowest bit of 1 the rest counts groups of eight packed bits, else it counts
    repetitions of the bit in the next byte. `at` is the position of the next byte.

    `done` is the number of decoded levels. A run may state more levels than `count`, of which only the needed ones are
    decoded.
    """
    done: Int = 0
    while done < count:
        if at + 1 < end and data[at] < 128:  # fast path: most runs are short
            head, at = np.int64(data[at]), at + 1
        else:
            head, at = varint(data, at, end)

        if at < 0 or not 0 <= head <= 2 * MOST or at >= end:
            return False

        # 0 for repetitions
        groups = min(head >> 1, (count - done + 7) >> 3) if head & 1 else 0
        if groups > end - at:
            return False

        length = 8 * groups if head & 1 else min(head >> 1, count - done)
        repeated = U(0) - U(data[at] & 1)
        # 64 levels at a time; the bits after the run are cleared
        for start in range(0, length, 64):
            found = word(data, U(at + (start >> 3))) if head & 1 else repeated
            _append(bits, U(done + start), found & (~U(0) >> U(64 - min(length - start, 64))))

        done += length
        at += head >> 1 if head & 1 else 1

    return True


@njit(cache=True, nogil=True, inline="always")
def _append(bits: Array, at: np.uint64, found: np.uint64) -> None:
    place, shift = at >> U(6), at & U(63)
    bits[place] |= found << shift
    bits[place + U(1)] |= (found >> U(1)) >> (U(63) - shift)


@njit(cache=True, nogil=True, inline="always")
def _bits(bits: Array, at: np.uint64) -> np.uint64:
    """Return the 64 bits at any bit position."""
    place, shift = at >> U(6), at & U(63)
    return (bits[place] >> shift) | ((bits[place + U(1)] << U(1)) << (U(63) - shift))


@njit(cache=True, nogil=True)
def ones_before(bits: Array, count: Int) -> Int:
    """Return the number of ones among the first `count` bits.

    `bits` are words of 64 bits, lowest first. Whole bytes are counted by the last column of MOVES.
    """
    found = U(0)
    for byte in range(0, count - 7, 8):
        found += MOVES[(bits[byte >> 6] >> U(byte & 63)) & U(255), 4]
    for bit in range(count & ~7, count):
        found += (bits[bit >> 6] >> U(bit & 63)) & U(1)
    return np.int64(found)


@njit(cache=True, nogil=True)
def expand(bits: Array, first: Int, count: Int, values: Array, null: Int, out: Array) -> None:
    """Write values to those of `count` rows, from bit `first` on, whose bit is one; write `null` to the others.

    `values` must have eight more entries than are used.

    Words of 64 rows are expanded eight rows at a time if a value has one byte; the remaining rows follow singly. `k` is
    the place of the next value.
    """
    done, k = U(0), U(0)
    if out.itemsize == 1:
        done, k = _by_bytes(bits, U(first), count >> 6, values, U(null) & U(255), out)
    for i in range(done, U(count)):  # branch-free, because the branch would be mispredicted
        place = U(first) + i
        there, value = (bits[place >> U(6)] >> (place & U(63))) & U(1), values[k]
        out[i] = value if there else null
        k += there


@njit(cache=True, nogil=True)
def _by_bytes(
    bits: Array, first: np.uint64, words: Int, values: Array, null: np.uint64, out: Array
) -> tuple[np.uint64, np.uint64]:
    """Expand one-byte codes in groups of eight; return the numbers of rows and values done.

    `moved` has the next eight values in its bytes. Each step moves those that the mask marks by 4, 2 or 1 bytes, so
    that every value is at its row; the bytes of null rows are replaced afterwards.

    `first` is the bit of the first row in `bits`, `words` the number of words of 64 rows, and k the number of values
    done.
    """
    nulls, k = null * U(0x0101010101010101), U(0)
    for group in range(U(words)):
        row, left = group << U(6), _bits(bits, first + (group << U(6)))
        for _ in range(8):
            levels = left & U(255)
            # eight levels decide how the next values move
            moved, moves = word(values, k), MOVES[levels]
            moved = (moved & ~moves[0]) | ((moved << U(32)) & moves[0])
            moved = (moved & ~moves[1]) | ((moved << U(16)) & moves[1])
            moved = (moved & ~moves[2]) | ((moved << U(8)) & moves[2])
            # values where there is one, and the null's code elsewhere
            put(out, row, (moved & moves[3]) | (nulls & ~moves[3]))
            k, row, left = k + moves[4], row + U(8), left >> U(8)

    return U(words) << U(6), k


@njit(cache=True, nogil=True, inline="always")
def put(out: Array, at: np.uint64, eight: np.uint64) -> None:
    """Write eight bytes at any position."""
    out[at] = eight & U(255)
    out[at + U(1)] = (eight >> U(8)) & U(255)
    out[at + U(2)] = (eight >> U(16)) & U(255)
    out[at + U(3)] = (eight >> U(24)) & U(255)
    out[at + U(4)] = (eight >> U(32)) & U(255)
    out[at + U(5)] = (eight >> U(40)) & U(255)
    out[at + U(6)] = (eight >> U(48)) & U(255)
    out[at + U(7)] = (eight >> U(56)) & U(255)


AS_IT_IS, SNAPPY, GIVEN = 0, 1, 2  # compression: none, Snappy, or decompressed by the caller


@njit(cache=True, nogil=True)
def _unsnapped(data: Array, at: Int, end: Int, out: Array, start: Int, length: Int) -> bool:
    """Decompress a Snappy block; return False if it is invalid or has another length.

    Each element begins with a tag whose lowest two bits are its kind: 0 is a literal, the others copies from `back`
    bytes before, with a distance in 1, 2 or 4 bytes. A literal's length above 60 is in the next 1 to 4 bytes.

    `at` is the position in `data` and `done` the number of bytes written to `out` from `start` on; the block must
    expand to exactly `length` bytes. `more` is the number of bytes after the tag that state a length or a distance.
    """
    stated, at = varint(data, at, end)
    done: Int = 0
    wide = np.array([0, 1, 2, 4])
    if at < 0 or stated != length:
        return False

    while at < end:
        tag = np.int64(data[at])
        kind, count = tag & 3, (tag >> 2) + 1
        at += 1
        more: Int = wide[kind] if kind else max(count - 60, 0)  # bytes of a length or distance
        if at + more > end:
            return False

        number = np.int64(word(data, U(at)) & ((U(1) << U(8 * more)) - U(1)))
        at += more
        if kind == 0:
            count = number + 1 if more else count
            if count > end - at or count > length - done:
                return False
            # a short literal: sixteen bytes at once; those after it are overwritten by the next elements
            if count <= 16 and at + 16 <= len(data) and done + 16 <= length:
                put(out, U(start + done), word(data, U(at)))
                put(out, U(start + done + 8), word(data, U(at + 8)))
            else:
                out[start + done : start + done + count] = data[at : at + count]
            at += count
        else:
            back = number
            # a distance of 11 bits, of which the tag has the upper three
            if kind == 1:
                count, back = 4 + (tag >> 2 & 7), tag >> 5 << 8 | number
            if back < 1 or back > done or count > length - done:
                return False

            # eight bytes at a time, which may write up to seven bytes past the copy; a shorter distance overlaps itself
            if back >= 8 and done + count + 8 <= length:
                for step in range(0, count, 8):
                    place = U(start + done + step)
                    put(out, place, word(out, place - U(back)))
            else:
                for k in range(start + done, start + done + count):
                    out[k] = out[k - back]

        done += count

    return done == length


@njit(cache=True, nogil=True)
def unpack(data: Array, pages: Integers, places: Integers, how: Int, values: Array, out: Array) -> bool:
    """Write the decompressed bytes of pages to `out`; return False if a page has another length than stated.

    `values` contains the concatenated contents of compressed pages if `how` is GIVEN.

    Each page has `LEVELS` bytes of definition levels, or -1 if they are compressed with its values. `how` is SNAPPY,
    GIVEN or AS_IT_IS for pages without compression, and `places` are the starts of the pages in `out`.
    """
    at = 0
    for p in range(len(pages)):
        page, place = pages[p], places[p]
        levels = max(page[LEVELS], 0)  # levels of version 2 pages are not compressed
        # positions of the values in the file, and their length after decompression
        begin, end, length = page[PLACE] + levels, page[PLACE] + page[PACKED], page[LENGTH] - levels
        if length < 0:
            return False

        out[place : place + levels] = data[begin - levels : begin]
        place += levels
        if how == SNAPPY and page[COMPRESSED]:
            if not _unsnapped(data, begin, end, out, place, length):
                return False
        # `at` is the position in `values`
        elif how == GIVEN and page[COMPRESSED]:
            if at + length > len(values):
                return False
            out[place : place + length] = values[at : at + length]
            at += length
        elif end - begin != length:
            return False
        else:
            out[place : place + length] = data[begin:end]

    return True
