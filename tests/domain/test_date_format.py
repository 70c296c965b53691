"""Dates in the format of the domain file agree with `datetime.strptime`, and other texts are no dates."""

from __future__ import annotations

from datetime import date, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import dpscale as dp
from dpscale.domain.schema_values import date_pattern
from dpscale.records.column_values import days
from dpscale.records.sketch import FORMATS


@settings(max_examples=200, deadline=None)
@given(
    st.dates(date(1969, 1, 1), date(2068, 12, 31)),
    st.sampled_from(FORMATS),
    st.sampled_from(["", " 9:05 PM", " 23:59"]),
)
def test_days_are_those_of_strptime(day, form, time):
    text = day.strftime(form)
    found = days(pa.array([text + time]), form=form)
    assert not found.foreign.any()
    expected = datetime.strptime(text, form).date()
    assert found.values.astype("datetime64[D]")[0] == np.datetime64(expected)


@pytest.mark.parametrize(("form", "text"), [
    ("%d/%m/%Y", "31/02/2019"), ("%d/%m/%Y", "12/31/2019"), ("%b %d %Y", "Foo 12 1998"), ("%d/%m/%Y", "2019-01-31"),
    ("%d.%m.%Y", "1/2/2019"), ("%m/%d/%Y", "0/5/2019"), ("%Y-%m", "2019-13"),
])  # fmt: skip
def test_other_texts_are_no_dates(form, text):
    assert days(pa.array([text]), form=form).foreign.all()


def test_missing_dates_are_missing():
    found = days(pa.array(["NA", None, " 1/2/2019 "]), form="%d/%m/%Y")
    assert found.missing.tolist() == [True, True, False]


@pytest.mark.parametrize("form", ["%Q", "%Y", "%d/%m", "%Y %y %m", "%m %b %Y", "100%", ""])
def test_invalid_format_is_refused(form):
    with pytest.raises(ValueError):
        date_pattern(form)


def test_domain_file_keeps_the_format():
    table = {"kind": "date", "by": "month", "low": "2019-01", "high": "2019-12", "format": "%b %Y"}
    domain = dp.Domain(sent=table)
    assert domain.to_dict()["attributes"]["sent"]["format"] == "%b %Y"
    assert dp.Domain.from_dict(domain.to_dict()) == domain
    assert "format" not in dp.Domain(sent=dp.dates("2019-01", "2019-12", by="month")).to_dict()["attributes"]["sent"]


def test_attributes_share_a_table():
    table = {"kind": "integer", "low": 1, "high": 5, "nulls": "category", "also": ["q2", "q3"]}
    domain = dp.Domain.from_dict({"attributes": {"q1": table, "sex": {"kind": "boolean"}}})
    assert domain.names == ("q1", "q2", "q3", "sex")
    assert domain.shape(("q1", "q3")) == (6, 6)
    assert dp.Domain.from_dict(domain.to_dict()) == domain
    assert dp.Domain(q1=table).names == ("q1", "q2", "q3")
