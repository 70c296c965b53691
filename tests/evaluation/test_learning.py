"""Models of the comparison, against brute-force and scikit-learn AUC and tables with a known best score."""

from __future__ import annotations

import numpy as np
import pytest

import dpscale as dp
from dpscale.domain import Domain
from dpscale.domain.domain_schema import from_table
from dpscale.evaluation.models import auc, check_learner, propensity, target_of, tstr_scores, usefulness
from tests.messages import refused

RNG = np.random.default_rng(0)
DOMAIN = Domain({"a": 10, "b": 6, "c": 2})


@pytest.fixture(autouse=True)
def _require_sklearn() -> None:
    pytest.importorskip("sklearn")


def make_table(rows: int, strength: float, seed: int) -> np.ndarray:
    """Draw a table in which c = [a ≥ 5] with probability `strength` and is random otherwise."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 10, rows), rng.integers(0, 6, rows)
    c = np.where(rng.random(rows) < strength, a >= 5, rng.integers(0, 2, rows))
    return np.stack([a, b, c], axis=1).astype(np.int32)


@pytest.mark.parametrize("ties", [3, 1000])
def test_auc_is_probability_of_correct_order(ties: int) -> None:
    scores, true = RNG.integers(0, ties, 80).astype(float), RNG.random(80) < 0.4
    pairs = [(x > y) + (x == y) / 2 for x in scores[true] for y in scores[~true]]
    assert auc(scores, true) == pytest.approx(np.mean(pairs))


def test_auc_equals_scikit_learn() -> None:
    from sklearn.metrics import roc_auc_score

    scores, true = RNG.random(500).round(2), RNG.random(500) < 0.2
    assert auc(scores, true) == pytest.approx(roc_auc_score(true, scores))


def test_auc_of_one_class_is_nan() -> None:
    assert np.isnan(auc(np.arange(3.0), np.ones(3, dtype=bool)))


def test_propensity_auc_of_same_distribution_is_half() -> None:
    result = propensity(DOMAIN.attributes, make_table(4000, 0.8, 1), make_table(4000, 0.8, 2))
    assert result.results["auc"] == pytest.approx(0.5, abs=0.04)


def test_propensity_auc_of_identical_rows_is_half() -> None:
    assert propensity(DOMAIN.attributes, make_table(2000, 0.8, 1), make_table(2000, 0.8, 1)).results["auc"] == 0.5


def test_propensity_model_detects_planted_attribute() -> None:
    other = make_table(4000, 0.8, 2)
    other[:, 1] = 5
    result = propensity(DOMAIN.attributes, make_table(4000, 0.8, 1), other).results
    assert result["auc"] > 0.9  # a sixth of the data has the planted value
    assert result["telling"][0]["attribute"] == "b"
    assert result["telling"][0]["drop"] > 0.3
    other[:, 1], data = 0, make_table(4000, 0.8, 1)
    data[:, 1] = np.maximum(data[:, 1], 1)
    assert propensity(DOMAIN.attributes, data, other).results["auc"] == 1.0


def test_usefulness_reaches_best_possible_auc() -> None:
    """For c = [a ≥ 5] in a share s of the records, the best AUC is (1 + s)/2; independent rows give no information."""
    target, data = target_of(DOMAIN.attributes, None), make_table(8000, 0.8, 1)
    good, bad = (usefulness(DOMAIN.attributes, target, data, make_table(8000, s, 2)).results for s in (0.8, 0.0))
    assert good["attribute"] == "c"
    assert good["data"]["auc"] == pytest.approx(0.9, abs=0.02)
    assert good["rows"]["auc"] == pytest.approx(0.9, abs=0.02)
    assert bad["rows"]["auc"] == pytest.approx(0.5, abs=0.1)
    assert good["base"] == {"auc": 0.5, "accuracy": pytest.approx(0.5, abs=0.03)}


def test_tstr_scores_with_several_and_missing_classes() -> None:
    target, data = target_of(DOMAIN.attributes, "b"), make_table(4000, 1, 1)
    data[:, 1] = data[:, 0] // 2
    lacking = data[data[:, 1] != 2]
    result = tstr_scores(DOMAIN.attributes, target, {"data": data[:2000], "rows": lacking[:1500]}, data[2000:]).results
    assert result["classes"] == 5
    assert result["data"]["auc"] == pytest.approx(1.0)
    assert 0.85 < result["rows"]["auc"] <= 0.9  # of five classes one is guessed, as its neighbours
    constant = np.where([True, False, True], data, 1)[:2000]
    assert tstr_scores(DOMAIN.attributes, target, {"rows": constant}, data[2000:]).results["rows"]["auc"] == 0.5


def test_records_with_null_target_are_left_out() -> None:
    kinds = {"a": {"kind": "integer", "low": 0, "high": 9, "nulls": "category"},
             "t": {"kind": "categories", "values": ["x", "y"], "nulls": "category"},
             "w": {"kind": "categories", "values": [str(i) for i in range(300)]}}  # fmt: skip
    attributes = [from_table(name, one) for name, one in kinds.items()]
    codes = np.stack([RNG.integers(0, 11, 900), RNG.integers(0, 3, 900), RNG.integers(0, 300, 900)], 1).astype(np.int32)
    target = target_of(attributes, None)
    assert target.attribute.name == "t"
    result = usefulness(attributes, target, codes, codes).results
    assert result["tested_on"] == (codes[450:, 1] < 2).sum()


def test_too_few_rows_give_no_model() -> None:
    few = make_table(60, 0.8, 1)
    assert propensity(DOMAIN.attributes, few, few) is None
    assert usefulness(DOMAIN.attributes, target_of(DOMAIN.attributes, None), few, few) is None


def test_default_target_follows_from_domain() -> None:
    assert target_of(Domain({"a": 2, "b": 2, "c": 3}).attributes, None).attribute.name == "b"
    assert target_of(Domain({"a": 5, "b": 4, "c": 30}).attributes, None).attribute.name == "b"
    assert target_of(Domain({"a": 50, "b": 40}).attributes, None) is None
    assert target_of(Domain({"a": 3, "b": 2}).attributes, None).attribute.name == "b"
    assert target_of(Domain({"a": 2}).attributes, None) is None


@pytest.mark.parametrize("name", ["aa", "big"])
def test_invalid_target_is_refused(name: str) -> None:
    with refused(dp.JobError) as caught:
        target_of(Domain({"a": 2, "big": 21}).attributes, name)
    assert caught.value.field == "--target"


def test_installed_learner_passes_check() -> None:
    check_learner()
