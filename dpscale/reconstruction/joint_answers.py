"""Estimates of several linear queries that are sums over attribute sets, with the covariance matrix of their errors.

The pieces of a query on a residual are summed over its sets. Estimates of different residuals are independent, so the
covariance is the sum over the residuals. Where a plan mixes residuals, the queries are arrays over all attributes, and
the covariance follows from the variances of their sums and differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.plans.accuracy import IndependentResiduals
from dpscale.plans.accuracy_base import NOTHING, out_of_span
from dpscale.reconstruction.base import Estimates
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.workload import ExplicitPart
from dpscale.workload.residual import piece, subsets

MOST_ENTRIES = 1 << 30  # of the queries whose variances give the covariance


class SetQueries(NamedTuple):
    """Parts of queries over one set: which queries they belong to, and their entries.

    Attributes
    ----------
    names : AttributeSet
        In domain order.
    rows : ndarray, shape (m,)
    values : ndarray, shape (m, sizes…)
    """

    names: AttributeSet
    rows: Integers
    values: Floats


def joint_answers(estimates: Estimates, queries: Sequence[SetQueries], count: int) -> tuple[Floats, Floats]:
    """Return the estimates of queries and the covariance matrix of their errors.

    Parameters
    ----------
    estimates : Estimates
    queries : sequence of SetQueries
        Each query is the sum of its parts.
    count : int
        Number of queries.

    Returns
    -------
    estimates : ndarray, shape (count,)
    covariance : ndarray, shape (count, count)
        Of the noise alone; nan for estimates of a model, whose error the noise does not determine.

    Raises
    ------
    PlanError
        If a query is not in the row space of the measurements.
    """
    if not isinstance(estimates, LeastSquaresEstimates):
        answers = np.zeros(count)
        for query in queries:
            np.add.at(answers, query.rows, _flat(query.values) @ estimates.marginal(query.names).reshape(-1))
        return answers, np.full((count, count), np.nan)
    if isinstance(estimates.accuracy, IndependentResiduals) and estimates.plan.blocks.merged is None:
        return _by_residual(estimates, queries, count)
    return _over_one_set(estimates, queries, count)


def _by_residual(estimates: LeastSquaresEstimates, queries: Sequence[SetQueries], count: int) -> tuple[Floats, Floats]:
    """Return estimates, shape (count,), and covariance, (count, count), as sums over independent residuals.

    Each query is a sum over attribute sets, of which one array has some; `rows` are the numbers of its queries.

    `pieces` has for each residual the summed piece of each query. Pieces below NOTHING of the query's largest entry are
    not needed and need not be measured.
    """
    pieces, largest = dict[AttributeSet, dict[int, Floats]](), np.zeros(count)
    for names, rows, values in queries:
        np.maximum.at(largest, rows, np.abs(_flat(values)).max(axis=1, initial=0.0))
        profiles = estimates.accuracy.axis_profiles(names)
        for subset in subsets(names):
            # the component of the queries in the residual space of `subset`
            on_residual = piece(values, [names.index(name) for name in subset], lead=1, profiles=profiles)
            by_row = pieces.setdefault(subset, {})
            for row, part in zip(rows.tolist(), on_residual, strict=True):
                by_row[row] = by_row[row] + part if row in by_row else part

    answers, covariance = np.zeros(count), np.zeros((count, count))
    for subset, by_row in pieces.items():
        # a query without a piece here does not depend on this residual
        used = [row for row, part in by_row.items() if np.abs(part).max() > NOTHING * largest[row]]
        if not used:
            continue
        parts = np.stack([by_row[row] for row in used])
        estimator = estimates.accuracy.residuals.get(subset)
        # a residual that was not measured, or not in this direction, has no estimate
        if estimator is None or not (estimator.spans_all or all(map(estimator.spans, parts))):
            raise out_of_span(subset)
        answers[used] += _flat(parts) @ estimates.residual(subset).reshape(-1)
        covariance[np.ix_(used, used)] += estimator.covariance(parts)
    return answers, covariance


def _over_one_set(estimates: LeastSquaresEstimates, queries: Sequence[SetQueries], count: int) -> tuple[Floats, Floats]:
    """Return estimates and covariance from arrays over all attributes of the queries.

    A set's queries are constant along the axes that they do not name, where their arrays have the length 1 and
    broadcast.
    """
    domain = estimates.workload.domain
    names = domain.ordered({name: None for of_set in queries for name in of_set.names})
    shape = domain.shape(names)
    needed = count**2 * math.prod(shape)
    if needed > MOST_ENTRIES:
        raise PlanError("formula", f"{needed:,} entries of queries, for a plan that measures residuals together",
                        f"at most {MOST_ENTRIES:,}", "plan with mechanism weighted-residuals")  # fmt: skip

    arrays = np.zeros((count, *shape))
    for of_set in queries:
        sizes = dict(zip(of_set.names, domain.shape(of_set.names), strict=True))
        np.add.at(arrays, of_set.rows, of_set.values.reshape(-1, *(sizes.get(name, 1) for name in names)))
    part = ExplicitPart(domain=domain, attributes=names, array=arrays, each=np.ones(count))
    source = estimates.source(part, names)
    for query in arrays:
        source.accuracy.spanned(names, query)  # refuses what was not measured
    return source.span_answers(part, names), source.accuracy.covariance(names, arrays)


def _flat(values: Floats) -> Floats:
    return values.reshape(len(values), -1)
