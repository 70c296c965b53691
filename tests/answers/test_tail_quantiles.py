"""Quantiles in a last bin that reaches far beyond the records: closed forms, noise, and what is missing."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from dpscale.answers.quantiles import CumulativeCounts, WideInterval
from dpscale.answers.statistics import or_reason
from dpscale.domain import Domain
from tests.messages import refused

RECORDS, END = 20_000, 2.0**24
LAWS = {"pareto": stats.pareto(1.8, scale=100), "lognormal": stats.lognorm(1.2, scale=math.exp(8))}


def counts_of(edges, counts, error):
    """Cumulative counts of bins whose counts have independent noise of a standard deviation."""
    table = {"kind": "bins", "edges": list(edges)}
    attribute = Domain.from_dict({"attributes": {"a": table}})["a"]
    sums = np.cumsum(counts)
    own = error**2 * np.arange(1.0, len(sums) + 1)
    moments = np.stack([own, own, np.full(len(sums), own[-1])])
    return CumulativeCounts(attribute, sums, optimize.isotonic_regression(sums).x, np.arange(len(sums)), moments)


def tail_of(law, last, bins=25, error=1e-6, rng=None):
    """Even bins up to a share `last` of the records, and one bin for the rest; exact counts with noise."""
    edges = np.append(law.ppf(np.linspace(0.001, 1 - last, bins)), END)
    counts = RECORDS * np.diff(law.cdf(edges))
    return counts_of(edges, counts + (0 if rng is None else rng.normal(0, error, bins)), error)


@pytest.mark.parametrize("last", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("q", [0.99, 0.995])
def test_exact_shares_give_the_quantiles_of_their_law(name, last, q):
    found, true = tail_of(LAWS[name], last).quantile(q, 1.96), LAWS[name].ppf(q)
    assert found.estimate == pytest.approx(true, rel=0.02 if name == "pareto" else 0.06)
    assert found.low < true < found.high < 2 * true


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(("q", "factor"), [(0.99, 1.15), (0.995, 1.35)])
def test_noisy_counts_give_nearly_the_quantiles(name, q, factor):
    true, ratios, covered = LAWS[name].ppf(q), [], 0
    for seed in range(50):
        found = tail_of(LAWS[name], 0.03, 25, 20.0, np.random.default_rng(seed)).quantile(q, 1.96)
        ratios.append(found.estimate / true)
        covered += found.low <= true <= found.high
    assert 1 / factor < np.median(ratios) < factor
    assert covered >= 45


def test_a_lower_tail_is_the_mirror_image():
    upper = tail_of(LAWS["pareto"], 0.05)
    counts = np.diff(upper.counts, prepend=0)
    lower = counts_of(-np.array(upper.attribute.edges)[::-1], counts[::-1], 1e-6)
    one, other = upper.quantile(0.99, 1.96), lower.quantile(0.01, 1.96)
    assert (other.estimate, other.low, other.high) == pytest.approx((-one.estimate, -one.high, -one.low), rel=1e-6)


def test_other_bins_have_uniform_records():
    tail = tail_of(LAWS["lognormal"], 0.05)
    edges, shares = tail.attribute.edges, np.append(0, tail.counts / tail.counts[-1])
    assert tail.quantile(0.7, 1.96).estimate == pytest.approx(np.interp(0.7, shares, edges))
    wide = counts_of([1, 10, 100, 1000, 10_000, 100_000], [500, 2000, 9000, 3000, 1000], 1.0)
    assert wide.quantile(0.6, 1.96).estimate == pytest.approx(100 + 900 * (0.6 * 15_500 - 2500) / 9000)


@pytest.mark.parametrize("counts", [[10_000, 1000, 500], [1000, 10, 5, -3, 2, 4]])
def test_a_quantile_of_which_nothing_is_known_is_missing_with_a_reason(counts):
    edges = [0, *(10 * 2.0 ** np.arange(len(counts) - 1)), END]
    few = counts_of(edges, counts, 100.0)
    with refused(WideInterval):
        few.quantile(0.99, 1.96)
    found, reason = or_reason(lambda: few.quantile(0.99, 1.96))
    assert math.isnan(found.estimate)
    assert "wider than twice" in reason


def test_estimates_without_errors_have_no_interval():
    exact = tail_of(LAWS["pareto"], 0.05)
    bare = CumulativeCounts(exact.attribute, exact.counts, exact.monotone, exact.places, exact.moments * math.nan)
    found = bare.quantile(0.99, 1.96)
    assert found.estimate == pytest.approx(LAWS["pareto"].ppf(0.99), rel=0.02)
    assert math.isnan(found.low)
