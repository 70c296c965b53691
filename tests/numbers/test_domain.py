"""Numbers of a domain file: steps, clipping, nulls, parts of a record and refused tables."""

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from dpscale.base.errors import DomainError, JobError, RefusedValue
from dpscale.domain import Domain, Number
from dpscale.records.encode import encode
from dpscale.workload import Workload
from tests.messages import refused
from tests.numbers.small import make_domain


def test_values_are_clipped_and_rounded_to_steps():
    number = make_domain({"x": {"low": -1, "high": 2, "step": 0.5}})["x"]
    codes = encode(number, pa.array([-9.0, -1.0, -0.76, -0.75, 0.2, 1.99, 2.0, 1e300]))
    assert codes.tolist() == [0, 0, 0, 1, 2, 6, 6, 6]


@pytest.mark.parametrize(("nulls", "code"), [("skip", 7), ("zero", 2)])
def test_nulls_are_skipped_or_zero(nulls, code):
    number = make_domain({"x": {"low": -1, "high": 2, "step": 0.5, "nulls": nulls}})["x"]
    assert encode(number, pa.array([0.5, None])).tolist() == [3, code]


def test_nulls_and_values_outside_are_refused_on_request():
    number = make_domain({"x": {"low": 0, "high": 2, "outside": "reject"}})["x"]
    with refused(RefusedValue):
        encode(number, pa.array([1, 3]))
    with refused(RefusedValue):
        encode(number, pa.array([1, None]))


@given(st.integers(1, 200), st.booleans(), st.booleans())
def test_parts_of_a_record_are_exact(steps, squares, skips):
    """They are not negative, sum to one record, and give value and square exactly."""
    number = Number("x", "number", 0, steps, squares=squares, nulls="skip" if skips else "reject")
    parts = number.parts(np.arange(number.code_count, dtype=np.uint32))
    assert (parts >= 0).all()
    assert (parts.sum(axis=1) == number.denominator).all()
    values = [Fraction(value) for value in number.cell_values.tolist()]
    for code, row in enumerate(parts[: steps + 1].tolist()):
        shares = [Fraction(part, number.denominator) for part in row]
        assert sum(share * value for share, value in zip(shares, values, strict=True)) == code
        if squares:
            assert shares[0] + shares[3] == (Fraction(2 * code, steps) - 1) ** 2
    if skips:
        assert parts[-1].tolist() == [0] * number.listed + [number.denominator]


def test_domain_file_is_read_back():
    domain = make_domain()
    assert Domain.from_dict(domain.to_dict()) == domain
    assert Domain.from_dict(domain.to_dict()).digest == domain.digest
    squares = domain.with_squares(["pay"])
    assert Domain.from_dict(squares.to_dict()) == squares != domain
    assert domain.names == ("a", "b")
    assert domain.axis_names == ("a", "b", "pay", "wait")
    assert domain.shape(domain.axis_names) == (4, 3, 2, 3)


@pytest.mark.parametrize(("table", "message"), [
    ({"low": 0}, "numbers.x.high: missing"),
    ({"low": 3, "high": 3}, "numbers.x.high: 3; expected more than low = 3"),
    ({"low": 0, "high": 1, "step": 0.3}, "numbers.x.step: 0.3; expected a number of which low and high are multiples"),
    ({"low": 0, "high": 1, "step": -1}, "numbers.x.step: -1; expected a number above 0"),
    ({"low": 0, "high": 1, "steps": 1}, "unknown key 'steps'"),
    ({"low": "0", "high": 1}, "numbers.x.low: '0'; expected a number"),
    ({"low": 0, "high": 2**40}, "numbers.x.step: 1,099,511,627,776 steps from low to high; expected at most"),
    ({"low": 0, "high": 10**6, "squares": True}, "expected at most 46,340 for variances; use a larger step"),
    ({"low": 10**10, "high": 10**10 + 1, "step": 1e-9}, "numbers.x.step: 1e-09; expected ends of less than 2^53 steps"),
    ({"low": 0, "high": 1, "outside": "category"}, "numbers.x.outside: 'category'; expected clip, reject, drop"),
    ({"low": 0, "high": 1, "nulls": "category"}, "numbers.x.nulls: 'category'; expected reject, skip, zero, drop"),
])  # fmt: skip
def test_wrong_tables_are_refused(table, message):
    with pytest.raises(DomainError) as error:
        make_domain({"x": table})
    assert message in str(error.value)


def test_name_of_the_denominator_of_ratios_is_refused():
    with refused(DomainError):
        make_domain({"records": {"low": 0, "high": 1}})


def test_sum_of_a_range_far_from_zero_is_refused():
    """It is the number of records, times a constant; the mean is not."""
    workload = Workload(make_domain({"x": {"low": 10**9, "high": 10**9 + 10}}))
    with refused(JobError):
        workload.add("sum", degree=1, of="x")
    assert workload.add("mean", degree=1, of="x").query_count == 7


def test_number_is_no_attribute_of_counts():
    workload = Workload(make_domain())
    assert workload.add("marginal", degree=2).sets == (("a", "b"),)
    with refused(JobError):
        workload.add("marginal", attributes=[["a", "pay"]])
    with refused(JobError):
        workload.add("sum", degree=1, of="a")
    with refused(JobError):
        workload.add("mean", degree=1)
    with refused(JobError):
        workload.add_product({"a": "prefix", "pay": "prefix"})
