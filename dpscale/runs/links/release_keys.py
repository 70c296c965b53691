"""Keys of the synthetic rows, and tables whose keys are foreign keys.

A column of a private table's key that no link uses has the texts of its format in the domain file, else the number of
the row, 0, 1, … (TABLE-0, … if the input's key is a text). A column that is also a foreign key has the parent's key:
the child of a one-to-one link may have its parent's key, a line the key of its order and a number, and a row with
attributes of a pair the keys of both ends. All keys are unique: where both ends of two rows are equal, ends are
exchanged between rows, which changes no number of links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpscale.base.arrow import is_text, pa
from dpscale.base.numerics import Flags, Integers
from dpscale.domain.text_format import TextFormat
from dpscale.job.protected_unit import has_bounded_parents, key_links, pair_links
from dpscale.job.sections import LinkSection
from dpscale.privacy.streams import PublicStream
from dpscale.runs.linked_tables import LinkedTables, open_table
from dpscale.runs.links.link_blocks import ParentFiles
from dpscale.runs.links.public_tables import public_tables
from dpscale.runs.links.released_keys import numbered_keys
from dpscale.runs.stages.synthesize import format_key
from dpscale.synthesis.text_values import text_column

Pairs = Mapping[str, Integers | ParentFiles]
EXCHANGES = 30  # rounds of random exchanges before single ends are changed


@dataclass(frozen=True, eq=False)
class Keys:
    """Keys of the rows of a table.

    Attributes
    ----------
    columns : tuple
        Columns of a public table, and of a table whose key has a foreign key; other keys number the rows.
    forms : tuple of (str or TextFormat)
        For each column that numbers the rows, the beginning of its texts, empty for integers; or its format.
    release : str
        Public name of the texts of formats.
    """

    columns: tuple[Any, ...] = ()
    forms: tuple[str | TextFormat, ...] = ()
    release: str = ""

    def at(self, rows: Integers) -> list[Any]:
        """Return the key columns of some rows; null for row −1.

        They are stored values of a public table, or follow from the row's number by the form of each column.
        """
        if self.columns:
            places = pa.array(rows, mask=rows < 0)
            return [values.take(places) for values in self.columns]
        return [numbered_keys(rows, form) if isinstance(form, str) else text_column(form, rows, self.release)
                for form in self.forms]  # fmt: skip


def release_keys(run: LinkedTables, rows: Mapping[str, int], pairs: Pairs) -> dict[str, Keys]:
    """Return the keys of all tables.

    `forms` has the format of each column of a key, or the prefix before the row's number.

    `make` is recursive: a foreign key that is part of a key needs the parent's keys first. Public tables have their
    stored keys.

    Parameters
    ----------
    run : LinkedTables
    rows : mapping of str to int
        Number of rows of every synthetic table.
    pairs : mapping of str to ndarray of int, shape (links, 2), or ParentFiles
        Sampled links as rows of the parent and of the child.
    """
    keys = {}
    for name, (_, table) in public_tables(run).items():
        keys[name] = Keys(tuple(table.column(column) for column in run.job.key(name)))

    def make(name: str) -> Keys:
        """Return the keys of a table, after those of the parents whose keys are part of its own."""
        if name in keys:
            return keys[name]
        names = run.job.key(name)
        stated = {form.name: form for form in run.tables[name].domain.formats}
        forms = tuple(stated.get(column) or _prefix(run, name, column) for column in names)
        # numbers or texts, which may be complete; also the start for tables that refer to each other
        keys[name] = Keys((), forms, format_key(run.tables[name]))
        links = key_links(run.job, name)
        if not links:
            return keys[name]

        # columns without a link are numbered or have texts; those of links are then replaced
        columns = dict(zip(names, keys[name].at(np.arange(rows[name])), strict=True))
        for link in links:
            of_parents = make(link.parent).at(parents_of(pairs[link.called], rows[name]))
            to_parent, _ = run.job.ends(link)
            for column, values in zip(to_parent, of_parents, strict=True):
                if column in columns:
                    columns[column] = values
        keys[name] = Keys(tuple(columns.values()))
        return keys[name]

    for name in rows:
        make(name)
    return keys


def _prefix(run: LinkedTables, name: str, column: str) -> str:
    """Return the beginning of the texts that number a table's rows; empty if the input's key is no text."""
    first = open_table(run.job.tables[name], run.tables[name].domain).partitions[0]
    return f"{name}-" if first.format.typed and is_text(first.kind(column)) else ""


def parents_of(links: Integers | ParentFiles, rows: int) -> Integers:
    """Return the row of the parent of each of a child's rows; −1 for none.

    `links` are pairs (row of the parent, row of the child), or files with the parents; `rows` is the number of
    children.
    """
    if isinstance(links, ParentFiles):
        return links.of(0, rows)
    parents = np.full(rows, -1, np.int64)
    parents[links[:, 1]] = links[:, 0]
    return parents


def with_distinct_ends(run: LinkedTables, rows: Mapping[str, int], pairs: Pairs) -> dict[str, Integers | ParentFiles]:
    """Return sampled links in which rows whose key is that of two parents have different parents.

    Links with an order keep their parents where the other ends can be exchanged.

    `pair_links` are the two links whose foreign keys are the whole key of a table. `ends` has their parents, by row.
    """
    changed = dict(pairs)
    for name in run.tables:
        links = sorted(pair_links(run.job, name), key=lambda link: not link.order)  # the one with an order first
        if not links:
            continue
        first, second = links
        ends = np.stack([parents_of(pairs[link.called], rows[name]) for link in links], axis=1)
        stream = PublicStream(run.manifest["release"], f"keys {name}")
        counts = _rows_of(run, first.parent, rows), _rows_of(run, second.parent, rows)
        distinct = distinct_ends(ends, counts, _bounds(run, first, second), stream)
        for side, link in enumerate(links):
            changed[link.called] = _as_before(pairs[link.called], distinct[:, side])
    return changed


def _as_before(links: Integers | ParentFiles, parents: Integers) -> Integers:
    """Return links with other parents, by parent and in the order that they had."""
    children = np.arange(len(parents)) if isinstance(links, ParentFiles) else links[:, 1]
    pairs = np.stack([parents[children], children], axis=1)
    return pairs[np.argsort(pairs[:, 0], kind="stable")]


def _rows_of(run: LinkedTables, name: str, rows: Mapping[str, int]) -> int:
    return len(public_tables(run)[name][0]) if run.job.tables[name].public else rows[name]


def _bounds(run: LinkedTables, one: LinkSection, other: LinkSection) -> tuple[int | None, int | None]:
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
    """Exchange the second ends of rows with those of their partners where it gives no pair that exists.

    A pair (a, b) is the number a · width + b.
    """
    known = set((ends[:, 0] * width + ends[:, 1]).tolist())
    for row, partner in zip(rows.tolist(), partners.tolist(), strict=True):
        (a, b), (c, d) = ends[row].tolist(), ends[partner].tolist()
        # the new pairs must be new, and the exchange must change both rows
        if a * width + d in known or c * width + b in known or a == c or b == d:
            continue
        known |= {a * width + d, c * width + b}
        # the partner's former pair; that of the row itself exists twice
        known.discard(c * width + d)
        ends[row, 1], ends[partner, 1] = d, b


def _change_end(
    ends: Integers, row: int, used: set[tuple[int, int]], degrees: list[Integers], bounds: tuple[int | None, int | None]
) -> None:
    """Give a row a pair of ends that no other row has: with its first end if one is left, else with another one.

    Ends with few rows come first, and no end gets more rows than its bound. Changes `ends`, `used` (the pairs of other
    rows) and `degrees` (numbers of rows of each first and each second end) in place; without a free pair, nothing.

    `bounds` are the largest numbers of rows of an end, None without a bound.
    """
    first, second = ends[row].tolist()
    others = [end for end in np.argsort(degrees[0], kind="stable").tolist() if end != first]
    # the row's end stays as long as it can; a bound does not refuse the end that the row has
    for new_first in [first, *others]:
        if new_first != first and bounds[0] is not None and degrees[0][new_first] >= bounds[0]:
            continue
        for new_second in np.argsort(degrees[1], kind="stable").tolist():
            full = new_second != second and bounds[1] is not None and degrees[1][new_second] >= bounds[1]
            if full or (new_first, new_second) in used:
                continue
            degrees[0][first] -= 1
            degrees[1][second] -= 1
            degrees[0][new_first] += 1
            degrees[1][new_second] += 1
            used.add((new_first, new_second))
            ends[row] = new_first, new_second
            return
