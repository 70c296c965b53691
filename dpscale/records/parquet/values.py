"""Compiled loops that convert Parquet dictionaries and the indices of pages to cell numbers.

In the Parquet format, levels and dictionary indices are a hybrid of runs: either one repeated value, or groups of eight
values packed to `width` bits each, lowest bits first. No field of a file is trusted.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.compilation import njit
from dpscale.base.numerics import Integers
from dpscale.records.parquet.headers import DAMAGED, FINE, MOST, NULLS, Array, Int, U, varint, word
from dpscale.records.parquet.levels import all_there, expand, level_bits, ones_before, put

WIDEST = 4  # largest index width in bits for which a byte lookup table is used
WORTH = 1024  # smallest number of values for which the table is built
BEYOND = U(1) << U(63)  # flag in a table's word: an index exceeds the entries


@njit(cache=True, nogil=True)
def packs_of(table: Array, entries: Int, width: Int, count: Int, out: Array) -> Array:
    """Return for every byte the codes of the indices of `width` bits in it, one byte each, the lowest index first.

    A pack has the flag BEYOND if an index is not below `entries`; `table` has a code for every index of `width` bits.
    The result is empty where packs do not serve: codes of more than a byte, indices that are too wide, too few values,
    or eight indices in a byte of which all might be beyond, because eight codes leave no bit for the flag.
    """
    has_flag = width > 1 or entries >= 2
    if out.itemsize > 1 or not 1 <= width <= WIDEST or count < WORTH or not has_flag:
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
    """Decode whole groups of eight values; return False if an index exceeds the entries."""
    if width == 1:
        return _lookups(data, U(at), U(1), U(groups), U(1), U(8), packs, out)
    if width == 2:
        return _lookups(data, U(at), U(2), U(groups), U(2), U(8), packs, out)
    return _lookups(data, U(at), U(width), U(groups), U(4), U(2 * width), packs, out)


@njit(cache=True, nogil=True, inline="always")
def _lookups(data: Array, at: Int, width: Int, groups: Int, steps: Int, bits: Int, packs: Array, out: Array) -> bool:
    """Decode groups that consist of `steps` bytes, or of `steps` parts of `bits` bits each.

    `packs` gives the codes of all values of one part at once: `wide` bits for each part. An entry with the flag BEYOND
    has an index that is too large.
    """
    mask, wide, beyond = (U(1) << bits) - U(1), U(64) // steps, U(0)
    for g in range(groups):
        group, eight = word(data, at + g * width), U(0)
        for step in range(steps):
            found = packs[(group >> (step * bits)) & mask]
            beyond |= found
            eight |= found << (step * wide)
        put(out, g << U(3), eight)
    return bool(steps == U(1) or beyond < BEYOND)


NARROW = 8  # largest width in bits for which whole groups are decoded at once

# fields of a job: page bytes, values to skip and to take, destination, levels, lookup table, cell of a null
AT, END, FIRST, TAKEN, ROW, START, NULLABLE, LEVEL_BYTES, TABLE, ENTRIES, NULL_CELL, JOB_FIELDS = range(12)
NO_CELL = -(1 << 20)  # marks a null that has no cell


@njit(cache=True, nogil=True)
def _groups(data: Array, at: Int, width: Int, groups: Int, table: Array, out: Array) -> Int:
    """Decode whole groups of values of up to 8 bits with a table of 256 entries; return the largest value.

    A group of eight values has `width` bytes, because each value has `width` bits.
    """
    place, bits, mask, largest = U(at), U(width), (U(1) << U(width)) - U(1), U(0)
    for g in range(U(groups)):
        group = word(data, place + g * bits)
        for j in range(U(8)):
            value = (group >> (bits * j)) & mask
            largest = max(largest, value)
            out[g * U(8) + j] = table[value]
    return np.int64(largest)


@njit(cache=True, nogil=True)
def _singly(data: Array, at: Int, width: Int, first: Int, count: Int, table: Array, entries: Int, out: Array) -> bool:
    """Decode values of packed groups one at a time; return False if one exceeds the entries.

    A value begins at any bit; eight bytes from there contain it, because it has at most 32 bits.
    """
    mask = (U(1) << U(width)) - U(1)
    for k in range(count):
        bit = (first + k) * width
        value = (word(data, U(at + (bit >> 3))) >> U(bit & 7)) & mask
        if value >= U(entries):
            return False
        out[k] = table[value]
    return True


@njit(cache=True, nogil=True)
def _unpacked(
    data: Array, at: Int, width: Int, first: Int, count: Int, table: Array, entries: Int, packs: Array, out: Array
) -> bool:
    """Decode values of packed groups, starting at `first`, with the table; return False if one exceeds its entries.

    The values up to the next multiple of eight and the last ones, which are no whole groups, are decoded singly.
    """
    if width > NARROW:
        return _singly(data, at, width, first, count, table, entries, out)

    head = min(-first % 8, count)
    groups = (count - head) // 8
    done = head + 8 * groups
    begin = at + (first + head) // 8 * width

    return (
        _singly(data, at, width, first, head, table, entries, out)
        and (
            by_packs(data, begin, width, groups, packs, out[head:done])
            if len(packs)
            else not groups or _groups(data, begin, width, groups, table, out[head:done]) < entries
        )
        and _singly(data, at, width, first + done, count - done, table, entries, out[done:])
    )


@njit(cache=True, nogil=True)
def _runs(
    data: Array, at: Int, end: Int, width: Int, skip: Int, count: Int, table: Array, entries: Int, out: Array
) -> bool:
    """Skip `skip` values of a hybrid of runs and decode the next `count` with the table.

    Returns False if the data end too early or a value is not in the table, which has at least 256 entries.

    The head of a run is a varint: with a lowest bit of 1 the rest counts packed groups of eight values, else it counts
    repetitions of one value of `whole` bytes.

    `at` is the position of the next run, before `end`; `width` is the number of bits of a value, and `entries` the
    number of values in the table. `packs` are the codes of all values of a byte at once, for narrow values.
    """
    done, whole, packs = 0, (width + 7) // 8, packs_of(table, entries, width, count, out)
    while done < count:
        head, at = varint(data, at, end)
        if at < 0 or not 0 <= head <= 2 * MOST:
            return False

        # values of the run; `first` of them are skipped and `take` decoded
        length = (head >> 1) * 8 if head & 1 else head >> 1
        first = min(skip, length)
        take = min(length - first, count - done)
        if head & 1:
            if (first + take) * width > (end - at) * 8:
                return False
            if not _unpacked(data, at, width, first, take, table, entries, packs, out[done:]):
                return False
            at = min(at + (head >> 1) * width, end)
        else:
            if at + whole > end:
                return False
            # eight bytes are read, of which a value has `whole`
            value = word(data, U(at)) & ((U(1) << U(8 * whole)) - U(1))
            if take and value >= U(entries):
                return False
            out[done : done + take] = table[value]
            at += whole

        skip -= first
        done += take

    return True


@njit(cache=True, nogil=True)
def fill(data: Array, jobs: Integers, tables: Array, out: Array, states: Array) -> None:
    """Decode every job's part of a page to cells.

    Parameters
    ----------
    data : ndarray of uint8
        Decompressed pages.
    jobs : ndarray of int64, shape (jobs, JOB_FIELDS)
    tables : ndarray
        Cells of all dictionary entries.
    out : ndarray, shape (columns, rows)
    states : ndarray of int64, shape (jobs,)
        Receives FINE, DAMAGED or NULLS for each job.
    """
    for j in range(len(jobs)):
        states[j] = _filled(data, jobs[j], tables, out[jobs[j, ROW]])


@njit(cache=True, nogil=True)
def _filled(data: Array, job: Integers, tables: Array, out: Array) -> Int:
    """Decode the values of one page of dictionary codes into `out`; return FINE, DAMAGED, or NULLS.

    `job` has integers by name: where the page is in `data`, which rows to take, where they go and which table decodes
    them. Nullable columns have definition levels before the codes. NULLS is a null in a column without a cell for it.

    The length of the levels is in the page header (version 2) or, if LEVEL_BYTES is negative, in the four bytes before
    the levels. The first byte of the values is the number of bits of a code, at most 32.

    `first` rows of the page are skipped and `taken` rows are read; `out` receives them from `start` on. `table` maps a
    code to its cell; it has at least 2^NARROW entries, so that a damaged code of few bits does not read beyond it.
    """
    at, end, first, taken, start = job[AT], job[END], job[FIRST], job[TAKEN], job[START]
    entries = job[ENTRIES]
    table = np.zeros(max(entries, 1 << NARROW), tables.dtype)
    table[:entries] = tables[job[TABLE] : job[TABLE] + entries]
    levels, nulls = at, False

    if job[NULLABLE]:
        length = job[LEVEL_BYTES]
        if length < 0:
            if end - at < 4:
                return DAMAGED
            length = np.int64(word(data, U(at)) & U(0xFFFFFFFF))
            levels = at + 4

        at = levels + length
        if at > end:
            return DAMAGED
        nulls = not all_there(data, levels, at, first + taken)

    # values are stored for rows that are not null, so they are spread over the rows
    if nulls:
        return _spread(data, job, levels, at, end, table, out[start:])
    # the width of the codes
    if at >= end or data[at] > 32:
        return DAMAGED

    fine = _runs(data, at + 1, end, np.int64(data[at]), first, taken, table, entries, out[start:])
    return FINE if fine else DAMAGED


@njit(cache=True, nogil=True)
def _spread(data: Array, job: Integers, levels: Int, at: Int, end: Int, table: Array, out: Array) -> Int:
    """Decode a page in which some values are null.

    `before` and `mine` are the numbers of values that are not null among the first rows and among those taken.

    `first` rows of the page are skipped and `taken` rows are read; the code of a null is that of NULL_CELL.
    """
    first, taken = job[FIRST], job[TAKEN]
    bits = np.zeros((first + taken) // 64 + 3, np.uint64)
    if not level_bits(data, levels, at, first + taken, bits):
        return DAMAGED

    before = ones_before(bits, first)
    mine = ones_before(bits, first + taken) - before
    values = np.empty(mine + 8, out.dtype)  # `expand` reads eight entries past the last
    if mine:
        if at >= end or data[at] > 32:
            return DAMAGED
        if not _runs(data, at + 1, end, np.int64(data[at]), before, mine, table, job[ENTRIES], values):
            return DAMAGED

    # a null in a column without a cell for nulls
    if mine < taken and job[NULL_CELL] == NO_CELL:
        return NULLS

    expand(bits, first, taken, values, out.dtype.type(job[NULL_CELL]), out)
    return FINE


@njit(cache=True, nogil=True)
def whole_cells(data: Array, asked: Integers, table: Array, inside: Array) -> None:
    """Compute the cells of integer dictionaries: value minus lowest value, written to `table`.

    Each row of the second argument describes a dictionary: position, entries, bytes per value, whether unsigned, lowest
    and highest value, start in `table`. `inside[d]` is set to whether all values of dictionary d are in the domain.
    Four bytes are read as signed, unless the type is unsigned; an unsigned value beyond 2^63 appears as negative.
    """
    for d in range(len(asked)):
        place, entries, width, unsigned, low, high, start = asked[d]
        inside[d] = True
        for i in range(entries):
            stored = word(data, U(place + i * width))
            # eight bytes are read; a narrower value has the lower four of them
            value = np.int64(stored) if width == 8 else np.int64(np.int32(np.uint32(stored)))
            if unsigned and width < 8:
                value = np.int64(np.uint32(stored))
            if value < low or value > high or (unsigned and value < 0):
                inside[d] = False
                break
            table[start + i] = value - low


@njit(cache=True, nogil=True)
def text_ends(data: Array, count: Int, offsets: Integers, texts: Array) -> Int:
    """Concatenate the texts of a plain page; return their total bytes, or -1 if the page is damaged.

    Each text is preceded by its length in four bytes.

    `offsets` receives the end of each text, `texts` their bytes without the lengths.

    b is a byte of a text, `at` the position in `data` and `size` the number of bytes written.
    """
    at: Int = 0
    size: Int = 0
    for i in range(count):
        if at + 4 > len(data):
            return -1

        length = (
            np.int64(data[at])
            | np.int64(data[at + 1]) << 8
            | np.int64(data[at + 2]) << 16
            | np.int64(data[at + 3]) << 24
        )
        at += 4
        if length < 0 or at + length > len(data):
            return -1

        for b in range(length):
            texts[size + b] = data[at + b]
        at, size = at + length, size + length
        offsets[i + 1] = size

    return size
