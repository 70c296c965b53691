"""The law of the noise that was really added: its scale, its shape, its lattice, its low bits, its independence.

Input is noise in integers as floats (value − exact), with the variance that it should have. With 1,000 draws or more a
scale of 0.7 or 1.3 has p < 1e-9, while the right one fails in 1 of 1,000 seeds: the chi-square statistic of n draws is
off by 0.51 n or 0.69 n, at a spread of sqrt(2 n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpscale.base.arrays import Floats

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
