"""Noisy histogram of degrees before the bound: the share of links that a bound cuts, and a bound that cuts few.

Rows are counted in the buckets 0, 1, 2-3, 4-7, … up to 2^20 links. A row is in one bucket, so a unit of k rows changes
the histogram by at most k in L2. Counts below SURE standard deviations are set to 0, because a few rows by noise in a
high bucket would have most of the links. Within a bucket the degrees are uniform.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.numerics import Floats, Integers

MOST_BITS = 20
SURE = 4.0
CUT = 0.05  # share of links that a proposed bound may cut
CANDIDATES = sorted({1, *(1 << k for k in range(MOST_BITS + 1)), *(3 << k for k in range(MOST_BITS))})
STEPS = 64  # points of a bucket at which its degrees are


def bucket_starts() -> Integers:
    """Return the smallest degree of every bucket, ascending."""
    return np.array([0, *(1 << k for k in range(MOST_BITS + 1))], np.int64)


def degree_histogram(degrees: Integers) -> Integers:
    """Return the number of rows in every bucket."""
    starts = bucket_starts()
    places = np.searchsorted(starts, degrees, side="right") - 1
    return np.bincount(places, minlength=len(starts)).astype(np.int64)


def cut_share(noisy: Floats, sigma: float, bound: int) -> float:
    """Return the share of the links that a bound of the degrees cuts, between 0 and 1.

    Parameters
    ----------
    noisy : ndarray, shape (buckets,)
    sigma : float
        Standard deviation of the noise.
    bound : int
    """
    rows = np.where(noisy > SURE * sigma, noisy, 0.0)
    starts = bucket_starts()
    ends = np.append(starts[1:], 2 * starts[-1])
    inside = (np.arange(STEPS) + 0.5) / STEPS
    degrees = np.floor(starts[:, None] + inside * (ends - starts)[:, None])
    links = rows @ degrees.mean(axis=1)
    beyond = rows @ np.maximum(degrees - bound, 0).mean(axis=1)
    return float(beyond / links) if links > 0 else 0.0


def proposed_bound(noisy: Floats, sigma: float) -> int:
    """Return the smallest of some bounds that cuts at most CUT of the links."""
    return next(bound for bound in CANDIDATES if cut_share(noisy, sigma, bound) <= CUT or bound == CANDIDATES[-1])
