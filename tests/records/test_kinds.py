"""Attribute kinds beyond numbers and lists (dates, booleans, text prefixes, groups, derived attributes) against
pandas.
"""

from __future__ import annotations

import datetime
import json
import tomllib

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings, strategies as st

import dpscale as dp
from dpscale.domain.attribute import PERIODS, first_day, name_of, number_of, read_period
from dpscale.records.encode import encode
from tests.messages import refused
from tests.selection import mostly_slow

PANDAS = {"day": "D", "week": "W-SUN", "month": "M", "quarter": "Q", "year": "Y"}
DAYS = st.dates(datetime.date(1700, 1, 1), datetime.date(2250, 12, 31))
BOUNDS = {"day": ("2019-12-30", "2020-03-01"), "week": ("2019-W52", "2020-W30"), "month": ("2019-11", "2021-02"),
          "quarter": ("2018-Q3", "2021-Q2"), "year": (1999, 2030)}  # fmt: skip


def make_attribute(**table):
    return dp.Domain.from_dict({"attributes": {"x": table}})["x"]


def make_date_attribute(by, **more):
    low, high = BOUNDS[by]
    return make_attribute(kind="date", by=by, low=low, high=high, **more)


@settings(max_examples=150, deadline=None)
@given(DAYS, st.sampled_from(PERIODS))
@example(datetime.date(1969, 12, 31), "week")
@example(datetime.date(2021, 1, 3), "week")
def test_periods_equal_pandas_periods(day, by):
    period = pd.Timestamp(day).to_period(PANDAS[by])
    number = number_of(by, day)
    assert first_day(by, number) == period.start_time.date()
    assert read_period(by, day.isoformat()) == read_period(by, name_of(by, number)) == number


@settings(max_examples=60, deadline=None)
@given(st.lists(DAYS | st.none(), min_size=1, max_size=8), st.sampled_from(PERIODS), st.booleans())
def test_dates_of_any_type_equal_pandas(found, by, clip):
    own = make_date_attribute(by, outside="clip" if clip else "category", nulls="category")
    low = pd.Period(first_day(by, own.low), PANDAS[by]).ordinal
    expected = []
    for day in found:
        number = None if day is None else pd.Period(day, PANDAS[by]).ordinal - low
        far = None if number is None else min(max(number, 0), own.listed - 1)
        expected.append(own.null_cell if day is None else far if clip or far == number else own.outside_cell)
    texts = [None if day is None else day.isoformat() for day in found]
    timed = [None if day is None else f" {day}T23:59:59.5 " for day in found]
    stamps = [None if day is None else datetime.datetime(day.year, day.month, day.day, 23, 59) for day in found]
    arrays = [
        pa.array(found, pa.date32()),
        pa.array(found, pa.date64()),
        pa.array(texts),
        pa.array(timed),
        pa.array(texts).dictionary_encode(),
        *(pa.array(stamps, pa.timestamp(u)) for u in ("s", "ms", "us", "ns")),
    ]
    for column in arrays:
        assert encode(own, column).tolist() == expected, column.type


@settings(max_examples=60, deadline=None)
@given(st.datetimes(datetime.datetime(1975, 1, 1), datetime.datetime(2035, 1, 1)),
       st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata", ""]), st.integers(-12, 14))  # fmt: skip
def test_timestamps_use_day_of_time_zone(moment, zone, hours):
    own = make_attribute(kind="date", by="day", low="1974-12-01", high="2035-02-01", **({"zone": zone} if zone else {}))
    stamp = pd.Timestamp(moment).floor("s").tz_localize(datetime.timezone(datetime.timedelta(hours=hours)))
    day = stamp.tz_convert(zone or "UTC").date()
    expected = number_of("day", day) - own.low
    texts = [stamp.isoformat(), stamp.isoformat().replace("+00:00", "Z")]
    instant = pa.array([stamp.tz_convert("UTC").tz_localize(None)], pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    assert encode(own, pa.array(texts)).tolist() == [expected] * 2
    assert encode(own, instant).tolist() == [expected]


@pytest.mark.parametrize(
    "text", ["2025-02-30", "2025-13-01", "20250101", "yesterday", "2025-1-1", "2025-01-01T24:00", "2025-01-01T10"]
)
def test_invalid_date_texts_are_unparsable(text):
    taken = make_attribute(kind="date", by="year", low=2020, high=2030, outside="clip", unparsable="category")
    assert encode(taken, pa.array([text, "2025-02-28"])).tolist() == [11, 5]
    with refused(dp.DataError):
        encode(make_attribute(kind="date", by="year", low=2020, high=2030, outside="clip"), pa.array([text]))


def test_numbers_are_refused_as_dates():
    with refused(dp.DataError):
        encode(make_date_attribute("year"), pa.array([2001]))


@pytest.mark.parametrize("column", [
    pa.array([True, False, None]), pa.array(["yes", "F", "NA"]), pa.array([1, 0, None]), pa.array([" TRUE", "n", ""])
])  # fmt: skip
def test_boolean_spellings(column):
    own = make_attribute(kind="boolean", nulls="category", outside="category")
    assert encode(own, column).tolist() == [1, 0, 3]
    assert own.labels == [False, True, "(outside)", None]
    assert encode(own, pa.array(["maybe", "2"])).tolist() == [2, 2]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=4) | st.sampled_from(["53111", "5x", "Köln", "ß"]), max_size=6))
def test_text_prefix_uses_first_letters(texts):
    own = make_attribute(kind="text-prefix", length=2, values=["53", "Kö", "ß", "5x"], outside="category")
    expected = [own.values.index(text[:2]) if text[:2] in own.values else own.outside_cell for text in texts]
    assert encode(own, pa.array(texts, pa.string())).tolist() == expected


def test_invalid_utf8_has_no_prefix_value():
    own = make_attribute(kind="text-prefix", length=1, values=["a", "b"], outside="category")
    assert encode(own, pa.array([b"\xff5", b"bc"]).view(pa.string())).tolist() == [2, 1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-500, 1500), max_size=6), st.booleans())
def test_rounding_is_to_nearest_and_half_up(numbers, clip):
    own = make_attribute(kind="integer", low=0, high=1000, round=50, outside="clip" if clip else "category")
    cells = [(2 * n + 50) // 100 for n in numbers]
    far = [min(max(cell, 0), 20) for cell in cells]
    expected = [a if clip or a == b else own.outside_cell for a, b in zip(far, cells, strict=True)]
    for kind in (pa.int64(), pa.float64(), pa.string()):
        assert encode(own, pa.array(numbers, pa.int64()).cast(kind)).tolist() == expected
    assert own.labels[:3] == [0, 50, 100]


def test_logarithmic_edges_equal_their_powers():
    own = make_attribute(kind="bins", edges=[0, 1, 2, 6], log=10, outside="clip")
    assert own.edges == (1.0, 10.0, 100.0, 1e6)
    assert encode(own, pa.array([0, 1, 9.99, 10, 1e5, 1e9])).tolist() == [0, 0, 0, 1, 2, 2]


def test_clipped_fractions_are_rounded_down():
    own = make_attribute(kind="integer", low=0, high=84, outside="clip")
    assert encode(own, pa.array([34.9, 34.5, 35.5, -0.5, 84.9])).tolist() == [34, 34, 35, 0, 84]


TOWNS = """
[attributes.town]
kind = "categories"
values = ["Bonn", "Köln", "Ulm"]
nulls = "category"
outside = "category"
[attributes.town.parent.region]
west = ["Köln", "Bonn"]
south = ["Ulm"]
[attributes.size]
kind = "categories"
from = "income"
map = { low = [1, 2], high = [3] }
[attributes.income]
kind = "integer"
low = 1
high = 3
[attributes.when]
kind = "date"
by = "quarter"
low = 2020-01-01
high = 2020-12-31
from = "day"
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng, folder = np.random.default_rng(1), tmp_path_factory.mktemp("kinds")
    rows = 300
    towns = rng.choice(np.array(["Bonn", "Köln", "Ulm", "Trier", None], object), rows)
    day = np.datetime64("2020-01-01") + rng.integers(0, 366, rows)
    frame = pd.DataFrame({"town": towns, "income": rng.integers(1, 4, rows), "day": day.astype("datetime64[ns]")})
    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    for name in ("plain.parquet", "cells.parquet"):
        pq.write_table(arrow, folder / name, use_dictionary=name == "cells.parquet")
    arrow_csv.write_csv(arrow, folder / "x.csv")
    return folder, frame


@pytest.mark.parametrize("name", ["plain.parquet", "cells.parquet", "x.csv"])
def test_derived_attributes_and_parents_equal_pandas_counts(table, name):
    folder, frame = table
    domain = dp.Domain.from_dict(tomllib.loads(TOWNS))
    assert domain.names == ("town", "region", "size", "income", "when")
    region = frame.town.map({"Bonn": 0, "Köln": 0, "Ulm": 1}).where(frame.town.notna(), 3).fillna(2).astype(int)
    size, when = (frame.income == 3).astype(int), frame.day.dt.quarter - 1
    counts = dp.count_marginals(dp.Table.open(folder / name, domain), [("region", "size", "when")])
    expected = np.zeros((4, 2, 4), int)
    np.add.at(expected, (region, size, when), 1)
    assert (counts["region", "size", "when"] == expected).all()


def test_domain_of_all_kinds_round_trip():
    domain = dp.Domain.from_dict(tomllib.loads(TOWNS))
    again = dp.Domain.from_dict(domain.to_dict())
    assert again == domain
    assert again.digest == domain.digest
    assert [rule.names for rule in domain.rules] == [("town", "region"), ("income", "size")]


@pytest.mark.parametrize("scheduler", mostly_slow(["threads", "processes"], {"threads"}))
def test_run_and_synthetic_rows_of_all_kinds(table, scheduler, tmp_path):
    folder, frame = table
    (tmp_path / "d.toml").write_text("reviewed = true\n" + TOWNS)
    job = {
        "data": {"path": str(folder / "cells.parquet"), "domain": str(tmp_path / "d.toml")},
        "privacy": {"rho": 1e6, "allow_weak_privacy": True, "ledger": str(tmp_path / "l.sqlite")},
        "workload": [{"family": "marginal", "degree": 1}, {"family": "marginal", "attributes": [["region", "when"]]}],
        "engine": {"scheduler": scheduler, "seed": 3}, "synthesize": {"rows": 300},
    }  # fmt: skip
    release = dp.run(job, tmp_path / "run")
    when = np.bincount(frame.day.dt.quarter - 1, minlength=4)
    assert np.abs(release.marginal(("when",)) - when).max() < 1
    rows = release.synthetic().compute()
    assert set(rows.columns) == {"town", "income", "region", "size", "when"}
    west = rows[rows.town.isin(["Bonn", "Köln"])]
    assert (west.region == "west").all()
    assert pd.to_datetime(rows.when).dt.year.eq(2020).all()
    answers = pq.read_table(tmp_path / "run" / "answers" / "marginal-1").to_pandas()
    assert {"2020-Q1", "west", "(null)"} <= set(answers.value_1)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["domain"].startswith("drafted from the data")


def test_frame_is_read_by_source_columns(table):
    _, frame = table
    from dpscale.engine.frames import frame_table
    from dpscale.engine.schedulers import resolve

    domain, engine = dp.Domain.from_dict(tomllib.loads(TOWNS)), resolve(scheduler="threads")
    one = frame_table(frame, domain, domain.columns(("size", "when")), engine)
    counts = dp.count_marginals(one, [("size", "when")])["size", "when"]
    assert counts[1].sum() == (frame.income == 3).sum()


@pytest.mark.parametrize("text", [
    'kind = "date"\nby = "moth"\nlow = 2020\nhigh = 2021',
    'kind = "date"\nby = "month"\nlow = "2020-13"\nhigh = 2021',
    'kind = "date"\nby = "month"\nlow = "2021-01"\nhigh = "2020-01"',
    'kind = "date"\nby = "day"\nlow = 2020-01-01\nhigh = 2020-02-01\nzone = "Berlin"',
    'kind = "boolean"\noutside = "clip"',
    'kind = "text-prefix"\nlength = 1\nvalues = ["ab"]',
    'kind = "integer"\nlow = 0\nhigh = 10\nround = 3',
    'kind = "bins"\nedges = [0, 1000]\nlog = 10',
    'kind = "categories"\nmap = { a = [1], b = [1] }',
    'kind = "categories"\nvalues = ["a"]\nmap = { a = ["b"] }',
    'kind = "categories"\nvalues = ["a", "b"]\nparent = { r = { x = ["a"] } }',
    'kind = "categories"\nvalues = ["a"]\nparent = { r = { x = ["a", "c"] } }',
    'kind = "integer"\nlow = 0\nhigh = 1\noutside = "clip"\nparent = { r = { x = [0], y = [1] } }',
    'kind = "bins"\nedges = [0, 1]\nparent = { r = { x = [0] } }',
])  # fmt: skip
def test_invalid_kind_settings_are_refused(text):
    with refused(dp.DomainError):
        dp.Domain.from_dict(tomllib.loads(f"[attributes.x]\n{text}"))


def test_draft_domain_requires_review():
    with refused(dp.DomainError):
        dp.Domain.from_dict({"reviewed": False, "attributes": {"a": {"kind": "boolean"}}})
    assert dp.Domain.from_dict({"reviewed": True, "attributes": {"a": {"kind": "boolean"}}}).reviewed


def test_sketch_proposes_kinds(tmp_path):
    from dpscale.records.sketch import sketch

    rows = 200
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(i) for i in range(rows)]
    frame = pd.DataFrame({"d": days, "t": [f"{day}T10:00:00Z" for day in days], "b": [True, False] * 100,
                          "c": ["yes", "no"] * 100, "zip": [f"D{53 + i % 7}-{i % 20:03}" for i in range(rows)],
                          "id": range(7, 7 + rows)})  # fmt: skip
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), tmp_path / "x.parquet")
    text = sketch(str(tmp_path))
    domain = dp.Domain.from_dict(tomllib.loads(text.replace("reviewed = false", "reviewed = true")))
    assert {one.name: one.kind for one in domain.attributes} == {
        "d": "date", "t": "date", "b": "boolean", "c": "categories", "zip": "text-prefix"}  # fmt: skip
    assert "# left out: 'id' (an id" in text
    counts = dp.count_marginals(dp.Table.open(tmp_path, domain), [(name,) for name in domain.names])
    assert all(one.sum() == rows for one in counts.values())
