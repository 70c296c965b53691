"""Newline-delimited JSON: cells and refusals compared with the json module and with the same records in Parquet."""

import gzip
import json
import math
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

import dpscale as dp
from dpscale.records import ndjson, table as tables
from dpscale.records.files import PLAIN, Dialect
from dpscale.records.formats import format_of
from dpscale.records.ndjson import LINE_BYTES, NDJSON
from tests.messages import refused
from tests.records.test_formats import DOMAIN, ROWS, count_sets, expected_counts, make_table  # noqa: F401 (a fixture)
from tests.selection import mostly_slow

COLUMNS = ("a", "ä", "b c")
LETTERS = st.characters(exclude_categories=("Cs",))
SCALARS = (st.none() | st.booleans() | st.integers() | st.floats() | st.text(LETTERS, max_size=9)
           | st.sampled_from(['"', "\\", "\x00", "NaN", "null", "1.0", "😀"]))  # fmt: skip


def nested(own):
    return st.lists(own, max_size=3) | st.dictionaries(st.text(LETTERS), own, max_size=3)


VALUES = st.recursive(SCALARS, nested, max_leaves=6)
KEYS = st.sampled_from([*COLUMNS, "", "A", "a ", "a\n", 'a"', "äa", "😀"]) | st.text(LETTERS, max_size=3)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=6)
STYLES = (
    {},
    {"ensure_ascii": False},
    {"separators": (",", ":")},
    {"separators": (" ,\t", "\r :  "), "ensure_ascii": False},
)


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


CONSTANTS = {"NaN": None, "Infinity": "Infinity", "-Infinity": "-Infinity"}
DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=CONSTANTS.get)


def same(text, value):
    """Return whether a text is that of a value; an array or an object is compared as JSON."""
    return DECODER.decode(text) == value if isinstance(value, list | dict) else text == expected_text(value)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(OBJECTS, max_size=8),
    styles=st.lists(st.sampled_from(STYLES), min_size=8, max_size=8),
    blank=st.sampled_from(["", "\n", " \t\r\n"]),
    end=st.sampled_from(["", "\n", "\r\n"]),
    size=st.integers(1, 99),
)
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


ALPHABET = [*(bytes([byte]) for byte in b'"\\{}[],:-+.019eEuna \t\r\x00\x1f\x7f\xff\xc3/'), b"true", b"null", b"NaN",
            b"Infinity", b"\\u", b"d83d", b'"a":', b"1e5", b"-0", b"01"]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(row=OBJECTS, style=st.sampled_from(STYLES), changes=st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 2), st.sampled_from(ALPHABET)), max_size=3))  # fmt: skip
def test_lines_are_accepted_as_by_the_json_module(tmp_path_factory, row, style, changes):
    line = json.dumps(row, **style).encode()
    for place, gone, new in changes:
        place = int(place * len(line))
        line = line[:place] + new + line[place + gone :]
    check_acceptance(tmp_path_factory.mktemp("ndjson") / "x.jsonl", line)


@settings(max_examples=500, deadline=None)
@given(parts=st.lists(st.sampled_from(ALPHABET), max_size=7))
def test_random_values_are_accepted_as_by_the_json_module(tmp_path_factory, parts):
    check_acceptance(tmp_path_factory.mktemp("ndjson") / "x.jsonl", b'{"x":' + b"".join(parts) + b"}")


def check_acceptance(path, line):
    path.write_bytes(b'{"a":1}\n' + line + b"\n")
    try:
        found = read(path)
    except (dp.DataError, UnicodeDecodeError):
        assert line.strip(b" \t\r")
        assert not accepts(line)
    else:
        assert not line.strip(b" \t\r") or accepts(line)
        assert len(found["a"]) == 1 + bool(line.strip(b" \t\r"))


def test_planted_faults_are_found(tmp_path, monkeypatch):
    """The check above finds a grammar with leading zeros, control characters in texts or a negative NaN."""
    for planted in (("zero", b"01", "whole", 0), ("text", b"\x01", "text", 0), ("minus", b"N", "aN", 0)):
        wrong = {"zero": b'{"x":01}', "text": b'{"x":"\x01"}', "minus": b'{"x":-NaN}'}[planted[0]]
        check_acceptance(tmp_path / "x.jsonl", wrong)
        with monkeypatch.context() as patch:
            patch.setattr(ndjson, "RULES", (*ndjson.RULES, planted))
            ndjson._tables.cache_clear()
            with pytest.raises(AssertionError):
                check_acceptance(tmp_path / "x.jsonl", wrong)
        ndjson._tables.cache_clear()


# cells of numbers, words and texts


def lines_of(table):
    return "".join(json.dumps({key: value for key, value in row.items() if value is not None}) + "\n"
                   for row in table.to_pylist()).encode()  # fmt: skip


@pytest.mark.parametrize("name", ["x.ndjson", "x.jsonl", "x.JSONL", "x.ndjson.gz", "x.JSONL.GZ", "x.jsonl.zst"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_counts_equal_those_of_parquet(tmp_path, name, mark, expected_counts):  # noqa: F811 (the fixture)
    content = mark + lines_of(make_table())
    codec = {"gz": gzip.compress, "zst": lambda part: pa.compress(part, "zstd", asbytes=True)}
    (tmp_path / name).write_bytes(codec.get(name.lower().rpartition(".")[2], bytes)(content))
    assert count_sets(tmp_path) == expected_counts
    assert dp.Table.open(tmp_path, DOMAIN).partitions[0].row_bound() >= ROWS


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", mostly_slow([1, 7, 100, 4096], {7}))
@pytest.mark.parametrize("order", ["as is", "reversed"])
def test_counts_do_not_depend_on_blocks_batches_and_order(tmp_path, monkeypatch, size, order, expected_counts):  # noqa: F811
    lines = lines_of(make_table()).splitlines(keepends=True)
    (tmp_path / "x.jsonl").write_bytes(b"".join(lines[::-1] if order == "reversed" else lines))
    monkeypatch.setattr(ndjson, "BLOCK_BYTES", size)
    monkeypatch.setattr(ndjson, "batch_rows", lambda columns: max(size // 9, 1))
    assert count_sets(tmp_path) == expected_counts


NUMBERS = ["1", "1.0", "1e0", "10E-1", "-0", "-0.0", "0", "2.5", "250e-2", "9007199254740993", "9007199254740992.0",
           "1e308", "1e400", "-1e400", "1e-400", "123456789012345678901234567890", "0.1", "1.5e3"]  # fmt: skip
KINDS = {
    "integer": {"kind": "integer", "low": -3, "high": 8, "outside": "category"},
    "clipped": {"kind": "integer", "low": -3, "high": 8, "outside": "clip"},
    "bins": {"kind": "bins", "edges": [-10.0, 0.0, 0.1, 1.0, 2.5, 1e4], "outside": "category"},
    "listed": {"kind": "categories", "values": [0, 1, 2.5], "outside": "category"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_have_the_cells_of_floats_in_parquet(tmp_path, kind):
    """One number in one file, so that a block contains nothing else."""
    domain = dp.Domain.from_dict({"attributes": {"a": KINDS[kind] | {"nulls": "category"}}})
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text("".join(f'{{"a":{number}}}\n' for number in NUMBERS))
    total = 0
    for place, number in enumerate(NUMBERS):
        pq.write_table(pa.table({"a": [float(number)]}), tmp_path / f"{place}.parquet")
        (tmp_path / f"{place}.jsonl").write_text(f'{{"a":{number}}}')
        counts = [dp.count_marginals(dp.Table.open(tmp_path / f"{place}.{ending}", domain), [("a",)])[("a",)]
                  for ending in ("parquet", "jsonl")]  # fmt: skip
        assert counts[0].tolist() == counts[1].tolist(), number
        total = total + counts[1]
    assert dp.count_marginals(dp.Table.open(mixed, domain), [("a",)])[("a",)].tolist() == total.tolist()


def test_column_of_several_types_has_the_cells_of_each_value(tmp_path, monkeypatch):
    """Integers in one block, floats in the next, then texts, words, nulls and nested values."""
    values = [
        "1",
        "2",
        "1.0",
        "2e0",
        '"1"',
        '" 2 "',
        "true",
        "false",
        "null",
        "NaN",
        '"n/a"',
        '"x"',
        "[1]",
        '{"a":1}',
        '""',
    ]
    domain = dp.Domain.from_dict({"attributes": {"a": {"kind": "integer", "low": 0, "high": 3, "outside": "category",
                                                       "nulls": "category", "unparsable": "category"}}})  # fmt: skip
    (tmp_path / "x.jsonl").write_text("".join(f'{{"a":{value}}}\n' for value in values) + '{"b":1}\n{}\n')
    for size in (1, 9, 1 << 23):
        monkeypatch.setattr(ndjson, "BLOCK_BYTES", size)
        counts = dp.count_marginals(dp.Table.open(tmp_path / "x.jsonl", domain), [("a",)])[("a",)].tolist()
        assert counts == [1, 4, 3, 0, 3, 6]  # 0 to 3, others, nulls


def test_words_and_texts_have_the_cells_of_parquet(tmp_path):
    domain = dp.Domain.from_dict({"attributes": {"a": {"kind": "boolean", "nulls": "category"},
                                                 "t": {"kind": "categories", "values": ["x", " x", "", "ß\n\"", "😀"],
                                                       "outside": "category", "nulls": "category"}}})  # fmt: skip
    rows = pa.table({"a": [True, False, None, True, False, False], "t": ["x", " x", "", 'ß\n"', None, "😀"]})
    pq.write_table(rows, tmp_path / "x.parquet")
    sets = [("a", "t")]
    expected = dp.count_marginals(dp.Table.open(tmp_path / "x.parquet", domain), sets)[sets[0]].tolist()
    for ascii_only in (True, False):
        (tmp_path / "x.jsonl").write_text(
            "\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows.to_pylist()), encoding="utf-8"
        )
        found = dp.count_marginals(dp.Table.open(tmp_path / "x.jsonl", domain), sets)[sets[0]].tolist()
        assert found == expected


def test_large_integers_and_escapes_are_exact(tmp_path):
    (tmp_path / "x.jsonl").write_text(
        '{"a":9007199254740993,"\\u00e4":"\\ud83d\\ude00\\ud83d","b c":"\\udE00\\uD83D\\uD83d\\ude00"}\n'
        '{"\\u0061":-18446744073709551617,"ä":"\\/\\b\\f\\n\\r\\t\\u0041","b\\u0020c":"\\ud83dx\\ude00"}\n'
    )
    found = read(tmp_path / "x.jsonl")
    assert found["a"] == ["9007199254740993", "-18446744073709551617"]
    assert found["ä"] == ["😀\ufffd", "/\b\f\n\r\tA"]
    assert found["b c"] == ["\ufffd\ufffd😀", "\ufffdx\ufffd"]


# parts of a file


def test_every_line_is_in_one_part(tmp_path, monkeypatch):
    """Whatever the length of the parts, also if one line is longer than several of them."""
    lines = [f'{{"a":{n}, "ä":"{"x" * (n * 7 % 40)}"}}' for n in range(30)]
    lines[7:9] = ["", " \t"]
    for end in ("", "\n"):
        (tmp_path / "x.jsonl").write_text("\n".join(lines) + end, encoding="utf-8")
        whole = read(tmp_path / "x.jsonl")
        assert len(whole["a"]) == 28
        for length in (*range(1, 60), 700, 10_000):
            monkeypatch.setattr(ndjson, "RANGE_BYTES", length)
            monkeypatch.setattr(ndjson, "EDGE_BYTES", 1 + length % 5)
            groups = NDJSON.open(str(tmp_path / "x.jsonl"), PLAIN).groups()
            parts = [read(tmp_path / "x.jsonl", parts=(part,)) for part in range(len(groups))]
            assert [text for part in parts for text in part["a"]] == whole["a"]
            assert read(tmp_path / "x.jsonl", parts=range(len(groups))) == whole


def test_large_file_is_split(tmp_path, monkeypatch, expected_counts):  # noqa: F811 (the fixture)
    content = lines_of(make_table())
    (tmp_path / "x.jsonl").write_bytes(content)
    monkeypatch.setattr(tables, "SPLIT_BYTES", 1)
    monkeypatch.setattr(tables, "SPLIT_ROWS", 500)
    monkeypatch.setattr(ndjson, "RANGE_BYTES", 6400)
    partitions = dp.Table.open(tmp_path, DOMAIN).split().partitions
    assert len(partitions) == math.ceil(len(content) / 6400 / 5)
    assert partitions[0].row_groups == (0, 1, 2, 3, 4)
    assert count_sets(tmp_path) == expected_counts
    monkeypatch.setattr(ndjson.OpenNdjson, "_lines", skipping_lines(ndjson.OpenNdjson._lines))
    assert count_sets(tmp_path) != expected_counts  # a part that loses its first line
    (tmp_path / "x.jsonl").rename(tmp_path / "y.dat")
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(content))
    [partition] = dp.Table.open(tmp_path / "x.jsonl.gz", DOMAIN).split().partitions
    assert partition.size() == (tmp_path / "x.jsonl.gz").stat().st_size


def skipping_lines(lines):
    def lose(self, start, end):
        for number, text in enumerate(lines(self, start, end)):
            yield text if number or not start else text.partition(b"\n")[2] or b"\n"

    return lose


# refusals


@pytest.mark.parametrize("content", [
    b'{"town":"SECRET"',
    b'["SECRET"]',
    b'[{"town":"SECRET"}]',
    b'{"town":"SECRET"}{"town":"Ulm"}',
    b'{"town":"SECRET"},',
    b'{"town":\n"SECRET"}',
    b'"SECRET"',
    b"17",
    b'{"town":"SECRET","town":null}',
    b'{"age":1,"SECRET":1,"SECRE\\u0054":1}',
    b'{"town":"SECRET\xff"}',
    b'{"town":"SECRET\xed\xa0\x80"}',
    '{"town":"SECRET"}'.encode("utf-16"),
    b'{"town":"' + b"SECRET" * (LINE_BYTES // 6) + b'"}',
    b" " * (LINE_BYTES + 1),
], ids=range(15))  # fmt: skip
@pytest.mark.parametrize("before", [b"", b'{"town":"Ulm","age":3}\n'])
def test_invalid_line_is_refused_without_its_content(tmp_path, content, before):
    for end in (b"", b"\n" + before):
        (tmp_path / "x.jsonl").write_bytes(before + content + end)
        with refused(dp.DataError) as caught:
            count_sets(tmp_path)
        text = str(caught.value).replace(str(tmp_path), "")
        assert not any(word in text for word in ("SECRET", "town", "17", "\n"))


def test_lines_of_the_largest_length_are_read(tmp_path):
    line = b'{"town":"Ulm","x":"' + b"x" * (LINE_BYTES - 21) + b'"}'
    assert len(line) == LINE_BYTES
    (tmp_path / "x.jsonl").write_bytes(b"\n".join([line] * 3))
    assert sum(count_sets(tmp_path)["age",]) == 3


def test_deep_nesting_and_other_columns_do_not_matter(tmp_path):
    deep = "[" * 100_000 + '{"age":1}' + "]" * 100_000
    (tmp_path / "x.jsonl").write_text(f'{{"x":{deep},"age":2,"y":{{"age":1,"age":3}}}}\n{{"age":2,"z":[null]}}')
    assert count_sets(tmp_path)["age",][2] == 2


def test_file_of_json_is_read_if_named(tmp_path, expected_counts):  # noqa: F811 (the fixture)
    (tmp_path / "x.json").write_bytes(lines_of(make_table()))
    assert count_sets(tmp_path, Dialect(format="ndjson")) == expected_counts
    assert format_of("x.json") is None


@pytest.mark.parametrize("others", [("x.parquet",), ("x.jsonl.gz",), ("y.csv",)])
def test_other_formats_in_the_folder_are_refused(tmp_path, others):
    for name in ("x.jsonl", *others):
        (tmp_path / name).write_bytes(b"")
    with refused(dp.DataError):
        dp.Table.open(tmp_path, DOMAIN)


def test_options_of_delimited_text_are_refused(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"{}")
    with refused(dp.DataError):
        dp.Table.open(tmp_path, DOMAIN, dialect=Dialect(";"))


def test_column_of_the_folder_names_has_their_value(tmp_path):
    for town in ("Ulm", "K%C3%B6ln"):
        (tmp_path / f"town={town}").mkdir()
        (tmp_path / f"town={town}" / "x.jsonl").write_text('{"age":1,"town":"other"}\n{"age":2}\n')
    counts = np.array(count_sets(tmp_path)["town", "age"])
    assert counts[:2, 1:3].tolist() == [[1, 1], [1, 1]]
    assert counts.sum() == 4


def test_parts_of_a_file_in_a_store(monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    store, content = fsspec.filesystem("memory"), lines_of(make_table())
    monkeypatch.setattr(ndjson, "RANGE_BYTES", 6400)
    for name, packed in (("x.jsonl", content), ("x.jsonl.gz", gzip.compress(content))):
        store.pipe(f"/parts/{name}", packed)
        url = f"memory://parts/{name}"
        whole = read(url, ("age",))["age"]
        parts = [read(url, ("age",), (part,))["age"] for part in range(len(NDJSON.open(url, PLAIN).groups()))]
        store.rm("/parts", recursive=True)
        assert [text for part in parts for text in part] == whole
        assert len(whole) == ROWS


def test_many_columns_and_keys(tmp_path):
    """Rows of 2,000 keys in changing order, of which every third is read."""
    rng, names = np.random.default_rng(2), [f"k{number}" for number in range(2000)]
    rows = [{name: int(value) for name, value in zip(rng.permutation(names), rng.integers(0, 9, 2000), strict=True)}
            for _ in range(20)]  # fmt: skip
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read(tmp_path / "x.jsonl", names[::3])
    assert found == {name: [str(row[name]) for row in rows] for name in names[::3]}
    (tmp_path / "x.jsonl").write_text(json.dumps(rows[0])[:-1] + ', "k1": 1}')
    with refused(dp.DataError):
        read(tmp_path / "x.jsonl", names[:1])


def reading_peak(path, columns):
    """Return the largest number of bytes that Python and NumPy have allocated while a file is read."""
    tracemalloc.start()
    for batch in NDJSON.open(str(path), PLAIN).batches(columns):
        assert len(batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("line", ["{}", '{"a":1,"b":2,"c":3,"":4}', json.dumps(dict.fromkeys(map(str, range(300)), 1))])
def test_memory_is_that_of_a_block(tmp_path, monkeypatch, line):
    """A file of four times the length needs no more memory, and empty objects no more than others."""
    monkeypatch.setattr(ndjson, "BLOCK_BYTES", 1 << 16)
    columns, peaks = [*map(str, range(300)), "a"], []
    for length in (1 << 17, 1 << 19):
        (tmp_path / "x.jsonl").write_text((line + "\n") * (length // len(line)))
        read(tmp_path / "x.jsonl", ("a",))
        peaks.append(reading_peak(tmp_path / "x.jsonl", columns))
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < 64 << 20


def test_texts_are_kept_that_pyarrow_changes_or_refuses(tmp_path):
    """The reasons for this reader (docs/decisions/why-not.md)."""
    from pyarrow import json as arrow_json

    path, texts = tmp_path / "ids.ndjson", ["12345678901234567890123", "12345678901234567890124", "1.10"]
    path.write_text("".join(f'{{"a": {text}}}\n' for text in texts))
    assert read(path, ["a"])["a"] == texts
    assert arrow_json.read_json(path).column("a").to_pylist() == [float(texts[0]), float(texts[0]), 1.1]

    path.write_text('{"a": 1}\n{"a": "x"}\n')
    assert read(path, ["a"])["a"] == ["1", "x"]
    options = arrow_json.ParseOptions(explicit_schema=pa.schema([("a", pa.string())]))
    with pytest.raises(pa.ArrowInvalid, match="changed from string to number"):
        arrow_json.read_json(path, parse_options=options)
