"""Numbers of synthetic rows that fit together: every row of a child has a parent within the parent's bound.

A parent has at most `max_degree` children (1 in a one-to-one link); a public parent of other links has any number. A
table whose `rows` are not stated has at least the rows that the stated tables below it require.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpscale.base.errors import JobError
from dpscale.base.numerics import Floats, optimize
from dpscale.job.job import Job
from dpscale.job.protected_unit import has_bounded_parents
from dpscale.job.sections import LinkSection


def required_links(job: Job, name: str) -> list[LinkSection]:
    """Return the links in which every row of a table has a parent and a parent has at most `bound` children."""
    to_parents = [link for link in job.link if link.via is None and link.child == name and link.nulls != "keep"]
    return [link for link in to_parents if has_bounded_parents(job, link)]


def stated_rows(job: Job, name: str) -> int | None:
    """Return the number of synthetic rows of a table that the job states; None if it states none."""
    section = job.tables[name]
    return section.rows or (section.synthesize.rows if section.synthesize is not None else None)


def least_rows(job: Job, name: str) -> int:
    """Return the least number of synthetic rows of a private table: as stated, or as its links and children require.

    A table with children has a row, because their keys refer to it; a table without children may have none.

    Parameters
    ----------
    job : Job
        Its private tables have a common root (`neighbour_relation`).
    name : str

    Returns
    -------
    int

    Raises
    ------
    JobError
        If the stated rows of a table below it do not fit.
    """
    children = [link.child for link in job.link if link.parent == name and link.via is None]
    has_children = any(child != name for child in children)
    needs = [(int(has_children), "")]  # least numbers of rows with their reasons
    to_children = [link for child in job.tables for link in required_links(job, child) if link.parent == name]
    for link in to_children:
        if link.child != name:
            rows = least_rows(job, link.child)
            # so many parents are needed for the child's least number of rows, rounded up
            reason = f"{link.child} has {rows} rows, at most {link.bound} per row of {name}"
            needs.append((-(-rows // link.bound), reason))
        elif link.loops is False:
            needs.append((2, f"no row of {name} is linked to itself"))

    (least, reason), stated = max(needs), stated_rows(job, name)
    if stated is not None and stated < least:
        raise JobError(f"tables.{name}.rows", f"{stated}, but {reason}", f"at least {least}",
                       "raise it, or lower rows of the tables below it")  # fmt: skip
    return stated or least


def check_public_parents(job: Job, rows: dict[str, int]) -> None:
    """Check the least numbers of rows of private tables against public parents with a bound of children.

    Parameters
    ----------
    job : Job
    rows : dict of str to int
        Number of rows of every public table with a key.

    Raises
    ------
    JobError
        If a table has more rows than its parents.
    """
    for name, section in job.tables.items():
        for link in () if section.public else required_links(job, name):
            if link.parent in rows and least_rows(job, name) > rows[link.parent] * link.bound:
                raise JobError(f"tables.{name}.rows", f"{least_rows(job, name)}, but each row has a row of its own in "
                               f"{link.parent}, a public table of {rows[link.parent]} rows",
                               f"at most {rows[link.parent]}", "lower it")  # fmt: skip


def check_stated_rows(job: Job) -> None:
    """Raise JobError for a number of rows that does not fit the stated rows of other tables."""
    for name, section in job.tables.items():
        if not section.public:
            least_rows(job, name)


def decreasing_sizes(
    sizes: Mapping[str, float], weights: Mapping[str, float], above: Mapping[str, str]
) -> dict[str, float]:
    """Return the sizes of least weighted squared distance in which no table exceeds the one above it.

    The problem, min Σ w (x − s)² with D x ≤ 0, where a row of D gives x_child − x_parent, is solved by its dual: with
    W = diag(w) and multipliers λ ≥ 0 it is min |W^(-1/2) Dᵀ λ − W^(1/2) s|², and x = s − W⁻¹ Dᵀ λ.

    Parameters
    ----------
    sizes, weights : mapping of str to float
        Size and weight of every table.
    above : mapping of str to str
        The table above each table but the first.

    Returns
    -------
    dict of str to float
    """
    names = list(sizes)
    if not above:
        return dict(sizes)
    differences = np.zeros((len(above), len(names)))  # x_child − x_parent
    for row, (child, parent) in zip(differences, above.items(), strict=True):
        row[names.index(child)], row[names.index(parent)] = 1.0, -1.0
    root = np.sqrt([weights[name] for name in names])
    values: Floats = np.array([sizes[name] for name in names])
    scale = max(float(np.abs(values * root).max()), 1e-300)  # the solver is given numbers of at most 1
    multipliers, _ = optimize.nnls(differences.T / root[:, None], values * root / scale)
    nearest = values - scale * (differences.T @ multipliers) / root**2
    return dict(zip(names, nearest.tolist(), strict=True))
