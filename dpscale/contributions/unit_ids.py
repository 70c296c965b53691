"""Privacy unit of a row: one canonical form and a 128-bit hash for all spellings of an id.

Files of one table may write an id differently: 7 as an integer of any width, a float, a decimal, or as the texts `07`,
`7.0`, ` 7` or `7e0`. Numbers are identified by their exact value. Other texts are compared in NFC, without surrounding
blanks and invisible characters, and with a uniform minus sign. In ambiguous cases ids are merged into one unit.
Integers beyond 2⁵³ are never identified through floats: a float is the number that it represents, and so is a text with
an exponent, which was written from a float. Values that denote a missing entry (null, NaN, an empty text, NA, none) are
not ids. Dates and times form a separate family, identified to the nanosecond; those with a time zone, which are
instants, form another. A table must not mix families (`one_family`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from dpscale.base.arrow import buffers_of, is_text, pa, pc, types
from dpscale.base.errors import DataError
from dpscale.base.numerics import Flags, NDArray, Words
from dpscale.records.column_values import NOTHING

KEYS = ("dpscale.unit.one", "dpscale.unit.two")  # 16 bytes each, as SipHash requires
ODD = np.uint64(0x9E3779B97F4A7C15)
SHORT = 10**18
LONGEST = 400  # maximum number of digits of a canonical integer
EXACT = 1 << 53

PLAIN, LOCAL, INSTANT, ANY = "numbers or texts", "times without a zone", "times with a zone", ""
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

# blanks, control characters and invisible characters stripped from both ends of a text
BLANKS = "".join(map(chr, [*range(0x21), *range(0x7F, 0xA1), 0xAD, 0x1680, *range(0x2000, 0x2010),
                           *range(0x2028, 0x2030), *range(0x205F, 0x2065), 0x3000, 0xFEFF]))  # fmt: skip
# invisible anywhere in a text: format characters (Cf), variation selectors and the grapheme joiner
MARKS = ((0xAD, 0xAD), (0x34F, 0x34F), (0x600, 0x605), (0x61C, 0x61C), (0x6DD, 0x6DD), (0x70F, 0x70F), (0x890, 0x891),
         (0x8E2, 0x8E2), (0x180B, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x2064), (0x2066, 0x206F),
         (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFB), (0x110BD, 0x110BD), (0x110CD, 0x110CD),
         (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0001, 0xE0001), (0xE0020, 0xE007F),
         (0xE0100, 0xE01EF))  # fmt: skip
UNSEEN = f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in MARKS)}]"
MINUS = "[\u2212\ufe63\uff0d]"
WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
WIDE_WORD = "^[!-~]*[\uff01-\uff5e][!-~\uff01-\uff5e]*$"
ASCII_BLANKS = "".join(letter for letter in BLANKS if letter.isascii())
DIGITS = r"[^\x00-\x7f\P{N}]"  # of other scripts
WHOLE = r"^(0|-?[1-9]\d{0,17})$"  # integers below SHORT in canonical form
PADDED = r"^\+?(-?)0*(\d{1,18})(?:\.0*)?$"
DECIMAL = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,18})?"
INFINITE = {sign + word: sign.strip("+") + "inf" for sign in ("", "+", "-") for word in ("inf", "infinity")}
NAMED = {"true": "1", "false": "0", **dict.fromkeys(NOTHING, ""), **INFINITE}
LONGEST_NAME = max(map(len, NAMED))
KEY_WORDS = np.array([np.frombuffer(key.encode(), "<u8") for key in KEYS])
SPECIAL = rf"(?i)^(?:{DECIMAL}|{'|'.join(re.escape(word) for word in NAMED)})$"
NUMBER = re.compile(DECIMAL, re.ASCII)


@dataclass(frozen=True)
class Identities:
    """Hashes of the rows' units (two words per row), and the rows without a unit."""

    words: Words
    missing: Flags


def family(kind: pa.DataType, unit: str) -> str:
    """Return the family of ids that a column of this type can contain. Raises DataError for other types."""
    if types.is_dictionary(kind):
        return family(kind.value_type, unit)
    if types.is_null(kind):
        return ANY
    if types.is_timestamp(kind):
        return LOCAL if kind.tz is None else INSTANT
    if types.is_date(kind):
        return LOCAL
    if any(fits(kind) for fits in (is_text, types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)):
        return PLAIN
    raise DataError(f"data column {unit!r}", f"type {kind}", "whole numbers, texts, dates or times",
                    "store the unit as one of these")  # fmt: skip


def one_family(families: Iterable[str], unit: str) -> None:
    """Raise DataError if files of a table have ids that cannot be compared."""
    if len(mixed := sorted(set(families) - {ANY})) > 1:
        raise DataError(f"data column {unit!r}", f"{' in one file, '.join(mixed)} in another",
                        "ids of one type in all files", "convert the column")  # fmt: skip


def identities(column: pa.Array, unit: str) -> Identities:
    """Return the units of a column's rows; the entries of a dictionary are hashed once."""
    family(column.type, unit)
    import_module("pandas")  # not at its first use, which depends on the values of units
    rows: Any = slice(None)
    if pa.types.is_decimal(column.type):
        column = column.dictionary_encode()
    if pa.types.is_dictionary(column.type):
        rows = column.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        column = pa.concat_arrays([column.dictionary, pa.nulls(1, column.dictionary.type)])  # -1 selects the null
    entries = _entries(column)
    return Identities(entries.words[rows], entries.missing[rows])


def _entries(column: pa.Array) -> Identities:
    if types.is_null(column.type) or types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if types.is_integer(column.type):
        return _of_integers(column)
    if types.is_floating(column.type):
        return _of_floats(column)
    if types.is_temporal(column.type):
        return _of_times(column)
    return _of_texts(column.cast(pa.large_string()))


def _of_integers(column: pa.Array) -> Identities:
    numbers = (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)
    words = number_words(numbers.astype(np.int64, copy=False))
    if numbers.max(initial=0) >= SHORT or numbers.min(initial=0) <= -SHORT:
        long = (numbers >= SHORT) | (numbers <= -SHORT)
        words[long] = _text_words(column.filter(pa.array(long)).cast(pa.large_string()))
    return Identities(words, _nulls(column))


def _of_floats(column: pa.Array) -> Identities:
    missing = _flags(column.is_null(nan_is_null=True))
    values = np.where(missing, 0, column.fill_null(0).to_numpy(zero_copy_only=False))
    whole = (np.rint(values) == values) & (np.abs(values.astype(np.float64)) < SHORT)
    words = number_words(np.where(whole, values, 0).astype(np.int64))
    if not whole.all():
        words[~whole] = _text_words(_texts([_float_text(value) for value in values[~whole]]))
    return Identities(words, missing)


def _float_text(value: Any) -> str:
    """Return an integer as its digits, and a fraction with the fewest digits that identify the float."""
    return str(int(value)) if np.isfinite(value) and value == np.rint(value) else canonical(str(value))


def _of_times(column: pa.Array) -> Identities:
    days, kind = types.is_date32(column.type), column.type
    ticks = column.cast(pa.int32() if days else pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    per_second = 1 if days else PER_SECOND["ms" if types.is_date64(kind) else kind.unit]
    seconds, rest = np.divmod(ticks * 86400 if days else ticks, per_second)
    words = number_words(seconds) + number_words(rest * (PER_SECOND["ns"] // per_second)) * ODD
    return Identities(words, _nulls(column))


def _of_texts(texts: pa.Array) -> Identities:
    """Hash plain ids and integers in one compiled pass, and other texts once per distinct text."""
    from dpscale.contributions.unit_hashes import plain_words

    texts = texts.fill_null("") if texts.null_count else texts
    words, plain = plain_words(*buffers_of(texts), LONGEST_NAME, KEY_WORDS)
    missing = np.zeros(len(texts), dtype=bool)
    if not plain.all():
        left = texts.filter(pa.array(~plain)).dictionary_encode()
        own, rows = _spelled_out(left.dictionary), left.indices.to_numpy()
        words[~plain], missing[~plain] = own.words[rows], own.missing[rows]
    return Identities(words, missing)


def _spelled_out(texts: pa.Array) -> Identities:
    plain = canonical_texts(texts)
    words, spelled = _text_words(plain), pc.match_substring_regex(plain, WHOLE)
    words[_flags(spelled)] = number_words(plain.filter(spelled).cast(pa.int64()).to_numpy())
    return Identities(words, _flags(pc.equal(plain, "")))


def canonical_texts(texts: pa.Array) -> pa.Array:
    """Return `canonical` of every text.

    Only texts that are neither plain nor plainly numbers are processed in Python.
    """
    try:
        texts = _trimmed(texts)
    except pa.ArrowInvalid:  # not UTF-8
        return _texts([canonical(text.decode("utf-8", "surrogateescape")) for text in
                       texts.cast(pa.large_binary()).to_pylist()])  # fmt: skip
    special = pc.and_(pc.match_substring_regex(texts, SPECIAL), pc.invert(pc.match_substring_regex(texts, WHOLE)))
    if not _is_ascii(texts):
        special = pc.or_(special, pc.match_substring_regex(texts, f"{DIGITS}|{WIDE_WORD}"))
    return pc.replace_with_mask(texts, special, _one_by_one(texts.filter(special)))


def _is_ascii(texts: pa.Array) -> bool:
    return pc.all(pc.string_is_ascii(texts)).as_py() is not False


def _trimmed(texts: pa.Array) -> pa.Array:
    """Remove blanks and invisible characters, unify minus signs and apply NFC.

    Raises ArrowInvalid for bytes that are not UTF-8.
    """
    if _is_ascii(texts):
        return pc.ascii_trim(texts, ASCII_BLANKS)
    texts = pc.utf8_normalize(pc.utf8_trim(texts, BLANKS), "NFC")
    if pc.any(pc.match_substring_regex(texts, UNSEEN)).as_py():
        texts = pc.utf8_normalize(pc.utf8_trim(pc.replace_substring_regex(texts, UNSEEN, ""), BLANKS), "NFC")
    return pc.replace_substring_regex(pc.utf8_trim(texts, BLANKS), MINUS, "-")


def _one_by_one(texts: pa.Array) -> pa.Array:
    """Return `canonical` of each text.

    Integers with leading zeros, a sign or a decimal point are frequent, so they are converted together.
    """
    padded = pc.match_substring_regex(texts, PADDED)
    seldom = _texts([canonical(text) for text in texts.filter(pc.invert(padded)).to_pylist()])
    short = pc.replace_substring_regex(texts, PADDED, r"\1\2")
    short = pc.if_else(pc.equal(short, "-0"), "0", short)
    return pc.replace_with_mask(short, pc.invert(padded), seldom)


def canonical(text: str) -> str:
    """Return the canonical form of a text: that of a number's value, "" if missing, else the text as in `_trimmed`.

    Digits of any script count as digits. Bytes that are not UTF-8 may appear as lone surrogates.
    """
    text = unicodedata.normalize("NFC", re.sub(UNSEEN, "", text).strip(BLANKS)).strip(BLANKS)
    text = re.sub(MINUS, "-", text)
    if not text.isascii() and not any(letter.isnumeric() and not letter.isascii() for letter in text):
        word = text.translate(WIDE).lower()
        return NAMED[word] if word.isascii() and word in NAMED else text
    spelled = text if text.isascii() else unicodedata.normalize("NFKC", text)
    spelled = re.sub(r"\d", lambda digit: str(unicodedata.decimal(digit[0])), spelled).lower()
    if spelled in NAMED:
        return NAMED[spelled]
    return _number(spelled) if NUMBER.fullmatch(spelled) else text


def _number(spelled: str) -> str:
    """Return an integer as its digits, and any other number as digits without outer zeros and an exponent."""
    mantissa, _, power = spelled.partition("e")
    whole, _, fraction = mantissa.lstrip("+-").partition(".")
    digits, sign = (whole + fraction).lstrip("0"), "-" * mantissa.startswith("-")
    if not digits:
        return "0"
    short = digits.rstrip("0")
    shift = int(power or 0) - len(fraction) + len(digits) - len(short)
    if shift < 0 or len(short) + shift > LONGEST:
        return f"{sign}{short}e{shift}"
    return _lossless_type(spelled, sign + short + "0" * shift) if power else sign + short + "0" * shift


def _lossless_type(spelled: str, exact: str) -> str:
    """Return the integer that a text with an exponent denotes.

    Beyond 2⁵³ it is the integer of the float from which the text was written.
    """
    value = float(spelled)
    return str(int(value)) if EXACT <= abs(value) < float("inf") else exact


def _texts(texts: list[str]) -> pa.Array:
    raw = pa.array([text.encode("utf-8", "surrogateescape") for text in texts], pa.large_binary())
    return raw.view(pa.large_string())  # a view does not validate UTF-8


def _text_words(texts: pa.Array) -> Words:
    import pandas as pd

    values = np.asarray(texts.cast(pa.large_binary()).to_numpy(zero_copy_only=False), dtype=object)
    return np.stack([pd.util.hash_array(values, hash_key=key, categorize=False) for key in KEYS], axis=1)


def number_words(numbers: NDArray[np.int64]) -> Words:
    from dpscale.contributions import unit_hashes

    return np.asarray(unit_hashes.number_words(numbers))


def _nulls(column: pa.Array) -> Flags:
    return _flags(column.is_null()) if column.null_count else np.zeros(len(column), bool)


def _flags(column: pa.Array) -> Flags:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=bool)
