"""Totals, quantiles and means: without noise those of the records, with noise inside their intervals."""

import numpy as np
import pytest

from dpscale.answers import statistics
from dpscale.answers.statistics import mean, quantile, total
from dpscale.answers.tables import Answered
from dpscale.base.errors import DomainError, DpscaleError, JobError, PlanError
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from tests.answers.exact import estimates, measurement_plan

AGE = Attribute("age", "integer", low=20, high=39, outside="category", nulls="category")
INCOME = Attribute("income", "bins", edges=(0.0, 10.0, 20.0, 50.0, 100.0))
SEX = Attribute("sex", "categories", values=("F", "M"))
DOMAIN = Domain([AGE, INCOME, SEX])
PLAN = measurement_plan(DOMAIN, [("prefix", ("age",)), ("marginal", ("age", "sex")), ("prefix", ("income",))])
RNG = np.random.default_rng(3)
COUNTS = RNG.integers(0, 40, (22, 4, 2)).astype(float)


def answered(noise=None):
    return Answered(estimates(PLAN, COUNTS, noise), "release")


def records(axes):
    """The ages of the records that have one, as a list."""
    counts = COUNTS.sum(axis=axes)[:20] if axes else COUNTS[:20, :, 0].sum(axis=1)
    return np.repeat(np.arange(20, 40), counts.astype(int))


def test_the_total_is_that_of_the_records():
    assert total(answered(), 0.95).estimate == pytest.approx(COUNTS.sum())


@pytest.mark.parametrize("q", [0, 0.01, 0.25, 0.5, 0.9, 1])
def test_a_quantile_without_noise_is_the_sorted_list_s(q):
    ages = records((1, 2))
    told = quantile(answered(), "age", q + 1e-9 * (q == 0), 0.95)
    assert told.estimate == np.quantile(ages, q, method="inverted_cdf")
    assert told.low <= told.estimate <= told.high


def test_a_quantile_of_bins_lies_in_its_bin_by_the_share_of_records():
    counts = COUNTS.sum(axis=(0, 2))
    ends = np.concatenate([[0], np.cumsum(counts)])
    wanted = np.interp(0.5 * ends[-1], ends, INCOME.edges)
    assert quantile(answered(), "income", 0.5, 0.95).estimate == pytest.approx(wanted)


def test_a_mean_is_that_of_the_records_and_of_a_group_alone():
    assert mean(answered(), "age", 0.95).estimate == pytest.approx(records((1, 2)).mean())
    assert mean(answered(), "age", 0.95, ("sex", 0)).estimate == pytest.approx(records(None).mean())
    assert quantile(answered(), "age", 0.5, 0.95, ("sex", 0)).estimate == np.median(records(None))


def test_intervals_hold_the_truth_as_often_as_they_say():
    ages, rng, times = records((1, 2)), np.random.default_rng(5), 300
    truth = [COUNTS.sum(), np.quantile(ages, 0.3, method="inverted_cdf"), ages.mean()]
    held = np.zeros(3)
    for _ in range(times):
        one = answered(rng)
        told = total(one, 0.9), quantile(one, "age", 0.3, 0.9), mean(one, "age", 0.9)
        held += [low <= true <= high for true, (_, low, high) in zip(truth, told, strict=True)]
        assert told[1].high - told[1].low <= 1  # of this noise: an interval of another quantile reaches further
    sums, median, means = held / times
    assert 0.84 < sums < 0.95
    assert 0.84 < means < 0.95
    assert median > 0.87  # conservative: values are whole numbers


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: quantile(answered(), "sex", 0.5, 0.95), "an attribute of numbers"),
        (lambda: quantile(answered(), "age", 1.5, 0.95), "between 0 and 1"),
        (lambda: quantile(answered(), "age", 0.5, 95), "such as 0.95"),
        (lambda: mean(answered(), "aeg", 0.95), "did you mean 'age'"),
        (lambda: mean(answered(), "income", 0.95, ("sex", 0)), "was not measured"),
        (lambda: answered().table("age", None, 0.95, False), "write ['age']"),
        (lambda: answered().table(("age",), "prefex", 0.95, False), "did you mean 'prefix'"),
    ],
)
def test_what_cannot_be_told_is_refused_in_a_sentence(wrong, says):
    with pytest.raises((JobError, DomainError, PlanError)) as caught:
        wrong()
    assert isinstance(caught.value, DpscaleError)
    assert says in str(caught.value)


def test_of_many_cells_a_few_errors_are_looked_at_and_intervals_are_hardly_wider(monkeypatch):
    plan = measurement_plan(Domain({"x": 300}), [("prefix", ("x",))])
    counts = np.random.default_rng(8).integers(0, 9, 300).astype(float)
    noisy = Answered(estimates(plan, counts, np.random.default_rng(1)), "release")
    for q in (0.02, 0.5, 0.97):
        monkeypatch.setattr(statistics, "ALL_CELLS", 1 << 12)
        whole = quantile(noisy, "x", q, 0.95)
        monkeypatch.setattr(statistics, "ALL_CELLS", 100)
        few = quantile(noisy, "x", q, 0.95)
        assert few.estimate == whole.estimate
        assert whole.low - 2 <= few.low <= whole.low
        assert whole.high <= few.high <= whole.high + 2
