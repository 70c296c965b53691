"""What models say: brute force for the area, and tables of which the answer is known."""

from __future__ import annotations

import numpy as np
import pytest

import dpscale as dp
from dpscale.domain import Domain
from dpscale.domain.domain_schema import from_table
from dpscale.evaluation.models import auc, check_learner, propensity, target_of, tstr_scores, usefulness

RNG = np.random.default_rng(0)
DOMAIN = Domain({"a": 10, "b": 6, "c": 2})


@pytest.fixture(autouse=True)
def _learner() -> None:
    pytest.importorskip("sklearn")


def table(rows: int, strength: float, seed: int) -> np.ndarray:
    """c follows from a, as far as `strength` says."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 10, rows), rng.integers(0, 6, rows)
    c = np.where(rng.random(rows) < strength, a >= 5, rng.integers(0, 2, rows))
    return np.stack([a, b, c], axis=1).astype(np.int32)


@pytest.mark.parametrize("ties", [3, 1000])
def test_the_area_is_the_chance_of_the_right_order(ties: int) -> None:
    scores, true = RNG.integers(0, ties, 80).astype(float), RNG.random(80) < 0.4
    pairs = [(x > y) + (x == y) / 2 for x in scores[true] for y in scores[~true]]
    assert auc(scores, true) == pytest.approx(np.mean(pairs))


def test_the_area_is_scikit_learns() -> None:
    from sklearn.metrics import roc_auc_score

    scores, true = RNG.random(500).round(2), RNG.random(500) < 0.2
    assert auc(scores, true) == pytest.approx(roc_auc_score(true, scores))


def test_of_one_class_there_is_no_area() -> None:
    assert np.isnan(auc(np.arange(3.0), np.ones(3, dtype=bool)))


def test_rows_of_the_same_law_are_not_told_from_data() -> None:
    told = propensity(DOMAIN.attributes, table(4000, 0.8, 1), table(4000, 0.8, 2))
    assert told.results["auc"] == pytest.approx(0.5, abs=0.04)


def test_the_same_rows_are_not_told_apart() -> None:
    assert propensity(DOMAIN.attributes, table(2000, 0.8, 1), table(2000, 0.8, 1)).results["auc"] == 0.5


def test_planted_rows_are_told_and_by_what() -> None:
    other = table(4000, 0.8, 2)
    other[:, 1] = 5
    told = propensity(DOMAIN.attributes, table(4000, 0.8, 1), other).results
    assert told["auc"] > 0.9  # a sixth of the data has the planted value
    assert told["telling"][0]["attribute"] == "b"
    assert told["telling"][0]["drop"] > 0.3
    other[:, 1], data = 0, table(4000, 0.8, 1)
    data[:, 1] = np.maximum(data[:, 1], 1)
    assert propensity(DOMAIN.attributes, data, other).results["auc"] == 1.0


def test_rows_teach_what_they_hold() -> None:
    """By c = [a ≥ 5] in a share s of records, the best AUC is (1 + s) / 2; of independent rows nothing is learnt."""
    target, data = target_of(DOMAIN.attributes, None), table(8000, 0.8, 1)
    good, bad = (usefulness(DOMAIN.attributes, target, data, table(8000, s, 2)).results for s in (0.8, 0.0))
    assert good["attribute"] == "c"
    assert good["data"]["auc"] == pytest.approx(0.9, abs=0.02)
    assert good["rows"]["auc"] == pytest.approx(0.9, abs=0.02)
    assert bad["rows"]["auc"] == pytest.approx(0.5, abs=0.1)
    assert good["base"] == {"auc": 0.5, "accuracy": pytest.approx(0.5, abs=0.03)}


def test_several_classes_and_classes_that_rows_lack() -> None:
    target, data = target_of(DOMAIN.attributes, "b"), table(4000, 1, 1)
    data[:, 1] = data[:, 0] // 2
    lacking = data[data[:, 1] != 2]
    told = tstr_scores(DOMAIN.attributes, target, {"data": data[:2000], "rows": lacking[:1500]}, data[2000:]).results
    assert told["classes"] == 5
    assert told["data"]["auc"] == pytest.approx(1.0)
    assert 0.85 < told["rows"]["auc"] <= 0.9  # of five classes one is guessed, as its neighbours
    constant = np.where([True, False, True], data, 1)[:2000]
    assert tstr_scores(DOMAIN.attributes, target, {"rows": constant}, data[2000:]).results["rows"]["auc"] == 0.5


def test_nulls_of_the_target_are_left_out_and_of_inputs_are_missing() -> None:
    kinds = {"a": {"kind": "integer", "low": 0, "high": 9, "nulls": "category"},
             "t": {"kind": "categories", "values": ["x", "y"], "nulls": "category"},
             "w": {"kind": "categories", "values": [str(i) for i in range(300)]}}  # fmt: skip
    attributes = [from_table(name, one) for name, one in kinds.items()]
    codes = np.stack([RNG.integers(0, 11, 900), RNG.integers(0, 3, 900), RNG.integers(0, 300, 900)], 1).astype(np.int32)
    target = target_of(attributes, None)
    assert target.attribute.name == "t"
    told = usefulness(attributes, target, codes, codes).results
    assert told["tested_on"] == (codes[450:, 1] < 2).sum()


def test_too_few_rows_teach_nothing() -> None:
    few = table(60, 0.8, 1)
    assert propensity(DOMAIN.attributes, few, few) is None
    assert usefulness(DOMAIN.attributes, target_of(DOMAIN.attributes, None), few, few) is None


def test_what_is_predicted_follows_from_the_domain() -> None:
    assert target_of(Domain({"a": 2, "b": 2, "c": 3}).attributes, None).attribute.name == "b"
    assert target_of(Domain({"a": 5, "b": 4, "c": 30}).attributes, None).attribute.name == "b"
    assert target_of(Domain({"a": 50, "b": 40}).attributes, None) is None
    assert target_of(Domain({"a": 2}).attributes, None) is None


@pytest.mark.parametrize(("name", "says"), [("aa", "did you mean 'a'"), ("big", "of 21 values")])
def test_what_cannot_be_predicted_is_refused(name: str, says: str) -> None:
    with pytest.raises(dp.JobError, match=says) as caught:
        target_of(Domain({"a": 2, "big": 21}).attributes, name)
    assert caught.value.field == "--target"


def test_the_learner_is_there() -> None:
    check_learner()
