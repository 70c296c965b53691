"""Tests of the added noise (scale, shape, lattice, low bits, independence), and of how far a record moves measurements.

The tests use releases of a small table by the measuring code under audit. A release is the array of all numbers of one
plan, block after block, as `measure_block` returns them. The claim under test is that of the draws: its cost is the
squared Gaussian-DP mu of all draws, or their pure epsilon.

Input is integer noise as floats (value − exact) with its nominal variance. With at least 1,000 draws a scale of 0.7 or
1.3 has p < 1e-9, whereas the correct one fails for 1 of 1,000 seeds: the chi-square statistic of n draws is off by
0.51 n or 0.69 n, with a standard deviation of sqrt(2 n).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from dpscale.base.numerics import Floats, Integers, stats
from dpscale.counting import ExactMarginal
from dpscale.domain import Domain
from dpscale.measurement import measure_block
from dpscale.mechanisms import AUDITED, plan
from dpscale.plans.blocks import Block
from dpscale.plans.factor import Factor
from dpscale.plans.measurement_plan import Draws, plan_draws
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import GAUSSIAN, LAPLACE, SMOOTHING, Draw, LaplaceDraw
from dpscale.privacy.streams import seeded_secret
from dpscale.workload import MARGINAL, PREFIX, Workload

MECHANISMS = AUDITED
Measure = Callable[[Block, Draw, ExactMarginal, bytes, dict[str, Any]], Floats]


@dataclass(frozen=True)
class Case:
    """A plan with its noise and its claimed cost; correct unless a test plants a violation."""

    plan: Plan
    draws: Draws
    claimed: float
    measure: Measure = measure_block

    def release(self, counts: Integers, seed: int) -> Floats:
        """Return all numbers of one release of a table, given as counts over the whole domain."""
        marginal, secret = ExactMarginal(self.plan.domain.names, counts), seeded_secret(seed)
        return np.concatenate([values.reshape(-1) for values in self._blocks(marginal, secret)])

    def _blocks(self, marginal: ExactMarginal, secret: bytes) -> Iterator[Floats]:
        for index, (block, draw) in enumerate(zip(self.plan.blocks, self.draws, strict=True)):
            yield self.measure(block, draw, marginal, secret, record_of(index, block, draw))

    @property
    def pure(self) -> bool:
        """Whether the claim is a pure epsilon."""
        return self.plan.noise == LAPLACE

    def exact(self, counts: Integers) -> Floats:
        """Return the numbers before noise from explicit matrices: slow, and independent of the measuring code.

        `others` are the axes of the table that a block sums out. The numbers are multiplied by the `multiplier` of the
        draw, as in a release.
        """
        parts = []
        for block, draw in zip(self.plan.blocks, self.draws, strict=True):
            others = tuple(i for i, name in enumerate(self.plan.domain.names) if name not in block.attributes)
            parts.append(applied(block.factors, counts.sum(axis=others)) * draw.multiplier)
        return np.concatenate(parts)

    @property
    def deviations(self) -> Floats:
        """Standard deviation of each number according to the draws."""
        parts = zip(self.plan.blocks, self.draws, strict=True)
        return np.concatenate([np.full(int(np.prod(b.rows, dtype=int)), d.variance**0.5) for b, d in parts])


def record_of(index: int, block: Block, draw: Draw) -> dict[str, Any]:
    """Return a record that is unique to a measurement of a case."""
    return {"index": index, "attributes": list(block.attributes), **draw.noise_spec}


def applied(factors: tuple[Factor, ...], counts: Integers) -> Floats:
    """Return a strategy as one explicit integer matrix, times the counts of its attributes.

    The matrix is the Kronecker product of the explicit factors. Objects of Python avoid an overflow of the integers.
    """
    matrix = np.ones((1, 1), dtype=np.int64)
    for factor in factors:
        matrix = np.kron(matrix, factor.explicit())
    return np.asarray(matrix.astype(object) @ counts.reshape(-1), dtype=np.float64)


@cache
def case_of(
    mechanism: str,
    sizes: tuple[int, ...] = (2, 3),
    cost: float = 1.0,
    rows_per_unit: int = 1,
    noise: str = GAUSSIAN,
) -> Case:
    """Return a correct case: prefixes and marginals of a small domain; for a single attribute only the total.

    For one number with Laplace noise an event of probability ½ attains the claim, so attacks have power.
    """
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    workload = Workload(domain)
    if len(sizes) > 1:
        workload = workload.add(PREFIX.name, degree=2).add(MARGINAL.name, degree=1)
    else:
        workload = workload.add(MARGINAL.name, degree=0)
    measurement_plan = plan(workload, mechanism, noise=noise)
    draws = plan_draws(measurement_plan, cost, rows_per_unit)
    return Case(measurement_plan, draws, float(draws.amount))


def small_table(domain: Domain) -> Integers:
    """Return a fixed table with a few rows in every cell."""
    shape = domain.shape(domain.names)
    return np.arange(3, 3 + int(np.prod(shape)), dtype=np.int64).reshape(shape)


def one_more(counts: Integers) -> Iterator[tuple[tuple[int, ...], Integers]]:
    """Yield every table with one additional record, and the cell of that record."""
    for cell in product(*map(range, counts.shape)):
        more = counts.copy()
        more[cell] += 1
        yield cell, more


LEVEL = 1e-3  # false-positive rate of one test
LOW_BITS = 4  # last bits of an integer whose frequencies are compared
EXACT_BELOW = 2.0**40  # above this deviation the last bits of a measurement's float may be lost


def scale_p(noise: Floats, deviations: Floats, pure: bool = False) -> float:
    """Return the two-sided p-value of a statistic that has a chi-square distribution at these standard deviations.

    n squared normals have n degrees of freedom; twice n absolute values, in units of Laplace's scale, have 2n.
    """
    absolute = np.abs(noise / deviations)
    statistic, n = (2 * math.sqrt(2) * absolute.sum(), 2 * len(noise)) if pure else ((absolute**2).sum(), len(noise))
    return float(2 * min(stats.chi2.sf(statistic, n), stats.chi2.cdf(statistic, n)))


def shape_p(noise: Floats, deviations: Floats, pure: bool = False) -> float:
    """Return the Kolmogorov-Smirnov p-value against the continuous law, valid for noise of thousands of steps."""
    scaled = noise / deviations
    return float((stats.kstest(scaled * math.sqrt(2), "laplace") if pure else stats.kstest(scaled, "norm")).pvalue)


def low_bits_p(noise: Floats) -> float:
    """Return the p-value that the last bits of the integers are uniform; 0 if a value is not an integer.

    The LOW_BITS last bits of each integer are compared with equal frequencies by a χ² test. Without values the p-value
    is 1.
    """
    if not len(noise):
        return 1.0
    if not (noise == np.rint(noise)).all():
        return 0.0
    last = noise.astype(np.int64) & ((1 << LOW_BITS) - 1)
    return float(stats.chisquare(np.bincount(last, minlength=1 << LOW_BITS)).pvalue)


def shared(parts: Sequence[Floats]) -> bool:
    """Return whether two measurements have the same stream: equal leading noise up to their scales."""
    heads = [part[:2] / np.abs(part[:2]).max() for part in parts if len(part) > 1]
    return any(np.allclose(one, other, rtol=0, atol=1e-3) for i, one in enumerate(heads) for other in heads[:i])


def faults(parts: Sequence[Floats], deviations: Sequence[float], pure: bool = False) -> list[str]:
    """Return the failed tests for the noise of several measurements, each with its standard deviation.

    `parts` has the noise of each measurement. Only noise below EXACT_BELOW is an exact integer as a float.
    """
    noise = np.concatenate(parts)
    scales = np.concatenate([np.full(len(part), deviation) for part, deviation in zip(parts, deviations, strict=True)])
    tests = {
        "scale": scale_p(noise, scales, pure),
        "shape": shape_p(noise, scales, pure),
        "not on the integer lattice": low_bits_p(noise[scales < EXACT_BELOW]),
    }
    failed = [name for name, p in tests.items() if p < LEVEL]
    return failed + (["shared by two measurements"] if shared(parts) else [])


Tables = Iterable[Integers]


def distance(case: Case, first: Integers, second: Integers) -> Fraction:
    """Return Σ over blocks of |K x − K x'|² m² / (v − 8), or of |K x − K x'|₁ m / s, exactly.

    x and x' are the counts of the two tables, K the strategy of a block, m its multiplier, v or s its noise's variance
    or scale; 8 of the variance is for smoothing. Under one seed the noise of two releases cancels.
    """
    moved = case.release(first, seed=0) - case.release(second, seed=0)
    total, start = Fraction(0), 0
    for block, draw in zip(case.plan.blocks, case.draws, strict=True):
        part = moved[start : start + math.prod(block.rows)]
        start += len(part)
        if not (part == np.rint(part)).all():
            raise ValueError("the measured difference is not an integer")
        total += _moved([int(value) for value in part], draw)
    return total


def _moved(part: list[int], draw: Draw) -> Fraction:
    if isinstance(draw, LaplaceDraw):
        return Fraction(sum(map(abs, part)), draw.scale)
    return Fraction(sum(value**2 for value in part), draw.variance - SMOOTHING)


def worst_record(case: Case, counts: Integers) -> Fraction:
    """Return the largest distance over every record added to a table; removal of a record is symmetric."""
    return max(distance(case, counts, more) for _, more in one_more(counts))
