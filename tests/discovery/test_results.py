"""Results of searches: a file states every outcome, and rows that count differently have different codes."""

import tomllib
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
import tomli_w
from hypothesis import assume, example, given, settings, strategies as st

from dpscale.base.errors import DataError
from dpscale.discovery.dyadic_tree import EdgePlan, Leaves, found_edges
from dpscale.discovery.ends import ChosenEnds, found_ends, plan_ends
from dpscale.discovery.value_counts import found_values, plan_values
from dpscale.domain import Domain
from dpscale.records.searched import EMPTY, VALUE, step_values, text_entries, text_type, value_codes
from tests.messages import refused

SEX = {"sex": {"kind": "categories", "values": ["f", "m"]}}


def written(domain, found):
    """Write the domain with the found cells to a file and read it again."""
    closed = domain.with_found(found)
    again = Domain.from_dict(tomllib.loads(tomli_w.dumps(closed.to_dict())))
    assert again == closed
    return again


def open_domain(table=None, number=None):
    attributes = SEX | ({"a": table} if table else {})
    return Domain.from_dict({"attributes": attributes, **({"numbers": {"a": number}} if number else {})})


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=8)


@settings(max_examples=150)
@given(
    st.dictionaries(st.one_of(TEXTS, st.just("(no value found)")), st.integers(-5, 5), max_size=4),
    st.booleans(),
    st.sampled_from(["reject", "drop", "category"]),
    st.lists(TEXTS, unique=True, max_size=2),
)
def test_every_set_of_texts_is_a_domain(counts, other, nulls, public):
    public = [one for one in public if one not in ("(outside)", "(null)")]
    counts = {one: count for one, count in counts.items() if one not in ("(outside)", "(null)")}
    table = {"kind": "discover", "other": other, "nulls": nulls, **({"values": public} if public else {})}
    domain = open_domain(table)
    plan = plan_values(domain["a"], Fraction(1, 100), Fraction(1, 10**9), 1)
    found, _ = found_values(plan, counts, "text")
    assert written(domain, {"a": found})["a"].size >= 2


@given(st.sets(st.integers(-(2**53) + 2, 2**53 - 2), max_size=4), st.booleans())
def test_every_set_of_integers_is_a_domain(values, other):
    domain = open_domain({"kind": "discover", "other": other})
    plan = plan_values(domain["a"], Fraction(1, 100), Fraction(1, 10**9), 1)
    found, _ = found_values(plan, {str(one): 7 for one in values}, "integer")
    assert set(values) <= set(written(domain, {"a": found})["a"].values)


ENDS = st.integers(-(2**53) + 1, 2**53 - 2)


@settings(max_examples=200)
@given(
    ENDS,
    st.one_of(st.integers(1, 10**5), st.integers(1, 2**54)),
    st.sampled_from([1, 0.01, 0.25, 1e-30, 7, 0.123456789, 1000, 1 / 3]),
    st.booleans(),
    st.sampled_from([None, "low", "high"]),
    st.integers(-1000, 1000),
)
@example(825_227_238_418, 11_583, 0.123456789, True, None, 0)  # too narrow for rounder ends with this step
@example(-1000, 427_044, 1 / 3, True, "high", -1000)
def test_every_range_is_a_domain(low, width, step, squares, public, place):
    high = low + width
    limit = int(2**52 / max(Fraction(repr(step)), 1))
    low, high = max(low, -limit), min(high, limit)
    table = {"low": "private", "high": "private", "step": step, **({"squares": True} if squares else {})}
    if public is not None:
        end = float(place * Fraction(repr(step)))
        table[public] = end
        assume(Fraction(repr(end)) == place * Fraction(repr(step)))  # other files are refused when they are read
        low, high = (place, max(high, place + 1)) if public == "low" else (min(low, place - 1), place)
    if low >= high:
        return
    domain = open_domain(number=table)
    plan = plan_ends(domain["a"], Fraction(1, 100), Fraction(1), 1, 1)
    found, _ = found_ends(plan, ChosenEnds(low, high, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.25, 0.5))
    again = written(domain, {"a": found})["a"]
    if public is None:
        assert again.low * again.unit <= low * domain["a"].unit < high * domain["a"].unit <= again.high * again.unit
    else:
        assert again.ends[0 if public == "low" else 1] == pytest.approx(table[public], abs=1e-40)


@settings(max_examples=150)
@given(st.lists(st.integers(1, 2**64 - 1), max_size=6, unique=True), st.sampled_from([1, 0.01, 1e-9, 12.5]))
def test_every_set_of_leaves_is_a_domain(starts, step):
    first = np.array([0, *sorted(starts)], np.uint64)
    leaves = Leaves(first, first, np.full(len(first), 10.0), np.ones(len(first)))
    domain = open_domain({"kind": "bins", "edges": "private", "step": step})
    found, released = found_edges(EdgePlan(domain["a"], Fraction(1), 1), leaves)
    again = written(domain, {"a": found})["a"]
    assert sum(released["counts"]) == pytest.approx(10 * len(first))
    assert len(released["counts"]) == again.listed or len(first) == 1


def number_of(**table):
    return open_domain(number={"low": 0, "high": "private", **table})["a"]


def test_rows_that_count_differently_have_different_codes():
    texts = open_domain({"kind": "discover", "nulls": "category", "max_length": 10})["a"]
    column = pa.array(["", None, "plumless", "buckeroo", "much too long for it", "0"])
    codes, states = value_codes(texts, column)
    assert len(set(codes.tolist())) == 6
    assert states.tolist() == [VALUE, EMPTY, VALUE, VALUE, VALUE, VALUE]
    codes, states = value_codes(number_of(nulls="skip"), pa.array([0.0, None, 1.0, 4.0e18, 9.3e18]))
    assert len(set(codes.tolist())) == 5
    assert codes.dtype == np.uint64


def test_steps_agree_with_the_edges_of_bins():
    for low, step in ((0.29, 0.01), (0.1, 0.1), (-0.7, 0.1), (3, 1.5)):
        table = {"kind": "bins", "edges": "private", "low": low, "high": low + 100 * step, "step": step}
        table["high"] = float(Fraction(repr(low)) + 100 * Fraction(repr(step)))
        attribute = open_domain(table)["a"]
        unit = Fraction(repr(step))
        steps = np.arange(int(Fraction(repr(low)) / unit), int(Fraction(repr(low)) / unit) + 100)
        values = [float(one * unit) for one in steps.tolist()]
        found, states = step_values(attribute, pa.array(values))
        assert (found == steps).all()
        assert (states == VALUE).all()
        below = [np.nextafter(one, -np.inf) for one in values[1:]]
        assert (step_values(attribute, pa.array(below))[0] == steps[:-1]).all()


def test_infinite_values_are_outside_bins_and_clipped_by_numbers():
    bins = open_domain({"kind": "bins", "edges": "private"})["a"]
    _, states = step_values(bins, pa.array([float("inf"), 1e30, -1e30, 5.0]))
    assert states.tolist() == [-2, -2, -2, VALUE]
    _, states = step_values(number_of(), pa.array([float("inf"), 1e30]))
    assert states.tolist() == [VALUE, VALUE]


def test_types_are_checked_against_the_domain(tmp_path):
    listed = open_domain({"kind": "discover", "values": ["007"]})["a"]
    with refused(DataError):
        text_type(listed, pa.int64())
    assert text_type(listed, pa.null()) == ""
    tree = {"kind": "discover", "file": "tree.csv", "levels": ["x"]}
    with refused(DataError):
        text_type(open_domain(tree)["a"], pa.int64())


def test_large_integers_are_not_found():
    integers = open_domain({"kind": "discover"})["a"]
    column = pa.array([1, 2**53, -(2**60), 2**63 - 1, 2**63 - 2])
    assert [int(row) >= 0 for row in text_entries(integers, column).rows] == [True, True, True, False, True]
    assert [int(row) >= 0 for row in text_entries(integers, pa.array([2**64 - 1], pa.uint64())).rows] == [False]
