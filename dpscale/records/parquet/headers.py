"""Compiled loops that parse a Parquet file's metadata: column chunks in the footer, and page headers.

Both are structs of Thrift's compact protocol. No field of a file is trusted: any position outside its bytes ends the
loop with DAMAGED.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpscale.base.compilation import njit
from dpscale.base.numerics import Integers, NDArray

Array = NDArray[Any]
U = np.uint64
Int = Any  # an integer, as compiled by Numba

# results for the pages of a chunk: readable; invalid bytes; a layout left to pyarrow; unexpected nulls
FINE, DAMAGED, OTHER, NULLS = 0, 1, 2, 3
MOST = (1 << 31) - 1  # largest count in the format
LENGTH_BYTES = 4  # length prefix of a text
TAIL = 8  # bytes after a page that may be read

# fields of a page: column, kind, position, packed and unpacked bytes, values, encoding, level bytes, compressed
COLUMN, KIND, PLACE, PACKED, LENGTH, VALUES, ENCODING, LEVELS, COMPRESSED, FIELDS = range(10)
DATA, INDEX, DICTIONARY, DATA2 = 0, 1, 2, 3  # PageType of the Parquet format
PLAIN, OLD_DICTIONARY, RUNS, BY_DICTIONARY = 0, 2, 3, 8  # Encoding of the Parquet format
ROW_GROUPS, COLUMNS, ABOUT = 4, 1, 3  # field ids in the footer, in a row group, in a column chunk
CODEC, COUNT, UNPACKED, BYTES, DATA_PLACE, DICTIONARY_PLACE = 4, 5, 6, 7, 9, 11  # field ids in ColumnMetaData
CHUNK_FIELDS = 16  # field ids of ColumnMetaData are below it
DEEP = 16  # maximum nesting of structs and lists


@njit(cache=True, nogil=True, inline="always")
def word(data: Array, at: np.uint64) -> np.uint64:
    """Return eight bytes from any position. Positions are unsigned, because a signed index has an additional check."""
    return (
        U(data[at])
        | U(data[at + U(1)]) << U(8)
        | U(data[at + U(2)]) << U(16)
        | U(data[at + U(3)]) << U(24)
        | U(data[at + U(4)]) << U(32)
        | U(data[at + U(5)]) << U(40)
        | U(data[at + U(6)]) << U(48)
        | U(data[at + U(7)]) << U(56)
    )


@njit(cache=True, nogil=True)
def varint(data: Array, at: Int, end: Int) -> tuple[Int, Int]:
    """Return the number at a position and the next position; -1 past the end.

    Each byte has seven bits of the number, lowest first, and a top bit of 1 if another byte follows.
    """
    value, shift = U(0), U(0)
    while at < end and shift < 64:
        byte = U(data[at])
        at += 1
        value |= (byte & U(127)) << shift
        if byte < 128:
            return np.int64(value), at
        shift += U(7)
    return np.int64(0), -1


@njit(cache=True, nogil=True)
def _number(data: Array, at: Int, end: Int, kind: Int, listed: bool) -> tuple[Int, Int]:
    """Return a scalar of a Thrift type, if it is an integer or boolean, and the next position.

    The kinds are those of Thrift's compact protocol: 1 and 2 true and false, 3 a byte, 4 to 6 integers, 7 a double, 8
    bytes or a text. Integers are zigzag numbers. Values that are no integer or boolean are skipped and give 0; a
    position of -1 is a failure.
    """
    # see the kinds above
    if kind <= 2:  # the type itself states true or false, except in lists
        return 2 - kind, at + listed
    if kind == 3:
        return 0, at + 1
    if kind == 7:
        return 0, at + 8

    value, at = varint(data, at, end)
    if at < 0 or kind != 8:
        return (value >> 1) ^ -(value & 1), at
    return 0, at + value if 0 <= value <= end - at else -1


@njit(cache=True, nogil=True)
def _walk(data: Array, at: Int, end: Int, footer: bool, fields: NDArray[np.int64]) -> Int:
    """Parse a struct and return the next position, or a negative value on failure.

    `depth` is the nesting; `last` is the number of the current field, or of the current element of a list, at each
    depth, `remaining` the remaining elements and `kinds` their type.

    Parameters
    ----------
    footer : bool
        Whether the struct is a file's footer; otherwise it is a page header.
    fields : ndarray of int64
        Receives the integer fields, indexed by (0, struct, field) for a page header and by (row group, column, field of
        its chunk) for a footer; -1 for absent ones.
    """
    fields[:] = -1
    is_list, last, remaining = np.zeros(DEEP, np.bool_), np.zeros(DEEP, np.int64), np.zeros(DEEP, np.int64)
    kinds, depth = np.zeros(DEEP, np.int64), 0

    kind: Int = 0
    # one turn per field of a struct or element of a list; a struct inside either opens a new depth
    while 0 <= at < end:
        if is_list[depth]:
            if remaining[depth] == 0:
                depth -= 1
                continue
            remaining[depth] -= 1
            last[depth] += 1
            kind = kinds[depth]
        else:
            byte = data[at]
            at += 1
            # stop byte of a struct
            if byte == 0:
                depth -= 1
                if depth < 0:
                    return at
                continue

            kind, step = np.int64(byte & 15), np.int64(byte >> 4)
            # a long form states the field's number itself
            if step == 0:
                step, at = _number(data, at, end, 4, False)
                last[depth] = 0

            last[depth] += step

        # list, set, map (not used by Parquet) and struct
        if 9 <= kind <= 12:
            depth += 1
            if depth == DEEP or kind == 11 or not 0 <= at < end:
                return -OTHER

            is_list[depth], last[depth] = kind != 12, 0
            # header of a list: the type of its elements and their number; 15 means that the number follows
            if kind != 12:
                last[depth], kinds[depth], remaining[depth] = -1, np.int64(data[at] & 15), np.int64(data[at] >> 4)
                at += 1
                if remaining[depth] == 15:
                    remaining[depth], at = varint(data, at, end)

            continue

        # a scalar; `last` of all depths is its path from the outermost struct
        value, at = _number(data, at, end, kind, is_list[depth])
        if footer:
            # footer: row group, column chunk, its metadata
            is_requested = depth == 5 and last[0] == ROW_GROUPS and last[2] == COLUMNS and last[4] == ABOUT
            i, j = last[1], last[3]
        else:
            is_requested, i, j = depth <= 1, 0, last[0] if depth else 0

        if (
            is_requested
            and 0 <= i < fields.shape[0]
            and 0 <= j < fields.shape[1]
            and 0 <= last[depth] < fields.shape[2]
        ):
            fields[i, j, last[depth]] = value

    return -DAMAGED


@njit(cache=True, nogil=True)
def chunk_table(data: Array, row_groups: Int, columns: Int) -> NDArray[np.int64]:
    """Return the fields of ColumnMetaData, shape (row groups, columns, CHUNK_FIELDS); -1 for absent fields.

    `data` ends with the file: footer, length of the footer in 4 bytes, and a magic number of 4 bytes. If the footer is
    not inside `data` or is damaged, all fields are -1.
    """
    fields = np.empty((row_groups, columns, CHUNK_FIELDS), np.int64)
    end = len(data) - TAIL
    start = end - np.int64(word(data, U(end)) & U(0xFFFFFFFF)) if end > 0 else -1  # the low 4 of 8 bytes
    if start < 0 or _walk(data, start, end, True, fields) < 0:  # True: a footer, not a page header
        fields[:] = -1
    return fields


@njit(cache=True, nogil=True)
def largest_page(data: Array, start: Int, values: Int) -> Int:
    """Return the largest number of unpacked bytes of a page of a column chunk; -1 if the chunk is damaged.

    The fields of a page header are those of parquet.thrift: struct 0 has the kind (1), the unpacked bytes (2) and the
    packed bytes (3); structs 5 and 8 are data pages of version 1 and 2, whose field 1 is the number of values.

    `seen` is the number of values in the pages so far. Dictionary and index pages have no values of rows.
    """
    header, at, end, seen, largest = np.empty((1, 10, 10), np.int64), start, len(data) - TAIL, 0, 0
    fields = header[0]
    while seen < values:
        at = _walk(data, at, end, False, header) if at >= 0 else at
        if at < 0 or not 0 <= fields[0, 3] <= end - at or fields[0, 2] < 0:
            return -1
        largest, at = max(largest, fields[0, 2]), at + fields[0, 3]
        if fields[0, 1] == DATA:
            seen += fields[5, 1]
        elif fields[0, 1] == DATA2:
            seen += fields[8, 1]

    return largest


@njit(cache=True, nogil=True)
def page_table(data: Array, starts: Integers, widths: Integers, rows: Int, odd: Array) -> Integers:
    """Return the pages of column chunks in order, shape (pages, FIELDS).

    Header fields are those of `largest_page`; struct 7 is a dictionary page.

    Of a page header, struct 0 is the header itself (field 1: type, 2 and 3: bytes without and with compression), 5 a
    data page, 7 a dictionary page and 8 a data page of version 2. Pages of other types (indexes) are skipped. The pages
    of a chunk that is not FINE are dropped. `begun` is the number of pages before chunk c, and `seen` the number of its
    values so far.

    Parameters
    ----------
    data : ndarray of uint8
        Bytes of the file.
    starts : ndarray of int64
        Positions of the chunks.
    widths : ndarray of int64
        Bytes per value of each chunk's dictionary; 0 for texts.
    rows : int
        Rows of the row group.
    odd : ndarray of int64
        Set to FINE, to DAMAGED, or to OTHER if the chunk is not one dictionary followed by pages of indices into it.
    """
    pages, header, count = np.empty((64, FIELDS), np.int64), np.empty((1, 10, 10), np.int64), 0
    fields = header[0]
    for c in range(len(starts)):
        # later loops read words of 8 bytes, so the last TAIL bytes belong to no page
        at, end, seen, begun = starts[c], len(data) - TAIL, 0, count
        odd[c] = FINE
        if at < 0:
            odd[c] = DAMAGED

        while seen < rows and odd[c] == FINE:
            at = _walk(data, at, end, False, header)
            if at < 0:
                # `_walk` fails with −DAMAGED or −OTHER
                odd[c] = -at
                break

            kind, packed = fields[0, 1], fields[0, 3]
            if not (0 <= packed <= end - at and 0 <= fields[0, 2] <= MOST):
                odd[c] = DAMAGED
                break

            # the number of pages is not known before: double the table
            if count == len(pages):
                more = np.empty((2 * count, FIELDS), np.int64)
                more[:count] = pages
                pages = more

            page = pages[count]
            page[COLUMN], page[KIND], page[PLACE], page[PACKED], page[LENGTH] = c, kind, at, packed, fields[0, 2]
            # version 1: levels are inside the compressed bytes, with their length in front
            page[LEVELS], page[COMPRESSED] = -1, 1
            at += packed

            if kind == DATA:
                page[VALUES], page[ENCODING] = fields[5, 1], fields[5, 2]
                # definition levels in another encoding than runs
                if fields[5, 3] != RUNS:
                    odd[c] = OTHER
            elif kind == DATA2:
                page[VALUES], page[ENCODING] = fields[8, 1], fields[8, 4]
                page[LEVELS], page[COMPRESSED] = fields[8, 5], fields[8, 7] != 0
                # repetition levels, which lists have, or an invalid length of the definition levels
                if fields[8, 6] > 0 or page[LEVELS] < 0 or page[LEVELS] > packed:
                    odd[c] = OTHER
            elif kind == DICTIONARY:
                page[VALUES], page[ENCODING] = fields[7, 1], fields[7, 2]
            else:
                continue

            if not 0 <= page[VALUES] <= MOST:
                odd[c] = DAMAGED
                break

            if kind == DICTIONARY:
                # a dictionary is the first page of its chunk, and each of its texts has a length prefix
                plain = page[ENCODING] == PLAIN or page[ENCODING] == OLD_DICTIONARY
                fits = page[VALUES] * widths[c] == page[LENGTH]  # otherwise stored in another type
                if count > begun or not plain or (widths[c] and not fits):
                    odd[c] = OTHER
                # more texts than fit, so that later loops cannot be made to allocate too much
                elif page[VALUES] * LENGTH_BYTES > page[LENGTH]:
                    odd[c] = DAMAGED
            else:
                seen += page[VALUES]
                indices = page[ENCODING] == BY_DICTIONARY or page[ENCODING] == OLD_DICTIONARY
                # a data page before the dictionary, or values that are stored directly
                if count == begun or not indices:
                    odd[c] = OTHER

            count += 1

        # the pages of a flat column have one value or null for each row
        if odd[c] == FINE and seen != rows:
            odd[c] = DAMAGED
        if odd[c] != FINE:
            count = begun

    return pages[:count]
