"""Classifiers that distinguish rows from data, and models that are trained on rows and tested on data.

The models are gradient boosting by scikit-learn with fixed settings, on bounded samples (`MOST` rows per table).
scikit-learn is imported only here and only when needed: pip install 'dpscale[compare]'.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

import numpy as np

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.base.numerics import Floats, Integers32, NDArray
from dpscale.domain.attribute import Attribute
from dpscale.evaluation.inputs import is_text, size_of
from dpscale.privacy.streams import PublicStream

Curve = tuple[list[float], list[float]]  # false and true positive rates
MOST, LEAST, SHUFFLED = (
    50_000,
    50,
    10_000,
)  # rows per table; fewest rows to learn from; rows for permutation importance
NOMINAL = 255  # most values of a nominal feature; larger attributes are ordered
SEED, POINTS = 0, 200  # random state of the models, so that a comparison repeats exactly; points of a ROC curve


def check_learner() -> None:
    """Raise JobError if scikit-learn is missing."""
    try:
        import sklearn.ensemble  # noqa: F401
    except ImportError:
        raise JobError(
            "scikit-learn", "not installed", "version 1.4 or later", "pip install 'dpscale[compare]'"
        ) from None


@dataclass(frozen=True)
class Performance:
    """Performance of a classifier on test rows; `curve` is the ROC curve of two classes."""

    auc: float
    accuracy: float
    curve: Curve = field(default=([], []), repr=False)

    def to_dict(self) -> dict[str, float]:
        return {"auc": self.auc, "accuracy": self.accuracy}


class Classifier:
    """Gradient boosted trees over cells; numbers are ordered features, nulls are missing values."""

    def __init__(self, attributes: Sequence[Attribute], codes: Integers32, labels: NDArray[Any]) -> None:
        """Fit the trees to cells, shape (rows, attributes), with a label for each row.

        With a single class nothing is fitted, since its probability is 1.
        """
        from sklearn.ensemble import HistGradientBoostingClassifier

        self.attributes, self.classes = attributes, np.unique(labels)
        kinds = [_nominal(attribute) for attribute in attributes]
        self._trees = HistGradientBoostingClassifier(
            categorical_features=kinds, early_stopping=False, random_state=SEED
        )
        if len(self.classes) > 1:
            without_warnings(self._trees.fit, self._features(codes), labels)

    def probabilities(self, codes: Integers32) -> Floats:
        """Return the probability of each class, shape (rows, classes)."""
        if len(self.classes) < 2:
            return np.ones((len(codes), len(self.classes)))
        return np.asarray(without_warnings(self._trees.predict_proba, self._features(codes)))

    def evaluate(self, codes: Integers32, labels: NDArray[Any]) -> Performance:
        """Return the AUC on test rows (mean of one-versus-rest for several classes) and the accuracy.

        `codes` has a row for each record and a column for each attribute; `labels` are the true classes. The ROC curve
        is empty unless there are two classes.
        """
        probabilities = self.probabilities(codes)
        right = float((self.classes[probabilities.argmax(1)] == labels).mean())
        curve = roc(probabilities[:, 1], labels == self.classes[1]) if len(self.classes) == 2 else ([], [])
        return Performance(self.auc(probabilities, labels), right, curve)

    def auc(self, probabilities: Floats, labels: NDArray[Any]) -> float:
        """Return the mean area under the ROC curves of the classes, each against all others.

        `probabilities` has shape (rows, classes). With two classes it is the area of the later one, with fewer NaN.
        """
        known = {label: probabilities[:, index] for index, label in enumerate(self.classes.tolist())}
        present = np.unique(labels).tolist()
        if len(present) < 2:
            return nan
        classes = present[-1:] if len(present) == 2 else present
        return float(np.mean([auc(known.get(label, np.zeros(len(labels))), labels == label) for label in classes]))

    def _features(self, codes: Integers32) -> Floats:
        """Return the codes as features.

        Those of unlisted cells of ordered attributes are nan, because they have no place in the order.
        """
        values = codes.astype(np.float64)
        for column, attribute in enumerate(self.attributes):
            if not _nominal(attribute):
                values[codes[:, column] >= attribute.listed, column] = nan
        return values


def _nominal(attribute: Attribute) -> bool:
    return attribute.kind == "categories" and is_text(attribute) and size_of(attribute) <= NOMINAL


def without_warnings(function: Any, *arguments: Any) -> Any:
    """Call without warnings, which may contain values of the data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


def auc(scores: Floats, true: NDArray[np.bool_]) -> float:
    """Return the probability that a true row has a higher score than a false one, ties by half (Mann and Whitney)."""
    _, places, many = np.unique(scores, return_inverse=True, return_counts=True)
    # equal scores share the mean of their ranks, which start at 1
    ranks = (np.cumsum(many) - (many - 1) / 2)[places]
    hits = int(true.sum())
    misses = len(true) - hits
    # the sum of the ranks of true rows less its least value is the number of false rows below them
    return float((ranks[true].sum() - hits * (hits + 1) / 2) / (hits * misses)) if hits and misses else nan


def roc(scores: Floats, true: NDArray[np.bool_]) -> Curve:
    """Return the ROC curve at about POINTS points.

    The points are (false alarms, hits), evenly spaced among those of all thresholds, with both ends.
    """
    from sklearn.metrics import roc_curve

    alarms, hits, _ = without_warnings(roc_curve, true, scores)
    at = np.unique(np.linspace(0, len(alarms) - 1, POINTS).astype(int))
    return alarms[at].tolist(), hits[at].tolist()


CLASSES, MOST_IMPORTANT = 20, 8  # values of a target; attributes whose importance is listed


@dataclass(frozen=True)
class Target:
    """The attribute that models predict, and the reason for the choice."""

    attribute: Attribute
    why: str


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation, and its curves under a title."""

    title: str
    results: dict[str, Any]
    curves: dict[str, Curve] = field(default_factory=dict, repr=False)


def propensity(attributes: Sequence[Attribute], data: Integers32, rows: Integers32) -> Evaluation | None:
    """Train a model to distinguish rows from data on half of both, and test it on the other half.

    An AUC of 0.5 is the best result.

    Both tables contribute as many rows as the shorter one has; None if these are too few.

    `data` and `rows` are samples of shape (rows, attributes) in random order, so halves are taken by position. The
    label 1 marks rows of the second table.
    """
    count = min(len(data), len(rows))
    if count < 2 * LEAST:
        return None

    train, test = (_stack(data[half], rows[half]) for half in (slice(count // 2), slice(count // 2, count)))
    model = Classifier(attributes, *train)
    performance = model.evaluate(*test)
    results = {"trained_on": len(train[1]), "tested_on": len(test[1]), **performance.to_dict()}

    return Evaluation(
        "rows or data", results | {"telling": permutation_importance(model, *test)}, {"rows or data": performance.curve}
    )


def _stack(data: Integers32, rows: Integers32) -> tuple[Integers32, NDArray[np.int64]]:
    return np.concatenate([data, rows]), np.repeat([0, 1], [len(data), len(rows)])


def permutation_importance(model: Classifier, codes: Integers32, labels: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return the attributes that the model uses most: the decrease of its AUC when their cells are shuffled.

    `codes` has shape (rows, attributes). At most SHUFFLED rows are used, because each attribute needs all predictions
    again.
    """
    order = PublicStream("compared", "telling").permutation(len(codes))[:SHUFFLED]
    codes, labels = codes[order], labels[order]
    whole, found = auc(model.probabilities(codes)[:, 1], labels == 1), []

    for column, attribute in enumerate(model.attributes):
        shuffled = codes.copy()
        shuffled[:, column] = np.roll(codes[:, column], 1)  # the rows are in random order
        found.append(
            {"attribute": attribute.name, "drop": whole - auc(model.probabilities(shuffled)[:, 1], labels == 1)}
        )

    return sorted(found, key=lambda one: -float(str(one["drop"])))[:MOST_IMPORTANT]


def target_of(attributes: Sequence[Attribute], requested: str | None) -> Target | None:
    """Return the requested target or a default; None if there is none.

    The default is the last attribute with the fewest values, from two to CLASSES.

    It follows from the domain alone. Raises JobError for a name that rows do not have or an attribute with more
    values.
    """
    if requested is not None:
        return Target(_requested_attribute(attributes, requested), "as asked")

    fit = [attribute for attribute in attributes if 2 <= attribute.listed <= CLASSES]
    if not fit or len(attributes) < 2:
        return None

    least = min(one.listed for one in fit)
    last = [one for one in fit if one.listed == least][-1]
    return Target(last, f"the last attribute of {least} values; --target names another")


def _requested_attribute(attributes: Sequence[Attribute], requested: str) -> Attribute:
    """Return the attribute that --target names; refuse one that the rows lack or that has too many values."""
    names = [attribute.name for attribute in attributes]
    if requested not in names:
        raise JobError("--target", f"{requested!r}", "an attribute that the rows have", nearest(requested, names))

    attribute_found = attributes[names.index(requested)]
    if not 2 <= attribute_found.listed <= CLASSES or len(names) < 2:
        raise JobError("--target", f"{requested!r}, of {attribute_found.listed} values",
                       f"an attribute of 2 to {CLASSES} values, and another attribute",
                       "name another, or leave it out")  # fmt: skip
    return attribute_found


def usefulness(
    attributes: Sequence[Attribute], target: Target, data: Integers32, rows: Integers32
) -> Evaluation | None:
    """Evaluate models of the target on one half of the data, trained on the other half and on as many rows.

    Models are trained on the first half of the data and on as many rows, and tested on the other half.
    """
    half = len(data) // 2
    return tstr_scores(attributes, target, {"data": data[:half], "rows": rows[:half]}, data[half:])


def tstr_scores(
    attributes: Sequence[Attribute], target: Target, trained: Mapping[str, Integers32], test: Integers32
) -> Evaluation | None:
    """Train one model per table and test all on the same rows ("train on synthetic, test on real"); None if too few.

    Records whose target is null or outside the domain are left out.

    `trained` has the codes of each training table by name. The base is the most frequent class, whose AUC is 0.5.
    """
    inputs = [attribute for attribute in attributes if attribute != target.attribute]
    parts = {name: _split(codes, attributes, target.attribute) for name, codes in trained.items()}
    codes, labels = _split(test, attributes, target.attribute)
    if min(len(labels), *(len(own) for _, own in parts.values())) < LEAST:
        return None

    performance = {name: Classifier(inputs, *part).evaluate(codes, labels) for name, part in parts.items()}
    results: dict[str, Any] = {
        name: {"trained_on": len(parts[name][1]), **performance[name].to_dict()} for name in parts
    }
    results["base"] = {"auc": 0.5, "accuracy": float(np.bincount(labels).max() / len(labels))}
    results |= {"attribute": target.attribute.name, "why": target.why}
    results |= {"tested_on": len(labels), "classes": len(np.unique(labels))}
    curves = {f"trained on {name}": one.curve for name, one in performance.items()}

    return Evaluation(f"predicting {target.attribute.name}", results, curves)


def _split(codes: Integers32, attributes: Sequence[Attribute], target: Attribute) -> tuple[Integers32, Integers32]:
    """Return the records with a target value: the other attributes, and the number of that value."""
    column = list(attributes).index(target)
    known = codes[codes[:, column] < target.listed]
    return np.delete(known, column, axis=1), known[:, column]
