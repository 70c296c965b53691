"""Division of a job's budget over its tables and links, by expected error of the linked rows.

The error of a link is the mean total variation of marginals over two attributes of one side and one of the other. With
shares s of the squared μ of the job, it has four independent parts, whose squares add:

    E²(s) = T_u²(s_u) + T_v²(s_v) + S² + L²(s_l)

T is the error of the marginals of a synthetic table: with y = 0.4 n √d r for the 1-way marginals of d attributes with n
cells on average, x = 0.4 c √p r for p pairs with c cells on average, and r = k / (N √(s μ²)) the noise of a count
relative to N rows of which a unit has k, T₁ = y / (1 + y) and T₂² = T₁² + (x / (1 + x / 0.12))²: estimates shrink, so
their error is bounded. S = 0.4 √(cells / m) is the deviation of m links from their own distribution, which no budget
removes. L is the expected departure of linked rows from random links that remains after the measurement of the link
(`budget_shares.objective`), for a distribution over the strengths of departures.

Two links in a chain, of a table to the children of its children, have an error, too: that of the tables at both ends,
whose middle table counts only by the links. Relative departures multiply along a chain: with D the departure of random
links, what remains has

    L² = ((L₁ D₂)² + (D₁ L₂)²) / 0.4²

for small departures. Without these terms the table in the middle, which is at the end of two links, takes the budget of
the tables at the ends.

The shares minimise Σ log E over the links and chains plus a part of Σ log T₂ over the tables, so that no table starves,
with a penalty for errors above that of random links between tables with equal shares (`random_error`), and a small
divergence of the shares of tables from equal ones, which decides where no budget helps.

*Strength of the association across a link.*
The departure of linked rows from random links has relative scales s₁ for 1-way sums and s₂ for sums over pairs of
attributes. Before data both are log-normal, around CENTRE times the middle of `budget_shares.PRIORS`: a share for a
link without an association costs the tables more than a smaller share costs a link with one. A first measurement has
noisy sums S_u = Σ φ, S_v = Σ ψ and S_uv = Σ φψᵀ over m links, and the means of φ and ψ over the rows of both tables.
Under random links S_u has the expectation m φ̄, and S_uv has Σφ Σψᵀ / m; the likelihood of the departures for every
scale updates the distributions, with blocks of columns that have no departure (`link_estimation.scale_evidence`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product

import numpy as np

from dpscale.base.numerics import Floats, Integers, optimize
from dpscale.privacy.streams import PublicStream
from dpscale.relational.budget_shares import KNOWN, PRIORS, Expected, LinkProblem, Shares, objective, plan_shares
from dpscale.relational.features import Side
from dpscale.relational.link_estimation import SCALES, ShrinkageBlock, scale_evidence
from dpscale.relational.rounding import cross_count

ABSOLUTE = 0.4  # half of the mean absolute value of a standard normal variable
MODEL_ERROR = 0.12  # error of pairs of attributes that an adaptive mechanism does not measure
# weights in the objective: of Σ log T₂; of errors above random links; of uneven tables
TABLE_WEIGHT, PENALTY, EVEN = 0.2, 20.0, 0.15
LEAST_LOG = np.log(1e-6)  # least share relative to the largest, as a logarithm
STEPS = 4000  # steps of the search from each start, and evaluations
LEAST = 0.002  # share below which a link is not measured


@dataclass(frozen=True)
class TableErrors:
    """Parameters that determine the errors of a private table.

    Attributes
    ----------
    sizes : tuple of int
        Number of cells of every attribute.
    rows : float
        Approximate number of rows N.
    unit_rows : float
        Number k of its rows that a privacy unit of the job changes.
    """

    sizes: tuple[int, ...]
    rows: float
    unit_rows: float

    def marginal_errors(self, amount: float) -> tuple[float, float]:
        """Return T₁ and T₂ at a squared μ; T₂ is T₁ for one attribute.

        `noise` is r = k/(N √(s μ²)) with s μ² = `amount`, y = 0.4 n √d r and T₁ = y/(1 + y); a pair has x/(1 + x/0.12).
        """
        noise = self.unit_rows / (max(self.rows, 1.0) * max(amount, 1e-300) ** 0.5)
        single = ABSOLUTE * float(np.mean(self.sizes)) * len(self.sizes) ** 0.5 * noise
        single /= 1 + single
        cells = [a * b for a, b in combinations(self.sizes, 2)]
        if not cells:
            return single, single

        pair = ABSOLUTE * float(np.mean(cells)) * len(cells) ** 0.5 * noise
        pair /= 1 + pair / MODEL_ERROR
        return single, float(np.hypot(single, pair))


@dataclass(frozen=True, eq=False)
class LinkErrors:
    """Parameters that determine the error of a link.

    Attributes
    ----------
    parent, child : str
        Tables.
    links : float
        Approximate number of links m.
    cells : float
        Mean number of cells of the marginals over both sides.
    amounts : ndarray
        Ascending squared μ of the link.
    departures : ndarray
        L at these amounts.
    """

    parent: str
    child: str
    links: float
    cells: float
    amounts: Floats
    departures: Floats

    @property
    def sampling(self) -> float:
        """S."""
        return deviation_of(self.cells, self.links)

    @property
    def random_departure(self) -> float:
        """L of random links, which need no budget."""
        return float(self.departures[0])

    def departure(self, amount: float) -> float:
        """Return L at a squared μ; below the first amount it is that of random links."""
        return float(np.interp(np.log(max(amount, 1e-300)), np.log(self.amounts), self.departures))


@dataclass(frozen=True)
class ChainErrors:
    """Parameters that determine the error of two links in a chain.

    Attributes
    ----------
    first, second : str
        Links; the child of the first is the parent of the second.
    cells : float
        Mean number of cells of the marginals over both ends.
    """

    first: str
    second: str
    cells: float


def deviation_of(cells: float, links: float) -> float:
    """Return the mean total variation of a marginal of sampled links from their distribution."""
    return float(ABSOLUTE * (cells / max(links, 1.0)) ** 0.5)


def _error(
    table_errors: Mapping[str, tuple[float, float]], ends: tuple[str, str], sampling: float, departure: float
) -> float:
    """Return E of a link between the tables `ends`, of errors T₁ and T₂; public tables have no error."""
    tables = sum((t1**2 + t2**2) / 2 for t1, t2 in (table_errors.get(name, (0.0, 0.0)) for name in ends))
    return float((tables + sampling**2 + departure**2) ** 0.5)


def cross_cells(u: Sequence[int], v: Sequence[int]) -> float:
    """Return the mean number of cells of marginals over two attributes of one side and one of the other."""
    cells = []
    for pair_side, single_side in ((u, v), (v, u)):
        cells += [a * b * c for a, b in combinations(pair_side, 2) for c in single_side]
    # without triples, the cells of the only pair
    return float(np.mean(cells or [u[0] * v[0]]))


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """Tables and links that share a squared μ.

    Attributes
    ----------
    tables : mapping of str to TableErrors
        Private tables; public ones have no error.
    links : mapping of str to LinkErrors
    amount : float
        Squared μ of all components.
    chains : mapping of str to ChainErrors
    """

    tables: Mapping[str, TableErrors]
    links: Mapping[str, LinkErrors]
    amount: float
    chains: Mapping[str, ChainErrors] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Components in the order of shares."""
        return [f"tables.{table}" for table in self.tables] + [f"links.{link}" for link in self.links]

    def errors(self, shares: Mapping[str, float]) -> dict[str, float]:
        """Return E of every link and chain."""
        table_errors = {name: table.marginal_errors(self.amount * shares[f"tables.{name}"])
                        for name, table in self.tables.items()}  # fmt: skip
        departures = {name: link.departure(self.amount * shares[f"links.{name}"]) for name, link in self.links.items()}
        return self._link_errors(table_errors, departures, sampling_factor=1.0)

    def random_error(self) -> dict[str, float]:
        """Return the error E, by name, of every link and chain if its rows were linked at random, without measurement.

        The objective penalises a division with a larger E. The tables share the whole budget equally, because random
        links need none.
        """
        table_amount = self.amount / max(len(self.tables), 1)
        table_errors = {name: table.marginal_errors(table_amount) for name, table in self.tables.items()}
        departures = {name: link.random_departure for name, link in self.links.items()}
        # m true links deviate by S from their distribution, m random ones by as much, independently: together √2 S
        return self._link_errors(table_errors, departures, sampling_factor=2**0.5)

    def _link_errors(
        self, table_errors: Mapping[str, tuple[float, float]], departures: Mapping[str, float], sampling_factor: float
    ) -> dict[str, float]:
        """Return the expected error of each link and chain of two links, by name.

        For a chain, what remains is ((L₁ D₂)² + (D₁ L₂)²)^½ / 0.4, with the departure D of random links.

        Parameters
        ----------
        table_errors : mapping
            Errors of the tables.
        departures : mapping
            Departure of each link from its true distribution that its share leaves, as total variation.
        sampling_factor : float
            Factor of S, the deviation of links from their own distribution.
        """
        errors = dict[str, float]()
        for name, link in self.links.items():
            sampling = sampling_factor * link.sampling
            errors[name] = _error(table_errors, (link.parent, link.child), sampling, departures[name])
        for name, chain in self.chains.items():
            first, second = (self.links[link] for link in (chain.first, chain.second))
            measured_first = departures[chain.first] * second.random_departure
            measured_second = first.random_departure * departures[chain.second]
            sampling = sampling_factor * deviation_of(chain.cells, second.links)
            departure = float(np.hypot(measured_first, measured_second)) / ABSOLUTE
            errors[name] = _error(table_errors, (first.parent, second.child), sampling, departure)
        return errors

    def objective(self, shares: Mapping[str, float]) -> float:
        """Return the value that an allocation minimises.

        Σ log E, plus PENALTY times the squared excess of log E over that of random links, plus TABLE_WEIGHT · Σ log T₂,
        plus EVEN times the divergence of the tables' shares from equal ones, −mean log(share · number).
        """
        errors, least = self.errors(shares), self.random_error()
        total = sum(np.log(error) for error in errors.values())
        total += PENALTY * sum(max(0.0, np.log(error / least[name])) ** 2 for name, error in errors.items())
        tables = [
            table.marginal_errors(self.amount * shares[f"tables.{name}"])[1] for name, table in self.tables.items()
        ]
        total += TABLE_WEIGHT * sum(np.log(max(t2, 1e-12)) for t2 in tables)
        if not self.tables:
            return float(total)

        of_tables = np.array([shares[f"tables.{name}"] for name in self.tables])
        return float(total - EVEN * np.log(of_tables / of_tables.sum() * len(of_tables)).mean())


def allocate(problem: AllocationProblem, fixed: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the share of every component; they sum to 1. Links whose share is below LEAST have none.

    Free shares are a softmax of logits, scaled to what the stated shares leave, and are found by the simplex method of
    Nelder and Mead from three starts. Links below LEAST get 0, and the others are scaled so that the sum remains.

    Parameters
    ----------
    problem : AllocationProblem
    fixed : mapping of str to float, optional
        Shares that the job states.
    """
    stated = dict(fixed or {})
    names = [name for name in problem.names if name not in stated]
    free_share = 1 - sum(stated.values())

    def shares(logits: Floats) -> dict[str, float]:
        weights = np.exp(np.clip(logits - logits.max(initial=-np.inf), LEAST_LOG, 0))
        return stated | dict(zip(names, (free_share * weights / weights.sum()).tolist(), strict=True))

    if not names:
        return stated

    starts = [np.array([0.0 if name.startswith("tables") else low for name in names]) for low in (-4.0, -1.5, 0.0)]
    options = {"maxiter": STEPS, "maxfev": STEPS, "xatol": 0.01, "fatol": 1e-5, "adaptive": True}
    searches = [
        optimize.minimize(lambda x: problem.objective(shares(x)), start, method="Nelder-Mead", options=options)
        for start in starts
    ]
    best = shares(min(searches, key=lambda search: float(search.fun)).x)
    none = [name for name in names if name.startswith("links") and best[name] < LEAST]
    free_sum = sum(best[name] for name in names if name not in none)

    return {
        name: 0.0 if name in none else share * (free_share / free_sum if name in names else 1.0)
        for name, share in best.items()
    }


CENTRE, SPREAD = 0.6, 0.8  # factor of the scales before data, and their log-spread
QUANTILES = np.array([0.1, 0.3, 0.5, 0.7, 0.9])  # nodes of the mean over the distribution of a scale
ROWS = 2000  # of a side before data, in which all kinds of rows are about equally frequent
FRACTIONS = np.geomspace(1e-3, 1.0, 13)  # of the budget of the job
REFERENCE = 0.2  # fraction for which the division over the sums is planned


def even_side(sizes: tuple[int, ...]) -> Side:
    """Return rows in which all kinds are about equally frequent."""
    points = PublicStream("plan", "rows").uniforms(ROWS * len(sizes)).reshape(ROWS, -1)
    return Side.made((points * np.array(sizes)).astype(np.int64), sizes)


@dataclass(frozen=True, eq=False)
class NoisySums:
    """Noisy sums over links, or over the rows of a table, with the variance of their noise.

    Attributes
    ----------
    values : ndarray
    variance : float
    """

    values: Floats
    variance: float


@dataclass(frozen=True, eq=False)
class LinkStrength:
    """Distributions of the scales of departures.

    Attributes
    ----------
    ones, pairs : ndarray, shape (scales,)
        Probabilities of the scales in `link_estimation.SCALES` for 1-way sums and for pairs.
    """

    ones: Floats
    pairs: Floats

    @classmethod
    def prior(cls) -> LinkStrength:
        return cls.of((), ())

    @classmethod
    def of(cls, ones: Sequence[ShrinkageBlock], pairs: Sequence[ShrinkageBlock]) -> LinkStrength:
        """Return the posterior after the departures of blocks of columns."""
        centres = CENTRE * np.exp(np.log(PRIORS).mean(axis=0))
        return cls(*(_posterior(blocks, float(centre)) for blocks, centre in zip((ones, pairs), centres, strict=True)))

    @property
    def scales(self) -> tuple[float, float]:
        """Posterior means of s₁ and s₂."""
        return float(self.ones @ SCALES), float(self.pairs @ SCALES)

    def departures(self, problem: LinkProblem, amount: float, unit: float) -> tuple[Floats, Floats]:
        """Return ascending squared μ of a link and its expected departures, as total variation.

        The first departure is that of random links.

        Parameters
        ----------
        problem : LinkProblem
        amount : float
            Squared μ of the job.
        unit : float
            Squared μ of a link for which `problem.amount` would be 1.
        """
        shares = plan_shares(replace(problem, amount=amount * REFERENCE / unit))
        u = Expected.random(problem.u, shares.u, problem.links)
        v = Expected.random(problem.v, shares.v, problem.links)
        count = cross_count(len(problem.u.sizes), len(problem.v.sizes))
        objectives = [self._departure(problem, (u, v), shares, fraction / REFERENCE) for fraction in (0.0, *FRACTIONS)]
        errors = ABSOLUTE * np.array(objectives) / problem.links / count
        return amount * np.array([FRACTIONS[0] / 2, *FRACTIONS]), np.minimum.accumulate(errors)

    def _departure(self, problem: LinkProblem, sides: tuple[Expected, Expected], shares: Shares, scale: float) -> float:
        """Return the expected objective for noise precisions multiplied by `scale`, over quantiles of both scales.

        The noise precisions of the planned division (`shares.precisions`: of the sums of u, of v and of pairs) are
        multiplied by `scale`, the budget relative to the planned one. Sums of a second side whose ends are known, as
        those of children (`problem.known`), have the precision KNOWN, in effect no noise. `ones` and `pairs` are
        distributions over the scales s₁ and s₂; the objective is averaged over all pairs of their quantiles.
        """
        u, v, of_pairs = (precision * scale for precision in shares.precisions)
        precisions = u, KNOWN if problem.known else v, of_pairs
        nodes = product(_quantiles(self.ones), _quantiles(self.pairs))
        return float(np.mean([objective(*sides, precisions, scales) for scales in nodes]))


def _posterior(blocks: Sequence[ShrinkageBlock], centre: float) -> Floats:
    """Return the distribution over the scales; before data its logarithm is normal around `centre`."""
    logs = -0.5 * (np.log(SCALES / centre) / SPREAD) ** 2
    logs += scale_evidence(blocks) if blocks else 0.0
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def _quantiles(weights: Floats) -> list[float]:
    """Return quantiles of a distribution over the scales.

    The distribution function is taken in the middle of each scale's probability and interpolated in the logarithm.
    """
    return np.exp(np.interp(QUANTILES, np.cumsum(weights) - weights / 2, np.log(SCALES))).tolist()


def one_way_blocks(side: Expected, sums: NoisySums, mean: NoisySums) -> list[ShrinkageBlock]:
    """Return the departures of 1-way sums over links from m times the mean over the rows of the table.

    The variance of the departure is that of the sums plus m² times that of the mean, whose noises are independent.
    """
    variance = sums.variance + side.links**2 * mean.variance
    return _blocks(sums.values - side.links * mean.values, side.curvature, side.carried, side.blocks, variance)


def pair_blocks(u: Expected, v: Expected, sums: tuple[NoisySums, NoisySums, NoisySums]) -> list[ShrinkageBlock]:
    """Return the departures of the cross sums of u, v and both from those of random links."""
    sums_u, sums_v, sums_of_pairs = sums
    curvature, carried = (
        np.multiply.outer(*pair) / u.links for pair in ((u.curvature, v.curvature), (u.carried, v.carried))
    )
    kinds = u.blocks[:, None] * (v.blocks.max() + 1) + v.blocks
    departed = sums_of_pairs.values - np.outer(sums_u.values, sums_v.values) / u.links
    return _blocks(departed, curvature, carried, kinds, sums_of_pairs.variance)


def _blocks(
    departed: Floats, curvature: Floats, carried: Floats, kinds: Integers, variance: float
) -> list[ShrinkageBlock]:
    """Return the parts of a table by kind of cell, each with its departures, curvatures and the noise's deviation.

    `departed` are the departures of the cells, `kinds` the number of the kind of each cell, `variance` that of the
    noise.
    """
    return [
        ShrinkageBlock(
            departed=departed[kinds == i],
            curvature=curvature[kinds == i],
            carried=carried[kinds == i],
            sigma=variance**0.5,
        )
        for i in np.unique(kinds)
    ]
