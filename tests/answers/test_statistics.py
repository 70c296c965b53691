"""Totals, quantiles and means: exact without noise; with noise their intervals have the nominal coverage."""

import numpy as np
import pytest

from dpscale.answers import quantiles
from dpscale.answers.quantiles import quantile
from dpscale.answers.statistics import cells_of, mean, query_ratio, share, total, value_sum
from dpscale.answers.tables import Answered
from dpscale.base.errors import DomainError, DpscaleError, JobError, PlanError
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from tests.answers.exact import estimates, measurement_plan
from tests.messages import refused

AGE = Attribute("age", "integer", low=20, high=39, outside="category", nulls="category")
INCOME = Attribute("income", "bins", edges=(0.0, 10.0, 20.0, 50.0, 100.0))
SEX = Attribute("sex", "categories", values=("F", "M"))
DOMAIN = Domain([AGE, INCOME, SEX])
PLAN = measurement_plan(DOMAIN, [("prefix", ("age",)), ("marginal", ("age", "sex")), ("prefix", ("income",))])
RNG = np.random.default_rng(3)
COUNTS = RNG.integers(0, 40, (22, 4, 2)).astype(float)


def make_answers(noise=None):
    return Answered(estimates(PLAN, COUNTS, noise), "release")


def list_ages(axes):
    """Return the ages of the records with a known age, for everyone or, with `axes=None`, for the first sex."""
    counts = COUNTS.sum(axis=axes)[:20] if axes else COUNTS[:20, :, 0].sum(axis=1)
    return np.repeat(np.arange(20, 40), counts.astype(int))


def test_noiseless_total_equals_record_count():
    assert total(make_answers(), 0.95).estimate == pytest.approx(COUNTS.sum())


@pytest.mark.parametrize("q", [0, 0.01, 0.25, 0.5, 0.9, 1])
def test_noiseless_quantile_equals_numpy(q):
    ages = list_ages((1, 2))
    result = quantile(make_answers(), "age", q + 1e-9 * (q == 0), 0.95)
    assert result.estimate == np.quantile(ages, q, method="inverted_cdf")
    assert result.low <= result.estimate <= result.high


def test_quantile_of_bins_is_interpolated_within_bin():
    counts = COUNTS.sum(axis=(0, 2))
    ends = np.concatenate([[0], np.cumsum(counts)])
    wanted = np.interp(0.5 * ends[-1], ends, INCOME.edges)
    assert quantile(make_answers(), "income", 0.5, 0.95).estimate == pytest.approx(wanted)


def test_noiseless_mean_and_group_statistics_equal_records():
    assert mean(make_answers(), "age", 0.95).estimate == pytest.approx(list_ages((1, 2)).mean())
    assert mean(make_answers(), "age", 0.95, (("sex", 0),)).estimate == pytest.approx(list_ages(None).mean())
    assert quantile(make_answers(), "age", 0.5, 0.95, (("sex", 0),)).estimate == np.median(list_ages(None))


def test_statistic_intervals_have_nominal_coverage():
    ages, rng, times = list_ages((1, 2)), np.random.default_rng(5), 300
    truth = [COUNTS.sum(), np.quantile(ages, 0.3, method="inverted_cdf"), ages.mean()]
    covered = np.zeros(3)
    for _ in range(times):
        one = make_answers(rng)
        result = total(one, 0.9), quantile(one, "age", 0.3, 0.9), mean(one, "age", 0.9)
        covered += [low <= true <= high for true, (_, low, high) in zip(truth, result, strict=True)]
        assert result[1].high - result[1].low <= 1  # of this noise: an interval of another quantile reaches further
    sums, median, means = covered / times
    assert 0.84 < sums < 0.95
    assert 0.84 < means < 0.95
    assert median > 0.87  # conservative: values are whole numbers


def test_noiseless_share_equals_ratio_of_counts():
    older, men = list(range(15, 20)), COUNTS[15:20, :, 1].sum() / COUNTS[:, :, 1].sum()
    assert share(make_answers(), "age", older, 0.95).estimate == pytest.approx(COUNTS[15:20].sum() / COUNTS.sum())
    assert share(make_answers(), "age", older, 0.95, (("sex", 1),)).estimate == pytest.approx(men)
    assert cells_of(AGE, [35, 39]) == [15, 19]
    assert cells_of(SEX, "M") == [1]


def test_interval_of_a_share_is_that_of_a_mean_of_zeros_and_ones():
    """The mean of an attribute with the values 0 and 1 is the share of the ones; its interval has code of its own."""
    domain = Domain({"flag": 2, "sex": 2})
    plan = measurement_plan(domain, [("marginal", ("flag", "sex"))])
    one = Answered(estimates(plan, np.array([[310.0, 280.0], [120.0, 90.0]]), np.random.default_rng(4)), "release")
    for group in ((), (("sex", 1),)):
        np.testing.assert_allclose(share(one, "flag", [1], 0.9, group), mean(one, "flag", 0.9, group), rtol=1e-9)


def test_share_intervals_have_nominal_coverage():
    rng, times, truth = np.random.default_rng(6), 300, COUNTS[15:20].sum() / COUNTS[:20].sum()
    older, known = np.zeros(22), np.zeros(22)
    older[15:20], known[:20] = 1, 1
    found = [query_ratio(make_answers(rng), ("age",), older, known, 0.9) for _ in range(times)]
    assert 0.84 < np.mean([one.low <= truth <= one.high for one in found]) < 0.95


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: cells_of(SEX, "W"), "labels of its cells"),
        (lambda: query_ratio(make_answers(), ("sex",), [1, 0, 0], [1, 1], 0.95), "arrays of shape (2,)"),
        (lambda: query_ratio(make_answers(), ("sex",), [1, 0], [0, 0], 0.95), "not distinguishable from zero"),
        (lambda: quantile(make_answers(), "sex", 0.5, 0.95), "an attribute of numbers"),
        (lambda: quantile(make_answers(), "age", 1.5, 0.95), "between 0 and 1"),
        (lambda: mean(make_answers(), "aeg", 0.95), "did you mean 'age'"),
        (lambda: mean(make_answers(), "income", 0.95, (("sex", 0),)), "was not measured"),
        (lambda: make_answers().table("aeg", None, 0.95, False), "did you mean 'age'"),
        (lambda: make_answers().table(("age",), "prefex", 0.95, False), "did you mean 'prefix'"),
    ],
)
def test_statistics_refuse_invalid_requests(wrong, says):
    with pytest.raises((JobError, DomainError, PlanError)) as caught:
        wrong()
    assert isinstance(caught.value, DpscaleError)
    assert says in str(caught.value)


def test_nulls_have_the_labels_of_tables_and_files():
    nulls = [AGE.null_cell]
    assert [cells_of(AGE, label) for label in (None, float("nan"), "(missing)", "(null)")] == 4 * [nulls]
    assert cells_of(AGE, [20, "(outside)", "(null)"]) == [0, 20, *nulls]
    assert cells_of(Attribute("a", "categories", values=("(null)", "x"), nulls="drop"), "(null)") == [0]
    for wrong in (float("nan"), "(missing)", {"F": 1}):
        with pytest.raises(JobError):
            cells_of(SEX, wrong)


@pytest.mark.parametrize("level", [0, 1, 95, True])
def test_level_that_is_no_probability_is_refused(level):
    answers = make_answers()
    for statistic in (
        lambda: total(answers, level),
        lambda: mean(answers, "age", level),
        lambda: value_sum(answers, "age", level),
        lambda: share(answers, "age", [0], level),
        lambda: query_ratio(answers, ("sex",), [1, 0], [0, 1], level),
        lambda: quantile(answers, "age", 0.5, level),
        lambda: answers.table(("age",), None, level, False),
    ):
        with refused(JobError):
            statistic()


def test_quantile_with_few_checked_cells_has_slightly_wider_interval(monkeypatch):
    plan = measurement_plan(Domain({"x": 300}), [("prefix", ("x",))])
    counts = np.random.default_rng(8).integers(0, 9, 300).astype(float)
    noisy = Answered(estimates(plan, counts, np.random.default_rng(1)), "release")
    for q in (0.02, 0.5, 0.97):
        monkeypatch.setattr(quantiles, "ALL_CELLS", 1 << 12)
        quantiles._cached.clear()
        whole = quantile(noisy, "x", q, 0.95)
        monkeypatch.setattr(quantiles, "ALL_CELLS", 100)
        quantiles._cached.clear()
        few = quantile(noisy, "x", q, 0.95)
        assert few.estimate == whole.estimate
        assert whole.low - 2 <= few.low <= whole.low
        assert whole.high <= few.high <= whole.high + 2


def test_errors_of_all_quantiles_follow_from_three_variances():
    """Against the error of each query #{<= x} - q #{all} by itself."""
    plan = measurement_plan(Domain({"x": 40, "g": 3}), [("prefix", ("x", "g"))])
    one = Answered(estimates(plan, np.full((40, 3), 9.0), np.random.default_rng(1)), "release")
    for group in ((), (("g", 1),)):
        counts = quantiles.cumulative_counts(one, "x", group)
        for q in (0.0, 0.3, 1.0):
            for x in (0, 17, 39):
                query = np.subtract((np.arange(40) <= x).astype(float), q)
                query = query[:, None] * (np.eye(3)[1] if group else np.ones(3))
                assert counts.errors(q)[x] == pytest.approx(one.estimates.answer(("x", "g"), query)[1], abs=1e-6)
