"""`domain sketch`: a draft that parses, accepts the data it was made from, and is marked as private."""

from __future__ import annotations

import datetime
import sys
import tomllib
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings, strategies as st

import dpscale as dp
from dpscale.records.formats import Dialect
from dpscale.records.sketch import WARNING, sketch


def make_draft(path):
    text = sketch(str(path)).replace("reviewed = false", "reviewed = true")
    domain = dp.Domain.from_dict(tomllib.loads(text))
    assert dp.Domain.from_dict(domain.to_dict()) == domain
    return text, domain


def test_sketch_of_mixed_table(tmp_path):
    columns = {
        "n": [1, None, 7], "x": [0.5, 2.0, float("nan")], "yes": [True, False, True], "money": [Decimal("1.50")] * 3,
        "town": ["Köln", 'say "hi"', None], "code": ["01", "02", "03"], "text number": ["1", " 2", "NA"],
        "day": [datetime.date(2020, 1, 1)] * 3, "list": [[1], [2], []], "nothing": pa.nulls(3),
        "blob": [b"x", b"y", b"z"], "one": [5, 5, 5], "inf": [float("inf"), 1.0, 2.0], "big": [2**60, 2**60 + 1, 0],
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    text, domain = make_draft(tmp_path / "x.parquet")
    assert {name for name in columns if name not in domain.names} == {"list", "nothing", "blob"}
    assert "# 'one' has only one value" in text
    assert (domain["yes"].kind, domain["day"].kind) == ("boolean", "date")
    kinds = {a.name: (a.kind, a.nulls) for a in domain.attributes}
    assert kinds["n"] == kinds["text number"] == ("integer", "category")
    assert kinds["town"] == ("categories", "category")
    assert kinds["code"] == ("categories", "reject")
    assert kinds["money"][0] == kinds["big"][0] == kinds["x"][0] == "bins"
    for name in domain.names:
        assert dp.count_marginals(dp.Table.open(tmp_path, domain), [(name,)])[name,].sum() == 3


def test_draft_is_marked_as_private(tmp_path):
    (tmp_path / "x.csv").write_text("a\n1\n2\n")
    text, _ = make_draft(tmp_path)
    assert "PRIVATE" in text.splitlines()[0]
    assert " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#")) == WARNING


def test_large_text_columns_are_left_out(tmp_path):
    names = [f"person {i}" for i in range(5000)]
    pq.write_table(pa.table({"name": names, "a": np.arange(5000) % 2}), tmp_path / "x.parquet", row_group_size=100)
    text, domain = make_draft(tmp_path)
    assert domain.names == ("a",)
    assert "# left out: 'name' (an id: a value for every row" in text
    assert "person" not in text


def test_columns_that_change_type_between_files(tmp_path):
    pq.write_table(pa.table({"a": [1], "b": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": ["x"], "b": ["2"]}), tmp_path / "2.parquet")
    text, domain = make_draft(tmp_path)
    assert domain.names == ("b",)
    assert "numbers in one file, texts in another" in text


def test_table_without_usable_column_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text("a\n")
    with pytest.raises(dp.DataError, match="no column in"):
        sketch(str(tmp_path))


def test_invalid_utf8_column_is_left_out(tmp_path):
    bad = pa.array([b"\xff5", b"1"]).view(pa.string())
    pq.write_table(pa.table({"s": bad, "a": [0, 1]}), tmp_path / "x.parquet")
    text, domain = make_draft(tmp_path)
    assert domain.names == ("a",)
    assert "not UTF-8" in text


def test_irregular_csv_is_explained(tmp_path):
    lines = [f"{n};{'unknown' if n % 40 == 0 else n};{n % 28 + 1}.0{n % 9 + 1}.2024;P{n % 150}" for n in range(400)]
    (tmp_path / "x.csv").write_text("\n".join(["number;age;day;person", *lines]))
    with pytest.raises(dp.DataError, match="set --delimiter ';' here, and delimiter in"):
        sketch(str(tmp_path))
    text = sketch(str(tmp_path), Dialect(";"))
    attributes = tomllib.loads(text)["attributes"]
    assert (attributes["age"]["kind"], attributes["age"]["unparsable"]) == ("integer", "category")
    assert "# left out: 'day' (days that are not written as 2025-01-31" in text
    assert "# left out: 'number' (an id" in text
    assert attributes["person"]["kind"] == "text-prefix"
    domain = dp.Domain.from_dict({"attributes": attributes})
    assert dp.count_marginals(dp.Table.open(tmp_path, domain, dialect=Dialect(";")), [("age",)])["age",].sum() == 400


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats() | st.none(), min_size=1, max_size=5), st.lists(st.text(max_size=4), min_size=5, max_size=5))
@example([sys.float_info.max], [""] * 5)
def test_draft_accepts_any_floats_and_texts(tmp_path_factory, floats, texts):
    path = tmp_path_factory.mktemp("sketch") / "x.parquet"
    table = pa.table({"x": pa.array(floats, pa.float64()), "s": texts[: len(floats)], "a": [0] * len(floats)})
    pq.write_table(table, path)
    _, domain = make_draft(path)
    for name in domain.names:
        counts = dp.count_marginals(dp.Table.open(path, domain), [(name,)])
        assert counts[name,].sum() == len(floats)
