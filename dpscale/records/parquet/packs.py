"""The compiled loops that look up several values of a page at once: codes of a byte, indices of up to four bits.

A byte of packed indices has two, four or eight of them; a table of all such bytes has their codes side by side.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.jit import njit
from dpscale.records.parquet.headers import Array, Int, U, word
from dpscale.records.parquet.levels import put

WIDEST = 4  # bits of an index
WORTH = 1024  # values, for which such a table is made
BEYOND = U(1) << U(63)  # in a table's word: an index is beyond the entries


@njit(cache=True, nogil=True)
def packs_of(table: Array, entries: Int, width: Int, count: Int, out: Array) -> Array:
    """The codes of every byte's indices, the first lowest, with BEYOND; of length 0 where this is not to be used."""
    if out.itemsize > 1 or not 1 <= width <= WIDEST or count < WORTH or (width == 1 and entries < 2):
        return np.empty(0, np.uint64)
    each, mask = 8 // width, (1 << width) - 1
    packs = np.zeros(1 << (each * width), np.uint64)
    for byte in range(len(packs)):
        for j in range(each):
            index = byte >> (j * width) & mask
            packs[byte] |= (U(table[index]) & U(255)) << U(8 * j)
            if index >= entries:
                packs[byte] |= BEYOND
    return packs


@njit(cache=True, nogil=True)
def by_packs(data: Array, at: Int, width: Int, groups: Int, packs: Array, out: Array) -> bool:
    """Whole groups of eight values; False where one is beyond the entries."""
    if width == 1:
        return _lookups(data, U(at), U(1), U(groups), U(1), U(8), packs, out)
    if width == 2:
        return _lookups(data, U(at), U(2), U(groups), U(2), U(8), packs, out)
    return _lookups(data, U(at), U(width), U(groups), U(4), U(2 * width), packs, out)


@njit(cache=True, nogil=True, inline="always")
def _lookups(data: Array, at: Int, width: Int, groups: Int, steps: Int, bits: Int, packs: Array, out: Array) -> bool:
    """`steps` bytes, or so many bits of each, make a group."""
    mask, wide, beyond = (U(1) << bits) - U(1), U(64) // steps, U(0)
    for g in range(groups):
        group, eight = word(data, at + g * width), U(0)
        for step in range(steps):
            found = packs[(group >> (step * bits)) & mask]
            beyond |= found
            eight |= found << (step * wide)
        put(out, g << U(3), eight)
    return bool(steps == U(1) or beyond < BEYOND)
