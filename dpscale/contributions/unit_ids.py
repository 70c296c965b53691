"""Privacy unit of a row: one canonical form and a 128-bit hash for all spellings of an id.

One rule decides for a whole column, never for a single value. An id in a text column is a text, compared in NFC,
without surrounding blanks and invisible characters, and with a uniform minus sign. Only a whole number in decimal
digits (`7`, `-12`, `007`) is the number that it denotes, so that it equals the same number in an integer column of
another file; 0e1234, 1.0, True and NA are texts. Two rules can be chosen instead: under `text`, digits are
texts too and `007` differs from `7`; under `number`, every text is read as a number, `7.0` and `7e0` equal `7`, and any
other text is refused. Numbers in columns of numbers are identified by their exact value. Integers beyond 2⁵³ are never
identified through floats: a float is the number that it represents, and so is a text with an exponent, which was
written from a float. Nulls, NaN and empty texts are not ids; `null_values` of the job adds others. Ids in a column of
bytes are compared byte by byte, because a hash or a binary number may begin or end with any byte; under `text` and
`number` they are read as texts. Dates and times form a separate family, identified to the nanosecond; those with a time
zone, which are instants, form another. The files of a table must not mix families, nor floats or decimals with texts,
because a rule would have to be guessed (`one_family`).

Runs record RULE, the version of these rules: a run that was charged under another version is not resumed, because it
would bound other units.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from dpscale.base.arrow import as_text, buffers_of, is_bytes, is_text, pa, pc, types
from dpscale.base.errors import DataError, RefusedValue
from dpscale.base.numerics import Flags, Words
from dpscale.contributions import few_rows
from dpscale.contributions.few_rows import number_words
from dpscale.domain.schema_values import DAY

KEYS = ("dpscale.unit.one", "dpscale.unit.two")  # 16 bytes each, as SipHash requires
ODD = np.uint64(0x9E3779B97F4A7C15)  # odd factor by which two words are joined, 2^64 over the golden ratio
RULE = "3"  # version 1 read texts such as 0e1234, True and NA as numbers and nulls, version 2 bytes as texts
BEFORE_BYTES = "2"  # differs from RULE for bytes only
TEXT, NUMBER = "text", "number"  # rules that a job may choose for its unit
SHORT = 10**18  # numbers below it have at most 18 digits and are hashed as numbers, others as texts
LONGEST = 400  # maximum number of digits of a canonical integer
EXACT = 1 << 53  # below it a float represents every integer

WHOLE, REAL, TEXTS, BYTES = "whole numbers", "floats or decimals", "texts", "bytes"
LOCAL, INSTANT, ANY = "times without a zone", "times with a zone", ""
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
ASCII_BLANKS = "".join(letter for letter in BLANKS if letter.isascii())
PADDED = r"^(-?)0*([1-9][0-9]*)$|^0+$"  # whole numbers with or without leading zeros
SPELLED = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,18})?", re.ASCII | re.IGNORECASE)
KEY_WORDS = np.array([np.frombuffer(key.encode(), "<u8") for key in KEYS])


@dataclass(frozen=True)
class Identities:
    """Hashes of the rows' units (two words per row), and the rows without a unit."""

    words: Words
    missing: Flags


def family(kind: pa.DataType, unit: str, rule: str = "") -> str:
    """Return the family of ids that a column of this type can contain. Raises DataError for other types.

    `one_family` says which families can be compared. A `rule` of the job ("text" or "number") puts whole numbers,
    reals, texts and bytes into one family and refuses dates. A column of nulls fits every family (ANY).
    """
    if types.is_dictionary(kind):
        return family(kind.value_type, unit, rule)
    if types.is_null(kind):
        return ANY

    plain = ANY  # stays so for a type that is none of these four
    if types.is_integer(kind) or types.is_boolean(kind):
        plain = WHOLE
    elif types.is_floating(kind) or types.is_decimal(kind):
        plain = REAL
    elif is_text(kind) or is_bytes(kind):
        plain = TEXTS if is_text(kind) else BYTES
    if plain:
        return rule or plain

    if rule or not (types.is_timestamp(kind) or types.is_date(kind)):
        takes = "whole numbers or texts" if rule else "whole numbers, texts, dates or times"
        remedy = "leave out unit_type" if rule else "store the unit as one of these"
        raise DataError(f"data column {unit!r}", f"type {kind}", takes, remedy)

    return INSTANT if types.is_timestamp(kind) and kind.tz is not None else LOCAL


def one_family(families: Iterable[str], unit: str, remedy: str = "convert the column") -> None:
    """Raise DataError if files of a table have ids that cannot be compared."""
    known = set(families) - {ANY}
    are_comparable = known <= {WHOLE, REAL} or known <= {WHOLE, TEXTS}
    if len(known) > 1 and not are_comparable:
        raise DataError(f"data column {unit!r}", f"{' in one file, '.join(sorted(known))} in another",
                        "ids of one type in all files", remedy)  # fmt: skip


def one_family_of_keys(families: Iterable[str], key: str) -> None:
    """Raise DataError if the keys of two tables cannot be compared; a float matches a text that is its whole number."""
    one_family({TEXTS if name == REAL else name for name in families}, key)


def identities(column: pa.Array, unit: str, rule: str = "") -> Identities:
    """Return the units of a column's rows; the entries of a dictionary are hashed once.

    Parameters
    ----------
    column : pyarrow Array
    unit : str
        Name of the column, for messages.
    rule : {"", "text", "number"}
        Rule that the job states for its ids.
    """
    family(column.type, unit, rule)
    import_module("pandas")  # not at its first use, which depends on the values of units
    rows: Any = slice(None)  # the entry of each row
    if pa.types.is_decimal(column.type):
        column = column.dictionary_encode()
    if pa.types.is_dictionary(column.type):
        rows = column.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        column = pa.concat_arrays([column.dictionary, pa.nulls(1, column.dictionary.type)])  # -1 selects the null

    entries = _entries(column, unit, rule)
    return Identities(entries.words[rows], entries.missing[rows])


def _entries(column: pa.Array, unit: str, rule: str) -> Identities:
    """Return the identity words of a column of units, such that equal units of different types have equal words.

    `rule` says whether texts are read as texts or as numbers.
    """
    if types.is_null(column.type) or types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if is_bytes(column.type) and not rule:
        return _of_bytes(column)
    column = as_text(column)
    if rule == TEXT:
        return _of_plain_texts(column)
    if types.is_integer(column.type):
        return _of_integers(column)
    if types.is_floating(column.type):
        return _of_floats(column)
    if types.is_temporal(column.type):
        return _of_times(column)
    if types.is_decimal(column.type):
        return _of_spelled(_spelled(column))
    return _of_spelled(_read_numbers(column, unit)) if rule == NUMBER else _of_texts(column.cast(pa.large_string()))


def _of_bytes(column: pa.Array) -> Identities:
    """Return the units of a column of bytes; no bytes are no id."""
    texts = as_text(column.fill_null(b"") if column.null_count else column)
    return Identities(_text_words(texts), _flags(pc.equal(pc.binary_length(texts), 0)))


def _of_plain_texts(column: pa.Array) -> Identities:
    """Return the units of a column under the rule `text`: numbers are the texts of their shortest spelling."""
    if types.is_integer(column.type):
        texts = column.cast(pa.large_string())
    elif types.is_floating(column.type):
        missing = _flags(column.is_null(nan_is_null=True))
        values = column.fill_null(0).to_numpy(zero_copy_only=False)
        texts = _texts(["" if gone else _float_text(value) for value, gone in zip(values, missing, strict=True)])
    else:
        texts = _spelled(column) if types.is_decimal(column.type) else tidy_texts(
            column.cast(pa.large_string()).fill_null(""))  # fmt: skip

    texts = texts.fill_null("")
    return Identities(_text_words(texts), _flags(pc.equal(texts, "")))


def _spelled(column: pa.Array) -> pa.Array:
    """Return decimals as their canonical texts; empty for a null."""
    return _texts(["" if value is None else canonical_number(str(value)) for value in column.to_pylist()])


def _read_numbers(column: pa.Array, unit: str) -> pa.Array:
    """Return the numbers of a column in canonical spelling, equal texts for equal numbers; empty for a null.

    The column `unit` has texts, or another type that is read as texts. Raises RefusedValue for a text that is no
    number.
    """
    tidy = tidy_texts(column.cast(pa.large_string()).fill_null(""))  # without blanks and invisible characters
    # Texts can have bytes that are not UTF-8, which pyarrow returns as bytes only. No number has the sign that replaces
    # such a byte, so the text is refused.
    spelled = [text.decode("utf-8", "replace") for text in tidy.cast(pa.large_binary()).to_pylist()]
    canonical = list[str]()
    for text in spelled:
        if text and not SPELLED.fullmatch(text):
            raise RefusedValue(f"data column {unit!r}", "a text that is no number", "numbers, as unit_type states",
                               'set unit_type = "text", or leave it out')  # fmt: skip
        canonical.append(canonical_number(text) if text else "")
    return _texts(canonical)


def _of_integers(column: pa.Array) -> Identities:
    """Return words for integers: of the number, or of its text if it is long.

    A number of SHORT or beyond is hashed as its text, because `_is_whole` reads at most 18 digits of a text.
    """
    numbers = (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)
    words = number_words(numbers.astype(np.int64, copy=False))
    if numbers.max(initial=0) >= SHORT or numbers.min(initial=0) <= -SHORT:
        long = (numbers >= SHORT) | (numbers <= -SHORT)
        words[long] = _text_words(column.filter(pa.array(long)).cast(pa.large_string()))
    return Identities(words, _nulls(column))


def _of_floats(column: pa.Array) -> Identities:
    """Return words for floats: whole ones as the integer has, others by their texts."""
    missing = _flags(column.is_null(nan_is_null=True))
    values = np.where(missing, 0, column.fill_null(0).to_numpy(zero_copy_only=False))
    whole = (np.rint(values) == values) & (np.abs(values.astype(np.float64)) < SHORT)
    words = number_words(np.where(whole, values, 0).astype(np.int64))
    if not whole.all():
        words[~whole] = _text_words(_texts([_float_text(value) for value in values[~whole]]))
    return Identities(words, missing)


def _float_text(value: Any) -> str:
    """Return an integer as its digits, and a fraction with the fewest digits that identify the float."""
    if not np.isfinite(value):
        return str(value)
    return str(int(value)) if value == np.rint(value) else canonical_number(str(value))


def _of_times(column: pa.Array) -> Identities:
    """Return words for dates and times: of the seconds since 1970 and the rest of a second, whatever the unit.

    Both parts are hashed as integers. The rest is in nanoseconds, so that equal times of columns with different units
    are equal.
    """
    days, kind = types.is_date32(column.type), column.type
    ticks = column.cast(pa.int32() if days else pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    per_second = 1 if days else PER_SECOND["ms" if types.is_date64(kind) else kind.unit]
    seconds, rest = np.divmod(ticks * DAY if days else ticks, per_second)
    words = number_words(seconds) + number_words(rest * (PER_SECOND["ns"] // per_second)) * ODD
    return Identities(words, _nulls(column))


def _of_texts(texts: pa.Array) -> Identities:
    """Hash plain ids and integers of many texts in one compiled pass, and other texts once per distinct text."""
    texts = texts.fill_null("") if texts.null_count else texts
    words, plain = np.empty((len(texts), 2), np.uint64), np.zeros(len(texts), bool)
    # loading compiled loops takes longer than a few texts
    if len(texts) > few_rows.FEW:
        from dpscale.contributions.unit_hashes import plain_words

        words, plain = plain_words(*buffers_of(texts), KEY_WORDS)
    missing = np.zeros(len(texts), dtype=bool)
    if not plain.all():
        # the others are brought to their canonical form first
        others = texts.filter(pa.array(~plain)).dictionary_encode()
        entries, rows = _of_spelled(tidy_texts(others.dictionary)), others.indices.to_numpy()
        words[~plain], missing[~plain] = entries.words[rows], entries.missing[rows]

    return Identities(words, missing)


def _of_spelled(texts: pa.Array) -> Identities:
    """Return the units of texts without blanks around them; a whole number in decimal digits is that number."""
    whole = pc.match_substring_regex(texts, PADDED)
    # without leading zeros; empty for 0
    digits = pc.replace_substring_regex(texts, PADDED, r"\1\2")
    texts = pc.if_else(whole, pc.if_else(pc.equal(digits, ""), "0", digits), texts)
    words = _text_words(texts)
    # numbers of at most 18 digits have the words of integers
    short = pc.and_(whole, pc.less(pc.binary_length(pc.ascii_ltrim(texts, "-")), 19))
    words[_flags(short)] = number_words(texts.filter(short).cast(pa.int64()).to_numpy())
    return Identities(words, _flags(pc.equal(texts, "")))


def _is_ascii(texts: pa.Array) -> bool:
    return pc.all(pc.string_is_ascii(texts)).as_py() is not False


def tidy_texts(texts: pa.Array) -> pa.Array:
    """Return texts without blanks and invisible characters, with uniform minus signs, in NFC; bytes may be no UTF-8."""
    try:
        return _trimmed(texts)
    except pa.ArrowInvalid:  # not UTF-8
        return _texts(
            [tidy_text(text.decode("utf-8", "surrogateescape")) for text in texts.cast(pa.large_binary()).to_pylist()]
        )


def _trimmed(texts: pa.Array) -> pa.Array:
    """Return `tidy_text` of every text. Raises ArrowInvalid for bytes that are not UTF-8."""
    if _is_ascii(texts):
        return pc.ascii_trim(texts, ASCII_BLANKS)
    texts = pc.utf8_normalize(pc.utf8_trim(texts, BLANKS), "NFC")
    # what is removed within a text may leave blanks at its ends, or letters that NFC joins
    if pc.any(pc.match_substring_regex(texts, UNSEEN)).as_py():
        texts = pc.utf8_normalize(pc.utf8_trim(pc.replace_substring_regex(texts, UNSEEN, ""), BLANKS), "NFC")
    return pc.replace_substring_regex(pc.utf8_trim(texts, BLANKS), MINUS, "-")


def tidy_text(text: str) -> str:
    """Return a text as `tidy_texts` does; bytes that are not UTF-8 may appear as lone surrogates."""
    text = unicodedata.normalize("NFC", re.sub(UNSEEN, "", text).strip(BLANKS)).strip(BLANKS)
    return re.sub(MINUS, "-", text)


def canonical_number(spelled: str) -> str:
    """Return an integer as its digits, and any other number as digits without outer zeros and an exponent.

    `shift` is the exponent of ten after which the digits without trailing zeros have their value. An integer of more
    than LONGEST digits also has an exponent.
    """
    mantissa, _, power = spelled.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("+-").partition(".")
    digits, sign = (whole + fraction).lstrip("0"), "-" * mantissa.startswith("-")
    if not digits:
        return "0"

    short = digits.rstrip("0")
    shift = int(power or 0) - len(fraction) + len(digits) - len(short)
    if shift < 0 or len(short) + shift > LONGEST:
        return f"{sign}{short}e{shift}"
    integer = sign + short + "0" * shift
    return _lossless_type(spelled, integer) if power else integer


def _lossless_type(spelled: str, exact: str) -> str:
    """Return the integer that a text with an exponent denotes; `exact` has its digits.

    Beyond 2⁵³ it is the integer of the float from which the text was written.
    """
    value = float(spelled)
    return str(int(value)) if EXACT <= abs(value) < float("inf") else exact


def _texts(texts: list[str]) -> pa.Array:
    """Return texts as a column; lone surrogates are the bytes that they stand for (`tidy_text`)."""
    raw = pa.array([text.encode("utf-8", "surrogateescape") for text in texts], pa.large_binary())
    return raw.view(pa.large_string())  # a view does not validate UTF-8


def _text_words(texts: pa.Array) -> Words:
    """Return the 128-bit hash of each text, shape (n, 2): one 64-bit hash of its bytes for each of two keys."""
    import pandas as pd

    values = np.asarray(texts.cast(pa.large_binary()).to_numpy(zero_copy_only=False), dtype=object)
    return np.stack([pd.util.hash_array(values, hash_key=key, categorize=False) for key in KEYS], axis=1)


def _nulls(column: pa.Array) -> Flags:
    return _flags(column.is_null()) if column.null_count else np.zeros(len(column), bool)


def _flags(column: pa.Array) -> Flags:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=bool)
