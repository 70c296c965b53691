"""Numbers rounded to two significant digits of their standard error."""

import math

import pytest

from dpscale.base.display import between, distinct_sizes, quantity, rounded, share_text, type_of_value

TABLE = [
    (219.7, 42.3, "220"), (12_343.0, 423.0, "12,340"), (12_345.0, 4_230.0, "12,300"), (8.44444, 0.4271, "8.44"),
    (8.44444, 0.0427, "8.444"), (8.0, 0.427, "8.00"), (-17.6, 35.0, "−18"), (-0.3, 42.0, "0"), (99.96, 1.0, "100.0"),
    (5.0, 9.96, "5"), (5.0, 9.94, "5.0"), (1e-7, 3e-9, "0.0000001000"), (1234.5, 0.0, "1,234"), (0.0, 1.0, "0.0"),
    (3.14159, math.nan, "3.142"), (math.nan, 1.0, "—"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "error", "text"), TABLE)
def test_digits_follow_the_error(value, error, text):
    assert rounded(value, error) == text


@pytest.mark.parametrize(
    ("value", "error", "text"), [(220.4, 3.2, "220"), (7.0, 0.0, "7"), (12_343.0, 423.0, "12,340")]
)
def test_counts_have_no_decimals(value, error, text):
    assert rounded(value, error, 0) == text


def test_intervals_have_the_digits_of_the_estimate():
    assert between(138.2, 303.4, 42.3) == "138 to 303"
    assert between(math.nan, 303.4, 42.3) == ""
    assert share_text(0.1234, 0.10, 0.14, 0.1) == "12 % [10 to 14]"
    assert share_text(0.1234567, 0.1234, 0.1235, 1e-6) == "12.35 % [12.34 to 12.35]"
    assert share_text(1.234e-5, 1.1e-5, 1.4e-5, 1e-6) == "0.00123 % [0.00110 to 0.00140]"


def test_sizes_that_differ_are_different_texts():
    assert distinct_sizes(3 << 30, 2 << 30) == ("3 GiB", "2 GiB")
    assert distinct_sizes((2 << 30) + 1, 2 << 30) == ("2,147,483,649 bytes", "2,147,483,648 bytes")


def test_nouns_follow_their_number():
    assert [quantity(count, "set") for count in (0, 1, 2000)] == ["0 sets", "1 set", "2,000 sets"]
    assert [type_of_value(value) for value in (b"", 1, [])] == ["bytes", "an int", "a list"]
