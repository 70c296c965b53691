"""Parquet files of noisy values, each with the label of the noise record of its measurement.

A row is one measured number: `label`, canonical JSON, and `value`. The fields common to all records of a release are in
the file metadata. A value is accepted only if its record is the expected one. A file is written under a temporary name,
flushed and renamed, so a file under its final name is complete. Rows are written in row groups; a task needs memory for
one group, and a reader reads one group at a time.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from dpscale.base.arrow import pa, pq
from dpscale.base.errors import JobError
from dpscale.base.numerics import Floats, Integers, NDArray
from dpscale.plans.measurement_plan import MeasurementRequests
from dpscale.privacy.streams import canonical
from dpscale.storage.files import check_real, is_local, reading, writing

Labelled = tuple[str, Floats]  # the label as canonical JSON
GROUP_VALUES, GROUP_LABELS = 1 << 13, 1 << 10  # largest row group
CACHED_BYTES = 1 << 25  # of row groups in the cache
MOST_OPEN, MOST_FETCHED = 256, 8  # open files; files of an object store are in memory
LARGE_PAGES: dict[str, Any] = {"data_page_size": 1 << 26, "write_batch_size": 1 << 20}  # half the time of small pages
PACKED = {"label": "zstd", "value": "none"}
META = b"dpscale"


def write_values(path: Path, head: Mapping[str, Any], measured: Iterable[Labelled]) -> None:
    """Write measurements to a temporary file, flush it and rename it.

    Parameters
    ----------
    path : Path
    head : mapping
        Fields that all noise records begin with.
    measured : iterable of (str, ndarray)
        Label and values of each measurement.
    """
    schema = _schema(canonical(head))
    with writing(path) as file, pq.ParquetWriter(file, schema, compression=PACKED, use_dictionary=["label"],
                                                 dictionary_pagesize_limit=1 << 30, write_statistics=False,
                                                 **LARGE_PAGES) as writer:  # fmt: skip
        for labels, values in _groups(measured):
            codes = np.repeat(np.arange(len(labels), dtype=np.int32), [array.size for array in values])
            column = pa.DictionaryArray.from_arrays(codes, pa.array(labels, pa.string()))
            flat = values[0].reshape(-1) if len(values) == 1 else np.concatenate([part.reshape(-1) for part in values])
            writer.write_table(pa.table([column, flat], schema=schema), row_group_size=max(len(flat), 1))


def _schema(head: bytes) -> pa.Schema:
    label = pa.field("label", pa.dictionary(pa.int32(), pa.string()), nullable=False)
    value = pa.field("value", pa.float64(), nullable=False)
    return pa.schema([label, value], metadata={META: head})


def _groups(measured: Iterable[Labelled]) -> Iterator[tuple[list[str], list[Floats]]]:
    """Yield the labels and values of each row group.

    A row group has at most GROUP_VALUES values, unless one measurement has more, and at most GROUP_LABELS labels.
    """
    labels, values, count = list[str](), list[Floats](), 0
    for label, array in measured:
        if labels and (count + array.size > GROUP_VALUES or len(labels) == GROUP_LABELS):
            yield labels, values
            labels, values, count = [], [], 0
        labels.append(label)
        values.append(array)
        count += array.size
    if labels:
        yield labels, values


@dataclass(frozen=True, eq=False)
class RowGroup:
    """Row group of a value file.

    Attributes
    ----------
    first : int
        First row.
    values : ndarray of float64, shape (rows,)
    codes : ndarray of int32, shape (rows,)
        Label number of each row.
    labels : pyarrow StringArray
    """

    first: int
    values: Floats
    codes: NDArray[np.int32]
    labels: pa.StringArray

    def read(self, start: int, size: int, label: str) -> Floats | None:
        """Return `size` values from row `start`, or None unless these rows are in the group and have the label.

        Rows of a label are adjacent, so it is enough to compare the first and the last one.
        """
        begin = start - self.first
        codes = self.codes[begin : begin + size]
        if len(codes) != size or codes[0] != codes[-1] or self.labels[int(codes[0])].as_py() != label:
            return None
        return self.values[begin : begin + size]


class ValueReader:
    """Reader of value files with a cache of open files and of recently read row groups."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        """`head` is what all values of the files share; row groups are cached up to CACHED_BYTES."""
        self._head = canonical(head)
        self._files: OrderedDict[Path, tuple[pq.ParquetFile, list[int]]] = OrderedDict()
        self._groups: OrderedDict[tuple[Path, int], RowGroup] = OrderedDict()
        self._cached_bytes, self._lock = 0, Lock()

    def read(self, path: Path, start: int, size: int, label: str) -> Floats:
        """Return the values of one measurement from row `start`.

        `size` is the number of values, and `label` the name of the measurement that the rows must have.

        Raises
        ------
        JobError
            If the file cannot be read or the values belong to another record.
        """
        try:
            with self._lock:
                group = self._group(path, start)
        except (OSError, pa.ArrowException):
            raise _unreadable(path) from None
        values = group.read(start, size, label)
        if values is None:
            raise foreign_values(path)
        return values

    def _group(self, path: Path, row: int) -> RowGroup:
        """Return the row group that contains a row of a file. Raises JobError for a row beyond the end."""
        file, starts = self._opened(path)  # `starts` has the first row of each row group, then the number of rows
        number = bisect_right(starts, row) - 1
        if number >= len(starts) - 1:
            raise foreign_values(path)
        if (path, number) not in self._groups:
            self._keep((path, number), read_group(file, number, starts[number]))
        self._groups.move_to_end((path, number))
        return self._groups[path, number]

    def _keep(self, key: tuple[Path, int], group: RowGroup) -> None:
        """Cache a row group of a file; the least recently used ones are dropped beyond CACHED_BYTES.

        `key` is the path and the number of the row group; the last one is kept even if it is larger than the limit.
        """
        self._groups[key] = group
        self._cached_bytes += group.values.nbytes
        while self._cached_bytes > CACHED_BYTES and len(self._groups) > 1:
            _, oldest = self._groups.popitem(last=False)
            self._cached_bytes -= oldest.values.nbytes

    def _opened(self, path: Path) -> tuple[pq.ParquetFile, list[int]]:
        """Return an open file and the boundaries of its row groups; the most recently used files stay open.

        Raises JobError for a file of another release.
        """
        if path not in self._files:
            self._files[path] = open_values(path)
            file, _ = self._files[path]
            if not file.schema_arrow.equals(_schema(self._head), check_metadata=True):
                raise foreign_values(path)
            while len(self._files) > (MOST_OPEN if is_local(path) else MOST_FETCHED):
                _, (oldest, _) = self._files.popitem(last=False)
                oldest.close()
        self._files.move_to_end(path)
        return self._files[path]


def read_rows(path: Path, head: Mapping[str, Any], start: int, size: int | None) -> pa.Table:
    """Return rows of a value file, with the columns label and value.

    Raises JobError if the file cannot be read or belongs to another release. `head` must be that of the file; `start`
    is the first row and `size` the number of rows, None for all.
    """
    try:
        file, _ = open_values(path)
        with file:
            if not file.schema_arrow.equals(_schema(canonical(head)), check_metadata=True):
                raise foreign_values(path)
            return file.read(use_threads=False).slice(start, size)
    except (OSError, pa.ArrowException):
        raise _unreadable(path) from None


def open_values(path: Path) -> tuple[pq.ParquetFile, list[int]]:
    """Return an open value file and the boundaries of its row groups."""
    if is_local(path):
        check_real(path)
    file = pq.ParquetFile(path, memory_map=True) if is_local(path) else pq.ParquetFile(reading(path))
    groups = (file.metadata.row_group(number).num_rows for number in range(file.num_row_groups))
    return file, np.cumsum([0, *groups]).tolist()


def read_group(file: pq.ParquetFile, number: int, first: int = 0) -> RowGroup:
    """Return a row group of an open file."""
    rows = file.read_row_group(number, use_threads=False).combine_chunks()
    label, value = rows.column("label").chunk(0), rows.column("value").chunk(0)
    return RowGroup(first=first, values=_flat(value, "<f8"), codes=_flat(label.indices, "<i4"), labels=label.dictionary)


def _flat(column: pa.Array, kind: str) -> NDArray[Any]:
    """Return the values of an Arrow array without nulls; the Arrow method would import pandas."""
    start = column.offset * np.dtype(kind).itemsize
    return np.frombuffer(column.buffers()[1], kind, len(column), start)


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the noise records of all measurements in a file."""
    file, _ = open_values(path)
    with file:
        head = json.loads(file.schema_arrow.metadata[META])
        for number in range(file.num_row_groups):
            group = read_group(file, number)
            # the rows of a measurement are adjacent and in one row group
            firsts = np.flatnonzero(np.diff(group.codes, prepend=-1))
            yield from ({**head, **json.loads(group.labels[code].as_py())} for code in group.codes[firsts].tolist())


def measured_draws(path: Path) -> Iterator[tuple[dict[str, Any], Floats]]:
    """Yield the noise record and the values of every measurement in a file, in the units of the draw."""
    file, _ = open_values(path)
    with file:
        head = json.loads(file.schema_arrow.metadata[META])
        for number in range(file.num_row_groups):
            group = read_group(file, number)
            firsts = np.flatnonzero(np.diff(group.codes, prepend=-1))
            for code, values in zip(group.codes[firsts], np.split(group.values, firsts[1:]), strict=True):
                yield {**head, **json.loads(group.labels[int(code)].as_py())}, values


def _unreadable(path: Path) -> JobError:
    return JobError("measurements", f"{path.name} cannot be read", "complete files", "measure again")


def foreign_values(path: Path) -> JobError:
    """Return the error for a file with values of another release or of other draws."""
    return JobError("measurements", f"{path.name} is of another release", "this release's", "use a new run directory")


Span = tuple[int, int]

FILES = 64  # approximate number per decision, for parallel writing
LEAST_VALUES, MOST_VALUES = 1 << 12, 1 << 22  # values per file: 32 KiB, 32 MiB
NAME = re.compile(r"(\d{3,})-(\d{8,})-(\d{8,})\.parquet")


@dataclass(frozen=True, eq=False)
class FileLayout:
    """Assignment of the requests of a decision to positions and files, in the order of their counted sets (sources).

    Attributes
    ----------
    sequence : ndarray of int64
        Request at each position.
    place : ndarray of int64
        Position of each request.
    starts : ndarray of int64, shape (requests + 1,)
        Number of values before each position, and in total.
    cuts : ndarray of int64, shape (files + 1,)
        First position of each file, and the end.
    """

    sequence: Integers
    place: Integers
    starts: Integers
    cuts: Integers

    @classmethod
    def of(cls, requests: MeasurementRequests) -> FileLayout:
        """Return the layout of measurement requests; files have at least LEAST_VALUES values if there are enough."""
        source = requests.source
        sequence = np.argsort(source, kind="stable")
        place = np.empty_like(sequence)
        place[sequence] = np.arange(len(sequence))
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(requests.sizes[sequence])])
        return cls(sequence, place, starts, _cuts(source[sequence], starts))

    def unfilled(self, stored: Iterable[Span]) -> Iterator[Span]:
        """Yield the spans of files, or parts of them, that are not stored yet; a span is (first position, end)."""
        pieces = _merged(sorted(stored))
        for first, end in pairwise(self.cuts.tolist()):
            yield from _without(first, end, pieces)


def _cuts(source: Integers, starts: Integers) -> Integers:
    """Return the first position of each file and the end.

    `source` is the counted set of each measurement in order, and `starts` the number of values before each measurement
    and in total. A file may begin only where the source changes, and does so where the values before pass a multiple of
    the limit.
    """
    limit = max(min(int(starts[-1]) / FILES, MOST_VALUES), LEAST_VALUES)
    changes = np.flatnonzero(np.diff(source, prepend=-1))
    multiples = (starts[changes] // limit).astype(np.int64)
    return np.append(changes[np.diff(multiples, prepend=-1) > 0], len(source))


def _merged(pieces: Sequence[Span]) -> list[Span]:
    """Return sorted spans with overlaps merged; a task with an older layout may have finished late."""
    merged: list[Span] = []
    for first, end in pieces:
        if merged and first <= merged[-1][1]:
            earlier_first, earlier_end = merged.pop()
            first, end = earlier_first, max(earlier_end, end)
        merged.append((first, end))
    return merged


def _without(first: int, end: int, pieces: Sequence[Span]) -> Iterator[Span]:
    """Yield the parts of the span from `first` to `end` that are outside sorted disjoint pieces."""
    # earlier pieces end before the last one that starts at or before the span
    nearest = max(bisect_right(pieces, (first, end)) - 1, 0)
    for start, stop in pieces[nearest:]:
        if start >= end:
            break
        if start > first:
            yield first, start
        first = max(first, stop)
    if first < end:
        yield first, end


def runs(chosen: NDArray[np.bool_]) -> Iterator[Span]:
    """Yield the spans of consecutive True values."""
    edges = np.flatnonzero(np.diff(chosen.astype(np.int8), prepend=0, append=0))
    yield from ((int(first), int(end)) for first, end in zip(edges[::2], edges[1::2], strict=True))


def file_name(number: int, span: Span) -> str:
    """Return the file name of a span of positions of a round."""
    return f"{number:03d}-{span[0]:08d}-{span[1]:08d}.parquet"


def spans(number: int, names: Iterable[str]) -> list[Span]:
    """Return the spans of a round that files with such names contain."""
    matches = (NAME.fullmatch(name) for name in names)
    return sorted((int(match[2]), int(match[3])) for match in matches if match and int(match[1]) == number)
