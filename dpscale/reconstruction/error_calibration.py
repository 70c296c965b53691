"""Variances of the answers of an adaptive release: components that follow from released values, and their weights.

The error of an answer has parts that no release shows completely, so their weights are calibrated on public tables,
whose exact counts are known (`python benchmarks/intervals.py`, which also reports every table with the weights that the
other tables give). Nothing about the data of a release enters the weights.

    variance = max(a s, h H) + f (U + U/(U/r² + 1)) + c C + d A + l r²

with the spread s of replicas, the variance U of records given the measured sets, the variance H of departures that
were measured but may be hidden by the noise, the squared change C of the estimate by a model of all pairs, the squared
association A that chains imply for a pair that was not measured, and the largest entry r of the query. The
overdispersion f grows with the departures of measured sets (`departures`). U counts at most twice for cells with few
records, where records that depart come together.

Simultaneous intervals have half widths q √(variance + k² r² V), V the mean of variance / r² over the set, because
unexpected records may be in any cell. The quantile q is Bonferroni's for the number n of queries that do not overlap,
times 1 + (d − 1)(0.18 + 0.06 log n) for d attributes, whose errors have a longer tail than normal ones if d > 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpscale.base.numerics import Floats
from dpscale.reconstruction.departures import Departures
from dpscale.reconstruction.joint_intervals import bonferroni


@dataclass(frozen=True)
class SetKind:
    """What the weights of a set depend on.

    Attributes
    ----------
    degree : int
        Number of attributes.
    measured : bool
        Whether the set itself was measured.
    covered : bool
        Whether all pairs inside were measured.
    """

    degree: int
    measured: bool
    covered: bool


@dataclass(frozen=True, eq=False)
class ErrorComponents:
    """Parts of the squared errors of the queries over one set, in the shape of the answers.

    Attributes
    ----------
    kind : SetKind
    spread : ndarray
        Mean squared distance of replicas.
    chance, hidden : ndarray
        U and H; 0 for single attributes.
    completion : ndarray
        C.
    association : ndarray
        A; 0 unless the set is a pair that was not measured.
    reach : ndarray or float
        r.
    """

    kind: SetKind
    spread: Floats
    chance: Floats
    hidden: Floats
    completion: Floats
    association: Floats
    reach: Floats | float

    def in_order(self) -> Iterator[Floats | float]:
        """Yield the components in the order of `Calibration.weights`."""
        scale = max(self.reach**2, TINY) if isinstance(self.reach, float) else np.maximum(self.reach**2, TINY)
        sparse = self.chance / (self.chance / scale + 1)
        yield from (self.spread, self.hidden, self.chance + sparse, self.completion, self.association, scale)


@dataclass(frozen=True)
class Calibration:
    """Weights of the components.

    Attributes
    ----------
    one_way, measured_pair, other_pair, larger : float
        a of single attributes, measured pairs, other pairs, and larger sets.
    hidden : float
        h.
    pair_level, pair_slope : float
        f = level · (pairs of the departures)^slope, unless the set is larger, its pairs were measured, and it was not.
    larger_level, larger_slope : float
        f of these sets, by the departures of larger sets.
    completion : float
        c.
    association : float
        d.
    """

    one_way: float
    measured_pair: float
    other_pair: float
    larger: float
    hidden: float
    pair_level: float
    pair_slope: float
    larger_level: float
    larger_slope: float
    completion: float
    association: float

    def weights(self, kind: SetKind, departures: Departures, widening: float) -> tuple[float, ...]:
        """Return the weights of `ErrorComponents.in_order` for a kind of sets.

        Parameters
        ----------
        kind : SetKind
        departures : Departures
        widening : float
            λ, at least 1.
        """
        if kind.degree == 1:
            return self.one_way, 0.0, 0.0, 0.0, 0.0, LEAST
        pair = self.pair_level * departures.pairs**self.pair_slope
        larger = self.larger_level * (1.0 if departures.larger is None else departures.larger) ** self.larger_slope
        level = larger if kind.degree > 2 and kind.covered and not kind.measured else pair
        spread = self.larger if kind.degree > 2 else self.measured_pair if kind.measured else self.other_pair
        return math.sqrt(widening) * spread, self.hidden, level, self.completion, self.association, LEAST

    def variances(self, parts: ErrorComponents, departures: Departures, widening: float) -> Floats:
        """Return the variances of the answers; the arguments are those of `weights`."""
        return weighted(self.weights(parts.kind, departures, widening), parts.in_order())


def weighted(weights: Sequence[Floats | float], parts: Iterable[Floats | float]) -> Floats:
    """Return the larger one of the first two components with their weights, plus the others."""
    spread, hidden, *others = zip(weights, parts, strict=True)
    total = np.maximum(spread[0] * spread[1], hidden[0] * hidden[1])
    for weight, part in others:
        if np.any(weight):
            total += weight * part
    return np.asarray(total)


LEAST, TINY = 0.05, 1e-12
EVEN = 0.7  # k
TAIL, LONGER = 0.18, 0.06  # longer tail of the errors of pairs, and twice this of sets of three
CALIBRATION = Calibration(1.29, 1.26, 1.67, 1.73, 0.66, 0.93, 0.71, 1.04, 0.31, 0.44, 0.0037)


def simultaneous_widths(errors: Floats, reach: Floats, degree: int, disjoint: float, level: float) -> Floats:
    """Return half widths of simultaneous intervals.

    Parameters
    ----------
    errors : ndarray
        Standard errors of all queries over a set.
    reach : ndarray
        Largest entry of each query, in the same shape.
    degree : int
        Number of attributes.
    disjoint : float
        Number of queries that do not overlap: their number times the total, by the sum of their answers.
    level : float
        Probability that all intervals cover.
    """
    count = min(max(disjoint, 1.0), float(errors.size))
    tail = (degree - 1) * (TAIL + LONGER * math.log(count))
    scaled = errors / np.maximum(reach, TINY)
    mean = np.sort(scaled**2, axis=None).mean()  # sorted, so that the order of the queries does not change the last bit
    return np.asarray(bonferroni(level, count) * (1 + tail) * reach * np.sqrt(scaled**2 + EVEN**2 * mean))
