"""Newline-delimited JSON: cells, refusals and parts compared with the json module and with the same records in Parquet."""

import gzip
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

import dpscale as dp
from dpscale.records import ndjson, table as tables
from dpscale.records.formats import PLAIN, Dialect, format_of
from dpscale.records.ndjson import LINE_BYTES, NDJSON
from tests.records.test_formats import DOMAIN, ROWS, count_sets, expected_counts, make_table  # noqa: F401 (a fixture)

COLUMNS = ("a", "ä", "b c")
LETTERS = st.characters(exclude_categories=("Cs",))
SCALARS = (st.none() | st.booleans() | st.integers() | st.floats() | st.text(LETTERS, max_size=9)
           | st.sampled_from(['"', "\\", "\x00", "NaN", "null", "1.0", "😀"]))  # fmt: skip
VALUES = st.recursive(SCALARS, lambda own: st.lists(own, max_size=3) | st.dictionaries(st.text(LETTERS), own, max_size=3),
                      max_leaves=6)  # fmt: skip
KEYS = st.sampled_from([*COLUMNS, "", "A", "a ", "a\n", 'a"', "äa", "😀"]) | st.text(LETTERS, max_size=3)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=6)
STYLES = ({}, {"ensure_ascii": False}, {"separators": (",", ":")}, {"separators": (" ,\t", "\r :  "), "ensure_ascii": False})


def read(path, columns=COLUMNS, parts=()):
    """Return the texts of each column."""
    found = {name: [] for name in columns}
    for batch in NDJSON.open(str(path), PLAIN).batches(columns, parts):
        for name in columns:
            found[name] += batch.column(name).to_pylist()
    return found


def expected_text(value):
    """Return the text of a value that the json module has read with numbers as texts."""
    if value is None or isinstance(value, str):
        return value
    return {True: "true", False: "false"}.get(value) if isinstance(value, bool) else value


DECODER = json.JSONDecoder(parse_int=str, parse_float=str,
                           parse_constant={"NaN": None, "Infinity": "Infinity", "-Infinity": "-Infinity"}.get)  # fmt: skip


def same(text, value):
    """Return whether a text is that of a value; an array or an object is compared as JSON."""
    return DECODER.decode(text) == value if isinstance(value, list | dict) else text == expected_text(value)


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(OBJECTS, max_size=8), styles=st.lists(st.sampled_from(STYLES), min_size=8, max_size=8),
       blank=st.sampled_from(["", "\n", " \t\r\n"]), end=st.sampled_from(["", "\n", "\r\n"]), size=st.integers(1, 99))
def test_values_are_those_of_the_json_module(tmp_path_factory, rows, styles, blank, end, size):
    """Also if the file is read a few bytes at a time."""
    path = tmp_path_factory.mktemp("ndjson") / "x.jsonl"
    lines = [json.dumps(row, **style) for row, style in zip(rows, styles, strict=False)]
    path.write_bytes((blank.join(line + "\n" for line in lines)[:-1] + end).encode())
    expected = [DECODER.decode(line) for line in lines]
    with pytest.MonkeyPatch.context() as patch:
        for block in (ndjson.BLOCK_BYTES, size):
            patch.setattr(ndjson, "BLOCK_BYTES", block)
            found = read(path)
            for name in COLUMNS:
                assert len(found[name]) == len(rows)
                assert all(same(text, row.get(name)) for text, row in zip(found[name], expected, strict=True))
    names = NDJSON.open(str(path), PLAIN).names
    assert names == list(dict.fromkeys(name for row in expected for name in row))


def accepts(line):
    """Return whether the json module reads a line as an object with distinct keys."""
    def distinct(pairs):
        return dict(pairs) if len(dict(pairs)) == len(pairs) else None

    try:
        value = json.loads(line.decode(), object_pairs_hook=lambda pairs: dict(pairs))
        top = json.JSONDecoder(object_pairs_hook=lambda pairs: pairs).decode(line.decode().strip(" \t\r"))
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and distinct(top) is not None


ALPHABET = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"-", b"+", b".", b"0", b"1", b"9", b"e", b"E", b"u", b"n", b"a",
            b" ", b"\t", b"\r", b"\x00", b"\x1f", b"\x7f", b"\xff", b"\xc3", b"true", b"null", b"NaN", b"Infinity", b"/", b"\\u",
            b"d83d", b'"a":', b"1e5", b"-0", b"01"]  # fmt: skip


@settings(max_examples=1500, deadline=None)
@given(row=OBJECTS, style=st.sampled_from(STYLES), changes=st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 2), st.sampled_from(ALPHABET)), max_size=3))  # fmt: skip
def test_lines_are_accepted_as_by_the_json_module(tmp_path_factory, row, style, changes):
    line = json.dumps(row, **style).encode()
    for place, gone, new in changes:
        place = int(place * len(line))
        line = line[:place] + new + line[place + gone :]
    check_acceptance(tmp_path_factory.mktemp("ndjson") / "x.jsonl", line)


@settings(max_examples=1500, deadline=None)
@given(parts=st.lists(st.sampled_from(ALPHABET), max_size=7))
def test_random_values_are_accepted_as_by_the_json_module(tmp_path_factory, parts):
    check_acceptance(tmp_path_factory.mktemp("ndjson") / "x.jsonl", b'{"x":' + b"".join(parts) + b"}")


def check_acceptance(path, line):
    path.write_bytes(b'{"a":1}\n' + line + b"\n")
    try:
        found = read(path)
    except (dp.DataError, UnicodeDecodeError):
        assert line.strip(b" \t\r") and not accepts(line)
    else:
        assert not line.strip(b" \t\r") or accepts(line)
        assert len(found["a"]) == 1 + bool(line.strip(b" \t\r"))
