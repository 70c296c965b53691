"""Quantiles beyond the last narrow bin, from a model of the tail.

The last bin with records often reaches a public end far beyond the records. Uniform records in it would give quantiles
of the size of that end. Instead, with the share b(x) of records above x and t = -ln b, the logarithm of x is a line in
t^λ beyond the median: λ = 1 is a Pareto tail, and λ near 1/3 fits a lognormal one. Slope and λ (in POWERS) are fitted
to the edges of the bins before, weighted by their errors. The line begins at the lower edge of the bin.

The interval is the union, over all λ whose fit is at most width² worse than the best, of the estimates with `width`
standard errors. These contain the noise of b, and the deviation of the records from the model: a share b of N records
deviates by sqrt(b/N). The interval holds for tails of this form.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.numerics import Floats, Integers

WIDE = 4.0  # ratio of the ends of a bin
FROM = 0.5  # largest share of the records above an edge that is fitted
LEAST_EDGES, MOST_EDGES = 3, 64
POWERS = np.linspace(0.3, 1.0, 15)
MODEL_ERROR = 0.01  # of t at every edge


def is_wide(edges: Floats, cell: int) -> bool:
    """Return whether the ends of a bin above 0 differ by more than the ratio WIDE."""
    return bool(0 < WIDE * edges[cell] < edges[cell + 1])


def tail_edges(edges: Floats, above: Floats, cell: int) -> Integers:
    """Return the edges to which the tail of a bin is fitted, the last one that of the bin.

    Parameters
    ----------
    edges : ndarray, shape (bins + 1,)
    above : ndarray, shape (bins + 1,)
        Share of the records above each edge, decreasing.
    cell : int
        Bin of the quantile.
    """
    usable = np.flatnonzero((above[: cell + 1] <= FROM) & (above[: cell + 1] > 0) & (edges[: cell + 1] > 0))
    places = np.linspace(0, len(usable) - 1, min(len(usable), MOST_EDGES)).astype(np.int64)
    return np.asarray(usable[places])


def tail_quantile(edges: Floats, above: Floats, error: float, records: float, wanted: float, width: float) -> Floats:
    """Return the value above which a share of the records lies, and the ends of its interval; nan without a tail.

    Parameters
    ----------
    edges, above : ndarray, shape (m,)
        Edges of bins, ascending, the last one that of the quantile's bin; shares of the records above them.
    error : float
        Standard error of these shares.
    records : float
        Number of records.
    wanted : float
        Share of the records, above 0 and at most the last one of `above`.
    width : float
        Standard errors of the interval.
    """
    if len(edges) < LEAST_EDGES or wanted <= 0:
        return np.full(3, np.nan)
    x, t = np.log(edges), -np.log(above)
    errors = np.sqrt((error / above) ** 2 + 1 / (records * above) + MODEL_ERROR**2)
    beyond = np.sqrt((error / above[-1]) ** 2 + max(1 / wanted - 1 / above[-1], 0) / records)
    fits = np.array([_line(x, t, float(beyond), errors, power, -np.log(wanted)) for power in POWERS])
    misfit, estimate, deviation = fits.T
    best = int(misfit.argmin())
    likely = misfit <= misfit[best] + width**2
    low, high = estimate - width * deviation, estimate + width * deviation
    return np.exp(np.array([estimate[best], low[likely].min(), high[likely].max()]))


def _line(
    x: Floats, t: Floats, error: float, errors: Floats, power: float, wanted: float
) -> tuple[float, float, float]:
    """Return the weighted misfit of a line in t^power, its value beyond the last edge, and the standard error."""
    scaled, weights = t**power, 1 / errors**2
    centred = scaled - np.average(scaled, weights=weights)
    precision = float(weights @ centred**2)
    slope = float(weights * centred @ x) / precision
    rest = x - np.average(x, weights=weights) - slope * centred
    reach = wanted**power - scaled[-1]
    local = slope * power * t ** (power - 1)
    misfit = float(weights @ (rest / np.maximum(np.abs(local), 1e-9)) ** 2)
    of_slope = np.sqrt(weights @ (centred * local) ** 2) / precision
    return (
        misfit,
        x[-1] + slope * reach,
        float(np.hypot(of_slope * reach, slope * power * wanted ** (power - 1) * error)),
    )
