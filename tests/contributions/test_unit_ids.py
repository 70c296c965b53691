"""Unit ids: different spellings of one id are one unit, against exact fractions and in whole runs."""

from __future__ import annotations

import csv
import datetime
import re
import unicodedata
from decimal import Decimal
from fractions import Fraction
from itertools import combinations
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from hypothesis import example, given, strategies as st

import dpscale as dp
from dpscale.base.arrow import buffers_of, is_text
from dpscale.contributions import few_rows
from dpscale.contributions.unit_hashes import plain_words
from dpscale.contributions.unit_ids import (
    BYTES as BYTE_IDS,
    KEY_WORDS,
    KEYS,
    TEXTS as TEXT_IDS,
    canonical_number,
    identities,
    number_words,
    one_family,
    one_family_of_keys,
    tidy_text,
    tidy_texts,
)
from dpscale.engine.contribution_bounds import read_unit_lookup, rows_beyond, survey_units
from dpscale.engine.counting import partition_groups
from dpscale.engine.schedulers import LocalEngine
from dpscale.records.column_values import plain
from tests.messages import refused

DAY = datetime.datetime(2020, 1, 1)
LONG_AGO, FAR = datetime.date(1, 1, 1), datetime.date(9999, 12, 31)


def utc_timestamp(kind="us", zone="UTC"):
    return pa.array([DAY.replace(tzinfo=datetime.UTC)], pa.timestamp(kind, zone))


SEVENS = [
    *(pa.array([7], kind) for kind in (pa.int8(), pa.uint16(), pa.int64(), pa.uint64())),
    *(pa.array([7.0], pa.float64()).cast(kind) for kind in (pa.float16(), pa.float32(), pa.float64())),
    *(pa.array([Decimal(7)], kind) for kind in (pa.decimal128(10, 0), pa.decimal128(10, 2), pa.decimal256(60, 5))),
    *(pa.array([text]) for text in ("7", " 7", "07", "7\x00", "\u180e7", "\u061c7", "7\ufe0f", "7\u034f",
                                    "7\U000e0020")),
    pa.array(["007"]).dictionary_encode(), pa.array([7]).dictionary_encode(),
]  # fmt: skip
SPELLINGS = {
    "seven": SEVENS,
    "text": [pa.array([text]) for text in ("Zoë", "Zoe\u0308", " Zoë\t", "\ufeffZoë", "Zoë\u00a0", "Zo\u00adë",
                                                 "Zoe\u200b\u0308", "Zoë\ufe0e")],
    "below zero": [pa.array([-5]), *(pa.array([text]) for text in ("-5", "\u22125", "\uff0d5", "-\u200d05"))],
    "word": [pa.array([text]) for text in ("é-x", "é\u2212x", "é－x")],
    "large": [pa.array([2**53 + 1]), pa.array(["9007199254740993"]), pa.array([Decimal(2**53 + 1)]),
              pa.array(["09007199254740993"])],
    "beyond 64 bits": [pa.array([Decimal(10**30)]), pa.array(["1" + "0" * 30]), pa.array(["01" + "0" * 30])],
    "float": [pa.array([2.0**60]), pa.array([2**60])],
    "fraction": [pa.array([0.1]), pa.array([Decimal("0.10")]), pa.array([0.1], pa.float32())],
    "zero": [pa.array([0]), pa.array([-0.0]), pa.array(["00"]), pa.array([False])],
    "day": [pa.array([DAY], pa.timestamp(kind)) for kind in ("s", "ms", "us", "ns")]
           + [pa.array([DAY.date()]), pa.array([DAY.date()], pa.date64())],
    "zone": [utc_timestamp("s"), utc_timestamp("ns"), utc_timestamp("us", "Europe/Berlin"),
             utc_timestamp("ms", "+05:30")],
    "far": [pa.array([FAR]), pa.array([FAR], pa.date64()), pa.array([FAR]).cast(pa.timestamp("s"))],
    "long ago": [pa.array([LONG_AGO]), pa.array([LONG_AGO]).cast(pa.timestamp("us"))],
}  # fmt: skip
MIXED = {pa.types.is_floating, pa.types.is_decimal}  # of files that a job with texts reads only under `unit_type`


def fits(one, other):
    """Return whether files with these columns may be in one table without a stated rule."""
    kinds = [column.type.value_type if pa.types.is_dictionary(column.type) else column.type for column in (one, other)]
    return not (any(map(is_text, kinds)) and any(is_real(kind) for is_real in MIXED for kind in kinds))


PAIRS = [
    (name, pair)
    for name, spelled in SPELLINGS.items()
    for pair in combinations(range(len(spelled)), 2)
    if fits(*(spelled[place] for place in pair))
]


def unit_words(column, rule=""):
    found = identities(column, "u", rule)
    assert not found.missing.any()
    return [tuple(row) for row in found.words.tolist()]


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_of_one_id_are_one_unit(name):
    assert len({word for column in SPELLINGS[name] for word in unit_words(column)}) == 1


def test_different_ids_are_different_units():
    distinct = [
        unit_words(spelled[0])[0] for name, spelled in SPELLINGS.items() if name != "zone"
    ]  # a family of its own
    assert len(set(distinct)) == len(SPELLINGS) - 1
    neighbours = [2**53 + k for k in range(4)] + [10**18 + k for k in (-1, 0, 1)] + [2**63 - 1, 2**64 - 1, 2**64 - 2]
    numbers = unit_words(pa.array(neighbours, pa.uint64()))
    assert len(set(numbers)) == len(neighbours)
    assert unit_words(pa.array(list(map(str, neighbours)))) == numbers
    assert unit_words(pa.array(list(map(Decimal, neighbours)), pa.decimal128(38))) == numbers
    assert unit_words(pa.array([2.0**53])) == unit_words(pa.array([2**53])), (
        "a float that lost a digit is the number it holds"
    )
    times = [pa.array([k], pa.timestamp("ns")) for k in (0, 1, 10**9, 10**9 + 1)] + [pa.array([5, 7]), pa.array([7, 5])]
    assert len({word for column in times for word in unit_words(column)}) == 6


def test_integer_ids_keep_their_hash_words():
    """The counted rows of tables with integer ids depend on these words."""
    import pandas as pd

    numbers = np.array([0, 7, -7, 10**18 - 1], dtype=np.int64)
    before = np.stack([pd.util.hash_array(numbers), pd.util.hash_array(numbers ^ np.int64(0x5DEECE66D1CE4E5B))], axis=1)
    assert np.array_equal(identities(pa.array(numbers), "u").words, before)
    long = pd.util.hash_array(np.array([b"1000000000000000000"], object), hash_key="dpscale.unit.one", categorize=False)
    assert identities(pa.array([10**18]), "u").words[0, 0] == long[0]


NUMBERISH = st.from_regex(r"\A[ ]?[+-]?0{0,2}\d{0,20}(\.\d{0,3})?(e[+-]?\d{1,2})?[ ]?\Z")
STRANGE = st.text(st.sampled_from("0071+-.e ٧７²½xé\u0301\u00a0\ufeffNaninfTRUE/−－ＮＡａ／\u200d\ufe0f"), max_size=6)
TEXTS = NUMBERISH | STRANGE | st.text(max_size=5) | st.integers().map(str) | st.floats().map(repr)


@given(st.lists(TEXTS, max_size=8))
@example(["-0", "+000.", "1e999", "N/A", "ｉｎｆ", "é7", "²", "-", "."])
def test_vectorized_texts_equal_single_texts(texts):
    assert tidy_texts(pa.array(texts, pa.large_string())).to_pylist() == [tidy_text(text) for text in texts]


NASTY = ["0e1234", "0e9999", "1e5", "100000", "True", "true", "1", "False", "0", "-0", "NA", "N/A", "null", "none",
         "NaN",
         "inf", "Infinity", "+7", "7.0", "7.", ".7", "0.7", "7e0", "7", "７", "٧", "²", "0x7", "1_000", "1,000",
         "1 000",
         "9" * 30, "1e29", "00e1", "é", "É", "-", "--1", "1-", "1e", "e1", "yes", "nan.", "1d5", "１e5"]  # fmt: skip


@pytest.mark.parametrize("rule", ["", "text"])
def test_different_texts_are_different_persons(rule):
    """No two of the ids are written alike, so that no rule for texts merges them."""
    column = pa.array(NASTY)
    found = unit_words(column, rule)
    assert len(set(found)) == len(NASTY)
    assert unit_words(column.dictionary_encode(), rule) == found


def test_leading_zeros_distinguish_persons_only_under_the_rule_text():
    codes = pa.array(["7", "07", "007"])
    assert len(set(unit_words(codes))) == 1
    assert len(set(unit_words(codes, "text"))) == 3
    assert unit_words(pa.array([7]), "text") == unit_words(pa.array([7.0]), "text") == unit_words(codes, "text")[:1]


@given(NUMBERISH, NUMBERISH)
@example("1.50", "15e-1")
@example("9007199254740993", "9007199254740992")
def test_texts_are_one_id_under_the_rule_number_if_their_values_are_equal(one, other):
    known = [text for text in (one, other) if parse_number(text) is not None]
    if len(known) == 2:
        words = unit_words(pa.array(known), "number")
        assert (words[0] == words[1]) == (parse_number(one) == parse_number(other))


def parse_number(text):
    """Oracle: return the value of a text by Python's own parser; None for a text that is no number."""
    text = text.strip()
    if not text.isascii():
        return None
    try:
        exact = Fraction(Decimal(text))
    except ArithmeticError:
        return None
    far = "e" in text and 2**53 <= abs(float(Decimal(text))) < float("inf")
    return Fraction(float(Decimal(text))) if far and exact.denominator == 1 else exact


def test_text_that_is_no_number_is_refused_under_the_rule_number():
    for text in ("x", "True", "NA", "0x7", "1,5", "٧"):
        with refused(dp.DataError):
            identities(pa.array(["7", text]), "u", "number")
    assert canonical_number("7.00") == "7"


MINUSES = (0x2212, 0xFE63, 0xFF0D)


def is_variation(letter):
    return "VARIATION SELECTOR" in unicodedata.name(letter, "") or letter == "\u034f"


def test_invisible_characters_do_not_change_an_id():
    """All format characters and variation selectors known to Python are tried."""
    unseen = [
        chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) == "Cf" or is_variation(chr(code))
    ]
    assert len(unseen) > 400
    for text in ("Zoë", "7"):
        around = [mark + text + mark for mark in unseen] + [text[:1] + mark + text[1:] for mark in unseen]
        assert set(unit_words(pa.array(around))) == set(unit_words(pa.array([text])))


@pytest.mark.parametrize("column", [
    pa.array([None, 1]), pa.array([None, 1.5]), pa.array([float("nan"), 1]), pa.array(["", "x"]), pa.array([" ", "x"]),
    pa.array(["\u200b", "x"]),
    pa.array([None, DAY]), pa.array([None, "x"]).dictionary_encode(),
    pa.array([None, Decimal(1)]), pa.DictionaryArray.from_arrays(pa.array([1, 0]), pa.array(["x", None])),
])  # fmt: skip
def test_null_like_values_are_no_id(column):
    assert identities(column, "u").missing.tolist() == [True, False]


def test_invalid_utf8_is_an_id():
    bad = pa.array([b"\xff5", b" \xff5", b"07", b"7"]).view(pa.string())
    assert len(set(unit_words(bad))) == 2


BYTES = [b"", None, *(b"id" + bytes([last]) for last in range(256)), b"07", b"7", b"\xff5", b" \xff5", "é".encode(),
         "e\u0301".encode(), b"\x00\x00\x00\x0a"]  # fmt: skip


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.binary())])
def test_ids_of_bytes_are_compared_byte_by_byte(kind):
    """Planted: read as texts, ids that differ in blanks, control bytes or zeros are one."""
    column = pa.array(BYTES, pa.binary())
    found = identities(column.cast(kind), "u")
    assert found.missing.tolist() == [True, True] + [False] * (len(BYTES) - 2)
    assert len(np.unique(found.words[2:], axis=0)) == len(BYTES) - 2
    assert identities(column, "u").words.tolist() == found.words.tolist()
    assert len(np.unique(identities(column, "u", "text").words[2:], axis=0)) < 240


def test_bytes_and_texts_are_compared_only_under_a_stated_rule(tmp_path):
    columns = [pa.array([b"a", b"b"], pa.binary(1)), pa.array(["a", "b"])]
    write_files(tmp_path, columns)
    with refused(dp.DataError):
        survey(tmp_path)
    with refused(dp.DataError):
        one_family_of_keys([BYTE_IDS, TEXT_IDS], "u")
    stored, texts = (identities(plain(column), "u", "text").words.tolist() for column in columns)
    assert stored == texts


@pytest.mark.parametrize(("keys", "units", "refers"), [
    (("bytes", "text"), ("text", "text"), "text"),
    (("text", "text"), ("text", "bytes"), "text"),
    (("bytes", "bytes"), ("text", "text"), "text"),
    (("text", "text"), ("bytes", "bytes"), "bytes"),
])  # fmt: skip
def test_keys_and_units_of_a_lookup_are_of_one_family(tmp_path, keys, units, refers):
    """Planted: without the check, a person in two files of the lookup is two units."""
    ids = {"text": pa.array(["7", "8"]), "bytes": pa.array([b"7", b"8"])}
    write_files(tmp_path / "data", [ids[refers]])
    for number, (key, unit) in enumerate(zip(keys, units, strict=True)):
        (tmp_path / "through").mkdir(exist_ok=True)
        pq.write_table(pa.table({"k": ids[key], "o": ids[unit], "a": [0, 0]}), tmp_path / f"through/{number}.parquet")
    data, through = (dp.Table.open(tmp_path / name, dp.Domain({"a": 2})) for name in ("data", "through"))
    with refused(dp.DataError):
        read_unit_lookup(LocalEngine("synchronous"), [(through, "k", "o")], (data, "u"))


def test_null_column_has_no_id():
    assert identities(pa.nulls(2), "u").missing.all()


# Families


def survey(folder):
    return survey_units(LocalEngine("synchronous"), dp.Table.open(folder, dp.Domain({"a": 2})).partitions, "u")


def write_files(folder, columns):
    folder.mkdir(parents=True, exist_ok=True)
    for number, column in enumerate(columns):
        pq.write_table(pa.table({"u": column, "a": [0] * len(column)}), folder / f"{number}.parquet")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SEVENS[0], SPELLINGS["day"][0]),
        (SEVENS[12], SPELLINGS["zone"][0]),
        (SPELLINGS["day"][4], utc_timestamp()),
        (SEVENS[5], SEVENS[10]),
        (SEVENS[8], SEVENS[10]),
    ],
)
def test_mixed_id_families_are_refused_by_schema(tmp_path, one, other):
    write_files(tmp_path, [one.slice(0, 0), other.slice(0, 0)])
    with refused(dp.DataError):
        survey(tmp_path)


def test_file_of_nulls_fits_any_family(tmp_path):
    write_files(tmp_path, [pa.nulls(1), pa.array([DAY]), pa.array([DAY.date()])])
    assert survey(tmp_path) == 3
    one_family(["", ""], "u")


@pytest.mark.parametrize("column", [pa.array([{"k": 1}]), pa.array([[1]]), pa.array([datetime.time(1)]),
                                    pa.array([datetime.timedelta(1)])])  # fmt: skip
def test_unsupported_id_types_are_refused_by_schema(tmp_path, column):
    write_files(tmp_path, [column.slice(0, 0)])
    with refused(dp.DataError):
        survey(tmp_path)


# End to end


def counted(folder, persons, ids, bound):
    """Return the counted rows of each person: three rows each, of which at most `bound` of an id are counted."""
    rows = [(ids[person], person) for person in persons for _ in range(3)]
    write_files(folder, [pa.array([one for one, _ in rows])])
    pq.write_table(pa.table({"u": [one for one, _ in rows], "a": [a for _, a in rows]}), folder / "0.parquet")
    table = dp.Table.open(folder, dp.Domain({"a": len(ids)}))
    groups = partition_groups(table.partitions, 1)
    out = rows_beyond(LocalEngine("synchronous"), table.domain, groups, "u", bound, len(rows), 1 << 20)
    gone = out[table.partitions[0]].within(0, len(rows)) if out else np.zeros(len(rows), bool)
    return np.bincount([a for (_, a), left_out in zip(rows, gone, strict=True) if not left_out], minlength=len(ids))


def largest_change(folder, ids, bound):
    """Return the largest change of counted rows, over all persons, if a person is removed."""
    everybody = range(len(ids))
    whole = counted(folder / "all", everybody, ids, bound)
    without = (
        counted(folder / str(person), [one for one in everybody if one != person], ids, bound) for person in everybody
    )
    return max(np.abs(whole - rest).sum() for rest in without)


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_one_person_changes_at_most_bound_rows(tmp_path, bound):
    assert largest_change(tmp_path, NASTY, bound) == bound


def test_merged_persons_are_detected(tmp_path):
    """Planted: two persons with one id, as under a rule that reads 0e1234 and 0e9999 as numbers."""
    assert largest_change(tmp_path, ["0", "0", *NASTY[2:6]], 3) > 3


def test_spellings_have_at_least_sixty_pairs():
    assert len(PAIRS) >= 60


@pytest.mark.parametrize(("name", "pair"), [
    pytest.param(*one, marks=pytest.mark.slow if number % 3 else ()) for number, one in enumerate(PAIRS)
])  # fmt: skip
def test_unit_in_two_files_keeps_one_row(tmp_path, name, pair):
    write_files(tmp_path, [SPELLINGS[name][number] for number in pair])
    table = dp.Table.open(tmp_path, dp.Domain({"a": 2}))
    survey(tmp_path)
    groups = partition_groups(table.partitions, 2)
    out = rows_beyond(LocalEngine("synchronous"), table.domain, groups, "u", 1, 2, 1 << 20)
    assert sum(map(len, out.values())) == 1


def estimate_row_count(place, **data):
    """Return the estimated number of rows of a run with a contribution bound of 1 and privacy cost 1."""
    (place / "domain.toml").write_text(tomli_w.dumps({"attributes": {"a": {"kind": "coded", "size": 2}}}))
    job = {
        "data": {"path": str(place / "data"), "domain": str(place / "domain.toml"), "privacy_unit": "u",
                 "max_rows_per_unit": 1, **data},
        "privacy": {"privacy_cost": 1.0, "dataset": "ids", "ledger": str(place / "ledger.sqlite")},
        "workload": [{"family": "marginal", "degree": 1}],
        "mechanism": {"name": "identity"},
        "engine": {"scheduler": "synchronous"},
    }  # fmt: skip
    release = dp.run(job, place / "run")
    return float(release.marginal(("a",)).sum())


def test_run_counts_each_unit_of_bytes_once(tmp_path):
    """All 4,096 ids of twelve bits, of which sixteenths end with a blank or a control byte."""
    ids = [b"\xa0" + number.to_bytes(2, "big") for number in range(4096)]
    write_files(tmp_path / "data", [pa.array(ids, pa.binary(3)), pa.array(ids, pa.binary())])
    assert abs(estimate_row_count(tmp_path) - 4096) < 60


@pytest.mark.parametrize("name", ["numbers", "days", "csv"])
def test_runs_count_each_unit_once(tmp_path, name):
    """Two thousand units are in up to twelve files with different spellings: the estimate is 2,000 up to noise."""
    people = np.arange(1, 2001)
    numbers = [people.astype(kind) for kind in ("int16", "int64", "uint32", "float32", "float64")]
    texts = [[way.format(number) for number in people] for way in ("{}", " {}", "{:08d}", "{}.0", "+{}", "{}e0", "{}.")]
    options = {} if name == "days" else {"unit_type": "number"}
    if name == "csv":
        (tmp_path / "data").mkdir()
        for number, column in enumerate(texts):
            with open(tmp_path / "data" / f"{number}.csv", "w", newline="") as file:
                csv.writer(file).writerows([["u", "a"], *((text, 0) for text in column)])
    elif name == "days":
        days = pa.array(people, pa.int32()).cast(pa.date32())
        write_files(tmp_path / "data", [days, *(days.cast(pa.timestamp(kind)) for kind in ("s", "us", "ns"))])
    else:
        write_files(tmp_path / "data", [*map(pa.array, numbers), *map(pa.array, texts)])
    assert estimate_row_count(tmp_path, **options) == pytest.approx(2000, abs=30)


def test_rows_without_unit_are_refused_or_dropped(tmp_path):
    write_files(tmp_path / "data", [pa.array([*range(1, 1001), *[None] * 500]), pa.array([" ", "", "1"] * 100)])
    with refused(dp.DataError):
        estimate_row_count(tmp_path)
    (tmp_path / "again").mkdir()
    (tmp_path / "data").rename(tmp_path / "again" / "data")
    assert estimate_row_count(tmp_path / "again", unit_nulls="drop") == pytest.approx(1000, abs=30)


# Texts in one look

LETTERS = st.characters(codec="utf-8")
ODD_TEXTS = [*NASTY, "0", "-0", "00", "-", "", "-1", "1" * 18, "1" * 19, "-" + "9" * 18, "1e5", "person-1", " person-1"]
ODD_TEXTS += ["a" * 9, "a" * 10, "infinity12", "1234567890+", "123456789012x", "é" * 12, "x" * 300, "\x7fabcdefghijkl"]
TEXTS = [st.none(), st.sampled_from(ODD_TEXTS), st.text(LETTERS, max_size=20), st.text("0123456789-", max_size=20),
         st.text("abc-019", max_size=30)]  # fmt: skip


def words_of(tidy):
    """Oracle: words of a text by Python's own functions and pandas' hashes."""
    if re.fullmatch("-?0*[1-9][0-9]*|0+", tidy):
        value = int(tidy)
        if abs(value) < 10**18:
            return number_words(np.array([value]))[0].tolist()
        tidy = str(value)
    return [int(pd.util.hash_array(np.array([tidy], object), hash_key=key, categorize=False)[0]) for key in KEYS]


@given(st.lists(st.one_of(TEXTS), max_size=12), st.sampled_from([0, few_rows.FEW]))
def test_fast_text_ids_equal_general_path(texts, few):
    """Plain, sliced and dictionary-encoded texts equal single texts that are canonicalized and hashed by pandas."""
    column = pa.array(["left out", *texts], pa.string())[1:]
    with mock.patch.object(few_rows, "FEW", few):
        found = identities(column, "u")
    assert found.words.shape == (len(texts), 2)
    for row, text in enumerate(texts):
        tidy = tidy_text(text or "")
        assert found.missing[row] == (tidy == "")
        assert tidy == "" or found.words[row].tolist() == words_of(tidy)
    encoded = identities(column.dictionary_encode(), "u")
    np.testing.assert_array_equal(found.missing, encoded.missing)
    np.testing.assert_array_equal(found.words[~found.missing], encoded.words[~found.missing])


def test_text_hashes_of_every_length_equal_pandas():
    """Texts are hashed in groups; lengths are mixed, and the last group has one text."""
    random = np.random.default_rng(0)
    letters = np.array(list("abcdefgXYZ_:/-0123456789"))
    texts = ["x9" + "".join(random.choice(letters, length)) for length in [*range(90), *random.integers(0, 40, 679)]]
    words, plain = plain_words(*buffers_of(pa.array(texts, pa.large_string())), KEY_WORDS)
    assert plain.all()
    for place, key in enumerate(KEYS):
        right = pd.util.hash_array(np.array(texts, object), hash_key=key, categorize=False)
        np.testing.assert_array_equal(words[:, place], right)


def test_integer_hashes_equal_pandas():
    numbers = np.append(np.random.default_rng(0).integers(-(10**18), 10**18, 1000), [0, -1, 1])
    words = number_words(numbers)
    np.testing.assert_array_equal(words[:, 0], pd.util.hash_array(numbers))
    np.testing.assert_array_equal(words[:, 1], pd.util.hash_array(numbers ^ np.int64(0x5DEECE66D1CE4E5B)))


def test_common_ids_take_the_fast_path():
    texts = pa.array(
        ["person-1", "550e8400-e29b-41d4-a716-446655440000", "4711", "-3", "none", "1.50", "1e5"], pa.large_string()
    )
    plain = plain_words(*buffers_of(texts), KEY_WORDS)[1]
    assert plain.all()
    texts = pa.array(["007", " a1", "é1", "-", "1-2"], pa.large_string())
    assert not plain_words(*buffers_of(texts), KEY_WORDS)[1].any()
