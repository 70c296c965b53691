"""Written order of histories: children of one parent follow each other, and their dates do not decrease.

Links of a table with `order_by` are grouped by parent and in order (`relational.history_order`). The rows of the table
are written in that order. Dates are drawn inside the cell of each row independently, so dates of equal cells of one
parent are exchanged until they do not decrease; the cells, and all values of the table together, remain.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.arrow import pa
from dpscale.base.numerics import Integers
from dpscale.domain import Domain
from dpscale.job.tables import CompositeJob, LinkSection


def link_in_order(job: CompositeJob, name: str) -> LinkSection | None:
    """Return the link that orders the rows of a table; None if there is none with a share of the budget.

    Parameters
    ----------
    job : CompositeJob
        With the shares of the run.
    name : str
        A private table.
    """
    links = [one for one in job.link if one.child == name and one.order and job.shares[f"links.{one.called}"] > 0]
    return links[0] if links else None


def in_order(table: pa.Table, pairs: Integers, attribute: str, domain: Domain) -> pa.Table:
    """Return the rows of a child's table in the order of its links, those without a parent last.

    Parameters
    ----------
    table : pyarrow.Table
        All rows.
    pairs : ndarray, shape (m, 2)
        Rows of the parent and of the child, grouped by parent and in order.
    attribute : str
        The order.
    domain : Domain
        Of the table.
    """
    left = np.setdiff1d(np.arange(table.num_rows), pairs[:, 1])
    order = np.concatenate([pairs[:, 1], left])
    table = table.take(pa.array(order))
    column = domain[attribute].column
    if domain[attribute].kind not in ("bins", "date") or _is_shared(domain, column):
        return table
    found = np.arange(len(order))
    found[: len(pairs)] = _ascending(table.column(column).slice(0, len(pairs)), pairs[:, 0])
    return table.set_column(table.column_names.index(column), column, table.column(column).take(pa.array(found)))


def _is_shared(domain: Domain, column: str) -> bool:
    """Return whether several attributes have their values in one column: its values may not be exchanged."""
    return sum(column in domain.columns([name]) for name in domain.names) > 1


def _ascending(values: pa.ChunkedArray, parents: Integers) -> Integers:
    """Return the positions of the values of each parent in ascending order, nulls last; parents are grouped."""
    ranks = np.empty(len(values), np.int64)
    ranks[pa.compute.sort_indices(values).to_numpy()] = np.arange(len(values))
    group = np.cumsum(np.r_[False, parents[1:] != parents[:-1]])
    return np.lexsort((ranks, group))
