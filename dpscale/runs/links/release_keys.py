"""Keys of the synthetic rows, and tables whose keys are foreign keys.

A column of a private table's key that no link uses has the number of the row, 0, 1, … (TABLE-0, … if the input's key is
a text). A column that is also a foreign key has the parent's key: the child of a one-to-one link may have its parent's
key, a line the key of its order and a number, and a row with attributes of a pair the keys of both ends. All keys are
unique: where both ends of two rows are equal, ends are exchanged between rows, which changes no number of links.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpscale.base.arrow import is_text, pa
from dpscale.base.numerics import Flags, Integers
from dpscale.job.key_columns import key_links, pair_links
from dpscale.job.protected_unit import has_bounded_parents
from dpscale.job.tables import LinkSection
from dpscale.privacy.streams import PublicStream
from dpscale.runs.composite import CompositeRun, open_table

Keys = dict[str, list["pa.ChunkedArray"]]
Pairs = Mapping[str, Integers]
EXCHANGES = 30  # rounds of random exchanges before single ends are changed


def release_keys(run: CompositeRun, public: Keys, rows: Mapping[str, int], pairs: Pairs) -> Keys:
    """Return the columns of the keys of all tables.

    Parameters
    ----------
    run : CompositeRun
    public : dict of str to list of ChunkedArray
        Keys of the public tables.
    rows : mapping of str to int
        Number of rows of every synthetic table.
    pairs : mapping of str to ndarray of int, shape (links, 2)
        Sampled links as rows of the parent and of the child.
    """
    found = dict(public)

    def make(name: str) -> list[pa.Array]:
        if name not in found:
            columns = {column: numbered_column(run, name, column, rows[name]) for column in run.job.key(name)}
            for link in key_links(run.job, name):
                make(link.parent)
                columns |= {column: values for column, values in
                            parent_keys(run, link, found, pairs[link.called], rows[name]).items()
                            if column in columns}  # fmt: skip
            found[name] = list(columns.values())
        return found[name]

    for name in rows:
        make(name)
    return found


def numbered_column(run: CompositeRun, name: str, column: str, rows: int) -> pa.Array:
    """Return the numbers of a table's rows as a key column of the input's type: integers or texts."""
    first = open_table(run.job.tables[name], run.tables[name].domain).partitions[0]
    numbers = np.arange(rows, dtype=np.int64)
    if not first.format.typed or not is_text(first.kind(column)):
        return pa.array(numbers)
    return pa.array([f"{name}-{number}" for number in numbers])


def parent_keys(
    run: CompositeRun, link: LinkSection, keys: Mapping[str, list[pa.ChunkedArray]], pairs: Integers, rows: int
) -> dict[str, Any]:
    """Return the columns of a child with its parents' keys."""
    parents = np.full(rows, -1, np.int64)
    parents[pairs[:, 1]] = pairs[:, 0]
    at = pa.array(parents, mask=parents < 0)
    columns = run.job.ends(link)[0]
    return {column: values.take(at) for column, values in zip(columns, keys[link.parent], strict=True)}


def with_distinct_ends(run: CompositeRun, pairs: Pairs, rows: Mapping[str, int]) -> dict[str, Integers]:
    """Return sampled links in which rows whose key is that of two parents have different parents.

    Parameters
    ----------
    run : CompositeRun
    pairs : mapping of str to ndarray of int, shape (links, 2)
    rows : mapping of str to int
        Number of released rows of every table.
    """
    found = dict(pairs)
    for name in run.tables:
        if links := pair_links(run.job, name):
            one, other = links
            ends = np.stack([pairs[own.called][np.argsort(pairs[own.called][:, 1]), 0] for own in links], axis=1)
            stream = PublicStream(run.manifest["release"], f"keys {name}")
            distinct = distinct_ends(ends, (rows[one.parent], rows[other.parent]), _bounds(run, one, other), stream)
            for place, own in enumerate(links):
                found[own.called] = np.stack([distinct[:, place], np.arange(len(distinct))], axis=1)
    return found


def _bounds(run: CompositeRun, one: LinkSection, other: LinkSection) -> tuple[int | None, int | None]:
    first, second = (own.bound if has_bounded_parents(run.job, own) else None for own in (one, other))
    return first, second


def distinct_ends(
    ends: Integers, counts: tuple[int, int], bounds: tuple[int | None, int | None], stream: PublicStream
) -> Integers:
    """Return rows with two ends each, of which no two rows have both in common.

    Second ends are exchanged between rows, which preserves the number of rows of every end. Rows that remain get a
    second end that their first end does not have, or another first end within its bound.

    Parameters
    ----------
    ends : ndarray of int, shape (rows, 2)
    counts : tuple of int
        Number of possible first ends, and of second ones.
    bounds : tuple of (int or None)
        Largest number of rows of each first end, and of each second one.
    stream : PublicStream

    Returns
    -------
    ndarray of int, shape (rows, 2)
    """
    ends = ends.copy()
    for _ in range(EXCHANGES):
        again = np.flatnonzero(_repeated(ends, counts[1]))
        if not len(again):
            return ends
        partners = stream.permutation(len(ends))[: len(again)]
        _exchange(ends, again[: len(partners)], partners, counts[1])
    used = set(map(tuple, ends[~_repeated(ends, counts[1])].tolist()))
    degrees = [np.bincount(ends[:, side], minlength=count) for side, count in enumerate(counts)]
    for row in np.flatnonzero(_repeated(ends, counts[1])):
        _change_end(ends, int(row), used, degrees, bounds)
    return ends


def _repeated(ends: Integers, width: int) -> Flags:
    """Return a mask of the rows whose ends an earlier row has."""
    again = np.ones(len(ends), np.bool_)
    again[np.unique(ends[:, 0] * max(width, 1) + ends[:, 1], return_index=True)[1]] = False
    return again


def _exchange(ends: Integers, rows: Integers, partners: Integers, width: int) -> None:
    """Exchange the second ends of rows with those of their partners where it gives no pair that exists."""
    known = set((ends[:, 0] * width + ends[:, 1]).tolist())
    for row, partner in zip(rows.tolist(), partners.tolist(), strict=True):
        (a, b), (c, d) = ends[row].tolist(), ends[partner].tolist()
        if a * width + d in known or c * width + b in known or a == c or b == d:
            continue
        known |= {a * width + d, c * width + b}
        known.discard(c * width + d)
        ends[row, 1], ends[partner, 1] = d, b


def _change_end(
    ends: Integers, row: int, used: set[tuple[int, int]], degrees: list[Integers], bounds: tuple[int | None, int | None]
) -> None:
    """Give a row a pair of ends that no other row has: with its first end if one is left, else with another one."""
    first, second = ends[row].tolist()
    order = [first, *(one for one in np.argsort(degrees[0], kind="stable").tolist() if one != first)]
    for one in order:
        if one != first and bounds[0] is not None and degrees[0][one] >= bounds[0]:
            continue
        for other in np.argsort(degrees[1], kind="stable").tolist():
            full = other != second and bounds[1] is not None and degrees[1][other] >= bounds[1]
            if not full and (one, other) not in used:
                degrees[0][first] -= 1
                degrees[1][second] -= 1
                degrees[0][one] += 1
                degrees[1][other] += 1
                used.add((one, other))
                ends[row] = one, other
                return
