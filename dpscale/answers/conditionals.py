"""Conditional distributions of a release: p(x | y) = N(x, y) / Σ N(x', y) from its estimated counts N.

Counts of a graphical model are those of the model with the evidence y entered, so that the marginal over x and y is
never made. Other counts are summed over the cells of y in the marginal over both; those below 0 count as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpscale.answers.statistics import cells_of
from dpscale.answers.tables import Answered, column
from dpscale.base.arrow import pa
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.reconstruction.junction_tree.model import GraphicalModel

MOST_CELLS = 1 << 24  # of the marginal that is made
PROBABILITY = "probability"
Evidence = Mapping[str, Sequence[int]]  # cells of each attribute whose value is given


def evidence_of(domain: Domain, given: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the cells of given labels, or of several labels in a list.

    Raises
    ------
    DomainError, JobError
        If an attribute is unknown or has no such cell, or a list is empty.
    """
    found = {name: cells_of(domain[name], value) for name, value in given.items()}
    for name, cells in found.items():
        if not cells:
            raise JobError("given", f"no label of {name}", "one label or several", "name one")
    return found


def conditional(
    answered: Answered, names: AttributeSet, given: Mapping[str, Any], model: GraphicalModel | None = None
) -> pa.Table:
    """Return the distribution of some attributes given labels of others.

    Parameters
    ----------
    answered : Answered
    names : AttributeSet
    given : mapping of str to object or list of objects
        Labels by attribute.
    model : GraphicalModel, optional
        Joint distribution of the estimates.

    Returns
    -------
    pyarrow.Table
        A row for each cell of the attributes, in row-major order, with its label for each attribute, and `probability`.

    Raises
    ------
    PlanError
        If cells lie outside the row space of the measurements, are too many, or no estimated record has the labels.
    DomainError, JobError
        If an attribute is unknown, occurs twice, or has no such cell.
    """
    domain = answered.estimates.workload.domain
    domain.ordered((*names, *given))
    if not names:
        raise JobError("attributes", "none", "one attribute or more", "name one")

    cells = evidence_of(domain, given)
    if (needed := domain.cells(names if model is not None else (*names, *cells))) > MOST_CELLS:
        raise PlanError("attributes", f"{needed:,} cells", f"at most {MOST_CELLS:,}", "use fewer attributes")
    counts = np.maximum(_counts(answered, names, cells, model), 0)
    if not (total := counts.sum()) > 0:
        words = ", ".join(f"{name} = {value}" for name, value in given.items()) or "no condition"
        raise PlanError("given", f"{words}, with no estimated record", "labels of estimated records", "name others")

    places = np.indices(counts.shape).reshape(len(names), -1)
    labels = [column(domain[name], place) for name, place in zip(names, places, strict=True)]
    title = PROBABILITY if PROBABILITY not in names else f"{PROBABILITY}_"
    return pa.table([*labels, pa.array(counts.ravel() / total)], names=[*names, title])


def _counts(answered: Answered, names: AttributeSet, cells: Evidence, model: GraphicalModel | None) -> Floats:
    """Return estimated counts of the records with given cells, one axis for each name.

    `cells` maps an attribute to the numbers of its given cells. A model is conditioned on them directly. Estimates of
    linear queries have a margin over all the attributes, whose axes of `cells` are reduced to the given cells and
    summed, the last axis first so that the positions of the others stay valid.
    """
    if model is not None:
        return model.given(**cells).marginal(names)
    counts = answered.estimates.marginal((*names, *cells))
    for axis, own in reversed(list(enumerate(cells.values(), start=len(names)))):
        counts = counts.take(sorted(set(own)), axis=axis).sum(axis=axis)
    return counts
