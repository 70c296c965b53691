"""Measures of synthetic rows: distances of marginals, use for learners, propensity, membership risk.

Learners and propensity use at most LEARNT rows of each table, membership at most MEMBERS records of each side.
"""

from __future__ import annotations

import warnings
from itertools import combinations

import numpy as np
from base import Table
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from dpscale.evaluation.models import auc

LEARNT, MEMBERS, CHUNK = 10_000, 2_000, 250
LEARNERS = ("logistic regression", "tree", "forest", "boosting")
MEASURES = ("1-way", "2-way", "3-way", *LEARNERS, "propensity", "membership")


def measure_rows(records: Table, held_out: Table, codes: np.ndarray, target: str, seed: int) -> dict[str, float]:
    """Return all measures of rows that were made from records."""
    random = np.random.default_rng(seed)
    rows = Table("rows", records.sizes, codes)
    return {
        **{f"{degree}-way": mean_distance(records, rows, degree) for degree in (1, 2, 3)},
        **learner_scores(rows, held_out, target, random),
        "propensity": propensity(records, rows, random),
        "membership": membership(records, held_out, rows, random),
    }


def mean_distance(first: Table, second: Table, degree: int) -> float:
    """Return the mean total variation distance of all marginals of a degree."""
    return float(np.mean([
        np.abs(first.counted(names) / first.rows - second.counted(names) / second.rows).sum() / 2
        for names in combinations(first.names, degree)
    ]))  # fmt: skip


def codes_of(table: Table, random: np.random.Generator, most: int) -> np.ndarray:
    """Return the codes of all records in a random order, or of a sample."""
    return np.stack(list(table.columns.values()), axis=1)[random.permutation(table.rows)[:most]]


def make_learner(name: str, sizes: list[int]) -> object:
    """Return a learner; trees see codes as numbers, the regression sees each value."""
    if name == "logistic regression":
        values = OneHotEncoder(categories=[np.arange(size) for size in sizes])
        return make_pipeline(values, LogisticRegression(max_iter=200))
    makers = {
        "tree": DecisionTreeClassifier,
        "forest": RandomForestClassifier,
        "boosting": HistGradientBoostingClassifier,
    }
    options = {"tree": {"max_depth": 12}, "forest": {"min_samples_leaf": 2}, "boosting": {"early_stopping": False}}
    return makers[name](random_state=0, **options[name])


def learner_scores(rows: Table, held_out: Table, target: str, random: np.random.Generator) -> dict[str, float]:
    """Return the balanced accuracy on held-out records of learners that are trained on rows."""
    at = rows.names.index(target)
    sizes = [size for name, size in rows.sizes.items() if name != target]
    train, test = (codes_of(table, random, LEARNT) for table in (rows, held_out))
    (x, y), (features, truth) = ((np.delete(codes, at, axis=1), codes[:, at]) for codes in (train, test))
    scores = {}
    for name in LEARNERS:
        guess = np.full(len(truth), y[0])
        if len(np.unique(y)) > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                guess = make_learner(name, sizes).fit(x, y).predict(features)
        scores[name] = balanced_accuracy(truth, guess)
    return scores


def balanced_accuracy(truth: np.ndarray, guess: np.ndarray) -> float:
    """Return the mean over the classes of the share of their records that is guessed right."""
    return float(np.mean([(guess[truth == one] == one).mean() for one in np.unique(truth)]))


def propensity(records: Table, rows: Table, random: np.random.Generator) -> float:
    """Return the AUC of boosting that learns on half of the rows and records which are rows, on the other half."""
    most = min(LEARNT, records.rows, rows.rows)
    sides = [codes_of(table, random, most) for table in (records, rows)]
    halves = [np.concatenate([side[part] for side in sides])
              for part in (slice(most // 2), slice(most // 2, most))]  # fmt: skip
    labels = [np.repeat([0, 1], len(half) // 2) for half in halves]
    model = HistGradientBoostingClassifier(early_stopping=False, random_state=0).fit(halves[0], labels[0])
    return auc(model.predict_proba(halves[1])[:, 1], labels[1] == 1)


def membership(records: Table, held_out: Table, rows: Table, random: np.random.Generator) -> float:
    """Return the AUC of the closeness of the closest row: records of the release against held-out ones."""
    most = min(MEMBERS, records.rows, held_out.rows)
    sides = [codes_of(table, random, most) for table in (records, held_out)]
    closeness = np.concatenate([closest(side, rows) for side in sides])
    return auc(closeness, np.arange(2 * most) < most)


def closest(codes: np.ndarray, rows: Table) -> np.ndarray:
    """Return the largest number of equal values of each record with a row."""
    every = np.unique(np.stack(list(rows.columns.values()), axis=1), axis=0)
    starts, cells = np.cumsum([0, *rows.sizes.values()])[:-1], sum(rows.sizes.values())

    def indicators(own: np.ndarray) -> np.ndarray:
        found = np.zeros((len(own), cells), np.float32)
        np.put_along_axis(found, own + starts, 1, axis=1)
        return found

    right = indicators(every)
    parts = [codes[i : i + CHUNK] for i in range(0, len(codes), CHUNK)]
    return np.concatenate([(indicators(part) @ right.T).max(axis=1) for part in parts]).astype(np.float64)
