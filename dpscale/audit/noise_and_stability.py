"""The law of the noise that was really added: its scale, its shape, its lattice, its low bits, its independence.

Input is noise in integers as floats (value − exact), with the variance that it should have. With 1,000 draws or more a
scale of 0.7 or 1.3 has p < 1e-9, while the right one fails in 1 of 1,000 seeds: the chi-square statistic of n draws is
off by 0.51 n or 0.69 n, at a spread of sqrt(2 n).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from math import comb, floor, isqrt

import numpy as np
from numpy.typing import NDArray

from dpscale.audit.releases import Case, one_more
from dpscale.base.arrays import Floats, Integers
from dpscale.privacy.draws import SMOOTHING, Draw, LaplaceDraw

LEVEL = 1e-3  # the chance that one honest test is called a fault
LOW_BITS = 4
SEEN = 2.0**40  # beyond, a measurement's float may have lost its last bits


def scale_p(noise: Floats, deviations: Floats, pure: bool = False) -> float:
    """Two-sided p at these standard deviations, of a statistic that is chi-square under the law.

    n squares of normals have n degrees of freedom; twice n absolute values, in units of Laplace's scale, have 2n.
    """
    from scipy import stats

    absolute = np.abs(noise / deviations)
    statistic, n = (2 * math.sqrt(2) * absolute.sum(), 2 * len(noise)) if pure else ((absolute**2).sum(), len(noise))
    return float(2 * min(stats.chi2.sf(statistic, n), stats.chi2.cdf(statistic, n)))


def shape_p(noise: Floats, deviations: Floats, pure: bool = False) -> float:
    """p of Kolmogorov and Smirnov against the law on the reals, which noise of thousands of steps must follow."""
    from scipy import stats

    scaled = noise / deviations
    return float((stats.kstest(scaled * math.sqrt(2), "laplace") if pure else stats.kstest(scaled, "norm")).pvalue)


def low_bits_p(noise: Floats) -> float:
    """p that the last bits of the integers are uniform; 0 where there is a value off the lattice."""
    from scipy import stats

    if not len(noise):
        return 1.0
    if not (noise == np.rint(noise)).all():
        return 0.0
    last = noise.astype(np.int64) & ((1 << LOW_BITS) - 1)
    return float(stats.chisquare(np.bincount(last, minlength=1 << LOW_BITS)).pvalue)


def shared(parts: Sequence[Floats]) -> bool:
    """Whether two measurements share a stream: the same leading noise, up to their scales."""
    heads = [part[:2] / np.abs(part[:2]).max() for part in parts if len(part) > 1]
    return any(np.allclose(one, other, rtol=0, atol=1e-3) for i, one in enumerate(heads) for other in heads[:i])


def faults(parts: Sequence[Floats], deviations: Sequence[float], pure: bool = False) -> list[str]:
    """What is wrong with the noise of several measurements, each of its own standard deviation."""
    noise = np.concatenate(parts)
    scales = np.concatenate([np.full(len(part), deviation) for part, deviation in zip(parts, deviations, strict=True)])
    tests = {
        "scale": scale_p(noise, scales, pure),
        "shape": shape_p(noise, scales, pure),
        "not on the integer lattice": low_bits_p(noise[scales < SEEN]),
    }
    failed = [name for name, p in tests.items() if p < LEVEL]
    return failed + (["shared by two measurements"] if shared(parts) else [])


Tables = Iterable[Integers]


def distance(case: Case, one: Integers, other: Integers) -> Fraction:
    """Σ over blocks of |K x − K x'|² m² / (v − 8), or of |K x − K x'|₁ m / s, exactly."""
    moved = case.release(one, seed=0) - case.release(other, seed=0)
    total, start = Fraction(0), 0
    for block, draw in zip(case.plan.blocks, case.schedule.draws, strict=True):
        part = moved[start : start + math.prod(block.rows)]
        start += len(part)
        if not (part == np.rint(part)).all():
            raise ValueError("the measured difference is no integer")
        total += _moved([int(value) for value in part], draw)
    return total


def _moved(part: list[int], draw: Draw) -> Fraction:
    if isinstance(draw, LaplaceDraw):
        return Fraction(sum(map(abs, part)), draw.scale)
    return Fraction(sum(value**2 for value in part), draw.variance - SMOOTHING)


def worst_record(case: Case, counts: Integers) -> Fraction:
    """The largest distance over every record that may be added to (or, turned round, removed from) a table."""
    return max(distance(case, counts, more) for _, more in one_more(counts))


def worst_neighbour(case: Case, counts: Integers, neighbours: Tables) -> Fraction | float:
    """The same over given neighbours; inf where one has another shape, as a domain read off the data makes it."""
    worst = Fraction(0)
    for other in neighbours:
        if other.shape != counts.shape:
            return math.inf
        worst = max(worst, distance(case, counts, other))
    return worst


def without_each(rows: NDArray, units: list[int], count: Callable[[NDArray, list[int]], Integers]) -> list[Integers]:
    """The counts of a table without each of its privacy units in turn."""
    counts = []
    for gone in dict.fromkeys(units):
        kept = [index for index, unit in enumerate(units) if unit != gone]
        counts.append(count(rows[kept], [units[index] for index in kept]))
    return counts


SCALE, MOST = 1 << 12, 512


@lru_cache(maxsize=64)
def reaches(size: int) -> dict[str, int]:
    """The largest squared norm of a column of each strategy on so many cells, by what records know the strategy by."""
    if not 0 < size <= MOST:
        return {}
    matrices = [_matrix(size, ends) for ends in (1, 2)]
    return {_named(one): max(sum(row[cell] ** 2 for row in one) for cell in range(size)) for one in matrices}


def _matrix(size: int, ends: int) -> list[list[int]]:
    down = [floor(Fraction(SCALE * comb(2 * k, k), 4**k) + Fraction(1, 2)) for k in range(size)]
    triangle = [[down[i - j] if i >= j else 0 for j in range(size)] for i in range(size)]
    rows = triangle + [row[::-1] for row in triangle[::-1]] * (ends - 1)
    squares = [sum(row[cell] ** 2 for row in rows) for cell in range(size)]
    alone = [isqrt(max(squares) - square) for square in squares]
    return rows + [[value if i == cell else 0 for i in range(size)] for cell, value in enumerate(alone) if value]


def _named(matrix: list[list[int]]) -> str:
    content = f"full({len(matrix[0])},)".encode() + np.array(matrix, dtype=np.int64).tobytes()
    return hashlib.sha256(hashlib.sha256(content).hexdigest().encode()).hexdigest()
