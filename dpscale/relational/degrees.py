"""Degrees of rows: a distribution from noisy histograms, tilted to the total of every profile, and a private bound.

*Bounds.*
Rows are counted by degree, one by one up to SINGLE, then in half octaves up to 2^19 links. A row is in one bucket, so a
unit of k rows changes the histogram by at most k in L2. The rows from a bucket upwards are the sum of its counts and
those above. The highest bucket from which this sum is above its noise by ABOVE_NOISE standard deviations has all of
these rows, because a few rows by noise in a higher one would have most of the links. Within a bucket the degrees are
uniform.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.numerics import Floats, Integers, optimize, stats
from dpscale.privacy.streams import PublicStream
from dpscale.relational.features import Side

LEAST, THIN = 1e-4, 2.0  # share added to every degree; its decrease per degree beyond the ends, as a logarithm
# relative distance of the mean from the bound that counts as equal; largest mean without the bound, in multiples of the
# bound; steps of the bisection
CLOSE, FREE, HALVINGS = 1e-6, 1 << 20, 40
TILTS = np.linspace(-6, 6, 2001)  # t of tilted distributions, whose shares are multiplied by e^(t · degree)


def distribution(at_most: Floats, rows: int, sigma: float = 0.0, links: float | None = None) -> Floats:
    """Return the share of rows of degree 0 … d, shape (d + 1,), from noisy numbers of rows of degree ≤ 0 … d − 1.

    Parameters
    ----------
    at_most : ndarray, shape (d,)
    rows : int
    sigma : float
        Standard deviation of the noise; counts are shrunk towards a negative binomial distribution accordingly.
    links : float, optional
        Number of links, the mean of that distribution; None for counts that are not shrunk.
    """
    if links is not None and sigma > 0 and rows > 0:
        at_most = shrink_degrees(at_most, rows, sigma, links)
    ends = np.clip(optimize.isotonic_regression(at_most).x, 0, rows)
    return np.asarray(np.diff(ends, prepend=0, append=rows) / max(rows, 1))


# grid of d in the variance m + d m² of degrees; 0 is that of random links
DISPERSIONS = np.array([0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.7, 3.0, 5.0, 10.0, 20.0, 40.0])
PRIOR_DISPERSION = 2.0  # decrease of the log-likelihood for a dispersion above 0, that of random links


def shrink_degrees(at_most: Floats, rows: int, sigma: float, links: float) -> Floats:
    """Return noisy numbers of rows of degree ≤ 0 … d − 1, shrunk towards those of a negative binomial distribution.

    Degrees above d count as d, and the mean of the bounded degrees is that of the links. The dispersion is the average
    over a grid by likelihood, with the Poisson distribution of random links as the prior mode. The residual is
    multiplied by τ²/(τ² + σ²), with the variance τ² of the true residual by the method of moments: noise does not
    appear as signal, and precise counts do not change.
    """
    each = [rows * _bounded_binomial(links / rows, dispersion, len(at_most)) for dispersion in DISPERSIONS]
    residuals = at_most - np.stack(each)
    likely = -0.5 * (residuals**2).sum(axis=1) / sigma**2 - PRIOR_DISPERSION * (DISPERSIONS > 0)
    weights = np.exp(likely - likely.max())
    expected = weights @ np.stack(each) / weights.sum()
    residual = at_most - expected
    excess = max(float((residual**2).mean()) - sigma**2 * (1 + (2 / len(residual)) ** 0.5), 0.0)

    return np.asarray(expected + residual * excess / (excess + sigma**2))


def _bounded_binomial(mean: float, dispersion: float, bound: int) -> Floats:
    """Return the probabilities of degrees ≤ 0 … bound − 1, if degrees above the bound count as the bound.

    The mean of the bounded degrees is `mean`; the variance of the unbounded ones is m + dispersion m².

    A count min(X, bound) has the mean Σ_{v < bound} P(X > v) = bound − Σ P(X ≤ v). It increases with the mean m
    (`free`) of X, which is found by bisection; without dispersion X is Poisson, else negative binomial.
    """

    def cumulative(free: float) -> Floats:
        """Return P(X ≤ v) for v = 0 … bound − 1, with the mean `free` of X."""
        values = np.arange(bound)
        if dispersion == 0:
            return np.asarray(stats.poisson.cdf(values, free))
        return np.asarray(stats.nbinom.cdf(values, 1 / dispersion, 1 / (1 + dispersion * free)))

    low, high = 0.0, float(bound)
    if mean >= bound * (1 - CLOSE):
        return np.zeros(bound)

    while bound - cumulative(high).sum() < mean and high < FREE * bound:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if bound - cumulative(middle).sum() < mean else (low, middle)

    return cumulative(high)


def poisson_degrees(links: float, rows: int, most: int) -> Floats:
    """Return the Poisson distribution of degrees up to `most`, for links without a measured histogram."""
    return np.asarray(stats.poisson.pmf(np.arange(most + 1), links / max(rows, 1)))


def limit_links(
    links: Floats, u: Side, v: Side, most_u: int | None, most_v: int | None, stream: PublicStream
) -> Floats:
    """Return the links without those that exceed the capacity of a profile's rows; a bound of None is no bound.

    `most_u` and `most_v` bound the links of a row; what exceeds the bound times the rows of a profile is removed at
    random.
    """
    links = links.copy()
    for axis, side, most in ((1, u, most_u), (0, v, most_v)):
        if most is None:
            continue
        for profile in np.flatnonzero(links.sum(axis=axis) > most * side.counts):
            line = links[profile] if axis == 1 else links[:, profile]
            capacity = int(most * side.counts[profile])
            each = np.repeat(np.arange(len(line)), line.astype(np.int64))
            remaining = each[stream.permutation(len(each))[:capacity]]
            line[:] = np.bincount(remaining, minlength=len(line))

    return links


def tilt_distributions(shares: Floats) -> tuple[Floats, Floats]:
    """Return exponentially tilted distributions of degrees in order of increasing mean, and their means.

    A tilt by t multiplies the share of degree k by e^(tk); means increase with t.
    """
    values = np.arange(len(shares))
    with np.errstate(divide="ignore"):
        energy = np.log(_open(shares)) + TILTS[:, None] * values
    laws = np.exp(energy - energy.max(axis=1, keepdims=True))
    laws /= laws.sum(axis=1, keepdims=True)
    return laws, laws @ values


def limit_degrees(pairs: Integers, bounds: tuple[int | None, int | None], stream: PublicStream) -> Integers:
    """Return links without random ones that exceed the bound of a row on either side.

    `rank` is the number of a link among those of its row, in random order. `rows` is the row of each link on one side,
    sorted, so its first place in `rows` gives the rank.
    """
    for side, most in enumerate(bounds):
        if most is not None:
            order = stream.permutation(len(pairs))
            order = order[np.argsort(pairs[order, side], kind="stable")]
            rows = pairs[order, side]
            rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
            pairs = pairs[np.sort(order[rank < most])]
    return pairs


def degrees(totals: Floats, side: Side, shares: Floats, stream: PublicStream) -> list[Integers]:
    """Return the degrees of the rows of every profile in random order; they sum to the profile's total.

    Each profile takes the tilted distribution whose mean is nearest from above to its mean degree. `shares` is the
    distribution of degrees; `laws` are the distributions tilted to the means `means`, ascending.
    """
    laws, means = tilt_distributions(shares)
    degrees_of_profiles = []
    for total, rows in zip(totals.astype(int), side.counts.astype(int), strict=True):
        law = laws[min(int(np.searchsorted(means, total / rows)), len(means) - 1)]
        drawn = stream.systematic(law, rows).astype(np.int64)
        degrees_of_profiles.append(adjust_total(drawn, total, len(shares) - 1, stream))
    return degrees_of_profiles


def _open(shares: Floats) -> Floats:
    """Return the shares plus small ones for all degrees, so that every total is attainable.

    The added shares decrease beyond the ends of the distribution so that a tilt does not reach them at once.
    """
    values, present = np.arange(len(shares)), np.flatnonzero(shares > LEAST)
    away = np.maximum(0, np.maximum(values - present.max(initial=0), present.min(initial=len(shares)) - values))
    return np.asarray(shares + LEAST * np.exp(-THIN * away))


def children(totals: Floats, side: Side, stream: PublicStream) -> list[Integers]:
    """Return degrees of 0 or 1 for the rows of every profile: 1 for all, or for a random subset of the total size."""
    degrees_of_profiles = []
    for total, count in zip(totals, side.counts, strict=True):
        has_parent = np.arange(int(count)) < total
        order = slice(None) if has_parent.all() else stream.permutation(len(has_parent))
        degrees_of_profiles.append(has_parent[order].astype(np.int64))
    return degrees_of_profiles


def adjust_total(drawn: Integers, total: int, most: int, stream: PublicStream) -> Integers:
    """Add or subtract 1 at random places until the degrees sum to the total.

    `drawn` are the degrees of some rows, each between 0 and `most`; the total is reduced to what these rows can have.
    In each round as many rows as links are missing or too many change by 1, each at most once. `missing` is the number
    of links to add, or below 0 to remove; `free` are the rows that can change.
    """
    total = min(total, most * len(drawn))
    while missing := int(total - drawn.sum()):
        free = np.flatnonzero(drawn < most) if missing > 0 else np.flatnonzero(drawn > 0)
        changed = free[stream.permutation(len(free))[: abs(missing)]]
        drawn[changed] += 1 if missing > 0 else -1
    return drawn


def buckets(bound: int) -> Integers:
    """Return the smallest number of links of every bucket, ascending: 0 and the powers of two up to the bound."""
    return np.array([0, *(1 << k for k in range(bound.bit_length()))], np.int64)


def bucket(degrees: Integers, bound: int) -> Integers:
    """Return the bucket of every row."""
    return np.searchsorted(buckets(bound), degrees, side="right").astype(np.int64) - 1


GRID = np.array([0, *(1 << k for k in range(21))], np.int64)  # degrees up to which rows without a bound are counted
# least weight of a row; degree in place of 0 before a logarithm; rows among which points are stratified; deviations of
# noise below the number of rows at which a count is all rows
LEAST_DEGREE, LOW, BLOCK, SURE = 1e-9, 0.5, 64, 3.0


def thresholds(bound: int | None) -> Integers:
    """Return the degrees up to which rows are counted: all below a bound, or the grid."""
    return GRID if bound is None else np.arange(bound, dtype=np.int64)


def sample_uniform_degrees(each: Floats, side: Side, totals: Floats, stream: PublicStream) -> list[Integers]:
    """Distribute the links of each group to its rows, with probabilities proportional to the expected links.

    Rows are sorted by group; a link falls on the row in whose interval of cumulated weights its uniform point is.
    `bounds` are the first rows of the groups in this order, `begins` and `widths` their intervals of cumulated weights.
    A row has at least the weight LEAST_DEGREE.
    """
    order = np.argsort(side.of, kind="stable")
    weights = np.maximum(each[order], LEAST_DEGREE)
    ends = np.cumsum(weights)
    bounds = np.concatenate([[0], np.cumsum(side.counts.astype(np.int64))])
    begins = np.concatenate([[0.0], ends])[bounds[:-1]]
    widths = np.concatenate([[0.0], ends])[bounds[1:]] - begins
    groups = np.repeat(np.arange(len(totals)), totals.astype(np.int64))
    at = np.searchsorted(ends, begins[groups] + stream.uniforms(len(groups)) * widths[groups], side="right")
    drawn = np.bincount(np.clip(at, bounds[groups], bounds[groups + 1] - 1), minlength=len(each))

    return np.split(drawn.astype(np.int64), bounds[1:-1])


def sample_degrees(
    at_most: Floats, sigma: float, each: Floats, side: Side, totals: Floats, stream: PublicStream
) -> list[Integers]:
    """Sample degrees with the dispersion of the noisy counts of rows up to the grid's degrees; `sigma`: their noise.

    The logarithm of a degree has the variance of the noisy counts (`wanted`); that of the expected links is `known`,
    and a random factor has the rest (`free`). `each` has the expected links of each row, and `at_most` the noisy
    counts. Ranks of rows (`place`) are by kind and then by expected links, so that the factor varies in each kind.
    """
    known, wanted = (np.log(np.maximum(values, LOW)) for values in (each, _sorted(at_most, sigma, side.rows)))
    free = max(float(wanted.var() - known.var()), 0.0) / max(float(wanted.var()), LEAST_DEGREE)
    factors = np.exp(free**0.5 * (wanted - wanted.max()))
    place = (_even(np.lexsort((each, side.of)), stream) * side.rows).astype(np.int64)
    return _to_totals(each * (factors / factors.mean())[place], side, totals, stream)


def _even(order: Integers, stream: PublicStream) -> Floats:
    """Return stratified points in (0, 1), shape (n,): each BLOCK consecutive rows have one point in each BLOCK-th.

    Places are shuffled within each BLOCK rows, and the k-th of a block gets a random point of the k-th part of (0, 1).
    """
    place = np.arange(len(order))
    shuffled = np.argsort(place // BLOCK + stream.uniforms(len(order)), kind="stable")
    points = np.empty(len(order))
    points[order[shuffled]] = (place % BLOCK + stream.uniforms(len(order))) / BLOCK
    return points


def _to_totals(expected: Floats, side: Side, totals: Floats, stream: PublicStream) -> list[Integers]:
    """Return whole degrees of the rows of each kind, scaled so that they sum to the total of the kind.

    `expected` has a degree for each row of the side; the rounding is random with the given stream. `stream.rounded`
    takes running sums, so that the sum of a kind is rounded only once; no degree is limited, because the limit is above
    the sum of all `totals`. LEAST_DEGREE gives links to a kind whose degrees are all 0.
    """
    rows = np.argsort(side.of, kind="stable")
    groups = np.split(expected[rows], np.cumsum(side.counts.astype(np.int64))[:-1])
    whole_degrees = []
    for values, total in zip(groups, totals, strict=True):
        scaled = (values + LEAST_DEGREE) * (total / max(values.sum() + LEAST_DEGREE * len(values), LEAST_DEGREE))
        whole_degrees.append(adjust_total(stream.rounded(np.cumsum(scaled)), int(total), int(totals.sum()) + 1, stream))
    return whole_degrees


def _sorted(at_most: Floats, sigma: float, rows: int) -> Floats:
    """Return degrees in ascending order, shape (rows,), log-linear between two grid values.

    A count within the noise of the number of rows is set to it; otherwise a few rows would have a million links.

    `ends` are the shares of rows up to each degree of the grid; a row at point p has a degree between the two grid
    values that enclose p.
    """
    counts = np.clip(optimize.isotonic_regression(at_most).x, 0, rows)
    ends = np.append(np.where(counts >= rows - SURE * sigma, rows, counts), rows) / max(rows, 1)
    points = (np.arange(rows) + 0.5) / rows
    place = np.minimum(np.searchsorted(ends, points), len(GRID) - 1)
    before = np.where(place > 0, ends[np.maximum(place - 1, 0)], 0.0)
    inside = (points - before) / np.maximum(ends[place] - before, LEAST_DEGREE)
    low, high = np.maximum(GRID[np.maximum(place - 1, 0)], 1), np.maximum(GRID[place], 1)

    return np.where(place == 0, 0.0, np.maximum(low * (high / low) ** np.clip(inside, 0, 1), 1.0))


MOST_BITS, SINGLE = 19, 16  # logarithm of the largest power of 2 that begins a bucket; degrees counted one by one
ABOVE_NOISE = 3.5  # standard deviations by which a bucket and those above must exceed 0
CUT = 0.05  # share of links that a proposed bound may cut
# 2^k and 3 · 2^k: starts of buckets from SINGLE on, and proposed bounds
HALVES = sorted({*(1 << k for k in range(MOST_BITS + 1)), *(3 << k for k in range(MOST_BITS))})
STEPS = 64  # points of a bucket at which its degrees are


def bucket_starts() -> Integers:
    """Return the smallest degree of every bucket, ascending."""
    return np.array([*range(SINGLE), *(start for start in HALVES if start >= SINGLE)], np.int64)


def degree_histogram(degrees: Integers) -> Integers:
    """Return the number of rows in every bucket."""
    starts = bucket_starts()
    places = np.searchsorted(starts, degrees, side="right") - 1
    return np.bincount(places, minlength=len(starts)).astype(np.int64)


def cut_share(noisy: Floats, sigma: float, bound: int) -> float | None:
    """Return the share of the links that a bound of the degrees cuts, between 0 and 1; None if the noise hides it.

    Parameters
    ----------
    noisy : ndarray, shape (buckets,)
    sigma : float
        Standard deviation of the noise.
    bound : int
    """
    rows, starts = _likely_rows(noisy, sigma), bucket_starts()
    ends = np.append(starts[1:], 2 * starts[-1])
    inside = (np.arange(STEPS) + 0.5) / STEPS
    degrees = np.floor(starts[:, None] + inside * (ends - starts)[:, None])
    links = rows @ degrees.mean(axis=1)
    beyond = rows @ np.maximum(degrees - bound, 0).mean(axis=1)
    return float(beyond / links) if links > 0 else None


def _likely_rows(noisy: Floats, sigma: float) -> Floats:
    """Return the counts with those above the highest certain bucket in it.

    The sum of k buckets has k times the variance of one, hence √k. `noisy` are noisy numbers of rows by bucket, each
    with the deviation `sigma`; a bucket is certain if the sum from it on exceeds ABOVE_NOISE deviations.
    """
    above = np.cumsum(noisy[::-1])[::-1]
    sure = np.flatnonzero(above > ABOVE_NOISE * sigma * np.sqrt(np.arange(len(noisy), 0, -1)))
    last = int(sure[-1]) if len(sure) else 0
    rows = np.zeros(len(noisy))
    rows[:last] = np.maximum(noisy[:last], 0)
    rows[last] = max(float(above[last]), 0.0)
    return rows


def proposed_bound(noisy: Floats, sigma: float) -> int | None:
    """Return the smallest of some bounds that cuts at most CUT of the links; None if the noise hides all degrees."""
    cuts = ((bound, cut_share(noisy, sigma, bound)) for bound in HALVES)
    return next((bound for bound, cut in cuts if cut is not None and cut <= CUT), None)
