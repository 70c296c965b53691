"""Direct conversion of dictionary-encoded Parquet columns to cell numbers.

pyarrow decodes such a column to one value per row, from which cell numbers are then computed. Here `encode` converts
the dictionary once, and the indices, which the pages store in a few bits per row, become cell numbers in one pass.
pyarrow still opens the file, reads its footer and decompresses every codec except Snappy. Columns or row groups with
another encoding, and columns that are neither integers, floats nor texts, are left to pyarrow.

A row group is decoded in windows of bounded length, and only the pages of one window are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from dpscale.base.arrow import is_text, pa, types
from dpscale.base.numerics import Integers, NDArray
from dpscale.domain import Domain
from dpscale.records.encode import code_type, entries_of, null_cell
from dpscale.records.parquet import headers, values as loops

MOST_CELLS = 1 << 30  # of one attribute, so that a cell fits in 32 bits


@dataclass(frozen=True, eq=False)
class Columns:
    """Attributes whose columns can be decoded from pages; all arrays have one entry per attribute.

    Attributes
    ----------
    names : tuple of str
    kinds : tuple of pyarrow DataType
        Types of the values.
    places : ndarray of int64
        Positions among the file's columns.
    nullable : ndarray of bool
    sizes : ndarray of int64
        Numbers of cells.
    nulls : ndarray of int64
        Cells of a null; negative if there is none.
    whole : ndarray of bool
        Whether a cell is an integer value minus `low`.
    numbers : ndarray of int64, shape (attributes, 4)
        Bytes per dictionary value (0 for texts), whether it is unsigned, lowest and highest value (0 unless `whole`).
    """

    names: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]
    places: Integers
    nullable: NDArray[np.bool_]
    sizes: Integers
    nulls: Integers
    whole: NDArray[np.bool_]
    numbers: Integers


class _PageRequest:
    """Hashable cache key: names of a domain in files of a schema.

    It references the domain, so that `id(domain)` is not reused.
    """

    def __init__(self, schema: pa.Schema, names: Sequence[str], domain: Domain) -> None:
        self.schema, self.names, self.domain = schema, tuple(names), domain

    def __hash__(self) -> int:
        return hash((self.names, id(self.domain)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PageRequest) and self.domain is other.domain and self.names == other.names and bool(
            self.schema.equals(other.schema)
        )  # fmt: skip


def columns_of(schema: pa.Schema, names: Sequence[str], domain: Domain) -> Columns:
    """Return the requested columns that can be decoded from pages."""
    return _columns_of(_PageRequest(schema, names, domain))


@lru_cache(maxsize=64)
def _columns_of(request: _PageRequest) -> Columns:
    """Return what the loops over pages need to know of each column: type, place, nulls, cells and range of values.

    Columns with a type or an attribute that the loops cannot decode are left out.

    Per column: its place in the file, whether it has nulls, the number of its codes, the cell of a null (negative
    without one), whether a cell is an integer minus the low end, and (bytes of a value, unsigned, low, high).
    """
    schema, domain = request.schema, request.domain
    places = {name: place for place, name in enumerate(schema.names)}
    # an attribute alone in its column, of codes that fit 32 bits
    decodable = [name for name in request.names if name in domain.alone and domain[name].code_count <= MOST_CELLS]
    names = tuple(name for name in decodable if plain_type(schema.field(places[name]).type) is not None)
    fields, attributes = [schema.field(places[name]) for name in names], [domain[name] for name in names]
    kinds = tuple(plain_type(field.type) for field in fields)
    becomes_cell = [a.is_whole and types.is_integer(kind) for a, kind in zip(attributes, kinds, strict=True)]
    # the range matters only for integers that become cells by subtraction
    numbers = [
        (
            width_of(kind),
            is_integer and types.is_unsigned_integer(kind),
            attribute.low if is_integer else 0,
            attribute.high if is_integer else 0,
        )
        for attribute, kind, is_integer in zip(attributes, kinds, becomes_cell, strict=True)
    ]

    return Columns(
        names=names,
        kinds=kinds,
        places=np.array([places[name] for name in names], np.int64),
        nullable=np.array([field.nullable for field in fields], bool),
        sizes=np.array([attribute.code_count for attribute in attributes], np.int64),
        nulls=np.array([null_cell(attribute) for attribute in attributes], np.int64),
        whole=np.array(becomes_cell, bool),
        numbers=np.array(numbers, np.int64).reshape(-1, 4),
    )


@cache
def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the value type without dictionary encoding; None if the stored bytes alone do not determine the value."""
    kind = kind.value_type if types.is_dictionary(kind) else kind
    decodable = is_text(kind) or types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
    return kind if decodable else None


@cache
def width_of(kind: pa.DataType) -> int:
    """Return the number of bytes of a stored number; 0 for texts."""
    how = stored(kind)
    return 0 if how is None else how.itemsize


@cache
def stored(kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the dtype of a number as stored in a file; None for texts."""
    if is_text(kind):
        return None
    letter = "f" if types.is_floating(kind) else "u" if types.is_unsigned_integer(kind) else "i"
    return np.dtype(f"<{letter}{max(kind.bit_width // 8, 4)}")


CODECS = {0: "", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd"}  # CompressionCodec of the Parquet format
# by the number of a codec in the format, which has three bits
KNOWN = np.array([codec in CODECS for codec in range(8)])
WINDOW_VALUES = 1 << 24  # values of a window, its rows times columns
Cells = NDArray[Any]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Decoded:
    """Batch of rows whose columns are cell numbers or pyarrow arrays."""

    rows: int
    columns: dict[str, Any]

    def __len__(self) -> int:
        return self.rows

    def column(self, name: str) -> Any:
        return self.columns[name]


class Group:
    """Row group of a file: the columns that are decoded here (`ours`) and their rows.

    A window is first decoded to unsigned codes. Columns with a dictionary entry that has no cell, or with a null that
    has none, are decoded to signed cells instead, so that `encode` checks each row.

    `_firsts` has the first row of each page in the row group, `chosen` the places of the columns that are decoded
    here, and `_held` the decompressed bytes of the pages of the last window, which begin at `_places`. `odd`, in the
    constructor, is the state of each column chunk (see `headers.page_table`): columns with another state than FINE are
    left to pyarrow.
    """

    def __init__(self, source: Any, data: pa.Buffer, number: int, names: Sequence[str], domain: Domain) -> None:
        """Find the column chunks that are decoded here, and the places of their pages.

        Row group `number` of `source` is read from the bytes `data` of the file. A chunk is decoded here if it has a
        dictionary and a known codec.
        """
        self._data, self._bytes = data, np.frombuffer(data, np.uint8)
        self.rows, about = source.metadata.row_group(number).num_rows, source.chunks(self._bytes)[number]
        self.columns = columns_of(source.schema, names if self.rows else (), domain)
        starts, codecs = about[self.columns.places][:, [headers.DICTIONARY_PLACE, headers.CODEC]].T
        # a codec from 0 to 7 that is in CODECS
        known = (codecs == codecs & 7) & KNOWN[codecs & 7]
        candidates = np.flatnonzero((starts > 0) & known)  # writers may omit the position of the dictionary
        odd = np.zeros(len(candidates), np.int64)
        pages = headers.page_table(self._bytes, starts[candidates], self.columns.numbers[candidates, 0], self.rows, odd)
        if headers.DAMAGED in odd:
            raise damaged()

        self.chosen = candidates[odd == 0]
        self.codecs, self.ours = codecs[self.chosen], [self.columns.names[place] for place in self.chosen.tolist()]
        pages[:, headers.COLUMN] -= np.cumsum(odd != 0)[
            pages[:, headers.COLUMN]
        ]  # renumber without the columns left to pyarrow
        is_dictionary = pages[:, headers.KIND] == headers.DICTIONARY
        self._tables = _Tables(self, pages[is_dictionary], domain)
        self._pages = pages[~is_dictionary]
        ends = np.cumsum(self._pages[:, headers.VALUES])
        # every column before has as many values as the row group has rows
        self._firsts = ends - self._pages[:, headers.VALUES] - self.rows * self._pages[:, headers.COLUMN]
        self._places, self._held = np.empty(0, np.int64), np.empty(0, np.uint8)
        self._within, self._span, self._next = (0, 0), (0, 0), 0
        self._window: dict[str, Cells] = {}

    def take(self, rows: int) -> dict[str, Cells]:
        """Return the columns of the next rows, decoded one window at a time.

        `_span` has the rows (begin, end) of the window that `_window` contains, and `_next` is the first row that was
        not taken.
        """
        if not self.ours:
            return {}

        begin, end = self._span
        if self._next + rows > end:
            begin, length = self._next, WINDOW_VALUES // max(len(self.ours), 1)
            end = min(begin + max(rows, length), self.rows)
            self._window, self._span = self._decoded(begin, end), (begin, end)

        first, self._next = self._next - begin, self._next + rows
        return {name: cells[first : first + rows] for name, cells in self._window.items()}

    def _decoded(self, begin: int, end: int) -> dict[str, Cells]:
        """Return the cells of the rows from `begin` to `end` by column: unsigned codes, or int32 of careful columns.

        A column in which unsigned codes meet a null without a cell becomes careful for all further windows.
        """
        careful, jobs = self._tables.careful, self._jobs(begin, end)
        codes = self._filled(jobs, ~careful, end - begin, code_type(int(self._tables.sizes.max())))
        if len(codes) < len(self.ours):
            careful |= np.array([name not in codes for name in self.ours], bool)
        return codes | (self._filled(jobs, careful, end - begin, np.dtype(np.int32)) if careful.any() else {})

    def _jobs(self, begin: int, end: int) -> Integers:
        """Return the parts of pages to decode for a window, shape (jobs, JOB_FIELDS).

        The columns of a job are named in `parquet.values`: bytes of the page, rows to take of it, row of the output and
        where they start there, table of the dictionary's cells, and the cell of a null.

        A window has the rows `begin` to `end` of the row group. `inside` are the pages with rows in it: a page has the
        rows from `firsts` up to `lasts`.
        """
        lasts = self._firsts + self._pages[:, headers.VALUES]
        inside = np.flatnonzero((self._firsts < end) & (lasts > begin))
        pages, firsts, tables = self._pages[inside], self._firsts[inside], self._tables
        columns = pages[:, headers.COLUMN]
        # the pages of the last window are decompressed already
        if (inside[0], inside[-1]) != self._within or len(inside) != len(self._places):
            self._held, self._places = self.decompressed(pages)
            self._within = (inside[0], inside[-1])

        jobs = np.empty((len(inside), loops.JOB_FIELDS), np.int64)
        jobs[:, loops.AT], jobs[:, loops.END] = self._places, self._places + pages[:, headers.LENGTH]
        # rows skipped in the page, and rows of the window before it; one of them is 0
        jobs[:, loops.FIRST], jobs[:, loops.START] = np.maximum(begin - firsts, 0), np.maximum(firsts - begin, 0)
        jobs[:, loops.TAKEN] = np.minimum(lasts[inside], end) - np.maximum(firsts, begin)
        jobs[:, loops.ROW], jobs[:, loops.LEVEL_BYTES] = columns, pages[:, headers.LEVELS]
        # a page of version 2 may have levels although its column has no nulls
        jobs[:, loops.NULLABLE] = tables.nullable[columns] | (pages[:, headers.LEVELS] > 0)
        jobs[:, loops.TABLE], jobs[:, loops.ENTRIES] = tables.starts[columns], tables.entries[columns]
        jobs[:, loops.NULL_CELL] = tables.nulls[columns]

        return jobs

    def _filled(self, jobs: Integers, wanted: NDArray[np.bool_], rows: int, width: np.dtype[Any]) -> dict[str, Cells]:
        """Return the decoded columns by name; unsigned codes omit columns with a null that has no cell.

        `wanted` marks the columns to decode, `rows` is the length of the window, and `width` the type of the output. In
        unsigned codes no number is free for a null without a cell, so NO_CELL makes the loop report it.
        """
        own_jobs, columns = jobs[wanted[jobs[:, loops.ROW]]], np.flatnonzero(wanted)
        own_jobs[:, loops.ROW] = (np.cumsum(wanted) - 1)[own_jobs[:, loops.ROW]]
        if width.kind == "u":
            own_jobs[own_jobs[:, loops.NULL_CELL] < 0, loops.NULL_CELL] = loops.NO_CELL
        out, states = np.empty((len(columns), rows), width), np.empty(len(own_jobs), np.int64)
        loops.fill(self._held, own_jobs, self._tables.cells, out, states)
        if (states == headers.DAMAGED).any():
            raise damaged()

        null = set(own_jobs[states == headers.NULLS, loops.ROW].tolist())
        return {self.ours[column]: out[row] for row, column in enumerate(columns) if row not in null}

    def decompressed(self, pages: Integers) -> tuple[Bytes, Integers]:
        """Return the decompressed bytes of pages and the start of each page in them.

        The page table is that of `headers.page_table`. pyarrow decompresses every codec except none and Snappy.
        """
        ends = np.cumsum(pages[:, headers.LENGTH])
        places, out = ends - pages[:, headers.LENGTH], np.empty(ends[-1] + headers.TAIL, np.uint8)
        codecs = self.codecs[pages[:, headers.COLUMN]]

        for codec in set(codecs.tolist()):
            has_codec = codecs == codec
            how = {"": loops.AS_IT_IS, "snappy": loops.SNAPPY}.get(CODECS[codec], loops.GIVEN)
            values = self._values(pages[has_codec], CODECS[codec]) if how == loops.GIVEN else np.empty(0, np.uint8)
            if not loops.unpack(self._bytes, pages[has_codec], places[has_codec], how, values, out):
                raise damaged()

        return out, places

    def _values(self, pages: Integers, codec: str) -> Bytes:
        """Return the contents of pages without uncompressed levels, decompressed by pyarrow and concatenated.

        `levels` are the bytes before the values that a page of version 2 stores uncompressed. Pages without compression
        are not among the pieces.
        """
        how = pa.Codec(codec)
        levels = np.maximum(pages[:, headers.LEVELS], 0)
        starts, packed = pages[:, headers.PLACE] + levels, pages[:, headers.PACKED] - levels
        lengths, there = pages[:, headers.LENGTH] - levels, pages[:, headers.COMPRESSED] > 0
        pieces = [self._data.slice(*map(int, span)) for span in zip(starts[there], packed[there], strict=True)]
        if codec == "zstd" and pieces:  # concatenated zstd frames can be decompressed together
            return np.frombuffer(how.decompress(b"".join(pieces), int(lengths[there].sum())), np.uint8)

        each = [how.decompress(piece, int(size)) for piece, size in zip(pieces, lengths[there], strict=True)]
        return np.frombuffer(b"".join(each), np.uint8)


class _Tables:
    """Cells of the entries of every column's dictionary, concatenated, and the cells of nulls.

    `entries` and `starts` are the number and the first place of each column's entries in `cells`; `careful` marks
    columns with an entry that has no cell.
    """

    def __init__(self, group: Group, pages: Integers, domain: Domain) -> None:
        """Encode the dictionaries of the columns; `pages` are their dictionary pages, one for each column.

        Compiled code encodes whole numbers inside the domain. `encode` does it for all other dictionaries.
        """
        columns, chosen = group.columns, group.chosen
        self.entries = pages[:, headers.VALUES].copy()
        self.starts = np.cumsum(self.entries) - self.entries
        self.nullable, self.sizes, self.nulls = columns.nullable[chosen], columns.sizes[chosen], columns.nulls[chosen]
        self.cells = np.empty(int(self.entries.sum()), np.int32)
        self.careful = np.zeros(len(chosen), bool)
        if not len(chosen):
            return

        # `raw` has the decompressed dictionaries, of column c from places[c] on
        raw, places = group.decompressed(pages)
        # integers are converted by a compiled loop, other types by `entries_of`
        others = self._others(raw, places, columns.numbers[chosen], columns.whole[chosen])
        for c in (place for place in others if self.entries[place]):
            page, kind = raw[places[c] : places[c] + pages[c, headers.LENGTH]], columns.kinds[chosen[c]]
            cells = entries_of(domain[group.ours[c]], _dictionary(page, kind, int(self.entries[c])))
            self.cells[self.starts[c] : self.starts[c] + self.entries[c]] = cells
            # an entry without a cell is a fault only if a row refers to it
            self.careful[c] = cells.min(initial=0) < 0

    def _others(self, raw: Bytes, places: Integers, numbers: Integers, whole: NDArray[np.bool_]) -> list[int]:
        """Fill in the cells of integer columns; return the columns of other types or with values outside the domain.

        `raw` has the decompressed dictionaries and `places` where that of each column begins; `numbers` and `whole` are
        those of `Columns`.
        """
        integers = np.column_stack([places, self.entries, numbers, self.starts])[whole]
        inside, is_left = np.zeros(len(integers), bool), ~whole
        loops.whole_cells(raw, integers, self.cells, inside)
        is_left[whole] = ~inside
        return list(map(int, np.flatnonzero(is_left)))


def _dictionary(raw: Bytes, kind: pa.DataType, count: int) -> pa.Array:
    """Return the values of a dictionary page."""
    how = stored(kind)
    return _texts(raw, count) if how is None else pa.array(raw.view(how).astype(kind.to_pandas_dtype()), kind)


def _texts(raw: Bytes, count: int) -> pa.Array:
    """Return `count` texts of a dictionary page, each a length in 4 bytes and its letters."""
    offsets, texts = np.zeros(count + 1, np.int64), np.empty(len(raw), np.uint8)
    size = loops.text_ends(raw, count, offsets, texts)
    if size < 0:
        raise damaged()
    return pa.Array.from_buffers(pa.large_string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(texts[:size])])


def damaged() -> Exception:
    """Return the exception that pyarrow raises for a damaged file."""
    return pa.ArrowInvalid("damaged")
