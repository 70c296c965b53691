"""Numbers, days and nodes of trees in a column, row by row, for every supported column type.

A number is the decimal number that a file states. A 32-bit float is the shortest decimal that identifies it, so that
0.7 is 0.7 in 32 and in 64 bits, and whole numbers in texts and decimals are read as integers and not through floats.

A date is its own day. A time without a time zone belongs to the day that it states; one with a time zone belongs to
the day of that instant in the attribute's zone, or in UTC if the attribute has none. Texts are parsed by a fixed
grammar (ISO 8601): 2025-01-31, optionally with a time after a T or a blank, 2025-01-31T12:30:00.5+02:00; or by the
format of the attribute. The zone may be Z, UTC, GMT or an offset in hours, +02, or hours and minutes. Texts that denote
a missing value are nulls; all others are foreign.

A value that names a node of a public tree has its cell from a hash table of the leaves. Arrow would make a table of a
million leaves for every batch; this one is made once for each tree and process.

*Types.* Other types that state the same values are converted where a column is read: bytes without the mark UTF-8 are
texts, as are JSON documents, and a UUID is its usual text, so that it equals a UUID that another file stores as a text.
Texts in views become plain texts. Other types are left as they are, and refused where they are used.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import cache, lru_cache
from typing import Any
from weakref import WeakKeyDictionary
from zoneinfo import ZoneInfo

import numpy as np

from dpscale.base.arrow import as_text, buffers_of, is_text, pa, pc, types
from dpscale.base.compilation import njit
from dpscale.base.errors import DataError
from dpscale.base.numerics import Flags, Integers, Integers32, NDArray
from dpscale.domain.attribute import Attribute
from dpscale.domain.schema_values import CENTURY, DAY, date_pattern, month_numbers
from dpscale.domain.tree import SEPARATOR, LevelTree, TreeLevel

NUMBER = r"^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)$"
NOTHING = ("", "na", "n/a", "nan", "null", "none")
LARGEST = np.uint64(np.iinfo(np.int64).max)
EXACT = 1 << 53  # whole numbers from here on are not all exact in floats
WHOLE = r"^\+?(-?)0*(\d{16,19})(?:\.0*)?$"
Bytes = NDArray[np.uint8]
OFFSET, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
LEAST, LOAD = 16, 2  # entries of a table, and entries for each leaf
_tables: WeakKeyDictionary[LevelTree, Integers32] = WeakKeyDictionary()
_composed_keys: WeakKeyDictionary[LevelTree, dict[bytes, int]] = WeakKeyDictionary()
UUID, PERIOD = "arrow.uuid", "pandas.period"
WIDTH = 16  # bytes of a UUID
DASHES = (4, 6, 8, 10)  # bytes before which the text of a UUID has a dash


def column_of(attribute: Attribute, batch: Mapping[str, Any]) -> Any:
    """Return the column of an attribute, in which bytes are texts.

    For a hierarchy whose records state paths, it has their joined texts.

    Parameters
    ----------
    attribute : Attribute
    batch : mapping of str to pyarrow.Array or ndarray
        Arrays by column.

    Raises
    ------
    DataError
        If a column of a path has a type that contains no names.
    """
    if len(attribute.columns) == 1:
        return as_text(batch[attribute.column])
    columns = [as_text(batch[name]) for name in attribute.columns]
    for name, column in zip(attribute.columns, columns, strict=True):
        if not is_name(column.type.value_type if pa.types.is_dictionary(column.type) else column.type):
            raise DataError(f"data column {name!r}", f"type {column.type}", "texts or integers", "convert the column")
    return path_texts(columns)


@dataclass(frozen=True)
class Numbers:
    """Parsed values of a column.

    Attributes
    ----------
    values : ndarray of int64 or float64, shape (rows,)
        0 where a row has no value.
    missing, foreign : ndarray of bool, shape (rows,)
        Rows that are null and rows that cannot be parsed.
    large : ndarray of int64, shape (rows,), optional
        Whole numbers of a column of floats that 64-bit floats do not represent exactly; 0 in other rows.
    """

    values: NDArray[Any]
    missing: Flags
    foreign: Flags
    large: Integers | None = None

    def map(self, function: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
        """Return the results of an elementwise function of the exact values.

        `values` are rounded in the rows where `large` is not zero; the function is therefore computed there again, from
        the integers of `large`.
        """
        results = function(self.values)
        if self.large is not None:
            has_integer = self.large != 0
            results[has_integer] = function(self.large[has_integer])
        return results


def numbers(column: pa.Array) -> Numbers | None:
    """Return the numbers of a column; None if its type contains no numbers."""
    kind = column.type
    if types.is_null(kind):
        return _without_foreign(np.zeros(len(column), dtype=np.int64), np.ones(len(column), dtype=bool))
    if is_text(kind) or types.is_decimal(kind):
        return _parse_numbers(column.cast(pa.large_string()))

    if types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not (types.is_integer(kind) or types.is_floating(kind)):
        return None

    missing = _flags(column.is_null(nan_is_null=True))
    values = np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False))
    if values.dtype.kind == "f":
        return _without_foreign(np.where(missing, 0.0, shortest(values)), missing)

    if values.dtype == np.uint64:  # values beyond int64 are outside any domain
        values = np.minimum(values, LARGEST)
    return _without_foreign(values.astype(np.int64), missing)


def _without_foreign(values: NDArray[Any], missing: Flags) -> Numbers:
    return Numbers(values, missing, np.zeros(len(values), dtype=bool))


def _flags(column: pa.Array) -> Flags:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=bool)


def shortest(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return floats as 64-bit floats: those of fewer bits as the shortest decimals that identify them."""
    if values.dtype == np.float32:
        texts = pa.array(values).cast(pa.large_string())
        return np.asarray(texts.cast(pa.float64()).to_numpy(zero_copy_only=False))
    return np.asarray(values.astype("U") if values.dtype == np.float16 else values).astype(np.float64)


def _parse_numbers(texts: pa.Array) -> Numbers:
    """Return the numbers of texts, with true as 1 and false as 0; flags say what is missing or no number."""
    words = pc.ascii_lower(pc.ascii_trim_whitespace(texts))  # ASCII: bytes that are not UTF-8 count as foreign
    words = pc.if_else(pc.equal(words, "true"), "1", pc.if_else(pc.equal(words, "false"), "0", words))
    nothing = pc.is_in(words, value_set=pa.array([*NOTHING, None], pa.large_string()))
    number = pc.match_substring_regex(words, NUMBER).fill_null(False)
    read = pc.if_else(number, words, "0")
    values = read.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return Numbers(
        values=values, missing=_flags(nothing), foreign=~(_flags(number) | _flags(nothing)), large=_large(read, values)
    )


def _large(words: pa.Array, values: NDArray[np.float64]) -> Integers | None:
    """Return the whole numbers that floats do not represent exactly and 64 bits do; None if there are none.

    EXACT is 2^53, from which floats have gaps between whole numbers; `words` are the texts of the numbers.
    """
    beyond = (np.abs(values) >= EXACT) & (np.abs(values) < float(LARGEST))
    if not beyond.any():
        return None

    is_whole = beyond & _flags(pc.match_substring_regex(words, WHOLE))
    digits = pc.replace_substring_regex(words.filter(pa.array(is_whole)), WHOLE, r"\1\2")
    integers = np.zeros(len(values), np.int64)
    integers[is_whole] = digits.cast(pa.int64()).to_numpy(zero_copy_only=False)

    return integers


MOMENT = (
    r"^(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)"
    r"(?:[Tt ](?P<h>\d\d):(?P<i>\d\d)(?::(?P<s>\d\d)(?:[.,]\d+)?)?"
    r"(?: ?(?P<z>[Zz]|[Uu][Tt][Cc]|[Gg][Mm][Tt]|[+-]\d\d(?::?\d\d)?))?)?$"
)
FEW, ISO_DATE, EPOCH = 8, re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), date(1970, 1, 1).toordinal()
LAST_KNOWN = 2_145_916_800  # 1 January 2038
LAST_SECOND = 253_402_300_799 - DAY  # a day before the end of year 9999
A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def days(column: pa.Array, zone: str = "", form: str = "") -> Numbers | None:
    """Return days since 1 January 1970 (0 where there is none); None if the column's type contains no dates.

    Parameters
    ----------
    column : pyarrow Array
    zone : str
        Time zone in which times with a zone are converted to days; default: UTC.
    form : str
        Format of texts; default: ISO 8601.
    """
    kind = column.type
    if is_text(kind):
        return _parsed(column.cast(pa.large_string()), zone, form)
    if not (types.is_date(kind) or types.is_timestamp(kind) or types.is_null(kind)):
        return None

    missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=bool)
    day_numbers = np.zeros(len(column), np.int64) if types.is_null(kind) else _days_of_times(column, zone)
    return Numbers(day_numbers, missing, np.zeros(len(column), dtype=bool))


def _days_of_times(column: pa.Array, zone: str) -> Integers:
    """Return the days of dates and times; 0 for nulls.

    A column of times has ticks of its unit since 1970 in UTC if it has a zone, else in local time. Arrow knows the
    rules of a zone up to LAST_KNOWN only, so that `_offsets` computes the offset of later instants.
    """
    kind = column.type
    if types.is_date32(kind):
        return _whole(column.cast(pa.int32()))
    if types.is_date64(kind):
        return _whole(column.cast(pa.int64())) // (DAY * 1000)

    ticks, second = _whole(column.cast(pa.int64())), A_SECOND[kind.unit]
    if kind.tz is None or zone in ("", "UTC"):
        return ticks // (DAY * second)

    late = ticks > LAST_KNOWN * second
    if not late.all():  # local time of the zone at these instants
        early = pc.if_else(pa.array(late), None, column).cast(pa.timestamp(kind.unit, zone))
        ticks = np.where(late, ticks, _whole(pc.local_timestamp(early).cast(pa.int64())))

    if late.any():
        ticks[late] += _offsets(ticks[late] // second, zone) * second
    return ticks // (DAY * second)


def _offsets(seconds: Integers, zone: str) -> Integers:
    """Return the offsets of a zone from UTC, in seconds, at instants after LAST_KNOWN.

    Arrow does not continue the rules of a zone beyond that year.
    """
    instants, rows = np.unique(np.minimum(seconds, LAST_SECOND), return_inverse=True)
    known = ZoneInfo(zone)
    offsets = [datetime.fromtimestamp(instant, known).utcoffset() or timedelta(0) for instant in instants.tolist()]
    return np.array([offset // timedelta(seconds=1) for offset in offsets], np.int64)[rows]


def _whole(column: pa.Array) -> Integers:
    return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)


def _iso_days(texts: pa.Array) -> Integers | None:
    """Return the days of few texts, such as the name of a folder, if all are dates as 2025-03-31; None otherwise."""
    if len(texts) > FEW:
        return None
    try:
        values = [value or "" for value in texts.to_pylist()]
        if not all(map(ISO_DATE.fullmatch, values)):
            return None
        return np.array([date.fromisoformat(value).toordinal() - EPOCH for value in values], np.int64)
    except ValueError:  # no day of the calendar, or no UTF-8
        return None


def _parsed(texts: pa.Array, zone: str, form: str) -> Numbers:
    """Return the days since 1970 of texts of dates or times, with flags for what is missing or no date.

    Times with an offset are days in `zone`; `form` is a date format such as "%d.%m.%Y", empty for ISO 8601.

    Parts of a moment are the groups of the regular expression: y, m, d, h, i and s for the second; z is the offset.
    Only a time with an offset can have another day in `zone`.
    """
    if not form and (day_numbers := _iso_days(texts)) is not None:
        return Numbers(day_numbers, np.zeros(len(day_numbers), bool), np.zeros(len(day_numbers), bool))

    words = pc.ascii_trim_whitespace(texts)
    nothing = pc.is_in(pc.ascii_lower(words), value_set=pa.array([*NOTHING, None], pa.large_string()))
    fields = pc.extract_regex(pc.if_else(nothing, "", words), date_pattern(form) if form else MOMENT)
    part = _date_parts(fields)
    missing = np.asarray(nothing.to_numpy(zero_copy_only=False), dtype=bool)
    day_numbers = _civil(part["y"], part["m"], part["d"])
    is_date = _is_day(part, day_numbers) & ~missing
    offsets = pc.struct_field(fields, "z").fill_null("")
    has_offset = np.asarray(pc.not_equal(offsets, "").to_numpy(zero_copy_only=False), dtype=bool) & is_date

    if has_offset.any():
        seconds = day_numbers * DAY + part["h"] * 3600 + part["i"] * 60 + part["s"] - _seconds(offsets)
        instants = pa.array(seconds[has_offset], pa.timestamp("s", "UTC"))
        day_numbers[has_offset] = _days_of_times(instants, zone)

    return Numbers(np.where(is_date, day_numbers, 0), missing, ~(is_date | missing))


def _date_parts(fields: pa.StructArray) -> dict[str, Integers]:
    """Return year, month, day, hour, minute and second of parsed texts; the year is 0 where there is no date.

    `fields` has one column per group of the expression, named by its letter: b is the name of a month, which replaces
    m. A year of two digits belongs to the 21st century if it is below CENTURY. A format without a day means the first
    one.
    """
    names = {field.name for field in fields.type}
    part = {name: _number(pc.struct_field(fields, name)) for name in "ymdhis" if name in names}
    if "b" in names:
        months = month_numbers()
        place = pc.index_in(pc.ascii_lower(pc.struct_field(fields, "b")), pa.array(list(months), pa.large_string()))
        part["m"] = np.array([*months.values(), 0])[np.asarray(place.fill_null(len(months)))]

    digits = np.asarray(pc.binary_length(pc.struct_field(fields, "y")).fill_null(0))
    part["y"] = part["y"] + np.where(digits == 2, np.where(part["y"] < CENTURY, 2000, 1900), 0)
    return {"d": np.ones(len(fields), np.int64), **part}


def _number(field: pa.Array) -> Integers:
    digits = field.fill_null("")
    return np.asarray(pc.if_else(pc.equal(digits, ""), "0", digits).cast(pa.int64()))


def _civil(year: Integers, month: Integers, day: Integers) -> Integers:
    """Return days since 1970 of calendar dates."""
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    return months.astype("datetime64[D]").astype(np.int64) + day - 1


def _is_day(parts: dict[str, Any], day_numbers: Integers) -> Flags:
    """Return whether the month has that day and the day that time; unparsed rows have year 0."""
    month = day_numbers.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12 + 1
    date = (parts["y"] > 0) & (parts["m"] == month) & (parts["m"] > 0) & (parts["d"] > 0)
    return np.asarray(date & (parts["h"] < 24) & (parts["i"] < 60) & (parts["s"] < 60))


def _seconds(offsets: pa.Array) -> Integers:
    """Return the seconds to subtract from local times to obtain UTC."""
    digits = pc.replace_substring(pc.replace_substring(offsets, ":", ""), "+", "")
    digits = pc.replace_substring_regex(digits, r"^(-?\d\d)$", r"\100")  # group 1, then two zeros
    signed = pc.match_substring_regex(digits, r"^-?\d{4}$")
    hours_minutes = np.asarray(pc.if_else(signed, digits, "0").cast(pa.int64()))
    return np.sign(hours_minutes) * (np.abs(hours_minutes) // 100 * 3600 + np.abs(hours_minutes) % 100 * 60)


def node_cells(level: TreeLevel, texts: Any) -> Integers:
    """Return the cell of the node at a level for each text; −1 where it states no leaf.

    Parameters
    ----------
    level : TreeLevel
    texts : pyarrow.Array
        Of type large_string, as `path_texts` returns it if records state paths; nulls have no node.
    """
    texts = texts.dictionary_encode()
    leaves = np.append(_leaves(level.tree, texts.dictionary), -1)  # the last entry is that of nulls
    starts = level.tree.starts[level.level]
    cells = leaves if level.is_leaf else np.searchsorted(starts, leaves, side="right") - 1
    return np.asarray(cells[texts.indices.fill_null(len(leaves) - 1).to_numpy(zero_copy_only=False)])


def _leaves(tree: LevelTree, values: pa.Array) -> Integers:
    """Return the leaf whose key each text is, as it is written or else in Unicode's form NFC; −1 for none."""
    leaves = _leaves_as_written(tree, values)
    unlisted = (leaves < 0) & ~pc.string_is_ascii(values).to_numpy(zero_copy_only=False)
    if unlisted.any():
        texts = composed(values.filter(pa.array(unlisted)))
        others = _leaves_of_composed(tree)
        leaves[unlisted] = [leaf if leaf >= 0 else others.get(text, -1)
                            for leaf, text in zip(_leaves_as_written(tree, texts).tolist(),
                                                  texts.cast(pa.large_binary()).to_pylist(), strict=True)]  # fmt: skip
    return leaves


def _leaves_as_written(tree: LevelTree, values: pa.Array) -> Integers:
    leaves = np.full(len(values), -1, np.int64)
    _find(*buffers_of(tree.keys), _table_of(tree), *buffers_of(values), leaves)
    return leaves


def _leaves_of_composed(tree: LevelTree) -> dict[bytes, int]:
    """Return the leaves by the form NFC of their keys, of those keys that this form changes."""
    if tree not in _composed_keys:
        foreign = np.flatnonzero(~pc.string_is_ascii(tree.keys).to_numpy(zero_copy_only=False))
        keys = tree.keys.take(pa.array(foreign))
        pairs = zip(keys.cast(pa.large_binary()).to_pylist(), composed(keys).cast(pa.large_binary()).to_pylist(),
                    foreign.tolist(), strict=True)  # fmt: skip
        _composed_keys[tree] = {text: leaf for key, text, leaf in pairs if text != key}
    return _composed_keys[tree]


def composed(texts: pa.Array) -> pa.Array:
    """Return texts in Unicode's form NFC, each on its own; bytes that are not UTF-8 stay as they are."""
    raw = texts.cast(pa.large_binary()).to_pylist()
    forms = [unicodedata.normalize("NFC", text.decode("utf-8", "surrogateescape")) for text in raw]
    return pa.array([text.encode("utf-8", "surrogateescape") for text in forms]).cast(pa.large_binary()).view(
        pa.large_string())  # fmt: skip


def _table_of(tree: LevelTree) -> Integers32:
    """Return the hash table of a tree: leaves by the hash of their keys, −1 for a free entry."""
    if tree not in _tables:
        table = np.full(max(LEAST, 1 << (LOAD * len(tree.keys) - 1).bit_length()), -1, np.int32)
        _fill(*buffers_of(tree.keys), table)
        _tables[tree] = table
    return _tables[tree]


def is_name(kind: pa.DataType) -> bool:
    """Return whether values of a type can be names: texts, integers or nulls."""
    return bool(is_text(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind))


def path_texts(columns: list[Any]) -> Any:
    """Return the joined texts of the columns of a path, the leaf last; null where all of them are missing.

    Parameters
    ----------
    columns : list of pyarrow.Array
        Texts or integers, which may be dictionary-encoded.
    """
    decoded = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column for column in columns
    ]
    texts = [column.cast(pa.large_string()).fill_null("") for column in decoded]
    joined = pc.binary_join_element_wise(*texts, pa.scalar(SEPARATOR, pa.large_string()))
    empty = pc.equal(joined, SEPARATOR * (len(texts) - 1))
    return pc.if_else(empty, pa.scalar(None, pa.large_string()), joined)


@njit(cache=True, nogil=True)
def _hash(data: Bytes, start: int, end: int) -> Any:
    """Return a hash of some bytes whose low bits depend on all of them."""
    code = OFFSET
    for at in range(start, end):
        code = (code ^ np.uint64(data[at])) * PRIME
    return code ^ (code >> np.uint64(32))


@njit(cache=True, nogil=True)
def _fill(keys: Bytes, ends: Integers, table: Integers32) -> None:
    """Enter the place of each key in the first free entry from that of its hash.

    `table` has a power of two of entries, -1 where it is free; `ends` are the places where the keys begin in `keys`,
    and the end of the last one.
    """
    mask = np.uint64(len(table) - 1)
    for key in range(len(ends) - 1):
        entry = _hash(keys, ends[key], ends[key + 1]) & mask
        while table[entry] >= 0:
            entry = (entry + np.uint64(1)) & mask
        table[entry] = key


@njit(cache=True, nogil=True)
def _find(keys: Bytes, key_ends: Integers, table: Integers32, data: Bytes, ends: Integers, places: Integers) -> None:
    """Set the place of each text among the keys; it stays as it is if the text is none of them.

    The table is that of `_fill`, in which a search ends at the first free entry. Arrays of ends are as there.

    The texts are in `data`, text i up to `ends[i + 1]`, and the keys in `keys` likewise. An entry is the number of a
    key, negative if it is free; after a different key the next entry is tried.
    """
    mask = np.uint64(len(table) - 1)
    for text in range(len(ends) - 1):
        start, length = ends[text], ends[text + 1] - ends[text]
        entry = _hash(data, start, start + length) & mask
        while table[entry] >= 0:
            key = key_ends[table[entry]]
            same = key_ends[table[entry] + 1] - key == length
            at = 0
            while same and at < length:
                same = keys[key + at] == data[start + at]
                at += 1

            if same:
                places[text] = table[entry]
                break
            entry = (entry + np.uint64(1)) & mask


@cache
def plain_kind(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column of this type is read.

    Periods of pandas keep their type, which is refused: they are stored as numbers of periods since 1970.
    """
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, plain_kind(kind.value_type))
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == PERIOD:
            return kind
        is_uuid = kind.extension_name == UUID and kind.storage_type == pa.binary(WIDTH)
        return pa.large_string() if is_uuid else plain_kind(kind.storage_type)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    return pa.large_binary() if types.is_binary_view(kind) else kind


def plain(column: Any) -> Any:
    """Return a column in its plain type; cells that are decoded already are returned as they are."""
    if isinstance(column, np.ndarray) or plain_kind(column.type) == column.type:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([plain(chunk) for chunk in column.chunks], plain_kind(column.type))
    if types.is_dictionary(column.type):
        return pa.DictionaryArray.from_arrays(column.indices, plain(column.dictionary))
    if isinstance(column.type, pa.BaseExtensionType):
        is_uuid = plain_kind(column.type) == pa.large_string() and column.type.extension_name == UUID
        return _uuid_texts(column.storage) if is_uuid else plain(column.storage)

    return column.cast(plain_kind(column.type))


def _uuid_texts(column: pa.Array) -> pa.Array:
    """Return UUIDs as texts of 36 letters."""
    stored = np.frombuffer(b"".join(value or bytes(WIDTH) for value in column.to_pylist()), np.uint8)
    octets: NDArray[np.uint8] = stored.reshape(-1, WIDTH)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    letters = np.stack([digits[octets >> 4], digits[octets & 15]], axis=2).reshape(len(octets), -1)
    texts = np.insert(letters, [2 * place for place in DASHES], ord("-"), axis=1)
    binary = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(texts.shape[1]), len(texts), [None, pa.py_buffer(np.ascontiguousarray(texts).tobytes())]
    )
    uuids = binary.cast(pa.large_binary()).view(pa.large_string())

    return pa.compute.if_else(column.is_valid(), uuids, None) if column.null_count else uuids


@lru_cache(maxsize=16)  # many files of a folder have the same value
def repeated(value: str | None, rows: int) -> pa.Array:
    """Return a column that has one value in every row."""
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array([value], pa.string()))


def same_value(value: Any, text: str | None) -> bool:
    """Return whether a value of a column is the one that a folder's name states.

    `text` is None for the folder of nulls. Numbers are compared as decimals, so that 1 is 1.0, and a time at midnight
    is also its day.
    """
    if value is None or text is None:
        return value is None and text is None
    if isinstance(value, bool):
        return text.lower() == str(value).lower()

    if isinstance(value, int | float | Decimal):
        try:
            return Decimal(text) == Decimal(str(value))
        except InvalidOperation:
            return False

    if isinstance(value, datetime):
        midnight = value.time() == datetime.min.time()
        return text in {str(value), value.isoformat()} or (midnight and text == value.date().isoformat())
    return text == (value.isoformat() if isinstance(value, date) else str(value))
