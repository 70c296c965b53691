"""Strength of the association across a link: distributions over scales, and the error that each budget leaves.

The departure of linked rows from random links has relative scales s₁ for 1-way sums and s₂ for sums over pairs of
attributes. Before data both are log-normal, around CENTRE times the middle of `budget_shares.PRIORS`: a share for a
link without an association costs the tables more than a smaller share costs a link with one. A first measurement has
noisy sums S_u = Σ φ, S_v = Σ ψ and S_uv = Σ φψᵀ over m links, and the means of φ and ψ over the rows of both tables.
Under random links S_u has the expectation m φ̄, and S_uv has Σφ Σψᵀ / m; the likelihood of the departures for every
scale updates the distributions, with blocks of columns that have no departure (`link_estimation.scale_evidence`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from dpscale.base.numerics import Floats, Integers
from dpscale.privacy.streams import PublicStream
from dpscale.relational.allocation import ABSOLUTE
from dpscale.relational.budget_shares import PRIORS, Expected, LinkProblem, Shares, objective, plan_shares
from dpscale.relational.features import Side
from dpscale.relational.link_estimation import SCALES, ShrinkageBlock, scale_evidence
from dpscale.relational.rounding import cross_count

CENTRE, SPREAD = 0.6, 0.8  # factor of the scales before data, and their log-spread
QUANTILES = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
ROWS = 2000  # of a side before data, in which all kinds of rows are about equally frequent
FRACTIONS = np.geomspace(1e-3, 1.0, 13)  # of the budget of the job
REFERENCE = 0.2  # fraction for which the division over the sums is planned
KNOWN = 1e12


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
        u, v = (Expected.random(*one, problem.links) for one in ((problem.u, shares.u), (problem.v, shares.v)))
        count = cross_count(len(problem.u.sizes), len(problem.v.sizes))
        found = [self._departure(problem, (u, v), shares, fraction / REFERENCE) for fraction in (0.0, *FRACTIONS)]
        errors = ABSOLUTE * np.array(found) / problem.links / count
        return amount * np.array([FRACTIONS[0] / 2, *FRACTIONS]), np.minimum.accumulate(errors)

    def _departure(self, problem: LinkProblem, sides: tuple[Expected, Expected], shares: Shares, scale: float) -> float:
        """Return the expected objective for noise precisions multiplied by `scale`, over quantiles of both scales."""
        u, v, both = (precision * scale for precision in shares.precisions)
        precisions = u, KNOWN if problem.known else v, both
        nodes = product(_quantiles(self.ones), _quantiles(self.pairs))
        return float(np.mean([objective(*sides, precisions, scales) for scales in nodes]))


def _posterior(blocks: Sequence[ShrinkageBlock], centre: float) -> Floats:
    logs = -0.5 * (np.log(SCALES / centre) / SPREAD) ** 2
    logs += scale_evidence(blocks) if blocks else 0.0
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def _quantiles(weights: Floats) -> list[float]:
    """Return quantiles of a distribution over the scales."""
    return np.exp(np.interp(QUANTILES, np.cumsum(weights) - weights / 2, np.log(SCALES))).tolist()


def one_way_blocks(side: Expected, sums: NoisySums, mean: NoisySums) -> list[ShrinkageBlock]:
    """Return the departures of 1-way sums over links from m times the mean over the rows of the table."""
    variance = sums.variance + side.links**2 * mean.variance
    return _blocks(sums.values - side.links * mean.values, side.curvature, side.carried, side.blocks, variance)


def pair_blocks(u: Expected, v: Expected, sums: tuple[NoisySums, NoisySums, NoisySums]) -> list[ShrinkageBlock]:
    """Return the departures of the cross sums of u, v and both from those of random links."""
    one, two, both = sums
    curvature, carried = (
        np.multiply.outer(*pair) / u.links for pair in ((u.curvature, v.curvature), (u.carried, v.carried))
    )
    kinds = u.blocks[:, None] * (v.blocks.max() + 1) + v.blocks
    return _blocks(both.values - np.outer(one.values, two.values) / u.links, curvature, carried, kinds, both.variance)


def _blocks(
    departed: Floats, curvature: Floats, carried: Floats, kinds: Integers, variance: float
) -> list[ShrinkageBlock]:
    return [
        ShrinkageBlock(departed[kinds == i], curvature[kinds == i], carried[kinds == i], variance**0.5)
        for i in np.unique(kinds)
    ]
