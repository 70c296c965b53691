"""Parquet columns whose values stand in a dictionary, straight to cell numbers.

pyarrow decodes such a column to values, a value a row, and cell numbers are then made of these. Here the dictionary is
encoded once (by `encode`, as any column), and its indices, which the pages hold in a few bits a row, become cell
numbers in one pass. pyarrow still opens the file, reads its footer, and decompresses all but Snappy. Columns, or row
groups of them, that are kept in another way, or that are neither whole numbers, floats nor texts, are left to pyarrow.

A row group is decoded in windows of bounded length; only the pages of one window are held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpscale.domain import Domain
from dpscale.tables import page_bytes
from dpscale.tables import page_headers as headers
from dpscale.tables import page_loops as loops
from dpscale.tables.encode import code_type, entries_of, null_cell
from dpscale.tables.numbers import is_text

if TYPE_CHECKING:
    import pyarrow as pa

CODECS = {0: "", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd"}  # CompressionCodec of the format
WINDOW_VALUES = 1 << 24
MOST_CELLS = 1 << 30  # of an attribute, so that a cell fits 32 bits
Cells = NDArray[Any]
Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Decoded:
    """A batch of rows: columns as cell numbers, or as pyarrow has them."""

    rows: int
    columns: dict[str, Any]

    def __len__(self) -> int:
        return self.rows

    def column(self, name: str) -> Any:
        return self.columns[name]


class Chunk(NamedTuple):
    """A column of a row group: its name, the type of its values, how it is compressed, whether it may have nulls, and
    where in the file it begins."""

    name: str
    kind: pa.DataType
    codec: str
    nullable: bool
    start: int


class Group:
    """A row group of a file: those of some columns that are decoded here (`ours`), and their rows.

    `_careful`: of columns of which some entry, or a null that was met, is no cell; each row of them is to be judged.
    """

    def __init__(self, source: Any, data: pa.Buffer, number: int, names: Sequence[str], domain: Domain) -> None:
        self.domain, self._data, self._bytes = domain, data, np.frombuffer(data, np.uint8)
        self.rows, about = source.metadata.row_group(number).num_rows, source.chunks(self._bytes)[number]
        known = domain.alone if self.rows else ()
        found = [chunk for name in names if name in known and (chunk := _chunk(source, about, name, domain[name].size))]
        odd = np.zeros(len(found), np.int64)
        starts = np.array([chunk.start for chunk in found], np.int64)
        widths = np.array([width_of(chunk.kind) for chunk in found], np.int64)
        pages = headers.page_table(self._bytes, starts, widths, self.rows, odd)
        if headers.DAMAGED in odd:
            raise damaged()
        self._chunks = [chunk for chunk, other in zip(found, odd, strict=True) if not other]
        self.ours = [chunk.name for chunk in self._chunks]
        pages[:, headers.COLUMN] -= np.cumsum(odd != 0)[pages[:, headers.COLUMN]]  # without the odd ones
        is_dictionary = pages[:, headers.KIND] == headers.DICTIONARY
        self._tables = _Tables(self, pages[is_dictionary])
        self._pages = pages[~is_dictionary]
        ends = np.cumsum(self._pages[:, headers.VALUES])
        self._firsts = ends - self._pages[:, headers.VALUES] - self.rows * self._pages[:, headers.COLUMN]
        self._places, self._held = np.empty(0, np.int64), np.empty(0, np.uint8)
        self._within, self._span, self._next = (0, 0), (0, 0), 0
        self._window: dict[str, Cells] = {}

    def take(self, rows: int) -> dict[str, Cells]:
        """The columns of the next rows, made a window at a time."""
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
        careful, jobs = self._tables.careful, self._jobs(begin, end)
        found = self._filled(jobs, ~careful, end - begin, code_type(int(self._tables.sizes.max())))
        if len(found) < len(self.ours):
            careful |= np.array([name not in found for name in self.ours], bool)
        return found | (self._filled(jobs, careful, end - begin, np.dtype(np.int32)) if careful.any() else {})

    def _jobs(self, begin: int, end: int) -> Integers:
        """What is to take of each page of a window (jobs, fields)."""
        lasts = self._firsts + self._pages[:, headers.VALUES]
        mine = np.flatnonzero((self._firsts < end) & (lasts > begin))
        pages, firsts, tables = self._pages[mine], self._firsts[mine], self._tables
        columns = pages[:, headers.COLUMN]
        if (mine[0], mine[-1]) != self._within or len(mine) != len(self._places):
            self._held, self._places = self.decompressed(pages)
            self._within = (mine[0], mine[-1])
        jobs = np.empty((len(mine), loops.JOB_FIELDS), np.int64)
        jobs[:, loops.AT], jobs[:, loops.END] = self._places, self._places + pages[:, headers.LENGTH]
        jobs[:, loops.FIRST], jobs[:, loops.START] = np.maximum(begin - firsts, 0), np.maximum(firsts - begin, 0)
        jobs[:, loops.TAKEN] = np.minimum(lasts[mine], end) - np.maximum(firsts, begin)
        jobs[:, loops.ROW], jobs[:, loops.LEVEL_BYTES] = columns, pages[:, headers.LEVELS]
        jobs[:, loops.NULLABLE] = tables.nullable[columns] | (pages[:, headers.LEVELS] > 0)
        jobs[:, loops.TABLE], jobs[:, loops.ENTRIES] = tables.starts[columns], tables.entries[columns]
        jobs[:, loops.NULL_CELL] = tables.nulls[columns]
        return jobs

    def _filled(self, jobs: Integers, wanted: NDArray[np.bool_], rows: int, width: Any) -> dict[str, Cells]:
        """Cells of the columns wanted, by name; codes of a width only where no null is met that is no cell."""
        mine, columns = jobs[wanted[jobs[:, loops.ROW]]], np.flatnonzero(wanted)
        mine[:, loops.ROW] = (np.cumsum(wanted) - 1)[mine[:, loops.ROW]]
        if width.kind == "u":
            mine[mine[:, loops.NULL_CELL] < 0, loops.NULL_CELL] = loops.NO_CELL
        out, states = np.empty((len(columns), rows), width), np.empty(len(mine), np.int64)
        loops.fill(self._held, mine, self._tables.cells, out, states)
        if (states == headers.DAMAGED).any():
            raise damaged()
        null = set(mine[states == headers.NULLS, loops.ROW].tolist())
        return {self.ours[column]: out[row] for row, column in enumerate(columns) if row not in null}

    def decompressed(self, pages: Integers) -> tuple[Bytes, Integers]:
        """The bytes of some pages, and where those of each begin."""
        ends = np.cumsum(pages[:, headers.LENGTH])
        places, out = ends - pages[:, headers.LENGTH], np.empty(ends[-1] + headers.TAIL, np.uint8)
        for codec in {chunk.codec for chunk in self._chunks}:
            mine = np.array([chunk.codec == codec for chunk in self._chunks])[pages[:, headers.COLUMN]]
            how = {"": page_bytes.AS_IT_IS, "snappy": page_bytes.SNAPPY}.get(codec, page_bytes.GIVEN)
            values = self._values(pages[mine], codec) if how == page_bytes.GIVEN else np.empty(0, np.uint8)
            if not page_bytes.unpack(self._bytes, pages[mine], places[mine], how, values, out):
                raise damaged()
        return out, places

    def _values(self, pages: Integers, codec: str) -> Bytes:
        """What pages hold but for levels that stand before it, decompressed by pyarrow, one after another."""
        import pyarrow as pa

        how = pa.Codec(codec)
        levels = np.maximum(pages[:, headers.LEVELS], 0)
        starts, packed = pages[:, headers.PLACE] + levels, pages[:, headers.PACKED] - levels
        lengths, there = pages[:, headers.LENGTH] - levels, pages[:, headers.COMPRESSED] > 0
        pieces = [self._data.slice(*map(int, one)) for one in zip(starts[there], packed[there], strict=True)]
        if codec == "zstd" and pieces:  # frames one after another are as good as one
            return np.frombuffer(how.decompress(b"".join(pieces), int(lengths[there].sum())), np.uint8)
        each = [how.decompress(piece, int(size)) for piece, size in zip(pieces, lengths[there], strict=True)]
        return np.frombuffer(b"".join(each), np.uint8)


class _Tables:
    """Cells of the entries of every column's dictionary, one table after another; and of nulls."""

    def __init__(self, group: Group, pages: Integers) -> None:
        self.entries = pages[:, headers.VALUES].copy()
        self.starts = np.cumsum(self.entries) - self.entries
        chunks = group._chunks
        attributes = [group.domain[chunk.name] for chunk in chunks]
        self.nullable = np.array([chunk.nullable for chunk in chunks], bool)
        self.sizes = np.array([attribute.size for attribute in attributes], np.int64)
        self.nulls = np.array([null_cell(attribute) for attribute in attributes], np.int64)
        self.cells = np.empty(int(self.entries.sum()), np.int32)
        self.careful = np.zeros(len(chunks), bool)
        if not chunks:
            return
        raw, places = group.decompressed(pages)
        lengths, asked, numbers = pages[:, headers.LENGTH], [], []
        for c, (chunk, attribute) in enumerate(zip(chunks, attributes, strict=True)):
            how = stored(chunk.kind)
            if attribute.is_whole and how is not None and how.kind != "f":
                asked.append((places[c], self.entries[c], how.itemsize, how.kind == "u", attribute.low, attribute.high,
                              self.starts[c]))  # fmt: skip
                numbers.append(c)
        inside = np.zeros(len(asked), bool)
        loops.whole_cells(raw, np.array(asked, np.int64).reshape(-1, 7), self.cells, inside)
        done = {c for c, fine in zip(numbers, inside, strict=True) if fine}
        for c in (c for c in range(len(chunks)) if c not in done):
            page = raw[places[c] : places[c] + lengths[c]]
            cells = entries_of(attributes[c], _dictionary(page, chunks[c].kind, int(self.entries[c])))
            self.cells[self.starts[c] : self.starts[c] + self.entries[c]] = cells
            self.careful[c] = cells.min(initial=0) < 0


def _chunk(source: Any, about: Integers, name: str, size: int) -> Chunk | None:
    """A column, where it may be one of a dictionary; a writer need not tell that it has one."""
    place = source.places[name]
    start, codec = int(about[place, headers.DICTIONARY_PLACE]), CODECS.get(int(about[place, headers.CODEC]))
    if start <= 0 or codec is None or size > MOST_CELLS:
        return None
    kind = source.schema.field(place)
    plain = plain_type(kind.type)
    return None if plain is None else Chunk(name, plain, codec, kind.nullable, start)


@cache
def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """The type of values, however they are kept in memory; None for those whose bytes alone do not tell them."""
    import pyarrow.types as types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    told = is_text(kind) or types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
    return kind if told else None


@cache
def width_of(kind: pa.DataType) -> int:
    """Bytes of a number as it lies in a file; 0 for texts."""
    how = stored(kind)
    return 0 if how is None else how.itemsize


@cache
def stored(kind: pa.DataType) -> np.dtype[Any] | None:
    """How a number lies in a file; None for texts."""
    import pyarrow.types as types

    if is_text(kind):
        return None
    letter = "f" if types.is_floating(kind) else "u" if types.is_unsigned_integer(kind) else "i"
    return np.dtype(f"<{letter}{max(kind.bit_width // 8, 4)}")


def _dictionary(raw: Bytes, kind: pa.DataType, count: int) -> pa.Array:
    """The values of a dictionary page."""
    import pyarrow as pa

    how = stored(kind)
    return _texts(raw, count) if how is None else pa.array(raw.view(how).astype(kind.to_pandas_dtype()), kind)


def _texts(raw: Bytes, count: int) -> pa.Array:
    import pyarrow as pa

    offsets, texts = np.zeros(count + 1, np.int64), np.empty(len(raw), np.uint8)
    size = loops.text_ends(raw, count, offsets, texts)
    if size < 0:
        raise damaged()
    return pa.Array.from_buffers(pa.large_string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(texts[:size])])


def damaged() -> Exception:
    """What pyarrow raises of a damaged file."""
    import pyarrow as pa

    return pa.ArrowInvalid("damaged")
