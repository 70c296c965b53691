"""The compiled loops that decompress Parquet pages: Snappy's own, and what pyarrow has decompressed put to its places.

After Snappy's format: a length, then literals and copies of what stands before. Nothing that a file says is trusted.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.arrays import Integers
from dpscale.base.jit import njit
from dpscale.records.parquet.headers import COMPRESSED, LENGTH, LEVELS, PACKED, PLACE, Array, Int, U, varint, word
from dpscale.records.parquet.levels import put

AS_IT_IS, SNAPPY, GIVEN = 0, 1, 2  # how pages are compressed


@njit(cache=True, nogil=True)
def _unsnapped(data: Array, at: Int, end: Int, out: Array, start: Int, length: Int) -> bool:
    """Decompress a block of Snappy's format; False where it is none, or not of that length."""
    told, at = varint(data, at, end)
    done: Int = 0
    wide = np.array([0, 1, 2, 4])
    if at < 0 or told != length:
        return False
    while at < end:
        tag = np.int64(data[at])
        kind, count = tag & 3, (tag >> 2) + 1
        at += 1
        more: Int = wide[kind] if kind else max(count - 60, 0)  # bytes that tell a length or a distance
        if at + more > end:
            return False
        number = np.int64(word(data, U(at)) & ((U(1) << U(8 * more)) - U(1)))
        at += more
        if kind == 0:
            count = number + 1 if more else count
            if count > end - at or count > length - done:
                return False
            if count <= 16 and at + 16 <= len(data) and done + 16 <= length:
                put(out, U(start + done), word(data, U(at)))
                put(out, U(start + done + 8), word(data, U(at + 8)))
            else:
                out[start + done : start + done + count] = data[at : at + count]
            at += count
        else:
            back = number
            if kind == 1:
                count, back = 4 + (tag >> 2 & 7), tag >> 5 << 8 | number
            if back < 1 or back > done or count > length - done:
                return False
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
    """Put pages' decompressed bytes to places; those GIVEN are in `values`, one after another. False where one is not
    of its length."""
    at = 0
    for p in range(len(pages)):
        page, place = pages[p], places[p]
        levels = max(page[LEVELS], 0)  # of the newer pages, which are not compressed
        begin, end, length = page[PLACE] + levels, page[PLACE] + page[PACKED], page[LENGTH] - levels
        if length < 0:
            return False
        out[place : place + levels] = data[begin - levels : begin]
        place += levels
        if how == SNAPPY and page[COMPRESSED]:
            if not _unsnapped(data, begin, end, out, place, length):
                return False
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
