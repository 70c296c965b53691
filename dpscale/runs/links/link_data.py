"""Exact links: read by tasks, stored by the driver as pairs of rows of the two tables, and summed.

A key is two words: a 128-bit hash. Codes are the cells of the attributes of rows, and a profile is a distinct row of
codes. Side 0 of a link has the parents, side 1 the children.

*Rows of the child's table.*
The policy of a link states which columns are read, and which rows count for the link. A row counts if it is within the
bound of the protected unit to which it belongs. Whether it does depends only on the rows of this unit, so that units
can be treated part by part.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.errors import DataError, RefusedValue
from dpscale.base.numerics import Integers, Integers32, Words
from dpscale.contributions.links import (
    Columns,
    KeyedRows,
    at_most,
    check_order,
    coded_rows,
    key_families,
    link_ends,
    one_a_key,
    ranks,
    row_words,
)
from dpscale.contributions.unit_ids import ODD, one_family_of_keys
from dpscale.contributions.unit_shards import UnitMap, places
from dpscale.domain import Domain
from dpscale.engine.contribution_bounds import collect_refusals
from dpscale.job import Job
from dpscale.job.neighbours import NeighbourRelation
from dpscale.job.sections import LinkSection
from dpscale.records.table import Partition
from dpscale.relational.assignment import PairTables, sibling_sums
from dpscale.relational.degrees import bucket, buckets, degree_histogram
from dpscale.relational.features import FEW_CELLS, Features, Side, distinct
from dpscale.relational.rounding import ORDER, Cross
from dpscale.runs.linked_tables import NO_DOMAIN, Files, open_table

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

NO_KEYS = np.empty((0, 2), np.uint64)  # stands for rows without keys


@dataclass(frozen=True, eq=False)
class ChildRows:
    """Rows of a child's table, which have the keys of their parents.

    Attributes
    ----------
    parents : ndarray, shape (rows, 2)
        Keys of the parents.
    words : ndarray, shape (rows, 2)
        Hashes that distinguish rows: of their codes, and of keys.
    codes : ndarray, shape (rows, attributes)
    stays : ndarray of bool
        Rows that count.
    keys : ndarray, shape (rows, 2)
        Keys of the rows themselves; NO_KEYS if they are not needed.
    ranks : ndarray
        Positions in the order of the rows, if the link has one.
    """

    parents: Words = field(repr=False)
    words: Words = field(repr=False)
    codes: NDArray[np.int32] = field(repr=False)
    stays: NDArray[np.bool_] = field(repr=False)
    keys: Words = field(repr=False)
    ranks: Integers = field(default_factory=lambda: np.empty(0, np.int64), repr=False)

    @classmethod
    def all(cls, parents: Words, codes: NDArray[np.int32], named: Sequence[Words], keys: Words = NO_KEYS) -> ChildRows:
        """Return rows that all count; `named` are keys that distinguish rows that are otherwise equal."""
        return cls(parents, row_words(codes, *named), codes, np.ones(len(codes), np.bool_), keys)


@dataclass(frozen=True)
class ChildPolicy:
    """Keys that are read from the rows of a child's table, and the rows that count.

    Attributes
    ----------
    keys : tuple of (tuple of str, str)
        Columns of each key and the policy for their nulls: of the parent, of what determines the unit, of the row.
    unit : {"key", "root", ""}
        What determines which rows count: the key of a row, the row of the root to which it belongs, or nothing.
    named : bool
        Whether the row's own key distinguishes rows that are otherwise equal, because a link of the row is counted.
    duplicates : str
        Policy for rows with one key.
    bound : int
        Largest number of rows of a row of the root, if they have a public parent.
    """

    keys: tuple[tuple[Columns, str], ...]
    unit: str
    named: bool
    duplicates: str
    bound: int = 0

    @classmethod
    def of(cls, job: Job, link: LinkSection, neighbours: NeighbourRelation) -> ChildPolicy:
        """Return the policy of a link's child table: the keys that are read, and which rows of a unit count.

        The keys are that of the parent, that of the unit, and the child's own key if its numbers of links in an earlier
        link are attributes of this one (`named`). The three cases are rows that are units themselves, rows of a public
        parent that belong to a unit by another link, and rows that belong to their parent's unit.
        """
        section, (parent_key, own_key), name = job.tables[link.child], job.ends(link), link.child
        parent, named = (parent_key, link.read_nulls), bool(job.counted(link, link.child))
        duplicates = job.duplicates(name)
        if own_key and name in (neighbours.root, *neighbours.sides):  # equal keys are one unit, whose rows count once
            return cls((parent, (own_key, section.nulls)), "key", named, duplicates)

        key_of_row = ((own_key, section.nulls),) if named else ()
        if name in neighbours.above and link.parent not in neighbours.rows:  # a public parent
            unit = (job.ends(neighbours.above[name])[0], "drop")
            return cls((parent, unit, *key_of_row), "root", named, duplicates, neighbours.rows[name])
        return cls((parent, *key_of_row), "", named, duplicates)

    def select(self, words: Sequence[Words], codes: NDArray[np.int32], roots: UnitMap | None = None) -> ChildRows:
        """Return the rows with the mask of those that count.

        Parameters
        ----------
        words : sequence of ndarray
            The keys of all rows of some units: of the parent, then of the unit and of the row, as far as the policy
            reads them.
        codes : ndarray
            The cells of these rows, shape (rows, attributes).
        roots : UnitMap, optional
            Map from the second key to the keys of the root.
        """
        parents, *others = words
        if self.unit == "key":
            [keys] = others
            chosen = one_a_key(keys, row_words(codes, parents), self.duplicates)
            named = [keys[chosen]] if self.named else []
            return ChildRows.all(parents[chosen], codes[chosen], named, keys[chosen])

        named = others[-1:] if self.named else []
        rows = ChildRows.all(parents, codes, named, named[0] if named else NO_KEYS)
        if self.unit == "root":
            assert roots is not None
            units, missing = roots(others[0])
            stays = ~missing  # rows of a unit, then those within its bound
            stays[stays] = at_most(units[stays], row_words(codes, parents, *named)[stays], self.bound)
            rows.stays[:] = stays
        return rows


@dataclass(frozen=True, eq=False)
class ExactLinks:
    """Links in memory, never shown.

    Attributes
    ----------
    rows : ndarray, shape (links, 2)
        Row of the parent and row of the child.
    parents, children : ndarray
        Codes of all rows of both tables.
    words : tuple of ndarray
        Keys of these rows; NO_KEYS if they are not known.
    unbounded : ndarray
        Number of links of every parent before the bound.
    ranks : ndarray
        Position of every child in the order of the rows, if the link has one.
    """

    rows: Integers = field(repr=False)
    parents: NDArray[np.int32] = field(repr=False)
    children: NDArray[np.int32] = field(repr=False)
    words: tuple[Words, Words] = field(default=(NO_KEYS, NO_KEYS), repr=False)
    unbounded: Integers = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    ranks: Integers = field(default_factory=lambda: np.empty(0, np.int64), repr=False)

    def history(self) -> tuple[Integers, Integers]:
        """Return the cells of the children, (m, d), and their parents, (m,), grouped by parent and in order."""
        order = np.lexsort((self.ranks[self.rows[:, 1]], self.rows[:, 0]))
        return self.children[self.rows[order, 1]].astype(np.int64), self.rows[order, 0]

    def by_degree(self, side: int, thresholds: Integers) -> Integers:
        """Return the number of rows of one side with at most so many links, for each threshold."""
        return count_to(self.degrees(side), thresholds)

    def degrees(self, side: int) -> Integers:
        """Return the number of links of every row of one side."""
        return np.bincount(self.rows[:, side], minlength=len((self.parents, self.children)[side]))

    def siblings(self, tables: PairTables) -> Integers:
        """Return the sums over pairs of siblings, in steps."""
        return sibling_sums(self.children[self.rows[:, 1]], self.rows[:, 0], tables)

    def sums(self, u: Features, v: Features) -> tuple[Integers, Integers, Integers]:
        """Return Σ φ, Σ ψ, Σ φψᵀ over all links, with the features φ of a link's parent and ψ of its child.

        They are integers, in steps of the features. Features are computed once for each profile, and links are counted
        by pairs of profiles.
        """
        (parent_cells, parent_profiles), (child_cells, child_profiles) = (
            distinct(self.parents, u.sizes),
            distinct(self.children, v.sizes),
        )
        phi, psi = u.whole(parent_cells), v.whole(child_cells)
        ends = parent_profiles[self.rows[:, 0]], child_profiles[self.rows[:, 1]]
        # links by the profiles of both ends, sparse
        counts = _count_pairs(*ends, (len(phi), len(psi)))

        products = phi.T @ (counts @ psi) if len(self.rows) else np.zeros((phi.shape[1], psi.shape[1]), np.int64)
        return phi.T @ counts.sum(axis=1), psi.T @ counts.sum(axis=0), products

    def entries(self, sizes: tuple[tuple[int, ...], tuple[int, ...]], order: int = ORDER) -> tuple[Cross, Integers]:
        """Return the layout of all cross marginals and their entries, one after the other.

        A cross marginal counts links by attributes of both tables, at most `order`; `sizes` are the numbers of cells of
        the attributes of both tables. The place of the entry for a pair of profiles is the sum of a number for the
        parent's profile (`cross.first`) and one for the child's (`cross.second`).
        """
        parent_sizes, child_sizes = sizes
        u, v = Side.made(self.parents, parent_sizes), Side.made(self.children, child_sizes)
        cross, width = Cross.of(u, v, order), len(v.counts)
        # links of each pair of profiles, as one number
        pairs, counts = np.unique(u.of[self.rows[:, 0]] * width + v.of[self.rows[:, 1]], return_counts=True)

        entries = np.zeros(cross.size, np.int64)
        for k in range(len(cross.columns)):
            # several pairs may have one entry
            np.add.at(entries, cross.first[pairs // width, k] + cross.second[pairs % width, k], counts)
        return cross, entries

    def entry_sums(self, sizes: tuple[tuple[int, ...], tuple[int, ...]], order: int = ORDER) -> Integers:
        """Return the entries of all cross marginals."""
        return self.entries(sizes, order)[1]

    @property
    def count(self) -> int:
        """Number of links."""
        return len(self.rows)

    def table_rows(self, side: int) -> int:
        """Return the number of rows of one side."""
        return len((self.parents, self.children)[side])

    def table_sums(self, side: int, features: Features) -> Integers:
        """Return Σ φ over all rows of one side, in steps."""
        profiles, of = distinct((self.parents, self.children)[side], features.sizes)
        return features.whole(profiles).T @ np.bincount(of, minlength=len(profiles))

    def degree_histogram(self) -> Integers:
        """Return the number of parents in every bucket of degrees before the bound."""
        return degree_histogram(self.unbounded)

    def digest(self) -> str:
        """Return a digest of the links and of the rows of both tables."""
        parts = (self.rows, self.parents, self.children)
        return hashlib.sha256(b"".join(hashlib.sha256(array.tobytes()).digest() for array in parts)).hexdigest()

    def close(self) -> None:
        """Do nothing: the links are in memory."""


def count_to(degrees: Integers, thresholds: Integers) -> Integers:
    """Return the number of rows with at most so many links, for each threshold."""
    return np.searchsorted(np.sort(degrees), thresholds, side="right").astype(np.int64)


def read_links(engine: Engine, job: Job, link: LinkSection, neighbours: NeighbourRelation) -> ExactLinks:
    """Return all links that count.

    Raises DataError for refused keys, and for rows with more links than the job allows.
    """
    parents = keyed(engine, job, link.parent)
    check_families(engine, job, link)
    children = _children(engine, job, link, neighbours) if link.via is None else keyed(engine, job, link.child)
    pairs = [] if link.via is None else _pairs(engine, link, job.ends(link))
    # parents that belong to units of a table above, each of which has a bound of parents
    is_below = link.parent in neighbours.above
    bounded = bounded_parents(engine, job, link.parent, neighbours) if is_below else None
    return select_links(link, neighbours, parents, children, pairs, bounded)


def select_links(link: LinkSection, neighbours: NeighbourRelation, parents: KeyedRows, children: ChildRows | KeyedRows,
                 pairs: Sequence[Words] = (), bounded: UnitMap | None = None) -> ExactLinks:  # fmt: skip
    """Return the links that count, of all or of some parents.

    Parameters
    ----------
    link : LinkSection
    neighbours : NeighbourRelation
    parents : KeyedRows
    children : ChildRows or KeyedRows
        Rows with the parents' keys; of a table of pairs the rows at its second end.
    pairs : sequence of ndarray
        The keys at both ends, of a table of pairs.
    bounded : UnitMap, optional
        Keys of the parents within the bound of each row of the root.
    """
    # of each link: the key of its parent, a key that identifies it among the parent's links (`other`), the row at its
    # second end, and whether the policy of the child selects it
    if isinstance(children, ChildRows):
        keys, other, child_keys, stays = children.parents, children.words, children.keys, children.stays
        ends, order = np.arange(len(keys)), children.ranks
    else:
        (keys, other), child_keys = pairs, children.words
        ends, stays, order = children.find(other), np.ones(len(keys), np.bool_), np.empty(0, np.int64)
    rows = np.stack([parents.find(keys), ends], axis=1)

    counts = _have_rows(rows, link) & stays  # mask of the links that count
    if link.loops is False:  # a row is not linked with itself
        counts &= (keys != (child_keys if link.via is None else other)).any(axis=1)
    if link.via is not None:
        counts[counts] = _once(rows[counts])
    if bounded is not None:
        parents = _rows_with_unit(parents, bounded)
        rows[:, 0] = parents.find(keys)
        counts &= rows[:, 0] >= 0

    rows, keys, other = rows[counts], keys[counts], other[counts]
    degrees = np.bincount(rows[:, 0], minlength=len(parents.codes))  # before links are cut
    if link.parent in neighbours.rows or neighbours.replaces:  # else a child has one parent, which is unbounded
        rows = rows[_bounded(rows, keys, other, link, neighbours, degrees)]
    return ExactLinks(
        rows=rows,
        parents=parents.codes,
        children=children.codes,
        words=(parents.words, child_keys),
        unbounded=degrees,
        ranks=order,
    )


def _count_pairs(first: Integers, second: Integers, shape: tuple[int, int]) -> Any:
    """Return the number of links of each pair of profiles: an array, or a sparse one if it had many cells.

    `first` and `second` are the profiles of parent and child of each link, and `shape` the numbers of profiles. An
    array has at most FEW_CELLS cells, or at most one cell per link.
    """
    from scipy.sparse import coo_array

    if math.prod(shape) <= max(len(first), FEW_CELLS):
        return np.bincount(first * shape[1] + second, minlength=math.prod(shape)).reshape(shape)
    return coo_array((np.ones(len(first), np.int64), (first, second)), shape=shape).tocsr()


def keyed(engine: Engine, job: Job, name: str) -> KeyedRows:
    """Return the rows of a table by their keys, one row per key."""
    [words], codes = _coded(engine, job, name, [(job.key(name), job.tables[name].nulls)])
    first = one_a_key(words, row_words(codes), job.duplicates(name))
    return KeyedRows(words[first], codes[first])


def _children(engine: Engine, job: Job, link: LinkSection, neighbours: NeighbourRelation) -> ChildRows:
    """Return the rows of a child table with their parents' keys and a mask of those that count for this link.

    Links with an order read its columns too.
    """
    policy = ChildPolicy.of(job, link, neighbours)
    if link.order:
        return _in_order(engine, job, link, policy)
    words, codes = _coded(engine, job, link.child, policy.keys)
    return policy.select(words, codes, unit_roots(engine, job, link, neighbours, policy))


def _in_order(engine: Engine, job: Job, link: LinkSection, policy: ChildPolicy) -> ChildRows:
    """Return the children of a private parent with their order and the attributes of their other parents.

    The values of the order are among the words that distinguish rows. The codes of a child are those of its table, then
    those of its other parents.
    """
    check_orders(engine, job)
    other_links, keys = job.other_parents(link), policy.keys
    columns = [*keys, *((job.ends(other)[0], other.nulls) for other in other_links)]
    # keys of the policy, keys of the other parents, and the values of the order
    read, codes = _coded(engine, job, link.child, columns, job.order_columns(link))
    (words, *named), values = read[: len(keys)], read[-1]

    for other, parent_keys in zip(other_links, read[len(keys) :], strict=False):  # without the order, the last column
        parents = keyed(engine, job, other.parent)
        rows = parents.find(parent_keys)
        _have_rows(rows[:, None], other)  # raises an error for a child without this parent
        codes = np.column_stack([codes, parents.codes[rows]]).astype(np.int32)

    # values of the order as keys of two words; the second is a hash of the first
    bits = [np.stack([word, word * ODD], axis=1) for word in np.ascontiguousarray(values.T).view(np.uint64)]
    children = ChildRows.all(words, codes, [*named, *bits], named[0] if named else NO_KEYS)
    cells = codes[:, listed_names(job.domains[link.child]).index(link.order[0])]
    return replace(children, ranks=ranks(cells, values, children.words))


def unit_roots(engine: Engine, job: Job, link: LinkSection, neighbours: NeighbourRelation,
               policy: ChildPolicy) -> UnitMap | None:  # fmt: skip
    """Return the map from keys to those of the root that a policy needs.

    The root is the table whose rows are the units; other policies need no map.
    """
    if policy.unit != "root":
        return None
    return _roots(engine, job, neighbours.above[link.child].parent, neighbours)


def _roots(engine: Engine, job: Job, name: str, neighbours: NeighbourRelation) -> UnitMap:
    """Return a map from the keys of a table's rows to the keys of the root rows to which they belong.

    A table has keys and the keys of the table above it. This map is composed with the map of the table above to the
    root. Rows without a key or without a parent's key are dropped.
    """
    if name == neighbours.root:
        words = keyed(engine, job, name).words
        return UnitMap(words, words)
    [keys, parents], _ = _coded(
        engine, job, name, [(job.key(name), "drop"), (job.ends(neighbours.above[name])[0], "drop")]
    )
    return UnitMap.made(keys, parents).then(_roots(engine, job, neighbours.above[name].parent, neighbours))


def _rows_with_unit(rows: KeyedRows, some: UnitMap) -> KeyedRows:
    """Return the rows whose keys are in a map."""
    stays = ~some(rows.words)[1]
    return KeyedRows(rows.words[stays], rows.codes[stays])


def bounded_parents(engine: Engine, job: Job, name: str, neighbours: NeighbourRelation) -> UnitMap:
    """Return the keys of a table's rows within the contribution bound of each row of the root."""
    roots = _roots(engine, job, name, neighbours)
    first = at_most(roots.units, roots.words, neighbours.rows[name])
    return UnitMap(roots.words[first], roots.units[first])


def _coded(
    engine: Engine, job: Job, name: str, keys: Sequence[tuple[Columns, str]], order: Columns = ()
) -> tuple[list[NDArray[Any]], NDArray[np.int32]]:
    """Return one array for each key and one for the columns of `order`, and the cells (rows, attributes) of a table.

    Raises DataError for all refused values together.
    """
    section, domain = job.tables[name], job.domains[name]
    parts, names = _parts(section, domain), listed_names(domain)
    try:
        pieces = engine.map(coded_rows, [(domain, part, names, keys, order) for part in parts], "keys")
    except RefusedValue as met:
        raise collect_refusals(engine, open_table(section, domain), names, met) from None
    words = [np.concatenate(arrays) for arrays in zip(*(words for words, _ in pieces), strict=True)]
    return words, np.concatenate([codes for _, codes in pieces])


def listed_names(domain: Domain) -> tuple[str, ...]:
    """Return the attributes whose cells are known."""
    return tuple(name for name in domain.names if domain[name].search is None)


def _pairs(engine: Engine, link: LinkSection, ends: tuple[Columns, Columns]) -> list[Words]:
    """Return the keys at both ends of every row of a table of pairs; `ends` are their columns."""
    found = engine.map(link_ends, [(part, ends, link.nulls) for part in _parts(link.via or "")], "links")
    return [np.concatenate(of_end) for of_end in zip(*found, strict=True)]


def _parts(files: Files, domain: Domain = NO_DOMAIN) -> tuple[Partition, ...]:
    return open_table(files, domain).partitions


def _once(rows: Integers) -> NDArray[np.bool_]:
    """Return a mask of the first occurrence of each pair of rows, (links, 2): duplicate pairs are one link."""
    first = np.zeros(len(rows), np.bool_)
    numbers = rows[:, 0] * (rows[:, 1].max(initial=0) + 1) + rows[:, 1]  # a distinct number for each pair
    _, first_places = np.unique(numbers, return_index=True)
    first[first_places] = True
    return first


def _have_rows(rows: Integers, link: LinkSection) -> NDArray[np.bool_]:
    """Return a mask of links whose rows exist at all ends; `rows` has -1 for missing ones, shape (links, ends).

    Raises DataError for a missing row unless the link drops such links.
    """
    exist = (rows >= 0).all(axis=1)
    if not exist.all() and link.dangling != "drop":
        raise DataError(f"link {link.called}", "a key without a row", "the key of a row at both ends",
                        'fix the data, or set dangling = "drop"')  # fmt: skip
    return np.asarray(exist)


def _bounded(rows: Integers, keys: Words, other: Words, link: LinkSection, neighbours: NeighbourRelation,
             degrees: Integers) -> NDArray[np.bool_]:  # fmt: skip
    """Return a mask of links within the bound; `rows` are those of both ends, `degrees` the links of every parent.

    A parent's excess links are dropped; which, depends on its own links alone. They are refused if both sides are
    protected. `keys` identify the parent, `other` the link among those of the parent.
    """
    if not neighbours.replaces:
        stays = np.ones(len(rows), np.bool_)
        cut = degrees[rows[:, 0]] > link.bound  # the links of other parents all stay, so they need no order
        stays[cut] = at_most(keys[cut], other[cut], link.bound)
        return stays
    # both ends are protected: no row may exceed the bound, because a cut would depend on other rows
    largest = max(int(np.bincount(rows[:, side]).max(initial=0)) for side in (0, 1)) if len(rows) else 0
    if largest > link.bound:
        raise DataError(
            f"link {link.called}",
            "a row with more links than max_degree",
            f"at most {link.bound} links per row of both tables",
            "raise max_degree, or protect only the parent, whose excess links are then dropped",
        )
    return np.ones(len(rows), np.bool_)


def check_families(engine: Engine, job: Job, link: LinkSection) -> None:
    """Raise DataError if the keys of the two ends cannot be compared, such as numbers and times.

    A family is a class of comparable types, such as numbers. With a table of pairs, both of its keys are compared.
    """
    to_parent, to_child = job.ends(link)  # columns of the child's table, or of the table of pairs
    referring = job.tables[link.child] if link.via is None else link.via
    compared: list[tuple[Files, Columns, Files, Columns]] = [
        (job.tables[link.parent], job.key(link.parent), referring, to_parent)
    ]
    if link.via is not None:
        compared.append((job.tables[link.child], job.key(link.child), link.via, to_child))

    for table, key, referring, columns in compared:
        families = _families(engine, table, key), _families(engine, referring, columns)
        for of_key, of_column in zip(*families, strict=True):
            one_family_of_keys({*of_key, *of_column}, ", ".join(columns))


def check_orders(engine: Engine, job: Job) -> None:
    """Raise DataError for a column of an order that is missing or has none; reads headers only."""
    for link in (link for link in job.link if link.order):
        columns, domain = job.order_columns(link), job.domains[link.child]
        engine.map(check_order, [(part, columns) for part in _parts(job.tables[link.child], domain)], "keys")


def _families(engine: Engine, files: Files, columns: Columns) -> list[set[str]]:
    """Return the type families of every key column over the files."""
    found = engine.map(key_families, [(part, columns) for part in _parts(files)], "keys")
    return [set(of_column) for of_column in zip(*found, strict=True)]


def sizes(job: Job, link: LinkSection, table: str) -> list[int]:
    """Return the number of buckets of degrees in every earlier link that `link` counts for a table's rows."""
    return [len(buckets(earlier.bound)) for earlier in job.counted(link, table)]


def with_counts(job: Job, link: LinkSection, exact: ExactLinks, before: Mapping[str, ExactLinks]) -> ExactLinks:
    """Return the links with the degrees in the links `before` as additional attributes of their rows.

    `before` has the earlier links by name; `link` reads the degrees in those of job.counted(link, table) for a table.
    """
    parents, children = (
        _extended(codes, [_of_rows(words, before[other.called], other.bound) for other in job.counted(link, table)])
        for table, codes, words in zip((link.parent, link.child), (exact.parents, exact.children), exact.words,
                                       strict=True)
    )  # fmt: skip
    return replace(exact, parents=parents, children=children)


def with_drawn(job: Job, link: LinkSection, table: str, codes: Integers32, drawn: Mapping[str, Integers]) -> Integers32:
    """Return the cells of a table's synthetic rows, with their degrees in earlier links as further attributes.

    A degree is the number of a row's links, in buckets. `drawn` has the rows of parent and child by link, (links, 2).
    """
    earlier, buckets = job.counted(link, table), []
    for other in earlier:
        degrees = np.bincount(drawn[other.called][:, 0], minlength=len(codes))
        buckets.append(bucket(degrees, other.bound))
    return _extended(codes, buckets)


def _of_rows(words: Words, earlier: ExactLinks, bound: int) -> Integers:
    """Return the degree bucket of rows by their keys; rows that are not counted in the earlier link have degree 0.

    `words` are the keys of the rows. A bucket is a range of degrees up to `bound`.
    """
    keys = earlier.words[0]
    degrees = np.bincount(earlier.rows[:, 0], minlength=len(keys))
    with_unknown = np.append(degrees, 0)  # the last entry is that of an unknown key, whose place is −1
    return bucket(with_unknown[places(keys, words)], bound)


def _extended(codes: Integers32, columns: list[Integers]) -> Integers32:
    return np.column_stack([codes, *columns]).astype(np.int32) if columns else codes
