"""Cramér's V against closed forms and against scipy's chi-squared statistic with the bias correction of the paper."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays
from scipy.stats import chi2_contingency

from dpscale.evaluation.marginals import compare_set, cramers_v, summarise_dependence

CASES = [
    ([[50, 0], [0, 50]], 1.0),
    ([[0, 7, 0], [9, 0, 0], [0, 0, 8]], 1.0),
    ([[10, 20], [30, 60]], 0.0),
    ([[5, 9, 2]], 0.0),  # an attribute with one value has no dependence
    ([[3000, 1000], [1000, 3000]], 0.5),  # φ = (ad − bc) / 4000², the correction in the fourth digit
    ([[40, 0, 10], [0, 0, 0], [10, 0, 40]], 0.6),  # empty rows and columns are ignored
]


@pytest.mark.parametrize(("table", "wanted"), CASES)
def test_cramers_v_equals_closed_forms(table: list[list[int]], wanted: float) -> None:
    assert cramers_v(np.array(table)) == pytest.approx(wanted, abs=0.01)


def test_cramers_v_of_empty_table_is_nan() -> None:
    assert np.isnan(cramers_v(np.zeros((2, 3), dtype=np.int64)))


@given(arrays.arrays(np.int64, st.tuples(st.integers(2, 5), st.integers(2, 6)), elements=st.integers(1, 200)))
def test_cramers_v_equals_corrected_scipy_chi_squared(table: np.ndarray) -> None:
    n, (r, k) = table.sum(), table.shape
    phi = max(0.0, chi2_contingency(table, correction=False).statistic / n - (r - 1) * (k - 1) / (n - 1))
    least = min(r - (r - 1) ** 2 / (n - 1), k - (k - 1) ** 2 / (n - 1)) - 1
    if least > 1e-9:
        assert cramers_v(table) == pytest.approx(min(1, (phi / least) ** 0.5), abs=1e-7)


def test_cramers_v_of_independent_columns_is_small() -> None:
    rng = np.random.default_rng(0)
    tables = [np.bincount(rng.integers(0, 900, 2000), minlength=900).reshape(30, 30) for _ in range(20)]
    assert np.mean([cramers_v(table) for table in tables]) < 0.05


def test_dependence_summary_names_worst_pairs() -> None:
    summary = summarise_dependence(
        [
            (("a", "b"), 0.5, 0.4, 0.1),
            (("a", "c"), 0.9, 0.2, 0.3),
            (("b", "c"), float("nan"), 0.0, 0.0),
        ]
    )
    assert summary["pairs"] == 2
    assert summary["mean_difference"] == pytest.approx(0.4)
    assert summary["max_difference"] == pytest.approx(0.7)
    assert summary["worst"][0] == {"attributes": ["a", "c"], "data": 0.9, "rows": 0.2}


def test_value_that_only_rows_have_does_not_change_the_scale() -> None:
    """Records in a third row and column, by noise, would divide V by √2."""
    data = np.array([[2400, 600, 0], [1200, 1800, 0], [0, 0, 0]])
    rows = data.copy()
    rows[2, 0] = rows[0, 2] = 1
    found = compare_set(("a", "b"), data // 2, data - data // 2, rows).dependence
    assert found[1] == pytest.approx(found[0], abs=1e-3)
    assert cramers_v(rows) < 0.8 * found[0]
