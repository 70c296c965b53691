"""Verdicts in words of a private comparison, beside halves of the data."""

import math

import pytest

from dpscale.evaluation.comparison import against, verdicts

NEAR, ABOUT = "no farther apart than two halves of the data", "about as far apart as two halves"


@pytest.mark.parametrize(("rows", "halves", "words"), [
    (0.01, 0.02, NEAR), (0.02, 0.02, NEAR), (0.0, 0.0, NEAR), (0.025, 0.02, ABOUT),
    (0.05, 0.02, "2.5 times as far apart as two halves"), (0.2, 0.02, "far off, 10 times as far apart as two halves"),
    (0.1, 0.0, "far off, inf times as far apart as two halves"), (math.nan, 0.1, "not known"),
])  # fmt: skip
def test_distances_in_words(rows, halves, words):
    assert against(rows, halves) == words


def content(auc=0.5, target=0.7, **more):
    degree = {"sets": 3, "mean": 0.04, "halves": 0.02}
    return {"marginals": {"1": degree, "2": degree | {"sets": 0}}, "propensity": {"auc": auc},
            "dependence": {"pairs": 2, "mean_difference": 0.01, "halves": 0.03},
            "target": {"attribute": "sex", "data": {"auc": 0.7}, "rows": {"auc": target}}, **more}  # fmt: skip


def test_every_measure_has_a_verdict():
    sets = [{"sums": 0.1, "sums_halves": 0.1, "means": 4.0, "means_halves": 1.0}]
    told = {one["measure"]: one["words"] for one in verdicts(content(numbers={"fee": {"sets": sets}}))}
    assert told == {
        "counts over 1 attribute": "2 times as far apart as two halves", "dependence of pairs": NEAR,
        "sums of fee": NEAR, "means of fee": "far off, 4 times as far apart as two halves",
        "AUC of distinguishing rows from data": "a model can hardly tell rows from data",
        "AUC of predicting sex": "as good as trained on data",
    }  # fmt: skip


@pytest.mark.parametrize(("auc", "words"), [(0.45, "hardly"), (0.6, "sometimes"), (0.9, "often")])
def test_models_that_tell_rows_from_data(auc, words):
    told = verdicts(content(auc))[-2]
    assert told["words"] == f"a model can {words} tell rows from data"
    assert told["beside"] == "0.5 by chance"


@pytest.mark.parametrize(("target", "words"), [(0.71, "as good"), (0.6, "loses 50%"), (0.4, "loses 100%")])
def test_models_trained_on_rows(target, words):
    assert verdicts(content(target=target))[-1]["words"].startswith(words)


def test_comparison_without_models_and_pairs():
    empty = content() | {
        "propensity": None,
        "target": None,
        "dependence": {"pairs": 0, "mean_difference": 0, "halves": 0},
    }
    assert [one["measure"] for one in verdicts(empty)] == ["counts over 1 attribute"]
