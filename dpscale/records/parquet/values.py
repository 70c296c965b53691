"""Compiled loops that convert Parquet dictionaries and the indices of pages to cell numbers, except null rows.

In the Parquet format, levels and dictionary indices are a hybrid of runs: either one repeated value, or groups of eight
values packed to `width` bits each, lowest bits first.

*Definition levels.*
They state the null rows, and values are expanded to the other rows. A level is one bit. Levels are a hybrid of runs: a
repeated bit, or groups of eight bits, lowest first; most runs are short. They are collected in words of 64 bits. Eight
one-byte codes at a time are then moved to their rows: each moves up by the number of nulls before it, in steps of 4, 2
and 1 (Warren, Hacker's Delight, 7-5). No field of a file is trusted.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.compilation import njit
from dpscale.base.numerics import Integers
from dpscale.records.parquet.headers import (
    COMPRESSED,
    DAMAGED,
    FINE,
    LENGTH,
    LEVELS,
    MOST,
    NULLS,
    PACKED,
    PLACE,
    Array,
    Int,
    U,
    varint,
    word,
)

STEPS = (4, 2, 1)  # rows by which a code moves up, in sum up to 7

WIDEST = 4  # largest index width in bits for which a byte lookup table is used
WORTH = 1024  # smallest number of values for which the table is built
BEYOND = U(1) << U(63)  # flag in a table's word: an index exceeds the entries


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
            at, distance = value, place - value
            for number, step in enumerate(STEPS):
                if distance & step:
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
            levels = word(data, U(at + (start >> 3))) if head & 1 else repeated
            _append(bits, U(done + start), levels & (~U(0) >> U(64 - min(length - start, 64))))

        done += length
        at += head >> 1 if head & 1 else 1

    return True


@njit(cache=True, nogil=True, inline="always")
def _append(bits: Array, at: np.uint64, levels: np.uint64) -> None:
    place, shift = at >> U(6), at & U(63)
    bits[place] |= levels << shift
    bits[place + U(1)] |= (levels >> U(1)) >> (U(63) - shift)


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
    ones = U(0)
    for byte in range(0, count - 7, 8):
        ones += MOVES[(bits[byte >> 6] >> U(byte & 63)) & U(255), 4]
    for bit in range(count & ~7, count):
        ones += (bits[bit >> 6] >> U(bit & 63)) & U(1)
    return np.int64(ones)


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
        row, rest = group << U(6), _bits(bits, first + (group << U(6)))
        for _ in range(8):
            levels = rest & U(255)
            # eight levels decide how the next values move
            moved, moves = word(values, k), MOVES[levels]
            moved = (moved & ~moves[0]) | ((moved << U(32)) & moves[0])
            moved = (moved & ~moves[1]) | ((moved << U(16)) & moves[1])
            moved = (moved & ~moves[2]) | ((moved << U(8)) & moves[2])
            # values where there is one, and the null's code elsewhere
            put(out, row, (moved & moves[3]) | (nulls & ~moves[3]))
            k, row, rest = k + moves[4], row + U(8), rest >> U(8)

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
            codes = packs[(group >> (step * bits)) & mask]
            beyond |= codes
            eight |= codes << (step * wide)
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
    repetitions of one value of `value_bytes` bytes.

    `at` is the position of the next run, before `end`; `width` is the number of bits of a value, and `entries` the
    number of values in the table. `packs` are the codes of all values of a byte at once, for narrow values.
    """
    done, value_bytes, packs = 0, (width + 7) // 8, packs_of(table, entries, width, count, out)
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
            if at + value_bytes > end:
                return False
            # eight bytes are read, of which a value has `whole`
            value = word(data, U(at)) & ((U(1) << U(8 * value_bytes)) - U(1))
            if take and value >= U(entries):
                return False
            out[done : done + take] = table[value]
            at += value_bytes

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

    `before` and `present` are the numbers of values that are not null among the first rows and among those taken.

    `first` rows of the page are skipped and `taken` rows are read; the code of a null is that of NULL_CELL.
    """
    first, taken = job[FIRST], job[TAKEN]
    bits = np.zeros((first + taken) // 64 + 3, np.uint64)
    if not level_bits(data, levels, at, first + taken, bits):
        return DAMAGED

    before = ones_before(bits, first)
    present = ones_before(bits, first + taken) - before
    values = np.empty(present + 8, out.dtype)  # `expand` reads eight entries past the last
    if present:
        if at >= end or data[at] > 32:
            return DAMAGED
        if not _runs(data, at + 1, end, np.int64(data[at]), before, present, table, job[ENTRIES], values):
            return DAMAGED

    # a null in a column without a cell for nulls
    if present < taken and job[NULL_CELL] == NO_CELL:
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
