"""What a model makes of the rows: whether it tells them from data, and what it learns of the data from rows alone.

Gradient boosting by scikit-learn, of one fixed setting, on bounded samples (`MOST` rows a table). It is imported here
and nowhere else, when it is asked for: pip install 'dpscale[compare]'.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats, Integers32
from dpscale.base.errors import JobError
from dpscale.domain.attribute import Attribute
from dpscale.evaluation.sides import is_text, size_of

Curve = tuple[list[float], list[float]]  # shares of false and of true alarms
MOST, LEAST, SHUFFLED = (
    50_000,
    50,
    10_000,
)  # rows a table; below it nothing is learnt; rows for what each attribute tells
NOMINAL = 255  # values of an attribute that are no numbers, at most; of more the order is taken
SEED, POINTS = 0, 200


def check_learner() -> None:
    """JobError where scikit-learn is missing."""
    try:
        import sklearn.ensemble  # noqa: F401
    except ImportError:
        raise JobError("scikit-learn", "not installed", "version 1.4 or later",
                       "pip install 'dpscale[compare]'") from None  # fmt: skip


@dataclass(frozen=True)
class Learnt:
    """How a classifier did on rows that it had not seen. `curve`: of two classes."""

    auc: float
    accuracy: float
    curve: Curve = field(default=([], []), repr=False)

    def to_dict(self) -> dict[str, float]:
        return {"auc": self.auc, "accuracy": self.accuracy}


class Model:
    """Gradient boosted trees over cells; numbers are in their order, a missing one is missing."""

    def __init__(self, attributes: Sequence[Attribute], codes: Integers32, labels: NDArray[Any]) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier

        self.attributes, self.classes = attributes, np.unique(labels)
        kinds = [_nominal(one) for one in attributes]
        self._trees = HistGradientBoostingClassifier(
            categorical_features=kinds, early_stopping=False, random_state=SEED
        )
        if len(self.classes) > 1:
            _quietly(self._trees.fit, self._features(codes), labels)

    def chances(self, codes: Integers32) -> Floats:
        """(rows, classes): of each class its probability."""
        if len(self.classes) < 2:
            return np.ones((len(codes), len(self.classes)))
        return np.asarray(_quietly(self._trees.predict_proba, self._features(codes)))

    def tested(self, codes: Integers32, labels: NDArray[Any]) -> Learnt:
        """Area under the curve (of several classes the mean of each against the others), and share of right guesses."""
        chances = self.chances(codes)
        right = float((self.classes[chances.argmax(1)] == labels).mean())
        curve = roc(chances[:, 1], labels == self.classes[1]) if len(self.classes) == 2 else ([], [])
        return Learnt(self.auc(chances, labels), right, curve)

    def auc(self, chances: Floats, labels: NDArray[Any]) -> float:
        known = {one: chances[:, index] for index, one in enumerate(self.classes.tolist())}
        present = np.unique(labels).tolist()
        if len(present) < 2:
            return nan
        asked = present[-1:] if len(present) == 2 else present
        return float(np.mean([auc(known.get(one, np.zeros(len(labels))), labels == one) for one in asked]))

    def _features(self, codes: Integers32) -> Floats:
        values = codes.astype(np.float64)
        for column, attribute in enumerate(self.attributes):
            if not _nominal(attribute):
                values[codes[:, column] >= attribute.listed, column] = nan
        return values


def _nominal(attribute: Attribute) -> bool:
    return attribute.kind == "categories" and is_text(attribute) and size_of(attribute) <= NOMINAL


def _quietly(function: Any, *arguments: Any) -> Any:
    """Without warnings, which may tell what is in the data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


def auc(scores: Floats, true: NDArray[np.bool_]) -> float:
    """The chance that a true one has a higher score than a false one, ties by half (Mann and Whitney)."""
    _, places, many = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(many) - (many - 1) / 2)[places]
    hits = int(true.sum())
    misses = len(true) - hits
    return float((ranks[true].sum() - hits * (hits + 1) / 2) / (hits * misses)) if hits and misses else nan


def roc(scores: Floats, true: NDArray[np.bool_]) -> Curve:
    """The curve at about POINTS places."""
    from sklearn.metrics import roc_curve

    alarms, hits, _ = _quietly(roc_curve, true, scores)
    at = np.unique(np.linspace(0, len(alarms) - 1, POINTS).astype(int))
    return alarms[at].tolist(), hits[at].tolist()
