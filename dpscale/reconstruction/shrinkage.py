"""Empirical-Bayes shrinkage of noisy counts towards an expectation, to non-negative counts.

A cell of a table has y = reference · g + N(0, s²). The reference is the expectation from coarser tables (for a pair,
the product of its 1-way marginals), and g ≥ 0 is the cell's departure from it. The distribution of g is a mixture of
narrow Gaussians on a fixed grid; some around g = 1 and g = 0 are narrower than the rest, for cells that equal their
expectation and for impossible cells. EM estimates the mixture weights from the noisy table itself. The posterior of
x = reference · g then preserves departures above the noise and removes the rest, more precisely than thresholds or
simplex projections. Its mean minimises the squared error, its median the L1 error, and (E √x)², which lies between
them, the Hellinger distance. Tables use the last. 1-way marginals use the mean, with a grid of counts or the
neighbouring cells as reference. All of this is post-processing.

*Compiled loops.*
They shrink many noisy tables at once and compute each likelihood once. Tables are concatenated in flat arrays, table t
from `starts[t]` to `starts[t + 1]`. The loops use no BLAS, one order of summation, and an exponential of products and
sums alone, which the compiler vectorises. The bytes are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, log, sqrt

import numpy as np

from dpscale.base.compilation import compiled
from dpscale.base.numerics import Floats, Integers, NDArray
from dpscale.reconstruction import set_arrays
from dpscale.reconstruction.set_arrays import PairArrays

# departures g of the mixture: 0, below 1, around 1, above 1
GRID = np.concatenate([[0.0], np.geomspace(0.03, 0.8, 9), [0.9, 1.0, 1.1], np.geomspace(1.25, 100, 16)])
# standard deviations of g: half of the distance of the grid, at least 0.01
GRID_WIDTHS = np.maximum(np.gradient(GRID) / 2, 0.01)
GRID_WIDTHS[[0, 10, 11, 12]] = 0.01, 0.03, 0.05, 0.05
EXACT = np.array([[1.0, 0.02], [1.0, 0.006], [1.0, 0.002], [0.0, 0.002]])  # ratios and widths
# all components: the grid, and those of exact departures
RATIOS, WIDTHS = np.append(GRID, EXACT[:, 0]), np.append(GRID_WIDTHS, EXACT[:, 1])
# weights before data, proportional to min(g, 1/g)^0.7, with g at least 0.01
START = np.exp(-0.7 * np.abs(np.log(np.maximum(RATIOS, 0.01))))
START /= START.sum()
# rounds of EM: for all tables together; for one table; for 1-way counts
POOLED_ROUNDS, OWN_ROUNDS, COUNT_ROUNDS = 12, 12, 30
# cells as which prior weights count: START for all tables; the common weights for a table
POOLED_STRENGTH, OWN_STRENGTH = 5.0, 20.0
# cells sampled of a table, and a quarter of those of all tables; cells shrunk at once; cells sampled for the common
# weights; fewest sampled tables that are taken as a whole
MOST_CELLS, BLOCK, POOLED_CELLS, FEWEST_TABLES = 1 << 15, 1 << 16, 1 << 14, 1 << 8
# components of the grid of counts; neighbours on each side whose mean is a reference
COUNT_STEPS, REACHES = 36, (1, 2, 4, 8)
# divisor of the log-evidence of a prior, by the square root; least share, relative to the best
SLOWNESS, LEAST_SHARE = 2.0, 1e-3

# least log-density relative to the largest; below, a density is 0; factor before eight squarings
FARTHEST, PART = -60.0, 1 / 256
# 1/k!, the coefficients of the series of exp
C2, C3, C4, C5, C6 = 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720
C7, C8, C9, C10, C11 = 1 / 5040, 1 / 40320, 1 / 362880, 1 / 3628800, 1 / 39916800


@dataclass(frozen=True, eq=False)
class NoisyTable:
    """Noisy table.

    Attributes
    ----------
    values : ndarray
        Cells, each with noise of standard deviation `deviation`.
    reference : ndarray
        Positive expectation of each cell.
    deviation : float
    """

    values: Floats
    reference: Floats
    deviation: float

    @property
    def sample(self) -> tuple[Floats, Floats]:
        """Values and references of at most MOST_CELLS evenly spaced cells, enough to estimate a distribution."""
        step = -(-self.values.size // MOST_CELLS)
        return self.values.reshape(-1)[::step], self.reference.reshape(-1)[::step]


@dataclass(frozen=True, eq=False)
class Components:
    """Mixture of narrow Gaussians; means and widths are `ratios` and `widths` times the expectation of the cell."""

    ratios: Floats
    widths: Floats

    def likelihoods(self, values: Floats, reference: Floats, deviation: float) -> tuple[Floats, Floats]:
        """Return likelihoods, shape (cells, components), up to a factor per cell, and the log of the factor."""
        return likelihoods(*_cells(values, reference), deviation, self.ratios, self.widths)

    def means(self, values: Floats, reference: Floats, deviation: float, likelihood: Floats, weights: Floats) -> Floats:
        """Return posterior means of the counts.

        `reference` are the expectations, `deviation` is that of the noise, `likelihood` that of each component in each
        cell, and `weights` those of the components.
        """
        cells = _cells(values, reference)
        return np.asarray(posterior_means(*cells, deviation, self.ratios, self.widths, likelihood, weights))


def _cells(values: Floats, reference: Floats) -> tuple[Floats, Floats]:
    return np.ascontiguousarray(values), np.ascontiguousarray(np.maximum(reference, 1e-6))


DEPARTURES = Components(RATIOS, WIDTHS)


@dataclass(frozen=True, eq=False)
class NoisyTables:
    """Concatenated noisy tables, table t from starts[t] to starts[t + 1].

    Attributes
    ----------
    values : ndarray, shape (cells,)
    reference : ndarray, shape (cells,)
        Positive expectation of each cell.
    deviations : ndarray, shape (tables,)
        Standard deviation of the noise of each table.
    starts : ndarray of int64, shape (tables + 1,)
    """

    values: Floats
    reference: Floats
    deviations: Floats
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, tables: Sequence[NoisyTable]) -> NoisyTables:
        """Return the concatenation of tables."""
        values = np.concatenate([table.values.reshape(-1) for table in tables])
        references = np.concatenate([table.reference.reshape(-1) for table in tables])
        starts = np.cumsum([0, *(table.values.size for table in tables)])
        return cls(values, references, np.array([table.deviation for table in tables]), starts)

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Distance between sampled cells of each table."""
        return np.maximum(-(-np.diff(self.starts) // MOST_CELLS), 1)

    @property
    def _counts(self) -> NDArray[np.int64]:
        """Number of cells of each table in `sample`.

        With many cells, every `step`-th table is taken whole if these are enough tables, and otherwise the first cells
        of each.
        """
        sizes = -(-np.diff(self.starts) // self.steps)
        if sizes.sum() <= MOST_CELLS * 4:
            return sizes
        step = -(-int(sizes.sum()) // POOLED_CELLS)
        if len(sizes) >= step * FEWEST_TABLES:
            return np.where(np.arange(len(sizes)) % step == 0, sizes, 0)
        return np.minimum(sizes, -(-MOST_CELLS * 4 // len(sizes)))

    @cached_property
    def sample(self) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """Likelihoods of the first cells of every sample, their log factors, and the start of each table among them.

        If there are many cells, they are as many as `learn` needs: all of every k-th table, or fewer of each.
        """
        taken = np.cumsum([0, *self._counts])
        densities, tops = np.empty((taken[-1], len(RATIOS))), np.empty(taken[-1])
        weigh_sample(self.values, self.reference, self.starts, self.deviations, self.steps, taken,
                                     RATIOS, WIDTHS, densities, tops)  # fmt: skip
        return densities, tops, taken


def learn(tables: NoisyTables) -> Floats:
    """Return the mixture weights of g over all tables together, shape (components,); START without tables.

    They are estimated from at most POOLED_CELLS evenly spaced cells of the sample of the tables. START counts as
    POOLED_STRENGTH cells.
    """
    if not len(tables.deviations):
        return START
    likelihood = tables.sample[0]
    sampled = np.ascontiguousarray(likelihood[:: -(-len(likelihood) // POOLED_CELLS)])
    return _weights(sampled, START, POOLED_STRENGTH, POOLED_ROUNDS)


def best_posterior(ways: Sequence[NoisyTables], laws: Sequence[Floats] | None = None) -> Floats:
    """Return the estimates (E √x)² of all cells, flat, each table under the expectation with the most evidence.

    Parameters
    ----------
    ways : sequence of NoisyTables
        The same tables with different references.
    laws : sequence of ndarray, optional
        For each of `ways` the mixture weights from which EM starts for every table; by default those of all its tables
        together.
    """
    best, estimates = np.full(len(ways[0].deviations), -np.inf), np.empty(len(ways[0].values))
    for noisy, law in zip(ways, laws or [learn(way) for way in ways], strict=True):
        densities, tops, taken = noisy.sample
        shrink_every(
            noisy.values, noisy.reference, noisy.starts, noisy.deviations, noisy.steps, taken, RATIOS, WIDTHS,
            densities, tops, law, OWN_STRENGTH, OWN_ROUNDS, BLOCK, best, estimates,
        )  # fmt: skip
        del densities, tops
        vars(noisy).pop("sample")

    return estimates


def _means_of(components: Components, table: NoisyTable, law: Floats, known: Floats) -> Floats:
    """Return posterior means of all cells, flat; `law` has the weights of the components.

    `known` are the likelihoods of the sample. If the sample is all cells, they are used again; otherwise likelihoods
    are computed for BLOCK cells at a time, which bounds the memory.
    """
    flat, expected = table.values.reshape(-1), table.reference.reshape(-1)
    if len(known) == len(flat):
        return components.means(flat, expected, table.deviation, known, law)

    parts = []
    for at in range(0, len(flat), BLOCK):
        cells = flat[at : at + BLOCK], expected[at : at + BLOCK], table.deviation
        parts.append(components.means(*cells, components.likelihoods(*cells)[0], law))
    return np.concatenate(parts)


def shrunk_counts(values: Floats, deviation: float) -> Floats:
    """Return posterior means of 1-way counts, shape (n,), under noise of standard deviation `deviation`.

    The prior is a distribution of counts or, if neighbouring cells are similar, of ratios to the mean of the
    neighbours, without the cell itself so that its noise is not used twice. Each prior is weighted by the square root
    of its evidence, because evidence against a prior comes from several cells at once. Priors and evidence are
    estimated from at most MOST_CELLS evenly spaced cells, so that 10⁶ codes take about a second.
    """
    counts = _counts(values, deviation)
    even = np.full(len(counts.ratios), 1 / len(counts.ratios))
    tried = [
        _Mixture(components=counts, table=NoisyTable(values, np.ones(len(values)), deviation), start=even, strength=1.0)
    ]
    for reach in (reach for reach in REACHES if 4 * reach <= len(values)):
        near = NoisyTable(values, _neighbours(values, reach), deviation)
        tried.append(_Mixture(components=DEPARTURES, table=near, start=START, strength=POOLED_STRENGTH))
    return _averaged(tried)


def _averaged(tried: Sequence[_Mixture]) -> Floats:
    """Return the evidence-weighted mean of the posterior means.

    A mixture's share is e^(evidence/SLOWNESS), relative to the best; negligible shares are left out.
    """
    evidence = np.array([mixture.evidence for mixture in tried])
    shares = np.exp((evidence - evidence.max()) / SLOWNESS)
    shares[shares < LEAST_SHARE] = 0.0
    shares /= shares.sum()
    return np.asarray(sum(share * mixture.means for share, mixture in zip(shares, tried, strict=True) if share > 0))


def _counts(values: Floats, deviation: float) -> Components:
    """Return a grid of counts."""
    largest = max(float(values.max()), 2.0) + deviation
    grid = np.concatenate([[0.0], np.geomspace(min(1.0, largest / 4), largest, COUNT_STEPS - 1)])
    return Components(grid, np.maximum(np.gradient(grid) * 0.6, 0.5))


def _neighbours(values: Floats, reach: int) -> Floats:
    """Return the mean of up to `reach` cells on either side of each, at least a hundredth of the overall mean."""
    window = np.ones(2 * reach + 1)
    window[reach] = 0
    near = np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")
    return np.asarray(np.maximum(near, 0.01 * max(float(values.mean()), 0.1)))


class _Mixture:
    """Components with weights estimated by EM."""

    def __init__(self, components: Components, table: NoisyTable, start: Floats, strength: float) -> None:
        """Estimate the weights of the components from the sample of a table, and the evidence of the mixture.

        EM begins with the weights `start`, which count as `strength` cells in each of its COUNT_ROUNDS rounds. The
        sample has the values and references of evenly spaced cells. `evidence` is the log-likelihood of the sample,
        without the constant of the normal density, which is the same for all mixtures of the same values.
        """
        self._components, self._table = components, table
        self._likelihood, tops = components.likelihoods(*table.sample, table.deviation)
        self._weights = _weights(self._likelihood, start, strength, COUNT_ROUNDS)
        # likelihoods of a cell are divided by exp(tops), so that they do not underflow; here the factor is restored
        self.evidence = float((np.log((self._likelihood * self._weights).sum(axis=1)) + tops).sum())

    @property
    def means(self) -> Floats:
        return _means_of(self._components, self._table, self._weights, self._likelihood)


def _weights(likelihood: Floats, start: Floats, strength: float, rounds: int) -> Floats:
    return np.asarray(mixture_weights(likelihood, start, strength, rounds))


NEIGHBOUR_REACHES = (1, 2)  # cells on each side of a cell of a pair, along both axes, whose counts are its reference


def near(paired: PairArrays, tables: NoisyTables, reach: int) -> NoisyTables:
    """Return the tables of pairs with expectations from neighbours up to `reach` cells away along both axes."""
    arrays = tables.values, tables.reference, tables.deviations
    return replace(tables, reference=set_arrays.near_every(*arrays, paired.ones.at, paired.pairs, tables.starts, reach))


@compiled("Tuple((float64[:, ::1], float64[::1]))(float64[::1], float64[::1], float64, float64[::1], float64[::1])")
def likelihoods(
    values: Floats, reference: Floats, deviation: float, ratios: Floats, widths: Floats
) -> tuple[Floats, Floats]:
    """Return normal densities of every value under each component, divided by exp of the second result.

    A component's centre and width are `ratios` and `widths` times the cell's reference; noise with standard deviation
    `deviation` is added.

    The density of a value x in a component is exp(−(x − centre)² / 2v) / √v with v = deviation² + width², without the
    factor 1/√(2π). Dividing by the largest exponential of the cell (`tops`) avoids an underflow of all.

    Returns
    -------
    densities : ndarray, shape (cells, components)
    tops : ndarray, shape (cells,)
        Largest log-density of each cell.
    """
    cells, parts = len(values), len(ratios)
    densities, tops, variances = np.empty((cells, parts)), np.empty(cells), np.empty(parts)
    for cell in range(cells):
        top = -np.inf
        for part in range(parts):
            offset, width = values[cell] - reference[cell] * ratios[part], reference[cell] * widths[part]
            variances[part] = deviation * deviation + width * width
            densities[cell, part] = -0.5 * offset * offset / variances[part]
            top = max(top, densities[cell, part])

        for part in range(parts):
            relative = densities[cell, part] - top
            densities[cell, part] = exp(relative) / sqrt(variances[part]) if relative > FARTHEST else 0.0

        tops[cell] = top

    return densities, tops


@compiled("float64[::1](float64[:, ::1], float64[::1], float64, int64)")
def mixture_weights(likelihood: Floats, start: Floats, strength: float, rounds: int) -> Floats:
    """Return the weights of a mixture by EM from `start`, which counts as `strength` cells.

    A round sets w_p ∝ strength · start_p + Σ_c L_cp w_p / Σ_q L_cq w_q, scaled to sum 1: the expected number of cells c
    of component p, with a Dirichlet prior. `likelihood` L has the shape (cells, components).

    Four cells are processed at a time, for speed; a, b, c and d are their totals, and then the inverses of these.
    """
    cells, parts = likelihood.shape
    weights, scaled = start.copy(), np.empty(parts)
    in_fours = cells - cells % 4

    for _ in range(rounds):
        for part in range(parts):
            scaled[part] = 0.0
        for cell in range(0, in_fours, 4):
            a, b, c, d = 0.0, 0.0, 0.0, 0.0
            for part in range(parts):
                a += likelihood[cell, part] * weights[part]
                b += likelihood[cell + 1, part] * weights[part]
                c += likelihood[cell + 2, part] * weights[part]
                d += likelihood[cell + 3, part] * weights[part]

            a, b, c, d = 1 / a, 1 / b, 1 / c, 1 / d
            for part in range(parts):
                scaled[part] += (
                    likelihood[cell, part] * a
                    + likelihood[cell + 1, part] * b
                    + likelihood[cell + 2, part] * c
                    + likelihood[cell + 3, part] * d
                )

        # the last cells, one by one
        for cell in range(in_fours, cells):
            a = 0.0
            for part in range(parts):
                a += likelihood[cell, part] * weights[part]
            for part in range(parts):
                scaled[part] += likelihood[cell, part] / a

        total = 0.0
        for part in range(parts):
            # the factor w_p, the same for all cells, is multiplied after the sum
            weights[part] = strength * start[part] + weights[part] * scaled[part]
            total += weights[part]

        for part in range(parts):
            weights[part] /= total

    return weights


@compiled(
    "float64[::1](float64[::1], float64[::1], float64, float64[::1], float64[::1], float64[:, ::1], float64[::1])"
)
def posterior_means(
    values: Floats,
    reference: Floats,
    deviation: float,
    ratios: Floats,
    widths: Floats,
    likelihood: Floats,
    weights: Floats,
) -> Floats:
    """Return posterior means of the counts; component means below 0 are replaced by 0.

    In a component with mean c and variance w², a value y with noise s² has the posterior mean c + w²/(w² + s²) (y − c);
    components count by their posterior probability, `chance`.
    """
    cells, parts = likelihood.shape
    means = np.empty(cells)
    noise = deviation * deviation

    for cell in range(cells):
        total, mean = 0.0, 0.0
        for part in range(parts):
            chance = likelihood[cell, part] * weights[part]
            center, width = reference[cell] * ratios[part], reference[cell] * widths[part]
            inside = center + (1 - noise / (noise + width * width)) * (values[cell] - center)
            total += chance
            mean += chance * max(inside, 0.0)
        means[cell] = mean / total

    return means


@compiled("float64(float64)", inline="always", checked=False)
def exponential(x: float) -> float:
    """Return exp(x) for x from −60 to 0, with relative error 10⁻¹³: a series for exp(x/256), squared eight times.

    y is x/256 and z its exponential. Products and sums give the same bytes on every machine, unlike a library's
    exponential.
    """
    y = x * PART
    upper = C6 + y * (C7 + y * (C8 + y * (C9 + y * (C10 + y * C11))))
    z = 1.0 + y * (1.0 + y * (C2 + y * (C3 + y * (C4 + y * (C5 + y * upper)))))
    z = z * z
    z = z * z
    z = z * z
    z = z * z
    z = z * z
    z = z * z
    z = z * z

    return z * z


@compiled(
    "float64(float64, float64, float64, float64[::1], float64[::1], float64[::1], float64[::1])",
    inline="always",
    checked=False,
)
def weigh(
    value: float, expected: float, noise: float, ratios: Floats, widths: Floats, spreads: Floats, out: Floats
) -> float:
    """Write the densities of a value under its components divided by exp of the result.

    `noise` is a variance; `spreads` is working memory.

    The density of a component is exp(−(y − c)²/(2v))/√v with v = noise + width². The result is the largest exponent, by
    which all are reduced, so that none overflows.
    """
    parts = len(ratios)
    for part in range(parts):
        offset, width = value - expected * ratios[part], expected * widths[part]
        spread = noise + width * width
        spreads[part] = spread
        out[part] = -0.5 * offset * offset / spread

    top = out[0]
    for part in range(1, parts):
        top = max(top, out[part])
    for part in range(parts):
        relative = out[part] - top
        height = exponential(max(relative, FARTHEST)) / sqrt(spreads[part])
        out[part] = height if relative > FARTHEST else 0.0

    return top


@compiled(
    "void(float64[::1], float64[::1], int64, int64, int64, float64, float64[::1], float64[::1], float64[:, ::1],"
    " float64[::1])",
    checked=False,
)
def weigh_every(
    values: Floats, reference: Floats, first: int, step: int, count: int, deviation: float, ratios: Floats, widths:
    Floats, densities: Floats, tops: Floats,
) -> None:  # fmt: skip
    """Write the densities of `count` cells at intervals of `step` cells from `first`.

    A cell has `densities` under each component, divided by exp of its entry of `tops`; expectations are at least 1e-6.
    """
    spreads = np.empty(len(ratios))
    for number in range(count):
        cell, expected = first + number * step, max(reference[first + number * step], 1e-6)
        noise = deviation * deviation
        tops[number] = weigh(values[cell], expected, noise, ratios, widths, spreads, densities[number])


@compiled(
    "void(float64[::1], float64[::1], int64[::1], float64[::1], int64[::1], int64[::1], float64[::1], float64[::1],"
    " float64[:, ::1], float64[::1])"
)
def weigh_sample(
    values: Floats, reference: Floats, starts: Integers, deviations: Floats, steps: Integers, taken: Integers,
    ratios: Floats, widths: Floats, densities: Floats, tops: Floats,
) -> None:  # fmt: skip
    """Write the densities of every table's first sampled cells into rows taken[t] to taken[t + 1].

    starts[t] is the first cell of table t, steps[t] the interval of its sampled cells.
    """
    for t in range(len(deviations)):
        rows = densities[taken[t] : taken[t + 1]], tops[taken[t] : taken[t + 1]]
        weigh_every(values, reference, starts[t], steps[t], taken[t + 1] - taken[t], deviations[t], ratios, widths,
                    rows[0], rows[1])  # fmt: skip


@compiled("float64(float64[:, ::1], float64[::1], float64[::1])")
def evidence(likelihood: Floats, tops: Floats, weights: Floats) -> float:
    """Return the log-density of the values, rounded to sixteenths so that the last bits of floats do not decide."""
    total = 0.0
    for cell in range(len(likelihood)):
        density = 0.0
        for part in range(len(weights)):
            density += likelihood[cell, part] * weights[part]
        total += log(density) + tops[cell]
    return np.rint(16 * total) / 16


@compiled(
    "void(float64[::1], float64[::1], float64, float64[::1], float64[::1], float64[:, ::1], float64[::1],"
    " float64[::1])",
    checked=False,
)
def estimate(
    values: Floats,
    reference: Floats,
    deviation: float,
    ratios: Floats,
    widths: Floats,
    likelihood: Floats,
    weights: Floats,
    estimates: Floats,
) -> None:
    """Write (E √x)² of cells with given likelihoods; x as in `posterior_means`.

    `reference` are the expectations, and `ratios` and `widths` those of the components as multiples of them;
    `estimates` receives the result.

    The mean of √x is less than the root of the mean of x, so uncertain cells are shrunk more. `chances` are the
    components' posterior weights, not normalised, and `rooted` these times √mean.
    """
    noise, parts = deviation * deviation, len(weights)
    chances, rooted = np.empty(parts), np.empty(parts)
    for cell in range(len(values)):
        expected, total, root = max(reference[cell], 1e-6), 0.0, 0.0
        for part in range(parts):
            center, width = expected * ratios[part], expected * widths[part]
            # noise / (noise + width²) is the weight of the component's centre
            mean = center + (1 - noise / (noise + width * width)) * (values[cell] - center)  # posterior, in this part
            chances[part] = likelihood[cell, part] * weights[part]
            rooted[part] = chances[part] * sqrt(mean if mean > 0.0 else 0.0)

        for part in range(parts):
            total += chances[part]
            root += rooted[part]

        estimates[cell] = (root / total) * (root / total)


@compiled(
    "void(float64[::1], float64[::1], int64[::1], float64[::1], int64[::1], int64[::1], float64[::1], float64[::1],"
    " float64[:, ::1], float64[::1], float64[::1], float64, int64, int64, float64[::1], float64[::1])"
)
def shrink_every(
    values: Floats, reference: Floats, starts: Integers, deviations: Floats, steps: Integers, taken: Integers,
    ratios: Floats, widths: Floats, densities: Floats, tops: Floats, law: Floats, strength: float, rounds: int,
    block: int, best: Floats, estimates: Floats,
) -> None:  # fmt: skip
    """Fit mixture weights to every table and, if their evidence exceeds `best`, write the estimates of its cells.

    `taken` is where each table's precomputed likelihoods begin; a table without all of them computes its own. With
    `step` > 1 weights were learnt from a sample of cells, and all cells are then evaluated by blocks.

    `ratios` and `widths` are the components' centres and widths relative to a cell's reference, `law` and `strength`
    the prior of their weights. `densities` and `tops` are the likelihoods of `likelihoods`. `best` has the evidence of
    the best estimate so far and `estimates` its values.
    """
    for t in range(len(deviations)):
        first, end, step = starts[t], starts[t + 1], steps[t]
        count = (end - first + step - 1) // step
        likelihood, top = densities[taken[t] : taken[t + 1]], tops[taken[t] : taken[t + 1]]
        if len(likelihood) < count:
            likelihood, top = np.empty((count, len(ratios))), np.empty(count)
            weigh_every(values, reference, first, step, count, deviations[t], ratios, widths, likelihood, top)

        weights = mixture_weights(likelihood, law, strength, rounds)
        support = evidence(likelihood, top, weights)
        # an earlier call explains the table at least as well
        if not support > best[t]:
            continue

        best[t] = support
        for at in range(first, end, block):
            until = min(at + block, end)
            if step > 1:
                likelihood, top = np.empty((until - at, len(ratios))), np.empty(until - at)
                weigh_every(values, reference, at, 1, until - at, deviations[t], ratios, widths, likelihood, top)
            rows = likelihood if step > 1 else likelihood[at - first : until - first]
            estimate(
                values[at:until], reference[at:until], deviations[t], ratios, widths, rows, weights, estimates[at:until]
            )

        for cell in range(first, end):
            # at least 0.1 % of the reference, so that no estimate is 0 or negative
            estimates[cell] = max(estimates[cell], 1e-3 * reference[cell])
