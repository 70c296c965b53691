"""Figures of the answers of a workload part: estimates, standard errors and intervals.

A linear query has estimate ± w · standard error. A mean is c + h · t/n with the centre c and half h of the range
(`dpscale.workload.sums`). Its interval is Fieller's: all values c + h·r with (t − r n)² ≤ w² Var(t − r n), which is
bounded if n is more than w standard errors above 0. Where it is not, the group cannot be distinguished from an empty
one and the mean is missing. Its standard error is that of the first order, h √Var(t − r n)/n. A mean lies within c ± h,
since every value does. If a search has found the range, upper limits of the parts of a mean that are clipped
(`dpscale.discovery.ends`) extend its interval. A variance is h² (q/n − (t/n)²) with its error of the first order;
it lies within 0 … h².

References
----------
Fieller: Some problems in interval estimation, Journal of the Royal Statistical Society B 16 (1954).
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from dpscale.base.numerics import Flags, Floats
from dpscale.workload import WorkloadPart
from dpscale.workload.family import Statistic


class Figures(NamedTuple):
    """Estimates, standard errors and ends of intervals, one array each."""

    estimates: Floats
    errors: Floats
    low: Floats
    high: Floats


def figures_of(part: WorkloadPart, answers: Floats, errors: Floats, width: float) -> Figures:
    """Return the figures of a part from the answers of its linear queries.

    Parameters
    ----------
    part : WorkloadPart
    answers, errors : ndarray
        Answers of `part.linear` and their standard errors; for a statistic with a last axis of its queries.
    width : float
        Half width of an interval in standard errors.
    """
    if part.statistic is None:
        return Figures(estimates=answers, errors=errors, low=answers - width * errors, high=answers + width * errors)
    return FIGURES_OF[part.statistic.power](part.statistic, answers, errors, width)


def mean_figures(statistic: Statistic, answers: Floats, errors: Floats, width: float) -> Figures:
    """Return the figures of means; they are nan where n cannot be distinguished from 0.

    The last axis of `answers` has t, n and t + n, because the error of the sum gives the covariance.

    Parameters
    ----------
    statistic : Statistic
    answers, errors : ndarray, shape (…, 3)
        Estimates of t, n and t + n, and their standard errors.
    width : float
    """
    (t, n), moments, limit = np.moveaxis(answers[..., :2], -1, 0), covariances(errors, 2), statistic.limit
    first, second, covariance = moments[..., 0, 0], moments[..., 1, 1], moments[..., 0, 1]
    seen = n > width * np.sqrt(second)

    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.clip(t / n, -limit, limit)
        deviation = np.sqrt(np.maximum(first - 2 * share * covariance + share**2 * second, 0)) / n
        low, high = fieller((t, n), (first, second, covariance), width)

    return _seen(
        seen,
        statistic.centre + statistic.half_range * share,
        statistic.half_range * deviation,
        statistic.centre + statistic.half_range * np.clip(low, -limit, limit) - statistic.clipped[0],
        statistic.centre + statistic.half_range * np.clip(high, -limit, limit) + statistic.clipped[1],
    )


def variance_figures(statistic: Statistic, answers: Floats, errors: Floats, width: float) -> Figures:
    """Return the figures of variances; they are nan where n cannot be distinguished from 0.

    Per unit of the half range the variance is q/n − (t/n)². `slope` has n times its derivatives by q, t and n; `width`
    is the number of standard deviations of an interval.

    Parameters
    ----------
    statistic : Statistic
    answers, errors : ndarray, shape (…, 6)
        Estimates of q, t, n and the sums of two, and their standard errors.
    width : float
    """
    (q, t, n), moments = np.moveaxis(answers[..., :3], -1, 0), covariances(errors, 3)
    seen = n > width * np.sqrt(moments[..., 2, 2])
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, square = t / n, q / n
        slope = np.stack([np.ones_like(mean), -2 * mean, 2 * mean**2 - square], axis=-1)
        deviation = np.sqrt(np.maximum(np.einsum("...i,...ij,...j->...", slope, moments, slope), 0)) / n

    value, scale = square - mean**2, statistic.half_range**2
    low, high = (scale * np.clip(value + sign * width * deviation, 0, 1) for sign in (-1, 1))
    return _seen(seen, scale * np.clip(value, 0, 1), scale * deviation, low, high)


FIGURES_OF = {1: mean_figures, 2: variance_figures}  # by the power of the statistic


def _seen(seen: Flags, *figures: Floats) -> Figures:
    """Return figures where groups are distinguished from empty ones, else nan."""
    return Figures(*(np.where(seen, figure, np.nan) for figure in figures))


def covariances(errors: Floats, count: int) -> Floats:
    """Return the covariance matrices of the first answers from their standard errors and those of the sums of two.

    Parameters
    ----------
    errors : ndarray, shape (…, count (count + 1)/2)
    count : int

    Returns
    -------
    ndarray, shape (…, count, count)
    """
    squares = errors**2
    matrices = np.empty((*errors.shape[:-1], count, count))
    for i in range(count):
        matrices[..., i, i] = squares[..., i]
    for place, (i, j) in enumerate(combinations(range(count), 2), start=count):
        matrices[..., i, j] = matrices[..., j, i] = (squares[..., place] - squares[..., i] - squares[..., j]) / 2
    return matrices


def fieller(
    estimates: tuple[Floats, Floats], moments: tuple[Floats, Floats, Floats], width: float
) -> tuple[Floats, Floats]:
    """Return the ends of the intervals of t/n.

    Parameters
    ----------
    estimates : tuple of ndarray
        t and n.
    moments : tuple of ndarray
        Variance of t, variance of n, and their covariance.
    width : float
    """
    (t, n), (first, second, covariance) = estimates, moments
    square = n**2 - width**2 * second
    linear = t * n - width**2 * covariance
    constant = t**2 - width**2 * first
    root = np.sqrt(np.maximum(linear**2 - square * constant, 0.0))
    return (linear - root) / square, (linear + root) / square
