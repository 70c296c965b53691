"""Differences, ratios, slopes and tests: closed and printed figures, explicit covariances, coverage, planted faults."""

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, chi2_contingency, norm

import dpscale as dp
from dpscale.answers import conclusions, independence
from dpscale.answers.conclusions import Combination, Ratio, holm, slope_weights, smallest_level
from dpscale.answers.independence import independence_test
from dpscale.answers.statistics import TooFewRecords, query_ratio
from dpscale.answers.tables import Answered
from dpscale.base.errors import DpscaleError
from dpscale.domain import Domain
from dpscale.workload.residual import kron
from tests.answers.exact import estimates, measurement_plan

WIDTH = norm.ppf(0.975)
DOMAIN = Domain.from_dict({"attributes": {
    "smoker": {"kind": "categories", "values": ["no", "yes"]},
    "sex": {"kind": "categories", "values": ["f", "m", "x"]},
    "age": {"kind": "integer", "low": 20, "high": 24},
}})  # fmt: skip
PLAN = measurement_plan(DOMAIN, [("marginal", ("smoker", "sex")), ("prefix", ("sex", "age"))])
COUNTS = np.random.default_rng(7).integers(5, 60, (2, 3, 5)).astype(float)
TINY = 1e-9
DIFFERENCE = np.array([[1.0, -1.0]])


def answered(seed=0, scale=1.0, counts=COUNTS, plan=PLAN):
    return Answered(estimates(plan, counts, np.random.default_rng(seed), scale), "release")


def compare(release, outcome, first, second, scale="difference", population=False, level=0.95):
    records = conclusions.over(release, [outcome, first, second])
    groups = [records.spread(first), records.spread(second)]
    share = conclusions.share_outcome(DOMAIN, outcome)
    return conclusions.compared(records, share, groups, DIFFERENCE, level, population, scale)


def test_covariance_of_queries_is_that_of_explicit_least_squares():
    release = answered(scale=3.0)
    records = conclusions.over(release, ["sex = 'f'", "smoker = 'yes'"])
    queries = [records.spread(one) for one in ("sex = 'f'", "sex != 'm'", "smoker = 'yes' and sex = 'f'", None)]
    values, covariance = records.moments(queries)
    rows, precisions = [], []
    for index, block in enumerate(PLAN.blocks):
        own = dict(zip(block.attributes, (factor.explicit().astype(float) for factor in block.factors), strict=True))
        rows.append(kron([own.get(name, np.ones((1, DOMAIN[name].size))) for name in DOMAIN.names]))
        precisions += [1 / release.estimates.variances[index]] * len(rows[-1])
    strategy = np.concatenate(rows)
    whole = np.linalg.pinv(strategy.T @ np.diag(precisions) @ strategy)
    explicit = np.array([np.repeat(one[..., None], 5, axis=2).reshape(-1) for one in queries])
    assert records.names == ("smoker", "sex")
    np.testing.assert_allclose(covariance[0, :, 0, :], explicit @ whole @ explicit.T, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(values[0], explicit @ COUNTS.reshape(-1), atol=10 * 3.0 * 10)


def test_noiseless_comparisons_are_ratios_of_counts():
    release, table = answered(scale=TINY), COUNTS.sum(axis=2)
    shares = table[1] / table.sum(axis=0)
    odds = shares / (1 - shares)
    expected = {"difference": shares[0] - shares[1], "risk": shares[0] / shares[1], "odds": odds[0] / odds[1]}
    for scale, value in expected.items():
        found = compare(release, "smoker = 'yes'", {"sex": "f"}, {"sex": "m"}, scale)
        np.testing.assert_allclose(found[:3], value, rtol=1e-6)
    ages, counts = np.arange(20, 25), COUNTS.sum(axis=0)
    means = counts @ ages / counts.sum(axis=1)
    records = conclusions.over(release, ["sex = 'f'", "sex = 'm'"], ["age"])
    groups, outcome = (
        [records.spread("sex = 'f'"), records.spread("sex = 'm'")],
        conclusions.mean_outcome(release, "age"),
    )
    found = conclusions.compared(records, outcome, groups, DIFFERENCE, 0.95, False)
    np.testing.assert_allclose(found[:3], means[0] - means[1], rtol=1e-6)


def test_sampling_interval_of_exact_counts_is_the_printed_one():
    """Newcombe (1998), Table II, method 10: 56/70 and 48/80 have 0.0524 to 0.3339."""
    both = [Ratio.of(np.array(counts, float), np.zeros((2, 2)), (0.0, 1.0), sampled=True)
            for counts in ((56, 70), (48, 80))]  # fmt: skip
    found = Combination(both, DIFFERENCE[0], np.eye(2)).limits(WIDTH)
    np.testing.assert_allclose(found, (0.0524, 0.3339), atol=5e-5)


def test_interval_of_a_single_ratio_is_fiellers():
    release = answered(scale=4.0)
    names, first = ("smoker", "sex"), np.zeros((2, 3))
    first[1, 0] = 1
    second = np.zeros((2, 3))
    second[:, 0] = 1
    values, covariance = conclusions.over(release, ["smoker = 'yes' and sex = 'f'"]).moments([first, second])
    ratio = Ratio.of(values[0], covariance[0, :, 0, :], (0.0, 1.0), sampled=False)
    expected = query_ratio(release, names, first, second, 0.95)
    np.testing.assert_allclose((ratio.value, *ratio.limits(WIDTH)), expected, rtol=1e-9)
    inside = [theta for theta in np.linspace(0, 1, 20_001)
              if (ratio.above - theta * ratio.below) ** 2 <= WIDTH**2 * ratio.variance(theta)]  # fmt: skip
    np.testing.assert_allclose(ratio.limits_inside(WIDTH), (inside[0], inside[-1]), atol=1e-4)


def test_difference_of_counts_has_the_error_of_their_difference():
    release = answered(scale=5.0)
    records = conclusions.over(release, ["sex = 'f'", "sex = 'm'"])
    found = conclusions.linear(
        records, [records.spread("sex = 'f'"), records.spread("sex = 'm'")], DIFFERENCE, 0.95, False
    )
    estimate, error = release.estimates.answer(("sex",), [1.0, -1.0, 0.0])
    np.testing.assert_allclose(found[:3], (estimate, estimate - WIDTH * error, estimate + WIDTH * error))
    assert found.p_value == pytest.approx(2 * norm.sf(abs(estimate) / error))
    sampled = conclusions.linear(records, [records.spread("sex = 'f'")], np.ones((1, 1)), 0.95, True)
    women, total = COUNTS.sum(axis=(0, 2))[0], COUNTS.sum()
    tiny = answered(scale=TINY)
    exact = conclusions.linear(conclusions.over(tiny, ["sex = 'f'"]),
                               [np.array([1.0, 0, 0])], np.ones((1, 1)), 0.95, True)  # fmt: skip
    assert exact.high - exact.estimate == pytest.approx(WIDTH * math.sqrt(women * (1 - women / total)), rel=1e-6)
    assert (sampled.population, found.population) == (True, False)


@pytest.mark.parametrize("scale", ["difference", "risk", "odds"])
def test_p_value_is_the_level_whose_interval_ends_at_no_difference(scale):
    release = answered(scale=8.0)
    found = compare(release, "smoker = 'yes'", {"sex": "f"}, {"sex": "m"}, scale)
    again = compare(release, "smoker = 'yes'", {"sex": "f"}, {"sex": "m"}, scale, level=1 - found.p_value)
    nothing = 0 if scale == "difference" else 1
    assert min(abs(again.low - nothing), abs(again.high - nothing)) < 1e-6


@pytest.mark.parametrize("population", [False, True])
@pytest.mark.parametrize("shared", [-0.8, -0.3, 0.0, 0.5, 0.9])
def test_interval_at_weak_noise_is_that_of_the_first_order_with_shared_noise(shared, population):
    """Against g' C g with the gradients of the three scales, for two ratios whose noise is correlated."""
    counts = np.array([30e4, 100e4, 45e4, 90e4])
    single = np.array([[1.0, 0.4], [0.4, 2.0]])
    covariance = np.block([[single, shared * single], [shared * single, single]])
    both = [Ratio.of(counts[own], covariance[own, own], (0.0, 1.0), sampled=population)
            for own in (slice(0, 2), slice(2, 4))]  # fmt: skip
    told = np.zeros((1, 4, 1, 4))
    told[0, :, 0, :] = covariance
    records = conclusions.over(answered(), ["sex = 'f'"])
    groups, share = [np.array([1.0, 0, 0]), np.array([0, 1.0, 0])], conclusions.share_outcome(DOMAIN, "sex = 'f'")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(conclusions.JointQueries, "moments", lambda *_: (counts[None], told))
        found = {name: conclusions.combined(records, share, groups, DIFFERENCE, population, [share.rows[0]] * 2, scale)
                 for name, scale in conclusions.SCALES.items()}  # fmt: skip
    first, second = (one.value for one in both)
    slopes = {"difference": (1, 1), "risk": (1 / first, 1 / second),
              "odds": (1 / first / (1 - first), 1 / second / (1 - second))}  # fmt: skip
    for name, (one, other) in slopes.items():
        gradient = np.array([one / counts[1], -one * first / counts[1], -other / counts[3], other * second / counts[3]])
        variance = gradient @ covariance @ gradient
        if population:
            variance += one**2 * first * (1 - first) / counts[1] + other**2 * second * (1 - second) / counts[3]
        low, high = found[name].limits(WIDTH)
        assert (high - low) / 2 == pytest.approx(WIDTH * math.sqrt(variance), rel=1e-3)


TABLES = (
    (50, 50, 50, 50),
    (5, 95, 10, 190),
    (5, 20, 500, 500),
    (200, 1, 30, 1000),
    (0, 100, 50, 50),
    (300, 300, 2000, 100),
)


def coverage(table, sigma, scale, *, fault=1.0, sampled=False, told_sampled=None, times=400):
    """Return the coverage of the intervals of a comparison of two shares, given the noise of four cells.

    `fault` times the noise is told.
    """
    random, inside = np.random.default_rng(sum(table) + int(sigma)), 0
    a, b, c, d = np.array(table, float)
    first, second = a / (a + b), c / (c + d)
    convert = conclusions.SCALES[scale][0]
    truth = convert(first) - convert(second)
    covariance = sigma**2 * fault**2 * np.array([[1.0, 1.0], [1.0, 2.0]])
    for _ in range(times):
        own = random.binomial([int(a + b), int(c + d)], [first, second]) if sampled else (a, c)
        cells = np.array([own[0], a + b - own[0], own[1], c + d - own[1]]) + random.normal(0, sigma, 4)
        pairs = (cells[0], cells[:2].sum()), (cells[2], cells[2:].sum())
        told = sampled if told_sampled is None else told_sampled
        both = [Ratio.of(np.array(pair), covariance, (0.0, 1.0), sampled=told) for pair in pairs]
        low, high = Combination(both, DIFFERENCE[0], np.eye(2), conclusions.SCALES[scale]).limits(WIDTH)
        inside += low - 1e-9 <= truth <= high + 1e-9
    return inside / times


LEAST = binom.ppf(1e-7, 400, 0.945) / 400


@pytest.mark.parametrize("sigma", [1, 30, 300])
@pytest.mark.parametrize("scale", ["difference", "risk", "odds"])
def test_comparisons_cover_at_weak_and_strong_noise(scale, sigma):
    found = {table: coverage(table, sigma, scale) for table in TABLES}
    assert min(found.values()) >= LEAST, found


def test_planted_halved_errors_fail_the_coverage():
    for scale in conclusions.SCALES:
        assert min(coverage(table, 1, scale, fault=0.5) for table in TABLES[:3]) < LEAST


def test_population_intervals_cover_and_without_sampling_they_do_not():
    for table in (TABLES[0], TABLES[-1]):
        assert coverage(table, 3, "difference", sampled=True) >= LEAST
        assert coverage(table, 3, "difference", sampled=True, told_sampled=False) < LEAST


def test_ratio_with_a_cell_that_may_be_zero_has_no_lower_end():
    covariance = 100.0 * np.array([[1.0, 1.0], [1.0, 2.0]])
    for above in (-30.0, -3.0, 0.0, 4.0, 15.0):
        both = [Ratio.of(np.array(pair), covariance, (0.0, 1.0), sampled=False)
                for pair in ((above, above + 500.0), (300.0, 800.0))]  # fmt: skip
        for scale in ("risk", "odds"):
            low, high = Combination(both, DIFFERENCE[0], np.eye(2), conclusions.SCALES[scale]).limits(WIDTH)
            turned = Combination(both[::-1], DIFFERENCE[0], np.eye(2), conclusions.SCALES[scale]).limits(WIDTH)
            assert low == -math.inf < high < math.inf
            np.testing.assert_allclose(turned, (-high, math.inf))


def test_whole_comparison_covers_and_weak_groups_stay_inside_the_range():
    table, covered, times = COUNTS.sum(axis=2), 0, 60
    truth = table[1, 0] / table[:, 0].sum() - table[1, 1] / table[:, 1].sum()
    for seed in range(times):
        found = compare(answered(seed, 40.0), "smoker = 'yes'", {"sex": "f"}, {"sex": "m"})
        assert -1 <= found.low <= found.high <= 1
        covered += found.low <= truth <= found.high
    assert covered >= binom.ppf(1e-7, times, 0.945)


def test_difference_of_sums_covers_every_position_in_the_bins():
    domain = Domain.from_dict({"attributes": {"income": {"kind": "bins", "edges": [-10, 0, 10, 30]},
                                              "group": {"kind": "coded", "size": 2}}})  # fmt: skip
    plan = measurement_plan(domain, [("marginal", ("income", "group"))])
    counts = np.array([[3.0, 5], [8, 1], [2, 7]])
    records = conclusions.over(answered(scale=TINY, counts=counts, plan=plan), ["group = 0", "group = 1"], ["income"])
    groups = [records.spread("group = 0"), records.spread("group = 1")]
    found = conclusions.summed(records, "income", groups, DIFFERENCE, 0.95, False)
    lower, middle, upper = (np.array(one) for one in ([-10.0, 0, 10], [-5.0, 5, 20], [0.0, 10, 30]))
    first, second = counts.T
    expected = middle @ (first - second), lower @ first - upper @ second, upper @ first - lower @ second
    np.testing.assert_allclose(found[:3], expected, rtol=1e-6)
    assert found.p_value == 1


CLIPPED = Domain.from_dict({
    "attributes": {"group": {"kind": "coded", "size": 2}},
    "numbers": {"cost": {"low": 0, "high": 100, "clipped": [0, 4]}},
})  # fmt: skip


def test_difference_of_means_of_a_number_covers_the_clipped_part():
    """Of the costs of one group 3 % are 200, so that its mean is 3 above that of its clipped values."""
    plan = dp.plan(dp.Workload(CLIPPED).add("mean", of="cost", attributes=[("group",)]))
    cells = np.zeros((2, CLIPPED["cost"].size))
    fares = [np.r_[np.full(970, 20.0), np.full(30, 100.0)], np.full(1000, 20.0)]
    for group, values in enumerate(fares):
        cells[group, :2] = (100 - values).sum() / 100, values.sum() / 100
    release = answered(scale=0.01, counts=cells, plan=plan)
    records = conclusions.over(release, [{"group": 0}, {"group": 1}], ["cost"])
    groups, outcome = [records.spread({"group": one}) for one in (0, 1)], conclusions.mean_outcome(release, "cost")
    truth = 20 * 0.97 + 200 * 0.03 - 20
    found = conclusions.compared(records, outcome, groups, DIFFERENCE, 0.95, False)
    assert found.estimate == pytest.approx(2.4, abs=0.1)
    assert found.low <= truth <= found.high
    assert not math.isnan(found.p_value)
    planted = conclusions.compared(records, replace(outcome, clipped=(0.0, 0.0)), groups, DIFFERENCE, 0.95, False)
    assert not planted.low <= truth <= planted.high


def test_means_of_the_population_have_their_sampling_error():
    tiny = answered(scale=TINY)
    ages, counts = np.arange(20, 25), COUNTS.sum(axis=0)[0]
    mean = counts @ ages / counts.sum()
    error = math.sqrt(counts @ (ages - mean) ** 2) / counts.sum()
    found = conclusions.population_estimate(
        tiny, conclusions.mean_outcome(tiny, "age"), (("sex", 0),), level=0.95, what=""
    )
    assert type(found).__name__ == "PopulationEstimate"
    np.testing.assert_allclose(found, (mean, mean - WIDTH * error, mean + WIDTH * error), rtol=2e-3)


def test_slope_has_least_variance_and_is_exact_on_lines():
    shared = np.array([[2.0, 1.0, 0.5], [1.0, 2.0, 1.0], [0.5, 1.0, 3.0]])
    places = np.array([0.0, 1.0, 3.0])
    weights = slope_weights(shared, places)
    np.testing.assert_allclose([weights @ np.ones(3), weights @ places], [0, 1], atol=1e-12)
    other = np.polyfit(places, np.eye(3), 1)[0]
    assert weights @ shared @ weights < other @ shared @ other


def independent(seed, effect=0.0, size=400, scale=1.0, shape=(3, 4)):
    """Return a release of a table of records whose attributes depend by an effect, and the table."""
    random, domain = np.random.default_rng(seed), Domain({"a": shape[0], "b": shape[1], "c": 2})
    plan = measurement_plan(domain, [("marginal", ("a", "b", "c"))])
    signs = np.where(np.add.outer(np.arange(shape[0]), np.arange(shape[1])) % 2, 1 + effect, 1 - effect)
    margins = np.multiply.outer(np.arange(1.0, shape[0] + 1), np.arange(2.0, shape[1] + 2))
    table = random.multinomial(size, (margins * signs / (margins * signs).sum()).reshape(-1)).reshape(shape)
    counts = np.stack([table, np.zeros_like(table)], axis=2).astype(float)
    return Answered(estimates(plan, counts, random, scale), f"release {seed}"), table


def rejections(times, draws=199, **options):
    """Return how many tests reject at 5 %; a table that is not distinguished from an empty one does not."""
    found = 0
    for seed in range(times):
        with suppress(TooFewRecords):
            found += independence_test(independent(seed, **options)[0], ("a", "b"), (), {}, draws).p_value <= 0.05
    return found


def test_statistic_without_noise_is_pearsons():
    release, table = independent(3, effect=0.3, scale=1e-7)
    found = independence_test(release, ("a", "b"), (), {})
    expected = chi2_contingency(table, correction=False)
    assert found.statistic == pytest.approx(expected.statistic, rel=1e-4)
    assert found.degrees_of_freedom == expected.dof
    assert found.noise_share < 1e-6
    assert found == independence_test(release, ("a", "b"), (), {}), "the same p-value in every call"


def test_chosen_values_and_strata_are_those_of_the_table():
    release, table = independent(3, effect=0.3, scale=1e-7)
    found = independence_test(release, ("a", "b"), (), {"a": [0, 2], "b": [1, 3], "c": 0})
    expected = chi2_contingency(table[[0, 2]][:, [1, 3]], correction=False)
    assert found.statistic == pytest.approx(expected.statistic, rel=1e-4)
    strata = independence_test(release, ("a", "b"), ("c",), {})
    whole = independence_test(release, ("a", "b"), (), {})
    assert strata.statistic == pytest.approx(whole.statistic, rel=1e-4), "the other stratum is empty"


@pytest.mark.parametrize("scale", [1, 10, 60])
def test_size_of_the_test(scale):
    assert rejections(100, scale=scale) <= binom.ppf(1 - 1e-7, 100, 0.055)


def test_test_finds_dependence():
    assert rejections(20, effect=0.5, size=2000, scale=3) == 20


def test_planted_halved_noise_fails_the_size_of_the_test(monkeypatch):
    exact = independence.answer_errors
    monkeypatch.setattr(independence, "answer_errors", lambda *every: (some / 2 for some in exact(*every)))
    assert rejections(100, scale=10) > binom.ppf(1 - 1e-7, 100, 0.055)


def test_holm_equals_another_library():
    from statsmodels.stats.multitest import multipletests

    values = [0.001, 0.2, 0.012, 0.012, 0.04, 0.9, 0.03]
    np.testing.assert_allclose(holm(values), multipletests(values, method="holm")[1])


def test_crosstab_equals_counts_and_shares():
    release, table = answered(scale=TINY), COUNTS.sum(axis=2)
    for normalize, expected in ((None, table), ("rows", table / table.sum(1, keepdims=True)),
                                ("columns", table / table.sum(0)), ("all", table / table.sum())):  # fmt: skip
        for turned in (False, True):
            names = ("sex", "smoker") if turned else ("smoker", "sex")
            axis = {"rows": "columns", "columns": "rows"}.get(normalize, normalize) if turned else normalize
            found = conclusions.crosstab(release, names, axis, 0.95, False)
            for figure in found.values():
                np.testing.assert_allclose(figure.T if turned else figure, expected, rtol=1e-6)
    noisy = answered(scale=2.0)
    found = conclusions.crosstab(noisy, ("smoker", "sex"), "columns", 0.95, False)
    cell, group = np.zeros((2, 3)), np.zeros((2, 3))
    cell[1, 2] = group[:, 2] = 1
    assert query_ratio(noisy, ("smoker", "sex"), cell, group, 0.95)[0] == pytest.approx(found["estimate"][1, 2])
    assert query_ratio(noisy, ("smoker", "sex"), cell, group, 0.95)[1] == pytest.approx(found["low"][1, 2])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: compare(answered(), "smoker = 'yes' and age = 20", None, None), "was not measured"),
        (lambda: compare(answered(), 3, None, None), "a predicate"),
        (lambda: compare(answered(), "smoker = 'yes'", None, None, level=95), "such as 0.95"),
        (lambda: conclusions.crosstab(answered(), ("sex", "age"), None, 95, False), "such as 0.95"),
        (lambda: conclusions.crosstab(answered(), ("sex", "age"), "row", 0.95, False), "rows, columns, all"),
        (lambda: independence_test(answered(), ("sex", "age"), (), {}, 5), "from 100 to"),
        (lambda: independence_test(answered(), ("sex", "age"), (), {"sex": "f"}), "two values or more"),
        (lambda: holm([0.1, math.nan]), "between 0 and 1"),
    ],
)
def test_conclusions_refuse_invalid_requests(wrong, says):
    with pytest.raises(DpscaleError) as caught:
        wrong()
    assert says in str(caught.value)


def test_test_of_an_empty_table_is_refused():
    with pytest.raises(TooFewRecords):
        independence_test(independent(1, size=1, scale=50)[0], ("a", "b"), (), {})


def test_smallest_level_inverts_the_half_width():
    assert smallest_level(lambda width: (2.5 - width, 2.5 + width), "gaussian") == pytest.approx(2 * norm.sf(2.5))
    assert smallest_level(lambda width: (2.5 - width, 9.0), "laplace") == pytest.approx(math.exp(-math.sqrt(2) * 2.5))
