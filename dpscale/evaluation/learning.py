"""The two questions that models answer: are rows told from data, and do they teach what data teach?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Integers32
from dpscale.base.errors import JobError
from dpscale.base.names import nearest
from dpscale.domain.attribute import Attribute
from dpscale.evaluation.models import LEAST, SHUFFLED, Curve, Model, auc
from dpscale.reconstruction.pairwise.chance import Chance

CLASSES, TELLING = 20, 8


@dataclass(frozen=True)
class Target:
    """The attribute that models predict, and why this one."""

    attribute: Attribute
    why: str


@dataclass(frozen=True)
class Answer:
    """What is told of a question, and the curves that are drawn of it under a title."""

    title: str
    told: dict[str, Any]
    curves: dict[str, Curve] = field(default_factory=dict, repr=False)


def propensity(attributes: Sequence[Attribute], data: Integers32, rows: Integers32) -> Answer | None:
    """A model trained to tell rows from data on half of both, tested on the other: an AUC of 0.5 where it cannot.

    As many of each as the shorter has; None where those are too few.
    """
    count = min(len(data), len(rows))
    if count < 2 * LEAST:
        return None
    train, test = (_mixed(data[half], rows[half]) for half in (slice(count // 2), slice(count // 2, count)))
    model = Model(attributes, *train)
    learnt = model.tested(*test)
    told = {"trained_on": len(train[1]), "tested_on": len(test[1]), **learnt.to_dict()}
    return Answer("rows or data", told | {"telling": telling(model, *test)}, {"rows or data": learnt.curve})


def _mixed(data: Integers32, rows: Integers32) -> tuple[Integers32, NDArray[np.int64]]:
    return np.concatenate([data, rows]), np.repeat([0, 1], [len(data), len(rows)])


def telling(model: Model, codes: Integers32, labels: NDArray[np.int64]) -> list[dict[str, Any]]:
    """The attributes that the model goes by: how much its AUC falls when their cells are shuffled."""
    order = Chance("compared", "telling").permutation(len(codes))[:SHUFFLED]
    codes, labels = codes[order], labels[order]
    whole, found = auc(model.chances(codes)[:, 1], labels == 1), []
    for column, attribute in enumerate(model.attributes):
        shuffled = codes.copy()
        shuffled[:, column] = np.roll(codes[:, column], 1)  # the order is random already
        found.append({"attribute": attribute.name, "drop": whole - auc(model.chances(shuffled)[:, 1], labels == 1)})
    return sorted(found, key=lambda one: -float(str(one["drop"])))[:TELLING]


def target_of(attributes: Sequence[Attribute], asked: str | None) -> Target | None:
    """What is asked for, else the last attribute of the fewest values, from two to CLASSES; None where there is none.

    It follows from the domain alone. JobError for a name that is none of the rows', or of an attribute of more values.
    """
    if asked is not None:
        return Target(_asked(attributes, asked), "as asked")
    fit = [one for one in attributes if 2 <= one.listed <= CLASSES]
    if not fit or len(attributes) < 2:
        return None
    least = min(one.listed for one in fit)
    last = [one for one in fit if one.listed == least][-1]
    return Target(last, f"the last attribute of {least} values; --target names another")


def _asked(attributes: Sequence[Attribute], asked: str) -> Attribute:
    names = [one.name for one in attributes]
    if asked not in names:
        raise JobError("--target", f"{asked!r}", "an attribute that the rows have", nearest(asked, names))
    found = attributes[names.index(asked)]
    if not 2 <= found.listed <= CLASSES or len(names) < 2:
        raise JobError("--target", f"{asked!r}, of {found.listed} values", f"one of 2 to {CLASSES}, beside others",
                       "name another, or leave it out")  # fmt: skip
    return found


def usefulness(attributes: Sequence[Attribute], target: Target, data: Integers32, rows: Integers32) -> Answer | None:
    """Models that predict the target for one half of the data: trained on the other half, and on as many rows."""
    half = len(data) // 2
    return taught(attributes, target, {"data": data[:half], "rows": rows[:half]}, data[half:])


def taught(
    attributes: Sequence[Attribute], target: Target, trained: Mapping[str, Integers32], test: Integers32
) -> Answer | None:
    """Each tested on the same rows; records whose target is null or outside are left out. None for too few."""
    inputs = [one for one in attributes if one != target.attribute]
    parts = {name: _split(codes, attributes, target.attribute) for name, codes in trained.items()}
    codes, labels = _split(test, attributes, target.attribute)
    if min(len(labels), *(len(own) for _, own in parts.values())) < LEAST:
        return None
    learnt = {name: Model(inputs, *own).tested(codes, labels) for name, own in parts.items()}
    told: dict[str, Any] = {name: {"trained_on": len(parts[name][1]), **learnt[name].to_dict()} for name in parts}
    told["base"] = {"auc": 0.5, "accuracy": float(np.bincount(labels).max() / len(labels))}
    told |= {"attribute": target.attribute.name, "why": target.why}
    told |= {"tested_on": len(labels), "classes": len(np.unique(labels))}
    curves = {f"trained on {name}": one.curve for name, one in learnt.items()}
    return Answer(f"predicting {target.attribute.name}", told, curves)


def _split(codes: Integers32, attributes: Sequence[Attribute], target: Attribute) -> tuple[Integers32, Integers32]:
    """Records with a value of the target: the other attributes, and that value's number."""
    column = list(attributes).index(target)
    known = codes[codes[:, column] < target.listed]
    return np.delete(known, column, axis=1), known[:, column]
