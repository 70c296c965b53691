"""Empirical-Bayes shrinkage of noisy counts towards an expectation, to non-negative counts.

A cell of a table has y = reference · g + N(0, s²). The reference is the expectation from coarser tables (for a pair,
the product of its 1-way marginals), and g ≥ 0 is the cell's departure from it. The distribution of g is a mixture of
narrow Gaussians on a fixed grid; some around g = 1 and g = 0 are narrower than the rest, for cells that equal their
expectation and for impossible cells. EM estimates the mixture weights from the noisy table itself. The posterior of
x = reference · g then preserves departures above the noise and removes the rest, more precisely than thresholds or
simplex projections. Its mean minimises the squared error, its median the L1 error, and (E √x)², which lies between
them, the Hellinger distance. Tables use the last. 1-way marginals use the mean, with a grid of counts or the
neighbouring cells as reference. All of this is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpscale.base.numerics import Floats, NDArray
from dpscale.reconstruction import pair_loops, shrinkage_loops
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
        return shrinkage_loops.likelihoods(*_cells(values, reference), deviation, self.ratios, self.widths)

    def means(self, values: Floats, reference: Floats, deviation: float, likelihood: Floats, weights: Floats) -> Floats:
        """Return posterior means of the counts.

        `reference` are the expectations, `deviation` is that of the noise, `likelihood` that of each component in each
        cell, and `weights` those of the components.
        """
        cells = _cells(values, reference)
        return np.asarray(
            shrinkage_loops.posterior_means(*cells, deviation, self.ratios, self.widths, likelihood, weights)
        )


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
        shrinkage_loops.weigh_sample(self.values, self.reference, self.starts, self.deviations, self.steps, taken,
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
    few = np.ascontiguousarray(likelihood[:: -(-len(likelihood) // POOLED_CELLS)])
    return _weights(few, START, POOLED_STRENGTH, POOLED_ROUNDS)


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
        shrinkage_loops.shrink_every(
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
    return np.asarray(shrinkage_loops.mixture_weights(likelihood, start, strength, rounds))


NEIGHBOUR_REACHES = (1, 2)  # cells on each side of a cell of a pair, along both axes, whose counts are its reference


def near(paired: PairArrays, tables: NoisyTables, reach: int) -> NoisyTables:
    """Return the tables of pairs with expectations from neighbours up to `reach` cells away along both axes."""
    given = tables.values, tables.reference, tables.deviations
    return replace(tables, reference=pair_loops.near_every(*given, paired.ones.at, paired.pairs, tables.starts, reach))
