"""The measures of rows in benchmarks/rivals.py against loops over records, and their planted extremes."""

import importlib
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = {"a": 2, "b": 3, "c": 4, "d": 2}


@pytest.fixture
def measures(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("rivals")


def drawn(measures, rows, seed):
    codes = np.random.default_rng(seed).integers(0, list(SIZES.values()), (rows, len(SIZES)))
    codes[:, 3] = codes[:, 0]
    return measures.Table("drawn", SIZES, codes), codes


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_distances_equal_counted_shares(measures, degree):
    (first, codes), (second, other) = drawn(measures, 30, 0), drawn(measures, 20, 1)
    expected = []
    for columns in combinations(range(len(SIZES)), degree):
        shares = [{cell: count / len(own) for cell, count in Counter(map(tuple, own[:, columns].tolist())).items()}
                  for own in (codes, other)]  # fmt: skip
        cells = shares[0].keys() | shares[1].keys()
        expected.append(sum(abs(shares[0].get(cell, 0) - shares[1].get(cell, 0)) for cell in cells) / 2)
    assert measures.mean_distance(first, second, degree) == pytest.approx(np.mean(expected))
    assert measures.mean_distance(first, first, degree) == 0


def test_closeness_and_balanced_accuracy_equal_loops(measures):
    (_, codes), (rows, other) = drawn(measures, 30, 2), drawn(measures, 7, 3)
    expected = [max(int((own == row).sum()) for row in other) for own in codes]
    np.testing.assert_array_equal(measures.closest(codes, rows), expected)
    truth, guess = np.array([0, 0, 0, 1, 2, 2]), np.array([0, 1, 0, 1, 0, 2])
    assert measures.balanced_accuracy(truth, guess) == pytest.approx(balanced_accuracy_score(truth, guess))
    assert measures.balanced_accuracy(truth, guess) == pytest.approx((2 / 3 + 1 + 1 / 2) / 3)


def test_copies_show_members_and_learners_find_a_law(measures):
    """Copies of records are closest to them; rows of another law are told apart; `d` follows from `a`."""
    sizes = dict.fromkeys([f"x{i}" for i in range(12)], 4)
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 4, (900, 12))
    codes[:, 11] = codes[:, 0]
    records, held_out = (measures.Table("t", sizes, part) for part in (codes[:600], codes[600:]))
    found = measures.measure_rows(records, held_out, codes[:600], "x11", 0)
    assert found.keys() == set(measures.MEASURES)
    assert found["membership"] > 0.99
    assert min(found[name] for name in ("tree", "boosting", "logistic regression")) > 0.95
    other = rng.integers(0, 2, (600, 12))
    assert measures.measure_rows(records, held_out, other, "x11", 0)["propensity"] > 0.95
    other[:, 11] = 1
    constant = measures.measure_rows(records, held_out, other, "x11", 0)
    assert constant["tree"] == constant["boosting"] == pytest.approx(1 / 4)
    assert constant["membership"] == pytest.approx(0.5, abs=0.15)


def test_split_is_the_table(measures, monkeypatch, tmp_path):
    monkeypatch.setitem(measures.TARGETS, "drawn", "a")
    table, codes = drawn(measures, 200, 5)
    measures.write_table(table, tmp_path)
    first, second = measures.split_table("drawn", 7, tmp_path)
    assert first.rows + second.rows == 200
    assert 10 < second.rows < 80
    together = [np.stack(list(part.columns.values()), axis=1) for part in (first, second)]
    assert sorted(map(tuple, np.concatenate(together).tolist())) == sorted(map(tuple, codes.tolist()))


@pytest.mark.parametrize("package", ["mbi", "dpsynth", "dpmm", "margnet"])
def test_a_package_without_a_python_is_stated(measures, monkeypatch, capsys, tmp_path, package):
    monkeypatch.setattr(measures.Grid, "run", lambda *_: {})
    measures.run_rows([], ["adult"], [1.0], range(1), tmp_path, measures.Limits(1, 1, 0), None, "")
    assert f"{package}: not run: {measures.NO_PYTHON}" in capsys.readouterr().out
