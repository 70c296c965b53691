"""Fit of the weights of `error_calibration` to tables with known counts, as `intervals.py` uses it.

The loss of a table, ε, kind of query and degree is the distance of log (root mean square standard error / root mean
square error) from a small value, and a penalty of coverage below 94 % or above 98.5 %. Each of these cases counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from scipy.optimize import minimize

from dpscale.reconstruction.departures import Departures
from dpscale.reconstruction.error_calibration import Calibration, SetKind, weighted

TARGET, TOLERANCE = 0.03, 0.15  # of the log ratio
LEAST_COVERAGE, MOST_COVERAGE = 0.94, 0.985
SOFT = 0.1  # softness of the limit of an interval, in standard errors
RIDGE, STEPS = 1e-3, 40
START = Calibration(1.5, 1.5, 1.5, 1.5, 1.0, 1.0, 0.5, 1.0, 0.5, 0.5, 0.01)  # round numbers


@dataclass(frozen=True, eq=False)
class Sample:
    """Queries of one kind over one set of a release.

    Attributes
    ----------
    table : str
    epsilon : float
    kind : str
    set_kind : SetKind
    departures : Departures
    widening : float
    parts : ndarray, shape (components, queries)
    squared : ndarray
        Squared errors.
    """

    table: str
    epsilon: float
    kind: str
    set_kind: SetKind
    departures: Departures
    widening: float
    parts: np.ndarray
    squared: np.ndarray


class _Fit:
    """Samples as flat arrays; the logarithms of the weights are the parameters."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        sizes = np.array([one.squared.size for one in samples])
        self.starts, self.sizes = np.cumsum(sizes) - sizes, sizes
        self.owner = np.repeat(np.arange(len(samples)), sizes)
        self.parts = np.concatenate([one.parts for one in samples], axis=1)
        self.squared = np.concatenate([one.squared for one in samples])
        keys = [(one.set_kind, one.departures, one.widening) for one in samples]
        self.keys = list(dict.fromkeys(keys))
        places = {key: place for place, key in enumerate(self.keys)}
        self.key_of = np.array([places[key] for key in keys])
        cases = [(one.table, one.epsilon, one.kind, one.set_kind.degree) for one in samples]
        numbers = {case: place for place, case in enumerate(dict.fromkeys(cases))}
        self.case_of, self.cases = np.array([numbers[case] for case in cases]), len(numbers)

    def variances(self, parameters: np.ndarray) -> np.ndarray:
        calibration = calibration_of(parameters)
        weights = np.array([calibration.weights(*key) for key in self.keys])[self.key_of]
        return weighted(list(weights[self.owner].T), self.parts)

    def loss(self, parameters: np.ndarray) -> float:
        variances = self.variances(parameters)
        scaled = np.sqrt(self.squared / variances)
        inside = 1 / (1 + np.exp(np.minimum((scaled - 1.96) / SOFT, 50)))
        coverage, stated, true = (self._by_case(values) for values in (inside, variances, self.squared))
        away = np.abs(np.clip(np.log(stated / np.maximum(true, 1e-9)) / 2, -1.5, 1.5) - TARGET)
        ratio = np.where(away < TOLERANCE, away**2 / (2 * TOLERANCE), away - TOLERANCE / 2)
        low = 0.04 * np.logaddexp(0, (LEAST_COVERAGE - coverage) / 0.01)
        high = 0.032 * np.logaddexp(0, (coverage - MOST_COVERAGE) / 0.004)
        ridge = RIDGE * float(((parameters - parameters_of(START)) ** 2).sum())
        return float((ratio + low + high).mean()) + ridge

    def _by_case(self, values: np.ndarray) -> np.ndarray:
        """Return the means over sets of the means over queries, for every case."""
        means = np.add.reduceat(values, self.starts) / self.sizes
        return np.bincount(self.case_of, means, self.cases) / np.bincount(self.case_of, minlength=self.cases)


SLOPES = (6, 8)  # places of the slopes, which are parameters themselves


def parameters_of(calibration: Calibration) -> np.ndarray:
    values = np.array(astuple(calibration))
    slopes = values[list(SLOPES)]
    logs = np.log(np.maximum(values, 1e-12))
    logs[list(SLOPES)] = slopes
    return logs


def calibration_of(parameters: np.ndarray) -> Calibration:
    values = np.exp(np.clip(parameters, -20, 20))
    values[list(SLOPES)] = parameters[list(SLOPES)]
    return Calibration(*(float(one) for one in values))


def fit(samples: Sequence[Sample]) -> Calibration:
    """Return the weights with the smallest mean loss over tables, ε, kinds of queries and degrees."""
    problem = _Fit(samples)
    found = minimize(problem.loss, parameters_of(START), method="L-BFGS-B", options={"maxiter": STEPS})
    return calibration_of(found.x)
