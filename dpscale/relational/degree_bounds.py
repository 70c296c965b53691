"""Noisy histogram of degrees before the bound: the share of links that a bound cuts, and a bound that cuts few.

Rows are counted by degree, one by one up to SINGLE, then in half octaves up to 2^19 links. A row is in one bucket, so a
unit of k rows changes the histogram by at most k in L2. The rows from a bucket upwards are the sum of its counts and
those above. The highest bucket from which this sum is above its noise by SURE standard deviations has all of these
rows, because a few rows by noise in a higher one would have most of the links. Within a bucket the degrees are uniform.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.numerics import Floats, Integers

MOST_BITS, SINGLE = 19, 16
SURE = 3.5
CUT = 0.05  # share of links that a proposed bound may cut
HALVES = sorted({*(1 << k for k in range(MOST_BITS + 1)), *(3 << k for k in range(MOST_BITS))})
STEPS = 64  # points of a bucket at which its degrees are


def bucket_starts() -> Integers:
    """Return the smallest degree of every bucket, ascending."""
    return np.array([*range(SINGLE), *(one for one in HALVES if one >= SINGLE)], np.int64)


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
    """Return the counts with those above the highest certain bucket in it."""
    above = np.cumsum(noisy[::-1])[::-1]
    sure = np.flatnonzero(above > SURE * sigma * np.sqrt(np.arange(len(noisy), 0, -1)))
    last = int(sure[-1]) if len(sure) else 0
    rows = np.zeros(len(noisy))
    rows[:last] = np.maximum(noisy[:last], 0)
    rows[last] = max(float(above[last]), 0.0)
    return rows


def proposed_bound(noisy: Floats, sigma: float) -> int | None:
    """Return the smallest of some bounds that cuts at most CUT of the links; None if the noise hides all degrees."""
    cuts = ((bound, cut_share(noisy, sigma, bound)) for bound in HALVES)
    return next((bound for bound, cut in cuts if cut is not None and cut <= CUT), None)
